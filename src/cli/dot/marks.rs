//! What a dump found of a part's values.

use std::collections::HashMap;
use std::path::Path;

use crate::cli::exit::{Failure, at};
use crate::cli::node_table::{Found, Mark};
use crate::dump::reader;

/// What each value comes to, by its name: of several calls the worst.
#[derive(Debug, Default)]
pub(super) struct Marks {
    by_value: HashMap<String, Mark>,
    /// The calls that were compared.
    pub(super) steps: Vec<u64>,
}

impl Marks {
    /// Those of the folder of a part, of one call or of all: of every node where there is a table of nodes, else of the
    /// outputs. None outside a dump. Errors: they cannot be read, or are damaged.
    pub(super) fn read(folder: &Path, step: Option<u64>) -> Result<Self, Failure> {
        let is_wanted = |number: u64| step.is_none_or(|step| step == number);
        let mut marks = Self::default();
        for (number, path) in reader::node_files(folder).map_err(at(folder))? {
            if is_wanted(number) {
                let found = Found::read(number, path)?;
                marks.steps.push(number);
                found.marks().for_each(|(value, mark)| marks.add(value, mark));
            }
        }
        if !marks.steps.is_empty() {
            return Ok(marks);
        }
        for step in reader::steps(folder).map_err(at(folder))? {
            let compared = match is_wanted(step.step) {
                true => reader::comparison_of(folder, step.step).map_err(at(folder))?,
                false => None,
            };
            if let Some(comparison) = compared {
                marks.steps.push(step.step);
                comparison.verdicts.iter().for_each(|one| marks.add(&one.name, Mark::of_verdict(&one.verdict)));
            }
        }
        Ok(marks)
    }

    fn add(&mut self, value: &str, mark: Mark) {
        let known = self.by_value.entry(value.to_owned()).or_insert(mark);
        *known = worse(*known, mark);
    }

    /// The worst of these values.
    pub(super) fn of<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Option<Mark> {
        values.into_iter().filter_map(|value| self.by_value.get(value).copied()).reduce(worse)
    }
}

/// What was not compared is less than what differs.
pub(super) fn worse(one: Mark, other: Mark) -> Mark {
    let badness = |mark: Mark| match mark {
        Mark::Match => 0,
        Mark::Noise => 1,
        Mark::NotCompared => 2,
        Mark::Drifted => 3,
        Mark::Mismatch => 4,
        Mark::Failed => 5,
    };
    if badness(other) > badness(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_calls_the_worst_counts() {
        let mut marks = Marks::default();
        for mark in [Mark::Match, Mark::Mismatch, Mark::NotCompared] {
            marks.add("y", mark);
        }
        marks.add("z", Mark::Match);
        assert_eq!(marks.of(["z", "y", "none"]), Some(Mark::Mismatch));
        assert_eq!((marks.of(["z"]), marks.of(["none"])), (Some(Mark::Match), None));
    }
}
