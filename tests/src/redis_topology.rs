use std::collections::HashMap;
use std::time::Duration;

use crate::web::{GIVE_UP, eventually};
use crate::{Bystander, RedisServer, free_port, free_port_of_member};

/// A primary, its two replicas, and three sentinels that monitor them.
#[derive(Debug)]
pub struct Sentinels {
    /// The servers. The first one is the primary.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// The name of the primary in the configuration of the sentinels.
    pub const NAME: &str = "limits";

    /// The password of the sentinels.
    pub const PASSWORD: &str = "hunter2-sentinel";

    /// Starts the servers, and waits until they are connected.
    pub async fn start() -> Self {
        // By default, the primary waits five seconds for further replicas before it sends its data.
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let primary = RedisServer::start_with(&at_once);
        let port = primary.port();
        let of_primary = ["--replicaof", "127.0.0.1", &port.to_string()];
        let replica = || RedisServer::start_with(&[&at_once[..], &of_primary].concat());
        let servers = vec![primary, replica(), replica()];
        let (name, password) = (Self::NAME, Self::PASSWORD);
        let configuration = format!(
            "requirepass {password}\n\
             sentinel sentinel-pass {password}\n\
             sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} 500\n\
             sentinel failover-timeout {name} 3000\n\
             sentinel parallel-syncs {name} 2\n"
        );
        let sentinel = |_| RedisServer::start_sentinel(&configuration);
        let this = Self { servers, sentinels: (0..3).map(sentinel).collect() };
        for operator in this.operators().await {
            eventually(|| async {
                let known = facts(&operator).await;
                let replicas_are_in_sync = this.replicas_are_in_sync().await;
                known["num-slaves"] == "2"
                    && known["num-other-sentinels"] == "2"
                    && replicas_are_in_sync
            })
            .await;
        }
        this
    }

    async fn replicas_are_in_sync(&self) -> bool {
        let info: String = self.servers[0].query("INFO replication").await;
        info.matches("state=online").count() == 2
    }

    /// Returns the URLs of the sentinels, including their password.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.url_of("", Self::PASSWORD)).collect()
    }

    /// Returns the single URL with the hosts and the password of the sentinels. `login` is the login
    /// to the servers: empty, or `user:password@`.
    #[must_use]
    pub fn url(&self, login: &str) -> String {
        let ports = self.sentinels.iter().map(RedisServer::port);
        let (hosts, password, name) = (local_hosts(ports), Self::PASSWORD, Self::NAME);
        format!("redis-sentinel://{login}{hosts}?sentinel_password={password}#{name}")
    }

    /// Opens connections to the sentinels.
    pub async fn operators(&self) -> Vec<Bystander> {
        let mut operators = Vec::new();
        for url in self.urls() {
            operators.push(Bystander::at(&url).await);
        }
        operators
    }

    /// Returns the port of the primary, as this sentinel reports it.
    pub async fn primary_port(operator: &mut Bystander) -> u16 {
        let command = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", Self::NAME);
        let (_, port): (String, u16) = operator.query(&command).await;
        port
    }
}

/// Returns these ports of this machine as the hosts of a URL.
fn local_hosts(ports: impl Iterator<Item = u16>) -> String {
    ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
}

async fn facts(operator: &Bystander) -> HashMap<String, String> {
    let mut operator = operator.clone();
    operator.query(&format!("SENTINEL MASTER {}", Sentinels::NAME)).await
}

/// Three primaries, each with a third of the slots, and a replica of each.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers: first the primaries, then their replicas in the same order.
    pub servers: Vec<RedisServer>,
    tls_ports: Vec<u16>,
}

impl RedisCluster {
    /// The first slot of each primary, and the number of slots.
    pub const SHARES: [u16; 4] = [0, 5_461, 10_922, 16_384];

    /// Starts the servers, and waits until they are connected.
    pub async fn start() -> Self {
        let server = |_| Self::server(free_port_of_member(), &[]);
        Self::join((0..6).map(server).collect(), Vec::new()).await
    }

    /// Starts servers with a second port for clients, which `settings` configures. On that port and
    /// among themselves they use TLS.
    pub async fn start_with_tls(settings: &[&str]) -> Self {
        let (mut servers, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            // The bus belongs to the port with TLS.
            let port = free_port_of_member();
            let number = port.to_string();
            let tls = ["--tls-port", &number, "--tls-cluster", "yes", "--tls-replication", "yes"];
            servers.push(Self::server(free_port(), &[&tls, settings].concat()));
            ports.push(port);
        }
        Self::join(servers, ports).await
    }

    fn server(port: u16, arguments: &[&str]) -> RedisServer {
        let of_cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let mut server = RedisServer::stopped_on(port, &[&of_cluster, arguments].concat());
        server.restart();
        server
    }

