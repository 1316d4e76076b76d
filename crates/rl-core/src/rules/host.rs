//! The hosts that a rule matches.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

use super::invalid_rules::InvalidMatch;
use crate::key::RequestInfo;

/// The maximum number of hosts that a request may name. A target, a `Host` line and the hosts that
/// several proxies add are fewer.
const MAX_HOSTS: usize = 12;

/// The maximum length of the text that names hosts, in bytes. It bounds the work for a request, as
/// a client may send megabytes of `X-Forwarded-Host` over HTTP/2.
const MAX_LEN: usize = 4 * 1_024;

/// The hosts of a match, by their keys. The key of a host is its name in lower case. The key of all
/// hosts below a domain is a dot and the domain.
#[derive(Clone, Debug, Default)]
pub(super) struct HostSet {
    keys: HashSet<Box<str>>,
    longest: usize,
}

impl HostSet {
    /// Parses the hosts of a match.
    ///
    /// # Errors
    ///
    /// Returns an error for the first host that is not valid.
    pub(super) fn new(hosts: &[Box<str>]) -> Result<Self, InvalidMatch> {
        let keys = hosts.iter().map(|host| parse(host)).collect::<Result<HashSet<_>, _>>()?;
        let longest = keys.iter().map(|key| key.len()).max().unwrap_or_default();
        Ok(Self { keys, longest })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the keys, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &**key)
    }

    /// Returns whether a host of the request matches. If the hosts cannot be read, one may match.
    pub(super) fn may_match(&self, hosts: &RequestHosts) -> bool {
        hosts.names().is_none_or(|mut names| names.any(|name| self.contains(name)))
    }

    /// Returns whether each host of the request matches.
    pub(super) fn surely_matches(&self, hosts: &RequestHosts) -> bool {
        hosts.names().is_some_and(|mut names| names.all(|name| self.contains(name)))
    }

    fn contains(&self, name: &str) -> bool {
        keys_of(name, self.longest).any(|key| self.keys.contains(key))
    }
}

/// Returns the keys of the hosts to which a name belongs, without those above `longest` bytes.
pub(super) fn keys_of(name: &str, longest: usize) -> impl Iterator<Item = &str> {
    let domains = name.rmatch_indices('.').map(|(at, _)| &name[at..]);
    // Without the bound, the work for a long name would grow with the square of its length.
    let domains = domains.take_while(move |domain| domain.len() <= longest);
    domains.chain((name.len() <= longest).then_some(name))
}

/// Returns the key of a host in a match.
fn parse(text: &str) -> Result<Box<str>, InvalidMatch> {
    let (is_below, host) = text.strip_prefix("*.").map_or((false, text), |host| (true, host));
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    let name = read(host).filter(|_| if is_v6 { !is_below } else { !host.contains(':') });
    let Some(name) = name else {
        let expected = "a host without its port, such as api.example.org or *.example.org";
        return Err(InvalidMatch::new("host", text, expected));
    };
    let lower = name.to_ascii_lowercase();
    Ok(if is_below { format!(".{lower}").into() } else { lower.into() })
}

/// Calls its second argument with each host in a line, until it returns false.
type EachHost = fn(&str, &mut dyn FnMut(&str) -> bool) -> bool;

/// The hosts that a request names, in lower case, without their ports and a dot at the end.
#[derive(Debug, Default)]
pub(super) struct RequestHosts {
    /// The names, each once.
    names: SmallVec<[Box<str>; 2]>,
    /// Whether the request may be for any host: it names none, too many, or one that services may
    /// read in different ways.
    may_be_any: bool,
    /// The number of hosts that were read, and the length of their lines.
    count: usize,
    len: usize,
}

