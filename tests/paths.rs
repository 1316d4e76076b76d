//! Each request that reaches a handler is counted by the rule of that handler, and an exemption
//! reaches no other handler. Both are tested with random templates and random spellings of paths,
//! on services that normalize paths in each place.

mod on_actix;
mod on_axum;

use std::cell::Cell;

use http::Uri;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, RateLimiter};

/// The response of a handler: which one it is, and whether the limiter has counted the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Served {
    by_route: bool,
    is_counted: bool,
}

impl Served {
    const fn body(self) -> &'static str {
        match (self.by_route, self.is_counted) {
            (true, true) => "route counted",
            (true, false) => "route",
            (false, true) => "other counted",
            (false, false) => "other",
        }
    }

    /// Returns `None` for a response that no handler has made.
    fn from_body(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let (is_counted, by_route) = (text.ends_with("counted"), text.starts_with("route"));
        (by_route || text.starts_with("other")).then_some(Self { by_route, is_counted })
    }
}

/// The place of the limiter.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// There is no other middleware.
    Alone,
    /// The limiter is outside of a middleware that normalizes.
    Outside,
    /// The limiter is inside of a middleware that normalizes.
    Inside,
    /// The limiter is inside of a middleware that normalizes, behind an outer router.
    BehindRouter,
    /// The limiter is inside of a nested router or scope, which is inside of a middleware that
    /// normalizes. Its prefix is `/api` or a parameter with this value.
    Nested,
    /// As `Nested`, behind an outer router. On axum, this router also passes requests on that it
    /// receives under `/outer`.
    NestedBehindRouter,
    /// The limiter is outside of a nested service or scope.
    AroundNested,
}

const PLACES: [Place; 7] = [
    Place::Alone,
    Place::Outside,
    Place::Inside,
    Place::BehindRouter,
    Place::Nested,
    Place::NestedBehindRouter,
    Place::AroundNested,
];

