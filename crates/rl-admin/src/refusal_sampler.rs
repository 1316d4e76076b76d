use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rl_core::time::Timestamp;

/// Limits how many refusals are written, so that no actor can fill the history and the log.
#[derive(Debug, Default)]
pub(crate) struct RefusalSampler(Mutex<Minute>);

#[derive(Debug, Default)]
struct Minute {
    number: u64,
    written: u32,
    actors: HashMap<String, ActorCount>,
}

#[derive(Debug, Default)]
struct ActorCount {
    written: u32,
    // The number of refusals since the last one that was written.
    skipped: u64,
}

impl RefusalSampler {
    /// The maximum number of refusals by one actor that are written in a minute.
    const MAX_OF_ACTOR: u32 = 10;

    /// The maximum number of refusals by all actors that are written in a minute.
    const MAX_OF_ALL: u32 = 100;

    /// The maximum number of actors for which refusals are counted.
    const MAX_ACTORS: usize = 1_000;

    /// Counts a refusal. Returns the number of refusals since the last entry, this one included, or
    /// `None` if this refusal must not be written.
    pub(crate) fn count(&self, actor: &str, now: Timestamp) -> Option<u64> {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = now.as_micros() / 60_000_000;
        if minute.number != number {
            minute.number = number;
            minute.written = 0;
            minute.actors.retain(|_, counted| counted.skipped > 0);
            minute.actors.values_mut().for_each(|counted| counted.written = 0);
        }
        if minute.actors.len() >= Self::MAX_ACTORS && !minute.actors.contains_key(actor) {
            return None;
        }
        let is_full = minute.written >= Self::MAX_OF_ALL;
        let counted = minute.actors.entry(actor.to_owned()).or_default();
        if is_full || counted.written >= Self::MAX_OF_ACTOR {
            counted.skipped += 1;
            return None;
        }
        counted.written += 1;
        let count = 1 + std::mem::take(&mut counted.skipped);
        minute.written += 1;
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_refusals_of_an_actor_are_written_in_a_minute_and_the_next_counts_the_others() {
        let refusals = RefusalSampler::default();
        let (noon, later) = (Timestamp::from_secs(720), Timestamp::from_secs(780));
        let written: Vec<_> = (0..100).filter_map(|_| refusals.count("bob", noon)).collect();
        assert_eq!(written, [1; 10]);
        assert_eq!(refusals.count("alice", noon), Some(1), "each actor has a count of its own");
        assert_eq!(refusals.count("bob", later), Some(91));
        assert_eq!(refusals.count("bob", later), Some(1));
    }

    #[test]
    fn refusals_of_many_actors_are_bounded() {
        let refusals = RefusalSampler::default();
        let noon = Timestamp::from_secs(720);
        let written = (0..5_000).filter_map(|actor| refusals.count(&actor.to_string(), noon));
        assert_eq!(written.count(), 100);
        assert!(refusals.0.lock().unwrap().actors.len() <= RefusalSampler::MAX_ACTORS);
    }
}
