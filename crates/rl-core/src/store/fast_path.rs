use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::policy::LimitSet;
use crate::time::Timestamp;

/// The limiter, as a store sees it that decides on the fast path
/// ([`Store::try_decide`](super::Store::try_decide)).
///
/// The store counts each decision with the limiter before it returns the decision. The limiter does
/// not inspect the result itself, because the compiler copies a decision that its caller inspects.
pub trait FastPath {
    /// Runs the other steps of the limiter, which call [`Store::decide`](super::Store::decide). They
    /// count the decision themselves.
    fn decide_by_steps(&self) -> MaybeReady<Decision>;

    /// Counts a request of one subject that was charged `units` at the time `at`. Returns false, and
    /// counts nothing, if the limiter needs the whole decision. The store then calls
    /// [`count`](Self::count).
    fn try_count_allowed(&self, units: u64, at: Timestamp) -> bool;

    /// Counts a request of one subject that the limits at the positions of `over` denied at the time
    /// `at`. Returns false, and counts nothing, if the limiter needs the whole decision.
    fn try_count_denied(&self, over: LimitSet, at: Timestamp) -> bool;

    /// Counts a decision.
    fn count(&self, decision: &Decision);
}
