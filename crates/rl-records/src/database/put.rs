use super::Records;
use super::records::records_of;
use super::sql::Sql;
use crate::record::check_name;
use crate::{ChangeError, Record, RecordContent};

impl Records {
    /// Writes `content` over the one record that its consumer has for the same name, version and bank,
    /// or creates it; records that block do not count.
    ///
    /// With `revisions`, nobody may have changed the record since it had one of them.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update); [`ChangeError::NotFound`] if there is no record although `revisions` were given, and
    /// [`ChangeError::Several`] if there is more than one record: it is not clear which is meant.
    pub async fn put(
        &self,
        content: RecordContent,
        revisions: Option<&[i64]>,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        let content = content.checked()?;
        check_name("created_by", by)?;
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
        sql.push(" LIMIT ?", [2.into()]);
        let rows = sql.on(&mut *edit).await?;
        let mut found = records_of(&rows)?;
        match (found.pop(), found.is_empty(), revisions) {
            (Some(_), false, _) => Err(ChangeError::Several),
            (Some(record), true, Some(revisions)) if !revisions.contains(&record.revision) => {
                Err(ChangeError::Conflict { current: Box::new(record) })
            }
            (Some(before), true, _) => self.overwrite(edit, change, before, content, by).await,
            (None, _, Some(_)) => Err(ChangeError::NotFound),
            (None, _, None) => self.insert(edit, change, content, by).await,
        }
    }
}
