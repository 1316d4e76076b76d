//! The primary that sentinels name: it is looked for anew with each connection, so that a fail-over
//! is no more than a connection that fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::ConnectError;
use super::connection::{Connection, Manager};
use super::error::classify;
use super::server::{Address, Login, Server};
use crate::FailureKind;
use crate::store::StoreError;

/// How long an attempt to connect may hang before the sentinels are asked again: they may name
/// another server meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Sentinels, and the primary that they watch.
pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    name: Arc<str>,
    // How to log in to what they name.
    primary: Server,
}

impl Sentinels {
    /// The URLs say how to log in to the sentinels, `login` how to log in to the servers.
    pub(super) fn new(urls: &[String], name: &str, login: &Login) -> Result<Self, ConnectError> {
        let to_sentinels = Login {
            #[cfg(feature = "redis-tls")]
            tls: login.tls.clone(),
            ..Login::default()
        };
        let sentinels: Result<Vec<_>, _> =
            urls.iter().map(|url| Server::at_url(url, &to_sentinels)).collect();
        let sentinels = sentinels?;
        let Some(first) = sentinels.first() else {
            return Err(ConnectError::Servers { why: "no sentinel: expected at least one URL" });
        };
        if sentinels.iter().any(|sentinel| sentinel.is_tls() != first.is_tls()) {
            let why =
                "the sentinels' URLs mix redis:// and rediss://: the servers use what they do";
            return Err(ConnectError::Servers { why });
        }
        if sentinels.iter().any(|sentinel| sentinel.database() != 0) {
            let why = "a sentinel has no databases: set that of the servers with `database`";
            return Err(ConnectError::Servers { why });
        }
        let primary = first.with_login(login);
        Ok(Self { sentinels, name: name.into(), primary })
    }

    fn ask_all(&self, events: &mut JoinSet<Event>) {
        for sentinel in &self.sentinels {
            let (sentinel, name) = (sentinel.clone(), Arc::clone(&self.name));
            events.spawn(async move { Event::Named(ask(&sentinel, &name).await) });
        }
    }
}

/// What has come of asking or connecting.
enum Event {
    Named(Result<Address, StoreError>),
    Opened(Address, Result<Connection, StoreError>),
}

/// A connection to the primary: the first of the servers that sentinels name, at that moment or
/// soon, which says that it is one.
pub(super) async fn connect(
    sentinels: &Sentinels,
    manager: &Manager,
) -> Result<Connection, StoreError> {
    let mut events = JoinSet::new();
    sentinels.ask_all(&mut events);
    let mut trying = HashSet::new();
    // What a server says counts for more than that a sentinel is away or does not let us in.
    let (mut of_sentinels, mut of_servers) = (None, None);
    loop {
        let event = match tokio::time::timeout(ASK_AGAIN, events.join_next()).await {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(_) => {
                sentinels.ask_all(&mut events);
                continue;
            }
        };
        match event {
            Ok(Event::Named(Ok(address))) => {
                if trying.insert(address.clone()) {
                    let (server, manager) = (sentinels.primary.at(&address), manager.clone());
                    events.spawn(async move {
                        Event::Opened(address, open_to_primary(&server, &manager).await)
                    });
                }
            }
            Ok(Event::Named(Err(error))) => of_sentinels = Some(worse(of_sentinels, error)),
            Ok(Event::Opened(_, Ok(connection))) => return Ok(connection),
            Ok(Event::Opened(address, Err(error))) => {
                trying.remove(&address);
                of_servers = Some(worse(of_servers, error));
            }
            // The runtime is ending.
            Err(_) => {}
        }
    }
    let failure = of_servers.or(of_sentinels);
    Err(failure.unwrap_or_else(|| StoreError::new(FailureKind::Unavailable)))
}

/// Of two, the one that lasts until somebody mends it.
fn worse(one: Option<StoreError>, other: StoreError) -> StoreError {
    match one {
        Some(one) if one.kind().is_configuration() => one,
        _ => other,
    }
}

/// The address of the primary, as a sentinel knows it.
async fn ask(sentinel: &Server, name: &str) -> Result<Address, StoreError> {
    let mut connection = sentinel.connect().await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer: Option<(String, u16)> =
        command.query_async(&mut connection).await.map_err(classify)?;
    let (host, port) = answer.ok_or_else(|| {
        StoreError::new(FailureKind::Protocol).with_detail("a sentinel knows no such primary")
    })?;
    Ok(Address { host, port })
}

async fn open_to_primary(server: &Server, manager: &Manager) -> Result<Connection, StoreError> {
    let mut connection = manager.open_to(server).await?;
    if connection.is_primary().await {
        return Ok(connection);
    }
    let kind = FailureKind::Unavailable;
    Err(StoreError::new(kind).with_detail("the server that the sentinels name is no primary yet"))
}
