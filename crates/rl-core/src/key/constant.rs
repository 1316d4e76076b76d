use super::{AmbiguousKey, KeyExtractor, RequestInfo};
use crate::model::Subject;

/// Counts everyone together.
///
/// For a limit of the whole service, or as the last resort of [`KeyExtractor::or`]: then all who
/// cannot be told apart share one quota, and one of them can use it up for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Constant;

impl KeyExtractor for Constant {
    fn subject<R: RequestInfo>(&self, _: &R) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(Some(Subject::global()))
    }
}
