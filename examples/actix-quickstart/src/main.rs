//! The smallest actix-web service with a rate limit.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal, stdout};
use std::net::{Shutdown, TcpListener};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::http::ConnectionType;
use actix_web::middleware::{Next, from_fn};
use actix_web::rt::signal::unix::{SignalKind, signal};
use actix_web::rt::time::sleep;
use actix_web::{App, HttpServer, body::MessageBody, dev, web};
use futures::future::select;
use rl_actix::headers::{HeaderFamily, Headers};
use rl_actix::{Limit, RateLimit, RateLimiter, RedisStore};
use socket2::SockRef;

/// Whether the process has received a signal to stop.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

#[actix_web::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    // Prints the log lines of the limiter.
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    // Five requests in ten seconds and a thousand in an hour, for each client address.
    let mut limiter =
        RateLimiter::builder().limit("5/10seconds".parse()?).limit(Limit::per_hour(1_000));
    // Counters are in memory by default; on Redis all instances share them.
    if let Some(url) = setting("RL_REDIS_URL") {
        let store = RedisStore::connect(&url).await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let limiter = limiter.build()?;
    let closing = limiter.clone();

    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&listen);
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    // The time limit for a client that reads nothing, although a response waits for it. Connections
    // inherit it. actix-web has no such limit.
    #[cfg(target_os = "linux")]
    SockRef::from(&listener).set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    let address = listener.local_addr()?;
    // The closure runs for each worker; clones of the limiter share the counters.
    let server = HttpServer::new(move || {
        App::new()
            // Without this setting, responses have the fields `X-Rate-Limit-*`.
            .wrap(RateLimit::new(limiter.clone()).headers(Headers::new(HeaderFamily::IetfDraft11)))
            .wrap(from_fn(close_when_stopping))
            .route("/", web::get().to(async || "Hello!\n"))
    })
    // The time limit for receiving the head of a request.
    .client_request_timeout(Duration::from_secs(10))
    // The time limit, in seconds, for requests that are in progress at the signal.
    .shutdown_timeout(10)
    .shutdown_signal(stop(listener.try_clone()?)?);
    println!("listening on http://{address}, try:\ncurl -i http://{address}/");
    server.listen(listener)?.run().await?;
    // Returns leased units to Redis.
    if let Err(error) = closing.close().await {
        eprintln!("warning: {error}");
    }
    Ok(())
}

/// Waits for a signal to stop, and then for two more seconds.
///
/// In these two seconds no connection is accepted, and responses announce that their connections
/// close. If the workers stopped immediately, they would lose requests that have arrived but are
/// not completely read.
#[expect(clippy::disallowed_methods, reason = "clients end in real time")]
fn stop(listener: TcpListener) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        select(pin!(terminate.recv()), pin!(interrupt.recv())).await;
        IS_STOPPING.store(true, Ordering::Relaxed);
        // This stops the accept thread, which logs an error about it.
        let _ = SockRef::from(&listener).shutdown(Shutdown::Read);
        // No event shows that every client has seen the announcement, so the process waits.
        sleep(Duration::from_secs(2)).await;
    })
}

/// Announces in each response that its connection closes, once the process is stopping. Without the
/// announcement, a client would send another request, which would be lost when the workers stop.
async fn close_when_stopping(
    request: dev::ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<dev::ServiceResponse<impl MessageBody>, actix_web::Error> {
    let mut response = next.call(request).await?;
    if IS_STOPPING.load(Ordering::Relaxed) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
