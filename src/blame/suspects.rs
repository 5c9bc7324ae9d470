//! Which nodes are looked at: those that were found wrong where they were compared, or those that a search comes to.

use super::case::is_wrong;
use super::error::BlameError;
use super::nodes::{Group, Nodes};
use super::probe::Prober;
use super::search;
use crate::base::ids::ValueName;
use crate::dump::NodeRow;

/// So many nodes are sought by bisection.
const MOST_BISECTED: usize = 8;

/// How nodes are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One by one: those that the comparison of nodes found wrong; where it was not made, all.
    Linear,
    /// The first value from which on the outputs are right when all before it are eager's, by halving; then, with that
    /// one eager's, the next. Finds the node whose own error is not outside tolerance, too, in few runs.
    Bisect,
    /// The smallest set of values that, when they are eager's, bring the outputs within tolerance, by delta debugging.
    Delta,
}

/// The nodes that some outputs depend on.
pub struct Suspects<'e, 'p, 'a> {
    /// Runs them.
    pub prober: &'e Prober<'a>,
    /// Makes the pieces.
    pub nodes: &'e Nodes<'p, 'a>,
    /// That are wrong, or followed.
    pub outputs: &'e [ValueName],
}

impl Suspects<'_, '_, '_> {
    /// Those that are accused, and others to look at where these explain too little. Errors: [`BlameError`].
    pub fn by(&self, strategy: Strategy) -> Result<(Vec<Group>, Vec<Group>), BlameError> {
        let groups = self.nodes.groups(self.outputs);
        let found = match strategy {
            Strategy::Linear => return Ok(self.in_order(groups)),
            Strategy::Bisect => self.bisected(&groups)?,
            Strategy::Delta => self.smallest(&groups.iter().collect::<Vec<_>>())?.unwrap_or_default(),
        };
        let chosen = groups.into_iter().enumerate().filter(|(at, _)| found.contains(at));
        Ok((chosen.map(|(_, group)| group).collect(), Vec::new()))
    }

    /// Those that the comparison of nodes found wrong, or worse than rounding, in graph order, and the others that differ
    /// from eager at all, those first that are furthest. Without a comparison all are accused.
    fn in_order(&self, groups: Vec<Group>) -> (Vec<Group>, Vec<Group>) {
        let case = self.prober.case;
        let rows = |group: &Group| group.values.iter().map(|name| case.row(name)).collect::<Vec<_>>();
        let is_guilty = |row: &NodeRow| is_wrong(&row.local) || case.is_worse(&row.name);
        let is_accused = |group: &Group| rows(group).iter().any(|row| row.is_none_or(is_guilty));
        let distance = |group: &Group| {
            let of_row = |row: &NodeRow| row.local.metrics.as_ref().map_or(0., |metrics| metrics.max_rel_to_max);
            rows(group).into_iter().flatten().map(of_row).fold(0., f64::max)
        };
        let (accused, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_accused);
        others.retain(|group| distance(group) > 0.);
        others.sort_by(|one, other| distance(other).total_cmp(&distance(one)));
        (accused, others)
    }

    /// Groups from which on the outputs are right when all before them are eager's, one after the other. Errors:
    /// [`BlameError`].
    fn bisected(&self, groups: &[Group]) -> Result<Vec<usize>, BlameError> {
        let mut found: Vec<usize> = Vec::new();
        while found.len() < MOST_BISECTED {
            let mut failure = None;
            let first = search::first(groups.len() + 1, |n| {
                // The first n, and those that were found.
                let given = (0..n).chain(found.iter().copied().filter(|&at| at >= n));
                self.are_right_with(given.map(|at| &groups[at])).map_err(|error| failure = Some(error)).ok()
            });
            match (first, failure) {
                (_, Some(error)) => return Err(error),
                // Right with what was found alone, or wrong whatever is eager's.
                (Some(0) | None, _) => break,
                (Some(n), _) if n > groups.len() || found.contains(&(n - 1)) => break,
                (Some(n), _) => found.push(n - 1),
            }
        }
        Ok(found)
    }

    /// The smallest set of groups that, with eager's values, bring the outputs within tolerance; None where all of them do
    /// not. Errors: [`BlameError`].
    pub fn smallest(&self, groups: &[&Group]) -> Result<Option<Vec<usize>>, BlameError> {
        let mut failure = None;
        let found = search::smallest(groups.len(), |chosen| {
            let given = chosen.iter().map(|&at| groups[at]);
            self.are_right_with(given).map_err(|error| failure = Some(error)).ok()
        });
        failure.map_or(Ok(found), Err)
    }

    /// Whether the outputs are within tolerance when these groups have eager's values. Errors: [`BlameError`].
    fn are_right_with<'g>(&self, given: impl Iterator<Item = &'g Group>) -> Result<bool, BlameError> {
        let given: Vec<&str> = given.flat_map(|group| &group.values).map(String::as_str).collect();
        let values = self.nodes.outputs(self.outputs, &given)?;
        Ok(self.outputs.iter().zip(&values).all(|(name, value)| self.prober.is_right(name, value)))
    }
}
