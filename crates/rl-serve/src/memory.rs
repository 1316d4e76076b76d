//! The memory that the requests of a connection take.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shares::Share;

/// The bytes that each of the concurrent requests of a connection takes beside its head and bodies:
/// those of a call of gRPC whose response is a stream.
const STREAM: usize = 16 * 1024;
/// The bytes by which a connection takes its memory from the share of its peer. It keeps them from
/// request to request, so that most requests do not lock the state of all peers.
const CHUNK: usize = 32 * 1024;

/// The memory that the requests of a connection take from the share of their peer.
#[derive(Debug)]
pub(crate) struct ConnectionMemory {
    share: Share,
    used: Mutex<Used>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// The bytes of heads and bodies.
    requests: usize,
    /// The highest number of concurrent requests. hyper keeps the memory of a stream for later ones.
    streams: usize,
}

impl Used {
    /// Returns the bytes that a connection takes from the share of its peer.
    const fn to_take(self) -> usize {
        (self.requests.saturating_add(self.streams * STREAM)).next_multiple_of(CHUNK)
    }
}

impl ConnectionMemory {
    pub(crate) fn new(share: Share) -> Self {
        Self { share, used: Mutex::default() }
    }

    /// Takes the memory of a request, of which `count` are in progress. Returns whether the peer may
    /// take it.
    #[must_use]
    pub(crate) fn take_stream(&self, count: usize) -> bool {
        self.take_if_free(|used| Used { streams: used.streams.max(count), ..used })
    }

    /// Takes memory for the head or a body of a request, until it is [given
    /// back](Self::give_back). Returns whether the peer may take it.
    #[must_use]
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.take_if_free(|used| Used { requests: used.requests.saturating_add(bytes), ..used })
    }

    /// Gives back the memory of the head and the bodies of a request.
    pub(crate) fn give_back(&self, bytes: usize) {
        let mut used = self.used();
        used.requests = used.requests.saturating_sub(bytes);
        if used.requests == 0 {
            self.share.shrink_to(used.to_take());
        }
    }

    /// Takes what `more` returns, or nothing: a request that is refused must not count with later
    /// ones, for which the memory of the connection suffices.
    fn take_if_free(&self, more: impl FnOnce(Used) -> Used) -> bool {
        let mut used = self.used();
        let needed = more(*used);
        let missing = needed.to_take().saturating_sub(self.share.amount());
        let is_taken = missing == 0 || self.share.grow(missing);
        if is_taken {
            *used = needed;
        }
        is_taken
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::PeerShares;

    #[test]
    fn a_connection_takes_chunks_and_gives_them_back_when_it_is_idle() {
        let peers = PeerShares::new("bytes", 10 * CHUNK);
        let memory = ConnectionMemory::new(peers.take(None, 0).unwrap());
        let held = || peers.held() as usize / CHUNK;
        assert!(memory.take_stream(1) && memory.take(100));
        assert_eq!(held(), 1);
        assert!(memory.take(2 * CHUNK));
        assert_eq!(held(), 3);
        memory.give_back(2 * CHUNK);
        assert_eq!(held(), 3);
        memory.give_back(100);
        assert_eq!(held(), 1);
        drop(memory);
        assert_eq!(held(), 0);
    }

    /// Fault: after a burst that was refused, a connection was refused each single request too, until
    /// other peers gave memory back.
    #[test]
    fn a_request_that_is_refused_leaves_the_memory_of_a_connection_to_later_ones() {
        let peers = PeerShares::new("bytes", 4 * CHUNK);
        let memory = ConnectionMemory::new(peers.take(None, 0).unwrap());
        assert!(memory.take_stream(1));
        assert!(!memory.take_stream(256) && !memory.take(usize::MAX / 2));
        assert!(memory.take_stream(1) && memory.take(CHUNK - STREAM));
        assert!(!memory.take(1));
        memory.give_back(CHUNK - STREAM);
        assert_eq!(peers.held() as usize, CHUNK);
    }
}
