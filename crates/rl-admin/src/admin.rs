use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use rl_core::RateLimiter;
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_records::{RecordSource, Records};

use crate::access::{Actor, Authorize, Authorized};
use crate::{ApiError, Backend, routes};

/// What the API manages, and who may. A cheap handle: clones share everything.
///
/// # Examples
///
/// ```
/// use rl_admin::{Admin, BearerTokens, Roles};
/// use rl_core::RateLimiter;
/// use rl_records::{RecordSource, Records};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = Records::connect("sqlite::memory:").await?;
/// let source = RecordSource::start(&records);
/// let limiter = RateLimiter::builder().policies(source.clone()).build()?;
///
/// let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
/// let admin = Admin::builder(records, source, limiter).authorize(tokens).build();
/// let app: axum::Router = axum::Router::new().nest("/obp/v6.0.0", admin.router());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Admin {
    inner: Arc<Inner>,
}

struct Inner {
    records: Records,
    source: RecordSource,
    limiter: RateLimiter,
    authorize: Vec<Arc<dyn Authorize>>,
    backend: Backend,
    requires_if_match: bool,
    clock: Arc<dyn Clock>,
}

impl Admin {
    /// An API over these records, and over the counters of `limiter`.
    ///
    /// The limiter should be that of the service, or one on the same store with the same namespace,
    /// and `source` its source of policies.
    pub fn builder(records: Records, source: RecordSource, limiter: RateLimiter) -> AdminBuilder {
        AdminBuilder {
            records,
            source,
            limiter,
            authorize: Vec::new(),
            backend: Backend::default(),
            requires_if_match: false,
            clock: Arc::new(SystemClock),
        }
    }

    /// The routes, to be nested where you like: `/obp/v6.0.0`, for instance.
    pub fn router(&self) -> Router {
        routes::router(self.clone())
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.inner.records
    }

    /// The source of policies.
    #[must_use]
    pub fn source(&self) -> &RecordSource {
        &self.inner.source
    }

    /// The limiter whose counters are shown.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.inner.limiter
    }

    /// Where its counters live.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.inner.backend
    }

    pub(crate) fn requires_if_match(&self) -> bool {
        self.inner.requires_if_match
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Who makes a request.
    ///
    /// # Errors
    ///
    /// Returns the answer 401 if nobody knows, and 503 if it cannot be found out now.
    pub async fn actor(&self, request: &Parts) -> Result<Actor, ApiError> {
        let mut is_unavailable = false;
        for authorize in &self.inner.authorize {
            match authorize.authorize(request).await {
                Authorized::As(actor) => return Ok(actor),
                Authorized::Unknown => {}
                Authorized::Unavailable => is_unavailable = true,
            }
        }
        Err(if is_unavailable { ApiError::no_answer_who() } else { ApiError::not_logged_in() })
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("records", &self.inner.records)
            .field("limiter", &self.inner.limiter)
            .field("backend", &self.inner.backend)
            .finish_non_exhaustive()
    }
}

/// Settings of an [`Admin`].
#[must_use]
pub struct AdminBuilder {
    records: Records,
    source: RecordSource,
    limiter: RateLimiter,
    authorize: Vec<Arc<dyn Authorize>>,
    backend: Backend,
    requires_if_match: bool,
    clock: Arc<dyn Clock>,
}

impl AdminBuilder {
    /// Adds a way to find out who makes a request; they are asked in this order. Without any, every
    /// call is answered with 401.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize.push(Arc::new(authorize));
        self
    }

    /// Where the counters live, for those who ask. Defaults to [`Backend::Memory`].
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Whether a change must say which revision it is about, with `If-Match`. Defaults to `false`: a
    /// change that does not say is made to what is there, as older clients expect, and the history
    /// keeps what was there before.
    pub fn require_if_match(mut self, required: bool) -> Self {
        self.requires_if_match = required;
        self
    }

    /// Where the time is read. Defaults to the clock of the system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The API.
    #[must_use]
    pub fn build(self) -> Admin {
        let Self { records, source, limiter, authorize, backend, requires_if_match, clock } = self;
        let inner =
            Inner { records, source, limiter, authorize, backend, requires_if_match, clock };
        Admin { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for AdminBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBuilder")
            .field("records", &self.records)
            .field("limiter", &self.limiter)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
