//! Kinds of noise, and how many there are of each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the errors of two results come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseKind {
    /// The candidate is about as far from float64 as the reference is, or by no more than rounding explains.
    Noise,
    /// The candidate is further from float64 than noise explains.
    CandidateWorse,
    /// The reference is.
    ReferenceWorse,
    /// Both are far from float64, by about as much as they are apart: the value itself is hardly determined.
    IllConditioned,
}

impl NoiseKind {
    /// All, in the order of their declaration.
    pub const ALL: [NoiseKind; 4] =
        [NoiseKind::Noise, NoiseKind::CandidateWorse, NoiseKind::ReferenceWorse, NoiseKind::IllConditioned];
}

/// Kinds counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoiseSummary {
    /// [`NoiseKind::Noise`].
    pub noise: usize,
    /// [`NoiseKind::CandidateWorse`].
    pub candidate_worse: usize,
    /// [`NoiseKind::ReferenceWorse`].
    pub reference_worse: usize,
    /// [`NoiseKind::IllConditioned`].
    pub ill_conditioned: usize,
}

impl NoiseSummary {
    /// Of those that are known.
    pub fn of(kinds: impl IntoIterator<Item = NoiseKind>) -> Self {
        let mut summary = Self::default();
        for kind in kinds {
            *match kind {
                NoiseKind::Noise => &mut summary.noise,
                NoiseKind::CandidateWorse => &mut summary.candidate_worse,
                NoiseKind::ReferenceWorse => &mut summary.reference_worse,
                NoiseKind::IllConditioned => &mut summary.ill_conditioned,
            } += 1;
        }
        summary
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Those that there are: "12 noise, 1 candidate worse".
impl fmt::Display for NoiseSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [self.noise, self.candidate_worse, self.reference_worse, self.ill_conditioned];
        let there = NoiseKind::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
        let parts: Vec<_> = there.map(|(kind, count)| format!("{count} {kind}")).collect();
        f.pad(&parts.join(", "))
    }
}

impl fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NoiseKind::Noise => "noise",
            NoiseKind::CandidateWorse => "candidate worse",
            NoiseKind::ReferenceWorse => "reference worse",
            NoiseKind::IllConditioned => "ill-conditioned",
        })
    }
}
