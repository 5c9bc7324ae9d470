//! What may go: old steps, tensors that nothing holds, leftovers of killed writers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::DumpError;
use super::layout::{self, MANIFEST_FILE, TENSORS_FOLDER};
use super::nodes::remove_nodes;
use super::reader::{self, Completeness};
use super::store::{blob_path, remove_if_there, remove_if_unreferenced};
use crate::onnx::TEMPORARY_PREFIX;

/// A temporary file younger than this may belong to a process that is not visible from here.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// What a clean-up removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Removed {
    /// Data sets.
    pub steps: usize,
    /// Tensors below `tensors/`.
    pub tensors: usize,
    /// Temporary files of processes that are gone.
    pub leftovers: usize,
    /// Bytes of tensors and leftovers.
    pub bytes: u64,
}

/// Below a folder of dumps: with `keep`, all but the newest `keep` complete steps of each part go; tensors that no data
/// set holds and leftovers go. Incomplete steps stay: they are what a crash left behind.
pub fn gc(folder: &Path, keep: Option<usize>) -> Result<Removed, DumpError> {
    let mut removed = Removed::default();
    for run in reader::runs(folder)? {
        leftovers(&run.path, &mut removed)?;
        for graph in run.graphs {
            leftovers(&graph.path, &mut removed)?;
            for part in graph.parts {
                if let Some(keep) = keep {
                    let n = keep_newest(&part.path, keep).map_err(DumpError::io(&part.path, "remove old steps of"))?;
                    removed.steps += n;
                }
                leftovers(&part.path, &mut removed)?;
                for step in part.steps.iter().filter(|step| step.path.exists()) {
                    leftovers(&step.path, &mut removed)?;
                }
            }
        }
    }
    let tensors = folder.join(TENSORS_FOLDER);
    if tensors.is_dir() {
        leftovers(&tensors, &mut removed)?;
        unreferenced(&tensors, &mut removed)?;
    }
    Ok(removed)
}

/// Remove blobs that no data set holds.
pub(super) fn unreferenced(tensors: &Path, removed: &mut Removed) -> Result<(), DumpError> {
    for path in entries(tensors)? {
        if path.extension() == Some(OsStr::new("pb")) {
            let bytes = remove_if_unreferenced(&path).map_err(DumpError::io(&path, "remove"))?;
            removed.bytes += bytes;
            removed.tensors += usize::from(bytes > 0);
        }
    }
    Ok(())
}

fn leftovers(folder: &Path, removed: &mut Removed) -> Result<(), DumpError> {
    for path in entries(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let Some(rest) = name.strip_prefix(TEMPORARY_PREFIX) else { continue };
        let writer = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        let alive = writer.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists());
        let Ok(facts) = fs::metadata(&path) else { continue };
        let old = facts.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFTOVER_AGE));
        if !alive && old && facts.is_file() {
            remove_if_there(&path).map_err(DumpError::io(&path, "remove"))?;
            removed.leftovers += 1;
            removed.bytes += facts.len();
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, DumpError> {
    let list =
        fs::read_dir(folder).and_then(|list| list.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
    let mut list = list.map_err(DumpError::io(folder, "list"))?;
    list.sort();
    Ok(list)
}

/// All but the newest `keep` complete steps of a part go, with their verdicts and the tensors that only they held.
/// Returns how many went.
pub(super) fn keep_newest(part: &Path, keep: usize) -> io::Result<usize> {
    let mut complete: Vec<_> =
        reader::steps(part)?.into_iter().filter(|step| step.state == Completeness::Complete).collect();
    complete.truncate(complete.len().saturating_sub(keep));
    for step in &complete {
        let hashes: BTreeSet<String> = reader::manifest(&step.path)
            .map(|manifest| manifest.entries().map(|entry| entry.hash.clone()).collect())
            .unwrap_or_default();
        // Manifest first: what is half removed must not read as whole.
        remove_if_there(&step.path.join(MANIFEST_FILE))?;
        fs::remove_dir_all(&step.path)?;
        remove_if_there(&part.join(layout::comparison_file(step.step)))?;
        remove_nodes(part, step.step)?;
        // part → graph → run → folder
        if let Some(folder) = part.ancestors().nth(3) {
            let tensors = folder.join(TENSORS_FOLDER);
            for hash in hashes.iter().filter(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit())) {
                remove_if_unreferenced(&blob_path(&tensors, hash))?;
            }
        }
    }
    Ok(complete.len())
}
