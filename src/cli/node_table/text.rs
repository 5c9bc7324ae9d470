//! The table for people.

use std::path::Path;

use super::columns::{Column, Line, Shown, columns, comment};
use super::from_dump::{Counted, Found};
use super::mark::Mark;
use super::rows::Rows;
use crate::cli::answer::line;
use crate::cli::table::{self, Give, Pieces};
use crate::cli::verdicts;
use crate::compare::{Birth, Side, Summary, TensorVerdict, Verdict, few};
use crate::dump::{NodeRow, NodeTable, reader};

/// Width that a column whose cells lose their middle should have beyond the least.
const ROOM_FOR_A_NAME: usize = 10;

/// Column where the second half of the summary's lines begins.
const SUMMARY: usize = 27;

/// Heading, rows, summary, as wide as the terminal and in its colours. wide: with every column.
pub(crate) fn text_of(found: &Found, rows: &Rows, wide: bool) -> String {
    let width = table::width();
    let lines = found.lines(rows);
    let shown = lines.len();
    let rows = rows_of(&lines, columns(), wide, width);
    let heading = table::fit(&line(found.path.display()), table::terminal());
    let hidden = match found.table.nodes.len() - shown {
        0 => String::new(),
        n => format!("{n} rows more are not shown\n"),
    };
    heading + &rows + &hidden + &summary(&[found], width)
}

