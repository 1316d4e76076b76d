//! Adapters with a store on a server. Such a store does not decide immediately.

use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::{Limit, RateLimiter, RedisStore};
use rl_tests::RedisServer;
use rl_tests::web::{Fetch, Site, Target, client, limiter, new_year};

/// Returns a limiter like that of a separate instance, with connections of its own. Its window and
/// its deadline are longer than any test.
async fn per_day(redis: &RedisServer, max: u32) -> RateLimiter {
    let patience = Duration::from_secs(60);
    let store = RedisStore::builder(&redis.url()).connection_wait(patience).connect().await;
    let builder = RateLimiter::builder().limit(Limit::per_day(max)).store(store.unwrap());
    builder.deadline(patience).build().unwrap()
}

/// Sends `count` concurrent requests to the sites in turn. Returns how many are allowed.
async fn passed(sites: &[Site], count: usize) -> usize {
    let clients: Vec<_> = (0..6).map(|_| client()).collect();
    let requests: Vec<_> = (0..count)
        .map(|n| {
            let request = clients[n % clients.len()].get(sites[n % sites.len()].url("/"));
            tokio::spawn(async move { request.fetch().await })
        })
        .collect();
    let mut passed = 0;
    for request in requests {
        match request.await.unwrap().status {
            200 => passed += 1,
            status => assert_eq!(status, 429),
        }
    }
    passed
}

pub(super) async fn a_store_elsewhere_counts_exactly<T: Target>() {
    let redis = RedisServer::start();
    let site = T::serve(vec![HttpLimiter::new(per_day(&redis, 20).await)]);
    let sites = [site];
    assert_eq!(passed(&sites, 60).await, 20);
    assert_eq!(sites[0].handled(), 20);
}

pub(super) async fn instances_share_their_counts<T: Target>() {
    let redis = RedisServer::start();
    let mut sites = Vec::new();
    for _ in 0..3 {
        sites.push(T::serve(vec![HttpLimiter::new(per_day(&redis, 20).await)]));
    }
    assert_eq!(passed(&sites, 60).await, 20);
    assert_eq!(sites.iter().map(Site::handled).sum::<usize>(), 20);
}

pub(super) async fn a_store_elsewhere_counts_down_in_the_headers<T: Target>() {
    let redis = RedisServer::start();
    let site = T::serve(vec![HttpLimiter::new(per_day(&redis, 2).await).expose_decision()]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 2-1-86400");
    let answer = site.get("/").fetch().await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "store day 2/2"));
    assert_eq!(answer.header("x-rate-limit-remaining"), Some("0"));

    let denied = site.get("/").fetch().await;
    assert_eq!((denied.status, denied.header("x-outer-sees")), (429, Some("store day 2/2")));
    let wait: u32 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-rate-limit-reset"), denied.header("retry-after"));
    assert_eq!(site.handled(), 2);
}

pub(super) async fn a_nested_limiter_waits_for_its_store<T: Target>() {
    let redis = RedisServer::start();
    let (elsewhere, here) = (per_day(&redis, 3).await, limiter(&new_year(), &["9/hour"]));
    let limiters = [&elsewhere, &here, &elsewhere]
        .map(|limiter| HttpLimiter::new(limiter.clone()).expose_decision());
    let site = T::serve(limiters.to_vec());
    assert_eq!(site.get("/").fetch().await.body, "store hour 1/9 < store day 1/3");
    assert_eq!(site.get("/").fetch().await.status, 200);
    let third = site.get("/").fetch().await;
    assert_eq!((third.status, third.header("x-rate-limit-limit")), (200, Some("3")));
    assert_eq!(third.header("x-outer-sees"), Some("store day 3/3"));
    assert_eq!(site.get("/").fetch().await.status, 429);
    assert_eq!(site.handled(), 3);
}
