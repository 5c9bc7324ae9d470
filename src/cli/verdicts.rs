//! Verdicts and their counts, in words and as tables.

use super::table::{Give, aligned};
use crate::compare::{Summary, TensorVerdict, Verdict, distance_text, elements};

/// All together; None of none.
pub(super) fn sum(totals: impl IntoIterator<Item = Summary>) -> Option<Summary> {
    totals.into_iter().reduce(Summary::with)
}

/// `3 match, 1 mismatch`; None where nothing was compared.
pub(super) fn counts(summary: Summary) -> Option<String> {
    let counts = summary.counts().into_iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}"));
    Some(counts.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

/// [`counts`] in a cell: `-` where nothing was compared.
pub(super) fn cell(summary: Option<Summary>) -> String {
    summary.and_then(counts).unwrap_or_else(|| "-".to_owned())
}

/// A verdict in a cell.
pub(super) fn said(verdict: &Verdict) -> String {
    match word(verdict) {
        (word, "") => word.to_owned(),
        (word, reason) => format!("{word}: {reason}"),
    }
}

/// The verdict, loud where it accuses, and its reason where it has one.
fn word(verdict: &Verdict) -> (&'static str, &str) {
    match verdict.words() {
        ("mismatch", reason) => ("MISMATCH", reason),
        ("failed", reason) => ("FAILED", reason),
        ("not_compared", reason) => ("not compared", reason),
        ("open_order", reason) => ("open order", reason),
        words => words,
    }
}

/// One row a tensor: verdict, distance, what would pass, where it is worst.
pub(super) fn table(verdicts: &[TensorVerdict], width: usize) -> String {
    let row = |verdict: &TensorVerdict| {
        let (word, reason) = word(&verdict.verdict);
        let mut row = vec![verdict.name.clone(), word.to_owned()];
        match &verdict.metrics {
            None => row.extend(["-", "-", "-", "-", reason].map(str::to_owned)),
            Some(metrics) => {
                let worst = metrics.worst.as_ref().map_or_else(String::new, |worst| {
                    let [reference, candidate] = elements(worst.reference, worst.candidate);
                    format!("{:?}: {candidate} for {reference}", worst.at)
                });
                row.extend([
                    format!("{}/{}", metrics.outside, metrics.n),
                    distance_text(metrics.max_abs),
                    distance_text(metrics.max_rel_to_max),
                    distance_text(metrics.required.atol),
                    worst,
                ]);
            }
        }
        row
    };
    let rows: Vec<_> = verdicts.iter().map(row).collect();
    let header = ["name", "verdict", "outside", "max|Δ|", "/max|r|", "atol to pass", "worst, or why"];
    use Give::{End, Middle, Never};
    aligned(&header, &rows, &[Middle, Never, Never, Never, Never, Never, End], width)
}
