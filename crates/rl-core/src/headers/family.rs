use super::field::{Field, Parameters};
use super::field_name::FieldName;

/// A family of header fields, with fixed names *and* units.
///
/// Names and units cannot be chosen separately, because one name has different meanings:
/// `x-ratelimit-reset` is a point in time (GitHub), a number of seconds (Envoy) or of milliseconds
/// (zuul); `x-rate-limit-reset` is a number of seconds (Open Bank) or a point in time (Twitter).
///
/// The table shows a limit of 100 per minute called `default`, with 27 units used. The reset is in
/// 42 seconds, and the time is 2026-01-01T00:00:00Z:
///
/// | family | fields |
/// |---|---|
/// | `OpenBank` | `x-rate-limit-limit: 100`, `x-rate-limit-remaining: 73`, `x-rate-limit-reset: 42` |
/// | `GitHub` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-used: 27`, `x-ratelimit-reset: 1767225642`, `x-ratelimit-resource: core` |
/// | `IetfDraft11` | `ratelimit-policy: "default";q=100;w=60`, `ratelimit: "default";r=73;t=42` |
/// | `IetfDraft07` | `ratelimit-policy: 100;w=60`, `ratelimit: limit=100, remaining=73, reset=42` |
/// | `IetfDraft06` | `ratelimit-policy: 100;w=60`, `ratelimit-limit: 100`, `ratelimit-remaining: 73`, `ratelimit-reset: 42` |
/// | `IetfDraft03` | `ratelimit-limit: 100, 100;w=60`, `ratelimit-remaining: 73`, `ratelimit-reset: 42` |
/// | `Envoy` | `x-ratelimit-limit: 100, 100;w=60;name="default"`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 42` |
/// | `Legacy` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 1767225642` |
/// | `Twitter` | `x-rate-limit-limit: 100`, `x-rate-limit-remaining: 73`, `x-rate-limit-reset: 1767225642` |
/// | `Zuul` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 60000` |
///
/// Families that share a field name exclude each other: `OpenBank` and `Twitter`; `GitHub`,
/// `Envoy`, `Legacy` and `Zuul`; `IetfDraft11`, `IetfDraft07` and `IetfDraft06`; `IetfDraft06` and
/// `IetfDraft03`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderFamily {
    /// The fields of the Open Bank Project: the reset in seconds from now.
    #[default]
    OpenBank,
    /// The fields of GitHub: the reset as seconds since the epoch, the units used, and the
    /// resource, which is always `core`.
    GitHub,
    /// The lists `RateLimit-Policy` and `RateLimit` of the IETF drafts 08 to 11.
    ///
    /// The window `w` is omitted if the period is not a whole number of seconds. The draft has no
    /// such windows, and another number would promise a wrong rate. The reset `t` is omitted while
    /// no window is open, and for a limit of 0, which has no reset. A concurrency limit has
    /// neither, but it has a unit: `"concurrency";q=20;qu="concurrent-requests"`. The partition key
    /// `pk` is sent if [a setting](crate::adapter::HttpLimiter::partition_keys) asks for it.
    IetfDraft11,
    /// IETF draft 07: `RateLimit` is one dictionary.
    IetfDraft07,
    /// IETF draft 06: one field for each number. Drafts 04 and 05 differ slightly.
    IetfDraft06,
    /// IETF draft 03: `RateLimit-Limit` contains the limit, and then the quota and window of each
    /// limit.
    IetfDraft03,
    /// The fields of Envoy with `enable_x_ratelimit_headers: DRAFT_VERSION_03`.
    Envoy,
    /// The fields of many older middlewares: the reset as seconds since the epoch.
    ///
    /// Some of those middlewares add a `Date`, with which clients compare the reset. This limiter
    /// does not write it: the server sends a `Date` already, and a response must not have two.
    Legacy,
    /// The fields of Twitter (X): the reset as seconds since the epoch.
    Twitter,
    /// The fields of the zuul rate limiter. The reset is always the whole interval, in
    /// milliseconds.
    Zuul,
}

