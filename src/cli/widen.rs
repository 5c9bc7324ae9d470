//! `rust-ort widen`: a model of half precision for a runtime without arithmetic of it.

use std::path::PathBuf;

use serde_json::json;

use super::answer::{line, tell};
use super::exit::{Exit, Outcome, at};
use super::model_argument::files_of;
use super::output_file::OutputFile;
use crate::dump::reader;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, MissingKernels};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A model (.onnx)
    model: PathBuf,
    /// Where the result goes; a file that is there is replaced. `-`: to standard output
    output: PathBuf,
    /// For the CUDA provider: only what it has no kernel for, as sessions on CUDA get it
    #[arg(long)]
    cuda: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let read = match args.output.exists() {
        true => files_of(&args.model, &mut reader::load_model_alone(&args.model).map_err(at(&args.model))?),
        false => Vec::new(),
    };
    let output = OutputFile::at(&args.output, read)?;
    if args.json && output.is_stdout() {
        return Err("- and --json: standard output has one of them; name a file for the model".into());
    }
    if output.is_terminal() {
        return Err("-: a model is no text for a terminal; name a file, or a pipe to standard output".into());
    }
    let mut model = reader::load_model(&args.model).map_err(at(&args.model))?;
    if args.cuda {
        let widened = onnx::fit_kernels(&mut model, &MissingKernels::measured())?;
        return written(
            args,
            &output,
            &model,
            widened,
            "what ONNX Runtime's CUDA provider has no kernel for is done otherwise",
        );
    }
    // Without FX names every operator rounds its own result.
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let values: Vec<String> = nodes.flat_map(|node| &node.output).filter(|name| !name.is_empty()).cloned().collect();
    let widened = onnx::widen(&model, &values)?;
    let done = "half precision computes in float32 where ONNX Runtime's CPU provider has no kernel";
    written(args, &output, widened.as_ref().unwrap_or(&model), widened.is_some(), done)
}

fn written(args: &Arguments, file: &OutputFile, model: &ModelProto, widened: bool, done: &str) -> Outcome {
    let output = args.output.display();
    let words =
        line(format_args!("{output}: {}", if widened { done } else { "as it was; no node needs another type" }));
    file.write(&onnx::encoded(model)?)?;
    if file.is_stdout() {
        return Ok(Exit::Success);
    }
    tell("widen", args.json, json!({ "output": args.output, "widened": widened }), &words)
}
