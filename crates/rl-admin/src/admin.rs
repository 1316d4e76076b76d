use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use rl_core::client_ip::ClientIp;
use rl_core::rules::RulesFile;
use rl_core::time::{Clock, SystemClock};
use rl_core::{RateLimiter, Realm};
use rl_records::Records;
use tokio::sync::Semaphore;

use crate::access::{Actor, Authorize, FailedAttempts};
use crate::backend::Backend;
use crate::context::Context;
use crate::error::ApiError;
use crate::instances::Instances;
use crate::last_hour::LastHour;
use crate::outage::OutageLog;
use crate::refusal_sampler::RefusalSampler;
use crate::routes;
use crate::webhook::Webhooks;

/// The management API: the records and counters that it manages, and the actors that may use it.
///
/// Clones are cheap, and share all state.
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
/// let limiter = RateLimiter::builder().policies(source).build()?;
///
/// let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
/// let admin = Admin::builder(records, limiter).authorize(tokens).build();
/// let app: axum::Router = axum::Router::new().nest("/obp/v6.0.0", admin.router());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Admin {
    context: Arc<Context>,
}

impl Admin {
    /// Returns a builder for an API that manages `records` and the counters of `limiter`.
    ///
    /// Pass the limiter of the service, or a limiter with the same rules or policies, store and
    /// namespace. With [rules](rl_core::rules), the API works under each rule that counts a
    /// subject.
    pub fn builder(records: Records, limiter: RateLimiter) -> AdminBuilder {
        AdminBuilder {
            records,
            limiter,
            authorize: Vec::new(),
            backend: None,
            requires_if_match: false,
            client_ip: ClientIp::peer(),
            realms: Realm::custom("resource").into_iter().collect(),
            is_stand_alone: false,
            has_public_document: false,
            clock: Arc::new(SystemClock),
            attempts: FailedAttempts::default(),
            webhooks: None,
            rules_file: None,
        }
    }

    /// Returns the routes of the API. Nest them under a path such as `/obp/v6.0.0`.
    pub fn router(&self) -> Router {
        routes::router(self.context.clone())
    }

    /// Returns the actor of a request.
    ///
    /// # Errors
    ///
    /// Returns 400 if there are several `Authorization` lines, and 401 if no [`Authorize`] accepts
    /// the credentials. Returns 429 if the client's address has sent [too many wrong
    /// credentials](FailedAttempts). Returns 503 if the credentials cannot be checked now.
    pub async fn actor(&self, request: &Parts) -> Result<Actor, ApiError> {
        self.context.actor(request).await
    }

    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("records", &self.context.records)
            .field("limiter", &self.context.limiter)
            .field("backend", &self.context.backend)
            .finish_non_exhaustive()
    }
}

/// The settings of an [`Admin`].
#[must_use]
pub struct AdminBuilder {
    records: Records,
    limiter: RateLimiter,
    authorize: Vec<Arc<dyn Authorize>>,
    backend: Option<Backend>,
    requires_if_match: bool,
    client_ip: ClientIp,
    realms: Vec<Realm>,
    is_stand_alone: bool,
    has_public_document: bool,
    clock: Arc<dyn Clock>,
    attempts: FailedAttempts,
    webhooks: Option<Webhooks>,
    rules_file: Option<RulesFile>,
}

impl AdminBuilder {
    /// Adds a way to authenticate requests. The first one that accepts the credentials decides. If
    /// none is added, every request gets 401.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize.push(Arc::new(authorize));
        self
    }

    /// Sets the place that the API reports as the place of the counters. The API reads counters
    /// through the limiter, wherever they are. Defaults to the store of the limiter.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Sets whether a change must name the expected revision with `If-Match`. Defaults to `false`.
    ///
    /// Older clients send no `If-Match`. Their changes apply to any revision, and the history keeps
    /// the earlier content.
    pub fn require_if_match(mut self, required: bool) -> Self {
        self.requires_if_match = required;
        self
    }

    /// Sets the rule by which the service finds the addresses of its clients. Pass the rule of the
    /// service's [`ClientAddress`](rl_core::key::ClientAddress).
    ///
    /// A request to the API may name an address in any notation. The rule maps the address to the
    /// network under which it is counted. Defaults to [`ClientIp::peer`], which counts IPv6 by
    /// networks of 64 bits.
    pub fn client_ip(mut self, rule: ClientIp) -> Self {
        self.client_ip = rule;
        self
    }

    /// Declares a realm of the service, so that requests can name its subjects. A request with an
    /// undeclared realm gets 400.
    pub fn realm(mut self, realm: Realm) -> Self {
        if !self.realms.contains(&realm) {
            self.realms.push(realm);
        }
        self
    }

    /// Sets whether the API runs in a program of its own, with a limiter of its own, outside the
    /// service. Defaults to `false`.
    ///
    /// The policies of the service may then differ from those of this limiter, so responses about
    /// policies contain a note.
    pub const fn stand_alone(mut self, is_stand_alone: bool) -> Self {
        self.is_stand_alone = is_stand_alone;
        self
    }

    /// Sets whether `/openapi.json` needs no credentials, for tools and browsers that send none.
    /// Defaults to `false`. The document contains no data of consumers.
    pub const fn public_document(mut self, is_public: bool) -> Self {
        self.has_public_document = is_public;
        self
    }

    /// Sets the number of wrong credentials that an address may send to the API and the console
    /// together. Defaults to 20 in a minute, counted by the peer of the connection.
    pub fn failed_attempts(mut self, attempts: FailedAttempts) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sends an event when an outage of the database or of the counters begins or ends:
    /// `database_failing`, `database_recovered`, `counters_failing` or `counters_recovered`. By
    /// default none is sent.
    ///
    /// To send the events of the limiter as well, make `webhooks` its
    /// [observer](rl_core::RateLimiterBuilder::observer).
    pub fn webhooks(mut self, webhooks: Webhooks) -> Self {
        self.webhooks = Some(webhooks);
        self
    }

    /// Lets actors manage rules in the database, which apply beside those of `file`. By default the
    /// rules of the service cannot be changed here.
    ///
    /// A [`RuleFollower`](rl_records::RuleFollower) in each instance of the service applies them.
    pub fn rules_file(mut self, file: &RulesFile) -> Self {
        self.rules_file = Some(file.clone());
        self
    }

    /// Sets the clock. Defaults to the clock of the system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the management API.
    #[must_use]
    pub fn build(self) -> Admin {
        let outages = OutageLog::new(self.records.clone(), self.limiter.clone(), self.webhooks);
        let last_hour = LastHour::start(self.limiter.clone(), self.clock.clone());
        let (limiter, clock) = (self.limiter.clone(), self.clock.clone());
        // A server outside the service decides nothing, so it has nothing to publish.
        let instances = Instances::start(limiter, last_hour.clone(), clock, !self.is_stand_alone);
        let backend = self.backend.unwrap_or_else(|| Backend::of(&self.limiter));
        let context = Context {
            records: self.records,
            limiter: self.limiter,
            authorize: self.authorize,
            backend,
            requires_if_match: self.requires_if_match,
            client_ip: self.client_ip,
            realms: self.realms,
            is_stand_alone: self.is_stand_alone,
            has_public_document: self.has_public_document,
            attempts: self.attempts.start(self.clock.clone()),
            clock: self.clock,
            refusals: RefusalSampler::default(),
            outages,
            last_hour,
            instances,
            rules_file: self.rules_file,
            rule_checks: Arc::new(Semaphore::new(1)),
        };
        Admin { context: Arc::new(context) }
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