/// The rows in their colours; nothing of none.
pub(super) fn rows_of(lines: &[Line<'_>], columns: Vec<Column>, wide: bool, width: usize) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut rows = pieces(lines, columns, wide, width);
    if table::colours() {
        colour(&mut rows, lines.iter().map(|line| Mark::of(line.node)));
    }
    rows.text()
}

/// Cells as they are shown.
struct Cells {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    gives: Vec<Give>,
}

impl Cells {
    fn of(lines: &[Line<'_>], columns: &[Column], wide: bool) -> Self {
        let head = |column: &Column| if wide { column.name.clone() } else { column.head.to_owned() };
        let row = |line: &Line<'_>| columns.iter().map(|column| column.cell(line).short()).collect();
        Self {
            header: columns.iter().map(head).collect(),
            rows: lines.iter().map(row).collect(),
            gives: columns.iter().map(|column| column.give).collect(),
        }
    }

    fn header(&self) -> Vec<&str> {
        self.header.iter().map(String::as_str).collect()
    }

    /// Width that lets a name be read.
    fn least(&self) -> usize {
        let names = self.gives.iter().filter(|give| **give == Give::Middle).count();
        table::least_width(&self.header(), &self.rows, &self.gives) + names * ROOM_FOR_A_NAME
    }
}

/// Those of the columns that a terminal of this width shows. wide: all of them.
pub(super) fn fitting(lines: &[Line<'_>], columns: Vec<Column>, wide: bool, width: usize) -> Vec<Column> {
    let known = |column: &Column| !column.sparse || lines.iter().any(|line| column.cell(line).is_known());
    let is_shown = |column: &Column| wide || (column.shown < Shown::Wide && known(column));
    let mut columns: Vec<Column> = columns.into_iter().filter(is_shown).collect();
    while !wide && Cells::of(lines, &columns, wide).least() > width {
        // Of equal ones the last goes.
        let widest = columns.iter().enumerate().max_by_key(|(_, column)| column.shown);
        match widest.filter(|(_, column)| column.shown > Shown::Always).map(|(at, _)| at) {
            Some(at) => drop(columns.remove(at)),
            None => break,
        }
    }
    columns
}

fn pieces(lines: &[Line<'_>], columns: Vec<Column>, wide: bool, width: usize) -> Pieces {
    let cells = Cells::of(lines, &fitting(lines, columns, wide, width), wide);
    // With all columns a row that fits only by cutting every name to pieces is no row to read.
    match wide && cells.least() > width {
        true => table::blocks(&cells.header(), &cells.rows, width),
        false => table::pieces(&cells.header(), &cells.rows, &cells.gives, width),
    }
}

/// The rows in the colours of their marks.
fn colour(rows: &mut Pieces, marks: impl Iterator<Item = Mark>) {
    let code = |mark: Mark| match mark {
        Mark::Match => "32",
        Mark::Noise => "36",
        Mark::Drifted => "33",
        Mark::Mismatch => "31",
        Mark::NotCompared => "2",
        Mark::Failed => "1;31",
    };
    for (record, mark) in rows.records.iter_mut().zip(marks) {
        *record = format!("\u{1b}[{}m{record}\u{1b}[0m", code(mark));
    }
    rows.header = rows.header.take().map(|header| format!("\u{1b}[1m{header}\u{1b}[0m"));
}

/// Counts and the first of each kind, of all tables together.
pub(super) fn summary(found: &[&Found], width: usize) -> String {
    let counted = Counted::all(found);
    let counts = |counted: Summary| vec![verdicts::cell(Some(counted))];
    let node =
        |of: fn(&NodeTable) -> Option<&NodeRow>| found.iter().find_map(|&found| Some((found, of(&found.table)?)));
    let first = |of: fn(&NodeTable) -> Option<&NodeRow>| {
        node(of).map_or_else(|| vec!["none".to_owned()], |(of, node)| described(of, node, found.len() > 1))
    };
    let drifted = match [NodeTable::first_local_mismatch, NodeTable::first_cumulative_mismatch].map(node) {
        [Some((_, wrong)), Some((_, drifted))] if std::ptr::eq(wrong, drifted) => vec!["the same node".to_owned()],
        _ => first(NodeTable::first_cumulative_mismatch),
    };
    let mut facts = vec![
        ("local:", counts(counted.local)),
        ("cumulative:", counts(counted.cumulative)),
        ("outputs:", counts(counted.outputs)),
        ("first local mismatch:", first(NodeTable::first_local_mismatch)),
        ("first cumulative mismatch:", drifted),
        ("what observing changed:", vec![observing(found, counted.plain)]),
    ];
    // Without the drifted ones, the local ones are of mismatches alone.
    if !counted.cumulative_noise.is_empty() {
        facts.push(("local noise:", vec![counted.local_noise.to_string()]));
        facts.push(("cumulative noise:", vec![counted.cumulative_noise.to_string()]));
        facts.push(("first worse than eager:", first(NodeTable::first_worse)));
    }
    for (node, birth) in first_births(found) {
        let name = match (birth.side, birth.is_nan()) {
            (Side::Candidate, true) => "first NaN, onnx:",
            (Side::Candidate, false) => "first infinity, onnx:",
            (Side::Reference, true) => "first NaN, eager:",
            (Side::Reference, false) => "first infinity, eager:",
        };
        facts.push((name, vec![format!("#{} {} ({})", node.index, node.name, node.op), birth.to_string()]));
    }
    named(&facts, width)
}

/// Of several tables the first of each kind.
fn first_births<'a>(found: &[&'a Found]) -> Vec<(&'a NodeRow, &'a Birth)> {
    let mut births: Vec<(&NodeRow, &Birth)> = Vec::new();
    for (node, birth) in found.iter().flat_map(|found| found.table.first_births()) {
        let kind = |birth: &Birth| (birth.side, birth.is_nan());
        if births.iter().all(|(_, known)| kind(known) != kind(birth)) {
            births.push((node, birth));
        }
    }
    births
}

/// Lines of names and what is known under each.
pub(super) fn named(facts: &[(&str, Vec<String>)], width: usize) -> String {
    let mut text = String::new();
    for (name, lines) in facts {
        let lines = lines.iter().flat_map(|line| table::wrapped(line, width.saturating_sub(SUMMARY)));
        for (name, line) in std::iter::once(*name).chain(std::iter::repeat("")).zip(lines) {
            text += &format!("{name:26} {line}\n");
        }
    }
    text
}

/// One line each: which node, where it comes from, what is known. `with_place`: of which part, too.
fn described(found: &Found, node: &NodeRow, with_place: bool) -> Vec<String> {
    let part = found.path.parent().unwrap_or(Path::new(""));
    let reproduction = reader::reproduction(part, &node.name, found.table.step);
    let reproduction = reproduction.map_or_else(String::new, |path| format!("reproduction: {}", path.display()));
    let of = if with_place { format!(" of {}", found.table.place()) } else { String::new() };
    let which = format!("#{} {} ({}){of}", node.index, node.name, node.op);
    let lines = [which, node.module.clone(), node.source.clone(), node.role.clone(), comment(node), reproduction];
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

/// The plain sessions against the instrumented ones.
fn observing(found: &[&Found], counted: Summary) -> String {
    let plain: Vec<&TensorVerdict> = found.iter().flat_map(|found| &found.table.plain).collect();
    let changed = |verdict: &&&TensorVerdict| {
        verdict.verdict != Verdict::Match || verdict.metrics.as_ref().is_some_and(|metrics| metrics.max_abs > 0.)
    };
    let n_changed = plain.iter().filter(changed).count();
    match (plain.is_empty(), n_changed) {
        (true, _) => "not known".to_owned(),
        (_, 0) => format!("nothing: the plain session gave the same {} outputs", plain.len()),
        _ => {
            let metrics = plain.iter().filter_map(|verdict| verdict.metrics.as_ref());
            let largest = metrics.map(|metrics| metrics.max_rel_to_max).fold(0., f64::max);
            let counts = verdicts::cell(Some(counted));
            format!("{n_changed} of {} outputs, at most max|Δ|/max|r| {} ({counts})", plain.len(), few(largest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_the_colour_of_its_mark() {
        let (header, records) = (Some("  name".to_owned()), vec!["=  a".to_owned(), "!  b".to_owned()]);
        let mut rows = Pieces { header, records };
        colour(&mut rows, [Mark::Match, Mark::Mismatch].into_iter());
        let text = "\u{1b}[1m  name\u{1b}[0m\n\u{1b}[32m=  a\u{1b}[0m\n\u{1b}[31m!  b\u{1b}[0m\n";
        assert_eq!(rows.text(), text);
    }
}
