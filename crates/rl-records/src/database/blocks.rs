use rl_core::time::Timestamp;

use super::records::overlapping;
use super::{Kind, Records};
use crate::record::check_name;
use crate::{Author, ChangeError, DatabaseError, Expected, Record, RecordContent};

impl Records {
    /// Returns the block of a consumer that ends last, of those that hold now.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn block_of(&self, consumer: &str) -> Result<Option<Record>, DatabaseError> {
        let now = self.clock().now();
        let mut blocks = blocks(overlapping(&self.inner.reads, consumer, now, now).await?);
        Ok(blocks.pop())
    }

    /// Blocks a consumer from now until a time, in one step: the last of several concurrent calls decides.
    ///
    /// If the consumer is blocked already, the block that ends last must be as `expected`. It then ends at
    /// the new time, and other blocks that would last longer are deleted.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`update`](Self::update).
    pub async fn block(
        &self,
        consumer: &str,
        until: Timestamp,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let (expected, by) = (expected.into(), by.into());
        let now = self.clock().now();
        let content = RecordContent::block(consumer, now, until).checked()?;
        check_name("created_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let mut found = blocks(overlapping(&mut *edit, consumer, now, now).await?);
        let block = match expected.check(found.pop())? {
            Some(last) => {
                let content = RecordContent { to_date: until, ..last.content.clone() };
                self.overwrite(&mut edit, change, last, content, by).await?
            }
            None => self.insert(&mut edit, change, content, by).await?,
        };
        for longer in found.iter().filter(|other| other.content.to_date > until) {
            let change = edit.next_change().await?;
            self.remove(&mut edit, change, longer, by).await?;
        }
        edit.commit(Kind::Record, consumer).await?;
        Ok(block)
    }

    /// Ends all blocks of a consumer that hold now, in one step, if the one that ends last is as
    /// `expected`; returns that one.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] if the consumer is not blocked; else as [`delete`](Self::delete).
    pub async fn unblock(
        &self,
        consumer: &str,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let (expected, by) = (expected.into(), by.into());
        let now = self.clock().now();
        check_name("updated_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let mut found = blocks(overlapping(&mut *edit, consumer, now, now).await?);
        let last = expected.check_existing(found.pop())?;
        self.remove(&mut edit, change, &last, by).await?;
        for other in &found {
            let change = edit.next_change().await?;
            self.remove(&mut edit, change, other, by).await?;
        }
        edit.commit(Kind::Record, consumer).await?;
        Ok(last)
    }
}

/// Returns the blocks among these records, ordered by their end.
fn blocks(records: Vec<Record>) -> Vec<Record> {
    let mut blocks: Vec<_> = records.into_iter().filter(|record| record.content.blocks).collect();
    blocks.sort_by_key(|record| record.content.to_date);
    blocks
}
