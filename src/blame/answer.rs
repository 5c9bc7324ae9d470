//! What an examination came to.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::local_error::Own;
use super::repetition::Again;
use crate::base::ids::ValueName;
use crate::base::quoted::quoted;
use crate::compare::{Summary, TensorVerdict, Verdict, distance_text, summary};

/// Name and version of the form.
pub const SCHEMA: &str = "rust_ort/blame/1";

/// What an examination of a part in one call came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Name and version of this form.
    pub schema: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// Outputs outside tolerance, as they came out.
    pub complaints: Vec<Complaint>,
    /// The other outputs, by why they are as right as eager's.
    #[serde(default)]
    pub right: Summary,
    /// Who is to blame.
    pub culprit: Culprit,
    /// Who is to blame beside them, for other outputs or another part of the error.
    pub beside: Vec<Culprit>,
    /// Nodes by their share, largest first: those that are wrong, and others whose own error was looked at.
    pub nodes: Vec<Contribution>,
    /// Values that, when they are eager's, bring the outputs that are followed within tolerance; no smaller set of them does. None where
    /// none does, or where none was sought.
    pub smallest: Option<Vec<ValueName>>,
    /// Runs of models.
    pub n_runs: u64,
    /// Time.
    pub seconds: f64,
    /// False: the budget ended before everything was looked at, or what was found is too little to be the answer.
    pub complete: bool,
    /// What could not be looked at, and why.
    pub notes: Vec<String>,
    /// A node that differs from eager where no output is outside tolerance: whoever was told that it is wrong is not told
    /// that all is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong_alone: Option<String>,
}

/// An output outside tolerance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Complaint {
    /// What it is, such as `GradAOTOutput layer.weight`; or empty.
    pub role: String,
    /// As it came out, against eager.
    pub as_ran: TensorVerdict,
    /// With nothing optimized, on eager's inputs; None where that was not run.
    pub unoptimized: Option<TensorVerdict>,
}

/// Who is to blame for the outputs' error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Culprit {
    /// Nobody, and why.
    Nobody {
        /// Why.
        why: String,
    },
    /// What the part was given: on eager's inputs its outputs are within tolerance.
    Inputs {
        /// Those that differ from eager's.
        names: Vec<ValueName>,
    },
    /// Something that changes the model between the export and the run.
    Optimizer {
        /// Names that, turned off together, bring the outputs within tolerance.
        names: Vec<String>,
        /// Which kind of thing these are.
        what: OptimizerKind,
        /// Nodes of the optimized model that differ from eager on eager's inputs, and the FX values behind them.
        fused: Vec<Fused>,
    },
    /// The first of the nodes.
    Node {
        /// FX name.
        name: ValueName,
        /// What of it is wrong.
        layer: Layer,
    },
}

/// What changes a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Rewrites of ours: option `disable_passes`.
    Pass,
    /// Graph optimizers of ONNX Runtime: session option `optimization.disable_specified_optimizers`.
    Optimizer,
    /// Some of both.
    Both,
    /// Something of an optimization level that has no name: option `ort_optimization`.
    Level,
}

/// A node of the optimized model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fused {
    /// Operator.
    pub op: String,
    /// The value it gives, which eager has too.
    pub value: ValueName,
    /// FX values that it computes on the way.
    pub instead_of: Vec<ValueName>,
    /// Its value on eager's inputs against eager's.
    pub verdict: TensorVerdict,
}

/// What of a node is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The ONNX nodes say something else than the FX node: in float64 they are as far from eager.
    Exporter,
    /// The ONNX nodes are right in float64, the runtime's kernels are not.
    Kernel,
    /// Float64 does not tell, or there is none.
    Unknown,
}

/// A node's own error, and what it does to the outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// FX name of the value; of a node of several, the first.
    pub name: ValueName,
    /// All its values.
    pub values: Vec<ValueName>,
    /// FX operator.
    pub op: String,
    /// ONNX operators.
    pub onnx_ops: Vec<String>,
    /// Path of the module.
    pub module: String,
    /// Line of the user's code.
    pub source: String,
    /// Of the output's error, the part that its own error makes; of several outputs, where it is largest.
    pub share: f64,
    /// That output.
    pub output: ValueName,
    /// Its own kernels on eager's inputs against eager.
    pub local: TensorVerdict,
    /// What its own error is.
    pub own: Own,
    /// What of it is wrong; None where nothing is.
    pub layer: Option<Layer>,
    /// What it gave when it was run again; None where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

