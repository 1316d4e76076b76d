//! The forms in which services may read a path.

use std::borrow::Cow;

/// The maximum number of forms of a path. Each further separator doubles their number, so a path
/// may have seven encoded slashes.
const MAX_FORMS: usize = 256;

/// The maximum length, in bytes, of all readings that a request causes. A reading is the result of
/// one step; many steps lead to a form that is known already. Each reading counts 128 bytes more,
/// for the comparison with the known forms.
const MAX_READ: usize = 512 * 1_024;

/// The maximum length of all forms together, in bytes, unless the path has only one. It bounds the
/// work for a path, which may be 64 KiB long: a client chooses how many forms it has.
const MAX_LEN: usize = 32 * 1_024;

/// The steps with which services read each segment of a path. A step that changes nothing returns
/// the path itself. It changes all segments: a service that changes only some of them compares the
/// others with parameters, which may have any value. But such a value is not empty, so some steps
/// leave a segment as it is that would become empty.
const SEGMENT_STEPS: [fn(&str) -> Cow<'_, str>; 9] = [
    decode_most,
    decode_segments,
    |path| change_segments(path, |segment| segment.split(';').next().unwrap_or_default()),
    |path| change_segments(path, or_unchanged(|segment| segment.split(';').next().unwrap_or(""))),
    |path| change_segments(path, str::trim),
    |path| change_segments(path, or_unchanged(str::trim)),
    |path| change_segments(path, or_unchanged(str::trim_start)),
    |path| change_segments(path, or_unchanged(str::trim_end)),
    remove_last_spaces,
];

/// The changes at one place of a path: a text, and what a service may read there. A service may
/// change one place and keep another, because a parameter of its route covers that.
const SEPARATORS: [(&str, &str); 5] =
    [("%2F", "/"), ("%2f", "/"), ("\\", "/"), ("//", "/"), ("/./", "/")];

/// The texts before which a path may end, at any place.
const ENDS: [&str; 5] = ["?", "#", ";", "/", "/."];

/// The bound of the work to find the forms of the paths of a request.
#[derive(Debug)]
pub(super) struct Readings {
    left: usize,
}

impl Default for Readings {
    fn default() -> Self {
        Self { left: MAX_READ }
    }
}

impl Readings {
    /// Returns whether a path of `len` bytes may still be read.
    fn allow(&mut self, len: usize) -> bool {
        let left = self.left.checked_sub(len + 128);
        self.left = left.unwrap_or_default();
        left.is_some()
    }
}

