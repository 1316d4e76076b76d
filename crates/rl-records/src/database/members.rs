use rl_core::Subject;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::failure::failed;
use super::sql::Statement;
use super::tiers::{content_of, read_tier};
use super::{Kind, Records, micros, time_of};
use crate::author::Effect;
use crate::record::check_name;
use crate::tier::member_key;
use crate::{
    Author, Change, ChangeError, DatabaseError, Expected, HistoryQuery, InvalidField, TierContent,
    TierMember,
};

impl Records {
    /// Puts a consumer or an API key into a tier, or takes it out with `None`, if its assignment is as
    /// `expected`: a revision, or 0 for none. Returns the new assignment.
    ///
    /// A key is the subject that [`KeySecret`](rl_core::key::KeySecret) makes of it; the key itself is
    /// stored nowhere.
    ///
    /// # Errors
    ///
    /// Returns an error if `who` is neither, or if there is no such tier; [`ChangeError::NotFound`] if
    /// it is in no tier although one was expected, [`ChangeError::Conflict`] if it is in another one,
    /// and an error if `by` may not block or unblock and the tier does that, or if the database does
    /// not answer. Without an assignment, `None` is [`ChangeError::NotFound`], too.
    pub async fn set_tier(
        &self,
        who: &Subject,
        tier: Option<&str>,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Option<TierMember>, ChangeError<TierMember>> {
        let (expected, author) = (expected.into(), by.into());
        let by = author.name();
        let Some((realm, id)) = member_key(who) else {
            let expected = "a consumer of at most 250 bytes, or the keyed hash of a key";
            return Err(InvalidField::new("realm", who.realm().as_str(), expected).into());
        };
        check_name("id", &id)?;
        check_name("updated_by", by)?;
        let kind = if realm == "key" { Kind::Key } else { Kind::Consumer };
        let (mut edit, change) = self.begin().await?;
        let before = expected.check(read(&mut *edit, realm, &id).await?)?;
        if before.is_none() && tier.is_none() {
            return Err(ChangeError::NotFound);
        }
        let after = match tier {
            Some(tier) => match read_tier(&mut *edit, tier).await? {
                Some(found) => Some(found.content),
                None => {
                    let expected = "the name of a tier that exists";
                    return Err(InvalidField::new("tier", tier, expected).into());
                }
            },
            None => None,
        };
        let was = tier_limits(&mut *edit, realm, &id).await?;
        // The policy of a key without a tier is unknown here, and counts as not blocking.
        let is_blocked = |tier: Option<&TierContent>| {
            (tier.is_some() || kind == Kind::Consumer) && self.inner.aggregation.is_blocked_in(tier)
        };
        author.check(Effect::of(is_blocked(was.as_ref()), is_blocked(after.as_ref())))?;
        let now = self.clock().now();
        sqlx::query("DELETE FROM rl_tier_members WHERE realm = $1 AND id = $2")
            .bind(realm)
            .bind(&id)
            .on(&mut *edit)
            .await?;
        if let Some(tier) = tier {
            sqlx::query(
                "INSERT INTO rl_tier_members (realm, id, tier, updated_by, updated_at, revision) \
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(realm)
            .bind(&id)
            .bind(tier)
            .bind(by)
            .bind(micros(now))
            .bind(change)
            .on(&mut *edit)
            .await?;
        }
        let (before, after) = (before.map(|member| member.tier), tier.map(ToOwned::to_owned));
        let entry = self.entry(change, kind, &id, by);
        entry.write(&mut *edit, &id, before.as_ref(), after.as_ref()).await?;
        edit.commit(kind, &id).await?;
        let (updated_by, revision) = (by.to_owned(), change);
        Ok(after.map(|tier| TierMember { tier, updated_by, updated_at: now, revision }))
    }

    /// The tier that a consumer or an API key is in, if any.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn tier_of(&self, who: &Subject) -> Result<Option<TierMember>, DatabaseError> {
        match member_key(who) {
            Some((realm, id)) => read(&self.inner.reads, realm, &id).await,
            None => Ok(None),
        }
    }

    /// In which tiers a consumer or an API key has been, the newest change first; of the query, its
    /// page counts.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn tier_history_of(
        &self,
        who: &Subject,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<String>>, DatabaseError> {
        let Some((realm, id)) = member_key(who) else { return Ok(Vec::new()) };
        let kind = if realm == "key" { Kind::Key } else { Kind::Consumer };
        let query = HistoryQuery { of: Some(id), item: None, ..query.clone() };
        self.changes(kind, &query).await
    }
}

/// The limits of the tier that this one is in.
pub(super) async fn tier_limits(
    place: impl Place,
    realm: &'static str,
    id: &str,
) -> Result<Option<TierContent>, DatabaseError> {
    if id.contains('\0') {
        return Ok(None);
    }
    let rows = sqlx::query(
        "SELECT t.* FROM rl_tier_members m JOIN rl_tiers t ON t.name = m.tier \
         WHERE m.realm = $1 AND m.id = $2",
    )
    .bind(realm)
    .bind(id)
    .on(place)
    .await?;
    rows.first().map(content_of).transpose()
}

async fn read(
    place: impl Place,
    realm: &'static str,
    id: &str,
) -> Result<Option<TierMember>, DatabaseError> {
    if id.contains('\0') {
        return Ok(None);
    }
    let rows = sqlx::query("SELECT * FROM rl_tier_members WHERE realm = $1 AND id = $2")
        .bind(realm)
        .bind(id)
        .on(place)
        .await?;
    rows.first().map(member_of).transpose()
}

fn member_of(row: &AnyRow) -> Result<TierMember, DatabaseError> {
    Ok(TierMember {
        tier: row.try_get("tier").map_err(failed)?,
        updated_by: row.try_get("updated_by").map_err(failed)?,
        updated_at: time_of(row, "updated_at").map_err(failed)?,
        revision: row.try_get("revision").map_err(failed)?,
    })
}
