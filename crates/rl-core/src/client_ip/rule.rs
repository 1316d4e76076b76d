use std::fmt;
use std::net::IpAddr;

use super::header::ProxyHeader;
use super::hops::{self, Entries, forwarded_for};
use super::translated::{InvalidNat64Prefix, Nat64, canonical};
use super::{InvalidHeaderName, TrustedProxies, address, header_name};

/// Finds the client's address, by the rules of the [module](super).
///
/// Defaults to [`ClientIp::peer`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ClientIp {
    trust: Trust,
    header: ProxyHeader,
    trusts_local: bool,
    ipv6_prefix: u8,
    nat64: Vec<Nat64>,
}

/// The proxies that are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    /// The proxies in a list.
    Proxies(TrustedProxies),
    /// A number of proxies, whatever their addresses.
    Hops(u8),
}

impl ClientIp {
    /// The maximum number of hops that are read, from the right. Hops to the left of them are
    /// ignored.
    pub const MAX_HOPS: usize = 64;

    /// The maximum number of bytes of a header that are read, from the right of its last line.
    pub const MAX_LEN: usize = hops::MAX_LEN;

    /// Creates a rule for services without a proxy: the peer of the connection is the client.
    pub fn peer() -> Self {
        Self::with_proxies(TrustedProxies::default())
    }

    /// Creates a rule for services behind these proxies.
    pub fn with_proxies(proxies: TrustedProxies) -> Self {
        Self::with_trust(Trust::Proxies(proxies))
    }

    /// Creates a rule for services behind exactly `count` proxies whose addresses are not known in
    /// advance.
    ///
    /// The client is hop number `count` from the right. Every peer is trusted, so clients must not
    /// be able to bypass the proxies. With a count of 0, the peer is the client.
    pub fn with_hops(count: u8) -> Self {
        Self::with_trust(Trust::Hops(count))
    }

    const fn with_trust(trust: Trust) -> Self {
        Self {
            trust,
            header: ProxyHeader::XForwardedFor,
            trusts_local: false,
            ipv6_prefix: 64,
            nat64: Vec::new(),
        }
    }

