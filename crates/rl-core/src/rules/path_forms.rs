//! The forms in which services may read a path.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The maximum number of forms of a path. Paths that people and programs write have at most sixteen.
const MAX_FORMS: usize = 24;

/// The maximum length of all forms together, in bytes, unless the path has only one. It bounds the
/// work for a path, which may be 64 KiB long: a client chooses how many forms it has.
const MAX_LEN: usize = 32 * 1_024;

/// The steps with which services read a path. Each does one thing only, because services combine them
/// in their own ways. A step that changes nothing returns the path itself.
const STEPS: [fn(&str) -> Cow<'_, str>; 14] = [
    decode_most,
    decode_segments,
    decode_all,
    uppercase_escapes,
    remove_first_slash,
    remove_last_slash,
    merge_slashes,
    remove_dots,
    remove_parameters,
    replace_backslashes,
    end_before_query,
    end_before_fragment,
    remove_last_spaces,
    trim_segments,
];

/// A path, and all other forms in which a service may read it.
///
/// actix-web decodes `/%6Cogin` before it looks for the route, some middleware merges slashes or
/// removes the last one, and some handlers resolve dots. A service may do some of these steps and
/// leave out the others, and it may do them in any order. The forms are all results of
///
/// * decoding everything, or everything except `%2F`, as services do that decode each segment, or
///   everything except `%2F`, `%2B` and `%25`, as actix-web does,
/// * writing escapes in capital letters,
/// * removing one of several slashes at the start, a slash at the end, or one of two slashes at each
///   place,
/// * removing `.` segments, and parameters of segments,
/// * steps of handlers that forward the request to a URL: replacing backslashes, and ending the path
///   before `?`, before `#`, or before spaces at the end,
/// * removing spaces around each segment.
///
/// A plain path has one form, and needs no allocation.
///
/// A path may have any form if it does not begin with a slash, such as `login` over HTTP/2, `*` or an
/// empty one: a service that forwards it completes it in its own way. So may a path with `..` or a
/// control character in one of its forms. A handler that adds or removes a prefix resolves `..` to
/// another path than one that does not, because `..` ends at the root. A client of URLs leaves out
/// some control characters and encodes others, and for programs in C a zero byte ends the path.
#[derive(Debug)]
pub(super) struct PathForms<'a> {
    sent: Cow<'a, str>,
    /// The forms that differ from `sent` and from each other.
    others: Vec<String>,
    /// Whether all forms were found. Otherwise they are too many or too long, or not known.
    is_complete: bool,
}

impl<'a> PathForms<'a> {
    pub(super) fn new(sent: impl Into<Cow<'a, str>>) -> Self {
        let sent = sent.into();
        let is_plain = sent.bytes().all(|byte| byte > b' ' && !b"%;\\?#\x7f".contains(&byte))
            && !sent.contains("//")
            && !sent.contains("/.")
            && (&*sent == "/" || !sent.ends_with('/'));
        let is_complete = sent.starts_with('/');
        let mut forms = Self { sent, others: Vec::new(), is_complete };
        if is_complete && !is_plain {
            forms.is_complete = forms.find_others();
        }
        forms
    }

    /// Creates the forms of a path that is not known.
    pub(super) const fn unknown() -> Self {
        Self { sent: Cow::Borrowed(""), others: Vec::new(), is_complete: false }
    }

