use std::sync::Arc;

use axum::http::{header, request::Parts};
use rl_core::client_ip::ClientIp;
use rl_core::rules::RulesFile;
use rl_core::time::{Clock, Timestamp};
use rl_core::{Decision, Origin, RateLimiter, Realm, Subject};
use rl_records::Records;
use tokio::sync::Semaphore;

use crate::access::{Actor, AttemptLimiter, Authorize, Authorized};
use crate::backend::Backend;
use crate::error::ApiError;
use crate::instances::Instances;
use crate::last_hour::LastHour;
use crate::outage::OutageLog;
use crate::refusal_sampler::RefusalSampler;

/// The sentences of a server outside the service about the policies that it knows.
const OTHER_PROGRAM: &str = "This server is not the service. It knows the records, tiers and \
    defaults, but not the program of the service, which decides in the same way only with the same settings.";

/// The state that the handlers of the API and of the console share.
pub(crate) struct Context {
    pub(crate) records: Records,
    pub(crate) limiter: RateLimiter,
    pub(crate) authorize: Vec<Arc<dyn Authorize>>,
    pub(crate) backend: Backend,
    pub(crate) requires_if_match: bool,
    // The rule by which the service finds the addresses of its clients.
    pub(crate) client_ip: ClientIp,
    // The realms that were declared in addition to the predefined ones.
    pub(crate) realms: Vec<Realm>,
    pub(crate) is_stand_alone: bool,
    pub(crate) has_public_document: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) refusals: RefusalSampler,
    pub(crate) attempts: AttemptLimiter,
    pub(crate) outages: Arc<OutageLog>,
    pub(crate) last_hour: Arc<LastHour>,
    pub(crate) instances: Arc<Instances>,
    // The file with the rules of the service. Rules of the database apply in addition to them.
    pub(crate) rules_file: Option<RulesFile>,
    // Allows one check of a rule at a time, because each compiles all rules.
    pub(crate) rule_checks: Arc<Semaphore>,
}

impl Context {
    /// Returns the names of all realms that requests may name.
    pub(crate) fn realm_names(&self) -> Vec<&str> {
        let predefined = ["ip", "key", "consumer", "user", "global", "unknown"];
        predefined.into_iter().chain(self.realms.iter().map(Realm::as_str)).collect()
    }

    /// Returns the sentences about what a server outside the service does not know. Returns `None`
    /// within the service.
    pub(crate) fn note_on_services(&self) -> Option<String> {
        if !self.is_stand_alone {
            return None;
        }
        let counters = match self.limiter.rule_names() {
            None => {
                "It reads and resets only counters that services keep without rules. If they count \
                 consumers under a rule, it must know its name (RL_RECORDS_RULE)."
                    .to_owned()
            }
            Some(rules) => format!(
                "It reads and resets only counters under {}, and no other rules of services.",
                rules.join(", ")
            ),
        };
        Some(format!("{OTHER_PROGRAM} {counters}"))
    }

    /// Returns whether a decision or a usage says what the service does. A server outside the
    /// service knows no limits of most realms, and such a subject may have limits.
    pub(crate) fn knows_limits(&self, subject: &Subject, decision: &Decision) -> bool {
        let has_limits = decision.origin() != Origin::Unlimited;
        let is_of_settings =
            matches!(subject.realm(), Realm::Consumer | Realm::Ip | Realm::Unknown);
        has_limits || is_of_settings || !self.is_stand_alone
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the actor of a request.
    ///
    /// # Errors
    ///
    /// Returns 400 if there are several `Authorization` lines, and 401 if no [`Authorize`] accepts
    /// the credentials. Returns 429 if the client's address has sent too many wrong credentials.
    /// Returns 503 if the credentials cannot be checked now.
    pub(crate) async fn actor(&self, request: &Parts) -> Result<Actor, ApiError> {
        if request.headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
            return Err(ApiError::ambiguous_credentials());
        }
        let attempts = &self.attempts;
        let client = attempts.client(request);
        // This check comes first, so that no credentials are looked up for an address that has used
        // up its attempts.
        attempts.check(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
        match self.identify(request).await {
            Authorized::As(actor) => {
                // Concurrent requests with wrong credentials may have used up the attempts in the
                // meantime.
                attempts.check(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
                Ok(actor)
            }
            Authorized::Wrong => {
                attempts.fail(client.as_ref()).await.map_err(ApiError::too_many_attempts)?;
                Err(ApiError::unauthenticated())
            }
            Authorized::Unknown => Err(ApiError::unauthenticated()),
            Authorized::Unavailable => Err(ApiError::authentication_unavailable()),
        }
    }

    /// Returns whether the tokens still accept an actor whose session a token began.
    pub(crate) fn still_accepts(&self, actor: &Actor) -> bool {
        let answers = self.authorize.iter().filter_map(|authorize| authorize.still_accepts(actor));
        answers.reduce(|one, other| one || other).unwrap_or(true)
    }

    /// Tries each [`Authorize`] in turn. The first one that accepts the credentials decides.
    async fn identify(&self, request: &Parts) -> Authorized {
        let mut result = Authorized::Unknown;
        for authorize in &self.authorize {
            match (authorize.authorize(request).await, &result) {
                (Authorized::As(actor), _) => return Authorized::As(actor),
                // `Wrong` stays the result even if another authorizer is unavailable, because only
                // wrong credentials are counted. Otherwise the number of guesses would be unlimited
                // during an outage.
                (_, Authorized::Wrong) | (Authorized::Unknown, _) => {}
                (other, _) => result = other,
            }
        }
        result
    }
}
