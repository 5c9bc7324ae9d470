//! Whether a wrong node gives the same each time, and with other numbers of threads. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::case::is_wrong;
use super::local_error::Own;
use crate::base::ids::ValueName;
use crate::compare::{Tolerance, few, judge};
use crate::tensor::TensorBuf;

/// A wrong node run again on equal inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// The first run's, and the others in their order.
    pub runs: Vec<Rerun>,
    /// The largest distance of a run from the first, relative to the largest element; 0 where all give the same.
    pub apart: f64,
    /// Why it could not be run with other numbers of threads; or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
}

/// One of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rerun {
    /// Threads of a pool of its own; None: on the pool that all share.
    pub threads: Option<u32>,
    /// It is wrong, too.
    pub wrong: bool,
    /// To the bit what the first one gave.
    pub same: bool,
    /// Within tolerance of what the first one gave.
    pub near: bool,
}

impl Again {
    /// Of the first run.
    pub fn first() -> Self {
        let first = Rerun { threads: None, wrong: true, same: true, near: true };
        Self { runs: vec![first], apart: 0., refused: String::new() }
    }

    /// Adds a run. Both: the group's values in one order. `wrong`: asked where it is not the same.
    pub fn add<E>(
        &mut self,
        threads: Option<u32>,
        [first, other]: [&[(ValueName, TensorBuf)]; 2],
        wrong: impl FnOnce() -> Result<bool, E>,
    ) -> Result<(), E> {
        let bytes =
            |((_, one), (_, other)): (&(_, TensorBuf), &(_, TensorBuf))| one.view().bytes() == other.view().bytes();
        let same = first.len() == other.len() && first.iter().zip(other).all(bytes);
        let mut near = first.len() == other.len();
        for ((name, one), (_, other)) in first.iter().zip(other) {
            let tolerance = Tolerance::for_kernel(one.desc().dtype);
            let verdict = judge(name, &one.view(), &other.view(), Some(&tolerance));
            near &= same || !is_wrong(&verdict);
            let apart = verdict.metrics.map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max);
            self.apart = if same { self.apart } else { self.apart.max(apart) };
        }
        let wrong = if same { true } else { wrong()? };
        self.runs.push(Rerun { threads, wrong, same, near });
        Ok(())
    }

    /// What the node's error is: jitter where a run is right, or where the same pool gives something else each time.
    pub fn own(&self) -> Own {
        let is_jitter = |run: &Rerun| !run.wrong || (run.threads.is_none() && !run.near);
        if self.runs.iter().any(is_jitter) { Own::Jitter } else { Own::Wrong }
    }

    /// Whether every run gave the same, to the bit.
    pub fn is_same(&self) -> bool {
        self.runs.iter().all(|run| run.same)
    }
}

/// By how much runs differ, and with how many threads it is wrong and right: half a sentence.
impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |run: &Rerun| run.threads.map_or("the shared pool's".to_owned(), |threads| threads.to_string());
        let of = |wanted: fn(&Rerun) -> bool| {
            let mut names: Vec<String> = self.runs.iter().filter(|run| wanted(run)).map(name).collect();
            names.dedup();
            names.join(", ")
        };
        match self.is_same() {
            true => write!(f, "{} runs give the same to the bit", self.runs.len())?,
            false => write!(f, "runs differ by up to {} of the largest element", few(self.apart))?,
        }
        let (wrong, right) = (of(|run| run.wrong), of(|run| !run.wrong));
        if !right.is_empty() {
            write!(f, "; wrong with {wrong} threads, right with {right}")?;
        }
        if !self.refused.is_empty() {
            write!(f, "; other numbers of threads were not tried: {}", self.refused)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: f32) -> Vec<(ValueName, TensorBuf)> {
        vec![("a".to_owned(), TensorBuf::from_f32([2], &[value, 1.]).unwrap())]
    }

    /// (threads, value, whether it is wrong) after a first run that gave 2.
    fn again(runs: &[(Option<u32>, f32, bool)]) -> Again {
        let mut again = Again::first();
        for &(threads, value, wrong) in runs {
            again.add(threads, [&values(2.), &values(value)], || Ok::<_, ()>(wrong)).unwrap();
        }
        again
    }

    #[test]
    fn what_is_always_wrong_is_wrong_and_what_is_right_once_is_jitter() {
        for (runs, expected, text) in [
            (&[(None, 2., false), (Some(1), 2., false)][..], Own::Wrong, "3 runs give the same to the bit"),
            (&[(None, 2., true), (Some(1), 2.5, true)], Own::Wrong, "runs differ by up to 0.25 of the largest element"),
            (
                &[(None, 2., true), (Some(1), 2.5, false), (Some(4), 2., true)],
                Own::Jitter,
                "runs differ by up to 0.25 of the largest element; wrong with the shared pool's, 4 threads, right with 1",
            ),
            (
                &[(None, 2.5, true), (Some(1), 2., true)],
                Own::Jitter,
                "runs differ by up to 0.25 of the largest element",
            ),
            // The order of a sum, on one pool: told, and no excuse.
            (&[(None, 2.000_000_2, true)], Own::Wrong, "runs differ by up to"),
        ] {
            let again = again(runs);
            assert_eq!(again.own(), expected, "{runs:?}");
            assert!(again.to_string().starts_with(text), "{again}");
        }
    }

    #[test]
    fn what_could_not_be_tried_is_said() {
        let again = Again { refused: "it has no pools".to_owned(), ..again(&[(None, 2., true)]) };
        assert_eq!(
            again.to_string(),
            "2 runs give the same to the bit; other numbers of threads were not tried: it has no pools"
        );
        let read: Again = serde_json::from_str(&serde_json::to_string(&again).unwrap()).unwrap();
        assert_eq!(read, again);
    }
}
