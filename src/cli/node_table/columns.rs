//! What a row tells, and CSV of it.

use super::mark::Mark;
use crate::base::quoted::printable;
use crate::cli::table::Give;
use crate::compare::{Errors, Metrics, Noise, NoiseKind, Rounding, Side, TensorVerdict, Verdict, distance_text, few};
use crate::dump::{NodeRow, NodeTable};

/// A node in its table.
pub(crate) struct Line<'a> {
    pub(super) table: &'a NodeTable,
    pub(super) node: &'a NodeRow,
    /// Position among the outputs of the ONNX node that makes the value.
    pub(super) output: Option<usize>,
}

/// What stands in a column.
pub(super) enum Cell {
    Text(String),
    Count(Option<i64>),
    Real(Option<f64>),
    Milliseconds(Option<f64>),
}

impl Cell {
    /// There is something in it.
    pub(super) fn is_known(&self) -> bool {
        !self.exact().is_empty()
    }

    /// In full; what is not known is empty.
    fn exact(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.map_or_else(String::new, |count| count.to_string()),
            Cell::Real(real) | Cell::Milliseconds(real) => real.map_or_else(String::new, |real| format!("{real:e}")),
        }
    }

    /// As [`Cell::exact`], for programs that compute: a name that begins as a formula does is none.
    fn for_a_sheet(&self) -> String {
        match self {
            Cell::Text(text) if text.len() > 1 && text.starts_with(['=', '+', '-', '@', '\t', '\r']) => {
                format!("'{}", printable(text))
            }
            Cell::Text(text) => printable(text),
            _ => self.exact(),
        }
    }

    /// For people; what is not known is `-`.
    pub(super) fn short(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            Cell::Milliseconds(Some(ms)) => format!("{ms:.3}"),
            Cell::Real(real) | Cell::Milliseconds(real) => real.map_or_else(|| "-".to_owned(), distance_text),
        }
    }
}

type OfNode = fn(&Line<'_>) -> Cell;
type OfVerdict = fn(&TensorVerdict) -> Cell;
type OfRounding = fn(&Rounding) -> f64;

enum Source {
    Node(OfNode),
    Local(OfVerdict),
    Cumulative(OfVerdict),
    Rounding(OfRounding),
}

/// When a terminal shows a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    Always,
    /// Where there is room; the highest numbers go first.
    Room(u8),
    /// With `--wide`.
    Wide,
}

/// One column.
pub(super) struct Column {
    /// In CSV, and where all columns are shown.
    pub(super) name: String,
    /// On a terminal.
    pub(super) head: &'static str,
    pub(super) shown: Shown,
    pub(super) give: Give,
    /// A terminal shows it only where one of its cells is known.
    pub(super) sparse: bool,
    source: Source,
}

impl Column {
    pub(super) fn cell(&self, line: &Line<'_>) -> Cell {
        match self.source {
            Source::Node(cell) => cell(line),
            Source::Local(cell) => cell(&line.node.local),
            Source::Cumulative(cell) => cell(&line.node.cumulative),
            Source::Rounding(value) => {
                Cell::Real(line.node.local.noise.and_then(|noise| noise.errors.rounding.as_ref().map(value)))
            }
        }
    }
}

