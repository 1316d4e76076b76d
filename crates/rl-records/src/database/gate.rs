use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rl_core::FailureKind;
use rl_core::time::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long nothing is asked after a failure.
pub(crate) const PAUSE_MICROS: u64 = 1_000_000;

/// The most look-ups that wait for their turn, of what is not known. Whoever can invent names fills
/// these places and no others.
const MOST_UNKNOWN: usize = 256;

/// The same, of what is known and may have changed.
const MOST_KNOWN: usize = 4_096;

/// Through which every look-up goes: so many at once, so many that wait, and after a failure one alone
/// until one succeeds.
#[derive(Debug)]
pub(crate) struct Gate {
    turns: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    // Of what is not known, and of what is.
    waiting: [usize; 2],
    down: Option<Down>,
}

/// The last look-up that ended has failed.
#[derive(Debug)]
struct Down {
    until: Timestamp,
    is_probing: bool,
}

impl Gate {
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        let turns = Arc::new(Semaphore::new(at_once.max(1)));
        Arc::new(Self { turns, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among those who wait to look up something that is known already, or not.
    ///
    /// # Errors
    ///
    /// At once, if the database is down, or if too many wait.
    pub(crate) fn enter(
        self: &Arc<Self>,
        is_known: bool,
        now: Timestamp,
    ) -> Result<Ticket, FailureKind> {
        let mut state = self.state();
        let kept = |down: &Down| down.is_probing || pauses(now, down.until);
        if state.down.as_ref().is_some_and(kept) {
            return Err(FailureKind::Unavailable);
        }
        let (queue, most) = if is_known { (1, MOST_KNOWN) } else { (0, MOST_UNKNOWN) };
        if state.waiting[queue] >= most {
            return Err(FailureKind::Overloaded);
        }
        state.waiting[queue] += 1;
        let is_probe = state.down.is_some();
        if let Some(down) = &mut state.down {
            down.is_probing = true;
        }
        Ok(Ticket { gate: self.clone(), queue: Some(queue), is_probe, turn: None })
    }
}

/// A place in the queue, then a turn; gives up whatever it has when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gate: Arc<Gate>,
    queue: Option<usize>,
    is_probe: bool,
    turn: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Waits until it may ask.
    ///
    /// # Errors
    ///
    /// If the database was found to be down meanwhile.
    pub(crate) async fn turn(&mut self) -> Result<(), FailureKind> {
        let turn = self.gate.turns.clone().acquire_owned().await;
        self.turn = Some(turn.map_err(|_| FailureKind::Unavailable)?);
        let gate = self.gate.clone();
        let mut state = gate.state();
        self.leave(&mut state);
        let is_closed = state.down.is_some() && !self.is_probe;
        if is_closed { Err(FailureKind::Unavailable) } else { Ok(()) }
    }

    fn leave(&mut self, state: &mut State) {
        if let Some(queue) = self.queue.take() {
            state.waiting[queue] -= 1;
        }
    }

    /// The database has answered, or not.
    pub(crate) fn ended(mut self, failure: Option<FailureKind>, now: Timestamp) {
        let gate = self.gate.clone();
        let mut state = gate.state();
        match failure {
            Some(kind) if !kind.is_configuration() => {
                let is_probing =
                    !self.is_probe && state.down.as_ref().is_some_and(|down| down.is_probing);
                state.down = Some(Down { until: now.plus_micros(PAUSE_MICROS), is_probing });
            }
            // One damaged record is no reason not to ask for others: the database answers.
            Some(_) if !self.is_probe => {}
            _ => state.down = None,
        }
        self.is_probe = false;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let gate = self.gate.clone();
        let mut state = gate.state();
        self.leave(&mut state);
        if let Some(down) = &mut state.down
            && self.is_probe
        {
            down.is_probing = false;
        }
    }
}

/// Whether a pause until then goes on. A clock that was set back does not make it longer.
pub(crate) const fn pauses(now: Timestamp, until: Timestamp) -> bool {
    let left = until.micros_since(now);
    0 < left && left <= PAUSE_MICROS
}
