use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use rl_core::Realm;
use rl_records::{Day, MonthQuery, UsageQuery};

use crate::context::Context;
use crate::error::{ApiError, ErrorResponses};
use crate::read::{
    Allowed, CanGetRateLimits, Format, MonthParam, PathParam, QueryParams, SearchMonth, SearchUsage,
};
use crate::usage_export::{Export, ExportFormat};
use crate::wire::{RealmText, UsageDays, UsageMonth, UsageOfDay, UsageOfMonth};

/// The number of days of a request that names none.
const DAYS: i64 = 30;

fn realm(realm: Option<RealmText>) -> Realm {
    realm.map_or(Realm::Consumer, |realm| realm.0)
}

/// Lists the calls of subjects under each rule on each day
///
/// The list contains the days that the services have written, which they do every minute. Only
/// services that record usage write them. Without `from` and `to`, the list contains the last 30
/// days. As CSV, the response contains all rows from `after` on: `limit` and `before` are ignored.
/// In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
#[utoipa::path(get, path = "/management/usage", tag = "usage", params(SearchUsage),
    responses((status = OK, description = "The calls of each day",
        content((UsageDays = "application/json"), (String = "text/csv"))), ErrorResponses))]
pub(super) async fn days(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(search): QueryParams<SearchUsage>,
) -> Result<Response, ApiError> {
    let to = search.to.map_or_else(|| Day::of(context.now()), |day| day.0);
    let from = search.from.map_or_else(|| to.plus(1 - DAYS), |day| day.0);
    if from > to {
        return Err(ApiError::invalid("to", "a day that is not before from"));
    }
    let query = UsageQuery {
        realm: realm(search.realm),
        subject: search.subject.map(String::from),
        subjects: search.own,
        rule: search.rule,
        after: search.after,
        before: search.before,
        limit: search.limit.0,
        ..UsageQuery::new(from, to)
    };
    if search.format == Format::Csv {
        return Ok(Export::Days(query).respond(&context.records, ExportFormat::Csv).await?);
    }
    let page = context.records.usage().days(&query).await?;
    let days = page.rows.into_iter().map(|row| UsageOfDay::of(&query.realm, row)).collect();
    let [next, previous] = [page.next, page.previous].map(|at| at.map(|at| at.to_string()));
    Ok(Json(UsageDays { days, next, previous }).into_response())
}

/// Lists the subjects that called in a month, each with its sums
///
/// As CSV, the response contains all subjects from `after` on: `limit` and `before` are ignored.
#[utoipa::path(get, path = "/management/usage/{MONTH}", tag = "usage",
    params(PathParam<MonthParam>, SearchMonth),
    responses((status = OK, description = "The calls of each subject",
        content((UsageMonth = "application/json"), (String = "text/csv"))), ErrorResponses))]
pub(super) async fn month(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(MonthParam(month)): PathParam<MonthParam>,
    QueryParams(search): QueryParams<SearchMonth>,
) -> Result<Response, ApiError> {
    let query = MonthQuery {
        realm: realm(search.realm),
        search: search.search.map(String::from),
        subjects: search.own,
        rule: search.rule,
        order: search.by.into(),
        after: search.after,
        before: search.before,
        limit: search.limit.0,
        ..MonthQuery::new(month)
    };
    if search.format == Format::Csv {
        return Ok(Export::Month(query).respond(&context.records, ExportFormat::Csv).await?);
    }
    let page = context.records.usage().month(&query).await?;
    let rule = query.rule.as_deref();
    let subject = |row| UsageOfMonth::of(month, &query.realm, rule, row);
    let subjects = page.rows.into_iter().map(subject).collect();
    let [next, previous] = [page.next, page.previous].map(|at| at.map(|at| at.to_string()));
    Ok(Json(UsageMonth { subjects, next, previous }).into_response())
}
