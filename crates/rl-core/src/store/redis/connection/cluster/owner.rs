//! The owner of a slot, its load, and the wait for a connection to it.
//!
//! ```text
//! owner in the map ── connection ─────────────────────────────► command
//!        ▲            │ none yet
//!        │            ▼
//!        └─── the map names another owner
//! ```

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::timeout;

use super::super::multiplexed::Connection;
use super::super::server::Address;
use super::{Cluster, SHORTEST_REFRESH_DELAY, unavailable};
use crate::model::StoreError;
use crate::store::ServerLoad;

impl Cluster {
    /// Returns the load of the server that holds a slot.
    pub(crate) fn load_of(&self, slot: u16) -> Arc<ServerLoad> {
        let owner = self.read_slots(|slots| slots.owner(slot));
        match owner {
            Some(owner) => Arc::clone(self.pool(&owner).load()),
            None => Arc::clone(&self.0.unknown),
        }
    }

    /// Returns a connection to the owner of a slot. If another server becomes the owner in the
    /// meantime, replaces `address` and waits for a connection to that server.
    pub(super) async fn connect_to_owner(
        &self,
        slot: u16,
        address: &mut Address,
    ) -> Result<Connection, StoreError> {
        loop {
            let pool = self.pool(address);
            let connected = {
                let (mut connection, mut next) =
                    (pin!(pool.get()), pin!(self.next_owner(slot, address)));
                poll_fn(|cx| match connection.as_mut().poll(cx) {
                    Poll::Ready(connection) => Poll::Ready(Ok(connection)),
                    Poll::Pending => next.as_mut().poll(cx).map(Err),
                })
                .await
            };
            match connected {
                Ok(connection) => return connection,
                Err(owner) => *address = owner,
            }
        }
    }

    /// Waits until the map names an owner of the slot other than `current`.
    ///
    /// Refreshes the map if `current` has no connection for a while. That server may have failed
    /// before any command noticed it, and its replica may be promoted while this command still
    /// waits for a connection.
    async fn next_owner(&self, slot: u16, current: &Address) -> Address {
        loop {
            let refreshed = self.0.refreshed.notified();
            if let Some(owner) = self.read_slots(|slots| slots.owner(slot))
                && owner != *current
            {
                return owner;
            }
            if timeout(SHORTEST_REFRESH_DELAY, refreshed).await.is_err() {
                self.start_refresh();
            }
        }
    }

    /// Returns the server that holds a slot. If the map names none, waits for a refresh.
    pub(super) async fn owner(&self, slot: u16) -> Result<Address, StoreError> {
        let lookup = || self.read_slots(|slots| slots.owner(slot));
        if let Some(owner) = lookup() {
            return Ok(owner);
        }
        let refreshed = self.0.refreshed.notified();
        self.start_refresh();
        let _ = timeout(self.0.settings.connection_wait, refreshed).await;
        lookup().ok_or_else(|| {
            self.lock_refusal().as_ref().map_or_else(
                || unavailable("no server of the cluster is known to hold the slot"),
                |(kind, detail)| {
                    StoreError::new(*kind).with_detail(detail.clone()).before_execution()
                },
            )
        })
    }
}
