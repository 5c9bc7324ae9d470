//! The table for people.

use super::columns::{Column, Line, Shown, columns, comment};
use super::{Arguments, Found, Mark};
use crate::cli::ls;
use crate::cli::table::{self, Give};
use crate::compare::{Summary, Verdict};
use crate::dump::NodeRow;

/// Width that a column whose cells lose their middle should have beyond the least.
const ROOM_FOR_A_NAME: usize = 10;

/// Heading, rows, summary.
pub(super) fn of(found: &Found, args: &Arguments, width: Option<usize>, colours: bool) -> String {
    let lines = found.lines(args);
    let shown = lines.len();
    let rows = rows(&lines, args.wide, width);
    let marks = lines.iter().map(|line| Mark::of(line.node));
    let rows = if colours { coloured(&rows, marks) } else { rows };
    let heading = table::fit(&format!("{}\n", found.path.display()), width);
    let hidden = match found.table.nodes.len() - shown {
        0 => String::new(),
        n => format!("{n} rows more are not shown\n"),
    };
    heading + &rows + &table::fit(&(hidden + &summary(found, width)), width)
}

fn rows(lines: &[Line<'_>], wide: bool, width: Option<usize>) -> String {
    let mut columns: Vec<Column> = columns().into_iter().filter(|column| wide || column.shown < Shown::Wide).collect();
    loop {
        let header: Vec<&str> = columns.iter().map(|column| column.head).collect();
        let gives: Vec<Give> = columns.iter().map(|column| column.give).collect();
        let row = |line: &Line<'_>| columns.iter().map(|column| column.cell(line).short()).collect::<Vec<_>>();
        let rows: Vec<_> = lines.iter().map(row).collect();
        let names = gives.iter().filter(|give| **give == Give::Middle).count();
        let least = table::least_width(&header, &rows, &gives) + names * ROOM_FOR_A_NAME;
        // Of equal ones the last goes.
        let widest = (columns.iter().enumerate()).max_by_key(|(_, column)| column.shown).map(|(at, _)| at);
        match (width, widest) {
            (Some(width), Some(at)) if !wide && least > width && columns[at].shown > Shown::Always => {
                columns.remove(at);
            }
            _ => return table::fit(&table::aligned(&header, &rows, &gives, width), width),
        }
    }
}

/// The rows below the header in the colours of their marks.
fn coloured(rows: &str, marks: impl Iterator<Item = Mark>) -> String {
    let colour = |mark: Mark| match mark {
        Mark::Match => "32",
        Mark::Drifted => "33",
        Mark::Mismatch => "31",
        Mark::NotCompared => "2",
        Mark::Failed => "1;31",
    };
    let mut lines = rows.lines();
    let header = lines.next().map(|header| format!("\u{1b}[1m{header}\u{1b}[0m\n")).unwrap_or_default();
    let rows = lines.zip(marks).map(|(line, mark)| format!("\u{1b}[{}m{line}\u{1b}[0m\n", colour(mark)));
    header + &rows.collect::<String>()
}

fn summary(found: &Found, width: Option<usize>) -> String {
    let Found { table, counted, .. } = found;
    let counts = |counted: Summary| vec![ls::verdicts(Some(counted))];
    let first = |node: Option<&NodeRow>| node.map_or_else(|| vec!["none".to_owned()], described);
    let facts = [
        ("local:", counts(counted.local)),
        ("cumulative:", counts(counted.cumulative)),
        ("first local mismatch:", first(table.first_local_mismatch())),
        ("first cumulative mismatch:", first(table.first_cumulative_mismatch())),
        ("what observing changed:", vec![observing(found)]),
    ];
    let mut text = String::new();
    for (name, lines) in facts {
        for (name, line) in std::iter::once(name).chain(std::iter::repeat("")).zip(lines) {
            // The end of a path is what tells.
            let line = width.map_or(line.clone(), |width| table::cut_middle(&line, width.saturating_sub(27)));
            text += &format!("{name:26} {line}\n");
        }
    }
    text
}

/// One line each: which node, where it comes from, what is known.
fn described(node: &NodeRow) -> Vec<String> {
    let which = format!("#{} {} ({})", node.index, node.name, node.op);
    let lines = [which, node.module.clone(), node.source.clone(), node.role.clone(), comment(node)];
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

/// The plain session against the instrumented one.
fn observing(found: &Found) -> String {
    let plain = &found.table.plain;
    let changed = |verdict: &&crate::compare::TensorVerdict| {
        verdict.verdict != Verdict::Match || verdict.metrics.as_ref().is_some_and(|metrics| metrics.max_abs > 0.)
    };
    let n_changed = plain.iter().filter(changed).count();
    match (plain.is_empty(), n_changed) {
        (true, _) => "not known".to_owned(),
        (_, 0) => format!("nothing: the plain session gave the same {} outputs", plain.len()),
        _ => {
            let metrics = plain.iter().filter_map(|verdict| verdict.metrics.as_ref());
            let largest = metrics.map(|metrics| metrics.max_rel_to_max).fold(0., f64::max);
            let counts = ls::verdicts(Some(found.counted.plain));
            format!("{n_changed} of {} outputs, at most max|Δ|/max|r| {largest:.1e} ({counts})", plain.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_the_colour_of_its_mark() {
        let text = coloured("  name\n=  a\n!  b\n", [Mark::Match, Mark::Mismatch].into_iter());
        assert_eq!(text, "\u{1b}[1m  name\u{1b}[0m\n\u{1b}[32m=  a\u{1b}[0m\n\u{1b}[31m!  b\u{1b}[0m\n");
    }
}
