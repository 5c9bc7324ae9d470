//! What a search came to.

use serde::{Deserialize, Serialize};

use super::judge::Judged;
use crate::base::ids::ValueName;

/// Name and version of the form.
pub const SCHEMA: &str = "rust_ort/keep/1";

/// What a search in a part came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Name and version of this form.
    pub schema: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Numbers of the calls.
    pub steps: Vec<u64>,
    /// "float64", or "float32" where an operator has no kernel of float64: what errors are measured from.
    pub reference: String,
    /// What is rounded, those first that make most of the error; not all where `complete` is false.
    pub culprits: Vec<Culprit>,
    /// What was found.
    pub found: Found,
    /// Outputs that are floats; of several calls, the worst of each.
    pub outputs: Vec<Output>,
    /// Those that are not near enough with everything kept: their own rounding takes them further, or makes them infinite.
    pub beyond: Vec<ValueName>,
    /// Inputs that hold infinity or NaN in some call: what came before has overflowed, and with rules for that would have
    /// given others.
    pub infinite_inputs: Vec<ValueName>,
    /// Runs of models.
    pub n_runs: u64,
    /// Time.
    pub seconds: f64,
    /// False: the budget ended before the search did.
    pub complete: bool,
    /// What is to be known of it.
    pub notes: Vec<String>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Found {
    /// Every output is near enough as it is.
    Within,
    /// With these kept in float32 every output is near enough but those that nothing brings there.
    Rules {
        /// Patterns for `precision_rules`.
        float32: Vec<String>,
    },
    /// No output that is not near enough is so with everything kept.
    Impossible,
    /// The budget ended before a set was found.
    Unknown,
    /// No output is a float: none has an error that could be small or large.
    Unjudged,
}

/// Roundings that one rule turns off, and what they do to the outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// The rule.
    pub pattern: String,
    /// What is rounded.
    pub values: Vec<ValueName>,
    /// FX operator; of several, that of the first.
    pub op: String,
    /// Path of the module.
    pub module: String,
    /// Line of the user's code.
    pub source: String,
    /// Of the squared error of the output, the part that these roundings alone make; of several outputs, where it is
    /// largest. Of independent roundings they add up to 1.
    pub share: f64,
    /// That output.
    pub output: ValueName,
    /// Elements of outputs that these roundings alone make infinite or NaN.
    pub n_infinite: u64,
}

/// An output's error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Its name.
    pub name: ValueName,
    /// What it is, such as `GradAOTOutput layer.weight`; or empty.
    pub role: String,
    /// As it is compiled without rules.
    pub before: Judged,
    /// As it is compiled with the rules that were found; None where none were.
    pub after: Option<Judged>,
    /// As it is compiled with everything kept.
    pub everything: Judged,
}
