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
    let mut text = header(&["numbers", "dtype", "has_cast", "widened", "reference", "candidate", "max_abs", "differ"]);
    for part in &study.parts {
        let numbers = format!("{:?}", part.numbers).to_lowercase();
        let rows = part.matrix.max_abs.iter().zip(&part.matrix.differ);
        for (reference, (row, shares)) in part.matrix.labels.iter().zip(rows) {
            for (candidate, (value, share)) in part.matrix.labels.iter().zip(row.iter().zip(shares)) {
                text += &line(&[
                    numbers.clone(),
                    part.dtype.to_string(),
                    part.has_cast.to_string(),
                    part.widened.to_string(),
                    reference.clone(),
                    candidate.clone(),
                    value.map(|Number(value)| value.to_string()).unwrap_or_default(),
                    share.map(|Number(share)| share.to_string()).unwrap_or_default(),
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
            if mixed.diff_tf32.is_some() {
                pair(layernorm::ORT_TF32, &mixed.model, &mixed.diff_tf32);
            }
        }
    }
    text
}

/// Each way of each set of numbers: spreads of means and normalized vectors, then all of sums.
pub(super) fn reduction(study: &reduction::Study) -> String {
    const HEADER: [&str; 16] = [
        "function",
        "size",
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
    ];
    let mut text = header(&HEADER);
    for spread in &study.averages.spreads {
        let mut cells = vec![spread.function.name().to_owned(), spread.size.to_string(), spread.dtype.to_string()];
        cells.extend([spread.distribution.clone(), spread.way.clone()]);
        cells.resize(9, String::new());
        cells.extend([spread.spread.0, spread.relative.0].map(|value| value.to_string()));
        cells.resize(HEADER.len(), String::new());
        text += &line(&cells);
    }
    for sums in &study.sums {
        let numbers =
            [sums.exact, sums.lowest, sums.highest, sums.spread, sums.relative_spread, sums.error, sums.relative_error];
        let mut cells = vec!["sum".to_owned(), study.size.to_string(), sums.dtype.to_string()];
        cells.extend([sums.distribution.clone(), sums.way.clone()]);
        cells.push(sums.threads.map(|threads| threads.to_string()).unwrap_or_default());
        cells.extend(numbers.map(|Number(value)| value.to_string()));
        cells.extend([sums.n_distinct.to_string(), sums.repeats.to_string(), sums.bits.clone()]);
        text += &line(&cells);
    }
    text
}
