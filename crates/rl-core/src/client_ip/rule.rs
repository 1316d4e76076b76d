use std::fmt;
use std::net::IpAddr;

use super::header::ProxyHeader;
use super::hops::{Entries, forwarded_for};
use super::translated::{InvalidNat64Prefix, Nat64, canonical};
use super::{InvalidHeaderName, TrustedProxies, address, header_name};

/// How the client's address is found; the [module](super) has the rules.
///
/// Defaults to [`ClientIp::peer`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ClientIp {
    trust: Trust,
    header: ProxyHeader,
    trust_local: bool,
    ipv6_prefix: u8,
    nat64: Vec<Nat64>,
}

/// Whose word is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    /// The proxies in a list.
    Proxies(TrustedProxies),
    /// So many proxies, whoever they are.
    Hops(u8),
}

impl ClientIp {
    /// The most hops that are read, from the right. What stands to the left of them changes nothing.
    pub const MAX_HOPS: usize = 64;

    /// The most bytes of a header that are read, from the right of its last line.
    pub const MAX_LEN: usize = 8 * 1_024;

    /// The peer is the client: for services that no proxy stands in front of.
    pub fn peer() -> Self {
        Self::behind(TrustedProxies::default())
    }

    /// The service is behind these proxies.
    pub fn behind(proxies: TrustedProxies) -> Self {
        Self::trusting(Trust::Proxies(proxies))
    }

    /// The service is behind exactly `count` proxies, whose addresses are not known beforehand: the
    /// client is the hop of that number, counted from the right.
    ///
    /// Every peer is believed, so nobody may reach the service past the proxies. With 0 the peer is
    /// the client.
    pub fn hops(count: u8) -> Self {
        Self::trusting(Trust::Hops(count))
    }

    const fn trusting(trust: Trust) -> Self {
        Self {
            trust,
            header: ProxyHeader::XForwardedFor,
            trust_local: false,
            ipv6_prefix: 64,
            nat64: Vec::new(),
        }
    }

    /// Reads the header `Forwarded` (RFC 7239).
    ///
    /// Defaults to `X-Forwarded-For`.
    pub fn forwarded(mut self) -> Self {
        self.header = ProxyHeader::Forwarded;
        self
    }

    /// Reads a header that holds one address, such as `X-Real-IP` or `CF-Connecting-IP`. If there
    /// are two, neither is believed.
    ///
    /// Defaults to `X-Forwarded-For`.
    ///
    /// # Errors
    ///
    /// Returns an error if no header can have that name.
    pub fn single_header(mut self, name: &str) -> Result<Self, InvalidHeaderName> {
        self.header = ProxyHeader::Single(header_name(name)?);
        Ok(self)
    }

    /// Whether a connection without a peer address is from a trusted proxy: true of a Unix socket
    /// that only a proxy can open.
    ///
    /// Defaults to `false`: nobody knows the client of such a connection.
    pub fn trust_local(mut self, trust_local: bool) -> Self {
        self.trust_local = trust_local;
        self
    }

    /// How many leading bits of an IPv6 address tell clients apart. Providers give a home 56 or 64
    /// bits and a hosted machine 64 or 48, and who has a network can use every address in it.
    ///
    /// Defaults to 64.
    ///
    /// # Errors
    ///
    /// Returns an error unless `bits` is 32 to 128.
    pub fn ipv6_prefix(mut self, bits: u8) -> Result<Self, InvalidPrefix> {
        if !(32..=128).contains(&bits) {
            return Err(InvalidPrefix { bits });
        }
        self.ipv6_prefix = bits;
        Ok(self)
    }

    /// Counts IPv6 addresses with this prefix as the IPv4 addresses embedded in them (RFC 6052). It is the
    /// prefix with which a site translates, such as `2001:db8:64::/96`. May be called several times.
    ///
    /// IPv4-mapped addresses, those of stateless translators (`::ffff:0:192.0.2.1`) and the well-known
    /// prefixes of NAT64 (`64:ff9b::/96`, `64:ff9b:1::/48`) are IPv4 addresses without this setting.
    /// Otherwise all IPv4 clients behind a translator would share the bucket of one IPv6 network.
    ///
    /// # Errors
    ///
    /// Returns an error unless the prefix is of 32, 40, 48, 56, 64 or 96 bits.
    pub fn nat64(mut self, prefix: &str) -> Result<Self, InvalidNat64Prefix> {
        self.nat64.push(Nat64::parse(prefix)?);
        Ok(self)
    }

    /// Returns the header to read, in lower case, if `peer` is to be believed.
    #[must_use]
    pub fn header_from(&self, peer: Option<IpAddr>) -> Option<&str> {
        let trusted = match (&self.trust, peer) {
            (Trust::Hops(0), _) => false,
            (_, None) => self.trust_local,
            (Trust::Proxies(proxies), Some(peer)) => proxies.contains(self.canonical(peer)),
            (Trust::Hops(_), Some(_)) => true,
        };
        trusted.then(|| self.header.name())
    }