/// The middleware that normalizes paths.
#[derive(Clone, Copy, Debug)]
enum Normalizer {
    /// Removes slashes at the end.
    Trim,
    /// Adds a slash at the end.
    Append,
    /// Merges slashes, if the framework has such a middleware, or else removes those at the end.
    Merge,
    /// Two middlewares of the service, each of which does some steps.
    Steps(Steps, Steps),
    /// A middleware of the service that decodes the path and reads it in this way, as a gateway
    /// does.
    Url(Reader),
    /// A middleware of the service that removes `/v1` from the beginning of the path.
    Version,
    /// A middleware of the service that writes this prefix in place of `/old`.
    Moved(&'static str),
}

/// The ways in which a gateway makes a URL of a path.
#[derive(Clone, Copy, Debug)]
enum Reader {
    /// The path is written after the host.
    Written,
    /// The path of a URL is set.
    Set,
    /// The path is written after the host, and the text is read as the target of a request.
    Target,
}

impl Reader {
    fn read(self, path: &str) -> Option<String> {
        let text = format!("http://host{path}");
        match self {
            Self::Written => Some(reqwest::Url::parse(&text).ok()?.path().to_owned()),
            Self::Set => {
                let mut url = reqwest::Url::parse("http://host/").ok()?;
                url.set_path(path);
                Some(url.path().to_owned())
            }
            Self::Target => Some(text.parse::<Uri>().ok()?.path().to_owned()),
        }
    }
}

/// Independent steps of a normalization.
#[derive(Clone, Copy, Debug)]
struct Steps {
    decode: Decode,
    slashes: bool,
    dots: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decode {
    Nothing,
    /// All but slashes, plus signs and percent signs.
    Most,
    All,
}

impl Steps {
    /// Normalizes a path. This is written without looking at the limiter: byte by byte, from left
    /// to right.
    fn normalize(self, path: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = path.as_bytes();
        while let [first, tail @ ..] = rest {
            let hex = tail.get(..2).filter(|_| *first == b'%' && self.decode != Decode::Nothing);
            let decoded = hex.and_then(|hex| std::str::from_utf8(hex).ok());
            let decoded = decoded.filter(|hex| !hex.starts_with('+'));
            let decoded = decoded.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            match decoded {
                Some(byte) if self.decode == Decode::All || !b"/+%".contains(&byte) => {
                    bytes.push(byte);
                    rest = &tail[2..];
                }
                _ => {
                    bytes.push(*first);
                    rest = tail;
                }
            }
        }
        let mut path = String::from_utf8_lossy(&bytes).into_owned();
        if self.slashes {
            while path.contains("//") {
                path = path.replace("//", "/");
            }
            if path.len() > 1 {
                path = path.trim_end_matches('/').to_owned();
            }
        }
        if self.dots {
            while let Some(at) = path.find("/./") {
                path.replace_range(at..at + 2, "");
            }
            while let Some(at) = path.find("/../") {
                let parent = path[..at].rfind('/').unwrap_or(0);
                path.replace_range(parent..at + 3, "");
            }
            if let Some(start) = path.strip_suffix("/..") {
                path = format!("{}/", &start[..start.rfind('/').unwrap_or(0)]);
            } else if path.ends_with("/.") {
                path.pop();
            }
        }
        path
    }
}

impl Normalizer {
    /// Returns the target that the middleware of the service makes of another one. Returns `None`
    /// if this is no target, or if the middleware is one of the framework.
    fn rewrite(self, target: &Uri) -> Option<Uri> {
        let path = match self {
            Self::Trim | Self::Append | Self::Merge => return None,
            Self::Steps(first, second) => second.normalize(&first.normalize(target.path())),
            Self::Url(reader) => {
                let all = Steps { decode: Decode::All, slashes: false, dots: false };
                reader.read(&all.normalize(target.path()))?
            }
            Self::Version => target.path().strip_prefix("/v1")?.to_owned(),
            Self::Moved(to) => format!("{to}{}", target.path().strip_prefix("/old")?),
        };
        let query = target.query().map_or(String::new(), |query| format!("?{query}"));
        let is_path = path.starts_with('/') && !path.contains(['?', '#']);
        is_path.then(|| (path + &query).parse().ok())?
    }
}

fn normalizer(place: Place) -> impl Strategy<Value = Normalizer> {
    let decode = prop_oneof![Just(Decode::Nothing), Just(Decode::Most), Just(Decode::All)];
    let steps = (decode, any::<bool>(), any::<bool>()).prop_map(|(decode, slashes, dots)| Steps {
        decode,
        slashes,
        dots,
    });
    prop_oneof![
        2 => Just(Normalizer::Trim),
        1 => Just(Normalizer::Append),
        2 => Just(Normalizer::Merge),
        3 => (steps.clone(), steps).prop_map(|(one, other)| Normalizer::Steps(one, other)),
        2 => prop::sample::select(vec![Reader::Written, Reader::Set, Reader::Target])
            .prop_map(Normalizer::Url),
        // A limiter outside of this middleware needs rules for the paths before it.
        if is_outside(place) { 0 } else { 3 } => Just(Normalizer::Version),
        if is_outside(place) { 0 } else { 3 } => Just(Normalizer::Moved(prefix_at(place))),
    ]
}

/// A segment of a template.
#[derive(Clone, Debug)]
enum Segment {
    Literal(&'static str),
    Parameter,
    Rest,
}

/// A template with at most four segments.
#[derive(Clone, Debug)]
struct Template {
    segments: Vec<Segment>,
    has_last_slash: bool,
}

impl Template {
    /// Writes the template: parameters get names, and `rest` writes the last segment.
    fn write(&self, rest: &str) -> String {
        let mut text = String::new();
        for (place, segment) in self.segments.iter().enumerate() {
            text.push('/');
            match segment {
                Segment::Literal(literal) => text.push_str(literal),
                Segment::Parameter => text.push_str(&format!("{{p{place}}}")),
                Segment::Rest => text.push_str(rest),
            }
        }
        if self.has_last_slash {
            text.push('/');
        }
        text
    }

