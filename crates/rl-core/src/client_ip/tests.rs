use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const PROXIES: &str = "10.0.0.0/8, 2001:db8:ffff::/48";

fn behind() -> ClientIp {
    ClientIp::with_proxies(PROXIES.parse().unwrap())
}

fn peer(text: &str) -> Option<IpAddr> {
    (!text.is_empty()).then(|| address::parse(text.as_bytes()).unwrap())
}

fn resolve(rule: &ClientIp, peer: Option<IpAddr>, lines: &[&[u8]]) -> String {
    rule.resolve(peer, lines).map_or("none".into(), |client| client.to_string())
}

/// A test vector: its number, the rule, the peer, the lines of the header, and the expected client.
type Vector<'a> = (u8, &'a ClientIp, &'a str, &'a [&'a [u8]], &'a str);

/// Checks the test vectors.
///
/// Vector 24 is not listed: a client makes a proxy drop the header by naming it in `Connection:`.
/// To the service, this looks the same as vector 2. The documentation of the module warns about it.
#[test]
#[rustfmt::skip]
fn client_address_vectors() {
    let for_xff = behind();
    let for_forwarded = behind().forwarded();
    let for_cloudflare = behind().single_header("CF-Connecting-IP").unwrap();
    let for_socket = behind().trust_local();
    let thousand = "6.6.6.6, ".repeat(999) + "198.51.100.7";
    let thousand = thousand.as_bytes();

    let cases: [Vector<'_>; 33] = [
        (1,  &for_xff,        "203.0.113.9",      &[b"1.2.3.4"],                              "203.0.113.9"),
        (2,  &for_xff,        "10.0.0.1",         &[],                                        "10.0.0.1"),
        (3,  &for_xff,        "10.0.0.1",         &[b"198.51.100.7"],                         "198.51.100.7"),
        (4,  &for_xff,        "10.0.0.1",         &[b"6.6.6.6, 198.51.100.7"],                "198.51.100.7"),
        (5,  &for_xff,        "10.0.0.1",         &[b"6.6.6.6, 198.51.100.7, 10.0.0.2"],      "198.51.100.7"),
        (6,  &for_xff,        "10.0.0.1",         &[b"6.6.6.6", b"198.51.100.7, 10.0.0.2"],   "198.51.100.7"),
        (7,  &for_xff,        "10.0.0.1",         &[b"10.0.0.3, 10.0.0.2"],                   "10.0.0.3"),
        (8,  &for_xff,        "10.0.0.1",         &[b"198.51.100.7, garbage"],                "10.0.0.1"),
        (9,  &for_xff,        "10.0.0.1",         &[b"198.51.100.7:51234"],                   "198.51.100.7"),
        (10, &for_xff,        "10.0.0.1",         &[b"[2001:db8::1]:443"],                    "2001:db8::/64"),
        (11, &for_xff,        "10.0.0.1",         &[b"2001:db8::1"],                          "2001:db8::/64"),
        (11, &for_xff,        "10.0.0.1",         &[b"2001:0db8:0:0::2"],                     "2001:db8::/64"),
        (12, &for_xff,        "10.0.0.1",         &[b"::ffff:198.51.100.7"],                  "198.51.100.7"),
        (12, &for_xff,        "10.0.0.1",         &[b"::ffff:c633:6407"],                     "198.51.100.7"),
        (13, &for_xff,        "::ffff:10.0.0.1",  &[b"198.51.100.7"],                         "198.51.100.7"),
        (14, &for_xff,        "10.0.0.1",         &[b""],                                     "10.0.0.1"),
        (14, &for_xff,        "10.0.0.1",         &[b","],                                    "10.0.0.1"),
        (15, &for_forwarded,  "10.0.0.1",         &[b"for=198.51.100.7;proto=https, for=10.0.0.2"], "198.51.100.7"),
        (16, &for_forwarded,  "10.0.0.1",         &[b"For=\"[2001:db8::1]:4711\""],           "2001:db8::/64"),
        (17, &for_forwarded,  "10.0.0.1",         &[b"for=unknown"],                          "10.0.0.1"),
        (17, &for_forwarded,  "10.0.0.1",         &[b"for=_x"],                               "10.0.0.1"),
        // The test vector also has an `X-Real-IP`. It is left out here, because adapters pass on
        // only the configured header.
        (18, &for_xff,        "10.0.0.1",         &[b"198.51.100.7"],                         "198.51.100.7"),
        (19, &for_cloudflare, "10.0.0.1",         &[b"198.51.100.7", b"198.51.100.7"],        "10.0.0.1"),
        (19, &for_cloudflare, "10.0.0.1",         &[b"198.51.100.7, 6.6.6.6"],                "10.0.0.1"),
        (19, &for_cloudflare, "10.0.0.1",         &[b"198.51.100.7"],                         "198.51.100.7"),
        (19, &for_cloudflare, "203.0.113.9",      &[b"198.51.100.7"],                         "203.0.113.9"),
        (20, &for_xff,        "fe80::1%eth0",     &[],                                        "fe80::/64"),
        // The specification expects the address of the proxy here. But then a client could choose
        // to be counted as the proxy.
        (21, &for_xff,        "10.0.0.1",         &[thousand],                                "198.51.100.7"),
        (22, &for_xff,        "10.0.0.1",         &[b"198.51.100.\xff"],                      "10.0.0.1"),
        (22, &for_xff,        "10.0.0.1",         &[b"198.51.100.7, \xc3\x28"],               "10.0.0.1"),
        (23, &for_socket,     "",                 &[b"198.51.100.7"],                         "198.51.100.7"),
        (23, &for_socket,     "",                 &[],                                        "none"),
        (23, &for_xff,        "",                 &[b"198.51.100.7"],                         "none"),
    ];
    for (number, rule, from, lines, expected) in cases {
        assert_eq!(resolve(rule, peer(from), lines), expected, "vector {number}");
    }
    assert_eq!(for_xff.header_from(peer("10.0.0.1")), Some("x-forwarded-for"), "vector 18");
}

