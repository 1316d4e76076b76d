//! The report for a client about its own limits, as JSON.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::admission::{Admission, RequestContext};
use super::http_limiter::HttpLimiter;
use crate::decision::{Decision, LimitStatus, Origin, RetryAfter};
use crate::denial::Denial;
use crate::denial::json::push_string;
use crate::key::RequestInfo;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::rules::Defaults;

impl HttpLimiter {
    /// Returns the response to a client that asks what is left of its limits, such as
    /// `GET /rate_limit`. It charges nothing.
    ///
    /// The client is found as for a request that is counted, but exemptions do not apply. A client
    /// without a key gets the denial of this limiter. Under [rules](crate::rules), the response
    /// describes the disclosed rules that may count other requests of the client, whatever their
    /// method and path are; at most 32. A rule that counts by route or method is described as for
    /// this request. Limits in shadow are left out.
    ///
    /// ```json
    /// {"limits":[{"name":"minute","limit":100,"remaining":73,"used":27,"reset":1767225642,"retry_after":0}]}
    /// ```
    ///
    /// `name` is the [public name](crate::LimitStatus::public_name). `reset` is in seconds since
    /// the epoch. `retry_after` are the seconds until the limit allows the next request, at the
    /// cost of this one: 0 if it would allow it now, and `null` if no wait helps. Numbers that the
    /// limiter has not read are `null`.
    ///
    /// If the store cannot decide, the response is the denial with 503, even if the failure policy
    /// allows requests: nothing is known of the limits. A fallback reports its share.
    pub fn usage(&self, request: &dyn RequestInfo) -> MaybeReady<Denial> {
        let contexts = match self.contexts_of_client(request) {
            Ok(contexts) => contexts,
            Err(denial) => return MaybeReady::ready(denial),
        };
        let peek = |context| (self.decide_in(request, &context, Mode::Peek), context);
        let peeked: Vec<_> = contexts.into_iter().map(peek).collect();
        let this = self.clone();
        MaybeReady::later(async move {
            let mut report = UsageReport::new();
            for (decision, context) in peeked {
                let mut decision = decision.await;
                if let Origin::FailedOpen(kind) | Origin::FailedClosed(kind) = decision.origin() {
                    let origin = Origin::FailedClosed(kind);
                    let denied = Decision::undecided(decision.cost(), origin);
                    return this.denial(&denied, &context).header("retry-after", "1");
                }
                this.label(&mut decision, &context);
                report.push(&decision);
            }
            report.finish()
        })
    }

    /// Returns what the limiter may count for the client that sent a request.
    ///
    /// # Errors
    ///
    /// Returns the denial of a client that cannot be found.
    fn contexts_of_client(&self, request: &dyn RequestInfo) -> Result<Vec<RequestContext>, Denial> {
        let settings = &*self.settings;
        let admission = match settings.limiter.rules() {
            None => self
                .clone()
                .set(|settings| {
                    settings.exempt.clear();
                    settings.exempts_preflights = false;
                })
                .admit(request, None),
            Some(rules) => {
                let cost = settings.cost.as_ref();
                let defaults = Defaults { on_missing_key: settings.on_missing_key, cost };
                match rules.parts_of_client(request, &defaults) {
                    Ok(parts) => {
                        let parts = parts.into_iter().map(Arc::new);
                        let context = |parts| RequestContext::of_parts(parts, request, false);
                        return Ok(parts.map(context).collect());
                    }
                    Err(uncounted) => self.reject_uncounted(request, uncounted),
                }
            }
        };
        match admission {
            Admission::Counted(context) => Ok(vec![context]),
            Admission::Exempt => Ok(Vec::new()),
            Admission::Rejected(denial) => Err(denial),
        }
    }
}

/// The report of [`HttpLimiter::usage`], written limit by limit.
struct UsageReport(String);

impl UsageReport {
    fn new() -> Self {
        Self(r#"{"limits":["#.to_owned())
    }

    /// Adds the enforced limits of a decision.
    fn push(&mut self, decision: &Decision) {
        for limit in decision.enforced_of_all_parts() {
            self.0.push_str(if self.0.ends_with('[') { r#"{"name":"# } else { r#",{"name":"# });
            push_string(&mut self.0, &limit.public_name().to_string());
            self.push_numbers(decision, limit).expect("writing to a String cannot fail");
        }
    }

    fn push_numbers(&mut self, decision: &Decision, limit: LimitStatus<'_>) -> fmt::Result {
        let (is_known, reset) = (limit.is_known(), limit.reset_after_decision());
        let micros = u64::try_from(reset.as_micros()).unwrap_or(u64::MAX);
        let reset_at = decision.at().plus_micros(micros);
        let retry_after = match limit.retry_hint() {
            RetryAfter::Now => Some(0),
            wait @ (RetryAfter::In(_) | RetryAfter::Never) => wait.whole_seconds(),
        };
        for (name, number, is_known) in [
            ("limit", Some(limit.configured().capacity()), true),
            ("remaining", Some(limit.remaining()), is_known || limit.max() == 0),
            ("used", Some(limit.used()), is_known),
            ("reset", Some(reset_at.as_secs_ceil()), is_known || !reset.is_zero()),
            ("retry_after", retry_after, true),
        ] {
            match number.filter(|_| is_known) {
                Some(number) => write!(self.0, r#","{name}":{number}"#)?,
                None => write!(self.0, r#","{name}":null"#)?,
            }
        }
        self.0.write_char('}')
    }

    /// Returns the response.
    fn finish(mut self) -> Denial {
        self.0.push_str("]}");
        Denial::json(200, self.0).header("cache-control", "no-store")
    }
}
