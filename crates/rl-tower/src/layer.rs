use std::fmt;
use std::sync::Arc;

use rl_core::Gate;
use rl_core::key::{ClientAddress, KeyExtractor};
use tower_layer::Layer;

use crate::RateLimit;

/// Puts a limiter around a service.
///
/// Clones share the limiter, and so do the services it makes: axum makes one for each route and
/// clones it for each connection, and all of them count together. The [crate](crate) shows how it is
/// used.
pub struct RateLimitLayer<K = ClientAddress> {
    gate: Arc<Gate<K>>,
}

impl<K: KeyExtractor> RateLimitLayer<K> {
    /// A layer for a [`RateLimiter`](rl_core::RateLimiter), with every default of
    /// [`Gate::new`], or for a [`Gate`].
    pub fn new(gate: impl Into<Gate<K>>) -> Self {
        Self { gate: Arc::new(gate.into()) }
    }
}

impl<S, K> Layer<S> for RateLimitLayer<K> {
    type Service = RateLimit<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, gate: Arc::clone(&self.gate) }
    }
}

impl<K> Clone for RateLimitLayer<K> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl<K> fmt::Debug for RateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("gate", &self.gate).finish()
    }
}
