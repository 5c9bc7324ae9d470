//! `rust-ort prove`: faults planted in dumped graphs, and how many are found.

use serde_json::json;

use super::answer::{json_text, line, put, warn};
use super::blame::{brought_by, budget_of, case_of, memory_bytes};
use super::dump_tolerance::Brought;
use super::exit::{Exit, Outcome};
use super::next;
use super::progress;
use super::rerun::{self, Runtime};
use super::table::{self, Give};
use super::walls_argument::WallsArgument;
use crate::blame::Culprit;
use crate::blame::faults::Kind;
use crate::blame::prove::{Effect, Proofs, counted, prove};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: rerun::Arguments,
    /// Faults in each data set that take an output out of tolerance
    #[arg(long, default_value_t = 16)]
    faults: usize,
    /// Which of all places are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds for each fault [default: 50 times what eager took, at least 60]
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Of eager's values so many MiB are held in memory
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(super) fn walls(&self) -> &WallsArgument {
        &self.what.walls
    }
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let targets = rerun::find(&args.what)?;
    if targets.is_empty() {
        warn(next::no_data_sets(&args.what.path));
        return Ok(Exit::NothingCompared);
    }
    rerun::refuse_idle(&args.what, &targets)?;
    let runtime = Runtime::load(&args.what, &targets, &[])?;
    let mut all = Vec::new();
    let (whole, left_out) = rerun::whole(&targets);
    let brought = brought_by(&whole)?;
    for target in whole {
        let case = case_of(&runtime, target, memory_bytes(args.memory))?;
        if !case.knows_nodes() || case.table.nodes.is_empty() {
            let path = target.step.path.display();
            warn(format_args!(
                "{path}: left out: eager's values of its nodes were not dumped (compare=\"nodes\", dump_values=True)"
            ));
            continue;
        }
        let budget = budget_of(&case, args.budget)?;
        let bar = progress::bar(args.faults, "faults");
        let mut done = |n: usize| bar.set_position(n as u64);
        all.push(prove(&case, runtime.runtime.as_ref(), args.faults, args.seed, budget, &mut done)?);
    }
    let by_kind = counted(&all);
    let sum = |at: usize| by_kind.iter().map(|(_, counts)| counts[at]).sum::<usize>();
    let total = [sum(0), sum(1), sum(2)];
    // What came in is no accusation: it is of another part, where it is looked at, too.
    let is_accused = |culprit: &Culprit| matches!(culprit, Culprit::Node { .. } | Culprit::Optimizer { .. });
    let accused = all.iter().filter(|proofs| is_accused(&proofs.unplanted)).count();
    let text = if args.json {
        let [planted, sbs, blame] = total;
        let summary = json!({ "planted": planted, "found_by_sbs": sbs, "found_by_blame": blame, "accused": accused });
        let policies = brought.json()?;
        json_text(
            "prove",
            json!({ "summary": summary, "seed": args.seed, "parts": all, "policies_of_dump": policies }),
        )?
    } else {
        text_of(&all, &by_kind, total, accused, &brought)
    };
    put(&text)?;
    Ok(match (total, accused) {
        ([0, ..], _) => Exit::NothingCompared,
        ([planted, _, blame], 0) if blame == planted && left_out == 0 => Exit::Success,
        ([planted, _, blame], 0) if blame == planted => Exit::NothingCompared,
        _ => Exit::Mismatch,
    })
}

fn text_of(
    all: &[Proofs],
    by_kind: &[(Kind, [usize; 3])],
    total: [usize; 3],
    accused: usize,
    brought: &Brought,
) -> String {
    let of = |n: usize, planted: usize| format!("{n} of {planted}");
    let row = |name: &str, [planted, sbs, blame]: [usize; 3]| {
        vec![name.to_owned(), planted.to_string(), of(sbs, planted), of(blame, planted)]
    };
    let mut rows: Vec<Vec<String>> = by_kind.iter().map(|(kind, counts)| row(kind.name(), *counts)).collect();
    rows.push(row("all", total));
    let header = ["planted", "faults", "first by sbs", "first by blame"];
    let mut text =
        table::aligned(&header, &rows, &[Give::Middle, Give::Never, Give::Never, Give::Never], table::width());
    let proofs = || all.iter().flat_map(|proofs| &proofs.proofs);
    let none = proofs().filter(|proof| proof.effect == Effect::None).count();
    let refused = proofs().filter(|proof| matches!(proof.effect, Effect::Refused { .. })).count();
    let (same, outputs) =
        all.iter().fold((0, 0), |(same, n), proofs| (same + proofs.same_bits.0, n + proofs.same_bits.1));
    let within = brought.words();
    text += &format!("\nwithin tolerance all the same: {none}; refused by the runtime: {refused}\n");
    if !within.is_empty() {
        text += &line(format_args!("outputs are judged{within}"));
    }
    text += &line(format_args!("with nothing planted {accused} of {} parts blame somebody", all.len()));
    text += &line(format_args!(
        "run again without capture {same} of {outputs} outputs have the very bits that were dumped"
    ));
    for (graph, proof) in all.iter().flat_map(|proofs| proofs.proofs.iter().map(|proof| (&proofs.graph, proof))) {
        if proof.counts() && !proof.found_by_blame() {
            let named = proof.blamed.as_deref().unwrap_or("nobody");
            let (kind, value, guilty) = (proof.site.kind.name(), &proof.site.value, proof.guilty.join(", "));
            text += &line(format_args!("not found: {graph}: {kind} at {value}, in {guilty}: {named} is blamed"));
        }
    }
    text
}