impl RequestHosts {
    /// Reads the hosts of a request.
    pub(super) fn new(request: &dyn RequestInfo) -> Self {
        let mut hosts = Self::default();
        if let Some(authority) = request.authority() {
            hosts.read_line(authority.as_bytes(), |line, each| each(line));
        }
        request.header_lines("host", &mut |line| hosts.read_line(line, |line, each| each(line)));
        hosts.may_be_any |= hosts.count == 0;
        // Some services read the host that a proxy has forwarded. A client may write it too.
        request.header_lines("x-forwarded-host", &mut |line| {
            hosts.read_line(line, |line, each| line.split(',').all(|host| each(host.trim())));
        });
        request.header_lines("forwarded", &mut |line| {
            hosts.read_line(line, |line, each| {
                let pairs = line.split([',', ';']).filter_map(|pair| pair.split_once('='));
                let mut hosts = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
                hosts.all(|(_, host)| each(host.trim().trim_matches('"')))
            });
        });
        hosts
    }

    /// Returns the names. Returns `None` if the request may be for any host.
    pub(super) fn names(&self) -> Option<impl Iterator<Item = &str>> {
        (!self.may_be_any).then(|| self.names.iter().map(|name| &**name))
    }

    /// Reads a line that names hosts.
    fn read_line(&mut self, line: &[u8], hosts: EachHost) {
        self.len += line.len();
        self.may_be_any = self.may_be_any
            || self.len > MAX_LEN
            || !std::str::from_utf8(line).is_ok_and(|line| hosts(line, &mut |host| self.add(host)));
    }

    /// Adds a host. Returns false if the request may be for any host.
    fn add(&mut self, host: &str) -> bool {
        self.count += 1;
        let name = read(host).filter(|_| self.count <= MAX_HOSTS);
        let Some(name) = name.map(|name| name.to_ascii_lowercase()) else { return false };
        if !self.names.iter().any(|known| **known == *name) {
            self.names.push(name.into());
        }
        true
    }
}