    /// Reads the header `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    pub fn forwarded(mut self) -> Self {
        self.header = ProxyHeader::Forwarded;
        self
    }

    /// Reads a header with one address, such as `X-Real-IP` or `CF-Connecting-IP`, instead of
    /// `X-Forwarded-For`.
    ///
    /// If a request has two such headers, neither is trusted.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a valid header name.
    pub fn single_header(mut self, name: &str) -> Result<Self, InvalidHeaderName> {
        self.header = ProxyHeader::Single(header_name(name)?);
        Ok(self)
    }

    /// Trusts connections without a peer address, such as those of a Unix socket that only a proxy
    /// can open.
    ///
    /// By default the client of such a connection is unknown.
    pub fn trust_local(mut self) -> Self {
        self.trusts_local = true;
        self
    }

    /// Sets the number of leading bits of an IPv6 address that identify a client. Defaults to 64.
    ///
    /// A client can use every address of its network. Providers assign 56 or 64 bits to a home, and
    /// 64 or 48 bits to a hosted machine.
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

    /// Counts IPv6 addresses with this prefix as the IPv4 addresses embedded in them (RFC 6052).
    ///
    /// A site translates addresses with such a prefix, for example `2001:db8:64::/96`. Each call
    /// adds a prefix.
    ///
    /// IPv4-mapped addresses, those of stateless translators (`::ffff:0:192.0.2.1`) and those with
    /// the well-known prefixes of NAT64 (`64:ff9b::/96`, `64:ff9b:1::/48`) are counted as IPv4
    /// addresses even without this setting. Otherwise all IPv4 clients behind a translator would be
    /// counted as one IPv6 network, and share its limits.
    ///
    /// # Errors
    ///
    /// Returns an error unless the prefix has 32, 40, 48, 56, 64 or 96 bits.
    pub fn nat64(mut self, prefix: &str) -> Result<Self, InvalidNat64Prefix> {
        self.nat64.push(Nat64::parse(prefix)?);
        Ok(self)
    }

    /// Returns the name of the header to read, in lower case, if `peer` is trusted.
    #[must_use]
    pub fn header_from(&self, peer: Option<IpAddr>) -> Option<&str> {
        let trusted = match (&self.trust, peer) {
            (Trust::Hops(0), _) => false,
            (_, None) => self.trusts_local,
            (Trust::Proxies(proxies), Some(peer)) => proxies.contains(self.canonical(peer)),
            (Trust::Hops(_), Some(_)) => true,
        };
        trusted.then(|| self.header.name())
    }

    /// Returns the client's address, from the peer of the connection and all lines of the header,
    /// in order.
    ///
    /// The lines are read only if [`header_from`](Self::header_from) names a header for this peer.
    /// Returns `None` if there is no peer and the header names no client.
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, lines: &[&[u8]]) -> Option<ResolvedIp> {
        if self.header_from(peer).is_none() {
            return self.peer_alone(peer);
        }
        let (address, source) = match self.read_header(peer.map(|peer| self.canonical(peer)), lines)
        {
            Walk::Client(address) => (Some(address), IpSource::Header),
            Walk::StoppedAt(proxy) => (proxy, IpSource::Proxy),
        };
        address.map(|address| ResolvedIp { address, source, ipv6_prefix: self.ipv6_prefix })
    }

    /// Returns the client's address when no header is trusted.
    pub(crate) fn peer_alone(&self, peer: Option<IpAddr>) -> Option<ResolvedIp> {
        peer.map(|peer| ResolvedIp {
            address: self.canonical(peer),
            source: IpSource::Peer,
            ipv6_prefix: self.ipv6_prefix,
        })
    }

    /// Returns the canonical form of an address. For a translated address it is the IPv4 address.
    pub(crate) fn canonical(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => {
                let of_site = self.nat64.iter().find_map(|prefix| prefix.translate(v6));
                of_site.map_or_else(|| canonical(address), IpAddr::V4)
            }
        }
    }

    /// Finds the client in a header that is trusted.
    fn read_header(&self, peer: Option<IpAddr>, lines: &[&[u8]]) -> Walk {
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

    /// Follows the hops from the peer to the client.
    fn walk(&self, peer: Option<IpAddr>, mut hops: impl Iterator<Item = Option<IpAddr>>) -> Walk {
        match &self.trust {
            Trust::Hops(count) => {
                let hop = hops.nth(usize::from(*count).saturating_sub(1)).flatten();
                self.walk_to(hop).unwrap_or(Walk::StoppedAt(peer))
            }
            Trust::Proxies(proxies) => {
                let mut nearest = peer;
                // A hop that cannot be read ends the search: the client may have written all hops
                // to the left of it.
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

/// The result of following the hops from the peer towards the client.
enum Walk {
    Client(IpAddr),
    /// No client was found. The address is that of the last proxy, or `None` if even the peer has
    /// no address.
    StoppedAt(Option<IpAddr>),
}

impl Default for ClientIp {
    fn default() -> Self {
        Self::peer()
    }
}

/// The source of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IpSource {
    /// The peer of the connection, which is not a trusted proxy.
    Peer,
    /// The header. The client is the first hop from the right that is not a trusted proxy, or the
    /// hop whose number [`with_hops`](ClientIp::with_hops) sets.
    Header,
    /// A trusted proxy, because the header is missing, cannot be read, names only proxies, or has
    /// too few hops. If this is frequent, a proxy is misconfigured.
    Proxy,
}

impl IpSource {
    /// Returns a short fixed word that can be a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Header => "header",
            Self::Proxy => "proxy",
        }
    }
}

/// The client's address, and the network that is counted.
///
/// `Display` writes the text under which the client is counted: an IPv4 address (`203.0.113.9`), or
/// the network of an IPv6 address (`2001:db8::/64`). `Debug` does not show the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResolvedIp {
    address: IpAddr,
    source: IpSource,
    ipv6_prefix: u8,
}

impl ResolvedIp {
    /// Returns the address. A translated address is returned as IPv4.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the source of the address.
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

/// The error for an IPv6 prefix length outside of 32 to 128.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidPrefix {
    bits: u8,
}

debug_as_display!(InvalidPrefix);

impl fmt::Display for InvalidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv6 prefix has {} bits: expected 32 to 128", self.bits)
    }
}

impl std::error::Error for InvalidPrefix {}
