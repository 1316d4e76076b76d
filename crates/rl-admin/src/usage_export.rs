//! Exports of the calls of days and months.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream::{StreamExt, once, try_unfold};
use rl_records::{DatabaseError, MonthQuery, Records, UsageOrder, UsageQuery};

use crate::wire::{ExportedRow, UsageOfDay, UsageOfMonth, month_text};

/// The number of rows that one statement reads. An export keeps no more in memory.
const PAGE: u32 = 1_000;

/// The selected rows of an export.
#[derive(Clone, Debug)]
pub(crate) enum Export {
    Days(UsageQuery),
    Month(MonthQuery),
}

/// The text form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    Csv,
    /// A list of objects.
    Json,
}

/// The state of an export.
struct Progress {
    records: Records,
    format: ExportFormat,
    is_first: bool,
    /// The rows that were not sent yet; `None` after the last one.
    rest: Option<Export>,
}

impl Export {
    /// Responds with all rows. Days are in their order, from the cursor of the query on. Subjects of
    /// a month are in the order of their ids. The rows are read while they are sent.
    ///
    /// If the database fails after the first rows, the connection is closed before the end of the
    /// response, so that no client takes a part for the whole.
    ///
    /// # Errors
    ///
    /// Returns an error if the first rows cannot be read.
    pub(crate) async fn respond(
        mut self,
        records: &Records,
        format: ExportFormat,
    ) -> Result<Response, DatabaseError> {
        if let Self::Month(query) = &mut self {
            // The other orders change while the rows are read, and each page would add up the whole
            // month.
            query.order = UsageOrder::Subject;
            query.after = None;
        }
        let (kind, ending) = match format {
            ExportFormat::Csv => ("text/csv; charset=utf-8", "csv"),
            ExportFormat::Json => ("application/json", "json"),
        };
        let disposition = format!("attachment; filename=\"{}.{ending}\"", self.name());
        let records = records.clone();
        let progress = Progress { records, format, is_first: true, rest: Some(self) };
        let (first, progress) = progress.read().await?;
        let rest = try_unfold(progress, async |progress: Progress| match progress.rest {
            Some(_) => progress.read().await.map(Some),
            None => Ok(None),
        });
        let body = Body::from_stream(once(async { Ok(first) }).chain(rest));
        let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, &*disposition)];
        Ok((headers, body).into_response())
    }

    /// Returns the name of the file, which contains no text of a client.
    fn name(&self) -> String {
        match self {
            Self::Days(query) => format!("usage-{}-to-{}", query.from, query.to),
            Self::Month(query) => format!("usage-{}", month_text(query.month)),
        }
    }

    /// Reads a page. Returns its rows, and the rest.
    async fn page(
        self,
        records: &Records,
    ) -> Result<(Vec<ExportedRow>, Option<Self>), DatabaseError> {
        match self {
            Self::Days(query) => {
                let query = UsageQuery { limit: PAGE, before: None, ..query };
                let page = records.usage().days(&query).await?;
                let row = |row| ExportedRow::Day(UsageOfDay::of(&query.realm, row));
                let rows = page.rows.into_iter().map(row).collect();
                let rest = page.next.map(|next| UsageQuery { after: Some(next), ..query.clone() });
                Ok((rows, rest.map(Self::Days)))
            }
            Self::Month(query) => {
                let query = MonthQuery { limit: PAGE, before: None, ..query };
                let page = records.usage().month(&query).await?;
                let (month, rule) = (query.month, query.rule.as_deref());
                let row =
                    |row| ExportedRow::Month(UsageOfMonth::of(month, &query.realm, rule, row));
                let rows = page.rows.into_iter().map(row).collect();
                let rest = page.next.map(|next| MonthQuery { after: Some(next), ..query.clone() });
                Ok((rows, rest.map(Self::Month)))
            }
        }
    }
}

impl Progress {
    /// Reads the next rows as text, with the beginning and the end of the export if they belong
    /// there.
    async fn read(self) -> Result<(String, Self), DatabaseError> {
        let Self { records, format, is_first, rest } = self;
        let time = if let Some(Export::Month(_)) = rest { "month" } else { "day" };
        let (rows, rest) = match rest {
            Some(export) => export.page(&records).await?,
            None => (Vec::new(), None),
        };
        let mut text = String::new();
        match format {
            ExportFormat::Csv => {
                if is_first {
                    text.push_str(time);
                    text.push_str(",realm,subject,rule,allowed,denied,would_be_denied,units\r\n");
                }
                text.extend(rows.iter().map(ExportedRow::csv));
            }
            ExportFormat::Json => {
                text.push_str(if is_first { "[" } else { "" });
                for (index, row) in rows.iter().enumerate() {
                    text.push_str(if is_first && index == 0 { "\n" } else { ",\n" });
                    text.push_str(&serde_json::to_string(row).unwrap_or_default());
                }
                text.push_str(if rest.is_none() { "\n]\n" } else { "" });
            }
        }
        Ok((text, Self { records, format, is_first: false, rest }))
    }
}
