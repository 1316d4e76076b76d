//! Path templates, such as `/users/{id}`, in the syntax of axum's routes.

use std::borrow::Cow;
use std::fmt;

use matchit::{InsertError, Router};
use percent_encoding::percent_decode_str;

use super::invalid_rules::InvalidMatch;
use super::requirements::{Requirements, Sequence};

const EXPECTED: &str = "a path that begins with `/`, in which `{name}` is a segment and a final \
                        `{*name}` all further segments";

/// A list of path templates. A path matches the list if it matches one of them.
#[derive(Clone)]
pub(super) struct PathTemplates {
    /// Routers that together contain each template once. `matchit` accepts two templates in one
    /// router only if the parameters at the same place have the same name and the same kind. A
    /// template that a router does not accept is in another router.
    routers: Vec<Router<()>>,
    /// The normalized forms of templates that are not normalized.
    normalized: Vec<Router<()>>,
    /// The templates and their normalized forms.
    templates: Vec<String>,
}

impl PathTemplates {
    /// Parses templates.
    ///
    /// # Errors
    ///
    /// Returns an error for the first template that is not valid.
    pub(super) fn new(templates: &[Box<str>]) -> Result<Self, InvalidMatch> {
        let (mut routers, mut normalized) = (Vec::new(), Vec::new());
        let mut forms: Vec<String> = Vec::new();
        for template in templates {
            let is_valid = template.starts_with('/') && insert(&mut routers, template).is_ok();
            if !is_valid {
                return Err(InvalidMatch::new("path", template, EXPECTED));
            }
            forms.push(template.to_string());
            // A decoded brace is text, and not the begin of a parameter, so such a template has no
            // other form.
            if let Some(form) = RequestPath::new(template).normalized
                && form.matches(['{', '}']).eq(template.matches(['{', '}']))
                && insert(&mut normalized, &form).is_ok()
            {
                forms.push(form);
            }
        }
        Ok(Self { routers, normalized, templates: forms })
    }

    /// Returns whether a template matches the path, if services may read both in other forms too.
    pub(super) fn matches(&self, paths: &RequestPath<'_>) -> bool {
        let normalized = paths.normalized.as_deref();
        has(&self.routers, paths.raw)
            || normalized.is_some_and(|path| has(&self.routers, path))
            || has(&self.normalized, normalized.unwrap_or(paths.raw))
    }

    /// Returns whether a template matches the path, and services can read the path in only one way.
    pub(super) fn matches_plainly(&self, paths: &RequestPath<'_>) -> bool {
        paths.normalized.is_none() && has(&self.routers, paths.raw)
    }

    /// Returns the requirements for the path of each template, each together with `others`.
    pub(super) fn requirements(&self, others: &Requirements) -> Vec<Requirements> {
        let of_template = |template: &String| {
            let is_tail = |segment: &&str| segment.contains("{*");
            let segments = template.split('/').take_while(|segment| !is_tail(segment));
            let literals = segments.map(|segment| (!segment.contains('{')).then_some(segment));
            let is_whole = !template.split('/').any(|segment| is_tail(&segment));
            others.clone().with_sequence(Sequence::Path, literals, is_whole)
        };
        self.templates.iter().map(of_template).collect()
    }

    /// Returns whether one path may match both lists.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        let pairs = self
            .templates
            .iter()
            .flat_map(|one| other.templates.iter().map(move |other| (one, other)));
        pairs.into_iter().any(|(one, other)| may_overlap(one, other))
    }
}

fn has(routers: &[Router<()>], path: &str) -> bool {
    routers.iter().any(|router| router.at(path).is_ok())
}

/// Adds a template to the first router that accepts it, or to a new one.
fn insert(routers: &mut Vec<Router<()>>, template: &str) -> Result<(), InsertError> {
    for router in &mut *routers {
        match router.insert(template, ()) {
            Err(InsertError::Conflict { .. }) => {}
            result => return result,
        }
    }
    let mut router = Router::new();
    router.insert(template, ())?;
    routers.push(router);
    Ok(())
}

impl fmt::Debug for PathTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.templates.fmt(f)
    }
}

/// The path of a request, and the form to which a service may normalize it.
///
/// actix-web decodes `/%6Cogin` before it looks for the route, and some services merge slashes or
/// ignore the last one. A client could otherwise avoid the limits of a path by writing it another
/// way.
#[derive(Debug)]
pub(super) struct RequestPath<'a> {
    raw: &'a str,
    // `None` if it is the same as `raw`.
    normalized: Option<String>,
}

impl<'a> RequestPath<'a> {
    pub(super) fn new(raw: &'a str) -> Self {
        let is_plain = !raw.contains('%')
            && !raw.contains("//")
            && !raw.contains("/.")
            && (raw == "/" || !raw.ends_with('/'));
        let normalized = (!is_plain).then(|| normalize(raw)).filter(|path| path != raw);
        Self { raw, normalized }
    }
}

