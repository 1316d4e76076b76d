//! The server: its listeners, from the start to a shutdown that loses no request.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use rl_admin::DenialPublisher;
use rl_admin::settings::{AdminSettings, RecordsSettings};
use rl_core::adapter::HttpLimiter;
use rl_core::{FailureKind, MemoryStore, RateLimiter, RedisStore};
use rl_metrics::Metrics;
use rl_records::UsageRecorder;
use rl_serve::{HttpServer, HttpService, PeerShares, Shutdown, Tls};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::domains::GatewayFiles;
use crate::grpc::{self, Health};
use crate::http::{HttpSettings, Readiness, router};
use crate::management::Management;
use crate::permits::PermitTable;
use crate::service::DecisionService;
use crate::settings::{Settings, store_error};
use crate::sources::{LoadedRules, Source};

/// The time limit for the return of leased units and the settlement of permits at the end.
const CLOSE: Duration = Duration::from_secs(5);

/// The bytes that all requests over HTTP and gRPC may take.
const REQUEST_BYTES: usize = 256 * 1024 * 1024;

/// A server that decides requests over HTTP and gRPC.
///
/// # Shutdown
///
/// 1. `/readyz` reports 503, and the health service of gRPC `NOT_SERVING`.
/// 2. After [`Settings::shutdown_delay`](crate::Settings::shutdown_delay) all listeners stop as
///    [`rl_serve`] describes.
/// 3. Permits that callers hold are settled, and leased units return to the store. The calls of
///    consumers that are not recorded yet are written.
///
/// # Examples
///
/// ```no_run
/// use rl_serve::Shutdown;
/// use rl_server::{Server, Source};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let shutdown = Shutdown::on_signal()?;
/// let source = Source::RuleFile("limits.yaml".into());
/// let server = Server::start(&source, |name| std::env::var(name).ok()).await?;
/// println!("listening on {}, gRPC on {}", server.http_url(), server.grpc_addr());
/// server.run(&shutdown).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Server {
    http: Listening,
    grpc: Listening,
    has_tls: bool,
    /// The address of the management, if it is served, and its task.
    management: Option<(Option<SocketAddr>, JoinHandle<io::Result<()>>)>,
    /// Stops all listeners.
    shutdown: Shutdown,
    shutdown_delay: Duration,
    limiter: RateLimiter,
    /// Records the calls of consumers, if there is a database of records.
    usage: Option<UsageRecorder>,
    readiness: Readiness,
    health: Health,
    permits: PermitTable,
    // The files are read as long as this is held.
    _files: Option<GatewayFiles>,
    // Publishes denials to the consoles of other servers until it is dropped.
    _publisher: Option<DenialPublisher>,
}

/// A listener and the task that serves it.
#[derive(Debug)]
struct Listening {
    addr: SocketAddr,
    task: JoinHandle<io::Result<()>>,
}

/// The reason why a server cannot start.
pub struct StartError(String);

impl Server {
    /// Starts a server with the settings of its files. `variable` returns the values of environment
    /// variables, which [override](crate::Settings::with_environment) settings.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or a setting is not valid, if an address cannot be listened on,
    /// or if the store or the database of records refuses the login. A store or database that cannot
    /// be reached is no error: until it can be, the failure policy decides.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn start(
        source: &Source,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, StartError> {
        let mut loaded = source.load().map_err(StartError)?;
        loaded.settings = loaded.settings.with_environment(variable);
        Self::start_with(loaded).await
    }