/// A path, and all other forms in which a service may read it.
///
/// actix-web decodes `/%6Cogin` before it looks for the route, some middleware merges slashes or
/// removes the last one, and some handlers resolve dots. A service may do some of these steps and
/// leave out the others, and it may do them in any order. The forms are all results of
///
/// * decoding all segments, wholly or except `%2B` and `%25`, as actix-web does,
/// * reading `%2F` or a backslash at one place as a slash,
/// * removing a slash beside another one, or a `.` segment, at one place,
/// * removing the last slash, or the last `.` segment,
/// * removing the parameters of segments, spaces around segments, or spaces at the end,
/// * ending the path before one `?`, `#` or `;`.
///
/// A plain path has one form, and needs no allocation.
///
/// A path may have any form if it does not begin with a slash, such as `login` over HTTP/2, `*` or
/// an empty one: a service that forwards it completes it in its own way. So may a path with `..` or
/// a control character in one of its forms. A handler that adds or removes a prefix resolves `..`
/// to another path than one that does not, because `..` ends at the root. A client of URLs leaves
/// out some control characters and encodes others, and for programs in C a zero byte ends the path.
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
        Self::within(sent, &mut Readings::default())
    }

    /// Creates the forms of one of the paths of a request, which share the bound of `readings`.
    pub(super) fn within(sent: impl Into<Cow<'a, str>>, readings: &mut Readings) -> Self {
        let sent = sent.into();
        let is_plain =
            sent.bytes().all(|byte| byte.is_ascii_graphic() && !b"%;\\?#".contains(&byte))
                && !sent.contains("//")
                && !sent.contains("/.")
                && (&*sent == "/" || !sent.ends_with('/'));
        let is_complete = sent.starts_with('/');
        let mut forms = Self { sent, others: Vec::new(), is_complete };
        if is_complete && !is_plain {
            forms.is_complete = forms.find_others(readings);
        }
        forms
    }

    /// Creates the forms of a path that is not known.
    pub(super) const fn unknown() -> Self {
        Self { sent: Cow::Borrowed(""), others: Vec::new(), is_complete: false }
    }

    /// Creates the forms of this path behind `start`, which begins with a slash and does not end
    /// with one.
    ///
    /// Each form of the whole is a form of `start`, followed by a form of this path. Or it is one
    /// of the two alone, because a slash is removed at an end of the whole, but stays if it is all
    /// of a part, and because the path may end within `start`. So the work is that for both parts.
    pub(super) fn after(&self, start: &str, readings: &mut Readings) -> PathForms<'static> {
        let starts = PathForms::within(start, readings);
        let has_root = |forms: &PathForms<'_>| forms.iter().any(|form| form == "/");
        let no_end = (has_root(self) || !starts.others.is_empty()).then_some("");
        let no_start = has_root(&starts).then_some("");
        let mut forms = starts.iter().chain(no_start).flat_map(|start| {
            let ends = self.iter().chain(no_end.filter(|_| !start.is_empty()));
            ends.map(move |end| [start, end].concat())
        });
        let sent = forms.next().unwrap_or_default();
        let mut left = MAX_LEN.saturating_sub(sent.len());
        let mut others = Vec::new();
        let mut is_complete = starts.is_complete && self.is_complete;
        while is_complete && let Some(form) = forms.next() {
            left = left.saturating_sub(form.len());
            others.push(form);
            is_complete = left > 0 && others.len() < MAX_FORMS;
        }
        PathForms { sent: Cow::Owned(sent), others, is_complete }
    }

    /// Adds the other forms. Returns false if they are too many or too long, or if one contains
    /// `..` or a control character.
    ///
    /// Each step makes a path shorter, replaces single characters or leaves it as it is, so the
    /// search ends.
    #[cold]
    fn find_others(&mut self, bound: &mut Readings) -> bool {
        let mut len = self.sent.len();
        if len > MAX_LEN {
            return false;
        }
        let mut done = 0;
        while done <= self.others.len() {
            let form =
                if done == 0 { self.sent.to_string() } else { self.others[done - 1].clone() };
            let has_control = form.bytes().any(|byte| byte.is_ascii_control());
            if has_control || form.split('/').any(|segment| segment == "..") {
                return false;
            }
            for form in readings(&form) {
                if !bound.allow(form.len()) {
                    return false;
                }
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

/// Returns the forms to which one step leads.
fn readings(form: &str) -> impl Iterator<Item = String> {
    let segments = SEGMENT_STEPS.iter().filter_map(move |step| match step(form) {
        Cow::Borrowed(_) => None,
        Cow::Owned(read) => Some(read),
    });
    let separators = SEPARATORS.iter().flat_map(move |(text, read)| {
        let places = form.match_indices(text);
        places.map(move |(at, text)| format!("{}{read}{}", &form[..at], &form[at + text.len()..]))
    });
    let ends = ENDS.iter().flat_map(move |end| {
        let places = form.match_indices(end).map(|(at, _)| at);
        // A slash or a dot is removed only at the end, and the path keeps its first slash.
        let ends =
            move |at: &usize| *at > 0 && (!end.starts_with('/') || *at + end.len() == form.len());
        places.filter(ends).map(move |at| form[..at].to_owned())
    });
    let last_dot = form.strip_suffix("/.").map(|start| format!("{start}/"));
    segments.chain(separators).chain(ends).chain(last_dot)
}

/// Returns the byte that is percent-encoded at the beginning of `text`.
fn escaped(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

/// Decodes percent-encoded characters except slashes, plus signs and percent signs.
fn decode_most(path: &str) -> Cow<'_, str> {
    decode_except(path, b"/+%")
}

/// Decodes percent-encoded characters except slashes.
pub(super) fn decode_segments(path: &str) -> Cow<'_, str> {
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

/// Removes spaces at the end, as the URL standard of WHATWG does.
fn remove_last_spaces(path: &str) -> Cow<'_, str> {
    if path.ends_with(' ') {
        Cow::Owned(path.trim_end_matches(' ').to_owned())
    } else {
        Cow::Borrowed(path)
    }
}

/// Changes each segment. Handlers remove spaces around parameters, and servlet containers read
/// `/a;v=1/b` as `/a/b`.
fn change_segments(path: &str, change: impl Fn(&str) -> &str) -> Cow<'_, str> {
    if path.split('/').all(|segment| change(segment).len() == segment.len()) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(path.split('/').map(change).collect::<Vec<_>>().join("/"))
}

/// Returns a change that leaves a segment as it is if nothing else of it would be left.
fn or_unchanged(change: impl Fn(&str) -> &str) -> impl Fn(&str) -> &str {
    move |segment| match change(segment) {
        "" => segment,
        changed => changed,
    }
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

    /// Fault: a path without a slash at its start had one form, so it avoided all rules with a
    /// path.
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
        assert_eq!(forms("/a/."), ["/a", "/a/", "/a/."]);
        assert_eq!(forms("/a%20b"), ["/a b", "/a%20b"]);
        assert_eq!(forms("/a%2fb"), ["/a%2fb", "/a/b"]);
        assert_eq!(forms("/%61%2Fb"), ["/%61%2Fb", "/%61/b", "/a%2Fb", "/a/b"]);
        assert_eq!(forms("/c%2B%2B/a%2Fb").len(), 4);
        // The dot is removed before the letter is decoded, or after it, or not at all.
        assert_eq!(forms("/./%6c"), ["/%6c", "/./%6c", "/./l", "/l"]);
        assert_eq!(forms("/a;v=1/b;c"), ["/a", "/a/b", "/a;v=1/b", "/a;v=1/b;c"]);
        assert_eq!(forms("/%252e"), ["/", "/%252e", "/%2e", "/."]);
        assert!(forms("//%61%2Fb/%252e/").contains(&"/a%2Fb/%252e".to_owned()));
    }

    /// Fault: a step changed all places of a path at once. A service that changes one of them, and
    /// has a parameter at another one, read a path that was none of the forms.
    #[test]
    fn a_separator_is_read_at_each_place_apart() {
        for (path, form) in [
            ("//api//login", "//api/login"),
            ("/api//tenants//login", "/api/tenants//login"),
            ("/a%2Fb/api%2Flogin", "/a%2Fb/api/login"),
            ("/a\\b/api\\login", "/a\\b/api/login"),
            ("/./api/./login", "/./api/login"),
            ("/a%3Fb/login%3Fc", "/a?b/login"),
        ] {
            assert!(forms(path).contains(&form.to_owned()), "{path}: {:?}", forms(path));
        }
    }

    #[test]
    fn a_path_after_another_one_has_the_forms_of_both() {
        let after = |start, path| {
            let after = PathForms::new(path).after(start, &mut Readings::default());
            let mut forms: Vec<String> = after.iter().map(str::to_owned).collect();
            forms.sort_unstable();
            forms
        };
        assert_eq!(after("/api", "/login"), ["/api/login"]);
        assert_eq!(after("/api", "/"), ["/api", "/api/"]);
        assert_eq!(after("/api", "/lo%20gin"), ["/api/lo gin", "/api/lo%20gin"]);
        assert_eq!(after("/a%40b", "/"), ["/a%40b", "/a%40b/", "/a@b", "/a@b/"]);
        assert_eq!(after("/a%3Fb", "/x").len(), 6);
        assert!(!PathForms::new("/a/..").after("/api", &mut Readings::default()).is_complete());
        assert!(!PathForms::new("/a").after("/..", &mut Readings::default()).is_complete());
    }

    proptest! {
        #[test]
        fn the_forms_of_a_whole_path_are_among_those_of_its_parts(
            start in prop::collection::vec("[a;.? %5Cc]{1,3}|%2F|%3B|%2E|%25", 1..3),
            path in prop::collection::vec("[a;.? ]{0,3}|%2F|%3B|%2E|%25", 1..3),
        ) {
            let (start, path) = (format!("/{}", start.join("/")), format!("/{}", path.join("/")));
            let after = PathForms::new(&*path).after(&start, &mut Readings::default());
            let forms: Vec<&str> = after.iter().collect();
            let whole = PathForms::new(format!("{start}{path}"));
            prop_assert!(whole.is_complete() || !after.is_complete(), "{}{}", start, path);
            if after.is_complete() {
                for form in whole.iter() {
                    prop_assert!(forms.contains(&form), "{} of {}{}", form, start, path);
                }
            }
        }
    }

    #[test]
    fn paths_that_people_and_programs_write_are_read_completely() {
        for path in [
            "/a%20b%20c%20d/",
            "//a%20b//",
            "/files/a%20b%2Fc%3Fd/",
            "/projects/group%2Fsub%2Fapp/issues/",
            "/users/CORP%5Calice;v=1/",
            "/search/50%25%20off%3F/",
            "/tags/C%23/",
            "/images/https%3A%2F%2Fexample.org%2Fa%2Fb%2Fc.png",
            "/projects/a%2Fb/repository/files/src%2Fmain%2Fjava%2Forg%2Fexample%2FApp.java/raw",
        ] {
            assert!(PathForms::new(path).is_complete(), "{path}");
        }
    }

    /// Fault: `..` was resolved from the root of the path, and a handler that removes or adds a
    /// prefix resolved it from another one.
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

    /// A client of URLs leaves out a tab and a line break, encodes other control characters, and
    /// removes them at the end.
    #[test]
    fn a_path_with_a_control_character_may_have_any_form() {
        for path in ["/lo%09gin", "/login%00x", "/%0Alogin", "/login%1f", "/a%7fb", "/%2500"] {
            assert!(!PathForms::new(path).is_complete(), "{path}");
        }
    }

    /// Fault: a handler that forwards a request with a client of the URL standard reached a path
    /// that was none of the forms, also if it did only some of the steps of such a client.
    #[test]
    fn a_path_is_also_read_as_a_part_of_a_url() {
        assert_eq!(forms("/a\\b"), ["/a/b", "/a\\b"]);
        for path in ["/\\login", "/login%20", "/login%23x", "/login%3fx", "/login%20%3Fx"] {
            assert!(forms(path).contains(&"/login".to_owned()), "{path}: {:?}", forms(path));
        }
        assert!(forms("/items/a%5cb%3Fx").contains(&"/items/a\\b".to_owned()));
        assert!(forms("/items/%20%3Fx").contains(&"/items/ ".to_owned()));
        assert_eq!(forms("/a b/c"), ["/a b/c"]);
        assert_eq!(forms("/ a/b "), ["/ a/b", "/ a/b ", "/a/b", "/a/b "]);
    }

    /// Fault: spaces and parameters were removed from all segments at once, so a segment became
    /// empty that a service had compared with a parameter of its route.
    #[test]
    fn a_segment_that_would_become_empty_is_also_left_as_it_is() {
        for (path, form) in [
            ("/items/%20a/%20", "/items/a/ "),
            ("/items/%C2%A0a/%C2%A0", "/items/a/\u{a0}"),
            ("/%20v%20", "/v "),
            ("/%20v%20", "/ v"),
            ("/acme;a/items/;x", "/acme/items/;x"),
            ("/acme%20/items/%20", "/acme/items/ "),
            ("/acme/items/;x", "/acme/items/"),
        ] {
            assert!(forms(path).contains(&form.to_owned()), "{path}: {:?}", forms(path));
        }
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
        // Fault: a path of 200 bytes took milliseconds, because most of what was read was known.
        for path in ["/".repeat(250), format!("/{}", ";".repeat(249)), "//a".repeat(80)] {
            assert!(!PathForms::new(&*path).is_complete(), "{path}");
        }
        let mut readings = Readings { left: 600 };
        assert!(PathForms::within("/a%2Fb", &mut readings).is_complete());
        assert!(!PathForms::within("/a%2Fb%2Fc", &mut readings).is_complete(), "a shared bound");
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
                for reading in readings(form).filter(|_| forms.is_complete()) {
                    prop_assert!(all.contains(&&*reading));
                }
            }
        }
    }
}
