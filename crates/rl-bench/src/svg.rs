//! The parts of a picture, as SVG.

use std::fmt::Display;

/// A picture that is being drawn.
pub(crate) struct Svg(String);

impl Svg {
    /// Creates a picture of this size, with a heading. `described` is for screen readers.
    pub(crate) fn new(
        (width, height): (f64, f64),
        title: &str,
        described: &str,
        style: &str,
        heading: &str,
    ) -> Self {
        let [title, described, heading] = [title, described, heading].map(escape);
        Self(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{described}</desc>
<style>{style}</style>
<rect class="ground" width="{width}" height="{height}" rx="8"/>
<text class="name" x="16" y="28">{heading}</text>
"#
        ))
    }

    /// Adds an element.
    pub(crate) fn add(&mut self, element: impl Display) {
        self.0 += &format!("{element}\n");
    }

    pub(crate) fn path(&mut self, class: &str, d: impl Display) {
        self.add(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    pub(crate) fn circle(&mut self, class: &str, x: f64, y: f64, r: f64) {
        self.add(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r:.1}"/>"#));
    }

    /// Adds a text that begins at `x`.
    pub(crate) fn text(&mut self, x: f64, y: f64, text: &str) {
        self.add(format_args!(r#"<text x="{x}" y="{y}">{}</text>"#, escape(text)));
    }

    /// Adds a text that ends at `x`, for a height of the picture.
    pub(crate) fn level(&mut self, x: f64, y: f64, text: impl Display) {
        self.add(format_args!(
            r#"<text x="{x}" y="{:.1}" text-anchor="end">{text}</text>"#,
            y + 4.5
        ));
    }

    /// Adds a text whose middle is at `x`.
    pub(crate) fn below(&mut self, x: f64, y: f64, text: impl Display) {
        self.add(format_args!(r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{text}</text>"#));
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Escapes text for use between tags.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
