//! Verdicts and tolerances as they travel.

use crate::compare::{Noise, Policy, TensorVerdict, Tolerance, Verdict};
use crate::dump::NodeRow;
use crate::protocol::control::{NodeVerdictSummary, NoiseTerms, ToleranceTerms, VerdictKind, VerdictSummary};
use crate::tensor::DType;

/// One summary a verdict.
pub fn summaries(verdicts: &[TensorVerdict]) -> Vec<VerdictSummary> {
    verdicts.iter().map(summary).collect()
}

/// A verdict as it travels.
pub fn summary(verdict: &TensorVerdict) -> VerdictSummary {
    let (kind, reason) = match &verdict.verdict {
        Verdict::Match => (VerdictKind::Match, String::new()),
        Verdict::Noise => (VerdictKind::Noise, verdict.to_string()),
        Verdict::Tie(reason) => (VerdictKind::Tie, reason.clone()),
        Verdict::OpenOrder(reason) => (VerdictKind::OpenOrder, reason.clone()),
        Verdict::Mismatch => (VerdictKind::Mismatch, verdict.to_string()),
        Verdict::NotCompared(reason) => (VerdictKind::NotCompared, reason.clone()),
        Verdict::Failed(reason) => (VerdictKind::Failed, reason.clone()),
    };
    let metrics = verdict.metrics.as_ref();
    let json = metrics.map(|metrics| serde_json::to_string(metrics).expect("metrics have string keys and finite text"));
    VerdictSummary {
        name: verdict.name.clone(),
        kind,
        reason,
        metrics_json: json.unwrap_or_default(),
        max_abs: metrics.map_or(0., |metrics| metrics.max_abs),
        max_rel_to_max: metrics.map_or(0., |metrics| metrics.max_rel_to_max),
        outside: metrics.map_or(0, |metrics| metrics.outside),
        noise_json: verdict.noise.as_ref().map(noise_json).unwrap_or_default(),
    }
}

fn noise_json(noise: &Noise) -> String {
    serde_json::to_string(noise).expect("noise has string keys and finite text")
}

/// Both verdicts of a node, and what is born in it.
pub fn of_row(row: &NodeRow) -> NodeVerdictSummary {
    let births = if row.births.is_empty() { None } else { Some(&row.births) };
    let json = births.map(|births| serde_json::to_string(births).expect("births have string keys and finite text"));
    let births_json = json.unwrap_or_default();
    NodeVerdictSummary { local: summary(&row.local), cumulative: summary(&row.cumulative), births_json }
}

/// A policy as it came.
pub fn policy(given: Option<ToleranceTerms>, through: Option<DType>, noise: Option<NoiseTerms>) -> Policy {
    let given = given.map(|ToleranceTerms { atol, rtol, scale, equal_nan }| Tolerance { atol, rtol, scale, equal_nan });
    let noise_factor = noise.map_or(Noise::FACTOR, |noise| noise.factor);
    Policy { given, through, noise_factor }
}
