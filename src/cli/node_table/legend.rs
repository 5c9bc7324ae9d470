//! What marks and columns of a table of nodes mean.

use super::columns::{Line, columns};
use super::from_dump::Found;
use super::rows::Rows;
use super::text::fitting;
use crate::cli::table;

const MARKS: &str = "= match, ≈ noise, ~ it drifted only, ! its kernel differs, ? not compared, x failed";

/// (head of a column, what it is) of those whose head alone does not say it.
const COLUMNS: [(&str, &str); 14] = [
    ("#", "place among the FX nodes"),
    ("onnx#", "place among the ONNX nodes"),
    ("local", "the node's own kernel on eager's inputs, as max|Δ|/max|r|"),
    ("drift", "the value as it came out of the whole part, as max|Δ|/max|r|"),
    ("local|Δ|", "the same as max|Δ|"),
    ("drift|Δ|", "the same as max|Δ|"),
    ("nan", "elements that are NaN on one side only"),
    (">0.1", "elements that differ by more"),
    (">0.01", "elements that differ by more"),
    ("outside", "elements outside tolerance"),
    ("noise", "what float64 says of the kernel"),
    ("drift noise", "what float64 says of the value as it came"),
    ("×eager", "the kernel's error against float64, as a multiple of eager's"),
    ("×eager drift", "the same of the value as it came"),
];

/// Marks, and the columns that [`text_of`](super::text_of) shows of these tables; nothing where it shows no row. wide: with
/// every column, under its name in CSV.
pub(crate) fn legend(found: &[Found], rows: &Rows, wide: bool) -> String {
    let width = table::width();
    let lines: Vec<Line<'_>> = found.iter().flat_map(|found| found.lines(rows)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let shown = fitting(&lines, columns(), wide, width);
    let is_shown = |(head, _): &&(&str, &str)| shown.iter().any(|column| column.head == *head);
    let told = COLUMNS.iter().filter(is_shown).filter(|_| !wide).map(|(head, what)| format!("{head}: {what}"));
    let text = std::iter::once(MARKS.to_owned()).chain(told).collect::<Vec<_>>().join("; ");
    "\n".to_owned() + &table::paragraph(&text, width)
}
