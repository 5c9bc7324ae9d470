//! What a pass over a pair of tensors finds: sums, maxima and counts, to be merged span by span, or thread by thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::number;

/// Thresholds of [`Counts`].
pub const ABOVE: [f64; 8] = [0., 1e-4, 1e-3, 1e-2, 0.1, 1., 10., 100.];

/// For each threshold of [`ABOVE`], how many distances are larger. In JSON a map: `{">0": 3, ">0.0001": 1, …}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub [u64; ABOVE.len()]);

/// The tolerance that would pass: each the smallest, up to rounding, with the other terms as given. 0 when none is
/// needed, +∞ when none suffices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Required {
    /// With rtol and scale as given.
    #[serde(with = "number")]
    pub atol: f64,
    /// With atol and scale as given.
    #[serde(with = "number")]
    pub rtol: f64,
}

/// A number's place, with what was read there, widened: whoever reads a second time may read something else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    pub index: u64,
    pub reference: f64,
    pub candidate: f64,
}

/// The place of the larger of two distances; of equal ones the first.
fn further(mine: (f64, Option<Place>), theirs: (f64, Option<Place>)) -> (f64, Option<Place>) {
    let is_first = || matches!((theirs.1, mine.1), (Some(theirs), Some(mine)) if theirs.index < mine.index);
    if theirs.0 > mine.0 || theirs.0 == mine.0 && is_first() { theirs } else { mine }
}

/// What one pass finds. "filled": after NaN and ±∞ were replaced as [`MaxDiff`](super::MaxDiff) says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Stats {
    pub measured: u64,
    pub max_abs: f64,
    pub argmax_abs: Option<Place>,
    pub max_rel: f64,
    pub max_reference: f64,
    pub max_ulp: u64,
    pub sum_abs: f64,
    pub sum_squares: f64,
    pub sum_reference: f64,
    pub sum_candidate: f64,
    pub sum_product: f64,
    pub above: [u64; ABOVE.len()],
    pub nan_disagreements: u64,
    pub inf_disagreements: u64,
    pub both_nan: u64,
    /// NaN and infinities of the reference, then of the candidate.
    pub not_finite: [u64; 4],
    /// Candidates that are zero where the reference is not.
    pub flushed: u64,
    pub filled_max_abs: f64,
    pub filled_argmax: Option<Place>,
    pub filled_max_rel: f64,
    pub filled_sum: f64,
    pub filled_above: [u64; ABOVE.len()],
}

impl Stats {
    /// Some pair is not equal, or has a NaN.
    pub fn has_unequal(&self) -> bool {
        self.max_abs > 0. || self.nan_disagreements + self.inf_disagreements + self.both_nan > 0
    }

    /// Adds what was found elsewhere.
    pub fn merge(&mut self, other: &Stats) {
        (self.max_abs, self.argmax_abs) = further((self.max_abs, self.argmax_abs), (other.max_abs, other.argmax_abs));
        (self.filled_max_abs, self.filled_argmax) =
            further((self.filled_max_abs, self.filled_argmax), (other.filled_max_abs, other.filled_argmax));
        for (mine, theirs) in [
            (&mut self.max_rel, other.max_rel),
            (&mut self.max_reference, other.max_reference),
            (&mut self.filled_max_rel, other.filled_max_rel),
        ] {
            *mine = mine.max(theirs);
        }
        self.max_ulp = self.max_ulp.max(other.max_ulp);
        for (mine, theirs) in [
            (&mut self.sum_abs, other.sum_abs),
            (&mut self.sum_squares, other.sum_squares),
            (&mut self.sum_reference, other.sum_reference),
            (&mut self.sum_candidate, other.sum_candidate),
            (&mut self.sum_product, other.sum_product),
            (&mut self.filled_sum, other.filled_sum),
        ] {
            *mine += theirs;
        }
        self.measured += other.measured;
        self.nan_disagreements += other.nan_disagreements;
        self.inf_disagreements += other.inf_disagreements;
        self.both_nan += other.both_nan;
        self.flushed += other.flushed;
        self.not_finite.iter_mut().zip(other.not_finite).for_each(|(mine, theirs)| *mine += theirs);
        let counts = self.above.iter_mut().chain(&mut self.filled_above);
        counts.zip(other.above.into_iter().chain(other.filled_above)).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// What is outside tolerance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outside {
    pub count: u64,
    pub first: Option<Place>,
    pub worst: Option<Place>,
    pub worst_excess: f64,
    pub required: Required,
}

impl Outside {
    /// Adds what was found elsewhere.
    pub fn merge(&mut self, other: &Outside) {
        self.count += other.count;
        self.first = self.first.into_iter().chain(other.first).min_by_key(|place| place.index);
        self.required.atol = self.required.atol.max(other.required.atol);
        self.required.rtol = self.required.rtol.max(other.required.rtol);
        (self.worst_excess, self.worst) = further((self.worst_excess, self.worst), (other.worst_excess, other.worst));
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(ABOVE.iter().zip(self.0).map(|(threshold, count)| (format!(">{threshold}"), count)))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut counts = [0; ABOVE.len()];
        for (count, threshold) in counts.iter_mut().zip(ABOVE) {
            let key = format!(">{threshold}");
            *count = *map.get(&key).ok_or_else(|| de::Error::custom(format_args!("counts: no {key:?}")))?;
        }
        Ok(Self(counts))
    }
}