    /// Returns the template in the syntax of rules and of axum.
    fn for_rule(&self) -> String {
        self.write("{*rest}")
    }
}

fn template() -> impl Strategy<Value = Template> {
    let literal = prop::sample::select(vec!["export", "a", "login", "x-1", "a%2Fb", "caf%C3%A9"]);
    let segment = prop_oneof![
        3 => literal.prop_map(Segment::Literal),
        2 => Just(Segment::Parameter),
    ];
    let segments = prop::collection::vec(segment, 1..=3);
    (segments, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(mut segments, has_rest, has_last_slash)| {
            if has_rest {
                segments.push(Segment::Rest);
            }
            Template { segments, has_last_slash: has_last_slash && !has_rest }
        },
    )
}

/// Returns a path that the template matches, written in a random way.
fn path_of(template: &Template, prefix: String) -> impl Strategy<Value = String> + use<> {
    let value = || {
        prop::sample::select(vec![
            "a",
            "export",
            "..",
            ".",
            "%2e%2e",
            "%2E",
            "a%2Fb",
            "%2F",
            "%2f%2f",
            "..%2f..",
            "a%252Fb",
            "%25",
            "%c3%28",
            "a%2bb",
            "%",
            "%zz",
            "a;b",
            "%3f",
            "%20",
            "caf%C3%A9",
            "%5c",
            "...",
            "",
            "a%5cb",
            "%3fx%5cy",
            "a%23%5c..",
            "%00%5c..%5c",
            "%09",
            "%20%3f",
        ])
    };
    let mut segments: Vec<BoxedStrategy<String>> = Vec::new();
    for literal in prefix.split('/').filter(|literal| !literal.is_empty()) {
        segments.push(spelling(literal.to_owned()));
    }
    for segment in &template.segments {
        segments.push(match segment {
            Segment::Literal(literal) => spelling((*literal).to_owned()),
            Segment::Parameter => value().prop_map(str::to_owned).boxed(),
            Segment::Rest => {
                prop::collection::vec(value(), 0..4).prop_map(|values| values.join("/")).boxed()
            }
        });
    }
    let count = segments.len();
    let separator = prop_oneof![
        8 => Just("/"),
        1 => Just("//"),
        1 => Just("/./"),
        1 => Just("/x/../"),
        1 => Just("/%2e/"),
        1 => Just("/%2E%2e/"),
        1 => Just("%2F"),
        1 => Just("///"),
    ];
    let end = prop_oneof![
        6 => Just(""), 2 => Just("/"), 1 => Just("//"), 1 => Just("/."), 1 => Just("/x/.."),
        1 => Just("%2F"), 1 => Just("?"), 1 => Just("/?a=b"),
    ];
    let last = if template.has_last_slash { "/" } else { "" };
    (segments, prop::collection::vec(separator, count), end).prop_map(
        move |(segments, separators, end)| {
            let mut path = String::new();
            for (separator, segment) in separators.into_iter().zip(&segments) {
                // A request begins with a slash.
                path.push_str(if path.is_empty() && separator == "%2F" { "/" } else { separator });
                path.push_str(segment);
            }
            path + last + end
        },
    )
}

/// Returns ways to write a literal: some characters are percent-encoded, and a few twice.
fn spelling(literal: String) -> BoxedStrategy<String> {
    let one = prop_oneof![
        40 => Just(Encoding::Plain),
        2 => Just(Encoding::Upper),
        2 => Just(Encoding::Lower),
        1 => Just(Encoding::Twice),
    ];
    prop::collection::vec(one, literal.len())
        .prop_map(move |encodings| {
            let encoded = literal.bytes().zip(encodings).map(|(byte, encoding)| match encoding {
                Encoding::Plain => char::from(byte).to_string(),
                Encoding::Upper => format!("%{byte:02X}"),
                Encoding::Lower => format!("%{byte:02x}"),
                Encoding::Twice => format!("%25{byte:02x}"),
            });
            encoded.collect()
        })
        .boxed()
}

#[derive(Clone, Copy, Debug)]
enum Encoding {
    Plain,
    Upper,
    Lower,
    Twice,
}

/// A service and requests to it.
#[derive(Clone, Debug)]
struct Case {
    template: Template,
    place: Place,
    /// The pattern of the prefix of the nested router.
    nest: &'static str,
    normalizer: Normalizer,
    paths: Vec<String>,
}

impl Case {
    /// Returns the path before the template, in the service and in its rules.
    const fn prefix(&self) -> &'static str {
        prefix_at(self.place)
    }

    /// Returns the template in rules.
    fn rule_template(&self) -> String {
        format!("{}{}", self.prefix(), self.template.for_rule())
    }

    /// Returns a limiter with a rule for the template.
    fn limiter_of_route(&self) -> RateLimiter {
        let route = Match::new().path(self.rule_template());
        build(Rules::new().rule(all("route").matching(route)))
    }

    /// Returns a limiter with a rule for all requests, from which the template is exempt.
    fn limiter_of_others(&self) -> RateLimiter {
        let route = Match::new().path(self.rule_template());
        build(Rules::new().rule(all("others")).exempt(route))
    }

