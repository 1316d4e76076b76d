//! `/v1/…`: decisions for programs that call the server themselves.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rl_core::Permit;
use rl_core::store::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

use super::access::peer;
use super::check_answer::CheckAnswer;
use super::check_input::{AcquireInput, CheckInput, check_cost};
use super::json_body::{self, require_json};
use super::problem::Problem;
use super::settings::HttpState;
use crate::permits::HeldPermit;
use crate::request::Selection;

/// Decides, and charges the cost if it is allowed
///
/// All subjects, or all rules that match the request, are charged in one step, or none.
#[utoipa::path(post, path = "/v1/check", tag = "decisions", request_body = CheckInput,
    responses(
        (status = 200, body = CheckAnswer, description = "Allowed"),
        (status = 429, body = CheckAnswer, description = "Denied"),
        (status = 503, body = CheckAnswer, description = "Not decided, and rejected then"),
        CallResponses,
    ))]
pub(super) async fn check(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<CheckAnswer, Problem> {
    decide(&state, request, Mode::Check).await
}

/// Reports what a check would decide, and charges nothing
#[utoipa::path(post, path = "/v1/peek", tag = "decisions", request_body = CheckInput,
    responses(
        (status = 200, body = CheckAnswer, description = "It would be allowed"),
        (status = 429, body = CheckAnswer, description = "It would be denied"),
        (status = 503, body = CheckAnswer, description = "Not decided, and rejected then"),
        CallResponses,
    ))]
pub(super) async fn peek(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<CheckAnswer, Problem> {
    decide(&state, request, Mode::Peek).await
}

/// Charges the whole cost, even beyond the limits, because it has been used already
#[utoipa::path(post, path = "/v1/charge", tag = "decisions", request_body = CheckInput,
    responses(
        (status = 200, body = CheckAnswer, description = "Charged"),
        (status = 429, body = CheckAnswer, description = "Not charged, because the subject is blocked or has no key"),
        (status = 503, body = CheckAnswer, description = "Not charged, because the store cannot be reached"),
        CallResponses,
    ))]
pub(super) async fn charge(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<CheckAnswer, Problem> {
    decide(&state, request, Mode::Charge).await
}

/// Decides like a check, and returns a permit with which the final cost is set later
///
/// Until then the permit holds the places of concurrency limits. A permit that expires leaves the
/// charge as it is.
#[utoipa::path(post, path = "/v1/acquire", tag = "permits", request_body = AcquireInput,
    responses(
        (status = 200, body = AcquireAnswer, description = "Allowed"),
        (status = 429, body = AcquireAnswer, description = "Denied"),
        (status = 503, body = AcquireAnswer, description = "Not decided, and rejected then; or `code` and `message`: the caller holds too many permits, and nothing was charged"),
        CallResponses,
    ))]
pub(super) async fn acquire(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<AcquireAnswer, Problem> {
    let caller = peer(request.extensions());
    let (input, ttl) = read::<AcquireInput>(request).await?.into_parts()?;
    let request = input.into_request(state.service.limiter())?;
    let place = state.settings.permits.place(caller).ok_or_else(|| {
        let message =
            "the caller holds its share of the permits: settle permits, or set a shorter ttl";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let mut reply = state.service.acquire(&request).await;
    let names_rules = matches!(request.selection, Selection::Rules(_));
    let permit = reply.permit.take().map(|permit| {
        let permit = HeldPermit::new(permit, names_rules, place);
        state.settings.permits.insert(permit, Duration::from_secs(ttl))
    });
    let expires_in = permit.is_some().then_some(ttl);
    Ok(AcquireAnswer { decision: CheckAnswer::new(&reply), permit, expires_in })
}

/// Sets the final cost of a permit
///
/// Units that were charged and not used are refunded. Units beyond the charge are charged, even
/// beyond the limits.
#[utoipa::path(post, path = "/v1/settle", tag = "permits", request_body = SettleInput,
    responses(
        (status = 200, body = SettleAnswer, description = "Settled"),
        (status = 404, body = Problem, description = "There is no such permit, or it has expired"),
        (status = 503, body = Problem, description = "The store failed"),
        CallResponses,
    ))]
pub(super) async fn settle(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Json<SettleAnswer>, Problem> {
    let SettleInput { permit, cost } = read(request).await?;
    check_cost("cost", Some(cost))?;
    finish(take(&state, &permit)?.with_cost(cost)).await
}

/// Refunds a permit under all rules
#[utoipa::path(post, path = "/v1/refund", tag = "permits", request_body = RefundInput,
    responses(
        (status = 200, body = SettleAnswer, description = "Refunded"),
        (status = 404, body = Problem, description = "There is no such permit, or it has expired"),
        (status = 503, body = Problem, description = "The store failed"),
        CallResponses,
    ))]