/// Fault: a client over its limit invented 70 hops, and was counted as the proxy.
#[test]
fn a_client_that_invents_hops_stays_the_client() {
    let garbage = "x".repeat(100_000);
    let quotes = "\"\\".repeat(50_000);
    let many = "6.6.6.6,".repeat(20_000);
    for invented in
        ["6.6.6.6,".repeat(64), many, "10.0.0.2,".repeat(100), ",".repeat(90_000), garbage, quotes]
    {
        let (own, own_forwarded) = ("198.51.100.7, 10.0.0.2", "for=198.51.100.7, for=10.0.0.2");
        for (rule, ours) in
            [(behind(), own), (behind().forwarded(), own_forwarded), (ClientIp::with_hops(2), own)]
        {
            let same_line = format!("{invented}, {ours}");
            let own_line = [invented.as_bytes(), ours.as_bytes()];
            assert_eq!(resolve(&rule, peer("10.0.0.1"), &[same_line.as_bytes()]), "198.51.100.7");
            assert_eq!(resolve(&rule, peer("10.0.0.1"), &own_line), "198.51.100.7");
            let lines = vec![invented.as_bytes(); 100];
            let lines = [&lines[..], &[ours.as_bytes()]].concat();
            assert_eq!(resolve(&rule, peer("10.0.0.1"), &lines), "198.51.100.7");
        }
    }
}

/// Fault: a client sent a `Host` of 8 KiB, which the proxy copied into `Forwarded`. The client was
/// counted under the address of the proxy.
#[test]
fn a_client_with_a_long_host_stays_the_client() {
    for len in [10, 8 << 10, 60 << 10] {
        let host = "h".repeat(len);
        for line in [
            format!("for=6.6.6.6, for=198.51.100.7;host={host}"),
            format!("for=6.6.6.6, proto=http;host=\"{host}\";for=198.51.100.7"),
        ] {
            let client = resolve(&behind().forwarded(), peer("10.0.0.1"), &[line.as_bytes()]);
            assert_eq!(client, "198.51.100.7", "{len}");
        }
    }
}

#[test]
fn hops_beyond_the_bound_are_ignored() {
    let ours = |count: usize| format!("198.51.100.7{}", ", 10.0.0.2".repeat(count));
    let counted = |count| resolve(&behind(), peer("10.0.0.1"), &[ours(count).as_bytes()]);
    assert_eq!(counted(ClientIp::MAX_HOPS - 1), "198.51.100.7");
    assert_eq!(counted(ClientIp::MAX_HOPS), "10.0.0.2");
}

