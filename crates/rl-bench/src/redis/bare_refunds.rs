//! Measures what a refund in a log cannot be faster than: its commands without its logic. Also
//! measures the removal of a member of a sorted set, the refund of the usual log.

use std::error::Error;

use fastrand::Rng;
use redis::Cmd;
use redis::aio::MultiplexedConnection;

use super::server::{Monitor, Server};
use crate::long_logs::{SHORT, show};
use crate::table::Table;

/// The script with the commands of a refund.
const BARE: &str = include_str!("bare_refunds.lua");
const REMOVE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";
/// The number of calls in a block, and the number of rounds.
const CALLS: usize = 100;
const ROUNDS: usize = 11;
/// The number of entries of a long log, of the entries of a block, and of the blocks of a page.
const LONG: usize = 100_000;
const BLOCK: usize = 36;
const PAGE: usize = 64;
/// The bytes of the parts of a log: of an entry, of the item of a block, and of the item of a page.
const SIZES: [usize; 3] = [14, 19, 11];

/// Adds the rows to the table.
pub(super) async fn measure(table: &mut Table) -> Result<(), Box<dyn Error>> {
    let server = Server::start()?;
    let mut bare = Refunds {
        connection: server.connect(0).await?,
        monitor: server.monitor().await?,
        rng: Rng::with_seed(1),
    };
    bare.fill().await?;
    let (commands, remove) = (bare.load(BARE).await?, bare.load(REMOVE).await?);
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (long, entries) in [SHORT, LONG].into_iter().enumerate() {
            times[0][long].push(bare.commands(&commands, long == 1).await?);
            times[1][long].push(bare.removals(&remove, entries).await?);
        }
    }
    let names = ["log: the commands of a refund alone", "sorted set: removal"];
    for (name, [short, long]) in names.into_iter().zip(times) {
        show(name, &short, &long, table);
    }
    Ok(())
}

/// A server with the data of refunds.
struct Refunds {
    connection: MultiplexedConnection,
    monitor: Monitor,
    rng: Rng,
}

impl Refunds {
    async fn load(&mut self, script: &str) -> Result<String, Box<dyn Error>> {
        let mut load = redis::cmd("SCRIPT");
        Ok(load.arg("LOAD").arg(script).query_async(&mut self.connection).await?)
    }

    /// Writes the states of a short and of a long log, the hash of the latter, and two sorted sets.
    async fn fill(&mut self) -> Result<(), Box<dyn Error>> {
        let [entry, block_item, page_item] = SIZES;
        let (blocks, pages) = (LONG / BLOCK, LONG / BLOCK / PAGE);
        let mut bytes = |len: usize| -> Vec<u8> { (0..len).map(|_| self.rng.u8(..)).collect() };
        let mut all = redis::pipe();
        for (key, entries) in [("short", SHORT), ("long", BLOCK / 2)] {
            all.set(key, bytes(60 + entries * entry)).ignore();
        }
        all.hset("log", "b", bytes(pages * page_item)).ignore();
        for page in 0..pages {
            all.hset("log", name("p", page), bytes(11 + PAGE * block_item)).ignore();
        }
        for block in 0..blocks {
            all.hset("log", name("k", block), bytes(BLOCK * entry)).ignore();
        }
        for entries in [SHORT, LONG] {
            for time in 0..entries {
                all.zadd(set(entries), time, time).ignore();
            }
        }
        Ok(all.query_async(&mut self.connection).await?)
    }

    /// Returns the µs of a call with the commands of a refund.
    async fn commands(&mut self, sha: &str, is_long: bool) -> Result<f64, Box<dyn Error>> {
        self.monitor.forget_commands().await?;
        for _ in 0..CALLS {
            let mut call = evalsha(sha);
            if is_long {
                let blocks = LONG / BLOCK;
                call.arg(2).arg("long").arg("log");
                call.arg(name("p", self.rng.usize(..blocks / PAGE)));
                call.arg(name("k", self.rng.usize(..blocks))).arg([0; SIZES[0]].as_slice());
                call.exec_async(&mut self.connection).await?;
            } else {
                call.arg(1).arg("short").exec_async(&mut self.connection).await?;
            }
        }
        self.each().await
    }

    /// Returns the µs of the removal of a member, which is then added again.
    async fn removals(&mut self, sha: &str, entries: usize) -> Result<f64, Box<dyn Error>> {
        let removed: Vec<usize> = (0..CALLS).map(|_| self.rng.usize(..entries)).collect();
        self.monitor.forget_commands().await?;
        for time in removed {
            let mut call = evalsha(sha);
            call.arg(1).arg(set(entries)).arg(time).exec_async(&mut self.connection).await?;
            let mut add = redis::cmd("ZADD");
            add.arg(set(entries)).arg(time).arg(time).exec_async(&mut self.connection).await?;
        }
        self.each().await
    }

    async fn each(&mut self) -> Result<f64, Box<dyn Error>> {
        let (calls, spent) = self.monitor.commands(&["evalsha"]).await?;
        Ok(spent / calls)
    }
}

fn evalsha(sha: &str) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha);
    call
}

fn name(kind: &str, number: usize) -> String {
    format!("{kind}{number:03}")
}

fn set(entries: usize) -> String {
    format!("set{entries}")
}
