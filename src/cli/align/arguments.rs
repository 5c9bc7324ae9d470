//! What `rust-ort align` is asked.

use std::path::PathBuf;

use crate::cli::data_sets;
use crate::cli::tolerance_arguments::ToleranceArguments;
use crate::cli::walls_argument::WallsArgument;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A model (.onnx), or a folder with a model.onnx in it, such as a part of a dump: the reference
    #[arg(value_parser = data_sets::named())]
    pub(super) model1: PathBuf,
    /// Likewise: the candidate
    #[arg(value_parser = data_sets::named())]
    pub(super) model2: PathBuf,
    /// Feeds: a data set (a folder with input_0.pb, …), a part of a dump (its first whole data set), a .npz, .npy,
    /// .safetensors or .pb file. Twice: for each model its own
    /// [default: made up from the inputs' types and shapes]
    #[arg(long, value_name = "FILE_OR_FOLDER", value_parser = data_sets::named())]
    pub(super) feeds: Vec<PathBuf>,
    /// Number in the place of a named dimension, for feeds that are made up; give it several times for several
    #[arg(long, value_name = "NAME=N", value_parser = size, conflicts_with = "feeds")]
    pub(super) size: Vec<(String, i64)>,
    /// Seed of feeds and dimensions that are made up
    #[arg(long, default_value_t = 0, conflicts_with = "feeds")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) tolerance: ToleranceArguments,
    /// Columns of each model's cell, cut or padded, as the published example has them [default: as the terminal allows]
    #[arg(long, value_name = "N")]
    pub(super) column_size: Option<usize>,
    /// Every row
    #[arg(long)]
    pub(super) all: bool,
    /// Print JSON: every row
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print CSV: every row, one header, full precision
    #[arg(long)]
    pub(super) csv: bool,
    /// Execution provider; give it several times for several, the preferred one first
    #[arg(long, default_value = "CPUExecutionProvider")]
    pub(super) provider: Vec<String>,
    /// libonnxruntime.so* to load [default: RUST_ORT_ONNXRUNTIME, else the one of the Python environment that this program
    /// is installed in]
    #[arg(long, value_name = "LIB")]
    pub(super) onnxruntime: Option<PathBuf>,
    /// Library of the models' custom operators; give it several times for several
    #[arg(long, value_name = "LIB")]
    pub(super) custom_op_library: Vec<PathBuf>,
    /// Threads of the runtime's pool; 0: one a core
    #[arg(long, default_value_t = 0)]
    pub(super) threads: u32,
    #[command(flatten)]
    pub(super) walls: WallsArgument,
}

impl Arguments {
    pub(crate) fn walls(&self) -> &WallsArgument {
        &self.walls
    }
}

fn size(text: &str) -> Result<(String, i64), String> {
    let expected = || "expected NAME=N, N a number that is at least 0".to_owned();
    let (name, number) = text.rsplit_once('=').ok_or_else(expected)?;
    let number = number.parse().ok().filter(|&number: &i64| number >= 0).ok_or_else(expected)?;
    Ok((name.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn a_size_is_a_name_and_a_number() {
        assert_eq!(size("batch=2"), Ok(("batch".to_owned(), 2)));
        assert_eq!(size("a=b=0"), Ok(("a=b".to_owned(), 0)));
        for text in ["batch", "batch=", "batch=-1", "batch=x"] {
            assert!(size(text).unwrap_err().contains("NAME=N"), "{text}");
        }
    }
}
