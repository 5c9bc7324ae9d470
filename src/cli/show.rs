//! `rust-ort show`: one thing of a dump, in full.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::table::{self, Failure};
use super::{Exit, Outcome, compare, ls};
use crate::dump::reader::{self, Place, StepEntry};
use crate::dump::{Comparison, Role};
use crate::onnx::{self, NamedTensor};
use crate::tensor::TensorView;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// What to show
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let place = reader::find(&args.path)?;
    let text = if args.json {
        serde_json::to_string_pretty(&json_of(&place)?)? + "\n"
    } else {
        text_of(&place, table::width())?
    };
    table::put(&text)?;
    Ok(Exit::Success)
}

/// Facts of one tensor; the numbers are over its finite elements.
#[derive(Debug, Serialize)]
pub(super) struct Statistics {
    pub(super) n: usize,
    pub(super) nan: usize,
    inf: usize,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) mean: Option<f64>,
    std: Option<f64>,
}

/// None for types without an order or without arithmetic here (complex, 8-bit floats).
pub(super) fn statistics(tensor: &TensorView<'_>) -> Option<Statistics> {
    let values = tensor.to_f64()?;
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let n_finite = finite().count();
    let some = |value: f64| (n_finite > 0).then_some(value);
    let mean = finite().sum::<f64>() / n_finite as f64;
    let variance = finite().map(|value| (value - mean).powi(2)).sum::<f64>() / n_finite as f64;
    Some(Statistics {
        n: values.len(),
        nan: values.iter().filter(|value| value.is_nan()).count(),
        inf: values.iter().filter(|value| value.is_infinite()).count(),
        min: some(finite().fold(f64::INFINITY, f64::min)),
        max: some(finite().fold(f64::NEG_INFINITY, f64::max)),
        mean: some(mean),
        std: some(variance.sqrt()),
    })
}

const TENSOR_HEADER: [&str; 9] = ["file", "name", "type", "min", "max", "mean", "std", "nan/inf", "elements"];

fn tensor_row(path: &Path) -> Vec<String> {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match onnx::load_tensor(path) {
        // The file's name stands in its own column.
        Err(error) => [vec![file, error.to_string()], vec![String::new(); TENSOR_HEADER.len() - 2]].concat(),
        Ok(tensor) => {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4e}"));
            let mut row = vec![file, tensor.name.clone(), tensor.desc.to_string()];
            match statistics(&tensor.view()) {
                None => row.extend(vec!["-".to_owned(); 5]),
                Some(facts) => {
                    row.extend([facts.min, facts.max, facts.mean, facts.std].map(number));
                    row.push(format!("{}/{}", facts.nan, facts.inf));
                }
            }
            row.push(onnx::preview(&tensor.view()));
            row
        }
    }
}

fn step_files(step: &StepEntry) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for role in [Role::Input, Role::Reference, Role::Actual] {
        files.extend(reader::tensors(&step.path, role)?.into_iter().map(|(_, path)| path));
    }
    Ok(files)
}

