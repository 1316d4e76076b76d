//! Spans through `tracing`: of calls to a store, and of requests that an adapter decides.

use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument, Level, Span};

use super::EventLocation;
use super::request_ids::RequestIds;
use crate::decision::Decision;
use crate::model::StoreError;

/// The span of a store call for which the limiter waits. It has no effect unless a subscriber
/// records spans of level `debug`.
#[derive(Clone, Debug)]
pub(crate) struct StoreSpan(Span);

impl StoreSpan {
    /// Begins the span of an operation.
    pub(crate) fn new(location: EventLocation<'_>, operation: &'static str) -> Self {
        if !tracing::enabled!(target: "rl_core", Level::DEBUG) {
            return Self(Span::none());
        }
        let (system, address, port) = server_of(location.store);
        Self(tracing::debug_span!(
            target: "rl_core",
            "rl.store",
            otel.kind = "client",
            db.system.name = system,
            db.operation.name = operation,
            server.address = address,
            server.port = port,
            rate_limit.limiter = location.limiter,
            rate_limit.rule = location.rule,
            rate_limit.outcome = Empty,
            rate_limit.origin = Empty,
            error.r#type = Empty,
        ))
    }

    /// Runs `future` in the span.
    pub(crate) fn instrument<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.0.clone())
    }

    /// Records the decision, or the kind of failure, in the span.
    pub(crate) fn decided(&self, result: &Result<Decision, StoreError>) {
        match result {
            Ok(decision) => {
                let outcome = if decision.is_allowed() { "allowed" } else { "denied" };
                self.0.record("rate_limit.outcome", outcome);
                self.0.record("rate_limit.origin", decision.origin().as_str());
            }
            Err(error) => self.failed(error),
        }
    }

    /// Records the kind of failure in the span.
    pub(crate) fn failed(&self, error: &StoreError) {
        self.0.record("error.type", error.kind().as_str());
    }
}

/// The span of a request that an adapter decides. Log lines of the limiter are in this span.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan(Span);

impl RequestSpan {
    /// Begins the span of a request.
    pub(crate) fn new(limiter: &str, ids: &RequestIds) -> Self {
        Self(tracing::debug_span!(
            target: "rl_core",
            "rl.request",
            rate_limit.limiter = limiter,
            request_id = ids.request.as_ref().map(display),
            trace_id = ids.trace.as_ref().map(display),
            parent_id = ids.parent.as_ref().map(display),
        ))
    }

    /// Calls `function` in the span.
    pub(crate) fn enter<T>(&self, function: impl FnOnce() -> T) -> T {
        self.0.in_scope(function)
    }

    /// Runs `future` in the span.
    pub(crate) fn instrument<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.0.clone())
    }
}

/// Returns the system, the host and the port in the name of a store, such as
/// `redis 127.0.0.1:6379`. Host and port are `None` if the name does not contain them.
fn server_of(store: &str) -> (&str, Option<&str>, Option<u16>) {
    let (system, rest) = store.split_once(' ').unwrap_or((store, ""));
    let last = rest.rsplit(' ').next().unwrap_or_default();
    let server = last.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    (system, server.map(|(host, _)| host), server.map(|(_, port)| port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_read_from_the_name_of_the_store() {
        let redis = |host, port| ("redis", Some(host), Some(port));
        assert_eq!(server_of("redis 127.0.0.1:6379"), redis("127.0.0.1", 6379));
        assert_eq!(server_of("redis [::1]:7000"), redis("[::1]", 7000));
        assert_eq!(server_of("redis cluster a.example:7001"), redis("a.example", 7001));
        assert_eq!(server_of("redis main, by sentinels"), ("redis", None, None));
        assert_eq!(server_of("redis /run/redis.sock"), ("redis", None, None));
        assert_eq!(server_of("store"), ("store", None, None));
    }
}