impl HeaderFamily {
    /// All families.
    pub const ALL: &'static [Self] = &[
        Self::OpenBank,
        Self::GitHub,
        Self::IetfDraft11,
        Self::IetfDraft07,
        Self::IetfDraft06,
        Self::IetfDraft03,
        Self::Envoy,
        Self::Legacy,
        Self::Twitter,
        Self::Zuul,
    ];

    /// The maximum number of families in one response. Combined families share no name, and each
    /// has at least one of these four: `x-rate-limit-limit`, `x-ratelimit-limit`,
    /// `ratelimit-policy` and `ratelimit-limit`.
    pub(super) const MAX_COMBINED: usize = 4;

    /// Returns the names and fields, in the order in which they are written.
    #[rustfmt::skip]
    pub(super) const fn fields(self) -> &'static [(FieldName, Field)] {
        match self {
            Self::OpenBank => const { &[
                named("x-rate-limit-limit", Field::Max),
                named("x-rate-limit-remaining", Field::Remaining),
                named("x-rate-limit-reset", Field::ResetAfter),
            ] },
            Self::GitHub => const { &[
                named("x-ratelimit-limit", Field::Max),
                named("x-ratelimit-remaining", Field::Remaining),
                named("x-ratelimit-used", Field::Used),
                named("x-ratelimit-reset", Field::ResetAt),
                named("x-ratelimit-resource", Field::Fixed("core")),
            ] },
            Self::IetfDraft11 => const { &[
                named("ratelimit-policy", Field::NamedQuotas),
                named("ratelimit", Field::Statuses),
            ] },
            Self::IetfDraft07 => const { &[
                named("ratelimit-policy", Field::Quotas),
                named("ratelimit", Field::Dictionary),
            ] },
            Self::IetfDraft06 => const { &[
                named("ratelimit-policy", Field::Quotas),
                named("ratelimit-limit", Field::Max),
                named("ratelimit-remaining", Field::Remaining),
                named("ratelimit-reset", Field::ResetAfter),
            ] },
            Self::IetfDraft03 => const { &[
                named("ratelimit-limit", Field::MaxThenQuotas),
                named("ratelimit-remaining", Field::Remaining),
                named("ratelimit-reset", Field::ResetAfter),
            ] },
            Self::Envoy => const { &[
                named("x-ratelimit-limit", Field::MaxThenCommentedQuotas),
                named("x-ratelimit-remaining", Field::Remaining),
                named("x-ratelimit-reset", Field::ResetAfter),
            ] },
            Self::Legacy => const { &[
                named("x-ratelimit-limit", Field::Max),
                named("x-ratelimit-remaining", Field::Remaining),
                named("x-ratelimit-reset", Field::ResetAt),
            ] },
            Self::Twitter => const { &[
                named("x-rate-limit-limit", Field::Max),
                named("x-rate-limit-remaining", Field::Remaining),
                named("x-rate-limit-reset", Field::ResetAt),
            ] },
            Self::Zuul => const { &[
                named("x-ratelimit-limit", Field::Max),
                named("x-ratelimit-remaining", Field::Remaining),
                named("x-ratelimit-reset", Field::IntervalMillis),
            ] },
        }
    }

    /// Returns the names of the parameters in lists. A draft that renames them has an arm here.
    pub(super) const fn parameters(self) -> &'static Parameters {
        match self {
            Self::IetfDraft11 | Self::IetfDraft07 | Self::IetfDraft06 | Self::IetfDraft03 => {
                &Parameters::DRAFT_11
            }
            Self::OpenBank | Self::GitHub | Self::Envoy => &Parameters::DRAFT_11,
            Self::Legacy | Self::Twitter | Self::Zuul => &Parameters::DRAFT_11,
        }
    }

    /// Returns the largest number that a field may contain. Integers in structured fields (RFC
    /// 9651) have at most 15 digits.
    pub(super) const fn largest_number(self) -> u64 {
        match self {
            Self::IetfDraft11 | Self::IetfDraft07 | Self::IetfDraft06 | Self::IetfDraft03 => {
                999_999_999_999_999
            }
            Self::OpenBank | Self::GitHub | Self::Envoy => u64::MAX,
            Self::Legacy | Self::Twitter | Self::Zuul => u64::MAX,
        }
    }

    /// Returns whether both families have a field of the same name.
    pub(super) fn clashes_with(self, other: Self) -> bool {
        self.fields()
            .iter()
            .any(|(name, _)| other.fields().iter().any(|(other_name, _)| name == other_name))
    }
}

const fn named(name: &str, field: Field) -> (FieldName, Field) {
    (FieldName::new(name), field)
}
