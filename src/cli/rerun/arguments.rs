//! What is run again, and how: for every command that does.

use std::path::PathBuf;

use super::rules;
use crate::cli::data_sets;
use crate::cli::walls_argument::WallsArgument;
use crate::protocol::message::{Optimization, RuntimeRule};

#[derive(Debug, clap::Args)]
#[group(skip)] // its name would be that of the command's own arguments, which hold these
pub(crate) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    #[arg(value_parser = data_sets::named())]
    pub(crate) path: PathBuf,
    /// The data sets of this call only
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Execution provider; give it several times for several, the preferred one first
    /// [default: as when it ran]
    #[arg(long)]
    pub(crate) provider: Vec<String>,
    /// What runs it: ONNX Runtime, libtorch, or libtorch with every float in float64. libtorch is in rust-ort-torch alone
    #[arg(long, value_enum, default_value_t)]
    pub(crate) runtime: Which,
    /// Give nodes to a runtime: ort, torch or torch-f64, and a pattern (* and ?) of an operator, a node's name, or name,
    /// operator or module of an FX node. Several times for several rules: the first that fits a node decides
    /// [default: as when it ran, else all on ONNX Runtime]. libtorch is in rust-ort-torch alone
    #[arg(long, value_name = "RUNTIME:PATTERN", value_parser = rules::parse, conflicts_with = "runtime")]
    pub(crate) on: Vec<RuntimeRule>,
    /// Level of ONNX Runtime's graph optimizer: all, extended, basic, kernels or disable [default: as when it ran]
    #[arg(long, value_parser = optimization)]
    pub(crate) optimization: Option<Optimization>,
    /// libonnxruntime.so* to load [default: RUST_ORT_ONNXRUNTIME, else the one of the run where an executor of yours has
    /// loaded that very file, else the one of the Python environment that this program is installed in]
    #[arg(long, value_name = "LIB")]
    pub(crate) onnxruntime: Option<PathBuf>,
    /// Library of the model's custom operators; give it several times for several
    /// [default: as when it ran, where executors of yours have loaded those very files]
    #[arg(long, value_name = "LIB")]
    pub(crate) custom_op_library: Vec<PathBuf>,
    /// Threads of the runtime's pool; 0: one a core [default: as when it ran]
    #[arg(long)]
    pub(crate) threads: Option<u32>,
    #[command(flatten)]
    pub(crate) walls: WallsArgument,
}

/// A runtime, by the name that it has in the JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// ONNX Runtime
    #[default]
    Ort,
    /// libtorch, node by node
    Torch,
    /// As torch, every float in float64
    TorchF64,
}

fn optimization(name: &str) -> Result<Optimization, String> {
    let known = || Optimization::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Optimization::from_name(name).ok_or_else(|| format!("expected one of {}", known()))
}
