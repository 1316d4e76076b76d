use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::translated::canonical;

/// The proxies whose word on the client's address is taken: addresses and networks.
///
/// Written as a list with commas; an address alone is a network of one. An empty list trusts nobody.
/// An IPv4-mapped network is the IPv4 network. Other translated addresses, such as those behind NAT64, are
/// IPv4 addresses when they are compared: write them so.
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
    /// The proxies in `entries`, each an address or a network.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first entry that is neither.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidProxies> {
        let networks = entries.into_iter().map(|entry| {
            let entry = entry.trim();
            parse(entry).ok_or_else(|| InvalidProxies { entry: entry.chars().take(64).collect() })
        });
        networks.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether `address` is one of them.
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

fn parse(entry: &str) -> Option<IpNet> {
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Some(IpNet::from(canonical(address)));
    }
    let network: IpNet = entry.parse().ok()?;
    // Peers and hops are compared in their canonical form, so networks must be too.
    let mapped_prefix = network.prefix_len().checked_sub(96);
    match (network.addr().to_canonical(), mapped_prefix) {
        (IpAddr::V4(address), Some(prefix)) if network.addr().is_ipv6() => {
            IpNet::new(IpAddr::V4(address), prefix).ok()
        }
        // No address is compared with such a network: they are all IPv4 by then.
        _ if canonical(network.network()).is_ipv4() && network.addr().is_ipv6() => None,
        _ => Some(network),
    }
}

/// An entry that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidProxies {
    entry: String,
}

impl fmt::Display for InvalidProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "trusted proxy {:?}: expected an address (192.0.2.1) or a network (10.0.0.0/8)",
            self.entry
        )
    }
}

impl std::error::Error for InvalidProxies {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn which_addresses_are_trusted() {
        let cases = [
            // proxies                 | address            | trusted
            ("",                         "10.0.0.1",          false),
            ("10.0.0.0/8",               "10.255.0.1",        true),
            ("10.0.0.0/8",               "11.0.0.0",          false),
            ("10.0.0.0/8",               "::ffff:10.0.0.1",   true),
            ("10.1.2.3/8",               "10.0.0.1",          true),
            ("0.0.0.0/0",                "192.0.2.1",         true),
            ("0.0.0.0/0",                "2001:db8::1",       false),
            ("::/0",                     "192.0.2.1",         false),
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
    fn entries_that_are_no_network_are_named() {
        for (text, entry) in [
            ("10.0.0.0/8,", ""),
            ("10.0.0.0/8, proxy.example", "proxy.example"),
            ("10.0.0.0/33", "10.0.0.0/33"),
            ("10.0.0.0/8 192.0.2.1", "10.0.0.0/8 192.0.2.1"),
            ("64:ff9b::/96", "64:ff9b::/96"),
            ("10.0.0.0/8, 64:ff9b:1::/48", "64:ff9b:1::/48"),
        ] {
            let error = text.parse::<TrustedProxies>().unwrap_err();
            assert_eq!(error, InvalidProxies { entry: entry.into() });
            assert!(error.to_string().contains(&format!("{entry:?}")));
        }
        let long = "x".repeat(10_000).parse::<TrustedProxies>().unwrap_err();
        assert!(long.to_string().len() < 200);
    }
}
