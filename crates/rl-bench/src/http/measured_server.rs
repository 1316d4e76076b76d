//! A server and its clients. The servers of a measurement take turns.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::on_actix::Running;

/// The duration of a server's turn.
pub(super) const SLICE: Duration = Duration::from_millis(120);

/// A server, with its name and its clients.
pub(super) struct MeasuredServer {
    pub(super) name: &'static str,
    /// The index of the server with which it is compared.
    pub(super) beside: usize,
    pub(super) address: SocketAddr,
    pub(super) clients: Vec<Client>,
    /// The requests per second in each turn.
    pub(super) rates: Vec<f64>,
    /// The number of requests that were allowed beyond the limit. `None` if the server has no
    /// limit.
    pub(super) too_many: Option<usize>,
    pub(super) _running: Option<Running>,
}

impl MeasuredServer {
    pub(super) async fn take_turn(&mut self) -> Result<(), Box<dyn Error>> {
        let begun = Instant::now();
        let asking = self.clients.drain(..).map(|client| tokio::spawn(ask(client)));
        let mut answers = 0;
        for asked in asking.collect::<Vec<_>>() {
            let (client, answered) =
                asked.await?.map_err(|error| format!("{}: {error}", self.name))?;
            self.clients.push(client);
            answers += answered;
        }
        self.rates.push(answers as f64 / begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Sends requests until the turn ends. Returns the number of responses.
async fn ask(mut client: Client) -> Result<(Client, usize), Box<dyn Error + Send + Sync>> {
    let (end, mut answers) = (Instant::now() + SLICE, 0);
    while Instant::now() < end {
        match client.ask().await? {
            200 => answers += 1,
            status => {
                return Err(format!("answered {status}, and the limits are out of reach").into());
            }
        }
    }
    Ok((client, answers))
}
