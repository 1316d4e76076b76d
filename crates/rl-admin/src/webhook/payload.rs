//! Events as JSON.

use rl_core::observe::{Event, EventKind, EventLocation};
use rl_core::{OnFailure, Subject};
use serde_json::{Map, Value, json};

/// The name and the values of an event. The values contain no id of a subject, and no text of an
/// error, which may quote an address or a credential.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Payload {
    pub(super) event: &'static str,
    pub(super) values: Map<String, Value>,
}

impl Payload {
    /// Creates the payload of an event. Returns `None` for events of a kind that occurs for each
    /// call.
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        let detail = match event.kind {
            EventKind::NearLimit { subject, limit, percent, suppressed, .. } => json!({
                "subject": hashed(subject),
                "limit": limit.name(),
                "max": limit.max(),
                "used": limit.used(),
                "percent": percent,
                "suppressed": suppressed,
            }),
            EventKind::WouldDeny { subject, limit, is_first: true, .. } => json!({
                "subject": hashed(subject),
                "limit": limit.name(),
                "max": limit.max(),
                "used": limit.used(),
            }),
            EventKind::StoreFailing { error, on_failure, .. }
            | EventKind::StoreOutOfMemory { error, on_failure, .. }
            | EventKind::FallbackFailing { error, on_failure, .. }
            | EventKind::LookupsFailing { error, on_failure, .. }
            | EventKind::PolicyUnsupported { error, on_failure, .. } => {
                json!({ "failure": error.kind().as_str(), "on_failure": on_failure.as_str() })
            }
            EventKind::StoreRecovered { lasted, undecided, .. }
            | EventKind::StoreOutOfMemoryEnded { lasted, undecided, .. }
            | EventKind::FallbackRecovered { lasted, undecided, .. }
            | EventKind::LookupsRecovered { lasted, undecided, .. } => {
                json!({ "seconds": lasted.as_secs_f64(), "undecided": undecided })
            }
            EventKind::BreakerOpened { failure, .. } => json!({ "failure": failure.as_str() }),
            EventKind::BreakerClosed { lasted, .. } => json!({ "seconds": lasted.as_secs_f64() }),
            EventKind::StoreOverloaded { in_flight, bound, on_failure, .. } => {
                json!({ "in_flight": in_flight, "bound": bound, "on_failure": on_failure.as_str() })
            }
            EventKind::StoreOverloadEnded { lasted, refused, .. }
            | EventKind::LookupsOverloadEnded { lasted, refused, .. } => {
                json!({ "seconds": lasted.as_secs_f64(), "refused": refused })
            }
            EventKind::FailurePolicyBegan { origin, .. } => json!({ "origin": origin.as_str() }),
            EventKind::FailurePolicyEnded { origin, lasted, requests, .. } => json!({
                "origin": origin.as_str(),
                "seconds": lasted.as_secs_f64(),
                "requests": requests,
            }),
            EventKind::PolicyUnsupportedEnded { lasted, requests, .. } => {
                json!({ "seconds": lasted.as_secs_f64(), "requests": requests })
            }
            EventKind::ValueDamaged { subject, error, on_failure, .. }
            | EventKind::PolicyUnreadable { subject, error, on_failure, .. } => json!({
                "subject": subject.map(hashed),
                "failure": error.kind().as_str(),
                "on_failure": on_failure.as_str(),
            }),
            EventKind::ValueRecovered { subject, lasted, requests, .. }
            | EventKind::PolicyReadable { subject, lasted, requests, .. } => json!({
                "subject": { "hash": subject.to_string() },
                "seconds": lasted.as_secs_f64(),
                "requests": requests,
            }),
            EventKind::LookupsOverloaded { on_failure, .. } => {
                json!({ "on_failure": on_failure.map_or("policy_for_overload", OnFailure::as_str) })
            }
            EventKind::LapsesEnded { lasted, leases, .. } => {
                json!({ "seconds": lasted.as_secs_f64(), "leases": leases })
            }
            EventKind::LeaseLapsed { subject, is_retaken, .. } => {
                json!({ "subject": hashed(subject), "is_retaken": is_retaken })
            }
            EventKind::RulesApplied { path, version, duration, .. } => json!({
                "path": path.display().to_string(),
                "version": version,
                "seconds": duration.as_secs_f64(),
            }),
            EventKind::RulesRefused { path, error, duration, .. } => json!({
                "path": path.display().to_string(),
                // The error contains no secret: the documentation of rl-core promises it.
                "error": error.to_string(),
                "seconds": duration.as_secs_f64(),
            }),
            EventKind::PoliciesChanged { changes, duration, .. } => {
                json!({ "changes": changes, "seconds": duration.as_secs_f64() })
            }
            _ => return None,
        };
        Some(Self::new(event.kind.as_str(), &event.location, detail))
    }

    /// Creates the payload of an event of this crate.
    pub(super) fn new(event: &'static str, location: &EventLocation<'_>, detail: Value) -> Self {
        let mut values = Map::new();
        for (name, value) in [
            ("limiter", location.limiter),
            ("rule", location.rule.unwrap_or_default()),
            ("store", location.store),
        ] {
            if !value.is_empty() {
                values.insert(name.to_owned(), value.into());
            }
        }
        values.insert("detail".to_owned(), detail);
        Self { event, values }
    }
}

fn hashed(subject: &Subject) -> Value {
    json!({ "realm": subject.realm().as_str(), "hash": subject.redacted().to_string() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rl_core::FailureKind;

    use super::*;

    #[test]
    fn payloads_name_the_limiter_and_hash_the_subject() {
        let location = EventLocation::new("api", "redis 127.0.0.1:6379");
        let subject = Subject::user("alice");
        let lapsed = EventKind::LeaseLapsed { subject: &subject, is_retaken: true, is_first: true };
        let payload = Payload::of(&Event::new(location, lapsed)).unwrap();
        let text = Value::Object(payload.values).to_string();
        assert_eq!(payload.event, "lease_lapsed");
        assert!(text.contains(r#""limiter":"api""#) && !text.contains("alice"), "{text}");
        assert!(text.contains(&subject.redacted().to_string()), "{text}");

        let error = rl_core::StoreError::new(FailureKind::Corrupt);
        let (subject, on_failure) = (Some(&subject), OnFailure::Reject);
        let damaged = EventKind::ValueDamaged { subject, error: &error, on_failure };
        let payload = Payload::of(&Event::new(location, damaged)).unwrap();
        let text = Value::Object(payload.values).to_string();
        assert!(text.contains(r#""on_failure":"reject""#) && !text.contains("alice"), "{text}");

        let opened = EventKind::BreakerOpened { failure: FailureKind::TimedOut };
        let payload = Payload::of(&Event::new(EventLocation::default(), opened)).unwrap();
        assert_eq!(Value::Object(payload.values), json!({ "detail": { "failure": "timed_out" } }));
    }

    #[test]
    fn events_of_each_call_have_no_payload() {
        let error = rl_core::StoreError::new(FailureKind::TimedOut);
        let failed =
            EventKind::StoreCallFailed { error: &error, duration: Some(Duration::from_millis(1)) };
        assert_eq!(Payload::of(&Event::new(EventLocation::default(), failed)), None);
    }
}
