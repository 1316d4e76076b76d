//! Forwarding headers. No bytes in them cause a panic, and a client cannot choose its address with
//! them.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use rl_core::client_ip::{ClientIp, IpSource, TrustedProxies};

fuzz_target!(|input: (u8, [u8; 4], &[u8])| {
    let (choice, from, bytes) = input;
    let from = IpAddr::from(from);
    let proxies: TrustedProxies = "10.0.0.0/8, 2001:db8:ffff::/48".parse().expect("networks");
    let behind = ClientIp::with_proxies(proxies.clone());
    let rule = match choice % 5 {
        0 => behind,
        1 => behind.forwarded(),
        2 => behind.single_header("x-real-ip").expect("a name"),
        3 => ClientIp::with_hops(choice / 5 % 4),
        _ => ClientIp::with_hops(choice / 5 % 4).forwarded(),
    };
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let proxy = "10.0.0.1".parse().ok();

    for peer in [proxy, Some(from)] {
        let client = rule.resolve(peer, &lines).expect("there is a peer");
        assert_eq!(client.address(), client.address().to_canonical());
        let text = client.to_string();
        assert!(
            text.len() <= 43 && text.bytes().all(|b| b.is_ascii_hexdigit() || b":./".contains(&b))
        );
    }
    let _ = rule.clone().trust_local().resolve(None, &lines);

    let is_stranger = !proxies.contains(from);
    if is_stranger && choice % 5 < 3 {
        let client = rule.resolve(Some(from), &lines).expect("there is a peer");
        assert_eq!((client.address(), client.source()), (from, IpSource::Peer));
    }
    // A trusted proxy appends an entry to the last line, or adds a line.
    if is_stranger && choice % 5 < 2 {
        let ours =
            if choice % 5 == 0 { from.to_string() } else { format!("for=\"{from}:1\";by=_x") };
        let same_line = [bytes, b", ", ours.as_bytes()].concat();
        let own_line = [bytes, b"\n", ours.as_bytes()].concat();
        for written in [same_line, own_line] {
            let lines: Vec<&[u8]> = written.split(|byte| *byte == b'\n').collect();
            let client = rule.resolve(proxy, &lines).expect("there is a peer");
            assert_eq!((client.address(), client.source()), (from, IpSource::Header));
        }
    }
});
