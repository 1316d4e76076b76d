//! The management of the service, and what it starts with.

use std::env;
use std::error::Error;

use rl_admin::{Admin, Backend, BearerTokens, Roles};
use rl_core::RateLimiter;
use rl_core::time::Timestamp;
use rl_records::{CallLimits, RecordContent, RecordQuery, RecordSource, Records};

/// Limits for one consumer, unless there are any already: something to look at and to change.
pub(crate) async fn first_records(records: &Records, consumer: &str) -> Result<(), Box<dyn Error>> {
    let query = RecordQuery { limit: 1, ..RecordQuery::default() };
    if records.list(&query).await?.records.is_empty() {
        let limits = CallLimits::from_numbers([-1, 5, 1_000, 10_000, -1, -1])?;
        // To the end of the century.
        let (from, to) = (Timestamp::EPOCH, Timestamp::from_secs(4_102_444_799));
        records.create(RecordContent::new(consumer, from, to, limits), "open-bank").await?;
    }
    Ok(())
}

/// The management for the tokens of `RL_ADMIN_TOKENS` (as for the server `rl-admin`), or for one that
/// is made up for this run and returned: it is never open.
pub(crate) fn admin(
    records: Records,
    source: RecordSource,
    limiter: RateLimiter,
    backend: Backend,
) -> Result<(Admin, Option<String>), Box<dyn Error>> {
    let (tokens, token) = match env::var("RL_ADMIN_TOKENS") {
        Ok(json) => {
            let tokens = BearerTokens::from_json(&json);
            (tokens.map_err(|error| format!("RL_ADMIN_TOKENS: {error}"))?, None)
        }
        Err(_) => {
            let mut random = [0_u8; 16];
            getrandom::fill(&mut random)?;
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            (BearerTokens::new().with("operator", &token, Roles::all())?, Some(token))
        }
    };
    let admin = Admin::builder(records, source, limiter).authorize(tokens).backend(backend);
    Ok((admin.build(), token))
}

pub(crate) fn print_help(api: &str, token: Option<&str>, consumer: &str) {
    let token = token.unwrap_or("one-of-RL_ADMIN_TOKENS");
    println!("the console is at /console, the token for it is {token}");
    println!("the management is at {api}/management, its document at {api}/openapi.json:");
    println!("curl -H 'Authorization: Bearer {token}' {api}/management/consumers/{consumer}");
    println!(
        "curl -H 'Authorization: Bearer {token}' {api}/management/consumers/{consumer}/explain"
    );
}
