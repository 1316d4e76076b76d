//! Limits requests before authentication, such as sign-ups, like the self-service limiter of the
//! Open Bank Project.
//!
//! A request belongs to a scope. A scope has windows for each client address, and one window that
//! bounds the sum of all addresses. A limit of -1 disables a window, and 0 blocks. In shadow mode
//! no request is rejected, and the log lists those that would be.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rl_tower::store::Store;
use rl_tower::{Decision, Limit, LimitStatus, Period, Policy, RateLimiter, RetryAfter, Subject};

/// The handling of requests over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Requests are not counted.
    Off,
    /// Requests over a limit are allowed, with a warning.
    Shadow,
    /// Requests over a limit are rejected.
    Enforce,
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "shadow" => Ok(Self::Shadow),
            "enforce" => Ok(Self::Enforce),
            _ => Err("expected off, shadow or enforce"),
        }
    }
}

/// The windows, in the order of the limits: three for each address, and one for all addresses.
const WINDOWS: [(&str, Period); 4] = [
    ("PER_MINUTE", Period::MINUTE),
    ("PER_HOUR", Period::HOUR),
    ("PER_DAY", Period::DAY),
    ("GLOBAL_PER_HOUR", Period::HOUR),
];

/// The built-in limits of scopes.
pub(crate) const SCOPES: [(&str, [i64; 4]); 6] = [
    ("signup", [3, 5, 10, 500]),
    ("password_reset", [3, 5, 10, 500]),
    ("consent_request", [10, 30, 100, -1]),
    ("consumer_registration", [5, 10, 20, 500]),
    ("lookup", [20, 60, 200, -1]),
    ("signal_channel_create", [5, 20, 50, -1]),
];

/// The built-in limits of any other scope.
const GENERIC: [i64; 4] = [10, 60, 200, -1];

/// Returns the four limits of a scope.
///
/// Each limit is the setting of the scope if it is set, else the setting for all scopes, else the
/// built-in limit.
///
/// # Errors
///
/// Returns an error with the name of the setting if its value is not a limit.
pub(crate) fn limits(
    scope: &str,
    setting: impl Fn(&str) -> Option<String>,
) -> Result<[i64; 4], String> {
    let built_in = SCOPES.iter().find(|(name, _)| *name == scope);
    let mut limits = built_in.map_or(GENERIC, |(_, limits)| *limits);
    for ((window, _), limit) in WINDOWS.iter().zip(&mut limits) {
        let of_scope = format!("RL_SELF_SERVICE_{}_{window}", scope.to_ascii_uppercase());
        let of_all = format!("RL_SELF_SERVICE_{window}");
        for name in [of_all, of_scope] {
            let Some(text) = setting(&name) else { continue };
            let number = text.parse().ok().filter(|number| (-1..=1_000_000_000).contains(number));
            *limit = number.ok_or_else(|| format!("{name} {text:?}: expected -1 to 1000000000"))?;
        }
    }
    Ok(limits)
}

/// The limiter of one scope.
#[derive(Clone, Debug)]
pub(crate) struct SelfService {
    scope: String,
    mode: Mode,
    // `None` if all windows by address are disabled.
    by_address: Option<RateLimiter>,
    global: Option<RateLimiter>,
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// No limit applies.
    Skipped,
    Allowed(Vec<Window>),
    /// The request would be rejected if the limits were enforced.
    Warned(Window),
    Blocked(Window),
}

/// One window after the request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) limit: u64,
    pub(crate) period: Period,
    /// The number of requests in the window, including this one.
    pub(crate) current: u64,
    pub(crate) remaining: u64,
    /// The seconds until the window ends.
    pub(crate) reset: u64,
    is_over: bool,
}

impl SelfService {
    /// Returns the limiter of `scope` with limits in the order of [`limits`].
    pub(crate) fn new(
        scope: &str,
        mode: Mode,
        limits: [i64; 4],
        store: &Arc<dyn Store>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let limiter = |name: &str, range: std::ops::Range<usize>| {
            let windows = WINDOWS[range.clone()].iter().zip(&limits[range]);
            // A negative number disables the window.
            let windows: Vec<Limit> = windows
                .filter_map(|((_, period), max)| Some((u64::try_from(*max).ok()?, *period)))
                .map(|(max, period)| Limit::new(max, period))
                .collect::<Result<_, _>>()?;
            if windows.is_empty() {
                return Ok(None);
            }
            let limiter = RateLimiter::builder()
                .policy(Policy::new(windows)?)
                .namespace(&format!("self_service_{scope}_{name}"))
                .store(store.clone())
                .build()?;
            Ok::<_, Box<dyn std::error::Error>>(Some(limiter))
        };
        let (by_address, global) = (limiter("address", 0..3)?, limiter("global", 3..4)?);
        Ok(Self { scope: scope.to_owned(), mode, by_address, global })
    }

