//! A model to look at: a file, or the one of a dump's part.

use std::path::{Path, PathBuf};

use super::data_sets;
use super::exit::{Failure, at};
use crate::base::files::folder_of;
use crate::base::quoted::shell_word;
use crate::dump::reader::{self, GraphEntry, Place};
use crate::onnx;
use crate::onnx::proto::ModelProto;

const MODEL: &str = "model.onnx";
const OPTIMIZED: &str = "model.ort.onnx";

/// Which model, and what becomes of it before it is shown.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgument {
    /// A model (.onnx), a part of a dump, a data set of one, or the folder of a node
    #[arg(value_parser = data_sets::named())]
    path: PathBuf,
    /// Put local functions in place of their calls
    #[arg(long)]
    inline: bool,
    /// What ONNX Runtime's optimizer left of a dump's part (model.ort.onnx)
    #[arg(long)]
    optimized: bool,
}

/// A model, and where it stands.
pub(super) struct Opened {
    /// The file.
    pub(super) path: PathBuf,
    /// Number of the data set that was named.
    pub(super) step: Option<u64>,
    pub(super) model: ModelProto,
}

impl Opened {
    /// The folder of the model, where a dump has what else it knows of it.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// Files that hold a model: its own, and those of elements beside it.
pub(super) fn files_of(path: &Path, model: &mut ModelProto) -> Vec<PathBuf> {
    let beside = onnx::external_locations(model).into_iter().map(|location| folder_of(path).join(location));
    std::iter::once(path.to_owned()).chain(beside).collect()
}

/// Errors: the file is a model, which what is written would replace. what: that, in a word.
pub(super) fn not_a_model(file: &Path, what: &str) -> Result<(), Failure> {
    let is_one = |model: ModelProto| model.graph.is_some() && model.ir_version.is_some();
    match file.is_file() && reader::load_model_alone(file).is_ok_and(is_one) {
        true => Err(format!("{}: it is an ONNX model; name another file for the {what}", file.display()).into()),
        false => Ok(()),
    }
}

impl ModelArgument {
    /// What stands at the path. Errors: nothing does.
    pub(super) fn place(&self) -> Result<Place, Failure> {
        data_sets::find(&self.path)
    }

    /// The model. Elements that stand in other files are not read. Errors: it cannot be read, is damaged, there is no
    /// optimized one, or the place has no one model.
    pub(super) fn open(&self) -> Result<Opened, Failure> {
        let (path, step) = self.file(self.place()?)?;
        let mut model = reader::load_model_alone(&path).map_err(at(&path))?;
        if self.inline {
            onnx::inline_functions(&mut model).map_err(at(&path))?;
        }
        Ok(Opened { path, step, model })
    }

    fn file(&self, place: Place) -> Result<(PathBuf, Option<u64>), Failure> {
        let (folder, step) = match place {
            Place::Model(path) if !self.optimized => return Ok((path, None)),
            Place::Model(path) => (self.beside(&path)?, None),
            Place::Part(part) => (part.path, None),
            Place::Case(case) => (case.path, None),
            // A data set may be named by `.`, which has no parent.
            Place::Step(step) => (reader::part_of(&step.path.canonicalize()?).to_owned(), Some(step.step)),
            Place::Graph(graph) => (only_part(graph)?, None),
            Place::Folder(_) | Place::Run(_) | Place::Tensor(_) | Place::Json(_) | Place::Text(_) => {
                let path = self.path.display();
                let list = "`rust-ort ls` lists the parts of a dump";
                return Err(format!("{path}: expected a model (.onnx) or a part of a dump; {list}").into());
            }
        };
        let path = folder.join(if self.optimized { OPTIMIZED } else { MODEL });
        if self.optimized && !path.exists() {
            return Err(self.not_optimized(&folder));
        }
        Ok((path, step))
    }

    /// The folder of a model that a dump wrote.
    fn beside(&self, path: &Path) -> Result<PathBuf, Failure> {
        let path = path.canonicalize()?;
        let name = path.file_name().unwrap_or_default();
        match path.parent().filter(|_| name == MODEL || name == OPTIMIZED) {
            Some(folder) => Ok(folder.to_owned()),
            None => Err(self.not_optimized(&path)),
        }
    }

    fn not_optimized(&self, place: &Path) -> Failure {
        format!(
            "{}: no optimized model ({OPTIMIZED}) beside it; dump the part (`with rust_ort.dump(\"name\"): ...`), or save one \
             with onnxruntime's SessionOptions.optimized_model_filepath and name that file",
            place.display()
        )
        .into()
    }
}

/// Errors: the graph has no part, or several.
fn only_part(graph: GraphEntry) -> Result<PathBuf, Failure> {
    match graph.parts.as_slice() {
        [part] => Ok(part.path.clone()),
        parts => {
            let first = parts.first().map_or(graph.path.as_path(), |part| part.path.as_path());
            let name = shell_word(&first.to_string_lossy());
            Err(format!("{}: {} parts; name one, such as {name}", graph.path.display(), parts.len()).into())
        }
    }
}
