use super::field::Field;
use super::names::place;

/// Header fields that belong together: names *and* units.
///
/// The two are not to be had apart, because the same name means different things:
/// `x-ratelimit-reset` is a point in time (GitHub), a number of seconds (Envoy) or of milliseconds
/// (zuul); `x-rate-limit-reset` is a number of seconds (Open Bank) or a point in time (Twitter).
///
/// With a limit of 100 per minute called `default`, 27 units used and 42 seconds to go, at
/// 2026-01-01T00:00:00Z:
///
/// | family | fields |
/// |---|---|
/// | `OpenBank` | `x-rate-limit-limit: 100`, `x-rate-limit-remaining: 73`, `x-rate-limit-reset: 42` |
/// | `GitHub` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-used: 27`, `x-ratelimit-reset: 1767225642`, `x-ratelimit-resource: core` |
/// | `Ietf` | `ratelimit-policy: "default";q=100;w=60`, `ratelimit: "default";r=73;t=42` |
/// | `IetfDraft07` | `ratelimit-policy: 100;w=60`, `ratelimit: limit=100, remaining=73, reset=42` |
/// | `IetfDraft06` | `ratelimit-policy: 100;w=60`, `ratelimit-limit: 100`, `ratelimit-remaining: 73`, `ratelimit-reset: 42` |
/// | `IetfDraft03` | `ratelimit-limit: 100, 100;w=60`, `ratelimit-remaining: 73`, `ratelimit-reset: 42` |
/// | `Envoy` | `x-ratelimit-limit: 100, 100;w=60;name="default"`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 42` |
/// | `Legacy` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 1767225642` |
/// | `Twitter` | `x-rate-limit-limit: 100`, `x-rate-limit-remaining: 73`, `x-rate-limit-reset: 1767225642` |
/// | `Zuul` | `x-ratelimit-limit: 100`, `x-ratelimit-remaining: 73`, `x-ratelimit-reset: 60000` |
///
/// Families that share a name exclude each other: `OpenBank` and `Twitter`; `GitHub`, `Envoy`,
/// `Legacy` and `Zuul`; `Ietf`, `IetfDraft07` and `IetfDraft06`, the latter also `IetfDraft03`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderFamily {
    /// What the Open Bank Project sends: the reset in seconds from now.
    #[default]
    OpenBank,
    /// What GitHub sends: the reset as seconds since the epoch, the units used, and the resource,
    /// which is always `core`.
    GitHub,
    /// The lists `RateLimit-Policy` and `RateLimit` of the IETF drafts 08 to 11.
    ///
    /// The window `w` is left out for periods that are not whole seconds: the draft has no such
    /// windows, and any other number would promise a rate that is not kept. `t` is left out while
    /// no window is open, and for a limit of 0, which time does not change. A concurrency limit has
    /// neither, but a unit: `"concurrency";q=20;qu="concurrent-requests"`.
    Ietf,
    /// IETF draft 07: `RateLimit` is one dictionary.
    IetfDraft07,
    /// IETF draft 06 (and, but for details, 04 and 05): one field for each number.
    IetfDraft06,
    /// IETF draft 03: the policies follow the limit in one field.
    IetfDraft03,
    /// What Envoy sends with `enable_x_ratelimit_headers: DRAFT_VERSION_03`.
    Envoy,
    /// What many older middlewares send: the reset as seconds since the epoch.
    ///
    /// Some of them add a `Date`, for clients to compare the reset with. It is not written here:
    /// servers send one anyway, a response must not have two, and the server's clock, not the
    /// store's, is the one that it has to show.
    Legacy,
    /// What Twitter (X) sends: the reset as seconds since the epoch.
    Twitter,
    /// What the zuul rate limiter sends: the reset in milliseconds, and always the whole interval.
    Zuul,
}

impl HeaderFamily {
    /// How many families can stand together: each has one of the names `x-rate-limit-limit`,
    /// `x-ratelimit-limit`, `ratelimit-policy` and `ratelimit-limit`.
    pub(super) const MOST_TOGETHER: usize = 4;

    /// The fields by the places of their names, in the order in which they are written.
    #[rustfmt::skip]
    pub(super) const fn fields(self) -> &'static [(usize, Field)] {
        match self {
            Self::OpenBank => const { &[
                (place("x-rate-limit-limit"), Field::Max),
                (place("x-rate-limit-remaining"), Field::Remaining),
                (place("x-rate-limit-reset"), Field::ResetAfter),
            ] },
            Self::GitHub => const { &[
                (place("x-ratelimit-limit"), Field::Max),
                (place("x-ratelimit-remaining"), Field::Remaining),
                (place("x-ratelimit-used"), Field::Used),
                (place("x-ratelimit-reset"), Field::ResetAt),
                (place("x-ratelimit-resource"), Field::Fixed("core")),
            ] },
            Self::Ietf => const { &[
                (place("ratelimit-policy"), Field::NamedQuotas),
                (place("ratelimit"), Field::Standings),
            ] },
            Self::IetfDraft07 => const { &[
                (place("ratelimit-policy"), Field::Quotas),
                (place("ratelimit"), Field::Dictionary),
            ] },
            Self::IetfDraft06 => const { &[
                (place("ratelimit-policy"), Field::Quotas),
                (place("ratelimit-limit"), Field::Max),
                (place("ratelimit-remaining"), Field::Remaining),
                (place("ratelimit-reset"), Field::ResetAfter),
            ] },
            Self::IetfDraft03 => const { &[
                (place("ratelimit-limit"), Field::MaxThenQuotas),
                (place("ratelimit-remaining"), Field::Remaining),
                (place("ratelimit-reset"), Field::ResetAfter),
            ] },
            Self::Envoy => const { &[
                (place("x-ratelimit-limit"), Field::MaxThenCommentedQuotas),
                (place("x-ratelimit-remaining"), Field::Remaining),
                (place("x-ratelimit-reset"), Field::ResetAfter),
            ] },
            Self::Legacy => const { &[
                (place("x-ratelimit-limit"), Field::Max),
                (place("x-ratelimit-remaining"), Field::Remaining),
                (place("x-ratelimit-reset"), Field::ResetAt),
            ] },
            Self::Twitter => const { &[
                (place("x-rate-limit-limit"), Field::Max),
                (place("x-rate-limit-remaining"), Field::Remaining),
                (place("x-rate-limit-reset"), Field::ResetAt),
            ] },
            Self::Zuul => const { &[
                (place("x-ratelimit-limit"), Field::Max),
                (place("x-ratelimit-remaining"), Field::Remaining),
                (place("x-ratelimit-reset"), Field::IntervalMillis),
            ] },
        }
    }

    /// The largest number that a field may show: integers in structured fields (RFC 9651) have 15
    /// digits at most.
    pub(super) const fn largest_number(self) -> u64 {
        match self {
            Self::Ietf | Self::IetfDraft07 | Self::IetfDraft06 | Self::IetfDraft03 => {
                999_999_999_999_999
            }
            Self::OpenBank | Self::GitHub | Self::Envoy => u64::MAX,
            Self::Legacy | Self::Twitter | Self::Zuul => u64::MAX,
        }
    }

    /// Whether both have a field of the same name.
    pub(super) fn clashes_with(self, other: Self) -> bool {
        self.fields()
            .iter()
            .any(|(place, _)| other.fields().iter().any(|(taken, _)| place == taken))
    }
}
