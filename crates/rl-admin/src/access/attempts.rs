//! Limits wrong credentials by client address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::HeaderValue;
use axum::http::request::Parts;
use rl_core::client_ip::{ClientIp, IpSource};
use rl_core::source::ByRealm;
use rl_core::time::{Clock, Timestamp};
use rl_core::{
    Decision, Limit, MemoryStore, Period, Policy, RateLimiter, Realm, RetryAfter, Subject,
};

/// The interval in which wrong credentials cause at most one log line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// All clients with an unknown address share one limit, which is larger than the limit of an
/// address by this factor.
const UNKNOWN_FACTOR: u64 = 50;

/// The limit of wrong credentials for each client address.
///
/// After too many wrong credentials, an address gets 429 until the minute is over, even with
/// correct ones. IPv6 addresses are counted by network of 64 bits. Correct credentials are not
/// counted.
///
/// Clients whose address is unknown share one count, and its limit is 50 times as large. Addresses
/// are known if the server is created with `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// # Examples
///
/// ```
/// use rl_admin::access::FailedAttempts;
/// use rl_core::client_ip::ClientIp;
///
/// // Without this, all clients behind a proxy share one address, and one can lock out the others.
/// let proxies = "10.0.0.0/8".parse()?;
/// let attempts = FailedAttempts::per_minute(20).client_address(ClientIp::with_proxies(proxies));
/// # Ok::<(), rl_core::client_ip::InvalidProxies>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct FailedAttempts {
    max: u32,
    client_ip: ClientIp,
    exempts_loopback: bool,
}

impl FailedAttempts {
    /// Allows `max` wrong credentials in a minute. With 0, every request that contains credentials
    /// is rejected.
    pub fn per_minute(max: u32) -> Self {
        Self { max, client_ip: ClientIp::peer(), exempts_loopback: false }
    }

    /// Sets the rule that finds the client's address. Defaults to the peer of the connection.
    pub fn client_address(mut self, rule: ClientIp) -> Self {
        self.client_ip = rule;
        self
    }

    /// Sets whether peers on the loopback interface are exempt, except trusted proxies. Defaults to
    /// `false`.
    pub fn exempt_loopback(mut self, is_exempt: bool) -> Self {
        self.exempts_loopback = is_exempt;
        self
    }

    /// Creates a limiter with these settings.
    pub(crate) fn start(self, clock: Arc<dyn Clock>) -> AttemptLimiter {
        let policy = |max: u64| {
            let limit = Limit::new(max, Period::MINUTE).expect("a number of 32 bits times 50");
            Policy::new([limit]).expect("one limit")
        };
        let max = u64::from(self.max);
        let policies =
            ByRealm::with_default(policy(max)).with(Realm::Unknown, policy(max * UNKNOWN_FACTOR));
        let limiter = RateLimiter::builder()
            .policies(policies)
            .store(MemoryStore::builder().clock(clock.clone()).build())
            .build()
            .expect("a store in memory");
        AttemptLimiter {
            limiter,
            client_ip: self.client_ip,
            exempts_loopback: self.exempts_loopback,
            clock,
            log: Mutex::default(),
        }
    }
}

impl Default for FailedAttempts {
    /// Returns a limit of 20 wrong credentials in a minute.
    fn default() -> Self {
        Self::per_minute(20)
    }
}

/// Counts wrong credentials.
///
/// A wrong credential is charged after its check. A correct one is accepted only if the address
/// still has an attempt left after its check. So of any number of concurrent guesses, at most `max`
/// wrong ones get 401. Once these have used up the attempts, a correct guess is rejected too.
pub(crate) struct AttemptLimiter {
    limiter: RateLimiter,
    client_ip: ClientIp,
    exempts_loopback: bool,
    clock: Arc<dyn Clock>,
    log: Mutex<LogSampler>,
}

impl AttemptLimiter {
    /// Returns the subject under which the attempts of a request are counted, or `None` if the
    /// request is exempt.
    pub(crate) fn client(&self, request: &Parts) -> Option<Subject> {
        let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
        let peer: Option<IpAddr> = peer.map(|ConnectInfo(peer)| peer.ip());
        let lines: Vec<&[u8]> = match self.client_ip.header_from(peer) {
            Some(name) => request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect(),
            None => Vec::new(),
        };
        let Some(client) = self.client_ip.resolve(peer, &lines) else {
            return Some(Subject::new(Realm::Unknown, "unknown"));
        };
        let is_loopback = client.source() == IpSource::Peer
            && peer.is_some_and(|peer| peer.to_canonical().is_loopback());
        let is_exempt = is_loopback && self.exempts_loopback;
        (!is_exempt).then(|| Subject::new(Realm::Ip, &client.to_string()))
    }

    /// Checks that the client has an attempt left, without charging one.
    ///
    /// # Errors
    ///
    /// Returns the time to wait as an error if the client has no attempt left.
    pub(crate) async fn check(&self, client: Option<&Subject>) -> Result<(), TooManyAttempts> {
        let Some(client) = client else { return Ok(()) };
        TooManyAttempts::of(&self.limiter.peek(client, 1).await)
    }

