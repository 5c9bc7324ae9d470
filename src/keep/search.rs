//! The search: from what each rounding does to a set of them that must not be and of which none can be left out.

use std::collections::BTreeSet;
use std::time::Duration;

use super::answer::{Answer, Culprit, Found, Output, SCHEMA};
use super::board::Board;
use super::error::KeepError;
use super::groups::{By, Group, groups};
use super::judge::{Judge, Judged, Limit, Reference};
use super::rank;
use super::subject::Subject;
use crate::base::ids::ValueName;
use crate::blame::search::first;
use crate::onnx::{NamedTensor, dtype_of, refused_operator};
use crate::runtime::Runtime;
use crate::tensor::{DType, TensorBuf};

/// Of one call.
type Outputs = Vec<TensorBuf>;
type Calls = Vec<Outputs>;

/// So many further rules are taken where the compiled part is not within its limit with those that were found.
const MOST_FURTHER: usize = 8;
/// Shares of an output that add up to something further from 1 than this factor are told of.
const INDEPENDENT: f64 = 1.5;

/// How the set is made small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Those that contribute most, as many as it takes.
    Greedy,
    /// And of these, one by one from the least, those left out that need not be, until none can be.
    #[default]
    Smallest,
}

/// What to look for, how, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What is near enough.
    pub limit: Limit,
    /// What a rule names.
    pub by: By,
    /// How.
    pub strategy: Strategy,
    /// Time.
    pub budget: Duration,
}

