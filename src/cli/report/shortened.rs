//! Verdicts as a report holds them: what it shows, and what it judges again by.

use serde_json::{Map, Value, json};

use crate::compare::{Metrics, Noise, TensorVerdict};
use crate::dump::NodeRow;

/// Fields of [`Metrics`] that a report does not show.
const METRICS_LEFT_OUT: [&str; 8] =
    ["dtype", "shape", "above", "max_diff", "first_outside", "reference_nan", "reference_inf", "mean_abs"];
/// Fields of [`Noise`] that it shows.
const NOISE_KEPT: [&str; 6] =
    ["kind", "ratio", "reference_error", "candidate_error", "reference_excess", "candidate_excess"];
/// Fields of a row of nodes that a report does not show.
const ROW_LEFT_OUT: [&str; 6] =
    ["onnx_index", "seq_nr", "reference_signature", "candidate_signature", "reference_ns", "candidate_ns"];

/// {"kind", "reason", "metrics", "noise"}.
pub(super) fn verdict(verdict: &TensorVerdict) -> Value {
    let (kind, reason) = verdict.verdict.words();
    let (metrics, noise) = (verdict.metrics.as_ref().map(metrics), verdict.noise.as_ref().map(noise));
    json!({ "kind": kind, "reason": reason, "metrics": metrics, "noise": noise })
}

fn metrics(metrics: &Metrics) -> Value {
    let mut value = json!(metrics);
    if let Some(fields) = value.as_object_mut() {
        METRICS_LEFT_OUT.iter().for_each(|key| drop(fields.remove(*key)));
    }
    value
}

fn noise(noise: &Noise) -> Value {
    let value = json!(noise);
    let kept = NOISE_KEPT.iter().filter_map(|key| Some(((*key).to_owned(), value.get(key)?.clone())));
    Value::Object(kept.collect::<Map<_, _>>())
}

/// A row of nodes, as `rust-ort sbs --json` has it.
pub(super) fn row(node: &NodeRow, mark: &str) -> Value {
    let mut row = json!(node);
    if let Some(fields) = row.as_object_mut() {
        ROW_LEFT_OUT.iter().for_each(|key| drop(fields.remove(*key)));
    }
    (row["local"], row["cumulative"]) = (verdict(&node.local), verdict(&node.cumulative));
    row["mark"] = mark.into();
    row
}
