use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::failure::failed;
use super::sql::{Sql, Statement};
use super::{Kind, Records, micros, time_of};
use crate::record::check_name;
use crate::{ChangeError, DatabaseError, Expected, ResourceLimit, ResourceLimitContent};

impl Records {
    /// Stores the limit of a new resource.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, [`ChangeError::Conflict`] if there is a limit of
    /// this name, and an error if the database does not answer.
    pub async fn create_resource(
        &self,
        content: ResourceLimitContent,
        by: &str,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        let content = content.checked()?;
        check_name("created_by", by)?;
        let (mut edit, change) = self.begin().await?;
        if let Some(current) = read(&mut *edit, &content.name).await? {
            return Err(ChangeError::Conflict { current: Box::new(current) });
        }
        let now = self.clock().now();
        sqlx::query(
            "INSERT INTO rl_resource_limits (name, apps, max_permits, rate, \
             created_by, updated_by, created_at, updated_at, revision) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(&content.name)
        .bind(content.apps.join("\n"))
        .bind(content.max_permits.cast_signed())
        .bind(content.rate.cast_signed())
        .bind(by)
        .bind(by)
        .bind(micros(now))
        .bind(micros(now))
        .bind(change)
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Resource, &content.name, by);
        entry.write(&mut *edit, &content.name, None, Some(&content)).await?;
        edit.commit(Kind::Resource, &content.name).await?;
        let (created_by, updated_by) = (by.to_owned(), by.to_owned());
        let (created_at, updated_at, revision) = (now, now, change);
        Ok(ResourceLimit { content, created_by, updated_by, created_at, updated_at, revision })
    }

    /// The limit of the resource of this name, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn read_resource(&self, name: &str) -> Result<Option<ResourceLimit>, DatabaseError> {
        read(&self.inner.reads, name).await
    }

    /// Limits of resources by name: at most `limit`, those after the name `after`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn list_resources(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ResourceLimit>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_resource_limits WHERE");
        let after = after.unwrap_or_default().replace('\0', "\u{1}");
        let limit = i64::from(limit.clamp(1, 1_000));
        sql.push(" name > ? ORDER BY name LIMIT ?", [after.into(), limit.into()]);
        let rows = sql.on(&self.inner.reads).await?;
        rows.iter().map(resource_of).collect()
    }

    /// [Limits of resources](Self::list_resources) that list this application.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn list_resources_of(
        &self,
        app: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ResourceLimit>, DatabaseError> {
        // No stored name has a control character: this finds nothing, as it should.
        let app = app.replace(['\0', '\n'], "\u{1}");
        let after = after.unwrap_or_default().replace('\0', "\u{1}");
        let mut sql = Sql::new("SELECT * FROM rl_resource_limits WHERE");
        // One line of the list is this one: exactly, on both databases.
        sql.push(
            " replace('\n' || apps || '\n', ?, '') <> '\n' || apps || '\n'",
            [format!("\n{app}\n").into()],
        );
        let limit = i64::from(limit.clamp(1, 1_000));
        sql.push(" AND name > ? ORDER BY name LIMIT ?", [after.into(), limit.into()]);
        let rows = sql.on(&self.inner.reads).await?;
        rows.iter().map(resource_of).collect()
    }

    /// Writes `content` over the limit of its name, if that is as `expected`.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, [`ChangeError::NotFound`] if there is no such
    /// limit, [`ChangeError::Conflict`] if it is not as expected, and an error if the database does
    /// not answer.
    pub async fn update_resource(
        &self,
        content: ResourceLimitContent,
        expected: impl Into<Expected>,
        by: &str,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        let content = content.checked()?;
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.into().check_existing(read(&mut *edit, &content.name).await?)?;
        let after = ResourceLimit {
            content,
            updated_by: by.to_owned(),
            updated_at: self.clock().now(),
            revision: change,
            ..before.clone()
        };
        let content = &after.content;
        sqlx::query(
            "UPDATE rl_resource_limits SET apps = $2, max_permits = $3, rate = $4, \
             updated_by = $5, updated_at = $6, revision = $7 WHERE name = $1",
        )
        .bind(&content.name)
        .bind(content.apps.join("\n"))
        .bind(content.max_permits.cast_signed())
        .bind(content.rate.cast_signed())
        .bind(by)
        .bind(micros(after.updated_at))
        .bind(after.revision)
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Resource, &content.name, by);
        let name = &content.name;
        entry.write(&mut *edit, name, Some(&before.content), Some(content)).await?;
        edit.commit(Kind::Resource, name).await?;
        Ok(after)
    }

    /// Deletes the limit of a resource, if that is as `expected`; returns it as it
    /// was.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] if there is no such limit, [`ChangeError::Conflict`] if it is not as
    /// expected, and an error if the database does not answer.
    pub async fn delete_resource(
        &self,
        name: &str,
        expected: impl Into<Expected>,
        by: &str,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.into().check_existing(read(&mut *edit, name).await?)?;
        sqlx::query("DELETE FROM rl_resource_limits WHERE name = $1")
            .bind(name)
            .on(&mut *edit)
            .await?;
        let entry = self.entry(change, Kind::Resource, name, by);
        entry.write(&mut *edit, name, Some(&before.content), None).await?;
        edit.commit(Kind::Resource, name).await?;
        Ok(before)
    }
}

pub(super) async fn read(
    place: impl Place,
    name: &str,
) -> Result<Option<ResourceLimit>, DatabaseError> {
    if name.contains('\0') {
        return Ok(None);
    }
    let rows = sqlx::query("SELECT * FROM rl_resource_limits WHERE name = $1")
        .bind(name)
        .on(place)
        .await?;
    rows.first().map(resource_of).transpose()
}

fn resource_of(row: &AnyRow) -> Result<ResourceLimit, DatabaseError> {
    let text = |column: &str| row.try_get::<String, _>(column).map_err(failed);
    let number = |column: &str| row.try_get::<i64, _>(column).map_err(failed);
    let time = |column: &str| time_of(row, column).map_err(failed);
    let apps = text("apps")?;
    Ok(ResourceLimit {
        content: ResourceLimitContent {
            name: text("name")?,
            apps: apps.lines().map(ToOwned::to_owned).collect(),
            max_permits: number("max_permits")?.cast_unsigned(),
            rate: number("rate")?.cast_unsigned(),
        },
        created_by: text("created_by")?,
        updated_by: text("updated_by")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        revision: number("revision")?,
    })
}
