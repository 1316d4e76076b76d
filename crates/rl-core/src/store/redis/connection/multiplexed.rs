//! A connection that many tasks share.

use std::sync::Arc;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{FromRedisValue, RedisResult, Value};

use super::command::Command;
use super::liveness::{Liveness, PendingCommand};
use super::stream::ReplyMeter;
use crate::store::redis::error;
use crate::store::redis::scripts::Script;

/// A handle to a multiplexed connection. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Connection {
    // This field is dropped before `connection`. When this process closes a connection, no handle
    // to `liveness` is left, so the connection does not count as failed.
    liveness: Arc<Liveness>,
    meter: Arc<ReplyMeter>,
    connection: MultiplexedConnection,
    /// Whether an `ASKING` precedes each command.
    #[cfg(feature = "redis-cluster")]
    is_asking: bool,
}

impl Connection {
    /// Wraps a connection that has just been opened.
    pub(super) fn new(
        connection: MultiplexedConnection,
        liveness: Arc<Liveness>,
        meter: Arc<ReplyMeter>,
    ) -> Self {
        Self {
            liveness,
            meter,
            connection,
            #[cfg(feature = "redis-cluster")]
            is_asking: false,
        }
    }

    /// Sends a command, and returns the reply of its script, or an empty reply if there is no
    /// script.
    pub(crate) async fn execute(&mut self, command: &Command) -> RedisResult<Vec<u8>> {
        match command {
            Command::Script { script, keys, arguments } => {
                self.run_script(script, keys, arguments).await
            }
            Command::Delete { keys } => {
                let mut unlink = redis::cmd("UNLINK");
                unlink.arg(keys);
                self.call::<u64>(&unlink).await.map(|_| Vec::new())
            }
        }
    }

    /// Counts replies from now on: each of them shows that the server executes scripts.
    pub(super) fn start_counting(&self) {
        self.meter.start();
    }

    /// Sends a command about the server or the connection, and returns its reply. The reply does
    /// not show that the server executes scripts, so this is not called on a connection that counts
    /// replies.
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
    ) -> RedisResult<T> {
        let reply = self.exchange(command).await;
        self.read(reply)
    }

    /// Sends a command that changes or reads counters, and returns its reply.
    async fn call<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        let meter = Arc::clone(&self.meter);
        let call = meter.load().begin_call();
        let reply = self.exchange(command).await;
        if reply.is_ok() {
            call.finish();
        }
        self.read(reply)
    }

    /// Returns the value of a reply. Marks the connection as failed if the reply shows that.
    fn read<T: FromRedisValue>(&self, reply: RedisResult<Value>) -> RedisResult<T> {
        let reply = reply.and_then(Value::extract_error);
        if let Err(error) = &reply
            && (error.is_unrecoverable_error() || error::is_demoted(error))
        {
            self.liveness.fail();
        }
        Ok(T::from_redis_value(reply?)?)
    }

    /// Loads the scripts, so that they can be run by their hashes.
    pub(super) async fn load_scripts(&mut self, scripts: &[&'static Script]) -> RedisResult<()> {
        // A missing permission is ignored. A user who may not load scripts can still run those that
        // an operator has loaded.
        let ignore_forbidden = |result: RedisResult<()>| match result {
            Err(error) if !error::is_forbidden(&error) => Err(error),
            _ => Ok(()),
        };
        // The `PING` comes first. A server that has refused the login closes the connection on a
        // long command, without an error that gives the reason.
        ignore_forbidden(self.query(&redis::cmd("PING")).await)?;
        if scripts.is_empty() {
            return Ok(());
        }
        let mut load = redis::pipe();
        for script in scripts {
            load.cmd("SCRIPT").arg("LOAD").arg(script.text()).ignore();
        }
        ignore_forbidden(load.query_async(&mut self.connection).await)
    }

    /// Returns a handle that sends `ASKING` before each command.
    ///
    /// A server accepts such a command for a slot that is being migrated to it.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn with_asking(mut self) -> Self {
        self.is_asking = true;
        self
    }

    /// Asks the server whether it is a primary. Also returns `true` if the reply does not contain
    /// its role.
    #[cfg(feature = "redis-sentinel")]
    pub(super) async fn is_primary(&mut self) -> bool {
        // `HELLO` needs no special permission. Redis 5 does not support the command.
        let hello: RedisResult<Vec<Value>> = self.query(&redis::cmd("HELLO")).await;
        let role = |fields: Vec<Value>| {
            let fields: Vec<Option<String>> =
                fields.into_iter().map(|field| redis::from_redis_value(field).ok()).collect();
            let index = fields.iter().position(|field| field.as_deref() == Some("role"))?;
            fields.get(index + 1)?.clone()
        };
        hello.ok().and_then(role).is_none_or(|role| role == "master")
    }

    /// Returns whether this connection or another one of its generation has failed.
    pub(super) fn is_stale(&self) -> bool {
        self.liveness.is_stale()
    }

    /// Runs a script by its hash.
    ///
    /// If the server does not know the script, it has executed nothing. Only in that case is the
    /// script loaded and run again, on the same connection.
    async fn run_script(
        &mut self,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> RedisResult<Vec<u8>> {
        let bytes =
            keys.iter().map(String::len).chain(arguments.iter().map(Vec::len)).sum::<usize>();
        // The command's name, the hash, and the number of keys are three more arguments, with up to
        // 64 bytes together.
        let mut call = redis::Cmd::with_capacity(3 + keys.len() + arguments.len(), 64 + bytes);
        call.arg("EVALSHA").arg(script.sha()).arg(keys.len()).arg(keys);
        for argument in arguments {
            call.arg(argument.as_slice());
        }
        let reply: RedisResult<Option<Vec<u8>>> = self.call(&call).await;
        let reply = match reply {
            Err(failure) if error::is_unknown_script(&failure) => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.text());
                let _: String = self.call(&load).await?;
                self.call(&call).await
            }
            reply => reply,
        };
        reply.map(Option::unwrap_or_default)
    }

    /// Sends the bytes of a command and receives the reply.
    async fn exchange(&mut self, command: &redis::Cmd) -> RedisResult<Value> {
        let liveness = Arc::clone(&self.liveness);
        let _pending = PendingCommand::begin(&liveness);
        let reply = self.send(command).await;
        liveness.on_reply();
        reply
    }

    async fn send(&mut self, command: &redis::Cmd) -> RedisResult<Value> {
        #[cfg(feature = "redis-cluster")]
        if self.is_asking {
            let mut pipeline = redis::pipe();
            pipeline.cmd("ASKING").add_command(command.clone());
            // Skips the first reply, which answers `ASKING`.
            let mut replies = self.connection.req_packed_commands(&pipeline, 1, 1).await?;
            return Ok(replies.pop().unwrap_or(Value::Nil));
        }
        self.connection.req_packed_command(command).await
    }
}
