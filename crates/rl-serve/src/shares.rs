//! The shares of peers in a bounded resource.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two log lines about one resource.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A bounded resource, such as connections, that peers share. Clones share it too.
///
/// A peer may hold no more units than are free. So a peer alone gets half of the units, and `n` peers
/// that take all they can leave one part in `n + 1` to others. No peer takes the units of another
/// one, whatever the number of peers, and no number of them has to be configured.
///
/// A peer is an IPv4 address, or an IPv6 network of /64. Peers without an address are one peer.
///
/// # Examples
///
/// ```
/// use rl_serve::PeerShares;
///
/// let (permits, peer) = (PeerShares::new("permits", 3), "192.0.2.1".parse().ok());
/// let first = permits.take(peer, 1).expect("three are free");
/// let second = permits.take(peer, 1).expect("two are free");
/// assert!(permits.take(peer, 1).is_none());
/// assert!(permits.take("192.0.2.2".parse().ok(), 1).is_some());
/// drop((first, second));
/// assert_eq!(permits.held(), 0);
/// ```
#[derive(Clone)]
pub struct PeerShares(Arc<Resource>);

struct Resource {
    name: &'static str,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The units that each peer holds; none is 0.
    held: HashMap<IpAddr, usize>,
    total: usize,
    refused: u64,
    /// The time of the last log line, and the value of `refused` in it.
    logged: Option<(Instant, u64)>,
}

/// Units that a peer holds until this is dropped.
#[must_use]
pub struct Share {
    shares: PeerShares,
    peer: IpAddr,
    amount: AtomicUsize,
}

impl PeerShares {
    /// Creates a resource of `capacity` units. Log lines show the name.
    #[must_use]
    pub fn new(name: &'static str, capacity: usize) -> Self {
        Self(Arc::new(Resource { name, capacity, state: Mutex::default() }))
    }

    /// Takes units for a peer. Returns `None`, and logs at most one line in ten seconds, if the peer
    /// would hold more units than are free.
    #[must_use]
    pub fn take(&self, peer: Option<IpAddr>, amount: usize) -> Option<Share> {
        let peer = peer.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), network);
        let share = Share { shares: self.clone(), peer, amount: AtomicUsize::new(0) };
        share.grow(amount).then_some(share)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the number of units that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.state().total as u64
    }

    /// Returns how often units were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes more units. Returns whether the peer may hold them.
    #[must_use]
    pub fn grow(&self, amount: usize) -> bool {
        let Resource { name, capacity, .. } = *self.shares.0;
        let mut state = self.shares.state();
        let held = state.held.get(&self.peer).copied().unwrap_or(0);
        // As if the units were taken one after the other, each only if the peer holds less than is
        // free.
        let free = capacity.checked_sub(state.total.saturating_add(amount));
        if free.is_some_and(|free| held + amount <= free + 1) {
            *state.held.entry(self.peer).or_default() += amount;
            state.total += amount;
            self.amount.fetch_add(amount, Ordering::Relaxed);
            return true;
        }
        state.refused += 1;
        let now = Instant::now();
        let (at, before) = state.logged.unzip();
        if at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            let (refused, total) = (state.refused - before.unwrap_or(0), state.total);
            state.logged = Some((now, state.refused));
            drop(state);
            tracing::warn!(
                target: "rl_serve", resource = name, peer = %self.peer, held, total, capacity, refused,
                "peer refused: it may hold no more than is free (logged every 10 s at most)"
            );
        }
        false
    }

    /// Gives back the units above `amount`.
    pub fn shrink_to(&self, amount: usize) {
        let excess = self.amount().saturating_sub(amount);
        if excess == 0 {
            return;
        }
        let mut state = self.shares.state();
        self.amount.fetch_sub(excess, Ordering::Relaxed);
        state.total -= excess;
        if let Some(held) = state.held.get_mut(&self.peer) {
            *held -= excess;
            if *held == 0 {
                state.held.remove(&self.peer);
            }
        }
    }

    /// Returns the number of units.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.amount.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Returns the address under which the units of a peer count.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

impl fmt::Debug for PeerShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resource { name, capacity, .. } = *self.0;
        write!(f, "PeerShares({name}: {} of {capacity})", self.held())
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({})", self.amount())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_peer_that_takes_all_it_can_leaves_as_much_to_each_other_one() {
        let shares = PeerShares::new("units", 120);
        let mut held = Vec::new();
        for (address, expected) in
            [("192.0.2.1", 60), ("192.0.2.2", 30), ("2001:db8::1", 15), ("2001:db8::2", 0)]
        {
            let taken = std::iter::from_fn(|| shares.take(peer(address), 1));
            let before = held.len();
            held.extend(taken);
            assert_eq!(held.len() - before, expected, "{address}");
        }
        assert_eq!((shares.held(), shares.refused()), (105, 4));
        // Without an address, as with any other.
        assert!(shares.take(None, 9).is_none());
        let share = shares.take(None, 5).unwrap();
        assert!(share.grow(2) && !share.grow(2));
        drop((held, share));
        assert_eq!(shares.held(), 0);
        assert!(shares.state().held.is_empty());
    }
}
