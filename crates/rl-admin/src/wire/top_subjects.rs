use rl_core::Subject;
use serde::Serialize;
use utoipa::ToSchema;

use crate::last_hour::{Ranking, TopEntry};

/// The note of a server that is not the service.
const NO_DECISIONS: &str = "This server is not the service, and decides no requests. Mount this API in \
    the service to list its subjects.";

/// The subjects with the largest counts, the largest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TopSubjects {
    /// The number by which the subjects are ordered: `denied` or `used`.
    #[schema(example = "denied")]
    by: &'static str,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    subjects: Vec<RankedSubject>,
}

/// A subject with many denials or units. The numbers are estimates.
#[derive(Debug, Serialize, ToSchema)]
struct RankedSubject {
    /// The realm of the subject.
    #[schema(example = "consumer")]
    realm: String,
    /// The subject, if the actor has the role `CanSeeSubjectIds`.
    #[schema(example = "consumer/abc123")]
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// The keyed hash of the subject, as in the log.
    #[schema(example = "9f8e7d6c5b4a3928")]
    hash: String,
    /// The denials or granted units since the limiter was built.
    count: u64,
    /// The number by which `count` may be too high.
    error: u64,
    /// The denials or granted units of the last hour.
    last_hour: u64,
    /// The rule of the last recorded denial; `null` for units, and if the limiter has no rules.
    #[schema(required = true, example = "consumers")]
    rule: Option<String>,
    /// The limit of the last recorded denial; `null` for units, and for a denial without a limit.
    #[schema(required = true, example = "minute")]
    limit: Option<String>,
}

impl TopSubjects {
    pub(crate) fn of(
        ranking: Ranking,
        entries: impl Iterator<Item = TopEntry>,
        has_ids: bool,
        is_stand_alone: bool,
    ) -> Self {
        let named = |name: &Option<(String, String)>, of: fn(&(String, String)) -> &String| {
            name.as_ref().map(of).filter(|name| !name.is_empty()).cloned()
        };
        let subject = |entry: TopEntry| RankedSubject {
            rule: named(&entry.denied_by, |(rule, _)| rule),
            limit: named(&entry.denied_by, |(_, limit)| limit),
            realm: entry.subject.realm().as_str().to_owned(),
            subject: has_ids.then(|| name(&entry.subject)),
            hash: entry.subject.redacted().to_string(),
            count: entry.count,
            error: entry.error,
            last_hour: entry.last_hour,
        };
        Self {
            by: ranking.as_str(),
            note: is_stand_alone.then_some(NO_DECISIONS),
            subjects: entries.map(subject).collect(),
        }
    }
}

/// Returns a subject in the form `realm/id`.
fn name(subject: &Subject) -> String {
    format!("{}/{}", subject.realm().as_str(), subject.id())
}