/// Fault: all IPv4 clients of an IPv6-only data centre shared one bucket.
#[test]
fn clients_behind_a_translator_are_counted_individually() {
    let site = || behind().nat64("2001:db8:64::/96").unwrap().nat64("2001:db8:46::/48").unwrap();
    for (rule, address) in [
        (behind(), "64:ff9b::198.51.100.7"),
        (behind(), "64:ff9b:1::198.51.100.7"),
        (behind(), "::ffff:0:198.51.100.7"),
        (site(), "64:ff9b::198.51.100.7"),
        (site(), "2001:db8:64::198.51.100.7"),
        (site(), "2001:db8:46:c633:64:700::"),
    ] {
        assert_eq!(resolve(&rule, address.parse().ok(), &[]), "198.51.100.7", "{address}");
        let line = format!("6.6.6.6, {address}");
        assert_eq!(
            resolve(&rule, peer("10.0.0.1"), &[line.as_bytes()]),
            "198.51.100.7",
            "{address}"
        );
    }
    // The address of a trusted proxy is recognized in its translated form too.
    let through = "2001:db8:64::10.0.0.1".parse().ok();
    assert_eq!(resolve(&site(), through, &[b"198.51.100.7"]), "198.51.100.7");
    assert_eq!(resolve(&behind(), through, &[b"198.51.100.7"]), "2001:db8:64::/64");
}

#[test]
fn source_is_peer_header_or_proxy() {
    let rule = behind();
    let source = |from, lines: &[&[u8]]| rule.resolve(peer(from), lines).unwrap().source().as_str();
    assert_eq!(source("203.0.113.9", &[b"1.2.3.4"]), "peer");
    assert_eq!(source("10.0.0.1", &[b"1.2.3.4"]), "header");
    assert_eq!(source("10.0.0.1", &[]), "proxy");
    for line in ["unknown", "10.0.0.2", "1.2.3.4, , 10.0.0.2"] {
        assert_eq!(source("10.0.0.1", &[line.as_bytes()]), "proxy");
    }
}

#[test]
fn header_is_read_from_a_trusted_peer_only() {
    let trusted = peer("10.0.0.1");
    assert_eq!(behind().header_from(trusted), Some("x-forwarded-for"));
    assert_eq!(behind().forwarded().header_from(trusted), Some("forwarded"));
    assert_eq!(behind().header_from(peer("203.0.113.9")), None);
    assert_eq!(behind().header_from(None), None);
    assert_eq!(ClientIp::peer().header_from(trusted), None);
    assert_eq!(ClientIp::peer().trust_local().header_from(None), Some("x-forwarded-for"));
    assert_eq!(ClientIp::with_hops(0).trust_local().header_from(None), None);
    assert_eq!(ClientIp::with_hops(1).header_from(None), None);
}

#[test]
#[rustfmt::skip]
fn hops_are_counted_from_the_right() {
    let cases: [(u8, &[&[u8]], &str); 8] = [
        (0, &[b"1.1.1.1"],                       "203.0.113.9"),
        (1, &[b"1.1.1.1, 2.2.2.2, 3.3.3.3"],     "3.3.3.3"),
        (2, &[b"1.1.1.1, 2.2.2.2, 3.3.3.3"],     "2.2.2.2"),
        (2, &[b"1.1.1.1, 2.2.2.2", b"3.3.3.3"],  "2.2.2.2"),
        (3, &[b"1.1.1.1, 2.2.2.2, 3.3.3.3"],     "1.1.1.1"),
        (4, &[b"1.1.1.1, 2.2.2.2, 3.3.3.3"],     "203.0.113.9"),
        (2, &[b"unknown, 3.3.3.3"],              "203.0.113.9"),
        (1, &[],                                 "203.0.113.9"),
    ];
    for (count, lines, expected) in cases {
        let rule = ClientIp::with_hops(count);
        assert_eq!(resolve(&rule, peer("203.0.113.9"), lines), expected, "{count}");
    }
}

#[test]
fn networks_of_ipv6_clients_have_the_configured_prefix() {
    let counted = |bits| {
        let rule = ClientIp::peer().ipv6_prefix(bits).unwrap();
        resolve(&rule, peer("2001:db8:1:2ff::1"), &[])
    };
    assert_eq!(counted(32), "2001:db8::/32");
    assert_eq!(counted(56), "2001:db8:1:200::/56");
    assert_eq!(counted(128), "2001:db8:1:2ff::1/128");
    for bits in [0, 31, 129, 255] {
        let error = ClientIp::peer().ipv6_prefix(bits).unwrap_err().to_string();
        assert_eq!(error, format!("IPv6 prefix has {bits} bits: expected 32 to 128"));
    }
}

