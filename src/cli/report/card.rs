//! The culprit: who `rust-ort blame` named, else the first node whose own kernel differs, else what is to be done to know.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};

use super::shortened;
use super::steps::Step;
use crate::base::quoted::{is_printable, shell_word};
use crate::blame::{Answer, Contribution, Culprit, Fused};
use crate::cli::next;
use crate::compare::{Summary, Verdict};
use crate::dump::{NodeRow, reader};

/// A card before it is JSON.
struct Card<'a> {
    /// "blamed": by `rust-ort blame`; "suspect": the first whose own kernel differs; "drifted": an output is outside
    /// tolerance, and no node is named; "unknown": nothing was compared, or blame did not come to an end; "clear": nothing is
    /// wrong.
    kind: &'static str,
    step: Option<&'a Step>,
    /// One sentence.
    text: String,
    node: Option<&'a NodeRow>,
    contribution: Option<&'a Contribution>,
    /// A shell runs it.
    command: Option<String>,
    /// The command, or the advice, by which more is known; or empty.
    next: String,
}

/// The card of a report. path: as the dump was named.
pub(super) fn card(steps: &[Step], path: &Path, total: Summary) -> Value {
    let card = blamed(steps).or_else(|| suspect(steps, path)).unwrap_or_else(|| nobody(steps, path, total));
    let named = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let (node, contribution) = (card.node, card.contribution);
    let either = |of_node: fn(&NodeRow) -> &str, of_contribution: fn(&Contribution) -> &str| {
        named(node.map(of_node)).or_else(|| named(contribution.map(of_contribution)))
    };
    let answer = card.step.and_then(Step::answer).filter(|_| card.kind == "blamed");
    // A row has float64's word, too.
    let local = node.map(|node| &node.local).or(contribution.map(|found| &found.local));
    json!({
        "kind": card.kind, "text": card.text, "graph": card.step.map(|step| &step.graph),
        "part": card.step.map(|step| step.part), "step": card.step.map(|step| step.entry.step),
        "node": either(|node| &node.name, |found| &found.name), "op": either(|node| &node.op, |found| &found.op),
        "onnx_ops": contribution.map(|found| found.onnx_ops.clone()).or(node.map(|node| node.onnx_ops.to_vec())),
        "module": either(|node| &node.module, |found| &found.module),
        "source": either(|node| &node.source, |found| &found.source),
        "layer": answer.and_then(layer), "local": local.map(shortened::verdict),
        "cumulative": node.map(|node| shortened::verdict(&node.cumulative)),
        "share": contribution.map(|found| found.share), "share_of": contribution.map(|found| &found.output),
        "beside": answer.map(|answer| answer.beside.iter().map(Culprit::to_string).collect::<Vec<_>>()),
        "smallest": answer.and_then(|answer| answer.smallest.as_ref()),
        "is_complete": answer.map(|answer| answer.complete),
        "is_own": card.step.and_then(|step| step.blame.as_ref()).filter(|_| answer.is_some()).map(|kept| kept.is_own),
        "is_current": card.step.and_then(|step| step.blame.as_ref()).filter(|_| answer.is_some()).map(|kept| kept.is_current),
        "command": card.command, "next": card.next.trim().trim_start_matches("next: "),
    })
}

fn layer(answer: &Answer) -> Option<String> {
    match &answer.culprit {
        Culprit::Node { layer, .. } => Some(layer.to_string()),
        _ => None,
    }
}

/// What `rust-ort blame` found.
fn blamed(steps: &[Step]) -> Option<Card<'_>> {
    let all: Vec<(&Step, &Answer)> = steps.iter().filter_map(|step| Some((step, step.answer()?))).collect();
    let (step, answer) = all[Answer::telling(all.iter().map(|(_, answer)| *answer))?];
    let name = match &answer.culprit {
        Culprit::Node { name, .. } => Some(name),
        Culprit::Optimizer { fused, .. } => fused.first().map(|Fused { value, .. }| value),
        Culprit::Inputs { .. } | Culprit::Nobody { .. } => None,
    };
    let node = name.and_then(|name| row(step, name));
    let contribution = name.and_then(|name| answer.nodes.iter().find(|found| found.values.contains(name)));
    let command = match (&answer.culprit, name) {
        (Culprit::Node { .. }, Some(name)) => Some(reproduction(step, name)),
        _ => Some(command_of(step, "blame", &["--repro", "repro"])),
    };
    let text = format!("to blame: {}", answer.culprit);
    Some(Card { kind: "blamed", step: Some(step), text, node, contribution, command, next: String::new() })
}

