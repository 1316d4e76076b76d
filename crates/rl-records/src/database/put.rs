use super::records::records_of;
use super::sql::Sql;
use super::{Kind, Records};
use crate::record::check_name;
use crate::{Author, ChangeError, Expected, Record, RecordContent};

/// The most candidates that an error names.
const MOST_NAMED: usize = 10;

impl Records {
    /// Writes `content` over the one record that its consumer has for the same name, version and bank,
    /// or creates it; records that block do not count.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update); [`ChangeError::NotFound`] if there is no record although one was
    /// expected, and [`ChangeError::Several`] if several records match.
    pub async fn put(
        &self,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let (expected, by) = (expected.into(), by.into());
        let content = content.checked()?;
        check_name("created_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let mut sql = Sql::new("SELECT * FROM rl_records WHERE blocks = 0");
        sql.push(" AND consumer_id = ?", [content.consumer_id.as_str().into()]);
        for (column, value) in [
            (" AND coalesce(api_name, '') = ?", &content.api_name),
            (" AND coalesce(api_version, '') = ?", &content.api_version),
            (" AND coalesce(bank_id, '') = ?", &content.bank_id),
        ] {
            sql.push(column, [value.as_deref().unwrap_or_default().into()]);
        }
        sql.push(" ORDER BY from_date, rate_limiting_id LIMIT ?", [(MOST_NAMED as i64).into()]);
        let rows = sql.on(&mut *edit).await?;
        let mut found = records_of(&rows)?;
        if found.len() > 1 {
            return Err(ChangeError::Several { ids: found.iter().map(|one| one.id).collect() });
        }
        let record = match expected.check(found.pop())? {
            Some(before) => self.overwrite(&mut edit, change, before, content, by).await?,
            None => self.insert(&mut edit, change, content, by).await?,
        };
        edit.commit(Kind::Record, &record.content.consumer_id).await?;
        Ok(record)
    }
}