    /// Counts a request of this address. If the address is unknown, only the global window counts
    /// the request.
    pub(crate) async fn check(&self, address: Option<&str>) -> Outcome {
        let address = address.filter(|address| !matches!(*address, "" | "unknown"));
        let subject = address.map(|address| Subject::new(rl_tower::Realm::Ip, address));
        let (global, everybody) = (self.global.as_ref(), Subject::global());
        let by_address = self.by_address.as_ref().zip(subject.as_ref());
        let counted = [by_address, global.map(|limiter| (limiter, &everybody))];
        if self.mode == Mode::Off || counted.iter().all(Option::is_none) {
            return Outcome::Skipped;
        }
        let mut windows = Vec::new();
        let mut charged = Vec::new();
        for (limiter, subject) in counted.into_iter().flatten() {
            let decision = match self.mode {
                // A charge, unlike a check, also counts requests over the limit. So only the first
                // of them makes the count `limit + 1`, at which the warning below is logged.
                Mode::Shadow => limiter.request(subject).charge().await,
                _ => limiter.check(subject, 1).await,
            };
            windows.extend(decision.limits().map(|limit| Window::new(&limit, &decision)));
            if self.mode == Mode::Enforce && !decision.is_allowed() {
                // A request that the global window rejects must not count under the client's
                // address either.
                for (limiter, subject, decision) in charged {
                    let limiter: &RateLimiter = limiter;
                    if let Err(error) = limiter.request(subject).refund(&decision, &[1]).await {
                        tracing::warn!(%error, "refund failed");
                    }
                }
                break;
            }
            charged.push((limiter, subject, decision));
        }
        let over = windows.iter().filter(|window| window.is_over);
        let Some(over) = over.min_by_key(|window| window.period).copied() else {
            return Outcome::Allowed(windows);
        };
        if self.mode == Mode::Enforce {
            return Outcome::Blocked(over);
        }
        // One warning is logged for each window, however many requests are over the limit.
        if over.current == over.limit + 1 {
            tracing::warn!(scope = self.scope, "{}", self.warning(&over));
        } else {
            tracing::debug!(scope = self.scope, "{}", self.warning(&over));
        }
        Outcome::Warned(over)
    }

    /// Returns the warning for a request that is allowed only because of shadow mode.
    pub(crate) fn warning(&self, window: &Window) -> String {
        format!(
            "OBP-10059: Could conflict with a Future Rate Limit: This request might exceed the rate limit \
             for {} ({window}) in the future.",
            self.scope
        )
    }

    /// Returns why a request is rejected.
    pub(crate) fn rejection(&self, window: &Window) -> String {
        let again = match window.limit {
            0 => String::new(),
            _ => format!(" Try again in {} seconds.", window.reset),
        };
        format!(
            "OBP-10060: Too Many Requests. The rate limit for {} is {window}.{again}",
            self.scope
        )
    }
}

impl Window {
    fn new(report: &LimitStatus<'_>, decision: &Decision) -> Self {
        let is_over = report.used() > report.max() || report.is_over();
        // `current` includes a rejected request, while `used` does not.
        let current = report.used() + u64::from(report.is_over() && !decision.is_allowed());
        let wait = match report.retry_after() {
            RetryAfter::In(wait) => wait,
            RetryAfter::Now | RetryAfter::Never => report.reset_after(),
        };
        let reset = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self {
            limit: report.max(),
            period: report.limit().period(),
            current,
            remaining: report.remaining(),
            reset,
            is_over,
        }
    }
}

/// Writes the limit, such as `5 per hour`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}", self.limit, self.period)
    }
}

/// Returns the window that the headers describe. This is the window with the fewest requests left.
/// If several have the same number left, it is the one that resets soonest. Returns `None` without
/// windows.
pub(crate) fn tightest(windows: &[Window]) -> Option<Window> {
    windows.iter().min_by_key(|window| (window.remaining, window.reset)).copied()
}
