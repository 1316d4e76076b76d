//! One of several processes that share a limit: `contender URL LIMIT [RESERVATION]`. The optional
//! argument is the lifetime of reservations in milliseconds.
//!
//! Once it is connected, it prints `ready` and the time on its clock, in seconds since 1970. It
//! then reads lines `SUBJECT CALLS`. For each line, it makes this number of concurrent calls, and
//! prints how many were allowed. It holds their permits until it ends.

#![expect(clippy::print_stdout, reason = "prints its result")]

use std::error::Error;
use std::time::Duration;

use rl_core::time::{Clock, SystemClock};
use rl_core::{Limit, Origin, RateLimiter, RedisStore, Subject};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, limit, reservation @ ..] = &arguments[..] else {
        return Err("usage: contender URL LIMIT [RESERVATION]".into());
    };
    // The timeouts are long. With shorter ones, a decision could be made without the store on a
    // busy machine.
    let patience = Duration::from_secs(30);
    let store = RedisStore::builder(url).local_denial(false).connection_wait(patience);
    let mut limiter = RateLimiter::builder()
        .limit(limit.parse::<Limit>()?)
        .store(store.connect().await?)
        .deadline(patience);
    if let [millis] = reservation {
        limiter = limiter.reservation_expires_after(Duration::from_millis(millis.parse()?));
    }
    let limiter = limiter.build()?;
    println!("ready {}", SystemClock.now().as_micros() / 1_000_000);

    let mut held = Vec::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (subject, calls) = line.split_once(' ').ok_or("expected SUBJECT CALLS")?;
        let subject = Subject::user(subject);
        let calls: Vec<_> = (0..calls.parse::<usize>()?)
            .map(|_| tokio::spawn(limiter.acquire(&subject, 1)))
            .collect();
        let mut allowed = 0;
        for call in calls {
            let permit = call.await?;
            let decision = permit.decision();
            if decision.origin() != Origin::Store {
                return Err(format!("the store did not decide: {decision:?}").into());
            }
            allowed += u32::from(decision.is_allowed());
            held.push(permit);
        }
        println!("{allowed}");
    }
    Ok(())
}
