//! Shares with their uncertainty.

use serde::{Deserialize, Serialize};

/// A share with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Hits.
    pub hits: u64,
    /// Trials.
    pub n: u64,
    /// `hits / n`; 0 when there are no trials.
    pub value: f64,
    /// Lower end of Wilson's 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The 97.5th percentile of the normal distribution.
const Z: f64 = 1.959_964;

impl Share {
    /// `hits` of `n`, with Wilson's score interval: it stays inside 0 to 1 and is right for small `n`.
    pub fn of(hits: u64, n: u64) -> Self {
        if n == 0 {
            return Self { hits, n, value: 0.0, low: 0.0, high: 1.0 };
        }
        let (count, value) = (n as f64, hits as f64 / n as f64);
        let scale = 1.0 + Z * Z / count;
        let centre = (value + Z * Z / (2.0 * count)) / scale;
        let half = Z / scale * (value * (1.0 - value) / count + Z * Z / (4.0 * count * count)).sqrt();
        Self { hits, n, value, low: (centre - half).max(0.0), high: (centre + half).min(1.0) }
    }

    /// The 95 % interval of this share less `other`, of other trials: Newcombe's, made of the intervals of both, so that
    /// it is right for small counts and for shares of 0 and 1.
    pub fn less(&self, other: &Self) -> (f64, f64) {
        let difference = self.value - other.value;
        let side = |a: f64, b: f64| a.hypot(b);
        let down = side(self.value - self.low, other.high - other.value);
        let up = side(self.high - self.value, other.value - other.low);
        ((difference - down).max(-1.0), (difference + up).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_of_known_cases() {
        // Published values: 8 of 10 gives 0.490 to 0.943, 0 of 10 gives 0 to 0.278.
        let share = Share::of(8, 10);
        assert!((share.low - 0.490).abs() < 1e-3 && (share.high - 0.943).abs() < 1e-3, "{share:?}");
        let none = Share::of(0, 10);
        assert!(none.low == 0.0 && (none.high - 0.278).abs() < 1e-3, "{none:?}");
        assert_eq!((Share::of(0, 0).low, Share::of(0, 0).high), (0.0, 1.0));
    }

    #[test]
    fn newcombes_interval_of_known_cases() {
        // Newcombe 1998, method 10: 56 of 70 less 48 of 80, and 10 of 10 less 0 of 20.
        for ((a, b), (low, high)) in [((56, 70), (0.0524, 0.3339)), ((10, 10), (0.6791, 1.0))] {
            let other = if a == 56 { Share::of(48, 80) } else { Share::of(0, 20) };
            let found = Share::of(a, b).less(&other);
            assert!((found.0 - low).abs() < 1e-3 && (found.1 - high).abs() < 1e-3, "{found:?}");
        }
        let same = Share::of(20, 20).less(&Share::of(20, 20));
        assert!(same.0 < 0.0 && same.1 > 0.0, "nothing is known of a judge that drops everything: {same:?}");
    }
}
