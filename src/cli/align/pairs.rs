//! What stands beside what: inputs and outputs first, the rest by edit distance.

use std::collections::{BTreeSet, HashSet};

use super::counterparts::Search;
use crate::compare::{Kind, RunResult, align};

/// Positions in the first and the second list; None where a result has no partner.
pub(super) type Pair = (Option<usize>, Option<usize>);

/// Pairs in the order of their rows: initializers, inputs, results, outputs. Inputs and outputs are paired by name, then
/// content, then type; outputs by a name that exporters count (`val_103`) last, unless they are equal or both models have the same names. An input may be the
/// other model's initializer, by name or content. What is left is paired by edit distance.
pub(super) fn pairs(search: &mut Search<'_>) -> Vec<Pair> {
    let inputs = ends(search, Kind::Input);
    let outputs = ends(search, Kind::Output);
    let taken = |side: usize| -> HashSet<usize> {
        inputs.iter().chain(&outputs).map(|pair| if side == 0 { pair.0 } else { pair.1 }).collect()
    };
    let [first, second] = [0, 1].map(|side| {
        let taken = taken(side);
        (0..search.results(side).len()).filter(|at| !taken.contains(at)).collect::<Vec<_>>()
    });
    let of = |side: usize, places: &[usize]| places.iter().map(|&at| &search.results(side)[at]).collect();
    let lists: [Vec<&RunResult>; 2] = [of(0, &first), of(1, &second)];
    let middle = align(&lists[0], &lists[1]).pairs;
    let middle = middle.into_iter().map(|(i, j)| (i.map(|i| first[i]), j.map(|j| second[j])));
    let is_constant = |pair: &Pair| {
        let kinds = [pair.0.map(|i| search.results(0)[i].kind), pair.1.map(|j| search.results(1)[j].kind)];
        kinds.into_iter().flatten().all(|kind| matches!(kind, Kind::Initializer | Kind::Input))
    };
    let mut pairs: Vec<Pair> = middle.collect();
    let at = pairs.iter().position(|pair| !is_constant(pair)).unwrap_or(pairs.len());
    let both = |pairs: Vec<(usize, usize)>| pairs.into_iter().map(|(i, j)| (Some(i), Some(j)));
    pairs.splice(at..at, both(inputs));
    pairs.extend(both(outputs));
    pairs
}

/// Inputs or outputs of both that belong together, in the first model's order.
fn ends(search: &mut Search<'_>, kind: Kind) -> Vec<(usize, usize)> {
    let of_kind = |search: &Search<'_>, side: usize, kind: Kind| -> Vec<usize> {
        let results = search.results(side).iter().enumerate();
        results.filter(|(_, result)| result.kind == kind).map(|(at, _)| at).collect()
    };
    let mut pairs = Vec::new();
    let mut free = [of_kind(search, 0, kind), of_kind(search, 1, kind)];
    let with = |search: &Search<'_>| [of_kind(search, 0, Kind::Initializer), of_kind(search, 1, Kind::Initializer)];
    let mut constants = if kind == Kind::Input { with(search) } else { <[Vec<usize>; 2]>::default() };
    // What is fed to inputs of one name is the same, whoever counted them. So are outputs where both models have all names
    // of each other: where they count apart, each has some that the other has not.
    let names = |search: &Search<'_>, side: usize| -> BTreeSet<String> {
        free[side].iter().map(|&at| search.results(side)[at].name.clone()).collect()
    };
    let are_named_alike = kind == Kind::Input || names(search, 0) == names(search, 1);
    let by_name: Belong<'_> = if are_named_alike { Search::named_alike } else { Search::surely_named_alike };
    let ways: [(Belong<'_>, bool); 4] =
        [(by_name, true), (Search::agree, true), (Search::typed_alike, false), (Search::named_alike, false)];
    for (belong, is_sure) in ways {
        let [first, second] = &mut free;
        taken(search, belong, [first, second], &mut pairs);
        // A weight of the one may be an input of the other; its type alone does not say so.
        if is_sure {
            let [first_constants, second_constants] = &mut constants;
            taken(search, belong, [first, second_constants], &mut pairs);
            taken(search, belong, [first_constants, second], &mut pairs);
        }
    }
    pairs.sort_unstable();
    pairs
}

type Belong<'a> = fn(&mut Search<'a>, usize, usize) -> bool;

/// Moves what belongs together from both lists into `pairs`; the first that does is taken.
fn taken<'a>(
    search: &mut Search<'a>,
    belong: Belong<'a>,
    [first, second]: [&mut Vec<usize>; 2],
    pairs: &mut Vec<(usize, usize)>,
) {
    first.retain(|&i| match second.iter().position(|&j| belong(search, i, j)) {
        Some(place) => {
            pairs.push((i, second.remove(place)));
            false
        }
        None => true,
    });
}
