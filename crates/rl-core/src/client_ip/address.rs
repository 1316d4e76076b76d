//! Parses addresses in headers: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:443`,
//! with or without quotes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::translated::canonical;

/// Returns the canonical form of the address in `text`, or `None` if `text` is not an address.
pub(super) fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let text = text.strip_prefix('"').map_or(Some(text), |text| text.strip_suffix('"'))?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
            return None;
        }
        IpAddr::V6(parse_v6(address)?)
    } else if let Some(address) = parse_v6(text) {
        IpAddr::V6(address)
    } else {
        let (address, port) = text.split_once(':').unwrap_or((text, "0"));
        if !is_port(port) {
            return None;
        }
        IpAddr::V4(address.parse::<Ipv4Addr>().ok()?)
    };
    Some(canonical(address))
}

/// Parses an IPv6 address, and ignores its zone, which has a meaning only on the machine that wrote
/// it.
fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    if zone.is_empty() {
        return None;
    }
    address.parse().ok()
}

/// Returns whether `port` is a number, or an obfuscated port of the `Forwarded` header such as
/// `_p1`.
fn is_port(port: &str) -> bool {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match port.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty() && hidden.bytes().all(is_token),
        None => port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok(),
    }
}

/// Returns the first address of the network that contains `address` and has a prefix of `prefix`
/// bits.
pub(super) const fn network(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let host_bits = 128_u32.saturating_sub(prefix as u32);
    let mask = match u128::MAX.checked_shl(host_bits) {
        Some(mask) => mask,
        None => 0,
    };
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn forms_of_an_address() {
        let cases = [
            ("192.0.2.1",                 Some("192.0.2.1")),
            ("  192.0.2.1\t",             Some("192.0.2.1")),
            ("\"192.0.2.1\"",             Some("192.0.2.1")),
            ("192.0.2.1:80",              Some("192.0.2.1")),
            ("192.0.2.1:_hidden",         Some("192.0.2.1")),
            ("2001:db8::1",               Some("2001:db8::1")),
            ("2001:0DB8:0:0::1",          Some("2001:db8::1")),
            ("[2001:db8::1]",             Some("2001:db8::1")),
            ("\"[2001:db8::1]:443\"",     Some("2001:db8::1")),
            ("fe80::1%eth0",              Some("fe80::1")),
            ("[fe80::1%25eth0]:1",        Some("fe80::1")),
            ("::ffff:192.0.2.1",          Some("192.0.2.1")),
            ("[::ffff:c000:201]:1",       Some("192.0.2.1")),
            ("[64:ff9b::192.0.2.1]:1",    Some("192.0.2.1")),
            ("",                          None),
            ("\"",                        None),
            ("\"\"",                      None),
            ("\"192.0.2.1",               None),
            ("192.0.2.1\"",               None),
            ("unknown",                   None),
            ("_hidden",                   None),
            ("192.0.2",                   None),
            ("192.0.2.01",                None),
            ("192.0.2.256",               None),
            ("192.0.2.1:",                None),
            ("192.0.2.1:65536",           None),
            ("192.0.2.1:+1",              None),
            ("192.0.2.1:_",               None),
            ("192.0.2.1%eth0",            None),
            ("[192.0.2.1]:80",            None),
            ("[2001:db8::1",              None),
            ("[2001:db8::1]443",          None),
            ("[2001:db8::1]:",            None),
            ("2001:db8::1%",              None),
            ("192.0.2.1 192.0.2.2",       None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn networks() {
        let address: Ipv6Addr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        for (prefix, expected) in [
            (128, "2001:db8:1:2:3:4:5:6"),
            (64, "2001:db8:1:2::"),
            (56, "2001:db8:1::"),
            (48, "2001:db8:1::"),
            (32, "2001:db8::"),
            (0, "::"),
        ] {
            assert_eq!(network(address, prefix).to_string(), expected, "/{prefix}");
        }
    }
}
