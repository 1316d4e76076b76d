//! The management of limits on an address of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use rl_admin::AdminBuilder;
use rl_admin::settings::AdminSettings;
use rl_admin::webhook::Webhooks;
use rl_core::RateLimiter;
use rl_core::client_ip::ClientIp;
use rl_core::rules::RulesFile;
use rl_records::{DatabaseError, RecordSourceBuilder, Records, RuleFollower, UsageRecorder};
use rl_serve::{HttpServer, Shutdown};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::domains::descriptor_realm;
use crate::records::RecordLimits;
use crate::settings::Settings;

/// The pause between two attempts to connect to the database.
const RETRY: Duration = Duration::from_secs(1);

/// The records of a server, and the management that it serves.
pub(crate) struct Management {
    pub(crate) settings: Settings,
    pub(crate) limits: RecordLimits,
    pub(crate) webhooks: Option<Webhooks>,
    pub(crate) usage: Option<UsageRecorder>,
    pub(crate) limiter: RateLimiter,
    /// The rule file. Rules of the database apply in addition to its rules.
    pub(crate) rules_file: Option<RulesFile>,
    /// Applies the rules of the database.
    pub(crate) rule_follower: OnceLock<RuleFollower>,
}

impl Management {
    /// Connects to the database, and looks limits up in it from then on. Without a database, the
    /// management has one in memory.
    pub(crate) async fn connect(&self) -> Result<Records, DatabaseError> {
        let Some(settings) = &self.settings.records else {
            return Records::connect("sqlite::memory:").await;
        };
        let records = settings.connect().await?;
        // The last known limit must apply before the failure policy of the limiter does.
        let source = settings.source(&records).deadline(self.settings.deadline / 2);
        let source = self.webhooks.iter().cloned().fold(source, RecordSourceBuilder::observer);
        self.limits.set(source.start());
        if let Some(file) = &self.rules_file {
            self.rule_follower.get_or_init(|| RuleFollower::start(&records, file));
        }
        if let Some(usage) = &self.usage {
            usage.attach(&records);
        }
        Ok(records)
    }

    /// Serves the management until `shutdown` starts, if it has a listener. Connects to the database
    /// if the start of the server could not, because of an outage; until then, the response to every
    /// request is 503.
    pub(crate) async fn run(
        self,
        connected: Result<Records, DatabaseError>,
        listener: Option<(AdminSettings, TcpListener)>,
        configure: impl FnOnce(HttpServer) -> HttpServer + Send,
        shutdown: Shutdown,
    ) -> io::Result<()> {
        let (settings, listener) = listener.unzip();
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let management: Arc<OnceLock<Router>> = Arc::default();
        let router = Arc::clone(&management);
        let connect = async {
            let records = match connected {
                Ok(records) => records,
                Err(error) => {
                    tracing::error!(target: "rl_server", %error, "records unavailable, connecting again");
                    self.reconnect().await
                }
            };
            if let Some((settings, address)) = settings.zip(address) {
                let client_ip = ClientIp::with_proxies(self.settings.proxies.clone());
                let admin = settings.admin(records, self.limiter.clone(), self.webhooks.clone());
                let admin = admin.client_ip(client_ip).realm(descriptor_realm());
                // Without a database of records, rules would be lost with the process.
                let file = self.rules_file.iter().filter(|_| self.settings.records.is_some());
                let admin = file.fold(admin, AdminBuilder::rules_file).build();
                let _ = management.set(settings.router(admin, address));
            }
        };
        let connect = async {
            tokio::select! { () = connect => {}, () = shutdown.started() => {} }
        };
        let serve = async {
            let Some(listener) = listener else {
                shutdown.started().await;
                return Ok(());
            };
            let app = Router::new().fallback(async move |request: Request| match router.get() {
                Some(router) => router.clone().oneshot(request).await.into_response(),
                None => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n")
                    .into_response(),
            });
            configure(HttpServer::new(app)).serve(listener, &shutdown).await
        };
        tokio::join!(serve, connect).0
    }

    #[expect(clippy::disallowed_methods, reason = "a database recovers in real time")]
    async fn reconnect(&self) -> Records {
        loop {
            sleep(RETRY).await;
            if let Ok(records) = self.connect().await {
                tracing::info!(target: "rl_server", "records available");
                return records;
            }
        }
    }

    /// Logs a warning if `address` gets tokens without encryption.
    pub(crate) fn warn_about(&self, address: SocketAddr) {
        let admin = self.settings.admin.as_ref();
        if self.settings.tls.is_none()
            && admin.is_some_and(|one| one.sends_tokens_in_clear(address))
        {
            tracing::warn!(
                target: "rl_server", %address,
                "tokens of the management sent in clear over the network: set tls, or listen on the \
                 loopback"
            );
        }
    }
}
