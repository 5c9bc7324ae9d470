//! What `rust-ort replay` is asked.

use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::cli::rerun;
use crate::cli::walls_argument::WallsArgument;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) what: rerun::Arguments,
    /// Look at these values of the model: all, or names of values or FX nodes
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(super) nodes: Vec<String>,
    /// Run each data set so many times
    #[arg(long, default_value = "1")]
    pub(super) repeat: NonZeroU32,
    /// Write a folder that shows the same with only onnx, numpy and onnxruntime: of the part, or with --nodes NAME of
    /// that node alone, judged by eager's values where they were dumped
    #[arg(long, value_name = "FOLDER")]
    pub(super) repro: Option<PathBuf>,
    /// Every output of every data set
    #[arg(long)]
    pub(super) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Arguments {
    pub(crate) fn walls(&self) -> &WallsArgument {
        &self.what.walls
    }
}
