//! Every change is a line in the log, with its actor.

use rl_core::Subject;

use crate::access::{Actor, Role};

/// A record or the limit of a resource was changed; `item` is its id or name.
pub(crate) fn changed(actor: &Actor, action: &str, owner: &str, item: &str, revision: i64) {
    let actor = actor.name();
    tracing::info!(target: "rl_admin::audit", actor, action, owner, item, revision, "changed");
}

/// Counters were reset; of the subject no more than a fingerprint is shown, as in all lines.
pub(crate) fn reset(actor: &Actor, subject: &Subject, limit: Option<&str>) {
    let (actor, realm) = (actor.name(), subject.realm().as_str());
    let subject = subject.redacted();
    tracing::info!(target: "rl_admin::audit", actor, realm, %subject, limit, "counters reset");
}

/// A consumer or a key was put into a tier, or taken out of it.
pub(crate) fn moved(actor: &Actor, subject: &Subject, tier: Option<&str>) {
    let (actor, realm) = (actor.name(), subject.realm().as_str());
    let subject = subject.redacted();
    tracing::info!(target: "rl_admin::audit", actor, realm, %subject, tier, "tier set");
}

/// Somebody asked to edit what is under applications of others.
pub(crate) fn not_owned(actor: &Actor) {
    let actor = actor.name();
    tracing::warn!(target: "rl_admin::audit", actor, "refused: applications of others");
}

/// Somebody asked for what they may not do.
pub(crate) fn refused(actor: &Actor, role: Role) {
    let (actor, role) = (actor.name(), role.as_str());
    tracing::warn!(target: "rl_admin::audit", actor, role, "refused: the role is missing");
}
