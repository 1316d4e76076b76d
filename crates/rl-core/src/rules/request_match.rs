//! The requests to which a rule applies.

use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

use ipnet::IpNet;

use super::host::{HostSet, RequestHosts};
use super::invalid_rules::InvalidMatch;
use super::path_templates::PathTemplates;
use super::request_paths::RequestPaths;
use crate::client_ip::{header_name, is_token_byte};
use crate::key::{ClientAddress, METHOD_OVERRIDES, RequestInfo};

/// The number of overridden methods of a request that are compared.
const MAX_OVERRIDES: usize = 12;

/// The number of rules that read the key of a request. A path may have any form, and a key 64 KiB:
/// without a bound, a client would make every rule read it.
const MAX_APPLIED: usize = 32;

/// The requests to which a [`Rule`](super::Rule) applies, or which are exempt from it.
///
/// A request has to satisfy each kind of condition that is set. If a kind has several values, such
/// as two methods, one of them suffices. A match without conditions matches every request.
///
/// The values are checked when the limiter is built.
///
/// # Reading a request
///
/// In doubt, a rule applies to a request, and an exemption does not.
///
/// * Services read a path in different ways: percent-encoded characters are decoded, or not;
///   parameters (`;v=1`) and spaces around a segment are removed, or not. At each place, an encoded
///   slash or a backslash is read as a slash, or not; a slash beside another one, a `.` segment, or
///   a slash at the end is removed, or not; and the path may end before a `?`, `#` or `;`. A path
///   matches a rule if it matches after any of these steps, in any order, as the client has sent it
///   or as the framework compares it with its routes. It matches an exemption only if it matches
///   before and after each step.
/// * Some paths match every rule, and no exemption: those with a `..` segment or a control
///   character, encoded or not, those with more than 256 forms, or with more than 32 KiB of them,
///   and those without a slash at their start, such as that of `OPTIONS *`. A request with `..` is
///   therefore counted also by rules of paths that it does not reach.
/// * Within nested routers of axum, a path matches a rule with all segments of their prefix, with
///   the last ones, or with none, because a handler may have passed the request on to another
///   router. The path that was sent matches an exemption. If a middleware has rewritten it, the
///   rewritten path has to match the exemption too, whichever segments of the prefix it begins
///   with. axum does not report further slashes after the prefix, so such a path is read with and
///   without them. If the prefix has parameters, and the name of one occurs twice, its value is
///   empty, or any value in the path is not UTF-8, the path matches every rule, and no exemption.
/// * If the address of the client is unknown, a rule with an address handles the request as one
///   without a key ([`Rule::on_missing_key`](super::Rule::on_missing_key)).
/// * Services read the host in the target of the request, or in one of the lines `Host`,
///   `X-Forwarded-Host` and `Forwarded`. One of these hosts has to match a rule, and all of them an
///   exemption. A port and a dot at the end are ignored. A request without a host, or with one that
///   is not a name or address with a valid port (`user@api.example.org`, `%61pi.example.org`,
///   `a.org, b.org`), matches every host of a rule, and none of an exemption. So does a request
///   that names more than 12 hosts, or in more than 4 KiB of text.
/// * `GET` includes `HEAD`, which frameworks pass to the handlers of `GET`. A rule for `GET` also
///   applies to `CONNECT`, with which a client opens a WebSocket over HTTP/2. An exemption of `GET`
///   does not. A rule ignores the case of a method that a client sends, and an exemption does not.
/// * gRPC services of tonic ignore the method. So each of their requests matches a rule as `POST`,
///   and as what the client sent; an exemption has to match both. The feature `tonic` of `rl-tower`
///   recognizes these services.
/// * A rule also reads the method in `X-HTTP-Method-Override`, `X-HTTP-Method` and
///   `X-Method-Override`, which some services accept. A match by method exempts no such request.
/// * The client controls the host and the headers of its request, so a match by them does not
///   protect against abuse.
///
/// # Examples
///
/// ```
/// use rl_core::rules::Match;
///
/// let uploads = Match::new().method("PUT").method("POST").path("/files/{*path}");
/// let office = Match::new().address("192.0.2.0/24");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Match {
    pub(super) methods: Vec<Box<str>>,
    pub(super) paths: Vec<Box<str>>,
    pub(super) hosts: Vec<Box<str>>,
    pub(super) headers: Vec<HeaderCondition>,
    pub(super) addresses: Vec<Box<str>>,
}

