use std::collections::VecDeque;

/// A burst begins when `denials` denials have occurred in the last `seconds` seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct BurstThreshold {
    pub(super) denials: u64,
    pub(super) seconds: usize,
}

/// The denials of the last seconds.
#[derive(Debug)]
pub(super) struct BurstDetector {
    threshold: BurstThreshold,
    /// The total number of denials at each reading, the earliest first.
    readings: VecDeque<u64>,
    is_burst: bool,
}

impl BurstDetector {
    pub(super) const fn new(threshold: BurstThreshold) -> Self {
        Self { threshold, readings: VecDeque::new(), is_burst: false }
    }

    /// Adds a reading: the total number of denials. Returns `true` if a burst begins now, or
    /// `false` if it ends now, with the number of recent denials. Otherwise returns `None`.
    ///
    /// A burst ends below half the threshold. If it ended at the threshold at which it begins, a
    /// rate close to the threshold would cause an event each second.
    pub(super) fn read(&mut self, denied: u64) -> Option<(bool, u64)> {
        self.readings.push_back(denied);
        if self.readings.len() > self.threshold.seconds + 1 {
            self.readings.pop_front();
        }
        let recent = denied.saturating_sub(self.readings.front().copied().unwrap_or(denied));
        let is_burst = match self.is_burst {
            false => recent >= self.threshold.denials,
            true => recent * 2 >= self.threshold.denials,
        };
        let is_changed = is_burst != std::mem::replace(&mut self.is_burst, is_burst);
        is_changed.then_some((is_burst, recent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_begins_at_the_threshold_and_ends_below_half_of_it() {
        let mut detector = BurstDetector::new(BurstThreshold { denials: 10, seconds: 3 });
        let readings = [100, 104, 109, 110, 111, 113, 116, 120, 121, 122, 123];
        let events: Vec<_> = readings.map(|denied| detector.read(denied)).into_iter().collect();
        let began = events.iter().position(|event| *event == Some((true, 10)));
        let ended = events.iter().position(|event| *event == Some((false, 4)));
        assert_eq!((began, ended), (Some(3), Some(5)), "{events:?}");
        assert_eq!(events.iter().flatten().count(), 2);
    }
}
