use axum::http::header;
use axum::response::IntoResponse;

/// Makes browsers revalidate each time, so that a page and its style sheet are of the same version.
const REVALIDATE: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-cache");

/// Responds with the style sheet.
pub(super) async fn style() -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    ([kind, REVALIDATE], include_str!("assets/console.css"))
}

/// Responds with the script.
pub(super) async fn script() -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    ([kind, REVALIDATE], include_str!("assets/console.js"))
}

/// Responds with the icon.
pub(super) async fn icon() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "image/svg+xml"), REVALIDATE], include_str!("assets/icon.svg"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    /// Returns the colours of the light scheme and of the dark scheme.
    fn schemes() -> [HashMap<&'static str, [f64; 3]>; 2] {
        let style = include_str!("assets/console.css");
        let mut blocks = style.split(":root {").skip(1);
        let light = colours(blocks.next().unwrap());
        let mut dark = light.clone();
        dark.extend(colours(blocks.next().unwrap()));
        [light, dark]
    }

    fn colours(block: &'static str) -> HashMap<&'static str, [f64; 3]> {
        let lines = block.split('}').next().unwrap().lines();
        let pairs = lines.filter_map(|line| line.trim().strip_prefix("--")?.split_once(": #"));
        let parse = |hex: &str| {
            let part = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            [part(0), part(2), part(4)].map(|part| f64::from(part) / 255.0)
        };
        pairs.map(|(name, hex)| (name, parse(hex))).collect()
    }

    /// Returns the contrast of two colours as defined by the Web Content Accessibility Guidelines.
    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let light = |colour: [f64; 3]| {
            let [r, g, b] = colour.map(|part| {
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (light(one) + 0.05, light(other) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn text_and_shapes_have_enough_contrast_in_both_schemes() {
        #[rustfmt::skip]
        let text = [
            ("ink", "ground"), ("ink", "sheet"), ("ink", "sunk"), ("faint", "ground"),
            ("faint", "sheet"), ("faint", "sunk"), ("accent", "ground"), ("accent", "sheet"),
            ("on-accent", "accent"), ("near-ink", "near-ground"), ("full-ink", "full-ground"),
            ("full-ink", "sheet"), ("full-ink", "ground"), ("good-ink", "good-ground"),
            ("ink", "near-ground"), ("faint", "near-ground"), ("accent", "sunk"),
        ];
        let shapes =
            [("open", "sunk"), ("near", "sunk"), ("full", "sunk"), ("strong-line", "sheet")];
        for (scheme, colours) in ["light", "dark"].into_iter().zip(schemes()) {
            for (pairs, least) in [(&text[..], 4.5), (&shapes[..], 3.0)] {
                for (one, other) in pairs {
                    let found = contrast(colours[one], colours[other]);
                    assert!(found >= least, "{scheme}: {one} on {other}: {found:.2}");
                }
            }
        }
    }
}
