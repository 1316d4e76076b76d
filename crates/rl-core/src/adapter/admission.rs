//! The result of examining a request before it is decided.

use std::sync::{Arc, LazyLock};

use crate::denial::{Denial, Protocol};
use crate::key::RequestInfo;
use crate::model::Subject;
use crate::rules::RequestParts;
use crate::store::SubjectHasher;

/// The hasher of the subjects of requests. A decision holds the hash of its subject instead of a
/// copy.
static SUBJECTS: LazyLock<SubjectHasher> = LazyLock::new(SubjectHasher::random);

/// The next step of an adapter for a request.
#[derive(Debug)]
pub enum Admission {
    /// Call the service, because the request is not counted.
    Exempt,
    /// Respond with this denial, because the key of the request is missing or ambiguous, the
    /// address of its client is unknown, or too many rules match it.
    Rejected(Denial),
    /// [Decide](super::HttpLimiter::decide) the request, and [apply](super::HttpLimiter::apply) the
    /// decision when it is ready.
    Counted(RequestContext),
}

/// The properties of a request that the limiter needs until the decision is applied.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub(super) subject: Subject,
    pub(super) subject_hash: u64,
    pub(super) protocol: Protocol,
    // Whether the request's extensions contain the decision of an outer limiter.
    pub(super) is_nested: bool,
    // The parts of the request, if the limiter has rules.
    pub(super) parts: Option<Arc<RequestParts>>,
}

impl RequestContext {
    pub(super) fn new(subject: Subject, request: &dyn RequestInfo, is_nested: bool) -> Self {
        let (subject_hash, protocol) = (SUBJECTS.hash(&subject), protocol_of(request));
        Self { subject, subject_hash, protocol, is_nested, parts: None }
    }

    /// Creates the context of a request that is counted under rules.
    pub(super) fn of_parts(
        parts: Arc<RequestParts>,
        request: &dyn RequestInfo,
        is_nested: bool,
    ) -> Self {
        let subject_hash = combine(
            parts.subjects().map(|(place, subject)| (place as u64, SUBJECTS.hash(subject))),
        );
        let subject = parts.main().0.clone();
        let protocol = protocol_of(request);
        Self { subject, subject_hash, protocol, is_nested, parts: Some(parts) }
    }

    /// Returns the subject that the request is counted under.
    #[must_use]
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the protocol in which a denial is sent.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }
}

/// Combines the positions of rules and the hashes of their subjects into one hash.
fn combine(hashes: impl Iterator<Item = (u64, u64)>) -> u64 {
    // After each addition, the sum is multiplied by an odd number. Otherwise the hashes of two
    // rules that count the same subject could cancel out.
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

    hashes.fold(0, |all, (place, hash)| (all ^ hash).wrapping_add(place + 1).wrapping_mul(ODD))
}

/// Returns the protocol of a request.
pub(super) fn protocol_of(request: &dyn RequestInfo) -> Protocol {
    // All gRPC calls are POST requests, so the headers of other requests need not be read.
    let content_type =
        if request.method() == "POST" { request.header("content-type") } else { None };
    content_type.map_or(Protocol::Http, Protocol::from_content_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: the hashes of two rules cancelled out if their positions differed by 64.
    #[test]
    fn hashes_of_rules_that_count_the_same_subject_do_not_cancel_out() {
        let hash =
            |places: [u64; 2], subject| combine(places.map(|place| (place, subject)).into_iter());
        for places in [[0, 1], [0, 64], [3, 131]] {
            assert_ne!(hash(places, 7), hash(places, 8), "{places:?}");
            assert_ne!(hash(places, 7), 0);
        }
        assert_ne!(hash([0, 1], 7), hash([0, 2], 7));
    }
}
