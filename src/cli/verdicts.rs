//! Verdicts and their counts, in words and as tables.

use std::cmp::Ordering;

use super::table::{Give, MOST_ROWS, counted, hidden, paragraph, roomy};
use crate::compare::{Summary, TensorVerdict, Verdict, distance_text, elements, summary};

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
    rows(&verdicts.iter().map(|verdict| ("", verdict)).collect::<Vec<_>>(), width)
}

/// What tells most of verdicts, each with the place that it is of: those that do not match, the worst first, and counts of
/// the rest; then why what was not compared was not, and what failed did. `what`: one of them, in words.
pub(super) fn brief(verdicts: &[(String, &TensorVerdict)], what: &str, width: usize) -> String {
    let is_telling = |verdict: &Verdict| !matches!(verdict, Verdict::Match | Verdict::NotCompared(_));
    let mut telling: Vec<_> = verdicts
        .iter()
        .filter(|(_, verdict)| is_telling(&verdict.verdict))
        .map(|(place, one)| (place.as_str(), *one))
        .collect();
    telling.sort_by(|(_, one), (_, other)| badness(other).partial_cmp(&badness(one)).unwrap_or(Ordering::Equal));
    telling.truncate(MOST_ROWS);
    let all = summary(verdicts.iter().map(|(_, verdict)| *verdict)).counts();
    let shown = summary(telling.iter().map(|(_, verdict)| *verdict)).counts();
    let counts = all.into_iter().zip(shown).map(|((word, all), (_, shown))| (word, all - shown));
    let table = if telling.is_empty() { String::new() } else { rows(&telling, width) };
    table + &hidden(telling.len(), counts, what) + &reasons(verdicts.iter().map(|(_, verdict)| *verdict), width)
}

/// By this the worst comes first: what failed, what mismatches, what is right all the same; of each what differs most of
/// its size, NaN above all.
fn badness(verdict: &TensorVerdict) -> (u8, f64) {
    let kind = match &verdict.verdict {
        Verdict::Failed(_) => 2,
        Verdict::Mismatch => 1,
        _ => 0,
    };
    let distance = verdict.metrics.as_ref().map_or(-1., |metrics| metrics.max_rel_to_max);
    (kind, if distance.is_nan() { f64::INFINITY } else { distance })
}

/// Why verdicts were not compared or failed: each reason once, in full, and how many there are of it.
fn reasons<'a>(verdicts: impl Iterator<Item = &'a TensorVerdict>, width: usize) -> String {
    let reasons = verdicts.filter_map(|verdict| match &verdict.verdict {
        Verdict::NotCompared(reason) => Some(("not compared", reason)),
        Verdict::Failed(reason) => Some(("failed", reason)),
        _ => None,
    });
    let told = |((word, reason), n)| paragraph(&format!("{word}, {n}: {reason}"), width);
    counted(reasons).into_iter().map(told).collect()
}

/// A column of places where there are any.
fn rows(verdicts: &[(&str, &TensorVerdict)], width: usize) -> String {
    let with_place = verdicts.iter().any(|(place, _)| !place.is_empty());
    let from = usize::from(!with_place);
    let row = |(place, verdict): &(&str, &TensorVerdict)| {
        let (word, reason) = word(&verdict.verdict);
        let mut row = vec![(*place).to_owned(), verdict.name.clone(), word.to_owned()];
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
        row.split_off(from)
    };
    let rows: Vec<_> = verdicts.iter().map(row).collect();
    let header = ["of", "name", "verdict", "outside", "max|Δ|", "/max|r|", "atol to pass", "worst, or why"];
    use Give::{End, Middle, Never};
    let gives = [Middle, Middle, Never, Never, Never, Never, Never, End];
    let rooms = [0, 0, 0, 1, 0, 0, 2, 0];
    roomy(&header[from..], &rows, &gives[from..], &rooms[from..], width)
}
