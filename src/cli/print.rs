//! `rust-ort print`: a model's data flow as text.

use std::path::Path;

use serde_json::json;

use super::answer::{json_text, put};
use super::exit::{Exit, Failure, Outcome, at};
use super::model_argument::ModelArgument;
use super::provenance::Provenance;
use super::table;
use crate::dump::reader::{self, Place};
use crate::onnx::{self, TextOptions};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Element type and shape of what each node gives, as far as the model says
    #[arg(long)]
    shapes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let text = match args.model.place()? {
        Place::Tensor(path) => tensor_text(&path, args.json)?,
        _ => model_text(args)?,
    };
    put(&text)?;
    Ok(Exit::Success)
}

fn tensor_text(path: &Path, as_json: bool) -> Result<String, Failure> {
    let tensor = reader::tensor(path).map_err(at(path))?.load().map_err(at(path))?;
    if as_json {
        let answer = json!({
            "file": path, "name": tensor.name, "dtype": tensor.desc.dtype.to_string(), "dims": tensor.desc.shape.dims(),
            "values": onnx::preview(&tensor.view()),
        });
        return Ok(json_text("print", answer)?);
    }
    Ok(table::fit(&format!("tensor: {}\n", onnx::tensor_line(&tensor)), table::terminal()))
}

fn model_text(args: &Arguments) -> Result<String, Failure> {
    let opened = args.model.open()?;
    let path = &opened.path;
    let calls = Provenance::beside(path)?.calls;
    if args.json {
        let mut answer = onnx::model_json(&opened.model).map_err(at(path))?;
        for input in answer["graph"]["inputs"].as_array_mut().into_iter().flatten() {
            let called = input["name"].as_str().and_then(|name| calls.get(name));
            input["of"] = json!(called);
        }
        answer["file"] = json!(path);
        return Ok(json_text("print", answer)?);
    }
    let text = onnx::model_text_with(&opened.model, &TextOptions { shapes: args.shapes, called: Some(&calls) });
    // Whole when it is piped: lines of a model are no table.
    Ok(table::fit(&text.map_err(at(path))?, table::terminal()))
}
