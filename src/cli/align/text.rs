//! Rows as text, in the layout of onnx-array-api's `DistanceExecution.to_str`, and as CSV.

use std::collections::HashMap;

use super::rows::{BITS_DIFFER, Counts, Outputs, Row, Standing, kind_text, shape_text};
use crate::base::quoted::{printable, quoted};
use crate::cli::table;
use crate::compare::{RunResult, Verdict, distance_text};

/// Columns of kind, dtype, shape, signature and operator there.
const EXAMPLE: [usize; 5] = [6, 8, 20, 4, 15];
/// A name or an operator is not cut below this.
const LEAST: usize = 6;
/// Between cells.
const BAR: &str = " | ";

/// How wide a row is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    /// Each side has so many columns, as in the example.
    Cell(usize),
    /// The whole row has at most so many; names lose their middle. Where that is not enough, a line a side.
    Row(usize),
    /// As much as is needed.
    Natural,
}

/// Columns of kind, dtype, shape, signature, operator and name.
type Columns = [usize; 6];

/// The rows, a line each.
pub(super) fn text(rows: &[&Row<'_>], width: Width) -> String {
    let digits = rows.iter().map(|row| row.number.to_string().len()).max().unwrap_or_default().max(3);
    let deltas: Vec<String> = rows.iter().map(|row| delta(row)).collect();
    let cells: Vec<[Option<[String; 6]>; 2]> = rows.iter().map(|row| cells_of(row)).collect();
    let end = deltas.iter().map(|delta| delta.chars().count()).max().unwrap_or_default();
    let needed = needed(&cells);
    let columns = match width {
        Width::Cell(size) => return fixed(rows, &cells, &deltas, digits, size),
        Width::Natural => Some(padded(needed)),
        Width::Row(width) => {
            let room = width.saturating_sub(digits + 2 + 2 * BAR.len() + if end > 0 { BAR.len() + end } else { 0 }) / 2;
            shrunk(needed, room)
        }
    };
    let most = if let Width::Row(width) = width { width } else { usize::MAX };
    let names = cells.iter().flatten().flatten().map(|[.., name]| name.as_str());
    let names = columns.map(|[.., width]| table::cut_apart(names, width)).unwrap_or_default();
    let mut text = String::new();
    for ((row, cells), delta) in rows.iter().zip(&cells).zip(&deltas) {
        let begin = format!("{:0digits$} {}", row.number, row.symbol.text());
        let tail = if delta.is_empty() { String::new() } else { format!("{BAR}{delta}") };
        match columns {
            Some(columns) => {
                let [one, other] = cells.each_ref().map(|cell| side(cell.as_ref(), &columns, &names));
                text += format!("{begin}{BAR}{one}{BAR}{other}{tail}").trim_end();
            }
            None => text += &lines(&begin, cells, delta, most),
        }
        text.push('\n');
    }
    text
}

/// Each side on a line of its own, the distance on a third. Names lose their middle where a line does not fit.
fn lines(begin: &str, cells: &[Option<[String; 6]>; 2], delta: &str, width: usize) -> String {
    let indent = " ".repeat(begin.chars().count());
    let side = |begin: &str, cell: &Option<[String; 6]>| {
        let Some([parts @ .., name]) = cell else { return format!("{begin}{BAR}") };
        let known: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let line = format!("{begin}{BAR}{} ", known.join(" "));
        let room = width.saturating_sub(table::columns(&line)).max(LEAST);
        line + &table::cut_middle(name, room)
    };
    let mut text = format!("{}\n{}", side(begin, &cells[0]).trim_end(), side(&indent, &cells[1]).trim_end());
    if !delta.is_empty() {
        text += &format!("\n{indent}{BAR}{delta}");
    }
    text
}

/// Cells of the example: padded or cut to a size.
fn fixed(
    rows: &[&Row<'_>],
    cells: &[[Option<[String; 6]>; 2]],
    deltas: &[String],
    digits: usize,
    size: usize,
) -> String {
    let [kind, dtype, shape, letters, op] = EXAMPLE;
    let mut text = String::new();
    for ((row, cells), delta) in rows.iter().zip(cells).zip(deltas) {
        let exact = |text: &str, width: usize| table::padded(&text.chars().take(width).collect::<String>(), width);
        let [one, other] = cells.each_ref().map(|cell| {
            let columns = [kind, dtype, shape, letters, op, usize::MAX];
            let cell = cell.as_ref().map(|cell| {
                let parts = cell.iter().zip(columns);
                parts
                    .map(|(part, width)| if width == usize::MAX { part.clone() } else { exact(part, width) })
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            exact(&cell.unwrap_or_default(), size)
        });
        let tail = if delta.is_empty() { String::new() } else { format!("{BAR}{delta}") };
        text += &format!("{:0digits$} {}{BAR}{one}{BAR}{other}{tail}\n", row.number, row.symbol.text());
    }
    text
}

fn side(cell: Option<&[String; 6]>, columns: &Columns, names: &HashMap<&str, String>) -> String {
    let Some(cell) = cell else { return " ".repeat(columns.iter().sum::<usize>() + columns.len() - 1) };
    let parts = cell.iter().zip(columns).enumerate().map(|(at, (part, &width))| {
        let name = names.get(part.as_str()).filter(|_| at == 5);
        let part = name.cloned().unwrap_or_else(|| table::cut(part, width));
        table::padded(&part, width)
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Columns of the longest of each.
fn needed(cells: &[[Option<[String; 6]>; 2]]) -> Columns {
    let mut columns = Columns::default();
    for cell in cells.iter().flatten().flatten() {
        for (width, part) in columns.iter_mut().zip(cell) {
            *width = (*width).max(table::columns(part));
        }
    }
    columns
}

/// At least those of the example.
fn padded(needed: Columns) -> Columns {
    let mut columns = needed;
    columns.iter_mut().zip(EXAMPLE).for_each(|(width, least)| *width = (*width).max(least));
    columns
}

/// The columns in less room: first what the example leaves free, then operators and names. None where types would be cut.
fn shrunk(needed: Columns, room: usize) -> Option<Columns> {
    let mut columns = padded(needed);
    let total = |columns: &Columns| columns.iter().sum::<usize>() + columns.len() - 1;
    while total(&columns) > room {
        let free = (0..columns.len()).filter(|&at| columns[at] > needed[at]).max_by_key(|&at| columns[at] - needed[at]);
        let cut = || [4, 5].into_iter().filter(|&at| columns[at] > LEAST).max_by_key(|&at| columns[at]);
        columns[free.or_else(cut)?] -= 1;
    }
    Some(columns)
}

/// Both sides, named as their user calls them where that is known.
fn cells_of(row: &Row<'_>) -> [Option<[String; 6]>; 2] {
    [0, 1].map(|at| {
        let [kind, _, shape, signature, op, name] = cell(row.sides[at]?);
        let name = row.called[at].map_or(name, table::escape);
        let dtype = row.dtype(at).unwrap_or_default();
        Some([kind, dtype, shape, signature, op, name])
    })
}

fn cell(result: &RunResult) -> [String; 6] {
    let dtype = result.dtype.map(|dtype| dtype.to_string()).unwrap_or_default();
    [
        kind_text(result.kind).to_owned(),
        dtype,
        table::escape(&shape_text(result.shape.as_deref())),
        result.signature.clone(),
        table::escape(&result.op_type),
        table::escape(&result.name),
    ]
}

/// `a=1.00e-7 r=2.00e-8`, after the example: max|Δ|, and max|Δ|/max|r|; with `!` outside tolerance, and whom it is about.
fn delta(row: &Row<'_>) -> String {
    let Some(verdict) = &row.verdict else { return String::new() };
    let words = match &verdict.metrics {
        Some(metrics) => format!("a={} r={}", distance_text(metrics.max_abs), distance_text(metrics.max_rel_to_max)),
        None => match (&verdict.verdict, &row.standing) {
            (_, Standing::Alone) => "no counterpart".to_owned(),
            (verdict, _) if verdict.is_pass() => "same bits".to_owned(),
            (Verdict::Mismatch, _) if row.is_exact() => BITS_DIFFER.to_owned(),
            (Verdict::Mismatch, _) => "shapes differ".to_owned(),
            _ => "not compared".to_owned(),
        },
    };
    let loud = if verdict.verdict == Verdict::Mismatch { " !" } else { "" };
    let about = match &row.standing {
        Standing::Alone if verdict.metrics.is_some() => " ?".to_owned(),
        Standing::Pair | Standing::Alone => String::new(),
        Standing::Transposed(axes) => {
            format!(" T({})", axes.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
        }
        Standing::Elsewhere(rows) => {
            let [one, other] = rows.map(|row| row.map_or_else(|| "-".to_owned(), |row| row.to_string()));
            format!(" as {one}|{other}")
        }
    };
    words + loud + &about
}

/// What the outputs come to: `outputs: 2 of 2 match, worst a=1.00e-7 r=2.00e-8 ("y" of row 7)`.
pub(super) fn outputs(rows: &[Row<'_>], counts: &Counts) -> String {
    let outputs = Outputs::of(rows);
    let Outputs { all, matched, mismatch, empty, alone, of_two_types, of_nan, in_order, worst } = outputs;
    let mut text = format!("outputs: {matched} of {all} match");
    let not_read = outputs.not_read();
    let told = [
        (mismatch, "differ"),
        (alone, "in one model alone"),
        (not_read, "not compared"),
        (empty, "without elements"),
        (of_two_types, "of two types"),
    ];
    for (n, what) in told {
        text += &if n > 0 { format!(", {n} {what}") } else { String::new() };
    }
    if !in_order {
        text += ", in another order";
    }
    if let Some(row) = worst.and_then(|number| rows.get(number - 1)) {
        let name = row.sides.iter().flatten().next().map_or("", |side| side.name.as_str());
        text += &format!(", worst {} ({} of row {})", delta(row), table::escape(&quoted(name)), row.number);
    }
    if counts.matched == 0 && counts.empty > 0 {
        text += "; nothing was compared: no value has elements";
    }
    if of_nan > 0 {
        text +=
            &format!("; {of_nan} of NaN throughout in both, which says nothing: give feeds that the model is made for");
    }
    text + "\n"
}

/// Every column of every row, after RFC 4180.
pub(super) fn csv(rows: &[Row<'_>]) -> String {
    let of_side = ["kind", "dtype", "shape", "signature", "op_type", "name"];
    let sides = ["first", "second"].iter().flat_map(|side| of_side.map(|name| format!("{side}_{name}")));
    let mut header = vec!["row".to_owned(), "symbol".to_owned()];
    header.extend(sides);
    header.extend(["distance", "max_abs", "max_rel_to_max", "verdict", "reason"].map(str::to_owned));
    let mut text = line(&header);
    for row in rows {
        let mut cells = vec![row.number.to_string(), row.symbol.text().to_owned()];
        for (at, side) in row.sides.iter().enumerate() {
            let parts = side.map(|side| {
                let [kind, _, shape, signature, op, name] = cell(side);
                [kind, row.dtype(at).unwrap_or_default(), shape, signature, as_text(&op), as_text(&name)]
            });
            cells.extend(parts.unwrap_or_default());
        }
        let metrics = row.verdict.as_ref().and_then(|verdict| verdict.metrics.as_ref());
        let numbers =
            metrics.map(|metrics| [metrics.max_abs, metrics.max_rel_to_max].map(|value| format!("{value:e}")));
        cells.push(row.distance.map(|distance| distance.to_string()).unwrap_or_default());
        cells.extend(numbers.unwrap_or_default());
        let word = row.verdict.as_ref().map_or("", |verdict| verdict.verdict.words().0);
        cells.extend([word.to_owned(), as_text(row.reason().unwrap_or_default())]);
        text += &line(&cells);
    }
    text
}

/// A name that begins as a formula does is none to a program that computes.
fn as_text(text: &str) -> String {
    let text = printable(text);
    if text.len() > 1 && text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}

fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::align::rows::Symbol;
    use crate::compare::{Dim, Kind};
    use crate::tensor::DType;

    fn result(kind: Kind, dims: &[i64], op_type: &str, name: &str) -> RunResult {
        RunResult {
            kind,
            dtype: Some(DType::I64),
            shape: Some(dims.iter().map(|&dim| Dim::Known(dim)).collect()),
            signature: "USAA".to_owned(),
            op_type: op_type.to_owned(),
            name: name.to_owned(),
        }
    }

    fn row<'a>(number: usize, symbol: Symbol, sides: [Option<&'a RunResult>; 2]) -> Row<'a> {
        let [called, exact] = [[None; 2]; 2];
        Row {
            number,
            symbol,
            sides,
            places: (None, None),
            called,
            exact,
            distance: None,
            verdict: None,
            standing: Standing::Pair,
        }
    }

    #[test]
    fn a_row_is_that_of_the_published_example() {
        let [one, other] = ["ortshared_7_1_2_0_token_175", "ortshared_7_1_2_0_token_99"]
            .map(|name| result(Kind::Initializer, &[2], "", name));
        let same = row(1, Symbol::Same, [Some(&one), Some(&other)]);
        let gone = row(2, Symbol::Gone, [Some(&one), None]);
        let expected = "\
            001 = | INITIA int64    1:2                  USAA                 ortshared_7_1_2_0_token_175      | \
            INITIA int64    1:2                  USAA                 ortshared_7_1_2_0_token_99";
        let lines = text(&[&same, &gone], Width::Cell(90));
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0].trim_end(), expected);
        assert_eq!(lines[1].trim_end(), format!("{} |", expected[..98].replace("001 =", "002 -")));
        assert!(lines.iter().all(|line| line.chars().count() == 8 + 90 + 3 + 90));
    }

    #[test]
    fn names_give_way_and_then_each_side_has_its_line() {
        let one = result(Kind::Result, &[2, 3], "LayerNormalization", &"long_".repeat(20));
        let same = row(7, Symbol::Same, [Some(&one), Some(&one)]);
        let fitted = text(&[&same], Width::Row(130));
        assert!(fitted.lines().count() == 1 && fitted.lines().all(|line| line.chars().count() <= 130), "{fitted}");
        assert!(fitted.starts_with("007 = | RESULT int64 2:2x3") && fitted.contains('…'), "{fitted}");
        let narrow = text(&[&same], Width::Row(80));
        assert_eq!(narrow.lines().count(), 2, "{narrow}");
        assert!(text(&[&same], Width::Natural).contains(&"long_".repeat(20)));
    }

    #[test]
    fn a_name_ends_no_line_and_is_no_formula() {
        let evil = result(Kind::Result, &[1], "Add", "=a\n999 = | b,\"c\"");
        let same = row(1, Symbol::Same, [Some(&evil), Some(&evil)]);
        assert_eq!(text(&[&same], Width::Natural).lines().count(), 1);
        let csv = csv(&[same]);
        assert_eq!(csv.lines().count(), 2);
        assert!(csv.contains("\"'=a\\n999 = | b,\"\"c\"\"\""), "{csv}");
    }
}
