//! A service with rules and its management, at the address of the first argument. The records are
//! the limits of one rule beside others.

use std::env;
use std::error::Error;
use std::io::stderr;
use std::net::SocketAddr;

use axum::{Router, routing::get};
use rl_admin::{Admin, BearerTokens, Roles, console::Console};
use rl_records::{RecordSource, Records};
use rl_tower::key::{ClientAddress, Header};
use rl_tower::rules::{Rule, Rules};
use rl_tower::{MissingKey, RateLimitLayer, RateLimiter, Realm};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_ansi(false).with_writer(stderr).init();
    let records = Records::connect("sqlite::memory:").await?;
    let consumers = Rule::named("consumers")
        .per(Header::new("x-consumer", Realm::Consumer)?)
        .on_missing_key(MissingKey::Allow)
        .policies(RecordSource::start(&records));
    let addresses =
        Rule::named("addresses").per(ClientAddress::default()).limit("20/minute".parse()?);
    let fleet = Rule::named("fleet").limit("100/second".parse()?);
    let rules = Rules::new().rule(consumers).rule(addresses).rule(fleet);
    let limiter = RateLimiter::builder().rules(rules).build()?;
    let tokens = BearerTokens::new().with("operator", "a-long-and-random-token", Roles::all())?;
    let admin = Admin::builder(records, limiter.clone()).authorize(tokens).build();
    let console = Console::builder(admin.clone()).without_tls().build();
    let app = Router::new()
        .route("/", get(async || "hi\n"))
        .layer(RateLimitLayer::new(limiter))
        .nest("/admin", admin.router())
        .merge(console.router());
    let address = env::args().nth(1).ok_or("expected an address to listen on")?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
