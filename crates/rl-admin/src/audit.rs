//! Records the changes of each actor in the log and in the history.
//!
//! The log shows only a hash of each subject. The history shows subjects in plain text, for actors
//! who may read it.

use rl_core::{Realm, Subject};
use rl_records::{Record, Refusal, RuleContent, RuleDefinition, Subscription};

use crate::access::{Actor, Role};
use crate::context::Context;

/// The parts of a request that are recorded if the request is refused.
#[derive(Clone, Debug)]
pub(crate) struct RequestSummary {
    pub(crate) method: String,
    /// The path including the ids of subjects, for the history only.
    pub(crate) path: String,
    /// The path without ids, for the log.
    pub(crate) route: String,
    /// The subject that the request names, if there is one.
    pub(crate) subject: Option<Subject>,
}

/// Logs that a record was changed.
pub(crate) fn record_changed(actor: &Actor, action: &str, record: &Record) {
    let actor = actor.name();
    let Record { id, content, revision, .. } = record;
    let (realm, subject) = (content.realm.as_str(), content.subject().redacted());
    let rule = content.rule.as_deref();
    tracing::info!(
        target: "rl_admin::audit", actor, action, %subject, record = %id, revision, realm, rule,
        "record changed"
    );
}

/// Logs that a tier was changed.
pub(crate) fn tier_changed(actor: &Actor, action: &str, tier: &str, revision: i64) {
    let actor = actor.name();
    tracing::info!(target: "rl_admin::audit", actor, action, tier, revision, "tier changed");
}

/// Logs that a rule was changed.
pub(crate) fn rule_changed(actor: &Actor, action: &str, rule: &RuleDefinition) {
    let actor = actor.name();
    let RuleDefinition { content: RuleContent { name, is_shadow, .. }, revision, .. } = rule;
    tracing::info!(
        target: "rl_admin::audit", actor, action, rule = name, in_shadow = is_shadow, revision,
        "rule changed"
    );
}

/// Logs that a subscription was created or changed.
pub(crate) fn subscription_changed(actor: &Actor, action: &str, subscription: &Subscription) {
    let actor = actor.name();
    let Subscription { id, content, revision, .. } = subscription;
    let subject = Subject::consumer(&content.consumer_id).redacted();
    let (tier, status) = (&*content.tier, content.status.as_str());
    tracing::info!(
        target: "rl_admin::audit", actor, action, %subject, subscription = %id, tier, status,
        revision, "subscription changed"
    );
}

/// Logs that the limit of a resource was changed.
pub(crate) fn resource_changed(actor: &Actor, action: &str, resource: &str, revision: i64) {
    let actor = actor.name();
    tracing::info!(
        target: "rl_admin::audit", actor, action, resource, revision, "resource limit changed"
    );
}

/// Logs that a consumer or a key was put into a tier, or removed from it.
pub(crate) fn tier_member_changed(actor: &Actor, subject: &Subject, tier: Option<&str>) {
    let actor = actor.name();
    let realm = subject.realm().as_str();
    let subject = subject.redacted();
    tracing::info!(target: "rl_admin::audit", actor, realm, %subject, tier, "tier member changed");
}

/// Logs a reset of counters, and writes it to the history.
///
/// The counters have already been reset, so a failure to write the history is only logged.
pub(crate) async fn reset(
    context: &Context,
    actor: &Actor,
    subject: &Subject,
    rule: Option<&str>,
    limit: Option<&str>,
) {
    let name = actor.name();
    let realm = subject.realm().as_str();
    let hash = subject.redacted();
    tracing::info!(
        target: "rl_admin::audit", actor = name, realm, subject = %hash, rule, limit, "counters reset"
    );
    let log = context.records.audit_log();
    if let Err(error) = log.note_reset(subject, rule, limit, name).await {
        let kind = error.kind().as_str();
        tracing::error!(
            target: "rl_admin::audit", actor = name, realm, subject = %hash, kind,
            "reset not written to the history"
        );
    }
}

/// Logs that an actor tried to change what is not its own.
pub(crate) fn not_owned(actor: &Actor) {
    let actor = actor.name();
    tracing::warn!(target: "rl_admin::audit", actor, "request refused: not of the actor's applications");
}

/// Logs a request that was refused because of a missing role, and writes it to the history.
///
/// Any token can cause refusals, so only a few per actor are written in a minute. The next entry
/// contains the number of refusals that were not written. The request does not wait for the
/// database.
pub(crate) fn refuse(context: &Context, actor: &Actor, role: Role, request: &RequestSummary) {
    let Some(count) = context.refusals.count(actor.name(), context.now()) else { return };
    let RequestSummary { method, path, route, subject } = request.clone();
    let hash = subject.as_ref().map(|subject| tracing::field::display(subject.redacted()));
    tracing::warn!(
        target: "rl_admin::audit", actor = actor.name(), role = role.as_str(), method, route,
        subject = hash, count, "request refused: missing role"
    );
    let consumer = subject.filter(|subject| *subject.realm() == Realm::Consumer);
    let consumer = consumer.map(|subject| subject.id().to_string());
    let refusal = Refusal { role: role.to_string(), method, path, consumer, count };
    let records = context.records.clone();
    let name = actor.name().to_owned();
    tokio::spawn(async move {
        if let Err(error) = records.audit_log().note_refusal(refusal, &name).await {
            let kind = error.kind().as_str();
            tracing::error!(target: "rl_admin::audit", kind, "refusal not written to the history");
        }
    });
}
