//! `rust-ort dot`: a model as a graph, for Graphviz or as a picture.

mod drawing;
mod escape;
mod fold;
mod layout;
mod marks;
mod modules;
mod stages;
mod svg;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::answer::{json_text, put, tell, warn};
use super::exit::{Exit, Outcome, at};
use super::model_argument::{ModelArgument, Opened, files_of, not_a_model};
use super::output_file::OutputFile;
use super::provenance::Provenance;
use drawing::{Drawing, Shown, drawing};
use fold::{Fold, depths, folded};
use marks::Marks;

pub(super) use stages::stages;

/// Nodes of a picture that is told of `--fold`.
const MOST_NODES: usize = 500;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Write a picture of our own layout (SVG) in the place of DOT; a file that is there is replaced. `-`: to standard output
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw each module of this depth as one box (`--fold 3`: `model.layers.0`), or those whose path a pattern fits
    /// (`model.layers.*.mlp`; `*` is any text, `?` any character). May be given several times
    #[arg(long, value_name = "DEPTH|PATTERN")]
    fold: Vec<Fold>,
    /// Print JSON: boxes and lines, or with --svg what was written
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let mut opened = args.model.open()?;
    let read = files_of(&opened.path, &mut opened.model);
    let svg = args.svg.as_deref().map(|file| OutputFile::at(file, read)).transpose()?;
    args.svg.as_deref().map_or(Ok(()), |file| not_a_model(file, "picture"))?;
    if args.json && svg.as_ref().is_some_and(OutputFile::is_stdout) {
        return Err("--svg - and --json: standard output has one of them; name a file for the picture".into());
    }
    let folder = opened.folder();
    let marks = Marks::read(folder, opened.step)?;
    let drawing = drawing(&opened.model, &Provenance::of_part(folder)?, &marks).map_err(at(&opened.path))?;
    let drawing = match args.fold.as_slice() {
        [] => {
            offer_to_fold(&drawing);
            drawing
        }
        folds => folded(drawing, folds).map_err(|error| format!("{}: {error}", opened.path.display()))?,
    };
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

/// A word on `--fold`, of what nobody sees as a whole.
fn offer_to_fold(drawing: &Drawing) {
    let n_nodes = drawing.n_nodes();
    let depths = if n_nodes > MOST_NODES { depths(drawing) } else { Vec::new() };
    if !depths.is_empty() {
        let listed = |numbers: Vec<usize>| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let (at, modules) = (listed((1..=depths.len()).collect()), listed(depths));
        let offer = "--fold DEPTH draws each module as one box";
        warn(format_args!("{n_nodes} nodes; {offer}; modules at depth {at}: {modules}"));
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
        steps => format!("the worst of {} calls", steps.len()),
    };
    let (n_boxes, not_drawn) = (drawing.boxes.len(), drawing.not_drawn);
    let modules: Vec<_> = drawing.boxes.iter().filter_map(|shown| shown.inside.as_ref()).collect();
    let folded = match modules.iter().map(|inside| inside.n_nodes).sum::<usize>() {
        0 => String::new(),
        n_nodes => format!(", {} of modules ({n_nodes} nodes)", modules.len()),
    };
    let content = format!("{n_boxes} boxes{folded}; {not_drawn} parameters, constants not drawn; {compared}");
    [opened.path.display().to_string(), content]
}

fn json_of(drawing: &Drawing) -> Value {
    let lines = drawing.edges.iter().map(|edge| json!([edge.from, edge.to]));
    json!({
        "name": drawing.title, "not_drawn": drawing.not_drawn,
        "boxes": drawing.boxes.iter().map(box_json).collect::<Vec<_>>(), "lines": lines.collect::<Vec<_>>(),
        "values": drawing.edges.iter().map(|edge| &edge.values).collect::<Vec<_>>(),
    })
}

fn box_json(shown: &Shown) -> Value {
    let kind = match &shown.inside {
        Some(_) => "module",
        None if shown.is_input => "input",
        None => "node",
    };
    let mut value = json!({
        "kind": kind, "op": shown.op, "name": shown.name, "module": shown.module, "is_output": shown.is_output,
        "mark": shown.mark.map(|mark| mark.word()), "detail": shown.detail,
    });
    if let Some(inside) = &shown.inside {
        let ops: BTreeMap<&str, usize> = inside.ops.iter().map(|(op, n)| (op.as_str(), *n)).collect();
        let marks: BTreeMap<&str, usize> = inside.marks.iter().map(|(mark, n)| (mark.word(), *n)).collect();
        (value["nodes"], value["ops"], value["marks"]) = (json!(inside.n_nodes), json!(ops), json!(marks));
        (value["is_own"], value["part"]) = (json!(inside.is_own), json!([inside.part.0, inside.part.1]));
    }
    value
}
