//! The hosts that a rule matches.

use percent_encoding::percent_decode_str;

use super::invalid_rules::InvalidMatch;
use super::requirements::{Requirements, Sequence};

/// A host, or all hosts below a domain, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    One(Box<str>),
    // A dot and the domain. The name of every host below the domain ends with this text.
    Below(Box<str>),
}

impl Host {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidMatch> {
        // A request may name a host with a dot at its end, which `matches` ignores.
        let host = text.strip_suffix('.').unwrap_or(text);
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_v6 = text.starts_with('[') && text.ends_with(']');
        if name.is_empty() || !is_v6 && !name.bytes().all(is_part_of_name) {
            let expected = "a host without its port, such as api.example.org or *.example.org";
            return Err(InvalidMatch::new("host", text, expected));
        }
        let lower = host.to_ascii_lowercase();
        Ok(match lower.strip_prefix('*') {
            Some(domain) => Self::Below(domain.into()),
            None => Self::One(lower.into()),
        })
    }

    /// Returns whether a service can read `host`, as a request names it, as this one.
    ///
    /// Some services parse it as an address, `http://user@host:port/`, and ignore all but the name.
    pub(super) fn may_be(&self, host: &str) -> bool {
        if self.matches(host) {
            return true;
        }
        let authority = host.split_once("://").map_or(host, |(_, rest)| rest);
        let authority = authority.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let end = match host.find(']') {
            Some(bracket) if host.starts_with('[') => bracket + 1,
            _ => host.find(':').unwrap_or(host.len()),
        };
        let name = percent_decode_str(&host[..end]).decode_utf8_lossy();
        self.matches(name.trim_matches([' ', '\t', '.']))
    }

    /// Returns whether each service reads `host`, as a request names it, as this one.
    pub(super) fn is_plainly(&self, host: &str) -> bool {
        let name = without_port(host);
        let is_v6 = name.starts_with('[') && name.ends_with(']');
        (is_v6 || name.bytes().all(is_part_of_name)) && self.matches(name)
    }

    /// Returns whether `host` is this one. A port and a dot at the end are ignored.
    fn matches(&self, host: &str) -> bool {
        let host = without_port(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        match self {
            Self::One(name) => host.eq_ignore_ascii_case(name),
            Self::Below(domain) => {
                let end = host.len().checked_sub(domain.len()).and_then(|at| host.get(at..));
                host.len() > domain.len() && end.is_some_and(|end| end.eq_ignore_ascii_case(domain))
            }
        }
    }

    pub(super) fn add_requirements(to: Requirements, host: &Self) -> Requirements {
        let (name, is_whole) = match host {
            Self::One(name) => (&**name, true),
            Self::Below(domain) => (domain.trim_start_matches('.'), false),
        };
        to.with_sequence(Sequence::Host, name.rsplit('.').map(Some), is_whole)
    }

    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(one), Self::One(other)) => one == other,
            (Self::One(name), below @ Self::Below(_))
            | (below @ Self::Below(_), Self::One(name)) => below.matches(name),
            (Self::Below(one), Self::Below(other)) => {
                one.ends_with(&**other) || other.ends_with(&**one)
            }
        }
    }
}

fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn hosts_match_without_port_and_case() {
        let api = host("API.example.org");
        for text in
            ["api.example.org", "Api.Example.org:8443", "api.example.org.", "api.example.org:"]
        {
            assert!(api.may_be(text) && api.is_plainly(text), "{text}");
        }
        for (text, expected) in [
            ("a.example.org", true),
            ("a.b.example.org:1", true),
            ("example.org", false),
            (".example.org", false),
            ("badexample.org", false),
            ("é.org", false),
            ("", false),
        ] {
            let below = host("*.example.org");
            assert_eq!(
                (below.may_be(text), below.is_plainly(text)),
                (expected, expected),
                "{text}"
            );
        }
        // Fault: a host with a dot at its end matched no request.
        for text in ["api.example.org.", "*.org."] {
            assert!(host(text).may_be("api.example.org"), "{text}");
        }
        assert!(host("[::1]").is_plainly("[::1]:80") && host("[::1]").may_be("u@[::1]:80"));
    }

    /// Fault: actix-web reads the host as an address, so a user in front of the name avoided rules.
    #[test]
    fn a_host_that_only_some_services_can_read_matches_a_rule_and_no_exemption() {
        let api = host("api.example.org");
        for text in [
            "user@api.example.org",
            "a:b@api.example.org:80",
            "http://api.example.org/",
            "http://x@api.example.org:1?#",
            "api.example.org:http",
            "%61pi.example%2eorg",
            "api.example.org..",
            "api.example.org/path",
        ] {
            assert!(api.may_be(text) && !api.is_plainly(text), "{text}");
        }
        assert!(!api.may_be("api.example.org@other.org"));
        let below = host("*.example.org");
        for text in ["other.org/.example.org", "other.org@a.example.org", "other.org?a.example.org"]
        {
            assert!(!below.is_plainly(text), "{text}");
        }
    }
}
