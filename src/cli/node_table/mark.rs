//! A row's verdicts in one sign.

use crate::compare::Verdict;
use crate::dump::NodeRow;

/// What a row's two verdicts come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Match,
    /// Noise, a tie or an open order.
    Noise,
    Drifted,
    Mismatch,
    NotCompared,
    Failed,
}

impl Mark {
    pub(super) fn of(node: &NodeRow) -> Self {
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

    /// In counts.
    pub(super) fn word(self) -> &'static str {
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
