//! `rust-ort dot`: a model as a graph, for Graphviz or as a picture.

mod drawing;
mod escape;
mod layout;
mod marks;
mod svg;
mod text;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::answer::{json_text, put, tell};
use super::exit::{Exit, Failure, Outcome, at};
use super::model_argument::{ModelArgument, Opened, files_of};
use super::output_file::OutputFile;
use super::provenance::Provenance;
use crate::dump::reader;
use crate::onnx::proto::ModelProto;
use drawing::{Drawing, drawing};
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
    args.svg.as_deref().map_or(Ok(()), no_model)?;
    if args.json && svg.as_ref().is_some_and(OutputFile::is_stdout) {
        return Err("--svg - and --json: standard output has one of them; name a file for the picture".into());
    }
    let folder = opened.folder();
    let marks = Marks::read(folder, opened.step)?;
    let drawing = drawing(&opened.model, &Provenance::of_part(folder)?, &marks).map_err(at(&opened.path))?;
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

/// Errors: the file is a model, which a picture would replace.
fn no_model(file: &Path) -> Result<(), Failure> {
    let is_one = |model: ModelProto| model.graph.is_some() && model.ir_version.is_some();
    match file.is_file() && reader::load_model_alone(file).is_ok_and(is_one) {
        true => Err(format!("{}: it is an ONNX model; name another file for the picture", file.display()).into()),
        false => Ok(()),
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
