//! What tells most of tables of nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use super::columns::{Line, telling};
use super::from_dump::Found;
use super::mark::Mark;
use super::rows::distance;
use super::text::{named, rows_of, summary};
use crate::cli::next;
use crate::cli::table::{self, MOST_ROWS};
use crate::compare::{TensorVerdict, Verdict};
use crate::dump::NodeRow;

/// Above the rows.
const LEGEND: &str = "\
    local: the node's own kernel on eager's inputs, drift: the value as it came, both as max|Δ|/max|r|. x failed, ! its \
    kernel differs, ~ it drifted only, ≈ noise";

/// What does not match of all tables together, the worst first, and of what does only counts; then why what was not
/// compared was not, and what to do next. `path`: where they were looked for.
pub(crate) fn brief(found: &[Found], path: &Path) -> String {
    let width = table::width();
    let found: Vec<&Found> = found.iter().collect();
    if found.is_empty() {
        return String::new();
    }
    let nodes = || found.iter().flat_map(|found| found.table.nodes.iter().map(move |node| (*found, node)));
    let mut worst: Vec<(Mark, &Found, &NodeRow)> = nodes().map(|(found, node)| (Mark::of(node), found, node)).collect();
    let is_telling = |mark: Mark| !matches!(mark, Mark::Match | Mark::NotCompared);
    worst.retain(|(mark, ..)| is_telling(*mark));
    worst.sort_by(|(mark, _, one), (others, _, other)| {
        Reverse(*mark).cmp(&Reverse(*others)).then(badness(*mark, other).total_cmp(&badness(*mark, one)))
    });
    worst.truncate(MOST_ROWS);
    let lines: Vec<Line<'_>> =
        worst.iter().map(|(_, found, node)| Line { table: &found.table, node, output: None }).collect();
    let rows = rows_of(&lines, telling(found.len() > 1), false, width);
    let legend = if lines.is_empty() { String::new() } else { table::paragraph(LEGEND, width) };
    let mut counts: BTreeMap<Mark, usize> = BTreeMap::new();
    nodes().for_each(|(_, node)| *counts.entry(Mark::of(node)).or_default() += 1);
    worst.iter().for_each(|(mark, ..)| *counts.entry(*mark).or_default() -= 1);
    let counts = counts.into_iter().map(|(mark, n)| (mark.word(), n));
    let hidden = table::hidden(lines.len(), counts, "node");
    legend
        + &rows
        + &hidden
        + &summary(&found, width)
        + &reasons(nodes().map(|(_, node)| node), width)
        + &what_next(&found, path)
}

/// By this the worst of one mark comes first.
fn badness(mark: Mark, node: &NodeRow) -> f64 {
    distance(if mark == Mark::Mismatch { &node.local } else { &node.cumulative })
}

/// What was not compared or failed: each reason once, and how many there are of it.
fn reasons<'a>(nodes: impl Iterator<Item = &'a NodeRow>, width: usize) -> String {
    let told = nodes.filter_map(|node| [&node.local, &node.cumulative].into_iter().find_map(reason));
    let fact = |((name, reason), n): ((_, &str), usize)| (name, vec![format!("{n}: {reason}")]);
    let facts: Vec<_> = table::counted(told).into_iter().map(fact).collect();
    named(&facts, width)
}

fn reason(verdict: &TensorVerdict) -> Option<(&'static str, &str)> {
    match &verdict.verdict {
        Verdict::NotCompared(reason) => Some(("not compared:", reason)),
        Verdict::Failed(reason) => Some(("failed:", reason)),
        _ => None,
    }
}

fn what_next(found: &[&Found], path: &Path) -> String {
    let is_wrong = |found: &&&Found| {
        found.counted.local.mismatch + found.counted.outputs.mismatch + found.counted.plain.mismatch > 0
    };
    let mut wrong = found.iter().filter(is_wrong).map(|found| found.path.parent().unwrap_or(Path::new("."))).peekable();
    match wrong.peek() {
        Some(_) => next::blame(path, wrong),
        None => next::command("sbs", path, "--all"),
    }
}