/// Decodes percent-encoded characters, merges slashes, resolves dots, and removes the last slash.
fn normalize(path: &str) -> String {
    let decoded: Cow<'_, str> = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Returns false only if no path matches both templates. The check is coarse, so it may return true
/// for templates without a common path.
fn may_overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('/'), other.split('/'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(segment), _) | (_, Some(segment)) if segment.contains("{*") => return true,
            (Some(one), Some(other)) => {
                let is_literal = !one.contains('{') && !other.contains('{');
                if is_literal && one != other {
                    return false;
                }
            }
            (Some(_), None) | (None, Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates(templates: &[&str]) -> Result<PathTemplates, InvalidMatch> {
        let templates: Vec<Box<str>> = templates.iter().map(|text| (*text).into()).collect();
        PathTemplates::new(&templates)
    }

    #[test]
    fn templates_match_like_routes_of_axum() {
        let export = templates(&["/export", "/export/{name}", "/files/{*rest}"]).unwrap();
        for (path, expected) in [
            ("/export", true),
            ("/export/a", true),
            ("/export/a/b", false),
            ("/exports", false),
            ("/files", false),
            ("/files/a/b/c", true),
            ("/", false),
        ] {
            assert_eq!(export.matches(&RequestPath::new(path)), expected, "{path}");
            assert_eq!(export.matches_plainly(&RequestPath::new(path)), expected, "{path}");
        }
    }

    /// Writing the path in another way must neither avoid a rule nor reach an exemption.
    #[test]
    fn other_ways_to_write_a_path_match_but_do_not_match_plainly() {
        let login = templates(&["/login"]).unwrap();
        for path in ["/login/", "//login", "/%6Cogin", "/%6cogin/", "/./login", "/a/../login"] {
            let path = RequestPath::new(path);
            assert!(login.matches(&path), "{path:?}");
            assert!(!login.matches_plainly(&path), "{path:?}");
        }
        let known = templates(&["/.well-known/{name}"]).unwrap();
        assert!(known.matches_plainly(&RequestPath::new("/.well-known/acme")));
        assert!(!login.matches(&RequestPath::new("/Login")));
        assert!(!login.matches(&RequestPath::new("/log%2Fin")));
    }

    /// Fault: a template with a slash at its end never matched the path without one, although many
    /// services read both alike.
    #[test]
    fn templates_match_in_their_normalized_form_but_not_plainly() {
        for (template, path) in [
            ("/login/", "/login"),
            ("/caf%C3%A9", "/caf%c3%a9"),
            ("/caf%C3%A9/{name}/", "/café/a"),
            ("//a/./b", "/a/b"),
            ("/a%7Bb%7D", "/a%7Bb%7D"),
        ] {
            let list = templates(&[template]).unwrap();
            assert!(list.matches(&RequestPath::new(path)), "{template} {path}");
            assert!(!list.matches_plainly(&RequestPath::new(path)), "{template} {path}");
        }
        let encoded = templates(&["/a/%7Bb%7D"]).unwrap();
        assert!(!encoded.matches(&RequestPath::new("/a/c")), "an encoded brace is no parameter");
        let [with, without] = [["/login/"], ["/login"]].map(|list| templates(&list).unwrap());
        assert!(with.may_overlap(&without));
    }

    #[test]
    fn invalid_templates_are_refused() {
        for template in ["", "login", "/{", "/{}", "/{a}b", "/{*rest}/a", "/{a}{b}"] {
            let error = templates(&[template]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("path {template:?}: expected a path")), "{error}");
        }
    }

    /// Fault: a template was left out if `matchit` does not accept it in one router with an earlier
    /// one, although it matches other paths.
    #[test]
    fn a_list_matches_what_each_of_its_templates_matches() {
        let lists: [&[&str]; 7] = [
            &["/{a}", "/{b}"],
            &["/{a}", "/{*rest}"],
            &["/{*rest}", "/{a}"],
            &["/files/{name}", "/files/{*rest}"],
            &["/{a}/{b}", "/{a}/{*rest}", "/{*rest}"],
            &["/a/{x}/c", "/a/{y}", "/a/b/{*z}", "/{*all}"],
            &["/a/{x}", "/{y}/b", "/a/b"],
        ];
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/a/x/c", "/files", "/files/a", "/files/a/b"];
        for list in lists {
            let all = templates(list).unwrap();
            for path in paths.map(RequestPath::new) {
                let alone = |one: &&str| templates(&[one]).unwrap().matches(&path);
                let expected = list.iter().any(alone);
                assert_eq!(all.matches(&path), expected, "{list:?} {path:?}");
            }
        }
    }

    #[test]
    fn overlaps_are_found() {
        for (one, other, expected) in [
            ("/a", "/a", true),
            ("/a", "/b", false),
            ("/a/{x}", "/a/b", true),
            ("/a/{x}", "/b/{x}", false),
            ("/a/{x}", "/a", false),
            ("/{*x}", "/a/b/c", true),
            ("/a/{*x}", "/a/b/c", true),
            ("/a/{*x}", "/b/c", false),
            ("/{x}/b", "/a/{y}", true),
            ("/v{x}", "/v1", true),
        ] {
            assert_eq!(may_overlap(one, other), expected, "{one} {other}");
            assert_eq!(may_overlap(other, one), expected, "{other} {one}");
        }
    }
}
