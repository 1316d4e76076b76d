use super::alignment::Alignment;
use crate::algorithm::divisor::Divisor;
use crate::model::{Algorithm, Limit};

/// Up to six fixed windows, with an array for each property. Stores decide them together.
///
/// All of them count units and are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowArrays {
    /// The number of windows.
    pub(crate) count: usize,
    /// The maximum number of units in a window; `u64::MAX` behind the last window.
    pub(crate) max: [u64; Self::MAX],
    /// The used fraction that one unit adds, in units of 2^-40; 0 behind the last window.
    pub(crate) unit_fraction: [u64; Self::MAX],
    /// The time in µs for which a window is open after its first charge. It is 0 for a window on
    /// the clock, which may end right after its first charge.
    pub(crate) open_for: [u64; Self::MAX],
    /// Whether a window is on the clock.
    pub(crate) has_aligned: bool,
    period: [Divisor; Self::MAX],
    alignment: [Alignment; Self::MAX],
}

impl WindowArrays {
    /// The largest number of windows.
    pub(crate) const MAX: usize = 6;

    /// Creates the arrays of these limits. Returns `None` if there are more than six, or if one is
    /// not a fixed window, counts requests or is in shadow.
    pub(crate) fn new(limits: impl ExactSizeIterator<Item = Limit>) -> Option<Self> {
        let mut windows = Self {
            count: limits.len(),
            max: [u64::MAX; Self::MAX],
            unit_fraction: [0; Self::MAX],
            open_for: [0; Self::MAX],
            has_aligned: false,
            period: [Divisor::new(0); Self::MAX],
            alignment: [Alignment::FirstCharge; Self::MAX],
        };
        if windows.count > Self::MAX {
            return None;
        }
        for (index, limit) in limits.enumerate() {
            let alignment = alignment_of(limit)?;
            windows.alignment[index] = alignment;
            windows.max[index] = limit.max();
            windows.unit_fraction[index] = (1 << 40) / limit.max().max(1);
            windows.period[index] = Divisor::new(limit.period().as_micros());
            match alignment {
                Alignment::FirstCharge => windows.open_for[index] = limit.period().as_micros(),
                _ => windows.has_aligned = true,
            }
        }
        Some(windows)
    }

    /// Returns the end of the window at `index` whose first charge was at `since`, in µs since the
    /// epoch.
    pub(crate) fn end(&self, index: usize, since: u64) -> u64 {
        since.saturating_add(self.alignment[index].open_for(self.period[index], since))
    }
}

/// Returns the alignment of a fixed window that counts units and is enforced, or `None` for any
/// other limit.
fn alignment_of(limit: Limit) -> Option<Alignment> {
    match limit.algorithm() {
        _ if limit.is_shadow() || limit.counts_requests() => None,
        Algorithm::FixedWindow { anchor } => Some(Alignment::new(limit.period(), anchor)),
        _ => None,
    }
}
