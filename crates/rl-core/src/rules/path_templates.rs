//! Path templates, such as `/users/{id}`, in the syntax of axum's routes.

use std::collections::HashSet;
use std::fmt;

use matchit::Router;

use super::invalid_rules::InvalidMatch;
use super::path_forms::PathForms;

const EXPECTED: &str = "a path that begins with `/` and has no `..`, in which `{name}` is a segment and a final \
                        `{*name}` all further segments, with at most 25 parameters and \
                        256 spellings";

/// The maximum number of parameters in a template.
const MAX_PARAMETERS: usize = 25;

/// A list of path templates. A path matches the list if it matches one of them.
#[derive(Clone)]
pub(super) struct PathTemplates {
    /// Routers that together contain each template once. `matchit` accepts two templates in one
    /// router only if the parameters at the same place are of the same kind. A template that a
    /// router does not accept is in another router.
    routers: Vec<Router<()>>,
    /// The other forms of the templates, and the paths before their tails.
    form_routers: Vec<Router<()>>,
    /// The templates and their other forms, without the paths before their tails.
    templates: Vec<String>,
}

impl PathTemplates {
    /// Parses templates.
    ///
    /// # Errors
    ///
    /// Returns an error for the first template that is not valid.
    pub(super) fn new(templates: &[Box<str>]) -> Result<Self, InvalidMatch> {
        let (mut written, mut form_routers) = (Routers::default(), Routers::default());
        let mut forms: Vec<String> = Vec::new();
        for template in templates {
            let all = PathForms::new(&**template);
            let is_valid =
                template.starts_with('/') && all.is_complete() && written.insert(template);
            if !is_valid {
                return Err(InvalidMatch::new("path", template, EXPECTED));
            }
            forms.push(template.to_string());
            for form in all.other_forms() {
                // A decoded brace is text, and not the start of a parameter.
                if braces(form).eq(braces(template)) && form_routers.insert(form) {
                    forms.push(form.to_owned());
                }
            }
            // axum routes `/files//` to a service that is nested in `/files/{name}`, and `/v/` to
            // the route `/v{number}/`.
            let parameter = template.rfind('{').filter(|at| {
                let end = template[*at..].find('}').map(|end| at + end + 1);
                let is_escaped = template[..*at].ends_with('{');
                end == Some(template.len()) && !is_escaped && !template[*at..].starts_with("{*")
            });
            if let Some(at) = parameter {
                let empty = format!("{}/", &template[..at]);
                if form_routers.insert(&empty) {
                    forms.push(empty);
                }
            }
            // actix-web routes `/files/` to the handler of `/files/{rest:.*}`.
            let before_tail = template.find("{*").map(|at| &template[..at]);
            for form in before_tail.map(PathForms::new).iter().flat_map(PathForms::iter) {
                // The path before a tail may have parameters, so some of its forms are no
                // templates.
                form_routers.insert(form);
            }
        }
        Ok(Self { routers: written.routers, form_routers: form_routers.routers, templates: forms })
    }

    /// Returns whether a form of a template matches a form of the path.
    pub(super) fn may_match(&self, path: &PathForms<'_>) -> bool {
        !path.is_complete()
            || path.iter().any(|form| has(&self.routers, form) || has(&self.form_routers, form))
    }

    /// Returns whether each form of the path matches a template as it is written.
    pub(super) fn surely_matches(&self, path: &PathForms<'_>) -> bool {
        // In axum a parameter within a path may be empty, and in actix-web it may not.
        let is_full = |form: &str, router: &Router<()>| {
            let found = router.at(form);
            found.is_ok_and(|found| found.params.iter().all(|(_, value)| !value.is_empty()))
        };
        path.is_complete()
            && path.iter().all(|form| self.routers.iter().any(|router| is_full(form, router)))
    }

    /// Returns the templates, with the other forms of each. A path that matches the list matches
    /// one of them, or is the path before a tail.
    pub(super) fn templates(&self) -> &[String] {
        &self.templates
    }
}

fn has(routers: &[Router<()>], path: &str) -> bool {
    routers.iter().any(|router| router.at(path).is_ok())
}

/// Routers to which templates are added.
#[derive(Default)]
struct Routers {
    routers: Vec<Router<()>>,
    /// The templates in the routers, without the names of their parameters. `matchit` refuses a
    /// template that matches the same paths as another one, so a router of its own would be created
    /// for each of them.
    nameless: HashSet<String>,
}

