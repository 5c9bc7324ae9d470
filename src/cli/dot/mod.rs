//! `rust-ort dot`: a model as a graph, for Graphviz or as a picture.

mod drawing;
mod escape;
mod layout;
mod marks;
mod svg;
mod text;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{json_text, put, tell};
use super::exit::{Exit, Failure, Outcome, at};
use super::model_argument::{ModelArgument, Opened, files_of};
use super::output_file::OutputFile;
use crate::dump::{Damage, reader};
use crate::onnx::Descriptions;
use drawing::{Drawing, Provenance, drawing};
use marks::Marks;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Write a picture of our own layout (SVG) in the place of DOT; a file that is there is replaced. `-`: to standard output
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON: boxes and lines, or with --svg what was written
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let mut opened = args.model.open()?;
    let read = files_of(&opened.path, &mut opened.model);
    let svg = args.svg.as_deref().map(|file| OutputFile::at(file, read)).transpose()?;
    if args.json && svg.as_ref().is_some_and(OutputFile::is_stdout) {
        return Err("--svg - and --json: standard output has one of them; name a file for the picture".into());
    }
    let folder = opened.folder();
    let marks = Marks::read(folder, opened.step)?;
    let drawing = drawing(&opened.model, &provenance(folder)?, &marks).map_err(at(&opened.path))?;
    match (&svg, &args.svg) {
        (Some(file), Some(named)) => {
            let (svg, n_rows) = svg::svg_of(&drawing, &heading(&opened, &drawing, &marks));
            file.write(svg.as_bytes())?;
            if file.is_stdout() { Ok(Exit::Success) } else { written(named, n_rows, args.json, &drawing) }
        }
        _ if args.json => {
            let mut answer = json_of(&drawing);
            (answer["file"], answer["steps"]) = (json!(opened.path), json!(marks.steps));
            put(&json_text("dot", answer)?)?;
            Ok(Exit::Success)
        }
        _ => {
            put(&text::text_of(&drawing))?;
            Ok(Exit::Success)
        }
    }
}

fn written(file: &Path, n_rows: usize, as_json: bool, drawing: &Drawing) -> Outcome {
    let (n_boxes, n_lines) = (drawing.boxes.len(), drawing.edges.len());
    let answer = json!({ "svg": file, "boxes": n_boxes, "lines": n_lines, "rows": n_rows });
    tell("dot", as_json, answer, &format!("{}: {n_boxes} boxes in {n_rows} rows, {n_lines} lines\n", file.display()))
}

/// What a picture is of, and what is in it.
fn heading(opened: &Opened, drawing: &Drawing, marks: &Marks) -> [String; 2] {
    let compared = match marks.steps.as_slice() {
        [] => "not compared".to_owned(),
        [step] => format!("compared in call {step}"),
        steps => format!("compared in {} calls, the worst of each node", steps.len()),
    };
    let (n_boxes, folded) = (drawing.boxes.len(), drawing.folded);
    let content = format!("{n_boxes} boxes; not drawn: {folded} initializers, parameters, constants; {compared}");
    [opened.path.display().to_string(), content]
}

fn json_of(drawing: &Drawing) -> Value {
    let boxes = drawing.boxes.iter().map(|shown| {
        let kind = if shown.is_input { "input" } else { "node" };
        json!({
            "kind": kind, "op": shown.op, "name": shown.name, "module": shown.module, "is_output": shown.is_output,
            "mark": shown.mark.map(|mark| mark.word()), "detail": shown.detail,
        })
    });
    let lines = drawing.edges.iter().map(|edge| json!([edge.from, edge.to]));
    json!({
        "name": drawing.title, "folded": drawing.folded, "boxes": boxes.collect::<Vec<_>>(),
        "lines": lines.collect::<Vec<_>>(),
    })
}

/// What is drawn of a part's `provenance.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    values: Descriptions,
    inputs: Vec<Input>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    name: String,
    role: String,
    of: String,
}

/// Nothing where the folder is of no part, or tells it in another form. Errors: it is damaged.
fn provenance(folder: &Path) -> Result<Provenance, Failure> {
    let path = folder.join("provenance.json");
    let value = match reader::json_if_there(&path) {
        Err(error) if Damage::of(&error).is_some() => return Err(at(&path)(error)),
        read => read.ok().flatten().unwrap_or_default(),
    };
    let File { values, inputs } = serde_json::from_value(value).unwrap_or_default();
    let is_parameter = |input: &Input| ["ParamAOTInput", "BufferAOTInput"].contains(&input.role.as_str());
    let parameters = inputs.iter().filter(|input| is_parameter(input)).map(|input| input.name.clone()).collect();
    let called = inputs.into_iter().filter(|input| !input.of.is_empty());
    Ok(Provenance { values, parameters, calls: called.map(|input| (input.name, input.of)).collect() })
}
