//! The parts that all charts have in common.

use super::chart::Chart;

pub(super) const WIDTH: f64 = 760.0;

/// Colours for light and dark pages. The background is painted, so that text is readable on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#59636e}.name{font-size:17px;font-weight:600;fill:#1f2328}
.ground{fill:#fff}.grid{stroke:#d1d9e0}.axis{stroke:#818b98}.strong{fill:#1f2328;font-weight:600}
path{fill:none}.line{stroke-width:2;stroke-linejoin:round}
.ours{stroke-width:3}
.c0{stroke:#0969da}.f0{fill:#0969da}.c1{stroke:#bc4c00}.f1{fill:#bc4c00}.c2{stroke:#8250df}.f2{fill:#8250df}
.c3{stroke:#1a7f37}.f3{fill:#1a7f37}.c4{stroke:#bf3989}.f4{fill:#bf3989}.c5{stroke:#59636e}.f5{fill:#59636e}
.other{fill:#afb8c1}.value{paint-order:stroke;stroke:#fff;stroke-width:4px}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.name,.strong{fill:#f0f6fc}.ground{fill:#0d1117}
.grid{stroke:#3d444d}.axis{stroke:#656c76}
.c0{stroke:#4493f8}.f0{fill:#4493f8}.c1{stroke:#f0883e}.f1{fill:#f0883e}.c2{stroke:#ab7df8}.f2{fill:#ab7df8}
.c3{stroke:#3fb950}.f3{fill:#3fb950}.c4{stroke:#db61a2}.f4{fill:#db61a2}.c5{stroke:#9198a1}.f5{fill:#9198a1}
.other{fill:#656c76}.value{stroke:#0d1117}}";

/// The number of colours.
pub(super) const COLOURS: usize = 6;

/// Returns the beginning of a chart of this height. `described` is a text with its numbers, for
/// screen readers.
pub(super) fn head(chart: &Chart, height: f64, described: &str) -> String {
    let (title, note, described) = (escape(&chart.title), escape(&chart.note), escape(described));
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{described}</desc>
<style>{STYLE}</style>
<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>
<text class="name" x="16" y="28">{title}</text>
<text x="16" y="50">{note}</text>
"#
    )
}

/// Escapes text for use between tags.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
