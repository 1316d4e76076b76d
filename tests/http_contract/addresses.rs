//! The client's address. The client of these tests is 127.0.0.1, which some tests trust as a proxy
//! and others do not.

use reqwest::header::HeaderValue;
use rl_core::adapter::HttpLimiter;
use rl_core::client_ip::ClientIp;
use rl_core::key::ClientAddress;
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

/// Returns a site that allows nine requests per minute for each address, and trusts these proxies.
fn site<T: Target>(proxies: &str) -> Site {
    let key = ClientAddress::new(ClientIp::with_proxies(proxies.parse().unwrap()));
    T::serve(vec![HttpLimiter::new(limiter(&new_year(), &["9/minute"])).key(key)])
}

/// Makes a request with these header lines. Returns the remaining units of the client that they
/// identify.
async fn left(site: &Site, lines: &[&str]) -> String {
    let request = lines.iter().fold(site.get("/"), |request, line| {
        request.header("x-forwarded-for", HeaderValue::from_bytes(line.as_bytes()).unwrap())
    });
    let answer = request.fetch().await;
    assert_eq!(answer.status, 200, "{lines:?}");
    answer.header("x-rate-limit-remaining").unwrap().to_owned()
}

pub(super) async fn a_stranger_cannot_choose_an_address<T: Target>() {
    let site = site::<T>("10.0.0.0/8");
    assert_eq!(left(&site, &[]).await, "8");
    for (n, claim) in ["1.2.3.4", "10.0.0.1", "127.0.0.1", "", "\u{fc}\u{fc}"].iter().enumerate() {
        assert_eq!(left(&site, &[claim]).await, (7 - n).to_string(), "{claim}");
    }
    let claims = [("forwarded", "for=1.2.3.4"), ("x-real-ip", "1.2.3.4"), ("client-ip", "1.2.3.4")];
    for (n, (name, value)) in claims.into_iter().enumerate() {
        let answer = site.get("/").header(name, value).fetch().await;
        assert_eq!(answer.standing(), format!("200 9-{}-60", 2 - n), "{name}");
    }
}

pub(super) async fn behind_a_proxy_the_rightmost_stranger_counts<T: Target>() {
    let site = site::<T>("127.0.0.0/8");
    assert_eq!(left(&site, &["198.51.100.7"]).await, "8");
    // The client itself wrote the entries to the left of its address, so they are ignored.
    assert_eq!(left(&site, &["6.6.6.6, 198.51.100.7"]).await, "7");
    assert_eq!(left(&site, &["7.7.7.7, 198.51.100.7, 127.0.0.9"]).await, "6");
    assert_eq!(left(&site, &["198.51.100.7:51234"]).await, "5");
    assert_eq!(left(&site, &["::ffff:198.51.100.7"]).await, "4");
    assert_eq!(left(&site, &["6.6.6.6"]).await, "8");
    // Without the header, the proxy itself is counted, by its address 127.0.0.1. It is also counted
    // if the entry at the right end is no address.
    assert_eq!(left(&site, &[]).await, "8");
    assert_eq!(left(&site, &["198.51.100.7, garbage"]).await, "7");
    assert_eq!(left(&site, &["198.51.100.7, \u{ff}"]).await, "6");
}

/// Fault: a client over its limit added 70 hops to the header, and was counted under the address of
/// the proxy.
pub(super) async fn a_client_that_invents_hops_stays_the_client<T: Target>() {
    let site = site::<T>("127.0.0.0/8");
    let own = "198.51.100.7";
    for (remaining, invented) in [(8, 64), (7, 70), (6, 500), (5, 4_000)] {
        let line = format!("{}{own}", "6.6.6.6, ".repeat(invented));
        assert_eq!(left(&site, &[&line]).await, remaining.to_string(), "{invented}");
    }
    assert_eq!(left(&site, &[]).await, "8", "of the proxy");
}

pub(super) async fn every_line_of_the_header_counts<T: Target>() {
    let site = site::<T>("127.0.0.0/8");
    assert_eq!(left(&site, &["6.6.6.6", "198.51.100.7, 127.0.0.2"]).await, "8");
    assert_eq!(left(&site, &["198.51.100.7"]).await, "7");
    assert_eq!(left(&site, &["6.6.6.6"]).await, "8");
}

pub(super) async fn an_ipv6_network_is_one_client<T: Target>() {
    let site = site::<T>("127.0.0.0/8");
    assert_eq!(left(&site, &["2001:db8:0:1::1"]).await, "8");
    assert_eq!(left(&site, &["2001:0db8:0000:0001:ffff::2"]).await, "7");
    assert_eq!(left(&site, &["[2001:db8:0:1::3]:443"]).await, "6");
    assert_eq!(left(&site, &["2001:db8:0:2::1"]).await, "8");
}