    /// Adds the other forms. Returns false if they are too many or too long, or if one contains `..`
    /// or a control character.
    ///
    /// Each step makes a path shorter, replaces single characters or leaves it as it is, so the
    /// search ends.
    #[cold]
    fn find_others(&mut self) -> bool {
        let mut len = self.sent.len();
        if len > MAX_LEN {
            return false;
        }
        let mut done = 0;
        while done <= self.others.len() {
            let form = if done == 0 { &self.sent } else { &*self.others[done - 1] };
            let has_control = form.bytes().any(|byte| byte.is_ascii_control());
            if has_control || form.split('/').any(|segment| segment == "..") {
                return false;
            }
            let next = STEPS.map(|step| match step(form) {
                Cow::Borrowed(_) => None,
                Cow::Owned(form) => Some(form),
            });
            for form in next.into_iter().flatten() {
                if form == self.sent || self.others.contains(&form) {
                    continue;
                }
                len += form.len();
                if self.others.len() + 1 >= MAX_FORMS || len > MAX_LEN {
                    return false;
                }
                self.others.push(form);
            }
            done += 1;
        }
        true
    }

    /// Returns whether all forms were found. If not, the path may have any form.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the forms that were found.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.sent).chain(self.other_forms())
    }

    /// Returns the forms that differ from the path as it was sent.
    pub(super) fn other_forms(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }
}

/// Returns the byte that is percent-encoded at the beginning of `text`.
fn escaped(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

/// Decodes all percent-encoded characters.
fn decode_all(path: &str) -> Cow<'_, str> {
    match Cow::from(percent_decode_str(path)) {
        Cow::Borrowed(_) => Cow::Borrowed(path),
        Cow::Owned(decoded) => Cow::Owned(String::from_utf8_lossy(&decoded).into_owned()),
    }
}

/// Decodes percent-encoded characters except slashes, plus signs and percent signs.
fn decode_most(path: &str) -> Cow<'_, str> {
    decode_except(path, b"/+%")
}

/// Decodes percent-encoded characters except slashes.
fn decode_segments(path: &str) -> Cow<'_, str> {
    decode_except(path, b"/")
}

fn decode_except<'a>(path: &'a str, kept: &[u8]) -> Cow<'a, str> {
    let mut rest = path.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        match escaped(rest).filter(|byte| !kept.contains(byte)) {
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

/// Writes the digits of escapes in capital letters: `%2f` is `%2F`.
fn uppercase_escapes(path: &str) -> Cow<'_, str> {
    let escapes = path.match_indices('%').map(|(at, _)| at);
    let mut escapes = escapes.filter(|at| escaped(&path.as_bytes()[*at..]).is_some());
    let is_lower = |at: &usize| path[*at..*at + 3].bytes().any(|byte| byte.is_ascii_lowercase());
    let Some(first) = escapes.find(is_lower) else { return Cow::Borrowed(path) };
    let mut written = path.to_owned();
    for at in std::iter::once(first).chain(escapes) {
        written[at..at + 3].make_ascii_uppercase();
    }
    Cow::Owned(written)
}

/// Removes the first of several slashes at the start.
fn remove_first_slash(path: &str) -> Cow<'_, str> {
    if path.starts_with("//") { Cow::Owned(path[1..].to_owned()) } else { Cow::Borrowed(path) }
}

/// Removes a slash at the end.
fn remove_last_slash(path: &str) -> Cow<'_, str> {
    match path.strip_suffix('/') {
        Some(rest) if !rest.is_empty() => Cow::Owned(rest.to_owned()),
        _ => Cow::Borrowed(path),
    }
}

/// Writes one slash in place of two: `//a///b` is `/a//b`.
fn merge_slashes(path: &str) -> Cow<'_, str> {
    if path.contains("//") { Cow::Owned(path.replace("//", "/")) } else { Cow::Borrowed(path) }
}

/// Replaces backslashes by slashes, as the URL standard of WHATWG does.
fn replace_backslashes(path: &str) -> Cow<'_, str> {
    if path.contains('\\') { Cow::Owned(path.replace('\\', "/")) } else { Cow::Borrowed(path) }
}

/// Ends the path before `?`.
fn end_before_query(path: &str) -> Cow<'_, str> {
    path.split_once('?').map_or(Cow::Borrowed(path), |(start, _)| Cow::Owned(start.to_owned()))
}

