//! The command `rl`. The README of the crate lists its commands and variables.

mod health;

use std::error::Error;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, io};

use clap::{Args, Parser, Subcommand, ValueEnum};
use health::Health;
use rl_serve::Shutdown;
use rl_server::domains::GatewaySource;
use rl_server::{Server, Source};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Rate limits for gateways and services.
#[derive(Debug, Parser)]
#[command(name = "rl", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves decisions over HTTP and gRPC until SIGTERM or Ctrl-C
    Serve {
        #[command(flatten)]
        files: ServedFiles,
        /// With --envoy, lets several files have the same domain
        #[arg(long, requires = "envoy")]
        merge_domains: bool,
    },
    /// Reads and validates a rule file, and prints warnings
    Check {
        /// The rule file
        file: PathBuf,
    },
    /// Prints the rule file with the same rules as the files of another service
    Import {
        /// The other service
        service: Service,
        /// Its file, or for Envoy's rate limit service also a folder
        path: PathBuf,
        /// Lets several files of Envoy's rate limit service have the same domain
        #[arg(long)]
        merge_domains: bool,
    },
    /// Asks a server whether it is ready; the exit status is 1 if it is not
    Health(Health),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ServedFiles {
    /// A rule file
    file: Option<PathBuf>,
    /// The folder with the files of Envoy's rate limit service
    #[arg(long, value_name = "DIR")]
    envoy: Option<PathBuf>,
    /// The file of limitador
    #[arg(long, value_name = "FILE")]
    limitador: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Service {
    Envoy,
    Limitador,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Serve { files, merge_domains } => serve(files.source(merge_domains)).await,
        Command::Check { file } => {
            // Log lines would repeat the warnings.
            for warning in Source::RuleFile(file.clone()).check()? {
                eprintln!("warning: {warning}");
            }
            print(&format!("{}: valid\n", file.display()))
        }
        Command::Import { service, path, merge_domains } => {
            let source = match service {
                Service::Envoy => GatewaySource::Envoy { path, merge: merge_domains },
                Service::Limitador => GatewaySource::Limitador { path },
            };
            let (file, differences) = rl_server::import(&source)?;
            for difference in differences {
                eprintln!("warning: {difference}");
            }
            print(&file)
        }
        Command::Health(health) => {
            let listen = variable("RL_LISTEN").filter(|listen| !listen.is_empty());
            Ok(health.check(listen)?)
        }
    }
}

async fn serve(source: Source) -> Result<(), Box<dyn Error>> {
    start_log()?;
    // A signal during the start ends the server after it.
    let shutdown = Shutdown::on_signal()?;
    let server = Server::start(&source, variable).await?;
    let (http, grpc) = (server.http_url(), server.grpc_addr());
    let admin =
        server.admin_addr().map(|address| format!("listening on {address} for management\n"));
    let admin = admin.unwrap_or_default();
    print(&format!("listening on {http}\nlistening on {grpc} for gRPC\n{admin}"))?;
    Ok(server.run(&shutdown).await?)
}

/// Writes log lines to stderr.
fn start_log() -> Result<(), String> {
    let level = match variable("RL_LOG").filter(|level| !level.is_empty()) {
        None => LevelFilter::INFO,
        Some(level) => level.parse().map_err(|_| {
            format!("RL_LOG {level:?}: expected off, error, warn, info, debug or trace")
        })?,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // A client could cause a warning of this crate with each connection.
    let of_h2 = if level > LevelFilter::INFO { level } else { level.min(LevelFilter::ERROR) };
    let lines = Targets::new().with_default(level).with_target("h2", of_h2);
    match variable("RL_LOG_FORMAT").as_deref() {
        None | Some("" | "text") => log.finish().with(lines).init(),
        Some("json") => log.json().finish().with(lines).init(),
        Some(other) => return Err(format!("RL_LOG_FORMAT {other:?}: expected text or json")),
    }
    Ok(())
}

impl ServedFiles {
    fn source(self, merge: bool) -> Source {
        match (self.file, self.envoy, self.limitador) {
            (Some(path), ..) => Source::RuleFile(path),
            (_, Some(path), _) => Source::Gateway(GatewaySource::Envoy { path, merge }),
            (_, _, path) => {
                let path = path.expect("the group requires one of them");
                Source::Gateway(GatewaySource::Limitador { path })
            }
        }
    }
}

/// Writes a text to stdout. A reader that has closed its end causes an error, not a panic.
fn print(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}
