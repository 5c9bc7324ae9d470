//! Results as CSV: one header, full precision; an empty cell is what was not run.

use crate::compare::{ABOVE, MaxDiff};
use crate::study::{Number, gemm, layernorm, reduction};

/// With quotes where a comma, a quote or a line's end is in it.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn line(cells: &[String]) -> String {
    cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(",") + "\n"
}

fn header(names: &[&str]) -> String {
    line(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
}

/// Each pair of each matrix.
pub(super) fn gemm(study: &gemm::Study) -> String {
    let mut text = header(&["numbers", "dtype", "has_cast", "widened", "reference", "candidate", "max_abs"]);
    for part in &study.parts {
        let numbers = format!("{:?}", part.numbers).to_lowercase();
        for (reference, row) in part.matrix.labels.iter().zip(&part.matrix.max_abs) {
            for (candidate, value) in part.matrix.labels.iter().zip(row) {
                text += &line(&[
                    numbers.clone(),
                    part.dtype.to_string(),
                    part.has_cast.to_string(),
                    part.widened.to_string(),
                    reference.clone(),
                    candidate.clone(),
                    value.map(|Number(value)| value.to_string()).unwrap_or_default(),
                ]);
            }
        }
    }
    text
}

/// Each pair of models.
pub(super) fn layernorm(study: &layernorm::Study) -> String {
    let above: Vec<String> = ABOVE.iter().map(|threshold| format!(">{threshold}")).collect();
    let mut names = vec!["provider", "dtype", "reference", "candidate", "abs", "rel", "sum", "n"];
    names.extend(above.iter().map(String::as_str));
    let mut text = header(&names);
    for part in &study.parts {
        let mut pair = |reference: &str, candidate: &str, diff: &Option<MaxDiff>| {
            let mut cells = vec![study.setup.provider.clone(), part.dtype.to_string()];
            cells.extend([reference.to_owned(), candidate.to_owned()]);
            match diff {
                Some(diff) => {
                    cells.extend([diff.abs, diff.rel, diff.sum].map(|value| value.to_string()));
                    cells.push(diff.n.to_string());
                    cells.extend(diff.rep.0.map(|count| count.to_string()));
                }
                None => cells.resize(names.len(), String::new()),
            }
            text += &line(&cells);
        };
        pair("torch", "ort", &part.difference);
        for mixed in &part.mixed {
            pair("ort", &mixed.model, &mixed.diff_ort);
            pair("torch", &mixed.model, &mixed.diff_torch);
        }
    }
    text
}

/// Each way of each set of numbers.
pub(super) fn reduction(study: &reduction::Study) -> String {
    let mut text = header(&[
        "dtype",
        "distribution",
        "way",
        "threads",
        "exact",
        "lowest",
        "highest",
        "spread",
        "relative_spread",
        "error",
        "relative_error",
        "n_distinct",
        "repeats",
        "bits",
    ]);
    for sums in &study.sums {
        let numbers =
            [sums.exact, sums.lowest, sums.highest, sums.spread, sums.relative_spread, sums.error, sums.relative_error];
        let mut cells = vec![sums.dtype.to_string(), sums.distribution.clone(), sums.way.clone()];
        cells.push(sums.threads.map(|threads| threads.to_string()).unwrap_or_default());
        cells.extend(numbers.map(|Number(value)| value.to_string()));
        cells.extend([sums.n_distinct.to_string(), sums.repeats.to_string(), sums.bits.clone()]);
        text += &line(&cells);
    }
    text
}