    /// Checks the responses to the paths. Returns how many paths reached the route.
    fn check(&self, of_route: &[Option<Served>], of_others: &[Option<Served>]) -> usize {
        for (path, served) in self.paths.iter().zip(of_route) {
            let is_counted = served.is_none_or(|served| served.is_counted || !served.by_route);
            assert!(is_counted, "{path:?} was not counted by the rule: {self:#?}");
        }
        let reached = of_route.iter().flatten().filter(|served| served.by_route).count();
        // The middleware makes another path of one that is exempt.
        if is_outside(self.place) && matches!(self.normalizer, Normalizer::Append) {
            return reached;
        }
        for (path, served) in self.paths.iter().zip(of_others) {
            let is_counted = served.is_none_or(|served| served.is_counted || served.by_route);
            assert!(is_counted, "{path:?} was exempt elsewhere: {self:#?}");
        }
        reached
    }
}

/// Returns whether the limiter is outside of the middleware that normalizes.
const fn is_outside(place: Place) -> bool {
    matches!(place, Place::Outside | Place::AroundNested)
}

const fn prefix_at(place: Place) -> &'static str {
    match place {
        Place::Nested | Place::NestedBehindRouter | Place::AroundNested => "/api",
        Place::Alone | Place::Outside | Place::Inside | Place::BehindRouter => "",
    }
}

fn all(name: &str) -> Rule {
    Rule::named(name).limit(Limit::per_hour(1_000_000))
}

fn build(rules: Rules) -> RateLimiter {
    RateLimiter::builder().rules(rules).build().unwrap()
}

fn case(place: Place) -> impl Strategy<Value = Case> {
    let nest = prop_oneof![Just("/api"), Just("/{space}")];
    let may_be_outer = matches!(place, Place::NestedBehindRouter);
    let outer =
        if may_be_outer { prop_oneof![Just(""), Just("/outer")].boxed() } else { Just("").boxed() };
    let parts = (template(), normalizer(place), nest, outer);
    parts.prop_flat_map(move |(template, normalizer, nest, outer)| {
        let prefix = prefix_at(place);
        let prefix = match normalizer {
            Normalizer::Version => format!("{outer}/v1{prefix}"),
            Normalizer::Moved(_) => format!("{outer}/old"),
            _ => format!("{outer}{prefix}"),
        };
        let paths = prop::collection::vec(path_of(&template, prefix), 16);
        let case = move |paths| Case { template: template.clone(), place, nest, normalizer, paths };
        paths.prop_map(case)
    })
}

/// Calls `check` with 25 random services for each place, and with more until 25 requests have
/// reached the route. `check` returns how many did.
fn for_each_case(check: impl Fn(&Case) -> usize) {
    let cases = if rl_tests::is_soak() { 1_250 } else { 25 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    for place in PLACES {
        let reached = Cell::new(0);
        for round in 1.. {
            // A runner stops after its number of cases, so each round needs a new one.
            let result = TestRunner::new(config.clone()).run(&case(place), |case| {
                reached.set(reached.get() + check(&case));
                Ok(())
            });
            result.unwrap_or_else(|error| panic!("{place:?}: {error}"));
            if reached.get() >= 25 {
                break;
            }
            assert!(round < 10, "{place:?}: {} requests reached the route", reached.get());
        }
    }
}

#[test]
fn steps_of_a_normalization_are_independent() {
    let steps = |decode, slashes, dots| Steps { decode, slashes, dots };
    for (path, steps, expected) in [
        ("//%61//b%2Fc/", steps(Decode::Nothing, false, false), "//%61//b%2Fc/"),
        ("//%61//b%2Fc/", steps(Decode::Most, false, false), "//a//b%2Fc/"),
        ("//%61//b%2Fc/", steps(Decode::All, true, false), "/a/b/c"),
        ("/a/../b/.", steps(Decode::Nothing, false, true), "/b/"),
        ("/a/b/..", steps(Decode::Nothing, true, true), "/a/"),
        ("/%2e%2e/b", steps(Decode::Most, false, true), "/b"),
        ("/%zz%+1%", steps(Decode::All, false, false), "/%zz%+1%"),
    ] {
        assert_eq!(steps.normalize(path), expected, "{path} {steps:?}");
    }
}
