//! Several calls of a part ranked together: what is wrong each time is no chance of one set of inputs. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::answer::{Answer, Contribution, Culprit};
use super::local_error::Own;
use crate::base::ids::ValueName;

/// The calls of a part in which an output is outside tolerance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Numbers of the calls.
    pub steps: Vec<u64>,
    /// Who is blamed, those first that are in most calls.
    pub blamed: Vec<Blamed>,
    /// Nodes whose own error was looked at, those first that are blamed and then wrong in most calls, and of these those
    /// with the largest share.
    pub nodes: Vec<Ranked>,
}

/// A node, an optimizer, or nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blamed {
    /// As a call's answer has it; without reasons.
    pub who: String,
    /// In so many of the calls.
    pub n_calls: usize,
}

/// A node over all calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranked {
    /// FX name of its first value.
    pub name: ValueName,
    /// Operator, module and line.
    pub place: String,
    /// Its part of the output's error: the mean over the calls, 0 where it was not looked at.
    pub share: f64,
    /// In the call where it is largest.
    pub largest: f64,
    /// Calls in which its own error is more than rounding.
    pub n_wrong: usize,
    /// Calls in which it is blamed.
    pub n_blamed: usize,
}

/// One of each part with more than one such call, in the order of the answers.
pub fn together(answers: &[Answer]) -> Vec<Together> {
    let mut parts: Vec<Vec<&Answer>> = Vec::new();
    for answer in answers.iter().filter(|answer| !answer.complaints.is_empty()) {
        let is_same = |calls: &&mut Vec<&Answer>| (&calls[0].graph, calls[0].part) == (&answer.graph, answer.part);
        match parts.iter_mut().find(is_same) {
            Some(calls) => calls.push(answer),
            None => parts.push(vec![answer]),
        }
    }
    parts.into_iter().filter(|calls| calls.len() > 1).map(|calls| of_calls(&calls)).collect()
}

fn of_calls(calls: &[&Answer]) -> Together {
    let mut n_blamed: BTreeMap<String, usize> = BTreeMap::new();
    let mut nodes: BTreeMap<&ValueName, Ranked> = BTreeMap::new();
    for answer in calls {
        let culprits = || std::iter::once(&answer.culprit).chain(&answer.beside);
        for culprit in culprits() {
            *n_blamed.entry(who(culprit, answer.complete)).or_default() += 1;
        }
        for node in &answer.nodes {
            let Contribution { name, share, own, .. } = node;
            let is_it = |culprit: &Culprit| matches!(culprit, Culprit::Node { name: other, .. } if other == name);
            let (name, place) = (name.clone(), node.place());
            let ranked = nodes.entry(&node.name).or_insert_with(|| Ranked {
                name,
                place,
                share: 0.,
                largest: 0.,
                n_wrong: 0,
                n_blamed: 0,
            });
            ranked.share += share / calls.len() as f64;
            ranked.largest = ranked.largest.max(*share);
            ranked.n_wrong += usize::from(*own == Own::Wrong);
            ranked.n_blamed += usize::from(culprits().any(is_it));
        }
    }
    let mut blamed: Vec<_> = n_blamed.into_iter().map(|(who, n_calls)| Blamed { who, n_calls }).collect();
    blamed.sort_by_key(|blamed| std::cmp::Reverse(blamed.n_calls));
    let mut nodes: Vec<Ranked> = nodes.into_values().collect();
    nodes.sort_by(|one, other| {
        let counts = |ranked: &Ranked| (ranked.n_blamed, ranked.n_wrong);
        counts(other).cmp(&counts(one)).then(other.share.total_cmp(&one.share))
    });
    let Answer { graph, part, .. } = calls[0];
    Together { graph: graph.clone(), part: *part, steps: calls.iter().map(|call| call.step).collect(), blamed, nodes }
}

/// The culprit of a call without what is of that call only. complete: whether all of the call was looked at, without which
/// nobody is acquitted.
fn who(culprit: &Culprit, complete: bool) -> String {
    match culprit {
        Culprit::Nobody { .. } if !complete => "undetermined".to_owned(),
        Culprit::Nobody { .. } => "nobody".to_owned(),
        Culprit::Inputs { .. } => "its inputs".to_owned(),
        Culprit::Optimizer { names, what, .. } => format!("{what} {}", names.join(", ")),
        Culprit::Node { name, .. } => format!("node {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::{Complaint, Layer, SCHEMA};
    use super::*;
    use crate::compare::{Summary, TensorVerdict};

    fn node(name: &str, share: f64, own: Own) -> Contribution {
        Contribution {
            name: name.to_owned(),
            values: vec![name.to_owned()],
            op: format!("aten.{name}.default"),
            onnx_ops: Vec::new(),
            module: String::new(),
            source: String::new(),
            share,
            output: "y".to_owned(),
            local: TensorVerdict::not_compared(name, "a test"),
            own,
            layer: None,
            again: None,
        }
    }

    fn answer(part: u32, step: u64, culprit: Option<&str>, nodes: Vec<Contribution>) -> Answer {
        let as_ran = TensorVerdict::not_compared("y", "a test");
        Answer {
            schema: SCHEMA.to_owned(),
            graph: "g".to_owned(),
            part,
            step,
            complaints: vec![Complaint { role: String::new(), as_ran, unoptimized: None }],
            right: Summary::default(),
            culprit: match culprit {
                Some(name) => Culprit::Node { name: name.to_owned(), layer: Layer::Kernel },
                None => Culprit::Nobody { why: format!("of step {step}") },
            },
            beside: Vec::new(),
            nodes,
            smallest: None,
            n_runs: 1,
            seconds: 0.,
            complete: true,
            notes: Vec::new(),
            wrong_alone: None,
        }
    }

    #[test]
    fn what_is_blamed_in_most_calls_is_first_and_shares_are_means() {
        let answers = [
            answer(0, 1, Some("mul"), vec![node("mul", 1., Own::Wrong), node("exp", 0.25, Own::Noise)]),
            answer(1, 1, Some("sin"), vec![node("sin", 1., Own::Wrong)]),
            answer(0, 2, None, vec![node("exp", 0.75, Own::Noise)]),
            answer(0, 3, Some("mul"), vec![node("mul", 0.5, Own::Wrong), node("add", 0.5, Own::Jitter)]),
            Answer { complaints: Vec::new(), ..answer(0, 4, None, Vec::new()) },
        ];
        let found = together(&answers);
        // Of part 1 there is one call, and of part 0 one has nothing outside tolerance.
        assert_eq!(found.iter().map(|one| (one.part, &one.steps[..])).collect::<Vec<_>>(), [(0, &[1, 2, 3][..])]);
        let blamed: Vec<_> = found[0].blamed.iter().map(|blamed| (blamed.who.as_str(), blamed.n_calls)).collect();
        assert_eq!(blamed, [("node mul", 2), ("nobody", 1)]);
        let nodes: Vec<_> = (found[0].nodes.iter())
            .map(|node| (node.name.as_str(), node.n_wrong, node.n_blamed, node.largest))
            .collect();
        assert_eq!(nodes, [("mul", 2, 2, 1.), ("exp", 0, 0, 0.75), ("add", 0, 0, 0.5)]);
        let shares: Vec<f64> = found[0].nodes.iter().map(|node| (node.share * 3e6).round() / 1e6).collect();
        assert_eq!(shares, [1.5, 1., 0.5]);
    }

    #[test]
    fn one_call_is_nothing_to_rank_together() {
        assert_eq!(together(&[answer(0, 1, Some("mul"), vec![node("mul", 1., Own::Wrong)])]), []);
    }
}
