//! What each rounding alone does to the outputs.

use super::answer::Culprit;
use super::board::Board;
use super::error::KeepError;
use super::groups::Group;
use super::judge::Energy;
use super::subject::Told;
use crate::base::ids::ValueName;
use crate::onnx::Described;
use crate::tensor::TensorBuf;

/// Effects of groups on outputs: of each group one [`Energy`] an output, summed over calls.
pub struct Effects {
    of_groups: Vec<Vec<Energy>>,
    /// Of all of them together.
    of_all: Vec<Energy>,
}

/// Runs each group alone: its roundings on, all others off. `exact`: outputs of each call with all off. Effects of those
/// that were run before the budget ended. Errors: Runtime.
pub fn effects(
    board: &Board<'_>,
    groups: &[Group],
    exact: &[Vec<TensorBuf>],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Effects, KeepError> {
    type Run<'r> = &'r dyn Fn(usize) -> Result<Vec<TensorBuf>, KeepError>;
    let of = |run: Run<'_>| -> Result<Vec<Energy>, KeepError> {
        let mut sums = vec![Energy::default(); exact.first().map_or(0, Vec::len)];
        for (call, exact) in exact.iter().enumerate() {
            let outputs = run(call)?;
            for ((sum, output), exact) in sums.iter_mut().zip(&outputs).zip(exact) {
                *sum = sum.and(Energy::between(&output.view(), &exact.view()));
            }
        }
        Ok(sums)
    };
    let of_all = of(&|call| board.run(call, |_| true))?;
    let mut of_groups = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate() {
        progress(at, groups.len());
        match of(&|call| board.run_in_budget(call, |switch| group.switches.contains(&switch))) {
            Err(KeepError::Budget) => break,
            effect => of_groups.push(effect?),
        }
    }
    Ok(Effects { of_groups, of_all })
}

impl Effects {
    /// Whether every one of so many groups was run.
    pub fn is_complete(&self, n_groups: usize) -> bool {
        self.of_groups.len() == n_groups
    }

    /// The squared error of an output that shares are of: what all roundings make of it. Where that is infinite, the sum
    /// of what each makes of it by itself.
    fn whole(&self, output: usize) -> f64 {
        match self.of_all[output] {
            Energy { n_infinite: 0, squares } => squares,
            _ => self.of_groups.iter().map(|effects| effects[output].squares).sum(),
        }
    }

    /// What the shares of an output add up to: about 1 where roundings do not act on each other.
    pub fn total(&self, output: usize) -> f64 {
        (0..self.of_groups.len()).map(|group| self.share(group, output)).sum()
    }

    fn share(&self, group: usize, output: usize) -> f64 {
        let whole = self.whole(output);
        if whole > 0. { self.of_groups[group][output].squares / whole } else { 0. }
    }

    /// Groups that were run, those first that make most of the error of one of these outputs; before them those that make
    /// something infinite. With their effects.
    pub fn ranked(&self, groups: &[Group], outputs: &[(usize, ValueName)]) -> Vec<(usize, Culprit)> {
        let culprit = |group: usize| {
            let share = |&(at, ref name): &(usize, ValueName)| (self.share(group, at), name.clone());
            let largest = outputs.iter().map(share).max_by(|one, other| one.0.total_cmp(&other.0));
            let (share, output) = largest.unwrap_or_default();
            let n_infinite = outputs.iter().map(|&(at, _)| self.of_groups[group][at].n_infinite).sum();
            let Group { pattern, values, told, .. } = groups[group].clone();
            let Told { described: Described { op, module, .. }, source } = told;
            (group, Culprit { pattern, values, op, module, source, share, output, n_infinite })
        };
        let mut ranked: Vec<_> = (0..self.of_groups.len()).map(culprit).collect();
        ranked.sort_by(|(_, one), (_, other)| {
            other.n_infinite.cmp(&one.n_infinite).then(other.share.total_cmp(&one.share))
        });
        ranked
    }
}
