//! The addresses to which webhooks may be sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether a webhook may be sent to `address`.
pub(super) fn is_allowed(address: IpAddr, is_tls: bool) -> bool {
    let is_local = match address.to_canonical() {
        IpAddr::V4(address) if is_special_v4(address) => return false,
        IpAddr::V6(address) if is_special_v6(address) => return false,
        IpAddr::V4(address) => address.is_loopback() || address.is_private(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    };
    is_tls || is_local
}

const fn is_special_v4(address: Ipv4Addr) -> bool {
    // The whole network 0.0.0.0/8 means "this host" on some systems.
    address.is_link_local()
        || address.octets()[0] == 0
        || address.is_multicast()
        || address.is_broadcast()
}

fn is_special_v6(address: Ipv6Addr) -> bool {
    // Cloud hosts serve metadata at this unique local address, too.
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    address.is_unicast_link_local()
        || address.is_unspecified()
        || address.is_multicast()
        || address == METADATA
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_own_networks_and_metadata_hosts_are_refused() {
        #[rustfmt::skip]
        let table = [
            ("203.0.113.7", true, false), ("2001:db8::7", true, false),
            ("127.0.0.1", true, true), ("::1", true, true), ("::ffff:10.0.0.1", true, true),
            ("10.1.2.3", true, true), ("172.16.0.1", true, true), ("192.168.1.1", true, true),
            ("fd12::1", true, true), ("172.32.0.1", true, false),
            ("169.254.169.254", false, false), ("::ffff:169.254.169.254", false, false),
            ("fe80::1", false, false), ("fd00:ec2::254", false, false),
            ("0.0.0.0", false, false), ("0.1.2.3", false, false), ("::", false, false),
            ("224.0.0.1", false, false), ("ff02::1", false, false), ("255.255.255.255", false, false),
        ];
        for (text, https, http) in table {
            let address = text.parse().unwrap();
            assert_eq!(
                (is_allowed(address, true), is_allowed(address, false)),
                (https, http),
                "{text}"
            );
        }
    }
}