/// Every column, in the order of CSV. Names and order are stable; new ones come last.
pub(super) fn columns() -> Vec<Column> {
    use Give::{End, Middle, Never};
    use Shown::{Always, Room, Wide};
    let node = |name: &str, head, shown, give, cell: OfNode| Column {
        name: name.to_owned(),
        head,
        shown,
        give,
        sparse: false,
        source: Source::Node(cell),
    };
    let mut columns = vec![
        node("graph", "graph", Wide, Middle, |line| text(&line.table.graph)),
        node("part", "part", Wide, Never, |line| Cell::Count(Some(line.table.part.into()))),
        node("step", "step", Wide, Never, |line| count(line.table.step)),
        node("mark", "", Always, Never, |line| text(Mark::of(line.node).sign())),
        node("id_node", "#", Always, Never, |line| count(line.node.index)),
        node("onnx_id_node", "onnx#", Room(7), Never, |line| {
            Cell::Count((line.node.onnx_index >= 0).then_some(line.node.onnx_index))
        }),
        node("fx_name", "name", Always, Middle, |line| text(&line.node.name)),
        // The value carries the node's name, so a terminal shows it once.
        node("onnx_name", "onnx name", Wide, Middle, |line| {
            text(if line.node.onnx_index >= 0 { &line.node.name } else { "" })
        }),
        node("fx_op", "op", Room(4), Middle, |line| text(&line.node.op)),
        node("onnx_ops", "onnx ops", Room(5), End, |line| text(&line.node.onnx_ops.join("+"))),
        node("onnx_id_output", "out", Wide, Never, |line| Cell::Count(line.output.map(|output| output as i64))),
        node("fx_type", "type", Room(6), Never, |line| text(&reference_type(line.node))),
        node("onnx_type", "onnx type", Wide, End, |line| text(&candidate_type(line.node))),
    ];
    columns.extend(verdict_columns());
    columns.extend([
        node("fx_ms", "eager ms", Room(12), Never, |line| milliseconds(line.node.reference_ns)),
        node("onnx_ms", "onnx ms", Room(12), Never, |line| milliseconds(line.node.candidate_ns)),
        node("fx_signature", "sign.", Wide, Never, |line| text(&line.node.reference_signature)),
        node("onnx_signature", "onnx sign.", Wide, Never, |line| text(&line.node.candidate_signature)),
        node("comment", "comment", Room(1), End, |line| text(&comment(line.node))),
        node("module", "module", Room(3), Middle, |line| text(&line.node.module)),
        node("source", "source", Wide, Middle, |line| text(&line.node.source)),
        node("role", "role", Wide, Middle, |line| text(&line.node.role)),
        node("seq_nr", "seq_nr", Wide, Never, |line| Cell::Count((line.node.seq_nr >= 0).then_some(line.node.seq_nr))),
        node("float64_fx_err", "f64 eager", Wide, Never, |line| {
            Cell::Real(line.node.local.noise.map(|noise| noise.errors.reference_error))
        }),
        node("float64_onnx_err", "f64 onnx", Wide, Never, |line| {
            Cell::Real(line.node.local.noise.map(|noise| noise.errors.candidate_error))
        }),
    ]);
    columns.extend(noise_columns());
    columns.push(node("no_float64", "no f64", Wide, End, |line| text(&line.node.no_float64)));
    columns.extend(not_finite_columns());
    columns.push(node("births", "born", Wide, End, |line| text(&births(line.node))));
    columns.extend(rounding_columns());
    let runtimes = node("runtimes", "on", Room(2), Never, |line| text(&line.node.runtimes.join("+")));
    columns.push(Column { sparse: true, ..runtimes });
    columns
}

/// The columns of rows that tell most: the numbers that verdicts are by, which node it is and why. With `place`, of which
/// part.
pub(super) fn telling(place: bool) -> Vec<Column> {
    const NAMES: [&str; 8] = [
        "mark",
        "id_node",
        "fx_name",
        "fx_op",
        "local_err_rel_to_max",
        "cumulative_err_rel_to_max",
        "comment",
        "module",
    ];
    let mut columns: Vec<Column> =
        columns().into_iter().filter(|column| NAMES.contains(&column.name.as_str())).collect();
    if place {
        let of = Source::Node(|line| text(&line.table.place()));
        let (shown, give) = (Shown::Always, Give::Middle);
        columns.insert(1, Column { name: "part".to_owned(), head: "part", shown, give, sparse: false, source: of });
    }
    columns
}

/// What float64 says of the local run and of the drifted value.
fn noise_columns() -> Vec<Column> {
    use Shown::{Room, Wide};
    let table: [(&'static str, [&'static str; 2], [Shown; 2], OfVerdict); 5] = [
        ("noise", ["noise", "drift noise"], [Room(8), Room(8)], |of| {
            text(&of.noise.map_or_else(String::new, |noise| noise.kind.to_string()))
        }),
        ("noise_ratio", ["×eager", "×eager drift"], [Room(9), Room(9)], |of| noise(of, |noise| noise.ratio)),
        ("noise_fx_err", ["f64 eager", "f64 eager drift"], [Wide, Wide], |of| {
            noise(of, |noise| noise.errors.reference_error)
        }),
        ("noise_onnx_err", ["f64 onnx", "f64 onnx drift"], [Wide, Wide], |of| {
            noise(of, |noise| noise.errors.candidate_error)
        }),
        ("condition", ["cond.", "cond. drift"], [Wide, Wide], |of| noise(of, |noise| noise.errors.condition)),
    ];
    sides(table)
}