/// CVE-2026-30827: all IPv4-mapped addresses were counted as one IPv6 network, so that one client
/// could exhaust the quota of all others.
#[test]
fn mapped_addresses_do_not_share_a_network() {
    let counted = |from: &str| resolve(&ClientIp::peer(), from.parse().ok(), &[]);
    assert_eq!(counted("::ffff:192.0.2.1"), "192.0.2.1");
    assert_eq!(counted("::ffff:192.0.2.2"), "192.0.2.2");
}

#[test]
fn debug_output_hides_the_address() {
    let client = behind().resolve(peer("10.0.0.1"), &[b"198.51.100.7"]).unwrap();
    assert_eq!(format!("{client:?}"), "ResolvedIp(from header)");
}

fn any_rule() -> impl Strategy<Value = ClientIp> {
    prop_oneof![
        Just(behind()),
        Just(behind().forwarded()),
        Just(behind().single_header("x-real-ip").unwrap()),
        Just(ClientIp::peer()),
    ]
}

/// Generates bytes that are often hops, separators and quotes.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[ -~]{0,6}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![",", "\"", "\\", ";", "for=", "10.0.0.2", "6.6.6.6", "[::1]"])
            .prop_map(|piece| piece.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_resolved(
        rule in any_rule(),
        hops in 0..4_u8,
        lines in prop::collection::vec(any_line(), 0..4),
        from: [u8; 4],
    ) {
        let lines: Vec<_> = lines.iter().map(Vec::as_slice).collect();
        for rule in [rule.clone(), ClientIp::with_hops(hops), ClientIp::with_hops(hops).forwarded()] {
            for from in [Some(IpAddr::from(from)), peer("10.0.0.1")] {
                prop_assert!(rule.resolve(from, &lines).is_some());
            }
            let _ = rule.trust_local().resolve(None, &lines);
        }
    }

    #[test]
    fn headers_of_a_stranger_change_nothing(
        rule in any_rule(),
        lines in prop::collection::vec(any_line(), 0..4),
        from: [u8; 4],
    ) {
        let from = IpAddr::from(from);
        prop_assume!(!PROXIES.parse::<TrustedProxies>().unwrap().contains(from));
        let lines: Vec<_> = lines.iter().map(Vec::as_slice).collect();
        let client = rule.resolve(Some(from), &lines).unwrap();
        prop_assert_eq!((client.address(), client.source()), (from, IpSource::Peer));
    }

    /// The client sends arbitrary lines of the header. Each proxy then appends the address of its
    /// peer, which is the client or the previous proxy, and the client's `Host`. The result must be
    /// the address of the client.
    #[test]
    fn fields_that_the_client_sends_do_not_change_its_address(
        written in prop::collection::vec(any_line(), 0..4),
        same_line: bool,
        from: [u8; 4],
        ours in prop::collection::vec(any::<[u8; 3]>(), 0..4),
        forwarded: bool,
        host in "[ -~]{0,9}|[\\\\\",;=for]{0,9}",
    ) {
        let from = IpAddr::from(from);
        let host = host.replace('\\', r"\\").replace('"', r#"\""#);
        prop_assume!(!PROXIES.parse::<TrustedProxies>().unwrap().contains(from));
        let ours = ours.into_iter().map(|[b, c, d]| IpAddr::from([10, b, c, d]));
        let hops = std::iter::once(from).chain(ours);
        let appended = if forwarded {
            hops.map(|hop| format!("for=\"{hop}\";host=\"{host}\"")).collect::<Vec<_>>()
        } else {
            hops.map(|hop| hop.to_string()).collect()
        };
        let mut lines = written;
        match lines.last_mut().filter(|_| same_line) {
            Some(last) => last.extend_from_slice(format!(", {}", appended.join(", ")).as_bytes()),
            None => lines.push(appended.join(", ").into_bytes()),
        }
        let lines: Vec<_> = lines.iter().map(Vec::as_slice).collect();

        let rule = if forwarded { behind().forwarded() } else { behind() };
        let client = rule.resolve(peer("10.0.0.1"), &lines).unwrap();
        prop_assert_eq!((client.address(), client.source()), (from, IpSource::Header));
    }
}