/// Ends the path before `#`.
fn end_before_fragment(path: &str) -> Cow<'_, str> {
    path.split_once('#').map_or(Cow::Borrowed(path), |(start, _)| Cow::Owned(start.to_owned()))
}

/// Removes spaces at the end, as the URL standard of WHATWG does.
fn remove_last_spaces(path: &str) -> Cow<'_, str> {
    if path.ends_with(' ') {
        Cow::Owned(path.trim_end_matches(' ').to_owned())
    } else {
        Cow::Borrowed(path)
    }
}

/// Removes spaces around each segment, as handlers do that trim a parameter.
fn trim_segments(path: &str) -> Cow<'_, str> {
    if path.split('/').all(|segment| segment.trim() == segment) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(path.split('/').map(str::trim).collect::<Vec<_>>().join("/"))
}

/// Removes `.` segments: `/a/./b/.` is `/a/b/`.
fn remove_dots(path: &str) -> Cow<'_, str> {
    if !path.split('/').any(|segment| segment == ".") {
        return Cow::Borrowed(path);
    }
    let mut segments: Vec<&str> = path.split('/').filter(|segment| *segment != ".").collect();
    if path.ends_with("/.") {
        segments.push("");
    }
    Cow::Owned(segments.join("/"))
}

/// Removes the parameters of segments, as servlet containers do: `/a;v=1/b` is `/a/b`.
fn remove_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return Cow::Borrowed(path);
    }
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    Cow::Owned(segments.collect::<Vec<_>>().join("/"))
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
        for path in ["/", "/a", "/a/b.c", "/a:b=c/d+e"] {
            assert_eq!(forms(path), [path]);
        }
        assert_eq!(forms("/.well-known/..."), ["/.well-known/..."]);
    }

    /// Fault: a path without a slash at its start had one form, so it avoided all rules with a path.
    #[test]
    fn a_path_without_a_slash_at_its_start_may_have_any_form() {
        for path in ["", "*", "login", "a/../login", "http://localhost/login"] {
            assert!(!PathForms::new(path).is_complete(), "{path:?}");
        }
    }

    /// Fault: a path was compared as it was sent and with all steps together. A service that does
    /// one of them read a path that was neither.
    #[test]
    fn each_result_of_the_steps_is_a_form() {
        assert_eq!(forms("/a/"), ["/a", "/a/"]);
        assert_eq!(forms("//"), ["/", "//"]);
        assert_eq!(forms("//a//b"), ["//a//b", "/a//b", "/a/b"]);
        assert_eq!(forms("/a%2fb"), ["/a%2Fb", "/a%2fb", "/a/b"]);
        assert_eq!(forms("/c%2B%2B/a%2Fb"), ["/c%2B%2B/a%2Fb", "/c++/a%2Fb", "/c++/a/b"]);
        assert_eq!(forms("/a%20b"), ["/a b", "/a%20b"]);
        assert_eq!(forms("/%61%2Fb"), ["/%61%2Fb", "/a%2Fb", "/a/b"]);
        // The dot is removed before the letter is decoded, or after it, or not at all.
        assert_eq!(forms("/./%6c"), ["/%6C", "/%6c", "/./%6C", "/./%6c", "/./l", "/l"]);
        assert_eq!(forms("/a;v=1/b;c"), ["/a/b", "/a;v=1/b;c"]);
        assert_eq!(forms("/%252e"), ["/", "/%252e", "/%2E", "/%2e", "/."]);
        assert!(forms("//%61%2Fb/%252e/").contains(&"/a%2Fb/%252e".to_owned()));
    }

    /// Fault: `..` was resolved from the root of the path, and a handler that removes or adds a prefix
    /// resolved it from another one.
    #[test]
    fn a_path_with_a_parent_segment_in_some_form_may_have_any_form() {
        for path in [
            "/files/../secret",
            "/files/%2e%2e/secret",
            "/files/.%2E%2fsecret",
            "/files/%252e./secret",
            "/files/..",
            "/x\\..\\login",
            "/x/..\\login",
            "/pub/%2e.\\login",
            "/x%5c..%5clogin",
            "/pub/.%0a./login",
            "/pub/x%00%5c..%5c..%5clogin",
            "/pub/x%3f%5c..%5c..%5clogin",
            "/pub/x%23%5c..%5c..%5clogin",
            "/x/..;/login",
            "/x/..;v=1/login",
            "/x/..%20/login",
        ] {
            assert!(!PathForms::new(path).is_complete(), "{path}");
        }
        for path in ["/a/...", "/a..b/..c", "/..."] {
            assert!(PathForms::new(path).is_complete(), "{path}");
        }
    }

    /// A client of URLs leaves out a tab and a line break, encodes other control characters, and removes
    /// them at the end.
    #[test]
    fn a_path_with_a_control_character_may_have_any_form() {
        for path in ["/lo%09gin", "/login%00x", "/%0Alogin", "/login%1f", "/a%7fb", "/%2500"] {
            assert!(!PathForms::new(path).is_complete(), "{path}");
        }
    }

    /// Fault: a handler that forwards a request with a client of the URL standard reached a path that
    /// was none of the forms, also if it did only some of the steps of such a client.
    #[test]
    fn a_path_is_also_read_as_a_part_of_a_url() {
        assert_eq!(forms("/a\\b"), ["/a/b", "/a\\b"]);
        for path in ["/\\login", "/login%20", "/login%23x", "/login%3fx", "/login%20%3Fx"] {
            assert!(forms(path).contains(&"/login".to_owned()), "{path}: {:?}", forms(path));
        }
        assert!(forms("/items/a%5cb%3Fx").contains(&"/items/a\\b".to_owned()));
        assert!(forms("/items/%20%3Fx").contains(&"/items/ ".to_owned()));
        assert_eq!(forms("/a b/c"), ["/a b/c"]);
        assert_eq!(forms("/ a/b "), ["/ a/b", "/ a/b ", "/a/b"]);
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
    fn the_number_and_the_length_of_forms_are_bounded() {
        // The longest path that `http` accepts.
        const LONGEST: usize = 65_534;

        for pattern in ["/%2e%2e/", "%2F", "/../a/", "//", "/.", "%252F", "/a%2F../", "%25"] {
            let path = format!("/{}", pattern.repeat(LONGEST / pattern.len() - 1));
            for path in [&*path, &path[..4_000]] {
                let forms = PathForms::new(path);
                assert!(forms.iter().count() <= MAX_FORMS, "{pattern}");
                let len = forms.iter().map(str::len).sum::<usize>();
                assert!(len <= MAX_LEN || forms.other_forms().next().is_none(), "{pattern}");
            }
        }
        // Servers usually accept paths of up to 8 KiB.
        let long = format!("/{}", "%C3%A9".repeat(8 * 1_024 / 6));
        assert!(PathForms::new(&long).is_complete());
        let longest = format!("/{}", "a".repeat(LONGEST - 1));
        assert!(PathForms::new(&longest).is_complete());
        assert!(!PathForms::new(format!("{longest}/")).is_complete());
        let deep = format!("/%{}41", "25".repeat(MAX_FORMS));
        assert!(!PathForms::new(&deep).is_complete());
    }

    proptest! {
        #[test]
        fn forms_are_distinct_and_each_step_leads_to_another_one(
            path in r"/([a%/.;?\\]|%2[fF5eE3]|%5C|//|/\.){0,12}",
        ) {
            let forms = PathForms::new(&path);
            let all: Vec<&str> = forms.iter().collect();
            for (place, form) in all.iter().enumerate() {
                prop_assert!(!all[..place].contains(form));
                for step in STEPS.into_iter().filter(|_| forms.is_complete()) {
                    prop_assert!(all.contains(&&*step(form)));
                }
            }
        }
    }
}
