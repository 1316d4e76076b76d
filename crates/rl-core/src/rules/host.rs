//! The hosts that a rule matches.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::invalid_rules::InvalidMatch;
use crate::key::RequestInfo;

/// A host, or all hosts below a domain, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    One(Box<str>),
    // A dot and the domain. The name of every host below the domain ends with this text.
    Below(Box<str>),
}

impl Host {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidMatch> {
        let (is_below, host) = text.strip_prefix("*.").map_or((false, text), |host| (true, host));
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        let name = read(host).filter(|_| if is_v6 { !is_below } else { !host.contains(':') });
        let Some(name) = name else {
            let expected = "a host without its port, such as api.example.org or *.example.org";
            return Err(InvalidMatch::new("host", text, expected));
        };
        let lower = name.to_ascii_lowercase();
        Ok(if is_below { Self::Below(format!(".{lower}").into()) } else { Self::One(lower.into()) })
    }

    /// Returns whether `name`, which [`for_each_host`] has read, is this host.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::One(host) => name.eq_ignore_ascii_case(host),
            Self::Below(domain) => {
                let end = name.len().checked_sub(domain.len()).and_then(|at| name.get(at..));
                name.len() > domain.len() && end.is_some_and(|end| end.eq_ignore_ascii_case(domain))
            }
        }
    }

    /// Returns the name of the host, or a dot and the domain of all hosts below it.
    pub(super) fn key(&self) -> &str {
        match self {
            Self::One(text) | Self::Below(text) => text,
        }
    }
}

/// Calls `each` with the name of every host in the request, without its port and a dot at the end.
/// Calls it with `None` for a host that services may read in different ways, and for a request that
/// names no host.
pub(super) fn for_each_host(request: &dyn RequestInfo, each: &mut dyn FnMut(Option<&str>)) {
    let mut has_host = false;
    let mut each_of = |host: Option<&str>| each(host.and_then(read).as_deref());
    if let Some(host) = request.target_host() {
        has_host = true;
        each_of(Some(host));
    }
    request.header_lines("host", &mut |line| {
        has_host = true;
        each_of(std::str::from_utf8(line).ok());
    });
    if !has_host {
        each_of(None);
    }
    // Some services read the host that a proxy has forwarded. A client may write it too.
    request.header_lines("x-forwarded-host", &mut |line| match std::str::from_utf8(line) {
        Ok(line) => line.split(',').for_each(|host| each_of(Some(host.trim()))),
        Err(_) => each_of(None),
    });
    request.header_lines("forwarded", &mut |line| match std::str::from_utf8(line) {
        Ok(line) => {
            let pairs = line.split([',', ';']).filter_map(|pair| pair.split_once('='));
            let hosts = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
            hosts.for_each(|(_, host)| each_of(Some(host.trim().trim_matches('"'))));
        }
        Err(_) => each_of(None),
    });
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

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    /// Returns whether a rule and an exemption with the host `known` match a request with `lines`.
    fn matches(known: &str, lines: &[(&'static str, &str)]) -> (bool, bool) {
        let known = host(known);
        let add = |request: FakeRequest, (name, value): &(&'static str, &str)| {
            request.header(name, value.as_bytes())
        };
        let (mut some, mut all) = (false, true);
        for_each_host(&lines.iter().fold(FakeRequest::get("/"), add), &mut |name| {
            some |= name.is_none_or(|name| known.matches(name));
            all &= name.is_some_and(|name| known.matches(name));
        });
        (some, all)
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

    /// Fault: services read these hosts as that of a rule, which the requests avoided.
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
}