    async fn join(servers: Vec<RedisServer>, tls_ports: Vec<u16>) -> Self {
        let this = Self { servers, tls_ports };
        let mut operators = this.operators().await;
        for (number, operator) in operators.iter_mut().enumerate() {
            operator.query::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await;
        }
        for (number, share) in Self::SHARES.windows(2).enumerate() {
            // CLUSTER ADDSLOTSRANGE exists since Redis 7.0.
            let mut command = redis::cmd("CLUSTER");
            command.arg("ADDSLOTS").arg((share[0]..share[1]).collect::<Vec<_>>());
            operators[number].send::<()>(&command).await;
        }
        this.meet(&operators).await;
        for number in 0..3 {
            let primary: String = operators[number].query("CLUSTER MYID").await;
            operators[number + 3].query::<()>(&format!("CLUSTER REPLICATE {primary}")).await;
        }
        this.is_whole().await;
        this
    }

    /// Introduces the servers to each other, repeatedly. On a busy machine, a server may respond so
    /// late that the others drop it from the topology.
    async fn meet(&self, operators: &[Bystander]) {
        let know_all = async |operator: &Bystander| {
            let nodes: String = operator.clone().query("CLUSTER NODES").await;
            nodes.lines().count() == 6 && !nodes.contains("handshake")
        };
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        let meeting = async {
            for round in 0_u64.. {
                let mut all_know_all = true;
                for operator in operators {
                    all_know_all &= know_all(operator).await;
                }
                if all_know_all {
                    return;
                }
                if round % 20 == 0 {
                    for (number, server) in self.servers.iter().enumerate().skip(1) {
                        let port = self.tls_ports.get(number).copied().unwrap_or(server.port());
                        let meet = format!("CLUSTER MEET 127.0.0.1 {port}");
                        operators[0].clone().query::<()>(&meet).await;
                    }
                }
                ticks.tick().await;
            }
        };
        tokio::time::timeout(GIVE_UP, meeting).await.expect("they meet in the end");
    }

    /// Waits until every server knows three primaries with all slots, and one replica of each.
    async fn is_whole(&self) {
        for operator in self.operators().await {
            eventually(|| async {
                let mut operator = operator.clone();
                let info: String = operator.query("CLUSTER INFO").await;
                let nodes: String = operator.query("CLUSTER NODES").await;
                let replication: String = operator.query("INFO replication").await;
                let replicas = nodes.lines().filter(|line| line.contains("slave ")).count();
                let is_linked = replication.contains("master_link_status:up")
                    || replication.contains("state=online");
                info.contains("cluster_state:ok") && replicas == 3 && is_linked
            })
            .await;
        }
    }

    /// Returns the single URL with the hosts of all servers. `login` is empty, or `user:password@`.
    #[must_use]
    pub fn url(&self, login: &str) -> String {
        if self.tls_ports.is_empty() {
            let ports = self.servers.iter().map(RedisServer::port);
            return format!("redis-cluster://{login}{}", local_hosts(ports));
        }
        format!("rediss-cluster://{login}{}", local_hosts(self.tls_ports.iter().copied()))
    }

    /// Returns the URLs of the servers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        if self.tls_ports.is_empty() {
            return self.servers.iter().map(RedisServer::url).collect();
        }
        self.tls_ports.iter().map(|port| format!("rediss://127.0.0.1:{port}/")).collect()
    }

    /// Opens connections to all servers that are running.
    pub async fn operators(&self) -> Vec<Bystander> {
        let mut operators = Vec::new();
        for server in &self.servers {
            operators.push(Bystander::new(server).await);
        }
        operators
    }

    /// Moves a slot with all its keys from one primary to another, in the same way as `redis-cli`.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        let (mut source, mut target) =
            (Bystander::new(&self.servers[from]).await, Bystander::new(&self.servers[to]).await);
        let source_id: String = source.query("CLUSTER MYID").await;
        let target_id: String = target.query("CLUSTER MYID").await;
        target.query::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}")).await;
        source.query::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}")).await;
        let port = self.servers[to].port();
        loop {
            let keys: Vec<String> =
                source.query(&format!("CLUSTER GETKEYSINSLOT {slot} 100")).await;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                // The key may have expired by now, which is not an error.
                let mut migrate = redis::cmd("MIGRATE");
                migrate.arg("127.0.0.1").arg(port).arg(key).arg(0).arg(5_000);
                source.send::<String>(&migrate).await;
            }
        }
        for operator in [&mut target, &mut source] {
            operator.query::<()>(&format!("CLUSTER SETSLOT {slot} NODE {target_id}")).await;
        }
    }
}
