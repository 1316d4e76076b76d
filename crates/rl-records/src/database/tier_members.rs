use std::sync::Arc;

use rl_core::Subject;
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::handle::Database;
use super::history::{self, HistoryRow};
use super::kind::Kind;
use super::row::{limits, micros, number, text, time};
use super::statement::Sql;
use super::table;
use super::transaction::Transaction;
use crate::author::Author;
use crate::effect::Effect;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::record::check_name;
use crate::revision::Expected;
use crate::tier::{Tier, TierContent, TierMember, member_key};

/// Returns the kind of a change of membership: the history lists consumers and API keys separately.
pub(super) fn kind(realm: &str) -> Kind {
    if realm == "key" { Kind::Key } else { Kind::Consumer }
}

/// Puts a subject into a tier, or removes it from its tier.
pub(super) async fn set(
    database: &Arc<Database>,
    subject: &Subject,
    tier: Option<&str>,
    expected: Expected,
    author: Author<'_>,
) -> Result<Option<TierMember>, ChangeError<TierMember>> {
    let Some((realm, id)) = member_key(subject) else {
        let expected = "a consumer of at most 250 bytes, or the keyed hash of a key";
        return Err(InvalidField::new("realm", subject.realm().as_str(), expected).into());
    };
    check_name("id", &id)?;
    check_name("updated_by", author.name())?;
    let mut transaction = Transaction::begin(database).await?;
    let before = expected.check(find(&mut *transaction, realm, &id).await?)?;
    if before.is_none() && tier.is_none() {
        return Err(ChangeError::NotFound);
    }
    check_effect(&mut transaction, realm, &id, tier, author).await?;
    let change = transaction.next_change().await?;
    let after = tier.map(|tier| TierMember {
        tier: tier.to_owned(),
        updated_by: author.name().to_owned(),
        updated_at: database.now(),
        revision: change,
    });
    store(&mut transaction, realm, &id, after.as_ref()).await?;
    let row = HistoryRow { change, kind: kind(realm), owner: &id, item: &id, by: author.name() };
    let tier_of = |member: &Option<TierMember>| member.as_ref().map(|member| member.tier.clone());
    let was = tier_of(&before);
    let is = tier_of(&after);
    history::write(&mut transaction, row, was.as_ref(), is.as_ref()).await?;
    transaction.commit(kind(realm), &id).await?;
    Ok(after)
}

/// Checks that the new tier exists. If the change blocks or unblocks the subject, also checks that
/// the author has that right.
async fn check_effect(
    transaction: &mut Transaction,
    realm: &'static str,
    id: &str,
    tier: Option<&str>,
    author: Author<'_>,
) -> Result<(), ChangeError<TierMember>> {
    let before = find_tier(&mut **transaction, realm, id).await?;
    let mut after = None;
    if let Some(name) = tier {
        let found: Option<Tier> = table::find(&mut **transaction, name).await?;
        let missing = || InvalidField::new("tier", name, "the name of a tier that exists");
        after = Some(found.ok_or_else(missing)?.content);
    }
    let aggregation = transaction.aggregation();
    // The policy of a key without a tier is unknown here. It is assumed not to block.
    let is_blocked = |tier: Option<&TierContent>| {
        (tier.is_some() || realm == "consumer") && aggregation.is_blocked_in(tier)
    };
    author.check(Effect::of(is_blocked(before.as_ref()), is_blocked(after.as_ref())))
}

async fn store(
    transaction: &mut Transaction,
    realm: &'static str,
    id: &str,
    member: Option<&TierMember>,
) -> Result<(), DatabaseError> {
    let delete = "DELETE FROM rl_tier_members WHERE realm = ? AND id = ?";
    Sql::with(delete, [realm.into(), id.into()]).on(&mut **transaction).await?;
    let Some(member) = member else { return Ok(()) };
    let insert = Sql::with(
        "INSERT INTO rl_tier_members (realm, id, tier, updated_by, updated_at, revision) \
         VALUES (?, ?, ?, ?, ?, ?)",
        [
            realm.into(),
            id.into(),
            member.tier.as_str().into(),
            member.updated_by.as_str().into(),
            micros(member.updated_at).into(),
            member.revision.into(),
        ],
    );
    insert.on(&mut **transaction).await?;
    Ok(())
}

/// Returns whether a tier has members.
pub(super) async fn exist(
    transaction: &mut Transaction,
    tier: &str,
) -> Result<bool, DatabaseError> {
    let members = "SELECT 1 FROM rl_tier_members WHERE tier = ? LIMIT 1";
    Ok(!Sql::with(members, [tier.into()]).on(&mut **transaction).await?.is_empty())
}

/// Returns the content of the tier that a subject is in, if it is in one.
pub(super) async fn find_tier(
    runner: impl Runner,
    realm: &str,
    id: &str,
) -> Result<Option<TierContent>, DatabaseError> {
    if id.contains('\0') {
        return Ok(None);
    }
    let select = "SELECT t.* FROM rl_tier_members m JOIN rl_tiers t ON t.name = m.tier \
                  WHERE m.realm = ? AND m.id = ?";
    let rows = Sql::with(select, [realm.into(), id.into()]).on(runner).await?;
    let tier = |row: &AnyRow| Ok(TierContent { name: text(row, "name")?, limits: limits(row)? });
    rows.first().map(tier).transpose()
}

/// Returns the membership of a subject, if it is in a tier.
pub(super) async fn find(
    runner: impl Runner,
    realm: &'static str,
    id: &str,
) -> Result<Option<TierMember>, DatabaseError> {
    if id.contains('\0') {
        return Ok(None);
    }
    let select = "SELECT * FROM rl_tier_members WHERE realm = ? AND id = ?";
    let rows = Sql::with(select, [realm.into(), id.into()]).on(runner).await?;
    rows.first().map(member).transpose()
}

fn member(row: &AnyRow) -> Result<TierMember, DatabaseError> {
    Ok(TierMember {
        tier: text(row, "tier")?,
        updated_by: text(row, "updated_by")?,
        updated_at: time(row, "updated_at")?,
        revision: number(row, "revision")?,
    })
}
