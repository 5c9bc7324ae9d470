//! `rust-ort show`: one thing of a dump, in full.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::answer::{json_text, line, pretty, put};
use super::dump_tolerance::Brought;
use super::exit::{Failure, Outcome, at};
use super::node_table::{self, Found};
use super::provenance::Provenance;
use super::statistics::statistics;
use super::table::{self, Give};
use super::{data_sets, listing, overview, verdicts};
use crate::base::files::folder_of;
use crate::compare::significant;
use crate::dump::reader::{self, Completeness, Place, StepEntry, TensorFile};
use crate::dump::{Comparison, Damage, NodeTable, Role};
use crate::onnx::{self, NamedTensor, TextOptions};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// What to show
    #[arg(value_parser = data_sets::named())]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let place = data_sets::find(&args.path)?;
    if let Some(damage) = damage_of(&place) {
        return Err(Box::new(damage.clone()));
    }
    let text = if args.json {
        match &place {
            // It says what it is itself.
            Place::Json(path) => pretty(&reader::any_json(path)?)?,
            place => json_text("show", json_of(place)?)?,
        }
    } else {
        text_of(&place, table::width())?
    };
    put(&text)?;
    listing::told(place)
}

/// Of what is shown first.
fn damage_of(place: &Place) -> Option<&Damage> {
    let steps: &[StepEntry] = match place {
        Place::Step(step) => std::slice::from_ref(step),
        Place::Part(part) => &part.steps,
        Place::Case(case) => &case.steps,
        _ => &[],
    };
    let below = place.damages().into_iter().next();
    below.or_else(|| {
        steps.iter().find_map(|step| match &step.state {
            Completeness::Damaged(damage) => Some(damage),
            _ => None,
        })
    })
}

const TENSOR_HEADER: [&str; 10] = ["file", "name", "of", "type", "min", "max", "mean", "std", "nan/inf", "elements"];

/// Place of what a tensor is to the user.
const OF: usize = 2;

/// Errors: it is damaged.
fn tensor_row(given: &TensorFile, calls: &HashMap<String, String>) -> Result<Vec<String>, Failure> {
    let file = given.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(match given.load() {
        Err(error) if Damage::of(&error).is_some() => return Err(error.into()),
        // The file's name stands in its own column.
        Err(error) => [vec![file, error.to_string()], vec![String::new(); TENSOR_HEADER.len() - 2]].concat(),
        Ok(tensor) => {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| significant(value, 5));
            let called = calls.get(&tensor.name).cloned().unwrap_or_default();
            let mut row = vec![file, tensor.name.clone(), called, tensor.desc.to_string()];
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
    })
}

fn step_files(step: &StepEntry) -> Result<Vec<TensorFile>, Failure> {
    let mut files = Vec::new();
    for role in [Role::Input, Role::Reference, Role::Actual] {
        files.extend(reader::tensors(&step.path, role).map_err(at(&step.path))?);
    }
    Ok(files)
}

fn text_of(place: &Place, width: usize) -> Result<String, Failure> {
    let listed = || "\n".to_owned() + &listing::text_of(place, false, width);
    match place {
        Place::Folder(_) => Ok(listing::text_of(place, false, width)),
        Place::Run(run) => Ok(overview::of_run(run, width) + &listed()),
        Place::Graph(graph) => Ok(overview::of_graph(graph, width) + &listed() + &overview::code_of(graph)?),
        Place::Part(part) => {
            let model = part.path.join("model.onnx");
            let model = if model.exists() { model_text(&model) } else { Ok("no model.onnx\n".to_owned()) };
            let optimized = passes_text(&part.path.join("model.ort.onnx"))?;
            Ok(format!("{}{optimized}\n{}", model?, listing::text_of(place, true, width)))
        }
        Place::Step(step) => {
            let mut text = listing::text_of(place, true, width) + "\n" + &tensor_table(step, width)?;
            let comparison = reader::comparison(&step.path);
            if let Some(comparison) = comparison.map_err(at(&step.path))? {
                text = text + "\n" + &verdicts::table(&comparison.verdicts, width);
            }
            Ok(text)
        }
        Place::Case(case) => {
            let mut text = model_text(&case.path.join("model.onnx"))?;
            for step in &case.steps {
                text = text + "\n" + &line(step.path.display()) + &tensor_table(step, width)?;
            }
            Ok(text)
        }
        Place::Model(path) => model_text(path),
        Place::Text(path) => Ok(table::fit(&reader::text(path).map_err(at(path))?, table::terminal())),
        Place::Tensor(path) => {
            let file = reader::tensor(path).map_err(at(path))?;
            file.load().map_err(at(path))?;
            let row = tensor_row(&file, &calls_of(folder_of(path))?)?;
            let known = TENSOR_HEADER.iter().zip(&row).filter(|(name, value)| **name != "of" || !value.is_empty());
            let lines = known.map(|(name, value)| line(format_args!("{name:9} {value}")));
            Ok(table::fit(&lines.collect::<String>(), table::terminal()))
        }
        Place::Json(path) => {
            let value = reader::any_json(path)?;
            if let Ok(comparison) = Comparison::deserialize(&value) {
                let brought = Brought::of(comparison.policy).line();
                return Ok(verdicts::table(&comparison.verdicts, width) + &brought);
            }
            match NodeTable::from_json(value.clone()) {
                Ok(table) => Ok(node_table::brief(&[Found::alone(path.clone(), table)], path)),
                Err(_) => Ok(serde_json::to_string_pretty(&value)? + "\n"),
            }
        }
    }
}

