//! The data of a report. A dump that is damaged, or of which a part is missing, is a report that says so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::card::card;
use super::steps::{Room, Step};
use crate::blame::Answer;
use crate::cli::dump_tolerance::Brought;
use crate::cli::exit::{Exit, Failure, at};
use crate::cli::provenance::Provenance;
use crate::cli::{blame, dot, progress, verdicts};
use crate::compare::{QUANTILES, Summary};
use crate::dump::reader::{self, GraphEntry, PartEntry, Place};
use crate::dump::{Damage, verify};

/// Names that a reason tells.
const MOST_NAMED: usize = 8;

/// The graphs that a report is of, and the run.
struct Subject {
    name: String,
    /// `run.json`; null where it cannot be read.
    run: Value,
    graphs: Vec<GraphEntry>,
}

/// The data of a report on what stands at a path. Errors: nothing does that a report can be of.
pub(super) fn report(path: &Path) -> Result<Value, Failure> {
    let subject = subject(path)?;
    let mut failures: Vec<Failure> = Vec::new();
    let mut room = Room::default();
    let parts: Vec<(&GraphEntry, &PartEntry)> =
        subject.graphs.iter().flat_map(|graph| graph.parts.iter().map(move |part| (graph, part))).collect();
    let own = parts.iter().any(|(_, part)| has_blame(part)).then(blame::own).flatten();
    let bar = progress::bar(parts.iter().map(|(_, part)| part.steps.len()).sum(), "data sets");
    let mut steps: Vec<Step> = Vec::new();
    for (graph, part) in &parts {
        for entry in bar.wrap_iter(part.steps.iter()) {
            let of = (graph.name.as_str(), part.part);
            steps.push(Step::read(of, (&part.path, entry), own.as_ref(), &mut room, &mut failures));
        }
    }
    let graphs = subject.graphs.iter().map(|graph| graph_json(graph, &steps, &mut room, &mut failures));
    let graphs: Vec<Value> = graphs.collect();
    let total = verdicts::sum(steps.iter().map(Step::counts)).unwrap_or_default();
    let brought = Brought::of(steps.iter().filter_map(|step| step.entry.policy));
    let not_compared = not_compared(&steps, &subject);
    Ok(json!({
        "path": path, "name": subject.name, "version": env!("CARGO_PKG_VERSION"), "run": subject.run,
        "verdict": verdict(&steps, total, &subject, &brought, &not_compared), "culprit": card(&steps, path, total),
        "not_compared": not_compared, "missing": missing(path, &failures),
        "policies_of_dump": brought.json()?, "quantiles": QUANTILES, "graphs": graphs,
    }))
}

fn subject(path: &Path) -> Result<Subject, Failure> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let whole = path.canonicalize().map_err(at(path))?;
    let run_above = || {
        let folders = whole.ancestors().skip(1).take(3);
        folders.map(|folder| folder.join("run.json")).find(|file| file.is_file())
    };
    let known = || run_above().and_then(|file| reader::any_json(&file).ok()).unwrap_or_default();
    let within = |folder: Option<&Path>, parts: Vec<PartEntry>| {
        let folder = folder.unwrap_or(Path::new("")).to_owned();
        let info = reader::any_json(&folder.join("parts.json")).unwrap_or_default();
        vec![GraphEntry { name: name(&folder), path: folder, info, damage: None, parts }]
    };
    let (run, graphs) = match reader::find(path)? {
        Place::Folder(mut runs) if runs.len() == 1 => {
            let run = runs.remove(0);
            return Ok(Subject { name: run.name, run: run.info, graphs: run.graphs });
        }
        Place::Folder(runs) => {
            let names = runs.iter().take(MOST_NAMED).map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(format!("{}: {} runs; name one: {names}", path.display(), runs.len()).into());
        }
        Place::Run(run) => return Ok(Subject { name: run.name, run: run.info, graphs: run.graphs }),
        Place::Graph(graph) => (known(), vec![graph]),
        Place::Part(part) => (known(), within(whole.parent(), vec![part])),
        Place::Step(step) => {
            let part = reader::part_of(&whole).to_owned();
            let number = name(&part).rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or_default();
            let graph = part.parent().map(Path::to_owned);
            (known(), within(graph.as_deref(), vec![PartEntry { part: number, path: part, steps: vec![step] }]))
        }
        Place::Case(case) => {
            let part = PartEntry { part: 0, path: case.path.clone(), steps: case.steps };
            let graph =
                GraphEntry { name: case.name, path: case.path, info: Value::Null, damage: None, parts: vec![part] };
            (known(), vec![graph])
        }
        Place::Model(_) | Place::Tensor(_) | Place::Json(_) | Place::Text(_) => {
            return Err(format!("{}: a file; name a run, a graph or a part of a dump", path.display()).into());
        }
    };
    Ok(Subject { name: name(&whole), run, graphs })
}

fn has_blame(part: &PartEntry) -> bool {
    part.steps.iter().any(|step| reader::blame_file(&part.path, step.step).is_file())
}

fn graph_json(graph: &GraphEntry, steps: &[Step], room: &mut Room, failures: &mut Vec<Failure>) -> Value {
    let mut parts = Vec::new();
    for part in &graph.parts {
        let known = Provenance::of_part(&part.path).unwrap_or_else(|failure| {
            failures.push(failure);
            Provenance::default()
        });
        let (stages, unread) = dot::stages(&part.path, &known);
        failures.extend(unread);
        let is_own = |step: &&Step| step.graph == graph.name && step.part == part.part;
        let steps: Vec<Value> = steps.iter().filter(is_own).map(|step| step.json(&known, room)).collect();
        let calls: BTreeMap<&String, &String> = known.calls.iter().collect();
        parts.push(json!({
            "part": part.part, "path": part.path, "calls": calls, "steps": steps, "stages": stages,
        }));
    }
    let direction = ["forward", "backward", "inference"].into_iter().find(|one| graph.name.contains(one));
    json!({
        "name": graph.name, "path": graph.path, "direction": direction, "options": graph.info["options"],
        "compute_nodes": graph.info["compute_nodes"], "eager": graph.info["eager"], "parts": parts,
    })
}

