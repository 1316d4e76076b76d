//! The labels of the parts of a request: the names of their rules, their partition keys, and the
//! configured limits while a fallback decides under a share. Responses show them.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::model::Limit;
use crate::policy::{NamedLimit, Policy};

/// The largest number of parts of a request, because `PartFlags` has two bits for each part.
pub(super) const MAX_PARTS: usize = u16::BITS as usize / 2;

/// The name of a rule, and the pseudonym that clients read in its place.
#[derive(Clone, Debug)]
pub(crate) struct RuleLabel {
    pub(crate) name: Arc<str>,
    /// A hash of the name, which is the same on all instances: `r3f2a1`.
    pub(crate) pseudonym: Box<str>,
    /// Whether clients may read the name.
    pub(crate) is_named: bool,
}

/// The rules under which a request is counted.
pub(crate) trait LabelledParts: Send + Sync {
    /// Returns the label of the rule of the part at `index`.
    fn label(&self, index: usize) -> Option<&RuleLabel>;
}

/// A request of one part, which this rule counts.
impl LabelledParts for RuleLabel {
    fn label(&self, index: usize) -> Option<&RuleLabel> {
        (index == 0).then_some(self)
    }
}

/// A keyed hash of a subject, by which clients distinguish their quotas.
pub(crate) type PartitionKey = [u8; 16];

/// The labels of all parts of a request. Most requests have none.
#[derive(Clone, Default)]
pub(crate) struct Labels {
    pub(crate) rules: Option<Arc<dyn LabelledParts>>,
    /// Whether clients may read the names of all rules.
    pub(crate) names_rules: bool,
    /// The partition keys of all parts; empty if clients do not read them.
    pub(crate) partition_keys: ArrayVec<PartitionKey, MAX_PARTS>,
    /// The configured policies of all parts, if a fallback has decided under shares of them.
    pub(crate) configured: Vec<Policy>,
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = |index| self.rules.as_ref().and_then(|rules| rules.label(index));
        let names = (0..MAX_PARTS).map_while(rule).map(|label| &label.name);
        f.debug_list().entries(names).finish()
    }
}

/// The labels of one part, looked up on demand in the labels of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartLabels<'a> {
    labels: Option<&'a Labels>,
    /// The position of the part.
    pub(super) index: usize,
    /// Whether the counters of the part were read.
    pub(super) is_read: bool,
}

impl<'a> PartLabels<'a> {
    /// The labels of the only part of a request that has none.
    pub(super) const NONE: Self = Self { labels: None, index: 0, is_read: true };

    pub(super) const fn new(labels: Option<&'a Labels>, index: usize, is_read: bool) -> Self {
        Self { labels, index, is_read }
    }

    fn label(&self) -> Option<&'a RuleLabel> {
        self.labels?.rules.as_ref()?.label(self.index)
    }

    /// Returns the name of the rule, whether clients may read it or not.
    pub(super) fn rule(&self) -> Option<&'a str> {
        self.label().map(|rule| &*rule.name)
    }

    pub(super) fn partition_key(&self) -> Option<&'a PartitionKey> {
        self.labels?.partition_keys.get(self.index)
    }

    /// Returns `limit` as it is configured.
    pub(super) fn configured(&self, limit: &NamedLimit) -> Limit {
        let policy = self.labels.and_then(|labels| labels.configured.get(self.index));
        let whole = policy.and_then(|policy| {
            policy.position(limit.name()).map(|place| policy.limits()[place].limit())
        });
        whole.unwrap_or(limit.limit())
    }

    /// Returns the name of the rule, if clients may read it.
    pub(super) fn disclosed_rule(&self) -> Option<&'a str> {
        let names_rules = self.labels.is_some_and(|labels| labels.names_rules);
        self.label().filter(|rule| names_rules || rule.is_named).map(|rule| &*rule.name)
    }

    /// Returns the public name of the limit called `limit`.
    pub(super) fn public_name(&self, limit: &'a str) -> PublicName<'a> {
        let pseudonym = || self.label().map(|rule| &*rule.pseudonym);
        PublicName { rule: self.disclosed_rule().or_else(pseudonym), limit }
    }
}

/// The name under which clients know a limit: `minute`, or `r3f2a1/minute` and `login/minute` under
/// a rule.
///
/// Header fields, the bodies of denials and gRPC details use this name. No two limits of
/// one limiter have names that differ only in the case of letters. Nested limiters may have limits
/// of the same name, unless the service gives them others
/// ([`PolicyBuilder::named`](crate::PolicyBuilder::named)).
///
/// Under [rules](crate::rules) the name begins with a hash of the rule's name, which is the same on
/// all instances, or with the name itself if that is
/// [disclosed](crate::adapter::HttpLimiter::name_rules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicName<'a> {
    rule: Option<&'a str>,
    limit: &'a str,
}

impl<'a> PublicName<'a> {
    /// Returns the texts of which the name consists, in their order.
    pub(crate) fn texts(self) -> impl Iterator<Item = &'a str> {
        let rule = self.rule.into_iter().flat_map(|rule| [rule, "/"]);
        rule.chain([self.limit])
    }
}

impl fmt::Display for PublicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts().try_for_each(|text| f.write_str(text))
    }
}