/// Returns the name or address in `host`, without its port and a dot at the end. Returns `None` if
/// services may read `host` in different ways.
fn read(host: &str) -> Option<Cow<'_, str>> {
    if let Some(host) = host.strip_prefix('[') {
        let (address, port) = host.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        let is_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        // An address has several spellings.
        return is_valid.then(|| format!("[{address}]").into());
    }
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    // Parsers of addresses read `127.1` and `0x7f000001` as 127.0.0.1.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit())
        || last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    let is_valid = name.split('.').all(is_label)
        && is_port(port)
        && (!is_number || name.parse::<Ipv4Addr>().is_ok());
    is_valid.then_some(name.into())
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::fake_request::FakeRequest;

    fn hosts(lines: &[(&'static str, &str)]) -> RequestHosts {
        let add = |request: FakeRequest, (name, value): &(&'static str, &str)| {
            request.header(name, value.as_bytes())
        };
        RequestHosts::new(&lines.iter().fold(FakeRequest::get("/"), add))
    }

    /// Returns whether a rule and an exemption with the host `known` match a request with `lines`.
    fn matches(known: &str, lines: &[(&'static str, &str)]) -> (bool, bool) {
        let (known, hosts) = (HostSet::new(&[known.into()]).unwrap(), hosts(lines));
        (known.may_match(&hosts), known.surely_matches(&hosts))
    }

    #[test]
    fn hosts_match_without_port_and_case() {
        for text in
            ["api.example.org", "Api.Example.org:8443", "api.example.org.", "api.example.org:"]
        {
            assert_eq!(matches("API.example.org", &[("host", text)]), (true, true), "{text}");
        }
        for (text, expected) in [
            ("a.example.org", true),
            ("a.b.example.org:1", true),
            ("example.org", false),
            ("badexample.org", false),
            ("1.example.org", true),
            ("127.0.0.1", false),
        ] {
            let found = matches("*.example.org", &[("host", text)]);
            assert_eq!(found, (expected, expected), "{text}");
        }
        // Fault: a host with a dot at its end matched no request.
        assert_eq!(matches("api.example.org.", &[("host", "api.example.org")]), (true, true));
        assert_eq!(matches("*.org.", &[("host", "api.example.org")]), (true, true));
        for text in ["[::1]", "[::1]:80", "[0:0::1]", "[::0001]:"] {
            assert_eq!(matches("[::1]", &[("host", text)]), (true, true), "{text}");
            assert_eq!(matches("[::2]", &[("host", text)]), (false, false), "{text}");
        }
    }

    /// Fault: services read these hosts as the host of a rule, which did not match the requests.
    #[test]
    fn a_host_that_only_some_services_can_read_matches_a_rule_and_no_exemption() {
        for text in [
            "user@api.example.org",
            "http://x@api.example.org:1?#",
            "api.example.org:http",
            "api.example.org:99999",
            "api.example.org:+80",
            "%61pi.example%2eorg",
            "api.example.org..",
            ".example.org",
            "api.example.org/path",
            " api.example.org",
            "other.org, api.example.org",
            "other.org\\.example.org",
            "[::1",
            "[::1]x",
            "::1",
            "127.1",
            "0x7f000001",
            "é.org",
            "",
        ] {
            for known in ["api.example.org", "*.example.org", "[::1]"] {
                assert_eq!(matches(known, &[("host", text)]), (true, false), "{known} {text:?}");
                let known = HostSet::new(&[known.into()]).unwrap();
                let hosts = RequestHosts::new(&FakeRequest::get("/").authority(text));
                assert!(known.may_match(&hosts) && !known.surely_matches(&hosts), "{text:?}");
            }
        }
        assert_eq!(matches("api.example.org", &[]), (true, false));
    }

    /// Fault: a service that reads the forwarded host served requests that no rule counted.
    #[test]
    fn a_forwarded_host_matches_a_rule_and_no_exemption_unless_all_match() {
        const HOST: (&str, &str) = ("host", "other.org");
        for line in [
            ("x-forwarded-host", "api.example.org"),
            ("x-forwarded-host", "a.org, api.example.org:80"),
            ("forwarded", "for=192.0.2.1;host=api.example.org"),
            ("forwarded", "host=a.org, for=x; HOST = \"api.example.org:80\""),
            ("forwarded", r#"host="api\.example.org""#),
        ] {
            assert_eq!(matches("api.example.org", &[HOST, line]), (true, false), "{line:?}");
            assert_eq!(matches("other.org", &[HOST, line]), (true, false), "{line:?}");
        }
        let line = ("forwarded", "for=192.0.2.1;proto=https");
        assert_eq!(matches("api.example.org", &[HOST, line]), (false, false));
        let line = ("x-forwarded-host", "api.example.org:443");
        let api = ("host", "api.example.org");
        assert_eq!(matches("api.example.org", &[api, line]), (true, true));
    }

    /// Fault: each rule read a megabyte of hosts again, so that one request took seconds.
    #[test]
    fn the_number_and_the_length_of_hosts_are_bounded() {
        const HOST: (&str, &str) = ("host", "a.org");
        for count in [1, MAX_HOSTS - 1, MAX_HOSTS, 1_000, 100_000] {
            let distinct: Vec<String> = (0..count).map(|place| format!("h{place}.org")).collect();
            for (name, text) in [
                ("x-forwarded-host", distinct.join(",")),
                ("x-forwarded-host", vec!["a.org"; count].join(",")),
                ("forwarded", format!("host={}", distinct.join(";host="))),
                ("forwarded", vec!["for=x"; count * 128].join(",")),
                ("x-forwarded-host", "a".repeat(count * 500)),
            ] {
                let hosts = hosts(&[HOST, (name, &text)]);
                assert!(hosts.names.len() <= MAX_HOSTS, "{count} in {name}");
                assert!(hosts.names.iter().map(|name| name.len()).sum::<usize>() <= MAX_LEN);
                let is_bounded = count < MAX_HOSTS && text.len() + HOST.1.len() <= MAX_LEN;
                assert_eq!(hosts.may_be_any, !is_bounded, "{count} in {name}");
                let found = matches("b.org", &[HOST, (name, &text)]);
                assert_eq!(found, (!is_bounded, false), "{count} in {name}");
            }
        }
        let many = vec![HOST; MAX_HOSTS + 1];
        assert!(!hosts(&many[1..]).may_be_any && hosts(&many).may_be_any);
        assert_eq!(hosts(&many[1..]).names.len(), 1, "duplicates are compared once");
    }
}
