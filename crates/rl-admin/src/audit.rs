//! Records the changes of each actor in the log and in the history.
//!
//! The log shows subjects only by a hash. The history has them in clear, for actors who may read it.

use rl_core::{Realm, Subject};
use rl_records::Refusal;

use crate::Admin;
use crate::access::{Actor, Role};
use crate::read::Asked;

mod refusals;

pub(crate) use refusals::Refusals;

/// Logs that a record of a consumer was changed.
pub(crate) fn record_changed(
    actor: &Actor,
    action: &str,
    consumer: &str,
    record: &str,
    revision: i64,
) {
    let (actor, subject) = (actor.name(), Subject::consumer(consumer).redacted());
    tracing::info!(
        target: "rl_admin::audit", actor, action, %subject, record, revision, "record changed"
    );
}

/// Logs that a tier was changed.
pub(crate) fn tier_changed(actor: &Actor, action: &str, tier: &str, revision: i64) {
    let actor = actor.name();
    tracing::info!(target: "rl_admin::audit", actor, action, tier, revision, "tier changed");
}

/// Logs that the limit of a resource was changed.
pub(crate) fn resource_changed(actor: &Actor, action: &str, resource: &str, revision: i64) {
    let actor = actor.name();
    tracing::info!(
        target: "rl_admin::audit", actor, action, resource, revision, "resource limit changed"
    );
}

/// Logs that a consumer or a key was put into a tier, or taken out of it.
pub(crate) fn moved(actor: &Actor, subject: &Subject, tier: Option<&str>) {
    let (actor, realm) = (actor.name(), subject.realm().as_str());
    let subject = subject.redacted();
    tracing::info!(target: "rl_admin::audit", actor, realm, %subject, tier, "tier member changed");
}

/// Logs a reset of counters, and writes it to the history.
///
/// The counters are reset already, so a failure to write the history is only logged.
pub(crate) async fn reset(admin: &Admin, actor: &Actor, subject: &Subject, limit: Option<&str>) {
    let (name, realm, hash) = (actor.name(), subject.realm().as_str(), subject.redacted());
    tracing::info!(
        target: "rl_admin::audit", actor = name, realm, subject = %hash, limit, "counters reset"
    );
    if let Err(error) = admin.records().audit_log().note_reset(subject, limit, name).await {
        let kind = error.kind().as_str();
        tracing::error!(
            target: "rl_admin::audit", actor = name, realm, subject = %hash, kind,
            "reset not written to the history"
        );
    }
}

/// Logs that an actor tried to edit a resource of other applications.
pub(crate) fn not_owned(actor: &Actor) {
    let actor = actor.name();
    tracing::warn!(target: "rl_admin::audit", actor, "refused: applications of others");
}

/// Logs a request that was refused because of a missing role, and writes it to the history.
///
/// Every token can cause refusals, so only a few of each actor are written in a minute. The next entry
/// says how many refusals it stands for. The request does not wait for the database.
pub(crate) fn refuse(admin: &Admin, actor: &Actor, role: Role, asked: &Asked) {
    let Some(count) = admin.refusals().count(actor.name(), admin.now()) else { return };
    let Asked { method, path, route, subject } = asked.clone();
    let hash = subject.as_ref().map(|subject| tracing::field::display(subject.redacted()));
    tracing::warn!(
        target: "rl_admin::audit", actor = actor.name(), role = role.as_str(), method, route,
        subject = hash, count, "request refused: missing role"
    );
    let consumer = subject.filter(|subject| *subject.realm() == Realm::Consumer);
    let consumer = consumer.map(|subject| subject.id().to_string());
    let refusal = Refusal { role: role.to_string(), method, path, consumer, count };
    let (records, name) = (admin.records().clone(), actor.name().to_owned());
    tokio::spawn(async move {
        if let Err(error) = records.audit_log().note_refusal(refusal, &name).await {
            let kind = error.kind().as_str();
            tracing::error!(target: "rl_admin::audit", kind, "refusal not written to the history");
        }
    });
}