impl Routers {
    /// Adds a template to the first router that accepts it, or to a new one. Returns whether the
    /// template is valid.
    fn insert(&mut self, template: &str) -> bool {
        let mut new = Router::new();
        // `matchit` panics if there are too many parameters.
        if template.matches('{').count() > MAX_PARAMETERS || new.insert(template, ()).is_err() {
            return false;
        }
        if self.nameless.insert(without_names(template)) {
            let accepts = |router: &mut Router<()>| router.insert(template, ()).is_ok();
            if !self.routers.iter_mut().any(accepts) {
                self.routers.push(new);
            }
        }
        true
    }
}

/// Returns a valid template without the names of its parameters. `{{` is an escaped brace.
fn without_names(template: &str) -> String {
    let mut nameless = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (text, parameter) = rest.split_at(at);
        let begins = |start: &&&str| parameter.starts_with(**start);
        let start = ["{{", "{*"].iter().find(begins).map_or("{", |start| start);
        let end = if start == "{{" { 2 } else { parameter.find('}').unwrap_or(parameter.len()) };
        nameless.extend([text, start]);
        rest = &parameter[end..];
    }
    nameless + rest
}

impl fmt::Debug for PathTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.templates.fmt(f)
    }
}

/// Returns the braces of a template, plain and percent-encoded.
fn braces(template: &str) -> impl Iterator<Item = &str> {
    let escapes = |text: &str| matches!(text, "%7b" | "%7B" | "%7d" | "%7D");
    template.char_indices().filter_map(move |(at, character)| match character {
        '{' | '}' => template.get(at..=at),
        '%' => template.get(at..at + 3).filter(|text| escapes(text)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates(templates: &[&str]) -> Result<PathTemplates, InvalidMatch> {
        let templates: Vec<Box<str>> = templates.iter().map(|text| (*text).into()).collect();
        PathTemplates::new(&templates)
    }

    fn matches(list: &PathTemplates, path: &str) -> bool {
        list.may_match(&PathForms::new(path))
    }

    fn matches_plainly(list: &PathTemplates, path: &str) -> bool {
        list.surely_matches(&PathForms::new(path))
    }

    #[test]
    fn templates_match_like_routes_of_axum() {
        let export = templates(&["/export", "/export/{name}", "/files/{*rest}"]).unwrap();
        for (path, expected) in [
            ("/export", true),
            ("/export/a", true),
            ("/export/a/b", false),
            ("/exports", false),
            ("/files/a/b/c", true),
            ("/", false),
        ] {
            assert_eq!(matches(&export, path), expected, "{path}");
            assert_eq!(matches_plainly(&export, path), expected, "{path}");
        }
    }

    /// Writing the path in another way must neither avoid a rule nor reach an exemption.
    #[test]
    fn other_ways_to_write_a_path_match_but_do_not_match_plainly() {
        let login = templates(&["/login"]).unwrap();
        for path in ["/login/", "//login", "/%6Cogin", "/%6cogin/", "/./login", "/a/../login"] {
            assert!(matches(&login, path), "{path:?}");
            assert!(!matches_plainly(&login, path), "{path:?}");
        }
        let known = templates(&["/.well-known/{name}"]).unwrap();
        assert!(matches_plainly(&known, "/.well-known/acme"));
        assert!(!matches(&login, "/Login"));
        assert!(!matches(&login, "/log%2Fin"));
    }

    /// Fault: a path matched only as it was sent and with all steps of a normalization together.
    #[test]
    fn a_path_that_a_service_normalizes_in_part_matches() {
        for (template, paths) in [
            ("/export/{name}", &["/%65xport/a%2Fb", "/export/a%2Fb/", "/%65xport/.."][..]),
            ("/tenants/{tenant}/login", &["/%74enants/a%2Fb/login", "/tenants/../login/"]),
            ("/api/{*rest}", &["/%61pi/..", "/%61pi/.", "/%61pi/../../x"]),
            ("/a%2Fb/{name}/", &["/%61%2Fb/c%2Fd", "/a/b/c", "//a%2Fb/.."]),
        ] {
            let list = templates(&[template]).unwrap();
            for path in paths {
                assert!(matches(&list, path), "{template} {path}");
            }
        }
        // A path with too many forms may have any form.
        let deep = format!("/a/%{}41", "25".repeat(300));
        let list = templates(&["/export/{name}", "/a/{name}"]).unwrap();
        assert!(matches(&list, &deep) && !matches_plainly(&list, &deep));
    }

    #[test]
    fn an_exemption_needs_each_form_of_the_path() {
        let files = templates(&["/files/{*rest}"]).unwrap();
        for (path, expected) in [
            ("/files/a%20b/", true),
            ("/files/a%2Fb//c", true),
            ("/files/a/../b", false),
            ("/files/..", false),
            ("/files/..%2fadmin", false),
            ("/files/%2e%2e/admin", false),
            ("/files/..%252fadmin", false),
            ("//files/a", false),
            ("/files//a", true),
        ] {
            assert_eq!(matches_plainly(&files, path), expected, "{path}");
            assert!(matches(&files, path), "{path}");
        }
        let names = templates(&["/{tenant}/{name}"]).unwrap();
        assert!(matches(&names, "//a") && !matches_plainly(&names, "//a"));
        let both = templates(&["/docs", "/docs/"]).unwrap();
        assert!(matches_plainly(&both, "/docs") && matches_plainly(&both, "/docs/"));
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
            assert!(matches(&list, path), "{template} {path}");
            assert!(!matches_plainly(&list, path), "{template} {path}");
        }
        for template in ["/a/%7Bb%7D", "/{x}/./%7Bb%7D"] {
            let encoded = templates(&[template]).unwrap();
            assert!(!matches(&encoded, "/a/c"), "an encoded brace is no parameter");
        }
        let [with, without] = [["/login/"], ["/login"]].map(|list| templates(&list).unwrap());
        assert!(matches(&with, "/login") && matches(&without, "/login/"));
    }

    /// Fault: a request with an empty tail avoided the rule of its handler.
    #[test]
    fn an_empty_tail_matches_but_does_not_match_plainly() {
        for (template, paths) in [
            ("/api/{*rest}", &["/api/", "/api", "/%61pi/", "//api"][..]),
            ("/a%2Fb/{name}/{*rest}", &["/a%2Fb/c/", "/a/b/c"]),
            ("/{*rest}", &["/", "//"]),
        ] {
            let list = templates(&[template]).unwrap();
            for path in paths {
                assert!(matches(&list, path), "{template} {path}");
                assert!(!matches_plainly(&list, path), "{template} {path}");
            }
            assert!(!matches(&list, "/other") || template == "/{*rest}");
        }
    }

    /// Fault: `matchit` panicked if a template had more than 25 parameters, and each parameter name
    /// took a router of its own, so 3 000 templates were read in seconds.
    #[test]
    fn templates_with_many_parameters_or_names_are_bounded() {
        let deep = |count: usize| "/{a}".repeat(count);
        assert!(templates(&[&deep(MAX_PARAMETERS)]).is_ok());
        assert!(templates(&[&deep(MAX_PARAMETERS + 1)]).is_err());
        let alike: Vec<String> = (0..200).map(|place| format!("/{{p{place}}}/x/{{*q}}")).collect();
        let all = templates(&alike.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!((all.routers.len(), all.form_routers.len()), (1, 1));
        assert!(matches(&all, "/a/x/b") && matches(&all, "/a/x") && !matches(&all, "/a/y"));
        let escaped = templates(&["/{{a}}", "/{{b}}", "/{a}"]).unwrap();
        assert!(matches(&escaped, "/{b}") && matches(&escaped, "/c"));
    }

    #[test]
    fn invalid_templates_are_refused() {
        for template in ["", "login", "/{", "/{}", "/{a}b", "/{*rest}/a", "/{a}{b}"] {
            let error = templates(&[template]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("path {template:?}: expected a path")), "{error}");
        }
    }

    /// Fault: a template was left out if `matchit` refused it in the router of an earlier template,
    /// even if the two match different paths.
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
            for path in paths {
                let alone = |one: &&str| matches(&templates(&[one]).unwrap(), path);
                let expected = list.iter().any(alone);
                assert_eq!(matches(&all, path), expected, "{list:?} {path:?}");
            }
        }
    }
}
