//! The client's address, behind the proxies that are ours.
//!
//! Any client can send `X-Forwarded-For: 1.2.3.4`. Only what *our* proxies added to it is true, and
//! they add on the right. Hence the rules of [`ClientIp`]:
//!
//! 1. The client is the peer of the connection, and headers are not even read, unless the peer is
//!    one of the [`TrustedProxies`].
//! 2. Then the hops are read from the right, over all lines of the header; the first that is not a
//!    trusted proxy is the client. What stands to the left of it may be invented and is ignored.
//! 3. Nothing is skipped: at a hop that cannot be read (`unknown`, `_hidden`, garbage), the nearest
//!    proxy that was found is the answer. The same holds if all hops that are read are trusted. The
//!    rule reads at most [`ClientIp::MAX_HOPS`] hops and [`ClientIp::MAX_LEN`] bytes, from the right, so a
//!    client cannot make itself the proxy by what it writes.
//! 4. One client is one address, however written: an IPv4-mapped address (`::ffff:192.0.2.1`) is
//!    the IPv4 address, before trust is tested, and so is one [behind NAT64](ClientIp::nat64)
//!    (`64:ff9b::192.0.2.1`); a zone (`%eth0`) is dropped; ports do not count.
//! 5. IPv4 addresses count one by one, IPv6 addresses per network of 64 bits (what one line at home
//!    has to itself), unless [set otherwise](ClientIp::ipv6_prefix).
//!
//! # What proxies have to do
//!
//! *Append* the address of their peer (`X-Forwarded-For`, `Forwarded`) or *overwrite* the header
//! with it (`X-Real-IP`, `CF-Connecting-IP`). The service must not be reachable past them.
//!
//! A client can ask a proxy to drop headers, by naming them in `Connection:`. A proxy that obeys
//! after it has added its own hop forwards a request without the header (CVE-2024-45410). It then
//! counts as coming from the proxy itself; nothing here can tell, and the proxy has to be mended.
//!
//! # Example
//!
//! ```
//! use rl_core::client_ip::{ClientIp, IpSource};
//!
//! let rule = ClientIp::behind("10.0.0.0/8, 2001:db8:ffff::/48".parse()?);
//! let proxy = "10.0.0.1".parse().ok();
//!
//! // The client pretends to be 6.6.6.6; two proxies have added what they saw.
//! let client = rule.resolve(proxy, &[b"6.6.6.6, 198.51.100.7, 10.0.0.2"]).unwrap();
//! assert_eq!(client.to_string(), "198.51.100.7");
//! assert_eq!(client.source(), IpSource::Header);
//!
//! // Nobody but a trusted proxy is believed.
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