/// Told how far a search is: what is done, so many of so many.
pub type Progress<'p> = &'p mut dyn FnMut(&'static str, usize, usize);

/// Searches a part. None: nothing of it is rounded to half precision. Errors: [`KeepError`] where the part cannot be run.
pub fn search(
    subject: &Subject,
    runtime: &dyn Runtime,
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Option<Answer>, KeepError> {
    let (Some(half), Some(board)) = (subject.half(), Board::new(subject, runtime, settings.budget)?) else {
        return Ok(None);
    };
    let judge = Judge::new(outputs_of(subject), half, settings.limit);
    let mut notes = Vec::new();
    let (groups, nameless) = groups(subject, &board.switches, settings.by)?;
    if !nameless.is_empty() {
        notes.push(format!("no rule names {}", nameless.join(", ")));
    }
    let n_calls = subject.calls.len();
    let exact = (0..n_calls).map(|call| board.run(call, |_| false)).collect::<Result<Vec<_>, _>>()?;
    let unrounded = |wide| (0..n_calls).map(|call| board.unrounded(call, wide)).collect::<Result<Vec<_>, _>>();
    if judge.is_idle() {
        notes.push("no output is a float: nothing is judged".to_owned());
    }
    let (references, reference) = match unrounded(DType::F64) {
        Ok(references) => (references, "float64"),
        Err(error) => {
            notes.push(format!("errors are measured from float32: {}", why(&error)));
            (unrounded(DType::F32)?, "float32")
        }
    };
    let references = all_of(references, half);
    let count = |at: usize| references.iter().map(|call| call[at].n_unknown()).sum::<usize>();
    for (at, (name, _)) in judge.outputs.iter().enumerate().filter(|(_, (_, float))| float.is_some()) {
        if let n @ 1.. = count(at) {
            notes.push(format!(
                "{name}: {n} elements are infinite or NaN without any rounding, too, and judged as equal to themselves \
                 only; where the model in float64 is not, a number of the graph was rounded when it was exported"
            ));
        }
    }
    let everything: Vec<String> = vec!["*".to_owned()];
    let (before, kept) = (board.compiled(&[])?, board.compiled(&everything)?);
    let mut search = Search { board, judge, groups, references, beyond: Vec::new(), notes, complete: true };
    let found = search.found(&exact, [&before, &kept], settings, progress)?;
    let Outcome { culprits, found, after } = found;
    let outputs = search.outputs(subject, [&before, &kept], after.as_deref());
    Ok(Some(Answer {
        schema: SCHEMA.to_owned(),
        graph: subject.graph.clone(),
        part: subject.part,
        steps: subject.calls.iter().map(|call| call.step).collect(),
        reference: reference.to_owned(),
        culprits,
        found,
        outputs,
        beyond: search.beyond.iter().map(|&at| search.judge.outputs[at].0.clone()).collect(),
        infinite_inputs: infinite_inputs(subject),
        n_runs: search.board.n_runs(),
        seconds: search.board.elapsed().as_secs_f64(),
        complete: search.complete,
        notes: search.notes,
    }))
}

/// What a part's outputs are with these rules, in the end: as [`Output::after`], and of the calls the worst. Whether all
/// are near enough that can be. Errors: [`KeepError`].
pub fn verify(
    subject: &Subject,
    runtime: &dyn Runtime,
    settings: &Settings,
    rules: &[String],
    answer: &mut Answer,
) -> Result<bool, KeepError> {
    let (Some(half), Some(board)) = (subject.half(), Board::new(subject, runtime, Duration::MAX)?) else {
        return Ok(true);
    };
    let judge = Judge::new(outputs_of(subject), half, settings.limit);
    let wide = if answer.reference == "float64" { DType::F64 } else { DType::F32 };
    let references = (0..subject.calls.len()).map(|call| board.unrounded(call, wide)).collect::<Result<Vec<_>, _>>()?;
    let after = board.compiled(rules)?;
    let worst = worst(&judge, &all_of(references, half), &after);
    for (output, judged) in answer.outputs.iter_mut().zip(worst.into_iter().flatten()) {
        output.after = Some(judged);
    }
    let beyond = &answer.beyond;
    let mut reachable = answer.outputs.iter().filter(|output| !beyond.contains(&output.name));
    Ok(reachable.all(|output| output.after.as_ref().is_some_and(|judged| judged.within)))
}

/// Why a part does not run in float64: which operator has no such kernel, where the runtime says it.
fn why(error: &KeepError) -> String {
    let text = error.to_string();
    match refused_operator(&text) {
        Some(operator) => format!("the runtime has no float64 kernel of {operator}"),
        None => text,
    }
}

/// Outputs of one call, each with what it adds up where that is known.
type WithTerms = Vec<(TensorBuf, Option<TensorBuf>)>;

fn all_of(calls: Vec<WithTerms>, half: DType) -> Vec<Vec<Reference>> {
    let of_call =
        |outputs: WithTerms| outputs.into_iter().map(|(output, terms)| Reference::new(&output, terms, half)).collect();
    calls.into_iter().map(of_call).collect()
}

fn infinite_inputs(subject: &Subject) -> Vec<ValueName> {
    let is_infinite = |feed: &NamedTensor| {
        let values = feed.view().flat_f64(0..feed.desc.shape.n_elements()).unwrap_or_default();
        feed.desc.dtype.is_float() && values.iter().any(|value| !value.is_finite())
    };
    let feeds = subject.calls.iter().flat_map(|call| &call.feeds).filter(|feed| is_infinite(feed));
    let names: BTreeSet<&ValueName> = feeds.map(|feed| &feed.name).collect();
    names.into_iter().cloned().collect()
}

/// Names of the outputs, with their types where these are floats.
fn outputs_of(subject: &Subject) -> Vec<(ValueName, Option<DType>)> {
    let outputs = subject.model.graph.iter().flat_map(|graph| &graph.output);
    let float = |dtype: &DType| dtype.is_float();
    outputs.map(|output| (output.name().to_owned(), dtype_of(output).filter(float))).collect()
}

/// Of each output the call in which it is furthest.
fn worst(judge: &Judge, references: &[Vec<Reference>], calls: &[Outputs]) -> Vec<Option<Judged>> {
    let mut worst: Vec<Option<Judged>> = vec![None; judge.outputs.len()];
    let distance = |judged: &Judged| (!judged.within, judged.times.unwrap_or(f64::INFINITY));
    for (references, outputs) in references.iter().zip(calls) {
        for (worst, judged) in worst.iter_mut().zip(judge.all(references, outputs)) {
            let further = |judged: &Judged| worst.as_ref().is_none_or(|known| distance(judged) > distance(known));
            if let Some(judged) = judged.filter(further) {
                *worst = Some(judged);
            }
        }
    }
    worst
}

/// Leaves out of the set, which passes, whatever it passes without, from its end on, until nothing more can be: k tests or
/// a few times that, where delta debugging, made for one guilty of many, needs some k² when many of many can go. None: the
/// test gave up; what is left passes.
fn pruned(set: &mut Vec<usize>, mut test: impl FnMut(&[usize]) -> Option<bool>) -> Option<()> {
    loop {
        let before = set.len();
        for at in (0..before).rev() {
            let rest: Vec<usize> =
                set.iter().enumerate().filter(|&(other, _)| other != at).map(|(_, &one)| one).collect();
            if test(&rest)? {
                *set = rest;
            }
        }
        if set.len() == before {
            return Some(());
        }
    }
}

struct Search<'a> {
    board: Board<'a>,
    judge: Judge,
    groups: Vec<Group>,
    /// Of each call.
    references: Vec<Vec<Reference>>,
    /// Outputs that are not near enough with everything kept.
    beyond: Vec<usize>,
    notes: Vec<String>,
    complete: bool,
}

struct Outcome {
    culprits: Vec<Culprit>,
    found: Found,
    /// Outputs of each call with the rules that were found.
    after: Option<Calls>,
}

impl Search<'_> {
    /// `compiled`: outputs of each call with nothing kept, and with everything.
    fn found(
        &mut self,
        exact: &[Outputs],
        compiled: [&[Outputs]; 2],
        settings: &Settings,
        progress: Progress<'_>,
    ) -> Result<Outcome, KeepError> {
        let [failing, beyond] = compiled.map(|calls| self.failing(calls));
        let within_reach: Vec<usize> = failing.iter().copied().filter(|at| !beyond.contains(at)).collect();
        self.beyond = beyond;
        let every = (0..self.judge.outputs.len()).filter(|&at| self.judge.outputs[at].1.is_some());
        let asked = match (within_reach.is_empty(), failing.is_empty()) {
            (false, _) => within_reach.clone(),
            (true, false) => failing.clone(),
            (true, true) => every.collect(),
        };
        let asked: Vec<(usize, ValueName)> =
            asked.into_iter().map(|at| (at, self.judge.outputs[at].0.clone())).collect();
        let effects = rank::effects(&self.board, &self.groups, exact, &mut |done, of| progress("roundings", done, of))?;
        let ranked = effects.ranked(&self.groups, &asked);
        self.tell_dependence(&effects, &asked);
        let order: Vec<usize> = ranked.iter().map(|&(group, _)| group).collect();
        let culprits = ranked.into_iter().map(|(_, culprit)| culprit).collect();
        let (found, after) = if self.judge.is_idle() {
            (Found::Unjudged, None)
        } else if failing.is_empty() {
            (Found::Within, None)
        } else if within_reach.is_empty() {
            (Found::Impossible, None)
        } else if !effects.is_complete(self.groups.len()) {
            self.complete = false;
            (Found::Unknown, None)
        } else {
            self.rules(&order, settings, progress)?
        };
        self.complete &= effects.is_complete(self.groups.len());
        Ok(Outcome { culprits, found, after })
    }

    fn tell_dependence(&mut self, effects: &rank::Effects, outputs: &[(usize, ValueName)]) {
        let far = |total: f64| !(1. / INDEPENDENT..=INDEPENDENT).contains(&total);
        let totals = outputs.iter().map(|(at, name)| (effects.total(*at), name));
        let dependent: Vec<String> = totals
            .filter(|(total, _)| *total > 0. && far(*total))
            .map(|(total, name)| format!("{name} {total:.2}"))
            .collect();
        if let Some((first, rest)) = dependent.split_first() {
            let rest = if rest.is_empty() { String::new() } else { format!(" and of {} more outputs", rest.len()) };
            self.notes.push(format!(
                "shares of {first}{rest} do not add up to 1: roundings act on each other, or are not like noise"
            ));
        }
    }

    /// Outputs that are not near enough in some call.
    fn failing(&self, calls: &[Outputs]) -> Vec<usize> {
        let worst = worst(&self.judge, &self.references, calls);
        (0..worst.len()).filter(|&at| worst[at].as_ref().is_some_and(|judged| !judged.within)).collect()
    }

    /// A set of which none can be left out, of groups in this order. Errors: Runtime.
    fn rules(
        &mut self,
        order: &[usize],
        settings: &Settings,
        progress: Progress<'_>,
    ) -> Result<(Found, Option<Calls>), KeepError> {
        let mut failure = None;
        let mut n_tests = 0;
        let mut holds = |kept: &[usize]| {
            n_tests += 1;
            progress("sets", n_tests, n_tests + 1);
            self.holds(kept).map_err(|error| failure = Some(error)).ok()
        };
        let Some(n) = first(order.len() + 1, |n| holds(&order[..n.min(order.len())])) else {
            return self.gave_up(failure, None);
        };
        let mut best: Vec<usize> = order[..n.min(order.len())].to_vec();
        if settings.strategy == Strategy::Smallest && pruned(&mut best, holds).is_none() {
            return self.gave_up(failure, Some((order, best)));
        }
        self.compiled(order, best)
    }

    /// A set cannot be made smaller in time. Errors: what is no matter of time.
    fn gave_up(
        &mut self,
        failure: Option<KeepError>,
        best: Option<(&[usize], Vec<usize>)>,
    ) -> Result<(Found, Option<Calls>), KeepError> {
        match failure {
            Some(KeepError::Budget) | None => self.complete = false,
            Some(error) => return Err(error),
        }
        self.notes.push("the time was up before the set was made as small as it gets".to_owned());
        best.map_or(Ok((Found::Unknown, None)), |(order, best)| self.compiled(order, best))
    }

    /// Checks the rules as they are compiled, and takes more of them where they do not do. Errors: Runtime.
    fn compiled(&mut self, order: &[usize], mut kept: Vec<usize>) -> Result<(Found, Option<Calls>), KeepError> {
        let more: Vec<usize> = order.iter().copied().filter(|group| !kept.contains(group)).collect();
        let mut more = more.into_iter().take(MOST_FURTHER);
        let n = kept.len();
        loop {
            let float32: Vec<String> = kept.iter().map(|&group| self.groups[group].pattern.clone()).collect();
            let outputs = self.board.compiled(&float32)?;
            let fails = self.failing(&outputs).iter().any(|at| !self.beyond.contains(at));
            let next = if fails { more.next() } else { None };
            let Some(next) = next else {
                if kept.len() > n {
                    let further = kept.len() - n;
                    self.notes.push(format!("as it is compiled it took {further} more than the search had found"));
                }
                return Ok((Found::Rules { float32 }, Some(outputs)));
            };
            kept.push(next);
        }
    }

    fn holds(&self, kept: &[usize]) -> Result<bool, KeepError> {
        let mut is_on = vec![true; self.board.switches.len()];
        kept.iter().flat_map(|&group| &self.groups[group].switches).for_each(|&switch| is_on[switch] = false);
        for (call, references) in self.references.iter().enumerate() {
            let outputs = self.board.run_in_budget(call, |switch| is_on[switch])?;
            if !self.judge.holds(references, &outputs, &self.beyond) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn outputs(&self, subject: &Subject, compiled: [&[Outputs]; 2], after: Option<&[Outputs]>) -> Vec<Output> {
        let of = |calls: &[Outputs]| worst(&self.judge, &self.references, calls);
        let [before, everything] = compiled.map(of);
        let mut after = after.map(of).unwrap_or_else(|| vec![None; before.len()]).into_iter();
        let names = self.judge.outputs.iter().map(|(name, _)| name);
        let pairs = names.zip(before).zip(everything);
        let described = |((name, before), everything): ((&ValueName, Option<Judged>), Option<Judged>)| {
            let after = after.next().flatten();
            let role = subject.roles.get(name).cloned().unwrap_or_default();
            Some(Output { name: name.clone(), role, before: before?, after, everything: everything? })
        };
        pairs.filter_map(described).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn none_of_the_set_that_is_left_can_be_left_out(
            needed in proptest::collection::vec(proptest::collection::btree_set(0_usize..16, 1..4), 0..5),
        ) {
            // Passes when one member of each is there.
            let passes = |set: &[usize]| needed.iter().all(|any| any.iter().any(|one| set.contains(one)));
            let mut set: Vec<usize> = (0..16).collect();
            prop_assert_eq!(pruned(&mut set, |set| Some(passes(set))), Some(()));
            prop_assert!(passes(&set));
            for at in 0..set.len() {
                let rest: Vec<usize> = set.iter().copied().filter(|&one| one != set[at]).collect();
                prop_assert!(!passes(&rest));
            }
        }
    }

    #[test]
    fn what_is_left_when_the_test_gives_up_passes() {
        let mut n_tests = 0;
        let mut set: Vec<usize> = (0..8).collect();
        let gives_up = |set: &[usize]| {
            n_tests += 1;
            (n_tests < 4).then_some(set.contains(&6))
        };
        assert_eq!(pruned(&mut set, gives_up), None);
        assert_eq!(set, [0, 1, 2, 3, 4, 6]);
    }
}
