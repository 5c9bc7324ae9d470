//! `rust-ort widen`: a model of half precision for a runtime without arithmetic of it.

use std::path::PathBuf;

use serde_json::json;

use super::answer::tell;
use super::exit::Outcome;
use crate::onnx;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A model (.onnx)
    model: PathBuf,
    /// Where the result goes; replaced when it is there
    output: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let model = onnx::load(&args.model)?;
    // Without FX names every operator rounds its own result.
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let values: Vec<String> = nodes.flat_map(|node| &node.output).filter(|name| !name.is_empty()).cloned().collect();
    let widened = onnx::widen(&model, &values)?;
    let output = args.output.display();
    let words = match &widened {
        Some(_) => {
            format!("{output}: half precision computes in float32 where ONNX Runtime's CPU provider has no kernel\n")
        }
        None => format!("{output}: as it was; no node needs another type\n"),
    };
    onnx::save(widened.as_ref().unwrap_or(&model), &args.output)?;
    tell("widen", args.json, json!({ "output": args.output, "widened": widened.is_some() }), &words)
}