    /// Charges one attempt for a wrong credential.
    ///
    /// # Errors
    ///
    /// Returns the time to wait as an error if the client had no attempt left.
    pub(crate) async fn fail(&self, client: Option<&Subject>) -> Result<(), TooManyAttempts> {
        let Some(client) = client else { return Ok(()) };
        let decision = self.limiter.check(client, 1).await;
        let (subject, is_locked) = (client.redacted(), !decision.is_allowed());
        if let Some(suppressed) = self.should_log() {
            tracing::warn!(
                target: "rl_admin::audit", %subject, is_locked, suppressed, "authentication failed"
            );
        }
        TooManyAttempts::of(&decision)
    }

    fn should_log(&self) -> Option<u64> {
        let now = self.clock.now();
        self.log.lock().unwrap_or_else(PoisonError::into_inner).should_log(now)
    }
}

impl fmt::Debug for AttemptLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptLimiter").field("client_ip", &self.client_ip).finish_non_exhaustive()
    }
}

/// The error for a client that has used up its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyAttempts {
    /// The number of whole seconds until the next attempt.
    pub(crate) retry_after: u64,
}

impl TooManyAttempts {
    fn of(decision: &Decision) -> Result<(), Self> {
        if decision.is_allowed() {
            return Ok(());
        }
        let wait = match decision.retry_after() {
            RetryAfter::Now => Duration::ZERO,
            RetryAfter::In(wait) => wait,
            RetryAfter::Never => Duration::from_secs(60),
        };
        Err(Self { retry_after: (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1) })
    }
}

/// Samples log lines: one in each interval, with the number of suppressed ones.
#[derive(Debug, Default)]
struct LogSampler {
    next: Timestamp,
    suppressed: u64,
}

impl LogSampler {
    /// Returns the number of lines that were suppressed since the last line in the log, if a line
    /// is due.
    fn should_log(&mut self, now: Timestamp) -> Option<u64> {
        if now < self.next {
            self.suppressed += 1;
            return None;
        }
        let micros = u64::try_from(LOG_INTERVAL.as_micros()).unwrap_or(u64::MAX);
        self.next = now.plus_micros(micros);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_core::time::ManualClock;

    fn request(peer: Option<&str>, forwarded: Option<&'static str>) -> Parts {
        let (mut parts, ()) = axum::http::Request::new(()).into_parts();
        if let Some(peer) = peer {
            parts.extensions.insert(ConnectInfo::<SocketAddr>(peer.parse().unwrap()));
        }
        if let Some(forwarded) = forwarded {
            parts.headers.insert("x-forwarded-for", HeaderValue::from_static(forwarded));
        }
        parts
    }

    fn start(attempts: FailedAttempts) -> AttemptLimiter {
        attempts.start(Arc::new(ManualClock::at(Timestamp::from_secs(1_000))))
    }

    #[test]
    fn attempts_count_under_the_address_that_a_trusted_proxy_names() {
        let proxies = "10.0.0.0/8".parse().unwrap();
        let rule = ClientIp::with_proxies(proxies);
        let attempts = start(FailedAttempts::default().client_address(rule));
        for (peer, forwarded, expected) in [
            (Some("192.0.2.7:1"), Some("6.6.6.6"), Some(Subject::ip([192, 0, 2, 7]))),
            (Some("10.0.0.1:1"), Some("192.0.2.7"), Some(Subject::ip([192, 0, 2, 7]))),
            (Some("[2001:db8::1]:1"), None, Some(Subject::new(Realm::Ip, "2001:db8::/64"))),
            (Some("127.0.0.1:1"), None, Some(Subject::ip([127, 0, 0, 1]))),
            (None, None, Some(Subject::new(Realm::Unknown, "unknown"))),
        ] {
            assert_eq!(attempts.client(&request(peer, forwarded)), expected, "{peer:?}");
        }
        let attempts = start(FailedAttempts::default().exempt_loopback(true));
        assert_eq!(attempts.client(&request(Some("127.0.0.1:1"), None)), None);
        assert_eq!(attempts.client(&request(Some("[::ffff:127.0.0.1]:1"), None)), None);
        assert!(attempts.client(&request(Some("192.0.2.7:1"), None)).is_some());
    }

    #[tokio::test]
    async fn correct_credentials_are_rejected_once_the_attempts_are_used_up() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
        let attempts = FailedAttempts::per_minute(3).start(clock.clone());
        let client = Subject::ip([192, 0, 2, 7]);
        // Correct credentials are not charged.
        for _ in 0..100 {
            attempts.check(Some(&client)).await.unwrap();
        }
        for _ in 0..3 {
            attempts.fail(Some(&client)).await.unwrap();
        }
        let locked = Err(TooManyAttempts { retry_after: 60 });
        assert_eq!(attempts.fail(Some(&client)).await, locked);
        assert_eq!(attempts.check(Some(&client)).await, locked);
        assert_eq!(attempts.check(Some(&Subject::ip([192, 0, 2, 8]))).await, Ok(()));
        clock.advance(Duration::from_secs(60));
        assert_eq!(attempts.check(Some(&client)).await, Ok(()));
    }

    #[test]
    fn log_lines_are_sampled_and_the_suppressed_ones_are_counted() {
        let mut log = LogSampler::default();
        let at = |secs: u64| Timestamp::from_secs(1_000 + secs);
        assert_eq!(log.should_log(at(0)), Some(0));
        for _ in 0..5 {
            assert_eq!(log.should_log(at(9)), None);
        }
        assert_eq!(log.should_log(at(10)), Some(5));
        assert_eq!(log.should_log(at(20)), Some(0));
    }
}
