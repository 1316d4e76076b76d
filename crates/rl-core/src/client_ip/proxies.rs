use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::translated::canonical;

/// The addresses and networks of the proxies whose headers are trusted.
///
/// The text form is a list separated by commas. A single address is a network of one, and an empty
/// list trusts no proxy. An IPv4-mapped network is the same as the IPv4 network. Write other
/// translated addresses, such as those behind NAT64, as IPv4 addresses, because they are compared
/// in that form.
///
/// A network of all addresses (`0.0.0.0/0`, `::/0`) is an error, because every client could choose
/// its own address. [`TrustedProxies::all`] is the explicit form. A network with host bits, such as
/// `10.0.0.1/8`, is an error too, because it could mean `10.0.0.0/8` or the single address.
///
/// # Examples
///
/// ```
/// use rl_core::client_ip::TrustedProxies;
///
/// let proxies: TrustedProxies = "10.0.0.0/8, 192.0.2.1, 2001:db8:ffff::/48".parse()?;
/// assert!(proxies.contains("10.1.2.3".parse().unwrap()));
/// assert!(!proxies.contains("192.0.2.2".parse().unwrap()));
///
/// let error = "10.0.0.0/33".parse::<TrustedProxies>().unwrap_err();
/// assert!(error.to_string().starts_with(r#"trusted proxy "10.0.0.0/33": expected "#));
/// # Ok::<(), rl_core::client_ip::InvalidProxies>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Creates a set of proxies from `entries`, each an address or a network.
    ///
    /// # Errors
    ///
    /// Returns an error for the first entry that is not an address or network, has host bits, or is
    /// the network of all addresses.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidProxies> {
        let networks = entries.into_iter().map(|entry| {
            let entry = entry.trim();
            let wrong = |why| InvalidProxies { entry: entry.chars().take(64).collect(), why };
            parse(entry).map_err(wrong)
        });
        networks.collect::<Result<_, _>>().map(Self)
    }

    /// Creates a set that contains every address.
    ///
    /// It suits services that only their proxies can reach. A client that connects directly could
    /// choose the address that it is counted under.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())])
    }

    /// Returns whether `address` is a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = canonical(address);
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl FromStr for TrustedProxies {
    type Err = InvalidProxies;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        Self::new(text.split(','))
    }
}

fn parse(entry: &str) -> Result<IpNet, Why> {
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Ok(IpNet::from(canonical(address)));
    }
    let network: IpNet = entry.parse().map_err(|_| Why::NoNetwork)?;
    // Peers and hops are compared in their canonical form, so networks need that form too.
    let mapped_prefix = network.prefix_len().checked_sub(96);
    let compared = match (network.addr().to_canonical(), mapped_prefix) {
        (IpAddr::V4(address), Some(prefix)) if network.addr().is_ipv6() => {
            IpNet::new(IpAddr::V4(address), prefix).map_err(|_| Why::NoNetwork)?
        }
        // An IPv6 network of translated addresses (NAT64, or IPv4-mapped) would never match:
        // `canonical` turns such addresses into IPv4.
        _ if canonical(network.network()).is_ipv4() && network.addr().is_ipv6() => {
            return Err(Why::NoNetwork);
        }
        _ => network,
    };
    if compared.prefix_len() == 0 {
        return Err(Why::Everything);
    }
    if compared.trunc() != compared {
        return Err(Why::HostBits { network: network.trunc(), address: network.addr() });
    }
    Ok(compared)
}

/// The error for an entry that is not a valid proxy or network.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidProxies {
    entry: String,
    why: Why,
}

/// The reason why an entry is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Neither an address nor a network.
    NoNetwork,
    /// A network with host bits, such as `10.0.0.1/8`, which could mean the network or the address.
    HostBits { network: IpNet, address: IpAddr },
    /// All addresses.
    Everything,
}

debug_as_display!(InvalidProxies);

impl fmt::Display for InvalidProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trusted proxy {:?}: ", self.entry)?;
        match self.why {
            Why::NoNetwork => {
                f.write_str("expected an address (192.0.2.1) or a network (10.0.0.0/8)")
            }
            Why::HostBits { network, address } => {
                write!(f, "expected {network} for the network, or {address} for the one address")
            }
            Why::Everything => f.write_str(
                "trusts every client to choose its own address: expected the proxies' networks, or \
                 TrustedProxies::all() in code",
            ),
        }
    }
}

impl std::error::Error for InvalidProxies {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn addresses_in_the_networks_are_trusted() {
        let cases = [
            // proxies                 | address            | trusted
            ("",                         "10.0.0.1",          false),
            ("10.0.0.0/8",               "10.255.0.1",        true),
            ("10.0.0.0/8",               "11.0.0.0",          false),
            ("10.0.0.0/8",               "::ffff:10.0.0.1",   true),
            ("::ffff:10.0.0.0/104",      "10.0.0.1",          true),
            ("::ffff:10.0.0.0/104",      "11.0.0.1",          false),
            ("::ffff:192.0.2.1",         "192.0.2.1",         true),
            ("192.0.2.0/24",             "64:ff9b::192.0.2.1", true),
            ("64:ff9b::192.0.2.1",       "192.0.2.1",         true),
            ("192.0.2.1 , 2001:db8::1",  "2001:db8::1",       true),
            ("192.0.2.1,2001:db8::1",    "2001:db8::2",       false),
        ];
        for (proxies, address, trusted) in cases {
            let proxies: TrustedProxies = proxies.parse().unwrap();
            assert_eq!(proxies.contains(address.parse().unwrap()), trusted, "{proxies:?} {address}");
        }
    }

    #[test]
    fn networks_with_host_bits_and_of_all_addresses_are_rejected_with_a_suggestion() {
        for (text, expected) in [
            ("10.0.0.1/8", "expected 10.0.0.0/8 for the network, or 10.0.0.1 for the one address"),
            ("2001:db8::1/32", "expected 2001:db8::/32 for the network, or 2001:db8::1 for the"),
            ("::ffff:10.0.0.1/104", "expected ::ffff:10.0.0.0/104 for the network, or"),
            ("0.0.0.0/0", "trusts every client to choose its own address"),
            ("10.0.0.0/8, ::/0", "trusts every client to choose its own address"),
            ("::ffff:0.0.0.0/96", "trusts every client to choose its own address"),
            ("1.2.3.4/0", "trusts every client to choose its own address"),
        ] {
            let error = text.parse::<TrustedProxies>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"] {
            assert!(TrustedProxies::all().contains(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn errors_name_the_entry() {
        for (text, entry) in [
            ("10.0.0.0/8,", ""),
            ("10.0.0.0/8, proxy.example", "proxy.example"),
            ("10.0.0.0/33", "10.0.0.0/33"),
            ("10.0.0.0/8 192.0.2.1", "10.0.0.0/8 192.0.2.1"),
            ("64:ff9b::/96", "64:ff9b::/96"),
            ("10.0.0.0/8, 64:ff9b:1::/48", "64:ff9b:1::/48"),
        ] {
            let error = text.parse::<TrustedProxies>().unwrap_err();
            assert_eq!(error, InvalidProxies { entry: entry.into(), why: Why::NoNetwork });
            assert!(error.to_string().contains(&format!("{entry:?}")));
        }
        let long = "x".repeat(10_000).parse::<TrustedProxies>().unwrap_err();
        assert!(long.to_string().len() < 200);
    }
}
