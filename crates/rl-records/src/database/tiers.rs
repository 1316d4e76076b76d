use rl_core::FailureKind;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::edit::Edit;
use super::failure::failed;
use super::sql::{Sql, Statement};
use super::{Kind, Records, micros, time_of};
use crate::author::Effect;
use crate::record::check_name;
use crate::{
    Author, CallLimits, CallPeriod, ChangeError, DatabaseError, Expected, InvalidField, Tier,
    TierContent,
};

impl Records {
    /// Stores a new tier.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, [`ChangeError::Conflict`] if there is a tier of
    /// this name, and an error if the database does not answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::Subject;
    /// use rl_records::{CallLimits, Records, TierContent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use rl_core::time::{Clock, SystemClock};
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let limits = CallLimits::from_numbers([10, 100, -1, -1, -1, -1])?;
    /// records.create_tier(TierContent { name: "gold".into(), limits }, "alice").await?;
    ///
    /// records.set_tier(&Subject::consumer("abc123"), Some("gold"), 0, "alice").await?;
    /// let active = records.active_limits("abc123", SystemClock.now()).await?;
    /// assert_eq!((active.tier(), active.limits()), (Some("gold"), limits));
    /// # Ok(()) }
    /// ```
    pub async fn create_tier(
        &self,
        content: TierContent,
        by: &str,
    ) -> Result<Tier, ChangeError<Tier>> {
        let content = content.checked()?;
        check_name("created_by", by)?;
        let (mut edit, change) = self.begin().await?;
        if let Some(current) = read_tier(&mut *edit, &content.name).await? {
            return Err(ChangeError::Conflict { current: Box::new(current) });
        }
        let now = self.clock().now();
        let [second, minute, hour, day, week, month] = content.limits.numbers();
        sqlx::query(
            "INSERT INTO rl_tiers (name, per_second_call_limit, per_minute_call_limit, \
             per_hour_call_limit, per_day_call_limit, per_week_call_limit, per_month_call_limit, \
             created_by, updated_by, created_at, updated_at, revision) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(&content.name)
        .bind(second)
        .bind(minute)
        .bind(hour)
        .bind(day)
        .bind(week)
        .bind(month)
        .bind(by)
        .bind(by)
        .bind(micros(now))
        .bind(micros(now))
        .bind(change)
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Tier, &content.name, by);
        entry.write(&mut *edit, &content.name, None, Some(&content)).await?;
        edit.commit(Kind::Tier, &content.name).await?;
        let (created_by, updated_by) = (by.to_owned(), by.to_owned());
        let (created_at, updated_at, revision) = (now, now, change);
        Ok(Tier { content, created_by, updated_by, created_at, updated_at, revision })
    }