pub(super) async fn refund(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Json<SettleAnswer>, Problem> {
    let RefundInput { permit } = read(request).await?;
    finish(take(&state, &permit)?.with_cost_of_all(0)).await
}

/// The error responses of all calls, for the OpenAPI document.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only the document needs it")]
pub(super) enum CallResponses {
    /// A value is not valid
    #[response(status = 400)]
    Invalid(Problem),
    /// The token is missing or wrong
    #[response(status = 401)]
    WrongToken(Problem),
    /// There is no token, and the caller is not on this machine
    #[response(status = 403)]
    NotLocal(Problem),
    /// The body took too long
    #[response(status = 408)]
    TooSlow(Problem),
    /// The body is too long
    #[response(status = 413)]
    TooLong(Problem),
    /// The body is not declared as JSON
    #[response(status = 415)]
    NotJson(Problem),
}

/// A decision, with the permit if it is allowed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AcquireAnswer {
    #[serde(flatten)]
    decision: CheckAnswer,
    /// The id of the permit; `null` if the request is denied or not counted.
    #[schema(required = true, example = "6c1f0e1c7a5b4d3e8f90a1b2c3d4e5f6")]
    permit: Option<String>,
    /// The seconds after which the permit expires.
    #[schema(required = true)]
    expires_in: Option<u64>,
}

/// The final cost of a permit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleInput {
    /// The id of the permit.
    permit: String,
    /// The final cost under each rule. A rule that matched the request and has a cost of its own
    /// keeps that cost.
    #[schema(minimum = 0, maximum = 9007199254740991_u64)]
    cost: u64,
}

/// A permit to refund.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundInput {
    /// The id of the permit.
    permit: String,
}

/// The result of a settlement.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SettleAnswer {
    /// The units that are charged now, under the first rule.
    charged: u64,
}

impl IntoResponse for AcquireAnswer {
    fn into_response(self) -> Response {
        (self.decision.status(), Json(self)).into_response()
    }
}

async fn decide(state: &HttpState, request: Request, mode: Mode) -> Result<CheckAnswer, Problem> {
    let request = read::<CheckInput>(request).await?.into_request(state.service.limiter())?;
    Ok(CheckAnswer::new(&state.service.decide(&request, mode).await))
}

fn take(state: &HttpState, id: &str) -> Result<HeldPermit, Problem> {
    let permit = state.settings.permits.take(id);
    // The message does not repeat the id, which lets anyone settle the permit.
    permit.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "permit: there is none of this id, or it has expired")
    })
}

async fn finish(permit: Permit) -> Result<Json<SettleAnswer>, Problem> {
    let charged = permit.cost().units();
    match permit.settle().await {
        Ok(()) => Ok(Json(SettleAnswer { charged })),
        Err(_) => {
            let message = "the store failed: the settlement is repeated for a minute if it was not \
                           carried out";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
    }
}

/// Reads the body of a call.
async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let (head, body) = request.into_parts();
    require_json(&head.headers)?;
    json_body::read(body).await
}
