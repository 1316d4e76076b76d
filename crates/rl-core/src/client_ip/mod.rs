//! Finds the client's address behind trusted proxies.
//!
//! Any client can send `X-Forwarded-For: 1.2.3.4`. Only the entries that *trusted* proxies appended
//! are reliable, and proxies append on the right. [`ClientIp`] therefore applies these rules:
//!
//! 1. If the peer of the connection is not one of the [`TrustedProxies`], the peer is the client,
//!    and headers are not read.
//! 2. Otherwise the hops are read from the right, over all lines of the header. The first hop that
//!    is not a trusted proxy is the client. The client may have invented the hops to the left of
//!    it, so they are ignored.
//! 3. No hop is skipped. If a hop cannot be read (`unknown`, `_hidden`, garbage), or if all hops
//!    are trusted, the result is the last proxy that was found. At most [`ClientIp::MAX_HOPS`] hops
//!    and [`ClientIp::MAX_LEN`] bytes are read, from the right, so a long header cannot hide the
//!    client.
//! 4. A client has one address in all notations. An IPv4-mapped address (`::ffff:192.0.2.1`) counts
//!    as the IPv4 address, also when it is compared with trusted proxies. So does an address
//!    [behind NAT64](ClientIp::nat64) (`64:ff9b::192.0.2.1`). Zones (`%eth0`) and ports are
//!    ignored.
//! 5. IPv4 addresses are counted individually. IPv6 addresses are counted per network of 64 bits,
//!    the usual size for a home connection, or per [another prefix](ClientIp::ipv6_prefix).
//!
//! # Requirements for proxies
//!
//! A proxy must *append* the address of its peer (`X-Forwarded-For`, `Forwarded`) or *overwrite*
//! the header with it (`X-Real-IP`, `CF-Connecting-IP`). Clients must not be able to bypass the
//! proxies.
//!
//! A client can ask a proxy to drop headers by naming them in `Connection:`. A proxy that does so
//! after it has added its own hop forwards a request without the header (CVE-2024-45410). The
//! request is then counted under the proxy. The service cannot detect this; the proxy has to be
//! fixed.
//!
//! # Example
//!
//! ```
//! use rl_core::client_ip::{ClientIp, IpSource};
//!
//! let rule = ClientIp::with_proxies("10.0.0.0/8, 2001:db8:ffff::/48".parse()?);
//! let proxy = "10.0.0.1".parse().ok();
//!
//! // The client claims to be 6.6.6.6; each of two proxies appended the address of its peer.
//! let client = rule.resolve(proxy, &[b"6.6.6.6, 198.51.100.7, 10.0.0.2"]).unwrap();
//! assert_eq!(client.to_string(), "198.51.100.7");
//! assert_eq!(client.source(), IpSource::Header);
//!
//! // Headers of other peers are not trusted.
//! let client = rule.resolve("203.0.113.9".parse().ok(), &[b"6.6.6.6"]).unwrap();
//! assert_eq!(client.to_string(), "203.0.113.9");
//!
//! let client = rule.resolve(proxy, &[b"[2001:db8::1]:443"]).unwrap();
//! assert_eq!(client.to_string(), "2001:db8::/64");
//! # Ok::<(), rl_core::client_ip::InvalidProxies>(())
//! ```

mod address;
mod header;
mod hops;
mod proxies;
mod rule;
#[cfg(test)]
mod tests;
mod translated;

pub use header::InvalidHeaderName;
pub(crate) use header::{header_name, is_token_byte};
pub use proxies::{InvalidProxies, TrustedProxies};
pub use rule::{ClientIp, InvalidPrefix, IpSource, ResolvedIp};
pub use translated::InvalidNat64Prefix;
