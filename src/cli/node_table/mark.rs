//! A row's verdicts in one sign.

use crate::compare::Verdict;
use crate::dump::NodeRow;

/// What a row's two verdicts come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    Match,
    /// Noise, a tie or an open order.
    Noise,
    Drifted,
    Mismatch,
    NotCompared,
    Failed,
}

impl Mark {
    pub(crate) const ALL: [Self; 6] =
        [Mark::Match, Mark::Noise, Mark::Drifted, Mark::Mismatch, Mark::NotCompared, Mark::Failed];

    pub(crate) fn of(node: &NodeRow) -> Self {
        match (&node.local.verdict, &node.cumulative.verdict) {
            (Verdict::Failed(_), _) | (_, Verdict::Failed(_)) => Mark::Failed,
            (Verdict::Mismatch, _) => Mark::Mismatch,
            (_, Verdict::Mismatch) => Mark::Drifted,
            (Verdict::NotCompared(_), _) | (_, Verdict::NotCompared(_)) => Mark::NotCompared,
            (local, cumulative) => match [local, cumulative].into_iter().all(|verdict| *verdict == Verdict::Match) {
                true => Mark::Match,
                false => Mark::Noise,
            },
        }
    }

    /// Of one verdict alone.
    pub(crate) fn of_verdict(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Failed(_) => Mark::Failed,
            Verdict::Mismatch => Mark::Mismatch,
            Verdict::NotCompared(_) => Mark::NotCompared,
            Verdict::Match => Mark::Match,
            _ => Mark::Noise,
        }
    }

    /// In counts.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mark::Match => "match",
            Mark::Noise => "noise",
            Mark::Drifted => "drifted",
            Mark::Mismatch => "mismatch",
            Mark::NotCompared => "not compared",
            Mark::Failed => "failed",
        }
    }

    pub(super) fn sign(self) -> &'static str {
        match self {
            Mark::Match => "=",
            Mark::Noise => "≈",
            Mark::Drifted => "~",
            Mark::Mismatch => "!",
            Mark::NotCompared => "?",
            Mark::Failed => "x",
        }
    }
}