/// How many calls, or graphs, were left out.
fn n_left_out(what: &str, not_compared: &Value) -> usize {
    let of = not_compared.as_array().into_iter().flatten().filter(|one| one["what"] == what);
    of.filter_map(|one| one["n"].as_u64()).map(|n| n as usize).sum()
}

/// The result over all: the exit code that `rust-ort compare` and `sbs` would have together, and why. not_compared: where a
/// call or a graph was left out, there is no match of all, whatever these say.
fn verdict(steps: &[Step], total: Summary, subject: &Subject, brought: &Brought, not_compared: &Value) -> Value {
    let n_calls_left_out = n_left_out("call", not_compared);
    let has_gap = n_calls_left_out + n_left_out("graph", not_compared) > 0;
    let found = || steps.iter().filter_map(|step| step.found.as_ref());
    let [mut local, mut cumulative] = [Summary::default(); 2];
    for [own, drifted] in found().map(|found| found.counts()) {
        (local, cumulative) = (local.with(own), cumulative.with(drifted));
    }
    let with_nodes = verdicts::sum(found().map(|found| found.total()).chain([total])).unwrap_or_default();
    let kind = match Exit::from(with_nodes) {
        Exit::Success if !has_gap => "match",
        Exit::Success => "not_all_compared",
        Exit::Mismatch => "mismatch",
        Exit::Error => "failed",
        Exit::NothingCompared if with_nodes.passed() > 0 => "not_all_compared",
        Exit::NothingCompared | Exit::Damaged => "nothing_compared",
    };
    let answers: Vec<Answer> = steps.iter().filter_map(|step| step.answer().cloned()).collect();
    let transforms: BTreeSet<String> = (subject.graphs.iter())
        .flat_map(|graph| graph.info["options"]["transforms"].as_array().into_iter().flatten())
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let transforms: Vec<String> = transforms.into_iter().collect();
    let blamed = (!answers.is_empty()).then(|| blame::headline(&answers, &transforms, brought, n_calls_left_out));
    let counts = verdicts::counts(total).unwrap_or_else(|| "nothing was compared".to_owned());
    json!({
        "kind": kind, "outputs": total, "local": local, "cumulative": cumulative, "n_nodes": nodes(steps),
        "text": counts, "within": brought.words().trim(), "blamed": blamed.as_deref().map(str::trim),
    })
}

fn nodes(steps: &[Step]) -> usize {
    steps.iter().filter_map(|step| step.found.as_ref()).map(|found| found.table().nodes.len()).sum()
}

/// Each reason once: [{"what", "reason", "n", "names"}], the most first.
fn not_compared(steps: &[Step], subject: &Subject) -> Value {
    let mut reasons: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    let was_asked_for = |graph: &GraphEntry| graph.info["options"]["compare"] == "nodes";
    let has_nodes = subject.graphs.iter().any(was_asked_for) || steps.iter().any(|step| step.found.is_some());
    for (what, reason, name) in steps.iter().flat_map(|step| step.not_compared(has_nodes)) {
        reasons.entry((what, reason)).or_default().push(name);
    }
    for graph in &subject.graphs {
        for node in graph.info["eager"].as_array().into_iter().flatten() {
            let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
            reasons.entry(("eager", text("reason"))).or_default().push(format!("{} of {}", text("node"), graph.name));
        }
        if graph.parts.iter().all(|part| part.steps.is_empty()) {
            let reason = "no call of it is in the dump".to_owned();
            reasons.entry(("graph", reason)).or_default().push(graph.name.clone());
        }
    }
    let mut all: Vec<_> = reasons.into_iter().collect();
    all.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let told = |((what, reason), names): ((&str, String), Vec<String>)| json!({ "what": what, "reason": reason, "n": names.len(), "names": names.into_iter().take(MOST_NAMED).collect::<Vec<_>>() });
    all.into_iter().map(told).collect()
}

/// Files that are damaged or missing, as `rust-ort verify` lists them, and failures met on the way that it does not list.
fn missing(path: &Path, failures: &[Failure]) -> Value {
    let verified = verify(path).map_err(|error| error.to_string());
    let known: Vec<PathBuf> =
        verified.iter().flat_map(|verified| &verified.damaged).map(|damage| damage.path.clone()).collect();
    let is_new = |failure: &&Failure| Damage::of(failure.as_ref()).is_none_or(|damage| !known.contains(&damage.path));
    let unread: Vec<String> = failures.iter().filter(is_new).map(ToString::to_string).collect();
    match verified {
        Ok(verified) => json!({
            "whole": verified.whole, "damaged": verified.damaged, "missing": verified.missing,
            "incomplete": verified.incomplete, "not_sealed": verified.not_sealed.len(),
            "unlisted": verified.unlisted, "unread": unread,
        }),
        Err(why) => json!({
            "whole": 0, "damaged": [], "missing": [], "incomplete": [], "not_sealed": 0, "unlisted": [],
            "unread": unread.into_iter().chain([why]).collect::<Vec<_>>(),
        }),
    }
}