    /// Returns the client's address, from the peer of the connection and all lines of the header, in
    /// order; `None` if there is no peer and the header names no client.
    ///
    /// The lines are looked at only if [`header_from`](Self::header_from) names a header for this
    /// peer.
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, lines: &[&[u8]]) -> Option<ResolvedIp> {
        if self.header_from(peer).is_none() {
            return self.peer_alone(peer);
        }
        let (address, source) = match self.follow(peer.map(|peer| self.canonical(peer)), lines) {
            Walk::Client(address) => (Some(address), IpSource::Header),
            Walk::StoppedAt(proxy) => (proxy, IpSource::Proxy),
        };
        address.map(|address| ResolvedIp { address, source, ipv6_prefix: self.ipv6_prefix })
    }

    /// Returns the client's address, if no header is to be believed.
    #[inline]
    pub(crate) fn peer_alone(&self, peer: Option<IpAddr>) -> Option<ResolvedIp> {
        let (ipv6_prefix, source) = (self.ipv6_prefix, IpSource::Peer);
        peer.map(|peer| ResolvedIp { address: self.canonical(peer), source, ipv6_prefix })
    }

    /// Returns the one address of a client, however it is written.
    #[inline]
    fn canonical(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => {
                let of_site = self.nat64.iter().find_map(|prefix| prefix.translate(v6));
                of_site.map_or_else(|| canonical(address), IpAddr::V4)
            }
        }
    }

    /// Reads a header that is to be believed.
    fn follow(&self, peer: Option<IpAddr>, lines: &[&[u8]]) -> Walk {
        match &self.header {
            ProxyHeader::XForwardedFor => {
                self.walk(peer, Entries::new(lines, false).map(address::parse))
            }
            ProxyHeader::Forwarded => self.walk(peer, Entries::new(lines, true).map(forwarded_for)),
            ProxyHeader::Single(_) => match lines {
                [line] => self.walk_to(address::parse(line)).unwrap_or(Walk::StoppedAt(peer)),
                _ => Walk::StoppedAt(peer),
            },
        }
    }

    /// Goes from the peer towards the client.
    fn walk(&self, peer: Option<IpAddr>, mut hops: impl Iterator<Item = Option<IpAddr>>) -> Walk {
        match &self.trust {
            Trust::Hops(count) => {
                let hop = hops.nth(usize::from(*count).saturating_sub(1)).flatten();
                self.walk_to(hop).unwrap_or(Walk::StoppedAt(peer))
            }
            Trust::Proxies(proxies) => {
                let mut nearest = peer;
                // Ends at a hop that cannot be read: what is left of it, anybody can have written.
                for hop in hops.map_while(|hop| hop).take(Self::MAX_HOPS) {
                    let hop = self.canonical(hop);
                    if !proxies.contains(hop) {
                        return Walk::Client(hop);
                    }
                    nearest = Some(hop);
                }
                Walk::StoppedAt(nearest)
            }
        }
    }

    fn walk_to(&self, hop: Option<IpAddr>) -> Option<Walk> {
        hop.map(|hop| Walk::Client(self.canonical(hop)))
    }
}

/// Where the way from the peer to the client ends.
enum Walk {
    Client(IpAddr),
    StoppedAt(Option<IpAddr>),
}

impl Default for ClientIp {
    fn default() -> Self {
        Self::peer()
    }
}

/// Where the client's address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IpSource {
    /// From the connection: its peer is no trusted proxy.
    Peer,
    /// From the header: the nearest hop that is no trusted proxy.
    Header,
    /// A trusted proxy itself: the header is missing, cannot be read, or names only proxies. Where
    /// this is frequent, a proxy does not do its work.
    Proxy,
}

impl IpSource {
    /// A short fixed word, fit for a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Header => "header",
            Self::Proxy => "proxy",
        }
    }
}

/// The client's address, and as whom it counts.
///
/// `Display` gives the text under which the client is counted: an IPv4 address (`203.0.113.9`), or
/// the network of an IPv6 address (`2001:db8::/64`). `Debug` does not show the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResolvedIp {
    address: IpAddr,
    source: IpSource,
    ipv6_prefix: u8,
}

impl ResolvedIp {
    /// Returns the address itself; a translated one as IPv4.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Where it comes from.
    #[must_use]
    pub const fn source(&self) -> IpSource {
        self.source
    }
}

impl fmt::Display for ResolvedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => {
                write!(f, "{}/{}", address::network(address, self.ipv6_prefix), self.ipv6_prefix)
            }
        }
    }
}

impl fmt::Debug for ResolvedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResolvedIp(from {})", self.source.as_str())
    }
}

/// A length that IPv6 networks of clients cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPrefix {
    bits: u8,
}

impl fmt::Display for InvalidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv6 prefix of {} bits: expected 32 to 128", self.bits)
    }
}

impl std::error::Error for InvalidPrefix {}
