use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::{header, request::Parts};
use rl_core::client_ip::ClientIp;
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{RateLimiter, Realm};
use rl_records::{RecordSource, Records};

use crate::access::{Actor, AttemptLimiter, Authorize, Authorized, FailedAttempts};
use crate::audit::Refusals;
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
    client_ip: ClientIp,
    // The declared realms, beside the predefined ones.
    realms: Vec<Realm>,
    is_stand_alone: bool,
    has_public_document: bool,
    clock: Arc<dyn Clock>,
    refusals: Refusals,
    attempts: AttemptLimiter,
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
            client_ip: ClientIp::peer(),
            realms: Realm::custom("resource").into_iter().collect(),
            is_stand_alone: false,
            has_public_document: false,
            clock: Arc::new(SystemClock),
            attempts: FailedAttempts::default(),
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

    /// Returns the rule by which the service finds the addresses of its clients.
    pub(crate) fn client_ip(&self) -> &ClientIp {
        &self.inner.client_ip
    }

    /// Returns whether this realm of the service was declared.
    pub(crate) fn has_realm(&self, realm: &Realm) -> bool {
        self.inner.realms.contains(realm)
    }

    /// Returns the names of all realms that requests may name.
    pub(crate) fn realms(&self) -> Vec<&str> {
        let known = ["ip", "key", "consumer", "user", "global", "unknown"];
        known.into_iter().chain(self.inner.realms.iter().map(Realm::as_str)).collect()
    }

    pub(crate) fn is_stand_alone(&self) -> bool {
        self.inner.is_stand_alone
    }

    pub(crate) fn has_public_document(&self) -> bool {
        self.inner.has_public_document
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.inner.refusals
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Returns the actor of a request.
    ///
    /// # Errors
    ///
    /// Returns 400 if there are several `Authorization` lines, 401 if no [`Authorize`] accepts the
    /// credentials, 429 if the client's address has sent [too many wrong ones](FailedAttempts), and 503
    /// if they cannot be checked now.
    pub async fn actor(&self, request: &Parts) -> Result<Actor, ApiError> {
        if request.headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
            return Err(ApiError::ambiguous_credentials());
        }
        let attempts = &self.inner.attempts;
        let client = attempts.client(request);
        // Checked first, so that a locked address costs no look-up of credentials.
        attempts.check(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
        match self.identify(request).await {
            Authorized::As(actor) => {
                // Wrong credentials sent at the same time may have locked the address meanwhile.
                attempts.check(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
                Ok(actor)
            }
            Authorized::Wrong => {
                attempts.fail(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
                Err(ApiError::not_logged_in())
            }
            Authorized::Unknown => Err(ApiError::not_logged_in()),
            Authorized::Unavailable => Err(ApiError::no_answer_who()),
        }
    }

    /// Asks each [`Authorize`] in turn. The first that accepts the credentials decides.
    async fn identify(&self, request: &Parts) -> Authorized {
        let mut answer = Authorized::Unknown;
        for authorize in &self.inner.authorize {
            match (authorize.authorize(request).await, &answer) {
                (Authorized::As(actor), _) => return Authorized::As(actor),
                // Counted also where another one cannot answer: otherwise an outage would permit any number
                // of guesses.
                (_, Authorized::Wrong) | (Authorized::Unknown, _) => {}
                (other, _) => answer = other,
            }
        }
        answer
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
    client_ip: ClientIp,
    realms: Vec<Realm>,
    is_stand_alone: bool,
    has_public_document: bool,
    clock: Arc<dyn Clock>,
    attempts: FailedAttempts,
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

    /// Sets the rule by which the service finds the addresses of its clients, as in its
    /// [`ClientAddress`](rl_core::key::ClientAddress).
    ///
    /// Requests may name an address in any spelling. The rule maps it to the network that it counts under.
    /// Defaults to [`ClientIp::peer`], which counts IPv6 by networks of 64 bits.
    pub fn client_ip(mut self, rule: ClientIp) -> Self {
        self.client_ip = rule;
        self
    }

    /// Declares a realm of the service, so that requests can name its subjects. Realms that were not
    /// declared are answered with 400.
    pub fn realm(mut self, realm: Realm) -> Self {
        if !self.realms.contains(&realm) {
            self.realms.push(realm);
        }
        self
    }

    /// Sets whether the limiter belongs to this program alone, and the service has another one. Defaults to
    /// `false`.
    ///
    /// The policies of the service may then differ from those that this limiter finds, and answers about
    /// policies say so.
    pub const fn stand_alone(mut self, is_stand_alone: bool) -> Self {
        self.is_stand_alone = is_stand_alone;
        self
    }

    /// Sets whether `/openapi.json` is answered without credentials, for tools and browsers that send
    /// none. It holds no data. Defaults to `false`: unknown callers learn nothing.
    pub const fn public_document(mut self, is_public: bool) -> Self {
        self.has_public_document = is_public;
        self
    }

    /// Sets how many wrong credentials an address may send to the API and the console together. Defaults to
    /// 20 in a minute, for the peer of the connection.
    pub fn failed_attempts(mut self, attempts: FailedAttempts) -> Self {
        self.attempts = attempts;
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
        let Self { records, source, limiter, authorize, backend, requires_if_match, .. } = self;
        let Self { client_ip, realms, is_stand_alone, has_public_document, clock, .. } = self;
        let inner = Inner {
            records,
            source,
            limiter,
            authorize,
            backend,
            requires_if_match,
            client_ip,
            realms,
            is_stand_alone,
            has_public_document,
            attempts: self.attempts.start(clock.clone()),
            clock,
            refusals: Refusals::default(),
        };
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
