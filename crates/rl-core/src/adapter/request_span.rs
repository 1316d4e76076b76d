//! Decides requests inside spans that log their request ids.

use super::admission::RequestContext;
use super::http_limiter::HttpLimiter;
use crate::decision::Decision;
use crate::key::RequestInfo;
use crate::maybe_ready::MaybeReady;
use crate::observe::{RequestIds, RequestSpan};

impl HttpLimiter {
    /// Decides a request inside a span that logs its request ids.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_in_span(
        &self,
        request: &dyn RequestInfo,
        context: &RequestContext,
    ) -> MaybeReady<Decision> {
        let ids = RequestIds::read(|name| request.header(name));
        let span = RequestSpan::new(self.settings.limiter.namespace().as_str(), &ids);
        match span.enter(|| self.decide_counted(request, context)) {
            MaybeReady::Boxed(pending) => MaybeReady::later(span.instrument(pending)),
            ready => ready,
        }
    }
}
