//! The forms in which services may read a path.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// A path, and all other forms in which a service may read it.
///
/// actix-web decodes `/%6Cogin` before it looks for the route, some middleware merges slashes or
/// removes the last one, and some handlers resolve dots. A service may do some of these steps and
/// leave out the others, so each combination is a form:
///
/// | step | alternatives |
/// |---|---|
/// | decode | nothing; all except `%2F`, `%2B` and `%25`, as actix-web does; all |
/// | slashes | as they are; merged, without the last one |
/// | dots | as they are; resolved |
///
/// So a path has at most twelve forms. A plain path has one, and needs no allocation.
#[derive(Debug)]
pub(super) struct PathForms<'a> {
    sent: &'a str,
    /// The forms that differ from `sent` and from each other.
    others: Vec<String>,
    /// Whether the decoded path can be decoded again. No framework decodes twice, but a handler
    /// may do so.
    is_encoded_twice: bool,
}

impl<'a> PathForms<'a> {
    pub(super) fn new(sent: &'a str) -> Self {
        let is_plain = !sent.contains('%')
            && !sent.contains("//")
            && !sent.contains("/.")
            && (sent == "/" || !sent.ends_with('/'));
        let mut forms = Self { sent, others: Vec::new(), is_encoded_twice: false };
        if !is_plain {
            forms.add_others();
        }
        forms
    }

    #[cold]
    fn add_others(&mut self) {
        let all = percent_decode_str(self.sent).decode_utf8_lossy();
        self.is_encoded_twice = has_escape(all.as_bytes());
        for decoded in [Cow::Borrowed(self.sent), decode_most(self.sent), all] {
            self.add(resolve_dots(&decoded));
            let merged = merge_slashes(&decoded);
            self.add(merge_slashes(&resolve_dots(&merged)).into());
            self.add(merged.into());
            self.add(decoded);
        }
    }

    fn add(&mut self, form: Cow<'_, str>) {
        if form != self.sent && !self.others.iter().any(|known| *known == form) {
            self.others.push(form.into_owned());
        }
    }

    /// Returns whether the decoded path can be decoded again.
    pub(super) const fn is_encoded_twice(&self) -> bool {
        self.is_encoded_twice
    }

    /// Returns all forms.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.sent).chain(self.others())
    }

    /// Returns the forms that differ from the path as it was sent.
    pub(super) fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }
}

/// Returns the byte that is percent-encoded at the beginning of `text`.
fn escaped(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

fn has_escape(text: &[u8]) -> bool {
    text.windows(3).any(|text| escaped(text).is_some())
}

/// Decodes percent-encoded characters except slashes, plus signs and percent signs.
fn decode_most(path: &str) -> Cow<'_, str> {
    let mut rest = path.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        match escaped(rest).filter(|byte| !b"/+%".contains(byte)) {
            Some(byte) => {
                decoded.push(byte);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    if decoded.len() == path.len() {
        return Cow::Borrowed(path);
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// Removes empty segments, and so the last slash.
fn merge_slashes(path: &str) -> String {
    let mut merged = String::with_capacity(path.len() + 1);
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        merged.push('/');
        merged.push_str(segment);
    }
    if merged.is_empty() {
        merged.push('/');
    }
    merged
}

/// Resolves `.` and `..` like RFC 3986: `/a/../b/.` is `/b/`.
fn resolve_dots(path: &str) -> Cow<'_, str> {
    if !path.split('/').any(|segment| segment == "." || segment == "..") {
        return Cow::Borrowed(path);
    }
    let mut segments: Vec<&str> = Vec::new();
    let mut is_directory = false;
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        is_directory = segment == "." || segment == "..";
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    if is_directory {
        segments.push("");
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forms(path: &str) -> Vec<String> {
        let mut forms: Vec<String> = PathForms::new(path).iter().map(str::to_owned).collect();
        forms.sort_unstable();
        forms
    }

    #[test]
    fn a_plain_path_has_one_form() {
        for path in ["/", "/a", "/a/b.c", "/a;b=c/d+e", "*", ""] {
            assert_eq!(forms(path), [path]);
        }
        assert_eq!(forms("/.well-known/..."), ["/.well-known/..."]);
    }

    /// Fault: a path was compared as it was sent and with all steps together. A service that does
    /// one of them read a path that was neither.
    #[test]
    fn each_combination_of_steps_is_a_form() {
        assert_eq!(forms("/a/"), ["/a", "/a/"]);
        assert_eq!(forms("/%61%2Fb"), ["/%61%2Fb", "/a%2Fb", "/a/b"]);
        assert_eq!(forms("/%61/.."), ["/", "/%61/..", "/a/.."]);
        let path = "//%61%2Fb/../%252e/";
        let mut expected = [
            "//%61%2Fb/../%252e/",
            "//%252e/",
            "/%61%2Fb/../%252e",
            "/%252e",
            "//a%2Fb/../%252e/",
            "/a%2Fb/../%252e",
            "//a/b/../%2e/",
            "//a/%2e/",
            "/a/b/../%2e",
            "/a/%2e",
        ];
        expected.sort_unstable();
        assert_eq!(forms(path), expected);
    }

    #[test]
    fn escapes_that_are_not_valid_stay_as_they_are() {
        for path in ["/%", "/%zz", "/%4", "/%+1", "/a%2Fb%25"] {
            assert_eq!(decode_most(path), path);
        }
        assert_eq!(decode_most("/%41%2f%2B%25%c3%a9"), "/A%2f%2B%25é");
        assert_eq!(decode_most("/%ff%zz%41"), "/\u{fffd}%zzA");
    }

    #[test]
    fn a_path_that_is_encoded_twice_is_found() {
        for (path, expected) in [
            ("/%2541", true),
            ("/%41", false),
            ("/%25", false),
            ("/%25%34%31", true),
            ("/%", false),
        ] {
            assert_eq!(PathForms::new(path).is_encoded_twice(), expected, "{path}");
        }
    }

    /// The longest path that `http` accepts.
    #[test]
    fn a_long_path_has_few_forms() {
        for pattern in ["/%2e%2e/", "%2F", "/../a/", "//", "/.", "%252F", "/a%2F../"] {
            let path = format!("/{}", pattern.repeat(65_534 / pattern.len() - 1));
            let forms = PathForms::new(&path);
            assert!(forms.iter().count() <= 12);
            assert!(forms.iter().all(|form| form.len() <= path.len()), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn forms_are_distinct_and_bounded(path in "/([a%/.]|%2[fF5eE]|//|/\\.){0,12}") {
            let mut forms = forms(&path);
            let count = forms.len();
            prop_assert!(count <= 12);
            forms.dedup();
            prop_assert_eq!(forms.len(), count);
        }
    }
}
