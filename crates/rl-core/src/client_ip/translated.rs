//! Translates IPv6 addresses that represent IPv4 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

/// Returns the IPv4 address that `address` represents, or `address` itself.
///
/// IPv4-mapped addresses (`::ffff:192.0.2.1`), those of stateless translators
/// (`::ffff:0:192.0.2.1`), and those behind NAT64 (`64:ff9b::192.0.2.1` and `64:ff9b:1::/48`)
/// represent IPv4 addresses. Without the translation, all IPv4 clients behind a translator would be
/// counted as one network.
pub(super) fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => well_known(v6).map_or(address, IpAddr::V4),
    }
}

fn well_known(address: Ipv6Addr) -> Option<Ipv4Addr> {
    const MAPPED: u128 = 0xffff;
    const TRANSLATED: u128 = 0xffff_0000;
    const NAT64: u128 = 0x0064_ff9b << 64;

    let bits = address.to_bits();
    match bits >> 32 {
        MAPPED | TRANSLATED | NAT64 => Some(Ipv4Addr::from_bits(bits as u32)),
        _ => LOCAL_NAT64.contains(bits).then(|| {
            // A site chooses a longer prefix within `LOCAL_NAT64` (RFC 8215), nearly always of 96
            // bits. If it uses `LOCAL_NAT64` itself, the last 40 bits of an address are zero.
            let is_whole = bits << 88 == 0;
            let prefix = if is_whole { LOCAL_NAT64 } else { Nat64 { bits: 96, ..LOCAL_NAT64 } };
            prefix.embedded(bits)
        }),
    }
}

/// The prefix for translators within a site.
const LOCAL_NAT64: Nat64 = Nat64 { network: 0x0064_ff9b_0001 << 80, bits: 48 };

/// A prefix with which IPv4 addresses are translated to IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nat64 {
    network: u128,
    bits: u8,
}

impl Nat64 {
    /// Parses a prefix.
    ///
    /// # Errors
    ///
    /// Returns an error unless the prefix has one of the lengths of RFC 6052.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidNat64Prefix> {
        let network = text.trim().parse::<Ipv6Net>().ok();
        let network = network.filter(|it| [32, 40, 48, 56, 64, 96].contains(&it.prefix_len()));
        let Some(network) = network else {
            return Err(InvalidNat64Prefix { text: text.chars().take(64).collect() });
        };
        Ok(Self { network: network.network().to_bits(), bits: network.prefix_len() })
    }

    const fn contains(self, address: u128) -> bool {
        (address ^ self.network) >> (128 - self.bits as u32) == 0
    }

    /// Returns the IPv4 address in `address`: 32 bits after the prefix, skipping bits 64 to 71.
    const fn embedded(self, address: u128) -> Ipv4Addr {
        if self.bits == 96 {
            return Ipv4Addr::from_bits(address as u32);
        }
        let without_octet = (address >> 64) << 56 | address & ((1 << 56) - 1);
        Ipv4Addr::from_bits((without_octet >> (120 - 32 - self.bits as u32)) as u32)
    }

    /// Returns the IPv4 address that `address` represents, if `address` has this prefix.
    pub(super) fn translate(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let bits = address.to_bits();
        self.contains(bits).then(|| self.embedded(bits))
    }
}

/// The error for an invalid NAT64 prefix.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidNat64Prefix {
    text: String,
}

debug_as_display!(InvalidNat64Prefix);

impl fmt::Display for InvalidNat64Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NAT64 prefix {:?}: expected an IPv6 network of 32, 40, 48, 56, 64 or 96 bits, such as \
             2001:db8:64::/96",
            self.text
        )
    }
}

impl std::error::Error for InvalidNat64Prefix {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn translated_addresses_are_ipv4() {
        for (text, expected) in [
            ("192.0.2.1",                   "192.0.2.1"),
            ("::ffff:192.0.2.1",            "192.0.2.1"),
            ("::ffff:0:192.0.2.1",          "192.0.2.1"),
            ("64:ff9b::192.0.2.1",          "192.0.2.1"),
            ("64:ff9b::c000:201",           "192.0.2.1"),
            ("64:ff9b:1::192.0.2.1",        "192.0.2.1"),
            ("64:ff9b:1:abcd::192.0.2.1",   "192.0.2.1"),
            ("64:ff9b:1:c000:2:100::",      "192.0.2.1"),
            ("::192.0.2.1",                 "::192.0.2.1"),
            ("::1",                         "::1"),
            ("::fffe:192.0.2.1",            "::fffe:192.0.2.1"),
            ("64:ff9b:0:0:0:1:c000:201",    "64:ff9b:0:0:0:1:c000:201"),
            ("64:ff9b:2::192.0.2.1",        "64:ff9b:2::192.0.2.1"),
            ("2001:db8::192.0.2.1",         "2001:db8::192.0.2.1"),
        ] {
            let (address, expected): (IpAddr, IpAddr) = (text.parse().unwrap(), expected.parse().unwrap());
            assert_eq!(canonical(address), expected, "{text}");
        }
    }

    /// The table of RFC 6052, section 2.4.
    #[test]
    fn prefixes_of_a_site_have_the_lengths_of_rfc_6052() {
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let prefix = Nat64::parse(prefix).unwrap();
            let expected = Some(Ipv4Addr::new(192, 0, 2, 33));
            assert_eq!(prefix.translate(address.parse().unwrap()), expected, "{address}");
            assert_eq!(prefix.translate("2002:db8::1".parse().unwrap()), None);
        }
        for text in ["", "2001:db8::", "2001:db8::/80", "2001:db8::/0", "10.0.0.0/32", "x"] {
            let error = Nat64::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("NAT64 prefix {text:?}: expected")), "{error}");
        }
    }
}
