//! Scales: they map numbers to positions, and choose the numbers at an axis.

/// A scale from numbers to px.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    /// The positions of `low` and `high`, in px.
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates a logarithmic scale between positive numbers.
    pub(super) fn logarithmic((low, high): (f64, f64), from: f64, to: f64) -> Self {
        // A scale between two equal numbers would have no length.
        let high = if high > low { high } else { low * 2.0 };
        Self { low, high, is_logarithmic: true, from, to }
    }

    /// Creates a linear scale from 0.
    pub(super) fn linear(high: f64, from: f64, to: f64) -> Self {
        Self { low: 0.0, high, is_logarithmic: false, from, to }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let part = if self.is_logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * part
    }
}

/// Returns the numbers at a logarithmic axis. The first is at most `low`, and the last is at least
/// `high`. They are powers of ten. If the axis spans few powers, 2 and 5 times each power are
/// included.
pub(super) fn logarithmic_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all: Vec<f64> = (first..=last)
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .collect();
    let from = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    all[from..=to.max(from)].to_vec()
}

/// Returns about five round numbers for a linear axis from 0, the last at or above `high`.
pub(super) fn linear_ticks(high: f64) -> Vec<f64> {
    let power = 10_f64.powi((high / 5.0).log10().floor() as i32);
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| high / step <= 5.0).unwrap_or(10.0 * power);
    let count = (high / step).ceil() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

/// Formats a number for an axis: `0.5`, `250`, `1 024`, `10 k`, `2 M`.
pub(super) fn label(value: f64) -> String {
    let short = |value: f64, unit: &str| {
        let text = format!("{value:.2}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match value {
        1_024.0 => "1 024".to_owned(),
        value if value >= 1e6 => short(value / 1e6, " M"),
        value if value >= 1e3 => short(value / 1e3, " k"),
        value => short(value, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_have_equal_distances_on_a_logarithmic_scale() {
        let scale = Scale::logarithmic((1.0, 10_000.0), 0.0, 400.0);
        assert_eq!([1.0, 10.0, 10_000.0].map(|value| scale.at(value).round()), [0.0, 100.0, 400.0]);
        let linear = Scale::linear(20.0, 300.0, 100.0);
        assert_eq!([0.0, 5.0, 20.0].map(|value| linear.at(value)), [300.0, 250.0, 100.0]);
    }

    #[test]
    fn ticks_are_round_and_enclose_what_is_shown() {
        assert_eq!(logarithmic_ticks(23.0, 310.0), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(logarithmic_ticks(10.0, 1e6), [10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(logarithmic_ticks(7.0, 7.0), [5.0, 10.0]);
        assert_eq!(linear_ticks(9.3), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear_ticks(120.0), [0.0, 25.0, 50.0, 75.0, 100.0, 125.0]);
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.5, 6.0, 1_024.0, 10_000.0, 2.5e6].map(label);
        assert_eq!(labels, ["0.5", "6", "1 024", "10 k", "2.5 M"]);
    }
}