impl Answer {
    /// Whether somebody is blamed.
    pub fn blames(&self) -> bool {
        !matches!(self.culprit, Culprit::Nobody { .. })
    }

    /// Index of the answer over all: the first that names a node or an optimizer, else the first that blames inputs which
    /// came in wrong. None where nobody is blamed.
    pub fn telling<'a>(answers: impl IntoIterator<Item = &'a Self>) -> Option<usize> {
        let is_inputs = |answer: &Self| matches!(answer.culprit, Culprit::Inputs { .. });
        let blaming = answers.into_iter().enumerate().filter(|(_, answer)| answer.blames());
        blaming.min_by_key(|(_, answer)| is_inputs(answer)).map(|(at, _)| at)
    }
}

/// All answers counted as verdicts are: a mismatch where somebody is blamed, not compared where an examination is not
/// complete and blames nobody.
pub fn counted(answers: &[Answer]) -> Summary {
    let verdict = |answer: &Answer| match (answer.blames(), answer.complete) {
        (true, _) => {
            TensorVerdict { name: answer.graph.clone(), verdict: Verdict::Mismatch, metrics: None, noise: None }
        }
        (false, true) => {
            TensorVerdict { name: answer.graph.clone(), verdict: Verdict::Match, metrics: None, noise: None }
        }
        (false, false) => TensorVerdict::not_compared(&answer.graph, "not complete"),
    };
    summary(&answers.iter().map(verdict).collect::<Vec<_>>())
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Exporter => "exporter: its ONNX nodes compute something else, in float64 too",
            Layer::Kernel => "kernel: its ONNX nodes are right in float64",
            Layer::Unknown => "exporter or kernel: float64 does not tell",
        })
    }
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OptimizerKind::Pass => "rewrite of rust_ort",
            OptimizerKind::Optimizer => "optimizer of ONNX Runtime",
            OptimizerKind::Both => "rewrites and optimizers",
            OptimizerKind::Level => "optimization level",
        })
    }
}

/// One sentence: who, and what to do.
impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::Nobody { why } => write!(f, "nobody: {why}"),
            Culprit::Inputs { names } => {
                write!(f, "its inputs: on eager's values of {} the outputs are within tolerance", names.join(", "))
            }
            Culprit::Optimizer { names, what, fused } => {
                write!(f, "{what} {}", names.join(", "))?;
                for Fused { op, value, instead_of, .. } in fused {
                    write!(f, "; {op} gives {value:?} (of {}) wrongly", instead_of.join(", "))?;
                }
                match what {
                    OptimizerKind::Pass => {
                        let names = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
                        write!(f, "; disable_passes=({names},) avoids it")
                    }
                    OptimizerKind::Optimizer => write!(
                        f,
                        "; session_options={{\"optimization.disable_specified_optimizers\": {}}} avoids it",
                        quoted(&names.join(";"))
                    ),
                    OptimizerKind::Both => write!(f, "; disable_passes and session_options avoid it"),
                    OptimizerKind::Level => write!(f, "; ort_optimization=\"disable\" avoids it"),
                }
            }
            Culprit::Node { name, layer } => write!(f, "node {name} ({layer})"),
        }
    }
}

impl Contribution {
    /// "aten.mm.default at model.py:12".
    pub fn place(&self) -> String {
        [("", &self.op), ("in ", &self.module), ("at ", &self.source)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(before, text)| format!("{before}{text}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Its local error relative to the largest value, for people.
    pub fn error(&self) -> String {
        match (&self.local.metrics, &self.local.verdict) {
            (Some(metrics), _) => distance_text(metrics.max_rel_to_max),
            (None, Verdict::Failed(_)) => "failed".to_owned(),
            (None, _) => "-".to_owned(),
        }
    }
}