    async fn start_with(loaded: LoadedRules) -> Result<Self, StartError> {
        let LoadedRules { rules, file, settings, records, files } = loaded;
        let tls = settings.tls.clone().map(Tls::from_files).transpose();
        let tls = tls.map_err(|error| StartError(format!("server: tls: {error}")))?;
        // The addresses are checked before the store, so that an error shows at once.
        let http = listen("listen", &settings.listen).await?;
        let grpc = listen("grpc", &settings.grpc).await?;
        let admin = match &settings.admin {
            Some(admin) => Some((admin.clone(), listen("admin: listen", admin.listen()).await?)),
            None => None,
        };
        let webhooks = admin.as_ref().map(|(admin, _)| admin.webhooks()).transpose();
        let webhooks = webhooks.map_err(|error| StartError(format!("server: admin: {error}")))?;
        let webhooks = webhooks.flatten();
        let mut limiter = RateLimiter::builder()
            .rules(rules)
            .deadline(settings.deadline)
            .on_store_failure(settings.on_store_failure);
        if let Some(namespace) = &settings.namespace {
            limiter = limiter.namespace(namespace);
        }
        limiter = match settings.redis_url() {
            Some(url) => {
                let store = RedisStore::connect(url).await;
                limiter.store(store.map_err(|error| StartError(store_error(error)))?)
            }
            None => limiter.store(MemoryStore::new()),
        };
        if let Some(webhooks) = &webhooks {
            limiter = limiter.observer(webhooks.clone());
        }
        let usage = settings.records.as_ref().and_then(RecordsSettings::usage_recorder);
        if let Some(usage) = &usage {
            limiter = limiter.observer(usage.clone());
        }
        let limiter = limiter.build().map_err(|error| StartError(error.to_string()))?;
        if let Some(webhooks) = &webhooks {
            webhooks.watch(&limiter);
        }
        let service = DecisionService::new(
            HttpLimiter::new(limiter.clone()).headers(settings.headers.clone()),
        );
        let (readiness, permits) = (Readiness::default(), PermitTable::default());
        let shares = ["http_connections", "grpc_connections", "admin_connections"]
            .map(|name| PeerShares::new(name, settings.max_connections));
        let memory = PeerShares::new("request_bytes", REQUEST_BYTES);
        let app = router(
            service.clone(),
            HttpSettings {
                proxies: settings.proxies.clone(),
                token: settings.token.clone(),
                metrics: Metrics::new().limiter(&limiter),
                readiness: readiness.clone(),
                permits: permits.clone(),
                records: records.clone(),
                shares: [&shares[..], std::slice::from_ref(&memory)].concat(),
            },
        );
        let (services, health) = grpc::services(&service).await;
        if let Some(tls) = &tls {
            tls.watch().map_err(|error| StartError(format!("server: tls: {error}")))?;
        }
        let shutdown = Shutdown::new();
        let [of_http, of_grpc, of_admin] = shares;
        let http_server = configured(HttpServer::new(app).http2(), &settings, tls.clone(), of_http);
        let http = spawn(http, http_server.share_memory(memory.clone()), &shutdown)?;
        let services = HttpServer::new(services).http2_only();
        let grpc_server = configured(services, &settings, tls.clone(), of_grpc);
        let grpc = spawn(grpc, grpc_server.share_memory(memory), &shutdown)?;
        let (has_tls, shutdown_delay) = (tls.is_some(), settings.shutdown_delay);
        // A server with a management publishes through it.
        let is_managed_elsewhere = settings.records.is_some() && admin.is_none();
        let publisher = is_managed_elsewhere.then(|| DenialPublisher::start(limiter.clone()));
        let management = if settings.records.is_some() || admin.is_some() {
            let (limits, limiter) = (records, limiter.clone());
            let (usage, rules_file, rule_follower) = (usage.clone(), file, OnceLock::new());
            let management = Management {
                settings,
                limits,
                webhooks,
                usage,
                limiter,
                rules_file,
                rule_follower,
            };
            Some(start_management(management, admin, tls, of_admin, &shutdown).await?)
        } else {
            None
        };
        Ok(Self {
            http,
            grpc,
            has_tls,
            management,
            shutdown,
            shutdown_delay,
            limiter,
            usage,
            readiness,
            health,
            permits,
            _files: files,
            _publisher: publisher,
        })
    }

    /// Returns the address for HTTP.
    #[must_use]
    pub const fn http_addr(&self) -> SocketAddr {
        self.http.addr
    }

