use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayString;
use smallvec::SmallVec;

use super::{KeyExtractor, RequestInfo};
use crate::Subject;
use crate::client_ip::{ClientIp, ResolvedIp};

/// Counts by the client's address: IPv4 addresses one by one, IPv6 per network.
///
/// Defaults to the peer of the connection. Behind proxies, say which: see [`ClientIp`].
///
/// A request says nothing if the framework does not know the peer: axum knows it only with
/// `into_make_service_with_connect_info`, and a Unix socket has none.
///
/// # Examples
///
/// ```
/// use rl_core::client_ip::ClientIp;
/// use rl_core::key::ClientAddress;
///
/// let who = ClientAddress::new(ClientIp::behind("10.0.0.0/8".parse()?).ipv6_prefix(56)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddress {
    rule: ClientIp,
}

impl ClientAddress {
    /// The address that `rule` finds.
    #[must_use]
    pub const fn new(rule: ClientIp) -> Self {
        Self { rule }
    }

    /// The address of a request and where it comes from, for logs and metrics.
    pub fn resolve<R: RequestInfo>(&self, request: &R) -> Option<ResolvedIp> {
        let peer = request.peer();
        let mut lines = SmallVec::<[&[u8]; 4]>::new();
        if let Some(name) = self.rule.header_from(peer) {
            request.header_lines(name, &mut |line| lines.push(line));
        }
        self.rule.resolve(peer, &lines)
    }
}

impl KeyExtractor for ClientAddress {
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        // The longest text: eight groups of four digits, and a prefix of three.
        let mut id = ArrayString::<43>::new();
        let resolved = self.resolve(request)?;
        match resolved.address() {
            IpAddr::V4(address) => push_v4(&mut id, address),
            IpAddr::V6(_) => write!(id, "{resolved}").expect("43 bytes hold any address"),
        }
        Some(Subject::ip(&id))
    }
}

/// What `Display` writes, in a tenth of its instructions: it is written for nearly every request.
fn push_v4(text: &mut ArrayString<43>, address: Ipv4Addr) {
    for (i, octet) in address.octets().into_iter().enumerate() {
        if i != 0 {
            text.push('.');
        }
        text.push_str(itoa::Buffer::new().format(octet));
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    fn counted(who: &ClientAddress, request: &FakeRequest) -> Option<Subject> {
        who.subject(request)
    }

    #[test]
    fn peer_counts_unless_it_is_a_trusted_proxy() {
        let request = FakeRequest::get("/")
            .header("x-forwarded-for", b"6.6.6.6")
            .header("x-forwarded-for", b"198.51.100.7")
            .peer("10.0.0.1");
        let behind = ClientAddress::new(ClientIp::behind("10.0.0.0/8".parse().unwrap()));
        assert_eq!(counted(&behind, &request), Some(Subject::ip("198.51.100.7")));
        assert_eq!(counted(&ClientAddress::default(), &request), Some(Subject::ip("10.0.0.1")));
        let stranger = request.peer("203.0.113.9");
        assert_eq!(counted(&behind, &stranger), Some(Subject::ip("203.0.113.9")));
    }

    #[test]
    fn an_address_is_written_as_ever() {
        for address in ["0.0.0.0", "9.10.99.100", "255.255.255.255"] {
            let request = FakeRequest::get("/").peer(address);
            let expected = Some(Subject::ip(address));
            assert_eq!(counted(&ClientAddress::default(), &request), expected);
        }
    }

    #[test]
    fn networks_count_for_ipv6() {
        let request = FakeRequest::get("/").peer("2001:db8:1:2:3:4:5:6");
        let who = ClientAddress::default();
        assert_eq!(counted(&who, &request), Some(Subject::ip("2001:db8:1:2::/64")));
    }

    #[test]
    fn without_a_peer_nobody_counts() {
        assert_eq!(counted(&ClientAddress::default(), &FakeRequest::get("/")), None);
    }
}
