use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayString;
use smallvec::SmallVec;

use super::extractors::of_realm;
use super::{AmbiguousKey, CountedAs, KeyExtractor, RequestInfo};
use crate::client_ip::{ClientIp, ResolvedIp};
use crate::model::{Realm, Subject};

/// Counts by the client's address: IPv4 addresses individually, IPv6 addresses by network.
///
/// Defaults to the peer of the connection. A service behind proxies needs a [`ClientIp`].
///
/// A request has no key if the framework does not know the peer: axum knows it only with
/// `into_make_service_with_connect_info`, and a Unix socket has none. By default, such a request is
/// rejected with 500, because the server is at fault and not the client.
///
/// # Examples
///
/// ```
/// use rl_core::client_ip::ClientIp;
/// use rl_core::key::ClientAddress;
///
/// let extractor = ClientAddress::new(ClientIp::with_proxies("10.0.0.0/8".parse()?).ipv6_prefix(56)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddress {
    client_ip: ClientIp,
}

impl ClientAddress {
    /// Creates an extractor that counts by the address that `client_ip` finds.
    #[must_use]
    pub const fn new(client_ip: ClientIp) -> Self {
        Self { client_ip }
    }

    /// Returns the setting that finds the address.
    pub(crate) const fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }

    /// Returns the address of the client and its source, for logs and metrics.
    ///
    /// Returns `None` if the framework does not know the peer.
    pub fn resolve(&self, request: &dyn RequestInfo) -> Option<ResolvedIp> {
        let peer = request.peer();
        match self.client_ip.header_from(peer) {
            Some(name) => self.behind_proxy(peer, name, request),
            None => self.client_ip.peer_alone(peer),
        }
    }

    /// Returns whether the client is unknown because the server does not know the peer of the
    /// connection.
    pub(crate) fn lacks_peer(&self, request: &dyn RequestInfo) -> bool {
        self.needs_peer() && request.peer().is_none()
    }

    /// Returns the address of the client, as the proxies report it in the header `name`.
    fn behind_proxy(
        &self,
        peer: Option<IpAddr>,
        name: &str,
        request: &dyn RequestInfo,
    ) -> Option<ResolvedIp> {
        let mut lines = SmallVec::<[&[u8]; 4]>::new();
        request.header_lines(name, &mut |line| lines.push(line));
        self.client_ip.resolve(peer, &lines)
    }
}

impl KeyExtractor for ClientAddress {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        let Some(resolved) = self.resolve(request) else { return Ok(None) };
        Ok(Some(match resolved.address() {
            IpAddr::V4(address) => subject_of_v4(address),
            IpAddr::V6(_) => {
                // The longest text: eight groups of four digits, seven colons, and `/128`.
                let mut id = ArrayString::<43>::new();
                write!(id, "{resolved}").expect("43 bytes hold any address");
                Subject::new(Realm::Ip, &id)
            }
        }))
    }

    fn needs_peer(&self) -> bool {
        // A proxy on a Unix socket may be trusted, and has no address.
        self.client_ip.header_from(None).is_none()
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&Realm::Ip, subject)
    }
}

/// Returns the subject whose id is the text that `Display` writes, with hundreds of instructions
/// less than `Display`. Nearly every request needs this subject. A function of its own, because
/// otherwise the compiler copies the subject in small pieces.
#[inline(never)]
fn subject_of_v4(address: Ipv4Addr) -> Subject {
    let mut text = ArrayString::new();
    for (index, octet) in address.octets().into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        if octet >= 100 {
            text.push(char::from(b'0' + octet / 100));
        }
        if octet >= 10 {
            text.push(char::from(b'0' + octet / 10 % 10));
        }
        text.push(char::from(b'0' + octet % 10));
    }
    Subject::short(Realm::Ip, text)
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    fn counted(extractor: &ClientAddress, request: &FakeRequest) -> Option<Subject> {
        extractor.subject(request).unwrap()
    }

    #[test]
    fn peer_is_counted_unless_it_is_a_trusted_proxy() {
        let request = FakeRequest::get("/")
            .header("x-forwarded-for", b"6.6.6.6")
            .header("x-forwarded-for", b"198.51.100.7")
            .peer("10.0.0.1");
        let behind = ClientAddress::new(ClientIp::with_proxies("10.0.0.0/8".parse().unwrap()));
        assert_eq!(counted(&behind, &request), Some(Subject::ip([198, 51, 100, 7])));
        assert_eq!(counted(&ClientAddress::default(), &request), Some(Subject::ip([10, 0, 0, 1])));
        let stranger = request.peer("203.0.113.9");
        assert_eq!(counted(&behind, &stranger), Some(Subject::ip([203, 0, 113, 9])));
    }

    #[test]
    fn ipv4_addresses_are_written_as_by_display() {
        for octet in 0..=255 {
            let address = Ipv4Addr::new(octet, octet / 10, 9, octet);
            assert_eq!(subject_of_v4(address), Subject::ip(address));
        }
        for address in ["0.0.0.0", "9.10.99.100", "255.255.255.255"] {
            let request = FakeRequest::get("/").peer(address);
            let expected = Some(Subject::new(Realm::Ip, address));
            assert_eq!(counted(&ClientAddress::default(), &request), expected);
        }
    }

    #[test]
    fn ipv6_addresses_are_counted_by_network() {
        let request = FakeRequest::get("/").peer("2001:db8:1:2:3:4:5:6");
        let extractor = ClientAddress::default();
        let expected = Subject::new(Realm::Ip, "2001:db8:1:2::/64");
        assert_eq!(counted(&extractor, &request), Some(expected));
    }

    #[test]
    fn requests_without_a_peer_have_no_key() {
        assert_eq!(counted(&ClientAddress::default(), &FakeRequest::get("/")), None);
    }
}