/// Whole when it is piped: lines of a model are no table.
fn model_text(path: &Path) -> Result<String, Failure> {
    let model = reader::load_model(path).map_err(at(path))?;
    let calls = Provenance::beside(path)?.calls;
    let options = TextOptions { shapes: false, called: Some(&calls) };
    Ok(table::fit(&onnx::model_text_with(&model, &options).map_err(at(path))?, table::terminal()))
}

/// Which passes ran before the graph optimizer, as the model that it left says; nothing where there is none.
fn passes_text(optimized: &Path) -> Result<String, Failure> {
    if !optimized.exists() {
        return Ok(String::new());
    }
    let model = reader::load_model(optimized).map_err(at(optimized))?;
    let file = optimized.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(line(format_args!("{file}: passes {}", onnx::ran(&model).unwrap_or("none"))))
}

/// What inputs of the part of a data set are to the user.
fn calls_of(data_set: &Path) -> Result<HashMap<String, String>, Failure> {
    // It may be named by `.`, which has no parent.
    let data_set = data_set.canonicalize().map_err(at(data_set))?;
    Ok(Provenance::of_part(reader::part_of(&data_set))?.calls)
}

fn tensor_table(step: &StepEntry, width: usize) -> Result<String, Failure> {
    use Give::{End, Middle, Never};
    let calls = calls_of(&step.path)?;
    let mut rows = step_files(step)?.iter().map(|file| tensor_row(file, &calls)).collect::<Result<Vec<_>, _>>()?;
    let mut header = TENSOR_HEADER.to_vec();
    let mut gives = vec![Middle, Middle, Middle, End, Never, Never, Never, Never, Never, End];
    if rows.iter().all(|row| row[OF].is_empty()) {
        header.remove(OF);
        gives.remove(OF);
        rows.iter_mut().for_each(|row| drop(row.remove(OF)));
    }
    Ok(table::aligned(&header, &rows, &gives, width))
}

fn json_of(place: &Place) -> Result<Value, Failure> {
    Ok(match place {
        Place::Folder(runs) => json!({ "runs": runs }),
        Place::Run(run) => json!(run),
        Place::Graph(graph) => json!(graph),
        Place::Part(part) => json!(part),
        Place::Case(case) => {
            let model = model_json(&case.path.join("model.onnx"))?;
            let steps = case.steps.iter().map(step_json).collect::<Result<Vec<_>, _>>()?;
            json!({ "name": case.name, "path": case.path, "model": model, "data_sets": steps })
        }
        Place::Step(step) => step_json(step)?,
        Place::Model(path) => model_json(path)?,
        Place::Tensor(path) => {
            let file = reader::tensor(path).map_err(at(path))?;
            file.load().map_err(at(path))?;
            tensor_json(&file, &calls_of(folder_of(path))?)?
        }
        Place::Json(path) => reader::any_json(path)?,
        Place::Text(path) => json!({ "file": path, "text": reader::text(path).map_err(at(path))? }),
    })
}

fn step_json(step: &StepEntry) -> Result<Value, Failure> {
    let calls = calls_of(&step.path)?;
    let tensors = step_files(step)?.iter().map(|file| tensor_json(file, &calls)).collect::<Result<Vec<_>, _>>()?;
    let comparison = reader::comparison(&step.path).map_err(at(&step.path))?;
    Ok(json!({ "step": step, "tensors": tensors, "comparison": comparison }))
}

/// Errors: it is damaged.
fn tensor_json(file: &TensorFile, calls: &HashMap<String, String>) -> Result<Value, Failure> {
    let path = &file.path;
    Ok(match file.load() {
        Err(error) if Damage::of(&error).is_some() => return Err(error.into()),
        Err(error) => json!({ "file": path, "error": error.to_string() }),
        Ok(tensor) => {
            let NamedTensor { name, desc, .. } = &tensor;
            json!({
                "file": path, "name": name, "of": calls.get(name), "dtype": desc.dtype.to_string(), "dims": desc.shape.dims(),
                "statistics": statistics(&tensor.view()),
            })
        }
    })
}

fn model_json(path: &Path) -> Result<Value, Failure> {
    let model = reader::load_model(path).map_err(at(path))?;
    let graph = model.graph.as_ref().ok_or(onnx::OnnxError::NoGraph)?;
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    graph.node.iter().for_each(|node| *ops.entry(node.op_type()).or_default() += 1);
    let values = |infos: &[onnx::proto::ValueInfoProto]| {
        let value = |info: &onnx::proto::ValueInfoProto| json!({ "name": info.name(), "type": onnx::type_text(info.r#type.as_ref()) });
        infos.iter().map(value).collect::<Vec<_>>()
    };
    Ok(json!({
        "file": path, "name": graph.name(), "passes": onnx::ran(&model), "ir_version": model.ir_version(), "nodes": onnx::count_nodes(&model),
        "ops": ops, "inputs": values(&graph.input), "inputs_of": Provenance::beside(path)?.calls, "outputs": values(&graph.output),
        "initializers": graph.initializer.iter().map(|tensor| tensor.name()).collect::<Vec<_>>(),
    }))
}
