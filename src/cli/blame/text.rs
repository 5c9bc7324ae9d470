//! What an examination of parts came to, for people.

use crate::base::quoted::one_line;
use crate::blame::{Answer, Contribution, Culprit, Layer, Own, Together};
use crate::cli::answer::line;
use crate::cli::dump_tolerance::Brought;
use crate::cli::table::{self, Give};
use crate::cli::verdicts;
use crate::compare::significant;

/// What is said where nobody is blamed, and nobody acquitted; why follows.
const UNDETERMINED: &str = "undetermined who is to blame";

/// The answer over all parts, in one line. transforms: names of the functions that changed the models. left_out: data sets
/// that are not whole.
pub fn headline(answers: &[Answer], transforms: &[String], brought: &Brought, left_out: usize) -> String {
    let within = brought.words();
    let Some(answer) = Answer::telling(answers).map(|at| &answers[at]) else {
        return acquittal(answers, &within, left_out);
    };
    let mut text = format!("to blame: {}", answer.culprit);
    let Answer { graph, part, step, culprit, nodes, .. } = answer;
    if let Culprit::Node { name, layer } = culprit {
        let place = nodes.iter().find(|node| node.name == *name).map(Contribution::place).unwrap_or_default();
        text += if place.is_empty() { "" } else { ", " };
        text += &place;
        if *layer == Layer::Exporter && !transforms.is_empty() {
            text += &format!("; your transforms ran on this graph: {}", transforms.join(", "));
        }
    }
    line(format_args!(
        "{text}; {graph} part {part} step {step}{}{within}",
        if within.is_empty() { "" } else { "; judged" }
    ))
}

/// Where nobody is blamed: whether that is known, and why. As [`headline`].
fn acquittal(answers: &[Answer], within: &str, left_out: usize) -> String {
    let why = |answer: &Answer| match &answer.culprit {
        Culprit::Nobody { why } => Some(why.clone()),
        _ => None,
    };
    if let Some(unknown) = answers.iter().find(|answer| !answer.complete) {
        let why = why(unknown).unwrap_or_default();
        return line(format_args!("{UNDETERMINED}{within}: {why}"));
    }
    if left_out > 0 {
        let why = match left_out {
            1 => "1 data set is not whole, so nothing is known of it".to_owned(),
            n => format!("{n} data sets are not whole, so nothing is known of them"),
        };
        return line(format_args!("{UNDETERMINED}{within}: {why}"));
    }
    let is_outside = |answer: &&Answer| answer.complaints.iter().any(|complaint| !complaint.as_ran.verdict.is_pass());
    if let Some(why) = answers.iter().find(is_outside).and_then(why) {
        return line(format_args!("nobody is to blame{within}: {why}"));
    }
    let alone = answers.iter().find_map(|answer| answer.wrong_alone.as_ref());
    let alone = alone.map_or_else(String::new, |alone| format!("; {alone}"));
    line(format_args!("nobody is to blame: every output is as right as eager's{within}{alone}"))
}

/// What is the answer over all, then each part of which there is something to tell.
pub(super) fn words(
    answers: &[Answer],
    calls: &[Together],
    transforms: &[String],
    brought: &Brought,
    left_out: usize,
) -> String {
    let is_dull = |answer: &&Answer| {
        let tells = answer.wrong_alone.is_some() || !(answer.complaints.is_empty() && answer.notes.is_empty());
        !tells && answer.complete && answers.len() > 1
    };
    let (dull, telling): (Vec<&Answer>, Vec<&Answer>) = answers.iter().partition(is_dull);
    let n_dull = match (dull.len(), telling.is_empty()) {
        (1, false) => "1 other part".to_owned(),
        (n, false) => format!("{n} other parts"),
        (n, true) => format!("{n} parts"),
    };
    let texts = telling.into_iter().map(text_of).chain(calls.iter().map(text_of_calls));
    let right = verdicts::sum(dull.iter().map(|answer| answer.right)).and_then(verdicts::counts);
    let right = right.map_or_else(String::new, |counts| format!(": {counts}"));
    let rest = (!dull.is_empty()).then(|| line(format_args!("{n_dull}: every output is as right as eager's{right}")));
    [headline(answers, transforms, brought, left_out)]
        .into_iter()
        .chain(texts)
        .chain(rest)
        .collect::<Vec<_>>()
        .join("\n")
}