/// How eager and the local run round, in steps of their type, where that is half precision.
fn rounding_columns() -> Vec<Column> {
    let table: [(&'static str, &'static str, OfRounding); 6] = [
        ("rms_fx", "rms eager", |of| of.reference_rms),
        ("rms_onnx", "rms onnx", |of| of.candidate_rms),
        ("bias_fx", "bias eager", |of| of.reference_bias),
        ("bias_onnx", "bias onnx", |of| of.candidate_bias),
        ("beyond_fx", "beyond eager", |of| of.reference_beyond as f64),
        ("beyond_onnx", "beyond onnx", |of| of.candidate_beyond as f64),
    ];
    let column = |(name, head, value): (&str, &'static str, OfRounding)| Column {
        name: format!("local_{name}"),
        head,
        shown: Shown::Wide,
        give: Give::Never,
        sparse: true,
        source: Source::Rounding(value),
    };
    table.map(column).into()
}

/// NaN, infinities and what became zero, of the local run and of the drifted value.
fn not_finite_columns() -> Vec<Column> {
    use Shown::Wide;
    let of_candidate: OfVerdict = |of| metric(of, |m| m.candidate_nan + m.candidate_inf);
    sides([
        ("fx_not_finite", ["eager nan/inf", "eager nan/inf"], [Wide, Wide], |of| {
            metric(of, |m| m.reference_nan + m.reference_inf)
        }),
        ("onnx_not_finite", ["onnx nan/inf", "onnx nan/inf drift"], [Wide, Wide], of_candidate),
        ("underflow", ["underflow", "underflow drift"], [Wide, Wide], |of| real(of, |m| m.underflow)),
    ])
}

/// Of either side.
fn births(node: &NodeRow) -> String {
    let side = |side| if side == Side::Candidate { "ONNX Runtime" } else { "eager" };
    let texts: Vec<_> = node.births.iter().map(|birth| format!("{}: {birth}", side(birth.side))).collect();
    texts.join("; ")
}

fn noise(of: &TensorVerdict, value: fn(&Noise) -> f64) -> Cell {
    Cell::Real(of.noise.as_ref().map(value))
}

/// Each column twice: of the local run, then of the drifted value.
fn sides<const N: usize>(table: [(&'static str, [&'static str; 2], [Shown; 2], OfVerdict); N]) -> Vec<Column> {
    let side = |index: usize, side: &str, source: fn(OfVerdict) -> Source| {
        table.map(|(name, head, shown, cell)| Column {
            name: format!("{side}_{name}"),
            head: head[index],
            shown: shown[index],
            give: Give::Never,
            sparse: name.starts_with("noise"),
            source: source(cell),
        })
    };
    side(0, "local", Source::Local).into_iter().chain(side(1, "cumulative", Source::Cumulative)).collect()
}

/// The same numbers of the local run and of the drifted value.
fn verdict_columns() -> Vec<Column> {
    use Shown::{Always, Room, Wide};
    // (CSV, terminal: local, drifted, local shown, drifted shown, cell)
    let table: [(&'static str, [&'static str; 2], [Shown; 2], OfVerdict); 9] = [
        ("verdict", ["local?", "drift?"], [Wide, Wide], |of| text(word(&of.verdict))),
        ("err_abs", ["local|Δ|", "drift|Δ|"], [Room(9), Room(9)], |of| real(of, |m| m.max_abs)),
        ("err_rel", ["local rel", "drift rel"], [Wide, Wide], |of| real(of, |m| m.max_rel)),
        ("err_rel_to_max", ["local", "drift"], [Always, Always], |of| real(of, |m| m.max_rel_to_max)),
        ("err_nan", ["nan", "nan drift"], [Room(10), Wide], |of| metric(of, |m| m.nan_disagreements)),
        ("err_h01", [">0.1", ">0.1 drift"], [Room(10), Wide], |of| metric(of, |m| m.above.0[4])),
        ("err_h001", [">0.01", ">0.01 drift"], [Room(10), Wide], |of| metric(of, |m| m.above.0[3])),
        ("outside", ["outside", "outside drift"], [Room(11), Wide], |of| metric(of, |m| m.outside)),
        ("n", ["n", "n drift"], [Wide, Wide], |of| metric(of, |m| m.n)),
    ];
    sides(table)
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn count(count: u64) -> Cell {
    Cell::Count(i64::try_from(count).ok())
}

fn metric(of: &TensorVerdict, value: fn(&Metrics) -> u64) -> Cell {
    of.metrics.as_ref().map_or(Cell::Count(None), |metrics| count(value(metrics)))
}

fn real(of: &TensorVerdict, value: fn(&Metrics) -> f64) -> Cell {
    Cell::Real(of.metrics.as_ref().map(value))
}

fn milliseconds(ns: u64) -> Cell {
    Cell::Milliseconds((ns > 0).then_some(ns as f64 / 1e6))
}

