//! The pause that a response asks for. The other side writes these headers, so any value may occur.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use rl_core::time::Timestamp;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

/// The pairs of fields for the remaining units and the reset.
const PAIRS: [[&str; 2]; 3] = [
    ["ratelimit-remaining", "ratelimit-reset"],
    ["x-ratelimit-remaining", "x-ratelimit-reset"],
    ["x-rate-limit-remaining", "x-rate-limit-reset"],
];

/// From these numbers on, a reset is seconds or milliseconds since the epoch.
const EPOCH_SECONDS: u64 = 1_000_000_000;
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// Returns whether the other side has rejected a call because of its load or its limits.
pub(super) fn is_rejection<B>(response: &Response<B>) -> bool {
    let of_grpc = response.headers().get("grpc-status").map(|status| status.as_bytes());
    let rejections = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    rejections.contains(&response.status()) || matches!(of_grpc, Some(b"8" | b"14"))
}

/// Returns the time for which the other side wants no calls; `None` if it does not say so. `now`
/// is the time of this machine.
pub(super) fn requested_pause<B>(response: &Response<B>, now: Timestamp) -> Option<Duration> {
    let headers = response.headers();
    // The clock of the other side may be wrong, but its points in time are on that clock.
    let now = headers.get(DATE).and_then(|date| point_in_time(date.to_str().ok()?)).unwrap_or(now);
    let rejection = || {
        let pushback = number(headers, "grpc-retry-pushback-ms").map(Duration::from_millis);
        pushback.or_else(|| number(headers, RETRY_AFTER.as_str()).map(Duration::from_secs)).or_else(
            || {
                let date = point_in_time(headers.get(RETRY_AFTER)?.to_str().ok()?)?;
                Some(between(now, date))
            },
        )
    };
    is_rejection(response).then(rejection).flatten().or_else(|| reset_of_used_up(headers, now))
}

/// Returns the time until the last reset of the quotas with nothing remaining.
fn reset_of_used_up(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let used_up = |[remaining, _]: &[&str; 2]| number(headers, remaining) == Some(0);
    let pairs = PAIRS.iter().filter(|pair| used_up(pair));
    let pairs = pairs.filter_map(|[_, reset]| Some(until(number(headers, reset)?, now)));
    pairs.chain(structured_reset(headers)).max()
}

/// Reads `"minute";r=0;t=42` of the IETF drafts 08 to 11, or `limit=100, remaining=0, reset=42` of
/// draft 07.
fn structured_reset(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all("ratelimit").iter();
    let lines: Vec<_> = lines.map(|line| line.to_str()).collect::<Result<_, _>>().ok()?;
    let text = lines.join(", ");
    let seconds = |reset: &BareItem| u64::try_from(i64::from(reset.as_integer()?)).ok();
    let is_zero = |remaining: &BareItem| remaining.as_integer().is_some_and(|n| i64::from(n) == 0);
    let reset = match Parser::new(&text).parse::<List>() {
        Ok(quotas) => {
            let parameters = quotas.iter().filter_map(|quota| match quota {
                ListEntry::Item(item) => Some(&item.params),
                ListEntry::InnerList(_) => None,
            });
            let used_up = parameters.filter(|quota| quota.get("r").is_some_and(is_zero));
            used_up.filter_map(|quota| seconds(quota.get("t")?)).max()
        }
        Err(_) => {
            let fields: Dictionary = Parser::new(&text).parse().ok()?;
            let field = |name: &str| match fields.get(name)? {
                ListEntry::Item(item) => Some(&item.bare_item),
                ListEntry::InnerList(_) => None,
            };
            field("remaining").filter(|remaining| is_zero(remaining))?;
            seconds(field("reset")?)
        }
    };
    reset.map(Duration::from_secs)
}

/// Returns the time until a reset, which is a number of seconds or a point in time.
fn until(reset: u64, now: Timestamp) -> Duration {
    match reset {
        EPOCH_MILLIS.. => between(now, Timestamp::from_micros(reset.saturating_mul(1_000))),
        EPOCH_SECONDS.. => between(now, Timestamp::from_secs(reset)),
        _ => Duration::from_secs(reset),
    }
}

fn between(now: Timestamp, later: Timestamp) -> Duration {
    Duration::from_micros(later.micros_since(now))
}