fn text_of(place: &Place, width: Option<usize>) -> Result<String, Failure> {
    let listing = |info: &Value| -> Result<String, Failure> {
        Ok(format!("{}\n\n{}", serde_json::to_string_pretty(info)?, ls::text_of(place, false, width)))
    };
    match place {
        Place::Folder(_) => Ok(ls::text_of(place, false, width)),
        Place::Run(run) => listing(&run.info),
        Place::Graph(graph) => listing(&graph.info),
        Place::Part(part) => {
            let model = part.path.join("model.onnx");
            let model = if model.exists() { model_text(&model, width) } else { Ok("no model.onnx\n".to_owned()) };
            Ok(format!("{}\n{}", model?, ls::text_of(place, true, width)))
        }
        Place::Step(step) => {
            let rows: Vec<_> = step_files(step)?.iter().map(|path| tensor_row(path)).collect();
            let mut text = ls::text_of(place, true, width) + "\n" + &table::table(&TENSOR_HEADER, &rows, width);
            if let Some(comparison) = reader::comparison(&step.path)? {
                text = text + "\n" + &compare::verdict_table(&comparison.verdicts, width);
            }
            Ok(text)
        }
        Place::Model(path) => model_text(path, width),
        Place::Tensor(path) => {
            onnx::load_tensor(path)?;
            let row = tensor_row(path);
            let lines = TENSOR_HEADER.iter().zip(&row).map(|(name, value)| format!("{name:9} {value}\n"));
            Ok(table::fit(&lines.collect::<String>(), width))
        }
        Place::Json(path) => {
            let text = std::fs::read_to_string(path)?;
            match serde_json::from_str::<Comparison>(&text) {
                Ok(comparison) => Ok(compare::verdict_table(&comparison.verdicts, width)),
                Err(_) => Ok(serde_json::to_string_pretty(&serde_json::from_str::<Value>(&text)?)? + "\n"),
            }
        }
    }
}

fn model_text(path: &Path, width: Option<usize>) -> Result<String, Failure> {
    Ok(table::fit(&onnx::model_text(&onnx::load(path)?)?, width))
}

fn json_of(place: &Place) -> Result<Value, Failure> {
    Ok(match place {
        Place::Folder(runs) => json!({ "runs": runs }),
        Place::Run(run) => json!(run),
        Place::Graph(graph) => json!(graph),
        Place::Part(part) => json!(part),
        Place::Step(step) => {
            let tensors = step_files(step)?.into_iter().map(|path| tensor_json(&path)).collect::<Vec<_>>();
            json!({ "step": step, "tensors": tensors, "comparison": reader::comparison(&step.path)? })
        }
        Place::Model(path) => model_json(path)?,
        Place::Tensor(path) => {
            onnx::load_tensor(path)?;
            tensor_json(path)
        }
        Place::Json(path) => serde_json::from_slice(&std::fs::read(path)?)?,
    })
}

fn tensor_json(path: &Path) -> Value {
    match onnx::load_tensor(path) {
        Err(error) => json!({ "file": path, "error": error.to_string() }),
        Ok(tensor) => {
            let NamedTensor { name, desc, .. } = &tensor;
            json!({
                "file": path, "name": name, "dtype": desc.dtype.to_string(), "dims": desc.shape.dims(),
                "statistics": statistics(&tensor.view()),
            })
        }
    }
}

fn model_json(path: &Path) -> Result<Value, Failure> {
    let model = onnx::load(path)?;
    let graph = model.graph.as_ref().ok_or(onnx::OnnxError::NoGraph)?;
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    graph.node.iter().for_each(|node| *ops.entry(node.op_type()).or_default() += 1);
    let values = |infos: &[onnx::proto::ValueInfoProto]| {
        let value = |info: &onnx::proto::ValueInfoProto| json!({ "name": info.name(), "type": onnx::type_text(info.r#type.as_ref()) });
        infos.iter().map(value).collect::<Vec<_>>()
    };
    Ok(json!({
        "file": path, "name": graph.name(), "ir_version": model.ir_version(), "nodes": onnx::count_nodes(&model),
        "ops": ops, "inputs": values(&graph.input), "outputs": values(&graph.output),
        "initializers": graph.initializer.iter().map(|tensor| tensor.name()).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorBuf;

    #[test]
    fn statistics_are_over_finite_elements() {
        let tensor = TensorBuf::from_f32([5], &[1., 3., f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).unwrap();
        let facts = statistics(&tensor.view()).unwrap();
        assert_eq!((facts.n, facts.nan, facts.inf), (5, 1, 2));
        assert_eq!((facts.min, facts.max, facts.mean, facts.std), (Some(1.), Some(3.), Some(2.), Some(1.)));
        let empty = TensorBuf::from_f32([0], &[]).unwrap();
        assert_eq!(statistics(&empty.view()).unwrap().mean, None);
    }
}