fn word(verdict: &Verdict) -> &'static str {
    verdict.words().0
}

fn reference_type(node: &NodeRow) -> String {
    if node.dtype.is_empty() { String::new() } else { format!("{}{:?}", node.dtype, node.dims) }
}

/// Values are measured only when their types are equal; of others the reason tells both.
fn candidate_type(node: &NodeRow) -> String {
    let metrics = node.cumulative.metrics.as_ref().or(node.local.metrics.as_ref());
    metrics.map_or_else(String::new, |metrics| format!("{}{}", metrics.dtype, metrics.shape))
}

/// Why it was not compared or failed, what float64 or its terms say, where it is worst.
pub(super) fn comment(node: &NodeRow) -> String {
    let mut said: Vec<String> = Vec::new();
    for (side, verdict) in [("local", &node.local), ("drift", &node.cumulative)] {
        let new = match (&verdict.verdict, &verdict.metrics) {
            (verdict, _) if !verdict.words().1.is_empty() => verdict.words().1.to_owned(),
            (Verdict::Mismatch, Some(Metrics { worst: Some(worst), .. })) => format!("{side} worst at {worst}"),
            _ => continue,
        };
        if !said.contains(&new) {
            said.push(new);
        }
    }
    // Of what matches at once the columns say enough.
    let settled = node.local.verdict == Verdict::Mismatch || node.local.metrics.as_ref().is_some_and(|m| m.outside > 0);
    for (side, of) in [("drift: ", &node.cumulative), ("", &node.local)] {
        if let Some(noise) = of.noise.filter(|noise| noise.kind != NoiseKind::Noise || (side.is_empty() && settled)) {
            said.insert(0, format!("{side}{}", noise_text(&noise)));
        }
    }
    if let Some(terms) = node.cumulative.metrics.as_ref().and_then(|metrics| metrics.max_terms) {
        said.insert(0, format!("drift: zero but for rounding of sums whose terms come to {}", few(terms)));
    }
    if !node.births.is_empty() {
        said.insert(0, format!("born in {}", births(node)));
    }
    if !node.as_right.is_empty() {
        said.insert(0, node.as_right.clone());
    }
    said.join("; ")
}

/// What it comes to, and by how much.
fn noise_text(noise: &Noise) -> String {
    let Errors { reference_error, candidate_error, condition, .. } = noise.errors;
    let judged = match noise.kind {
        NoiseKind::IllConditioned => format!("ill-conditioned, eager is off by {} steps", few(condition)),
        kind => kind.to_string(),
    };
    let [reference, candidate] = [reference_error, candidate_error].map(few);
    format!("{judged}: from float64 eager is {reference}, ONNX Runtime {candidate}")
}

/// Every column of every line, after RFC 4180.
pub(crate) fn csv<'a>(lines: impl Iterator<Item = Line<'a>>) -> String {
    let columns = columns();
    let row = |cells: Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\r\n";
    let header = row(columns.iter().map(|column| column.name.clone()).collect());
    let rows = lines.map(|line| row(columns.iter().map(|column| column.cell(&line).for_a_sheet()).collect()));
    std::iter::once(header).chain(rows).collect()
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\r', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cells_that_need_it_are_quoted() {
        for (cell, expected) in
            [("a b", "a b"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\""), ("a\nb", "\"a\nb\""), ("", "")]
        {
            assert_eq!(quoted(cell), expected);
        }
    }

    #[test]
    fn numbers_are_exact_or_short() {
        assert_eq!(
            (Cell::Real(Some(1.25e-7)).exact(), Cell::Real(Some(1.25e-7)).short()),
            ("1.25e-7".into(), "1.25e-7".into())
        );
        assert_eq!((Cell::Real(None).exact(), Cell::Real(None).short()), (String::new(), "-".into()));
        assert_eq!(Cell::Real(Some(f64::INFINITY)).exact(), "inf");
        assert_eq!(Cell::Real(Some(0.)).short(), "0");
    }

    #[test]
    fn a_name_that_a_sheet_would_compute_is_a_text() {
        let of = |text: &str| Cell::Text(text.to_owned()).for_a_sheet();
        assert_eq!(
            [of("=cmd|' /C calc'!A0"), of("="), of("mm"), of("a\u{1b}[2J")],
            ["'=cmd|' /C calc'!A0", "=", "mm", "a\\u{1b}[2J"]
        );
        assert_eq!(Cell::Real(Some(-1.5)).for_a_sheet(), "-1.5e0");
    }
}