    /// Returns the URL for HTTP.
    #[must_use]
    pub fn http_url(&self) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.http.addr)
    }

    /// Returns the address for gRPC.
    #[must_use]
    pub const fn grpc_addr(&self) -> SocketAddr {
        self.grpc.addr
    }

    /// Returns the address of the management API and the console, if they are served.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.management.as_ref().and_then(|(address, _)| *address)
    }

    /// Returns the limiter that decides.
    #[must_use]
    pub const fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Serves until `shutdown` starts, and then stops without losing requests.
    ///
    /// # Errors
    ///
    /// Returns an error if a listener fails.
    pub async fn run(mut self, shutdown: &Shutdown) -> io::Result<()> {
        let management = async {
            match &mut self.management {
                Some((_, task)) => task.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.started() => {}
            ended = &mut self.http.task => return joined(ended),
            ended = &mut self.grpc.task => return joined(ended),
            ended = management => return joined(ended),
        }
        self.stop().await
    }

    async fn stop(self) -> io::Result<()> {
        tracing::info!(target: "rl_server", "shutdown started");
        self.readiness.set_unready("the server stops");
        self.health.set(false).await;
        pause(self.shutdown_delay).await;
        self.shutdown.start();
        let (http, grpc) = tokio::join!(self.http.task, self.grpc.task);
        let management = match self.management {
            Some((_, task)) => joined(task.await),
            None => Ok(()),
        };
        self.permits.end_all();
        match timeout(CLOSE, self.limiter.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(target: "rl_server", %error, "store not closed"),
            Err(_) => tracing::warn!(target: "rl_server", "store not closed in time"),
        }
        if let Some(usage) = &self.usage {
            match timeout(CLOSE, usage.write()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(target: "rl_server", %error, "usage not written"),
                Err(_) => tracing::warn!(target: "rl_server", "usage not written in time"),
            }
        }
        tracing::info!(target: "rl_server", "shutdown ended");
        joined(http).and(joined(grpc)).and(management)
    }
}

/// Connects to the records, and starts the task that serves the management.
///
/// # Errors
///
/// Returns an error if the database has a fault that no time cures.
async fn start_management(
    management: Management,
    admin: Option<(AdminSettings, TcpListener)>,
    tls: Option<Tls>,
    shares: PeerShares,
    shutdown: &Shutdown,
) -> Result<(Option<SocketAddr>, JoinHandle<io::Result<()>>), StartError> {
    let connected = management.connect().await;
    if let Err(error) = &connected
        && !matches!(error.kind(), FailureKind::Unavailable | FailureKind::TimedOut)
    {
        return Err(StartError(format!("server: records: database: {error}")));
    }
    let address = admin.as_ref().map(|(_, listener)| listener.local_addr()).transpose();
    let address = address.map_err(|error| StartError(error.to_string()))?;
    if let Some(address) = address {
        management.warn_about(address);
    }
    let settings = management.settings.clone();
    let configure = move |server| configured(server, &settings, tls, shares);
    let task = management.run(connected, admin, configure, shutdown.clone());
    Ok((address, tokio::spawn(task)))
}

/// Starts the task of a server.
fn spawn<S: HttpService>(
    listener: TcpListener,
    server: HttpServer<S>,
    shutdown: &Shutdown,
) -> Result<Listening, StartError> {
    let addr = listener.local_addr().map_err(|error| StartError(error.to_string()))?;
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { server.serve(listener, &stop).await });
    Ok(Listening { addr, task })
}

/// Sets the bounds and the certificates of a server.
fn configured<S: HttpService>(
    server: HttpServer<S>,
    settings: &Settings,
    tls: Option<Tls>,
    shares: PeerShares,
) -> HttpServer<S> {
    let server = server
        .max_connections(settings.max_connections)
        .share_connections(shares)
        .max_connection_age(settings.max_connection_age);
    match tls {
        Some(tls) => server.tls(tls),
        None => server,
    }
}

/// Returns the result of a task. A task that panicked is an error.
fn joined(ended: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    ended.map_err(io::Error::other)?
}

async fn listen(setting: &str, address: &str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| StartError(format!("server: {setting} {address}: {error}")))
}

#[expect(clippy::disallowed_methods, reason = "load balancers act in real time")]
async fn pause(duration: Duration) {
    sleep(duration).await;
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for StartError {}

rl_core::debug_as_display!(StartError);