/// Returns the number that a header contains. A number that is too large is the largest one.
fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Reads an HTTP date.
fn point_in_time(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from(since_epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600); // 2026-01-01T00:00:00Z

    /// Returns the seconds of the pause after a response with this status and these headers.
    fn pause(status: u16, headers: &[(&str, &str)]) -> Option<u64> {
        let response = headers.iter().fold(Response::builder(), |it, (n, v)| it.header(*n, *v));
        let response = response.status(status).body(()).unwrap();
        requested_pause(&response, NOW).map(|pause| pause.as_secs())
    }

    #[test]
    fn retry_after_is_read_from_rejections_only() {
        for status in [429, 503] {
            assert_eq!(pause(status, &[("retry-after", "7")]), Some(7));
            assert_eq!(pause(status, &[]), None);
        }
        assert_eq!(pause(200, &[("retry-after", "7")]), None);
        assert_eq!(pause(301, &[("retry-after", "7")]), None);
        let exhausted = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "2500")];
        assert_eq!(pause(200, &exhausted), Some(2));
        assert_eq!(pause(200, &[("grpc-status", "5"), ("retry-after", "7")]), None);
        // `Retry-After` says when to call again, and the reset may be that of a larger quota.
        let both =
            [("retry-after", "7"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "90")];
        assert_eq!(pause(429, &both), Some(7));
        assert_eq!(pause(200, &both), Some(90));
    }

    #[test]
    fn dates_are_compared_with_the_date_of_the_response_or_with_the_clock() {
        let date = ("retry-after", "Thu, 01 Jan 2026 00:00:42 GMT");
        assert_eq!(pause(429, &[date]), Some(42));
        assert_eq!(pause(429, &[date, ("date", "Thu, 01 Jan 2026 00:00:40 GMT")]), Some(2));
        assert_eq!(pause(429, &[date, ("date", "yesterday")]), Some(42));
        assert_eq!(pause(429, &[("retry-after", "Mon, 01 Jan 1996 00:00:42 GMT")]), Some(0));
        let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225642")];
        assert_eq!(pause(200, &reset), Some(42));
        let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225642000")];
        assert_eq!(pause(200, &reset), Some(42));
    }

    #[test]
    fn each_family_that_has_nothing_remaining_names_its_reset() {
        for prefix in ["ratelimit", "x-ratelimit", "x-rate-limit"] {
            let [remaining, reset] = ["remaining", "reset"].map(|name| format!("{prefix}-{name}"));
            assert_eq!(pause(200, &[(&remaining, "0"), (&reset, "42")]), Some(42));
            assert_eq!(pause(200, &[(&remaining, "1"), (&reset, "42")]), None);
            assert_eq!(pause(200, &[(&remaining, "0")]), None);
        }
        assert_eq!(pause(200, &[("ratelimit", "limit=9, remaining=0, reset=42")]), Some(42));
        assert_eq!(pause(200, &[("ratelimit", "limit=9, remaining=1, reset=42")]), None);
        let several = r#""minute";r=0;t=42, "hour";r=0;t=900, "day";r=5;t=86400"#;
        assert_eq!(pause(200, &[("ratelimit", several)]), Some(900));
        let lines = [("ratelimit", r#""minute";r=0;t=42"#), ("ratelimit", r#""hour";r=3;t=900"#)];
        assert_eq!(pause(200, &lines), Some(42));
    }

    #[test]
    fn malformed_values_are_ignored_and_enormous_ones_are_long_pauses() {
        for text in ["", " ", "-1", "+7", "7.5", "1e9", "soon", "７", "7 s", "0x7", "1,2"] {
            assert_eq!(pause(429, &[("retry-after", text)]), None, "{text}");
            let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", text)];
            assert_eq!(pause(200, &reset), None, "{text}");
        }
        for text in [
            r#""a";r=0;t=-1"#,
            r#""a";r=0"#,
            r#""a";r="0";t=7"#,
            "(1 2);r=0;t=7",
            "=",
            "remaining=0",
        ] {
            assert_eq!(pause(200, &[("ratelimit", text)]), None, "{text}");
        }
        let enormous = "99999999999999999999999999";
        assert_eq!(pause(429, &[("retry-after", enormous)]), Some(u64::MAX));
        let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", enormous)];
        assert!(pause(200, &reset).unwrap() > 1_000_000_000);
        let far = ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT");
        assert!(pause(429, &[far]).unwrap() > 1_000_000_000);
    }
}
