/// The kind of an entry in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    // A record of a consumer, or of another subject, was changed.
    Record,
    SubjectRecord,
    Resource,
    Rule,
    Tier,
    Subscription,
    // A consumer, or a key, was put into a tier or removed from its tier.
    Consumer,
    Key,
    // The counters of a consumer, or of another subject, were reset. No limit was changed.
    Reset,
    SubjectReset,
    // An actor gave a reason for a change of a record: of a consumer, or of another subject.
    Reason,
    SubjectReason,
    // A request that was refused because its actor lacks a role.
    Refusal,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Record,
        Self::SubjectRecord,
        Self::Resource,
        Self::Rule,
        Self::Tier,
        Self::Subscription,
        Self::Consumer,
        Self::Key,
        Self::Reset,
        Self::SubjectReset,
        Self::Reason,
        Self::SubjectReason,
        Self::Refusal,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::SubjectRecord => "subject_record",
            Self::Resource => "resource",
            Self::Rule => "rule",
            Self::Tier => "tier",
            Self::Subscription => "subscription",
            Self::Consumer => "consumer",
            Self::Key => "key",
            Self::Reset => "reset",
            Self::SubjectReset => "subject_reset",
            Self::Reason => "reason",
            Self::SubjectReason => "subject_reason",
            Self::Refusal => "refusal",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}