impl Match {
    /// Creates a match of every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method, such as `POST`.
    pub fn method(mut self, method: impl AsRef<str>) -> Self {
        self.methods.push(method.as_ref().into());
        self
    }

    /// Adds a path template in the syntax of axum: `/users/{id}`, `/files/{*rest}`.
    ///
    /// A parameter at the end stands for at least one character. For a rule the tail may be empty,
    /// because some services route it to the same handler: `/files/{*rest}` also matches `/files/`
    /// and `/files`.
    pub fn path(mut self, template: impl AsRef<str>) -> Self {
        self.paths.push(template.as_ref().into());
        self
    }

    /// Adds a host without its port: `api.example.org`, or `*.example.org` for all hosts below it.
    pub fn host(mut self, host: impl AsRef<str>) -> Self {
        self.hosts.push(host.as_ref().into());
        self
    }

    /// Adds a header that the request must have. Each header that is added is required.
    ///
    /// Each rule with the header reads all of its lines. actix-web does not bound their number over
    /// HTTP/2, so a proxy in front of it should.
    pub fn header(mut self, name: impl AsRef<str>) -> Self {
        self.headers.push((name.as_ref().into(), None));
        self
    }

    /// Adds a header, one line of which must have this value.
    pub fn header_value(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.headers.push((name.as_ref().into(), Some(value.as_ref().into())));
        self
    }

    /// Adds an address or network of clients, such as `192.0.2.7` or `2001:db8::/32`.
    ///
    /// Behind proxies, [`Rules::client_ip`](super::Rules::client_ip) finds the client.
    pub fn address(mut self, range: impl AsRef<str>) -> Self {
        self.addresses.push(range.as_ref().into());
        self
    }
}

/// The name of a header, and the value that one of its lines must have; `None` accepts any value.
type HeaderCondition = (Box<str>, Option<Box<str>>);

/// A [`Match`] whose values are valid.
#[derive(Clone, Debug)]
pub(super) struct CompiledMatch {
    methods: Box<[Box<str>]>,
    paths: Option<PathTemplates>,
    hosts: HostSet,
    headers: Box<[HeaderCondition]>,
    addresses: Box<[IpNet]>,
}

