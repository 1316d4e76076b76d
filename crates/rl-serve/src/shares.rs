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
/// A peer may hold the part of the units that is the square of the free part: if half of them are
/// free, a quarter. So a peer alone gets 38 in 100, and `n` peers that take all they can, together or
/// one after the other, leave more than one part in `n + 1` free. No peer takes the units of another
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
    /// would hold more than its share.
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
        // A peer without units must not be remembered.
        if amount == 0 {
            return true;
        }
        let Resource { name, capacity, .. } = *self.shares.0;
        let mut state = self.shares.state();
        let held = state.held.get(&self.peer).copied().unwrap_or(0);
        let left = capacity.checked_sub(state.total.saturating_add(amount));
        // If a peer could hold as much as is free, each further one would halve the rest.
        let may_hold = |left: usize| {
            // As if the units were taken one after the other.
            let (held, free) = ((held + amount - 1) as u128, left as u128 + 1);
            held * (capacity as u128) <= free * free
        };
        if left.is_some_and(may_hold) {
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
                "peer refused: it holds its share (logged every 10 s at most)"
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

    /// Fault: peers that took all they could, one after the other, each halved the rest, so that a
    /// few addresses took everything.
    #[test]
    fn peers_that_take_all_they_can_leave_more_than_one_part_for_each_of_them_and_one() {
        let shares = PeerShares::new("units", 4_096);
        let mut held = Vec::new();
        let mut taken = Vec::new();
        for number in 1..=32 {
            let before = held.len();
            let address = Some(IpAddr::from([192, 0, 2, number]));
            held.extend(std::iter::from_fn(|| shares.take(address, 1)));
            taken.push(held.len() - before);
            assert!(4_096 - held.len() > 4_096 / (usize::from(number) + 1), "{taken:?}");
        }
        assert_eq!(taken[..4], [1_565, 764, 434, 274]);
        assert_eq!(shares.refused(), 32);
        drop(held);
        assert!(shares.state().held.is_empty());
    }

    /// Fault: an address that took no unit, such as that of a connection without a request, was kept
    /// for ever.
    #[test]
    fn a_peer_that_takes_no_unit_is_not_remembered() {
        let shares = PeerShares::new("units", 8);
        drop(shares.take(peer("2001:db8::1"), 0).unwrap());
        assert!(shares.state().held.is_empty());
    }

    #[test]
    fn a_share_grows_by_as_much_as_single_units() {
        let shares = PeerShares::new("units", 120);
        let first = shares.take(peer("2001:db8::1"), 40).unwrap();
        // The same network.
        let second = shares.take(peer("2001:db8::2"), 5).unwrap();
        assert!(!second.grow(2) && second.grow(1) && !second.grow(1) && second.grow(0));
        // Without an address, as with any other.
        assert!(shares.take(None, 24).is_none());
        let other = shares.take(None, 23).unwrap();
        drop((first, second, other));
        assert_eq!((shares.held(), shares.refused()), (0, 3));
        assert!(shares.state().held.is_empty());
    }
}
