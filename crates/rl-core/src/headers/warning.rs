//! The warning that a limit in shadow would have denied the request.

use super::HeaderLine;
use super::names::place;
use super::text::Text;
use crate::decision::Decision;

/// Where its name stands.
pub(super) const NAME: usize = place("x-rate-limit-warning");

/// Writes the names of such limits and how much they allow, if there are any.
pub(super) fn write(decision: &Decision, text: &mut Text, each: &mut dyn FnMut(HeaderLine<'_>)) {
    if !decision.has_shadow() {
        return;
    }
    let mut before = "over limits that are not enforced yet: ";
    text.restart(u64::MAX);
    for limit in decision.over_in_shadow() {
        text.push(before);
        text.push(limit.name());
        text.push("=");
        text.number(limit.max());
        before = ", ";
    }
    if !text.as_str().is_empty() {
        each(text.line(NAME, true));
    }
}
