//! The management of the service, and its first records.

use std::error::Error;

use rl_admin::{Admin, Backend, BearerTokens, FailedAttempts, Roles};
use rl_records::{CallLimits, RecordContent, RecordQuery, Records};
use rl_tower::RateLimiter;
use rl_tower::client_ip::ClientIp;
use rl_tower::time::Timestamp;

use crate::setting;

/// Creates limits for one consumer, as an example to look at and change, unless there are records
/// already.
pub(crate) async fn first_records(records: &Records, consumer: &str) -> Result<(), Box<dyn Error>> {
    let query = RecordQuery { limit: 1, ..RecordQuery::default() };
    if records.list(&query).await?.records.is_empty() {
        let limits = CallLimits::from_numbers([-1, 5, 1_000, 10_000, -1, -1])?;
        // The record applies until the end of 2099.
        let (from, to) = (Timestamp::EPOCH, Timestamp::from_secs(4_102_444_799));
        records.create(RecordContent::new(consumer, from, to, limits), "open-bank").await?;
    }
    Ok(())
}

/// Returns the management for the tokens of `RL_ADMIN_TOKENS`, as in the server `rl-admin`. Without
/// that setting it generates one token for this run, and returns it too, so the management always
/// requires a token.
pub(crate) fn admin(
    records: Records,
    limiter: RateLimiter,
    backend: Backend,
    client_ip: ClientIp,
) -> Result<(Admin, Option<String>), Box<dyn Error>> {
    let (tokens, token) = match setting("RL_ADMIN_TOKENS") {
        Some(json) => {
            let tokens = BearerTokens::from_json(&json);
            let tokens = tokens.map_err(|error| format!("RL_ADMIN_TOKENS: {error}"))?;
            if tokens.is_empty() {
                return Err("RL_ADMIN_TOKENS: expected at least one token".into());
            }
            (tokens, None)
        }
        None => {
            let mut random = [0_u8; 16];
            getrandom::fill(&mut random)?;
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            (BearerTokens::new().with("operator", &token, Roles::all())?, Some(token))
        }
    };
    let admin = Admin::builder(records, limiter)
        .authorize(tokens)
        // The OpenAPI document is for browsers and tools, and contains no data of consumers.
        .public_document(true)
        .backend(backend)
        .failed_attempts(FailedAttempts::default().client_address(client_ip));
    Ok((admin.build(), token))
}

pub(crate) fn print_help(console: &str, api: &str, token: Option<&str>, consumer: &str) {
    let token = token.unwrap_or("one-of-RL_ADMIN_TOKENS");
    println!("the console is at {console}, the token for it is {token}");
    println!("the management is at {api}/management, its document at {api}/openapi.json:");
    let consumer = format!("{api}/management/consumers/{consumer}");
    println!("curl -H 'Authorization: Bearer {token}' {consumer}");
    println!("curl -H 'Authorization: Bearer {token}' {consumer}/explain");
}