    /// The tier of this name, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn read_tier(&self, name: &str) -> Result<Option<Tier>, DatabaseError> {
        read_tier(&self.inner.reads, name).await
    }

    /// Tiers by name: at most `limit`, those after the name `after`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn list_tiers(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Tier>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_tiers WHERE");
        let after = after.unwrap_or_default().replace('\0', "\u{1}");
        let limit = i64::from(limit.clamp(1, 1_000));
        sql.push(" name > ? ORDER BY name LIMIT ?", [after.into(), limit.into()]);
        let rows = sql.on(&self.inner.reads).await?;
        rows.iter().map(tier_of).collect()
    }

    /// Writes `content` over the tier of its name, if that is as `expected`. It binds the next request of every member.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, [`ChangeError::NotFound`] if there is no such
    /// tier, [`ChangeError::Conflict`] if it is not as expected, and an error if `by` may not block or
    /// unblock and the tier does that to its members, or if the database does not answer.
    pub async fn update_tier(
        &self,
        content: TierContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Tier, ChangeError<Tier>> {
        let (expected, author) = (expected.into(), by.into());
        let by = author.name();
        let content = content.checked()?;
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.check_existing(read_tier(&mut *edit, &content.name).await?)?;
        let blocked = |tier| self.inner.aggregation.is_blocked_in(Some(tier));
        let effect = Effect::of(blocked(&before.content), blocked(&content));
        if author.check::<Tier>(effect).is_err() && has_members(&mut edit, &content.name).await? {
            author.check(effect)?;
        }
        let after = Tier {
            content,
            updated_by: by.to_owned(),
            updated_at: self.clock().now(),
            revision: change,
            ..before.clone()
        };
        let content = &after.content;
        let [second, minute, hour, day, week, month] = content.limits.numbers();
        sqlx::query(
            "UPDATE rl_tiers SET per_second_call_limit = $2, per_minute_call_limit = $3, \
             per_hour_call_limit = $4, per_day_call_limit = $5, per_week_call_limit = $6, \
             per_month_call_limit = $7, updated_by = $8, updated_at = $9, revision = $10 \
             WHERE name = $1",
        )
        .bind(&content.name)
        .bind(second)
        .bind(minute)
        .bind(hour)
        .bind(day)
        .bind(week)
        .bind(month)
        .bind(&after.updated_by)
        .bind(micros(after.updated_at))
        .bind(after.revision)
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Tier, &content.name, by);
        let name = &content.name;
        entry.write(&mut *edit, name, Some(&before.content), Some(content)).await?;
        edit.commit(Kind::Tier, name).await?;
        Ok(after)
    }

    /// Deletes a tier that nobody is in, if that is as `expected`; returns it as it was.
    ///
    /// # Errors
    ///
    /// Returns an error if it has members, who would fall to the defaults and perhaps to no limit;
    /// [`ChangeError::NotFound`] if there is no such tier, [`ChangeError::Conflict`] if it is not as
    /// expected, and an error if the database does not answer.
    pub async fn delete_tier(
        &self,
        name: &str,
        expected: impl Into<Expected>,
        by: &str,
    ) -> Result<Tier, ChangeError<Tier>> {
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.into().check_existing(read_tier(&mut *edit, name).await?)?;
        if has_members(&mut edit, name).await? {
            let expected = "a tier without members: move them to another one first";
            return Err(InvalidField::new("name", name, expected).into());
        }
        sqlx::query("DELETE FROM rl_tiers WHERE name = $1").bind(name).on(&mut *edit).await?;
        let entry = self.entry(change, Kind::Tier, name, by);
        entry.write(&mut *edit, name, Some(&before.content), None).await?;
        edit.commit(Kind::Tier, name).await?;
        Ok(before)
    }
}

async fn has_members(edit: &mut Edit, tier: &str) -> Result<bool, DatabaseError> {
    let members = sqlx::query("SELECT 1 FROM rl_tier_members WHERE tier = $1 LIMIT 1");
    Ok(!members.bind(tier).on(&mut **edit).await?.is_empty())
}

pub(super) async fn read_tier(
    place: impl Place,
    name: &str,
) -> Result<Option<Tier>, DatabaseError> {
    if name.contains('\0') {
        return Ok(None);
    }
    let rows = sqlx::query("SELECT * FROM rl_tiers WHERE name = $1").bind(name).on(place).await?;
    rows.first().map(tier_of).transpose()
}

fn tier_of(row: &AnyRow) -> Result<Tier, DatabaseError> {
    let text = |column: &str| row.try_get::<String, _>(column).map_err(failed);
    let time = |column: &str| time_of(row, column).map_err(failed);
    Ok(Tier {
        content: content_of(row)?,
        created_by: text("created_by")?,
        updated_by: text("updated_by")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        revision: row.try_get("revision").map_err(failed)?,
    })
}

pub(super) fn content_of(row: &AnyRow) -> Result<TierContent, DatabaseError> {
    let mut numbers = [0; 6];
    for (period, number) in CallPeriod::ALL.into_iter().zip(&mut numbers) {
        *number = row.try_get(period.field()).map_err(failed)?;
    }
    let limits = CallLimits::from_numbers(numbers);
    let limits = limits.map_err(|_| DatabaseError::new(FailureKind::Corrupt))?;
    Ok(TierContent { name: row.try_get("name").map_err(failed)?, limits })
}