impl CompiledMatch {
    /// Checks the values of a match, and compiles them. `client` finds the addresses with which the
    /// match is compared.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid.
    pub(super) fn new(text: &Match, client: &ClientAddress) -> Result<Self, InvalidMatch> {
        for method in &text.methods {
            if method.is_empty()
                || !method.bytes().all(|b| is_token_byte(b) && !b.is_ascii_lowercase())
            {
                return Err(InvalidMatch::new(
                    "method",
                    method,
                    "a method in upper case, such as GET",
                ));
            }
        }
        let headers = text.headers.iter().map(|(name, value)| {
            let valid = header_name(name);
            let valid =
                valid.map_err(|_| InvalidMatch::new("header", name, "the name of a header"));
            Ok((valid?, value.clone()))
        });
        Ok(Self {
            methods: text.methods.as_slice().into(),
            paths: (!text.paths.is_empty()).then(|| PathTemplates::new(&text.paths)).transpose()?,
            hosts: HostSet::new(&text.hosts)?,
            headers: headers.collect::<Result<_, _>>()?,
            addresses: text
                .addresses
                .iter()
                .map(|range| network(range, client))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Compiles a valid match of which the peer of the connection is the client.
    #[cfg(test)]
    pub(super) fn by_peer(text: &Match) -> Self {
        Self::new(text, &ClientAddress::default()).unwrap()
    }

    /// Returns whether a rule with this match applies to a request.
    pub(super) fn applies(&self, request: &RequestView<'_>) -> Applies {
        let matches = self.may_match_method(request)
            && (self.hosts.is_empty() || self.hosts.may_match(request.hosts()))
            && self.matches_headers(request.info)
            && self.paths.as_ref().is_none_or(|paths| request.paths().may_match(paths));
        self.if_address_matches(matches, request)
    }

    /// Returns whether a rule with satisfied other conditions applies if `matches` is true.
    fn if_address_matches(&self, matches: bool, request: &RequestView<'_>) -> Applies {
        match matches.then(|| self.matches_address(request)) {
            Some(Some(true)) => Applies::Yes,
            Some(None) => Applies::IfAddressMatches,
            Some(Some(false)) | None => Applies::No,
        }
    }

    /// Returns whether this match exempts a request.
    pub(super) fn exempts(&self, request: &RequestView<'_>) -> bool {
        request.methods().iter().all(|method| self.matches_method(method))
            && (self.methods.is_empty() || request.overrides().is_empty())
            && (self.hosts.is_empty() || self.hosts.surely_matches(request.hosts()))
            && self.matches_headers(request.info)
            && self.paths.as_ref().is_none_or(|paths| request.paths().surely_matches(paths))
            && self.matches_address(request) == Some(true)
    }

    /// Returns whether a rule with this match may count other requests of the client that sent this
    /// one: whether all conditions hold, except those on the method and the path.
    pub(super) fn applies_to_client(&self, request: &RequestView<'_>) -> Applies {
        let matches = (self.hosts.is_empty() || self.hosts.may_match(request.hosts()))
            && self.matches_headers(request.info);
        self.if_address_matches(matches, request)
    }

    fn matches_headers(&self, request: &dyn RequestInfo) -> bool {
        self.headers.iter().all(|(name, value)| has_line(request, name, value.as_deref()))
    }

    /// Returns whether a method of the request matches, or one with which the client overrides it.
    fn may_match_method(&self, request: &RequestView<'_>) -> bool {
        // Some handlers ignore the case of a method.
        let may_match = |method: &str| {
            let is = |known: &str| known.eq_ignore_ascii_case(method);
            let is_get = is("GET") || is("HEAD") || is("CONNECT");
            self.methods.is_empty()
                || self.methods.iter().any(|known| is(known) || is_get && &**known == "GET")
        };
        request.methods().iter().any(|method| may_match(method))
            || request.overrides().len() > MAX_OVERRIDES
            || request.overrides().iter().any(|method| may_match(method))
    }

    fn matches_method(&self, method: &str) -> bool {
        let is = |known: &str| known == method || known == "GET" && method == "HEAD";
        self.methods.is_empty() || self.methods.iter().any(|known| is(known))
    }

    /// Returns whether the client's address matches; `None` if the address is unknown.
    fn matches_address(&self, request: &RequestView<'_>) -> Option<bool> {
        if self.addresses.is_empty() {
            return Some(true);
        }
        let address = request.address()?;
        Some(self.addresses.iter().any(|range| range.contains(&address)))
    }

    /// Returns the path templates and their other forms. Returns `None` if the match has no path.
    pub(super) fn templates(&self) -> Option<&[String]> {
        self.paths.as_ref().map(PathTemplates::templates)
    }

    /// Returns the hosts. The set is empty if the match has none.
    pub(super) const fn hosts(&self) -> &HostSet {
        &self.hosts
    }

    /// Returns whether the match has no conditions.
    pub(super) fn is_unconditional(&self) -> bool {
        self.methods.is_empty()
            && self.paths.is_none()
            && self.hosts.is_empty()
            && self.headers.is_empty()
            && self.addresses.is_empty()
    }
}

/// Returns whether a header line called `name` exists, with `value` if it is given.
fn has_line(request: &dyn RequestInfo, name: &str, value: Option<&str>) -> bool {
    let mut found = false;
    request.header_lines(name, &mut |line| {
        found |= value.is_none_or(|value| line == value.as_bytes());
    });
    found
}

/// Parses an address or a network without host bits.
fn network(text: &str, client: &ClientAddress) -> Result<IpNet, InvalidMatch> {
    let canonical = |address| client.client_ip().canonical(address);
    let single = text.parse::<IpAddr>().ok().map(|address| IpNet::from(canonical(address)));
    // Addresses of clients are canonical, so a network of translated addresses contains none.
    let fits = |net: &IpNet| {
        net.trunc() == *net
            && net.addr() == canonical(net.addr())
            && net.broadcast() == canonical(net.broadcast())
    };
    let network = single.or_else(|| text.parse().ok().filter(fits));
    let expected = "an address or a network without host bits, such as 192.0.2.7 or 10.0.0.0/8; \
                    clients with a translated address such as 64:ff9b::192.0.2.7 are compared as IPv4";
    network.ok_or_else(|| InvalidMatch::new("address", text, expected))
}

/// Whether a rule applies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applies {
    Yes,
    No,
    /// The address of the client decides, and is unknown.
    IfAddressMatches,
}

/// A view of a request that reads each property at most once for all rules.
pub(super) struct RequestView<'a> {
    pub(super) info: &'a dyn RequestInfo,
    client: &'a ClientAddress,
    methods: OnceCell<[&'a str; 2]>,
    paths: OnceCell<RequestPaths<'a>>,
    hosts: OnceCell<RequestHosts>,
    overrides: OnceCell<Vec<String>>,
    address: OnceCell<Option<IpAddr>>,
    /// The number of rules that apply to the request.
    applied: Cell<usize>,
}

impl<'a> RequestView<'a> {
    /// Creates the view of a request. `client` finds the address of its client.
    pub(super) const fn new(info: &'a dyn RequestInfo, client: &'a ClientAddress) -> Self {
        Self {
            info,
            client,
            methods: OnceCell::new(),
            paths: OnceCell::new(),
            hosts: OnceCell::new(),
            overrides: OnceCell::new(),
            address: OnceCell::new(),
            applied: Cell::new(0),
        }
    }

    /// Returns the method on which the service acts, and the one that the client sent.
    fn methods(&self) -> &[&'a str; 2] {
        self.methods.get_or_init(|| [self.info.method(), self.info.sent_method()])
    }

    fn paths(&self) -> &RequestPaths<'a> {
        self.paths.get_or_init(|| RequestPaths::new(self.info))
    }

    /// Returns the forms of the paths. Returns `None` if a path may have any form.
    pub(super) fn path_forms(&self) -> Option<impl Iterator<Item = &str>> {
        self.paths().forms()
    }

    /// Returns the hosts that the request names.
    pub(super) fn hosts(&self) -> &RequestHosts {
        self.hosts.get_or_init(|| RequestHosts::new(self.info))
    }

    /// Returns the methods with which the client overrides that of the request, in upper case.
    ///
    /// A proxy may have joined lines by commas. A service takes the first of them or the last. Of
    /// more than [`MAX_OVERRIDES`] methods, the rest is left out, and every rule may match.
    fn overrides(&self) -> &[String] {
        self.overrides.get_or_init(|| {
            let mut methods = Vec::new();
            for name in METHOD_OVERRIDES {
                self.info.header_lines(name, &mut |line| {
                    let line = String::from_utf8_lossy(line);
                    let mut joined = line.split(',').map(str::trim).filter(|it| !it.is_empty());
                    for method in [joined.next(), joined.next_back()].into_iter().flatten() {
                        let method = method.to_ascii_uppercase();
                        if methods.len() <= MAX_OVERRIDES && !methods.contains(&method) {
                            methods.push(method);
                        }
                    }
                });
            }
            methods
        })
    }

    /// Counts a rule that applies. Returns whether it may read the key of the request.
    pub(super) fn count_applied(&self) -> bool {
        self.applied.set(self.applied.get() + 1);
        self.applied.get() <= MAX_APPLIED
    }

    /// Returns whether the client's address is unknown because the server does not know the peer of
    /// the connection.
    pub(super) fn lacks_peer(&self) -> bool {
        self.client.lacks_peer(self.info)
    }

    fn address(&self) -> Option<IpAddr> {
        let resolve = || self.client.resolve(self.info).map(|resolved| resolved.address());
        *self.address.get_or_init(resolve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_ip::ClientIp;
    use crate::key::fake_request::FakeRequest;

    fn applies(text: &Match, request: &FakeRequest) -> bool {
        let client = ClientAddress::default();
        let compiled = CompiledMatch::by_peer(text);
        compiled.applies(&RequestView::new(request, &client)) == Applies::Yes
    }

    #[test]
    fn each_kind_of_condition_has_to_hold() {
        let get = |path: &str| FakeRequest::get(path);
        let login = Match::new().method("POST").path("/login");
        assert!(applies(&login, &get("/login").method("POST")));
        assert!(!applies(&login, &get("/login")));
        assert!(!applies(&login, &get("/").method("POST")));
        assert!(applies(&Match::new(), &get("/")));
        let either = Match::new().method("GET").method("PUT");
        assert!(applies(&either, &get("/")) && applies(&either, &get("/").method("HEAD")));
        assert!(!applies(&either, &get("/").method("POST")));
        assert!(!applies(&Match::new().method("HEAD"), &get("/")));
    }

    /// Fault: a service that accepts an overridden method got calls of a method that no rule
    /// counted.
    #[test]
    fn an_overridden_method_matches_a_rule_and_no_exemption() {
        let text = Match::new().method("POST");
        let (compiled, client) = (CompiledMatch::by_peer(&text), ClientAddress::default());
        for (method, overridden, applies, exempts) in [
            ("GET", None, false, false),
            ("GET", Some("post"), true, false),
            ("GET", Some("PUT"), false, false),
            ("GET", Some("POST, GET"), true, false),
            ("GET", Some("GET,post,"), true, false),
            ("GET", Some(","), false, false),
            ("GET", Some("PUT,POST"), true, false),
            ("POST", None, true, true),
            ("POST", Some("PUT"), true, false),
        ] {
            for name in METHOD_OVERRIDES {
                let request = FakeRequest::get("/").method(method);
                let request = match overridden {
                    Some(method) => request.header(name, method.as_bytes()),
                    None => request,
                };
                let view = RequestView::new(&request, &client);
                let applied = compiled.applies(&view) == Applies::Yes;
                assert_eq!(
                    (applied, compiled.exempts(&view)),
                    (applies, exempts),
                    "{overridden:?}"
                );
            }
        }
    }

    #[test]
    fn the_number_of_compared_overrides_is_bounded_and_beyond_it_every_rule_applies() {
        let text = Match::new().method("POST");
        let (compiled, client) = (CompiledMatch::by_peer(&text), ClientAddress::default());
        for (count, applies) in [(MAX_OVERRIDES, false), (MAX_OVERRIDES + 1, true), (9_999, true)] {
            let methods = (0..count).flat_map(|number| [format!("M{number}"), "M0".to_owned()]);
            let request = methods.fold(FakeRequest::get("/"), |request, method| {
                request.header(METHOD_OVERRIDES[0], method.as_bytes())
            });
            let view = RequestView::new(&request, &client);
            assert_eq!(compiled.applies(&view) == Applies::Yes, applies, "{count}");
            assert!(!compiled.exempts(&view) && view.overrides().len() <= MAX_OVERRIDES + 1);
        }
    }

    /// Fault: a gRPC service ignores the method, so a client avoided a rule for `POST` with
    /// another.
    #[test]
    fn a_method_that_the_service_ignores_avoids_no_rule_and_earns_no_exemption() {
        let client = ClientAddress::default();
        let request = FakeRequest::get("/").method("POST").sent_method("GET");
        let view = RequestView::new(&request, &client);
        for (method, expected) in [("POST", true), ("GET", true), ("PUT", false)] {
            let compiled = CompiledMatch::by_peer(&Match::new().method(method));
            assert_eq!(compiled.applies(&view) == Applies::Yes, expected, "{method}");
            assert!(!compiled.exempts(&view), "{method}");
        }
        let either = Match::new().method("POST").method("GET");
        assert!(CompiledMatch::by_peer(&either).exempts(&view));
    }

    /// Fault: a client that opened a WebSocket over HTTP/2 avoided a rule for `GET`.
    #[test]
    fn a_rule_for_get_applies_to_connect_and_an_exemption_of_get_does_not() {
        let client = ClientAddress::default();
        let request = FakeRequest::get("/socket").method("CONNECT");
        let view = RequestView::new(&request, &client);
        for (method, applies, exempts) in [
            ("GET", Applies::Yes, false),
            ("CONNECT", Applies::Yes, true),
            ("POST", Applies::No, false),
        ] {
            let compiled = CompiledMatch::by_peer(&Match::new().method(method));
            assert_eq!((compiled.applies(&view), compiled.exempts(&view)), (applies, exempts));
        }
    }

    #[test]
    fn headers_match_by_presence_or_by_a_line() {
        let request = FakeRequest::get("/").header("x-plan", b"pro").header("x-plan", b"free");
        assert!(applies(&Match::new().header("X-Plan"), &request));
        assert!(applies(&Match::new().header_value("x-plan", "free"), &request));
        assert!(!applies(&Match::new().header_value("x-plan", "team"), &request));
        assert!(!applies(&Match::new().header("x-plan").header("x-other"), &request));
    }

    /// Fault: no rule for a host applied to a request with two `Host` lines, of which some services
    /// read the first one.
    #[test]
    fn one_of_several_hosts_matches_a_rule_and_all_of_them_an_exemption() {
        let api = CompiledMatch::by_peer(&Match::new().host("api.example.org"));
        let client = ClientAddress::default();
        for (hosts, applies, exempts) in [
            // Fault: a request without a host avoided the rule.
            (&[][..], true, false),
            (&["other.org"], false, false),
            (&["api.example.org"], true, true),
            (&["api.example.org", "other.org"], true, false),
            (&["other.org", "api.example.org"], true, false),
            (&["api.example.org:80", "API.example.org."], true, true),
        ] {
            let add = |request: FakeRequest, host: &&str| request.header("host", host.as_bytes());
            let request = hosts.iter().fold(FakeRequest::get("/"), add);
            let view = RequestView::new(&request, &client);
            let applied = api.applies(&view) == Applies::Yes;
            assert_eq!((applied, api.exempts(&view)), (applies, exempts), "{hosts:?}");
        }
    }

    /// Fault: the path on which the framework routes was not compared, if it differs from the path
    /// that the client has sent.
    #[test]
    fn one_of_both_paths_matches_a_rule_and_both_an_exemption() {
        let text = Match::new().path("/export/{name}").path("/api/health");
        let text = text.path("/tenants/{tenant}/login");
        let (compiled, client) = (CompiledMatch::by_peer(&text), ClientAddress::default());
        for sent in ["/x", "/api/health"] {
            let unknown = FakeRequest::get(sent).routed_path("/health").unknown_prefix();
            let view = RequestView::new(&unknown, &client);
            let found = (compiled.applies(&view), compiled.exempts(&view));
            assert_eq!(found, (Applies::Yes, false), "{sent}");
        }
        for (sent, routed, nested_prefix, applies, exempts) in [
            ("/export/a", "/export/a", None, true, true),
            ("//export/a%2Fb", "/export/a%2Fb", None, true, false),
            ("/x", "/export/a", None, true, false),
            ("/export/a", "/x", None, true, false),
            // Fault: a rewritten path was taken for the path within a nested router.
            ("/api/health", "/health", None, true, false),
            ("/api/health", "/health", Some("/api"), true, true),
            // Fault: a path that was rewritten to another value of a parameter of the prefix
            // avoided the rule.
            ("/API/health", "/health", Some("/api"), true, false),
            ("/api/health", "/health", Some("/API"), true, false),
            ("/api/export/a", "/export/a", Some("/api"), true, false),
            ("/api//health", "/health", Some("/api"), true, false),
            ("/xport/a", "/a", Some("/xport"), false, false),
            // Fault: a path that was rewritten before a nested router avoided the rule.
            ("/v1/api/health", "/health", Some("/api"), true, false),
            ("/v1/x/health", "/health", Some("/x"), false, false),
            // Fault: such a path avoided the rule if it was rewritten by adding the prefix.
            ("/health", "/health", Some("/api"), true, false),
            // Fault: an ordinary path lost its exemption if a value of the prefix was encoded anew.
            ("/a@b/health", "/health", Some("/a%40b"), false, false),
            ("/v1/export/a", "/a", Some("/export"), true, false),
            ("/v1/export/a", "/a", Some("/export/"), true, false),
            // Fault: axum removes both slashes of `/tenants//login` with the prefix `/tenants`.
            ("/v1/tenants//login", "/login", Some("/tenants"), true, false),
            ("/api/health", "/a", Some("/other"), true, false),
            ("api/health", "api/health", None, true, false),
            ("*", "*", None, true, false),
        ] {
            let request = FakeRequest::get(sent).routed_path(routed);
            let request = match nested_prefix {
                Some(prefix) => request.nested_prefix(prefix),
                None => request,
            };
            let view = RequestView::new(&request, &client);
            let applied = compiled.applies(&view) == Applies::Yes;
            let found = (applied, compiled.exempts(&view));
            assert_eq!(found, (applies, exempts), "{sent} {routed} {nested_prefix:?}");
        }
    }

    /// Fault: a path within nested routers was compared with the whole prefix alone. It avoided a
    /// rule if a handler of a nested router had passed the request on to another router, or if a
    /// middleware had rewritten it and the routers had left a part of the prefix in it. Ordinary
    /// paths lost their exemption if they had a part of the prefix or nothing behind it.
    #[test]
    fn a_path_within_nested_routers_is_completed_by_each_run_of_the_prefix() {
        let client = ClientAddress::default();
        #[rustfmt::skip]
        let cases = [
            // template              | sent              | routed         | prefix      | removed | found
            ("/api/v{n}/login", "/v1/login", "/v1/login", "/api/v1", false, (true, false)),
            ("/api/v{n}/login", "/API/v1/login", "/v1/login", "/api/v1", false, (true, false)),
            ("/v{n}/{tenant}/login", "/acme/login", "/acme/login", "/v1/acme", false, (true, false)),
            ("/public/{*rest}", "/public/login", "/public/login", "/v1/public", false, (true, false)),
            ("/api/login", "/old/signin", "/login", "/old/api", true, (true, false)),
            ("/old/{*rest}", "/old/signin", "/login", "/old/api", true, (true, false)),
            // A value is empty, so axum has removed another part of the path.
            ("/shops/{*rest}", "/Shops///login", "/login", "/shops//", true, (true, false)),
            ("/other", "/Shops///login", "/login", "/shops//", true, (true, false)),
            ("/other", "/shops///login", "/login", "/shops//", true, (true, false)),
            // Ordinary paths.
            ("/api/v{n}/health", "/api/v1/health", "/v1/health", "/api/v1", false, (true, true)),
            ("/api/v{n}/health", "/api/v1/health", "/api/v1/health", "/api/v1", false, (true, true)),
            ("/v{n}/{t}/health", "/v1/a/health", "/a/health", "/v1/a", false, (true, true)),
            ("/api/{a}/{b}/health", "/api/v1/health", "/v1/health", "/api/v1", false, (false, false)),
            ("/a/b/c/d/e/f/g/h/i/{x}", "/a/b/c/d/e/f/g/h/i/x", "/x", "/a/b/c/d/e/f/g/h/i", true, (true, true)),
            // The path of a nested router itself.
            ("/health", "/health", "/", "/health", true, (true, true)),
            ("/health", "/Health", "/", "/health", true, (true, false)),
            // A handler passes the request on to another router.
            ("/api/login", "/old/api/login", "/login", "/old/api", true, (true, false)),
            ("/api/lo gin", "/old/api/lo%20gin", "/lo%20gin", "/old/api", true, (true, false)),
            ("/api/v{n}/login", "/old/api/v1/login", "/v1/login", "/old/api/v1", false, (true, false)),
            ("/old/{*rest}", "/old/api/login", "/login", "/old/api", true, (true, true)),
            // A middleware removes what the routers have left.
            ("/v{n}/health", "/v1/health", "/health", "/v1", false, (true, true)),
            ("/other", "/v1/health", "/health", "/v1", false, (false, false)),
            ("/auth/{a}/login", "/v1/auth/auth/login", "/auth/login", "/v1/auth", false, (true, false)),
            // axum removes slashes in front of an empty parameter.
            ("/tenants/{*rest}", "/old/tenants//login", "/login", "/old/tenants", true, (true, false)),
            ("/tenants//{*rest}", "/old/tenants//x", "/x", "/old/tenants", true, (true, false)),
            ("/api///{*rest}", "/API///x", "/x", "/api", true, (true, false)),
            ("/api/{*rest}", "/api///health", "/health", "/api", true, (true, true)),
            // The encoding of a slash is written anew.
            ("/files/{*rest}", "/files/a%2fb/x", "/x", "/files/a%2Fb", true, (true, true)),
            // Equal segments: the path may end with one or two of them.
            ("/v{n}/{t}/v1/export", "/v1/v1/export", "/v1/v1/export", "/v1/v1", false, (true, false)),
            ("/v{n}/{t}/export", "/v1/v1/export", "/v1/v1/export", "/v1/v1", false, (true, false)),
            // More runs than are compared.
            ("/other", "/A/b", "/a/a/a/a/a/a/a/a/a", "/a/a/a/a/a/a/a/a/a", false, (true, false)),
        ];
        for (template, sent, routed, prefix, is_removed, expected) in cases {
            let request = FakeRequest::get(sent).routed_path(routed);
            let request = match is_removed {
                true => request.nested_prefix(prefix),
                false => request.partly_removed(prefix),
            };
            let compiled = CompiledMatch::by_peer(&Match::new().path(template));
            let view = RequestView::new(&request, &client);
            let found = (compiled.applies(&view) == Applies::Yes, compiled.exempts(&view));
            assert_eq!(found, expected, "{template}: {sent} {routed} {prefix}");
        }
    }

    #[test]
    fn addresses_match_by_network() {
        let office = Match::new().address("192.0.2.0/24").address("2001:db8::/32");
        let one = Match::new().address("64:ff9b::192.0.2.7");
        for peer in ["192.0.2.7", "64:ff9b::192.0.2.7", "::ffff:0:192.0.2.7"] {
            assert!(applies(&one, &FakeRequest::get("/").peer(peer)), "{peer}");
        }
        for (peer, expected) in [
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("198.51.100.1", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(applies(&office, &FakeRequest::get("/").peer(peer)), expected, "{peer}");
        }
        let (compiled, client) = (CompiledMatch::by_peer(&office), ClientAddress::default());
        let unknown = FakeRequest::get("/");
        let view = RequestView::new(&unknown, &client);
        assert_eq!(compiled.applies(&view), Applies::IfAddressMatches);
        assert!(!compiled.exempts(&view) && view.lacks_peer());
        let elsewhere = CompiledMatch::by_peer(&office.path("/a"));
        assert_eq!(elsewhere.applies(&view), Applies::No);
    }

    #[test]
    fn invalid_values_are_named_with_what_is_accepted() {
        let site = ClientAddress::new(ClientIp::default().nat64("2001:db8:64::/96").unwrap());
        for (text, expected) in [
            (Match::new().method("post"), "method \"post\": expected a method in upper case"),
            (Match::new().path("/a/../b"), "path \"/a/../b\": expected a path that begins with"),
            (Match::new().path("login"), "path \"login\": expected a path that begins with `/`"),
            (Match::new().host("a b"), "host \"a b\": expected a host without its port"),
            (Match::new().host("."), "host \".\": expected a host without its port"),
            (Match::new().host("*."), "host \"*.\": expected a host without its port"),
            (Match::new().host("a:80"), "host \"a:80\": expected a host without its port"),
            (Match::new().header("x y"), "header \"x y\": expected the name of a header"),
            (Match::new().address("10.0.0.1/8"), "address \"10.0.0.1/8\": expected an address or"),
            // Fault: this network was accepted, and contained no client.
            (Match::new().address("::ffff:10.0.0.0/104"), "address \"::ffff:10.0.0.0/104\": ex"),
            // Fault: these, too.
            (Match::new().address("64:ff9b::a00:0/104"), "address \"64:ff9b::a00:0/104\": ex"),
            (Match::new().address("2001:db8:64::/96"), "address \"2001:db8:64::/96\": expected"),
        ] {
            let error = CompiledMatch::new(&text, &site).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
