use std::time::Duration;

use tokio::time::Instant;

use super::backoff::pause;
use crate::model::FailureKind;
use crate::model::StoreError;

/// The first pause after an attempt that failed. It is doubled with each that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause while a server cannot be reached: limits must hold again within a second of its
/// return.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause while a server does not let us in, which lasts until somebody mends it.
const LONGEST_PAUSE_REFUSED: Duration = Duration::from_millis(500);

/// For how long a refusal is the answer to whoever would have to wait for a connection.
const REFUSAL_HOLDS: Duration = Duration::from_secs(1);

/// Why an attempt to connect failed.
pub(crate) struct Failure {
    kind: FailureKind,
    detail: Option<String>,
    at: Instant,
    // Attempts in a row that failed, this one included.
    count: u32,
    // When the next attempt is due.
    next: Instant,
}

impl Failure {
    /// The failure of an attempt, after `before`.
    pub(crate) fn after(before: Option<&Self>, error: &StoreError) -> Self {
        let (kind, detail) = (error.kind(), error.detail().map(str::to_owned));
        let (at, count) = (Instant::now(), before.map_or(0, |before| before.count) + 1);
        let longest = if kind.is_configuration() { LONGEST_PAUSE_REFUSED } else { LONGEST_PAUSE };
        Self { kind, detail, at, count, next: at + pause(count, FIRST_PAUSE, longest) }
    }

    /// When the next attempt is due.
    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn error(&self) -> StoreError {
        let error = StoreError::new(self.kind);
        match &self.detail {
            Some(detail) => error.with_detail(detail.clone()),
            None => error,
        }
    }

    /// That the server does not let us in, as far as it has just said so.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        let holds = self.at.elapsed() < REFUSAL_HOLDS;
        (self.kind.is_configuration() && holds).then(|| self.error())
    }
}