fn text_of(answer: &Answer) -> String {
    let width = table::width();
    let Answer { graph, part, step, complaints, culprit, nodes, .. } = answer;
    let mut text = one_line(&format!("{graph} part {part} step {step}: "));
    text += &match complaints.len() {
        0 if !answer.complete => "nothing is known to be outside tolerance\n".to_owned(),
        0 => {
            let counts = verdicts::counts(answer.right).map_or_else(String::new, |counts| format!(": {counts}"));
            line(format_args!("every output is as right as eager's{counts}"))
        }
        n if complaints.iter().all(|complaint| complaint.as_ran.verdict.is_pass()) => {
            line(format_args!("{n} outputs differ from eager's within tolerance, and what comes after made more of it"))
        }
        n => line(format_args!("{n} outputs are outside tolerance")),
    };
    if complaints.is_empty() {
        if let (Culprit::Nobody { why }, false) = (culprit, answer.complete) {
            text += &line(format_args!("not complete: {why}"));
        }
        let notes = answer.wrong_alone.iter().chain(&answer.notes);
        notes.for_each(|note| text += &line(format_args!("note: {note}")));
        return text;
    }
    let as_ran: Vec<_> = complaints.iter().map(|complaint| complaint.as_ran.clone()).collect();
    text += &verdicts::table(&as_ran, width);
    text += &match culprit {
        Culprit::Nobody { why } if !answer.complete => "\n".to_owned() + &line(format_args!("{UNDETERMINED}: {why}")),
        culprit => "\n".to_owned() + &line(format_args!("to blame: {culprit}")),
    };
    answer.beside.iter().for_each(|beside| text += &line(format_args!("and: {beside}")));
    if let Some(smallest) = &answer.smallest {
        text += &line(format_args!(
            "with eager's values of {} the outputs that were followed are right",
            smallest.join(", ")
        ));
    }
    if !nodes.is_empty() {
        let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
        let header = ["node", "share", "of", "own error", "is", "operator, module, line"];
        use Give::{End, Middle, Never};
        text += "\nwhat each node's own error does to the output:\n";
        text += &table::aligned(&header, &rows, &[Middle, Never, Middle, Never, Never, End], width);
    }
    for node in nodes {
        if let Some(again) = node.again.as_ref().filter(|again| !again.is_same() || !again.refused.is_empty()) {
            text += &line(format_args!("{} run again: {again}", node.name));
        }
    }
    for note in &answer.notes {
        text += &line(format_args!("note: {note}"));
    }
    let end = if answer.complete { "" } else { "; not complete" };
    text + &line(format_args!("{} runs, {:.1} s{end}", answer.n_runs, answer.seconds))
}

/// Several calls of a part.
fn text_of_calls(calls: &Together) -> String {
    let Together { graph, part, steps, blamed, nodes } = calls;
    let n = steps.len();
    let who: Vec<String> = blamed.iter().map(|one| format!("{} in {} of {n}", one.who, one.n_calls)).collect();
    let steps = steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let mut text = line(format_args!("{graph} part {part} steps {steps} together: to blame: {}", who.join("; ")));
    if !nodes.is_empty() {
        let percent = |share: f64| format!("{} %", significant(100. * share, 3));
        let rows = nodes.iter().map(|node| {
            let (wrong, blamed) = (node.n_wrong.to_string(), node.n_blamed.to_string());
            vec![node.name.clone(), percent(node.share), percent(node.largest), wrong, blamed, node.place.clone()]
        });
        let header = ["node", "share, mean", "largest", "wrong in", "blamed in", "operator, module, line"];
        use Give::{End, Middle, Never};
        let give = [Middle, Never, Never, Never, Never, End];
        text += &table::aligned(&header, &rows.collect::<Vec<_>>(), &give, table::width());
    }
    text
}

fn row(node: &Contribution) -> Vec<String> {
    let own = match node.own {
        Own::Wrong => "wrong",
        Own::Jitter => "jitter",
        Own::Noise => "rounding",
        Own::AsRight => "as right",
        Own::Unsettled => "not settled",
    };
    let share = format!("{} %", significant(100. * node.share, 3));
    vec![node.name.clone(), share, node.output.clone(), node.error(), own.to_owned(), node.place()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::{Complaint, SCHEMA};
    use crate::compare::{Summary, TensorVerdict, Tolerance, judge};
    use crate::tensor::TensorBuf;

    fn answer(complete: bool, complaints: Vec<Complaint>, why: &str) -> Answer {
        Answer {
            schema: SCHEMA.to_owned(),
            graph: "0_0-forward".to_owned(),
            part: 0,
            step: 0,
            complaints,
            right: Summary::default(),
            culprit: Culprit::Nobody { why: why.to_owned() },
            beside: Vec::new(),
            nodes: Vec::new(),
            smallest: None,
            n_runs: 0,
            seconds: 0.,
            complete,
            notes: Vec::new(),
            wrong_alone: None,
        }
    }

    fn outside() -> Complaint {
        let [reference, candidate] = [1., 2.].map(|value| TensorBuf::from_f32([1], &[value]).unwrap());
        let as_ran: TensorVerdict =
            judge("y", &reference.view(), &candidate.view(), Some(&Tolerance { atol: 0.5, ..Tolerance::EXACT }));
        Complaint { role: String::new(), as_ran, unoptimized: None }
    }

    #[test]
    fn nobody_is_acquitted_for_want_of_data() {
        let said = |answers: &[Answer], left_out: usize| headline(answers, &[], &Brought::default(), left_out);
        let right = || answer(true, Vec::new(), "every output is as right as eager's");
        assert_eq!(said(&[right()], 0), "nobody is to blame: every output is as right as eager's\n");
        let unknown = answer(false, vec![outside()], "eager's values of the nodes were not dumped");
        let why = "undetermined who is to blame: eager's values of the nodes were not dumped\n";
        assert_eq!(said(&[right(), unknown.clone()], 0), why);
        assert!(text_of(&unknown).contains(&format!("\n{why}")), "{}", text_of(&unknown));
        let why = "undetermined who is to blame: 1 data set is not whole, so nothing is known of it\n";
        assert_eq!(said(&[right()], 1), why);
    }

    #[test]
    fn an_output_that_is_outside_is_not_called_right() {
        let jitter = answer(true, vec![outside()], "every node's own error is rounding; the graph makes it larger");
        let why = "nobody is to blame: every node's own error is rounding; the graph makes it larger\n";
        assert_eq!(headline(&[jitter], &[], &Brought::default(), 0), why);
    }
}