/// The first node whose own kernel differs, of a call with an output outside tolerance if there is one.
fn suspect<'a>(steps: &'a [Step], path: &Path) -> Option<Card<'a>> {
    let found = |step: &'a Step| Some((step, step.found.as_ref()?.table().first_local_mismatch()?));
    let is_outside = |step: &&Step| step.counts().mismatch + step.counts().failed > 0;
    let (step, node) = (steps.iter().filter(is_outside).find_map(found)).or_else(|| steps.iter().find_map(found))?;
    let text = format!("first node whose own kernel differs from eager's on eager's inputs: {}", node.name);
    let command = Some(reproduction(step, &node.name));
    Some(Card {
        kind: "suspect",
        step: Some(step),
        text,
        node: Some(node),
        contribution: None,
        command,
        next: to_blame(steps, path),
    })
}

fn nobody<'a>(steps: &'a [Step], path: &Path, total: Summary) -> Card<'a> {
    let is_outside = |step: &&Step| step.counts().mismatch + step.counts().failed > 0;
    let step = steps.iter().find(is_outside);
    let is_outside = step.is_some();
    let unknown = steps.iter().filter_map(Step::answer).find(|answer| !answer.complete).map(|answer| &answer.culprit);
    let has_nodes = step.is_some_and(|step| step.found.is_some());
    let (kind, text) = match (unknown, is_outside) {
        (Some(Culprit::Nobody { why }), _) => ("unknown", why.as_str()),
        (_, true) if has_nodes => {
            ("drifted", "outputs are outside tolerance, and no node's own kernel differs on eager's inputs")
        }
        (_, true) => ("drifted", "outputs are outside tolerance, and the dump does not tell what its nodes gave"),
        _ if total.passed() == 0 => ("unknown", "nothing was compared"),
        _ => ("clear", "every output that was compared is as right as eager's"),
    };
    let text = text.to_owned();
    let node = step.and_then(|step| step.found.as_ref()?.table().first_cumulative_mismatch());
    let next = if is_outside { to_blame(steps, path) } else { String::new() };
    Card { kind, step, text, node, contribution: None, command: None, next }
}

/// `rust-ort blame`, or how to dump again so that it can tell.
fn to_blame(steps: &[Step], path: &Path) -> String {
    let wrong = steps.iter().filter(|step| step.counts().mismatch > 0);
    let parts: HashSet<&Path> = wrong.map(|step| reader::part_of(&step.entry.path)).collect();
    next::blame(path, parts)
}

fn row<'a>(step: &'a Step, name: &str) -> Option<&'a NodeRow> {
    step.found.as_ref()?.table().nodes.iter().find(|node| node.name == name)
}

/// Runs a node again, alone, on eager's inputs; of a name that a terminal would not take as it is, blame finds it again.
fn reproduction(step: &Step, name: &str) -> String {
    if !name.chars().all(|c| c != '\n' && is_printable(c)) {
        return command_of(step, "blame", &["--repro", "repro"]);
    }
    let part = reader::part_of(&step.entry.path);
    let is_wrong = row(step, name).is_some_and(|node| node.local.verdict == Verdict::Mismatch);
    match reader::reproduction(part, name, step.entry.step).filter(|_| is_wrong) {
        Some(folder) => format!("rust-ort replay {}", shell_word(&folder.to_string_lossy())),
        None => command_of(step, "replay", &["--nodes", name, "--repro", "repro"]),
    }
}

fn command_of(step: &Step, command: &str, flags: &[&str]) -> String {
    let part = reader::part_of(&step.entry.path).to_string_lossy().into_owned();
    let number = step.entry.step.to_string();
    let words = [command, &part, "--step", &number].into_iter().chain(flags.iter().copied()).map(shell_word);
    format!("rust-ort {}", words.collect::<Vec<_>>().join(" "))
}
