//! Feeds from files: data sets, `.npz`, `.safetensors`, `.pb`.

use std::collections::HashMap;
use std::path::Path;

use super::feeds::Source;
use super::{npz, safetensors};
use crate::base::files::read_regular;
use crate::base::limits;
use crate::cli::answer::warn;
use crate::cli::child_process;
use crate::cli::data_sets;
use crate::cli::exit::{Failure, at};
use crate::cli::provenance::Provenance;
use crate::cli::rerun;
use crate::dump::Role;
use crate::dump::reader::{self, Completeness};
use crate::onnx::NamedTensor;

/// Tensors of a file or a folder, and what they are by the provenance of the part that they are of.
pub(super) struct Loaded {
    pub(super) sources: Vec<Source>,
    pub(super) called: HashMap<String, String>,
}

/// The tensors of a file or a folder, by name. Errors: it is none of these, or is damaged.
pub(super) fn load(path: &Path) -> Result<Loaded, Failure> {
    let plain = |sources| Loaded { sources, called: HashMap::new() };
    let told = |why: String| Failure::from(format!("{}: {why}", path.display()));
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    child_process::reading(path);
    let read: fn(&[u8], u64) -> Result<_, String> = match extension {
        "npz" => npz::read,
        "npy" => npz::read_array,
        "safetensors" => safetensors::read,
        "pb" => {
            let file = reader::tensor(path).map_err(at(path))?;
            return Ok(plain(vec![of_proto(&file.load().map_err(at(path))?)]));
        }
        _ => return data_set(path),
    };
    let at_most = limits::feeds_bytes();
    let bytes = read_regular(path, at_most).map_err(|error| told(format!("cannot read: {error}")))?;
    let tensors = read(&bytes, at_most).map_err(told)?;
    Ok(plain(tensors.into_iter().map(|(name, tensor)| Source { name, tensor }).collect()))
}

fn of_proto(tensor: &NamedTensor) -> Source {
    Source { name: tensor.name.clone(), tensor: tensor.view().to_owned() }
}

/// The inputs of a data set, or of the first whole one of a part.
fn data_set(path: &Path) -> Result<Loaded, Failure> {
    if path.is_file() {
        return Err(
            format!("{}: expected a folder of input_<i>.pb, .npz, .npy, .safetensors or .pb", path.display()).into()
        );
    }
    // A folder of any name, as other tools write one.
    if path.join("input_0.pb").is_file() {
        return inputs(path);
    }
    let place = reader::find(path)?;
    if let Some(&damage) = place.damages().first() {
        return Err(Box::new(damage.clone()));
    }
    let steps = data_sets::steps(place)?;
    if let Some(damage) = steps.iter().find_map(|step| match &step.state {
        Completeness::Damaged(damage) => Some(damage.clone()),
        _ => None,
    }) {
        return Err(Box::new(damage));
    }
    let whole = steps.iter().find(|step| step.state == Completeness::Complete).or(steps.first());
    let step = whole.ok_or_else(|| format!("{}: it has no data set", path.display()))?;
    if let Completeness::Incomplete(why) = &step.state {
        warn(format_args!("{}: not whole: {why}", step.path.display()));
    }
    inputs(&step.path)
}

fn inputs(data_set: &Path) -> Result<Loaded, Failure> {
    let tensors = rerun::tensors(data_set, Role::Input)?;
    if tensors.is_empty() {
        return Err(format!("{}: it has no input_<i>.pb", data_set.display()).into());
    }
    // A data set may be named by `.`, which has no parent.
    let part = data_set.canonicalize().map_err(at(data_set))?;
    let called = Provenance::of_part(reader::part_of(&part))?.calls;
    Ok(Loaded { sources: tensors.iter().map(of_proto).collect(), called })
}
