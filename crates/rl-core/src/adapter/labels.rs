//! The names and keys that responses contain.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::admission::RequestContext;
use super::denied::Denied;
use super::http_limiter::HttpLimiter;
use crate::decision::{Decision, LabelledParts, PartitionKey};
use crate::denial::{DenialBody, DenialReason, Protocol};
use crate::headers::Headers;
use crate::key::KeySecret;
use crate::model::Subject;

impl HttpLimiter {
    /// Sets the words, codes and fields of the Open Bank Project: [`Headers::open_bank`], and
    /// [`DenialBody::open_bank`] with the prefix `OBP-10018: ` and the ids of consumers.
    #[must_use]
    pub fn open_bank(self) -> Self {
        let body = DenialBody::open_bank().prefix("OBP-10018: ").name_consumer();
        self.headers(Headers::open_bank()).denial_body(body)
    }

    /// Discloses the names of all [rules](crate::rules) in headers, bodies and gRPC details:
    /// `login/minute`. By default clients read a hash of the name: `r3f2a1/minute`.
    ///
    /// [`Rule::name_disclosed`](crate::rules::Rule::name_disclosed) discloses the name of one rule.
    #[must_use]
    pub fn name_rules(self) -> Self {
        self.set(|settings| settings.names_rules = true)
    }

    /// Adds the partition key `pk` to the lists of
    /// [`HeaderFamily::IetfDraft11`](crate::headers::HeaderFamily::IetfDraft11): a hash of the
    /// subject, keyed with `secret`.
    ///
    /// A client with several credentials can then keep the states of their quotas apart. The key
    /// never contains the subject. All instances need the same secret.
    #[must_use]
    pub fn partition_keys(self, secret: KeySecret) -> Self {
        self.set(|settings| settings.partition_secret = Some(secret))
    }

    /// Returns the response to a request that a handler has denied itself. It has the form and the
    /// headers that are set on this limiter.
    #[must_use]
    pub fn denied(&self, mut decision: Decision, subject: &Subject) -> Denied {
        let labels = decision.labels_mut();
        labels.names_rules = self.settings.names_rules;
        labels.partition_keys = self.partition_keys_of([subject]);
        let reason = DenialReason::Decision { decision: &decision, subject, rule: None };
        let denial = self.respond(reason, Protocol::Http);
        Denied::with_headers(decision, denial, self.settings.response.headers.clone())
    }

    /// Sets the labels of a decision, which the response shows.
    #[inline(never)]
    pub(super) fn label(&self, decision: &mut Decision, context: &RequestContext) {
        let labels = decision.labels_mut();
        labels.names_rules = self.settings.names_rules;
        match &context.parts {
            Some(parts) => {
                labels.partition_keys = self.partition_keys_of(parts.counted_subjects());
                labels.rules = Some(Arc::clone(parts) as Arc<dyn LabelledParts>);
            }
            None => labels.partition_keys = self.partition_keys_of([&context.subject]),
        }
    }

    /// Returns the partition keys of the subjects of a request, unless responses contain none.
    fn partition_keys_of<'a, const PARTS: usize>(
        &self,
        subjects: impl IntoIterator<Item = &'a Subject>,
    ) -> ArrayVec<PartitionKey, PARTS> {
        match &self.settings.partition_secret {
            Some(secret) => {
                subjects.into_iter().map(|subject| secret.partition_key(subject)).collect()
            }
            None => ArrayVec::new(),
        }
    }
}
