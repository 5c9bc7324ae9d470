//! What to study, and on what.

use std::path::PathBuf;

use crate::study::{gemm, layernorm, reduction};
use crate::tensor::DType;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) study: Which,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Which {
    /// Gemm, or MatMul and Add: eight ways to compute A·X + B, each against each, and what the bias does to it
    Gemm(Gemm),
    /// LayerNormalization, MatMul and Add by ONNX Runtime, by libtorch, and mixed: which kernel makes the difference
    Layernorm(Layernorm),
    /// Sums of the same numbers in other orders, by each runtime with one thread and several, and by hand
    Reduction(Reduction),
}

impl Which {
    pub(super) fn common(&self) -> &Common {
        match self {
            Which::Gemm(args) => &args.common,
            Which::Layernorm(args) => &args.common,
            Which::Reduction(args) => &args.common,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Gemm {
    /// Rows of A
    #[arg(long, default_value_t = gemm::Settings::SIZE as u32, value_parser = size())]
    pub(super) rows: u32,
    /// Columns of A, rows and columns of X
    #[arg(long, default_value_t = gemm::Settings::SIZE as u32, value_parser = size())]
    pub(super) size: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, clap::Args)]
pub(super) struct Layernorm {
    /// First dimension of X
    #[arg(long, default_value_t = layernorm::Settings::BATCH as u32, value_parser = size())]
    pub(super) batch: u32,
    /// Second dimension of X
    #[arg(long, default_value_t = layernorm::Settings::ROWS as u32, value_parser = size())]
    pub(super) rows: u32,
    /// Third dimension of X, which is normalized
    #[arg(long, default_value_t = layernorm::Settings::SIZE as u32, value_parser = size())]
    pub(super) size: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, clap::Args)]
pub(super) struct Reduction {
    /// Numbers that are added up
    #[arg(long, default_value_t = reduction::Settings::SIZE as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) size: u32,
    /// Orders in which they are added up
    #[arg(long, alias = "rows", default_value_t = reduction::Settings::ORDERS as u32, value_parser = size())]
    pub(super) orders: u32,
    /// Leave out what this program itself adds up
    #[arg(long, hide = true)]
    pub(super) runtimes_only: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// Element types, with commas between them: f32, f16, bf16
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = element_type)]
    dtype: Vec<DType>,
    /// ONNX Runtime's execution provider: cpu, cuda, or its own name of one
    #[arg(long, default_value = "cpu")]
    pub(super) provider: String,
    /// libonnxruntime.so* to load [default: RUST_ORT_ONNXRUNTIME, else that of the onnxruntime installed beside this program,
    /// else beside the libtorch that it has loaded]
    #[arg(long, value_name = "LIB")]
    pub(super) onnxruntime: Option<PathBuf>,
    /// Threads of each runtime's pool; 0: one a core
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(super) threads: u32,
    /// Other numbers for another seed
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Draws of the numbers, of this seed and those that follow it: a finding reproduces where each draw says so; what is
    /// printed and drawn is of the first
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) draws: u32,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print CSV
    #[arg(long)]
    pub(super) csv: bool,
    /// Draw it into this file; one that is there is replaced. `-`: the picture in the place of the text
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Write what --json prints into this file, beside what is printed; one that is there is replaced
    #[arg(long, value_name = "FILE")]
    pub(super) result: Option<PathBuf>,
}

/// Of a matrix, that it fits the memory of a small machine.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=16_384)
}

/// The names of `--dtype`.
const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)];

fn element_type(name: &str) -> Result<DType, String> {
    let known = DTYPES.iter().find(|(short, dtype)| *short == name || dtype.torch_name() == name);
    known.map(|&(_, dtype)| dtype).ok_or_else(|| "expected some of f32, f16, bf16".to_owned())
}

impl Common {
    /// Each once, in the order in which they were given.
    pub(super) fn dtypes(&self) -> Vec<DType> {
        let mut each = Vec::new();
        for &dtype in &self.dtype {
            if !each.contains(&dtype) {
                each.push(dtype);
            }
        }
        each
    }

    /// As they are given to the option.
    pub(super) fn dtype_names(&self) -> String {
        self.dtypes().iter().map(|dtype| dtype.torch_name()).collect::<Vec<_>>().join(",")
    }
}
