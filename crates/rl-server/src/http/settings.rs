//! The settings of the server over HTTP, and the state that its handlers share.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rl_core::client_ip::TrustedProxies;
use rl_metrics::Metrics;
use rl_serve::PeerShares;
use subtle::ConstantTimeEq;

use super::store_check::StoreCheck;
use crate::permits::PermitTable;
use crate::records::RecordLimits;
use crate::service::DecisionService;

/// The settings of the [`router`](super::router).
#[derive(Clone, Debug, Default)]
pub struct HttpSettings {
    /// The gateways that may describe requests of their clients. The rules trust the same peers to
    /// name the address of a client.
    pub proxies: TrustedProxies,
    /// The token that callers of `/v1/…` and `/json` send. Without one, only callers on this
    /// machine are answered.
    pub token: Option<BearerToken>,
    /// The counts that `/metrics` shows.
    pub metrics: Metrics,
    /// Whether `/readyz` may report that the server is ready.
    pub readiness: Readiness,
    /// The permits that callers of `/v1/acquire` hold. In the default table, a permit that expires
    /// stays charged, because the server cannot know which of its units were used.
    pub permits: PermitTable,
    /// The limits of rules with `limits: records`, whose look-ups `/metrics` counts.
    pub records: RecordLimits,
    /// The resources of the server, beside permits and reservations, whose use `/metrics` shows.
    pub shares: Vec<PeerShares>,
}

/// A token that callers send as `Authorization: Bearer TOKEN`.
#[derive(Clone)]
pub struct BearerToken(Arc<str>);

impl BearerToken {
    /// The shortest accepted token, in bytes.
    pub const MIN_LEN: usize = 20;

    /// Creates a token.
    ///
    /// # Errors
    ///
    /// Returns an error unless `token` is at least [`MIN_LEN`](Self::MIN_LEN) visible characters of
    /// ASCII.
    pub fn new(token: &str) -> Result<Self, InvalidBearerToken> {
        let is_valid = token.len() >= Self::MIN_LEN && token.bytes().all(|b| b.is_ascii_graphic());
        if is_valid { Ok(Self(token.into())) } else { Err(InvalidBearerToken) }
    }

    /// Returns whether `given` is the token, in a time that depends only on its length.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// The error for a token that is too short, or not visible ASCII. It does not contain the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidBearerToken;

rl_core::debug_as_display!(InvalidBearerToken);

impl fmt::Display for InvalidBearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let min = BearerToken::MIN_LEN;
        write!(f, "token: expected at least {min} visible characters of ASCII, without spaces")
    }
}

impl std::error::Error for InvalidBearerToken {}

/// Whether the owner of the server reports it as ready, as it does at first. Clones share the state.
///
/// `/readyz` also checks whether the store can be reached.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Option<Cow<'static, str>>>>);

impl Readiness {
    /// Reports that the server is not ready, for example because it stops.
    pub fn set_unready(&self, reason: impl Into<Cow<'static, str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.into());
    }

    /// Reports that the server is ready.
    pub fn set_ready(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the reason why the server is not ready, if there is one.
    pub(super) fn reason(&self) -> Option<Cow<'static, str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct HttpState {
    pub(super) service: DecisionService,
    pub(super) settings: HttpSettings,
    pub(super) store: StoreCheck,
    /// Whether a peer that is not one of the proxies has been refused.
    pub(super) has_refused_peer: AtomicBool,
}

impl HttpState {
    pub(super) fn new(service: DecisionService, settings: HttpSettings) -> Self {
        let store = StoreCheck::default();
        Self { service, settings, store, has_refused_peer: AtomicBool::new(false) }
    }
}
