//! What may go: old steps, tensors that nothing holds, leftovers of killed writers.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::DumpError;
use super::layout::{self, FILES_FILE, Kind, MANIFEST_FILE, MODEL_FILE, TENSORS_FOLDER};
use super::nodes::{remove_nodes, reproductions};
use super::owner::{check_ours, hold};
use super::reader::{self, Completeness, RunEntry, StepEntry};
use super::store::{blob_path, remove_if_there, remove_if_unreferenced};
use super::values::remove_values;
use crate::base::files::{is_locked, is_temporary};

/// A temporary file younger than this may belong to a process that is not visible from here.
const LEFTOVER_AGE: Duration = Duration::from_secs(600);

/// What a clean-up removed, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Removed {
    /// Data sets.
    pub steps: usize,
    /// Tensors below `tensors/`.
    pub tensors: usize,
    /// Temporary files of processes that are gone.
    pub leftovers: usize,
    /// Bytes of all that went.
    pub bytes: u64,
    /// What would have gone.
    pub kept: Vec<Kept>,
}

/// Something that a clean-up left where it is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Kept {
    /// The run or the data set.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl Removed {
    fn keep(&mut self, path: &Path, reason: impl Into<String>) {
        self.kept.push(Kept { path: path.to_owned(), reason: reason.into() });
    }

    fn blob(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.tensors += usize::from(bytes > 0);
    }
}

/// A clean-up on its way.
#[derive(Default)]
struct Work {
    removed: Removed,
    /// Nothing goes; what would is counted.
    dry_run: bool,
    /// (device, inode) → names of it that would have gone.
    names_gone: HashMap<(u64, u64), u64>,
}

impl Work {
    fn blob(&mut self, path: &Path) -> io::Result<()> {
        let bytes = match self.dry_run {
            false => remove_if_unreferenced(path)?,
            true => {
                let facts = path.symlink_metadata()?;
                let gone = self.names_gone.get(&(facts.dev(), facts.ino())).copied().unwrap_or(0);
                if facts.is_file() && facts.nlink() == gone + 1 { facts.len() } else { 0 }
            }
        };
        self.removed.blob(bytes);
        Ok(())
    }
}

/// Below a folder of dumps: with `keep`, all but the newest `keep` complete steps of each part go; tensors that no data
/// set holds and leftovers go. Incomplete steps stay: they are what a crash left behind. So do runs that are being
/// written, and data sets that hold something that is not ours. Links are not followed. `dry_run`: nothing goes, and
/// what would is counted. Errors: [`DumpError::NoRuns`], [`DumpError::Io`].
pub fn gc(folder: &Path, keep: Option<usize>, dry_run: bool) -> Result<Removed, DumpError> {
    let mut work = Work { dry_run, ..Work::default() };
    let runs = reader::runs(folder)?;
    let tensors = folder.join(TENSORS_FOLDER);
    if runs.is_empty() && blobs(&tensors)?.is_empty() {
        return Err(DumpError::NoRuns { path: folder.to_owned() });
    }
    for run in runs {
        match hold(&run.path) {
            Ok(_held) => gc_run(run, keep, &mut work)?,
            Err(DumpError::Busy { path }) => work.removed.keep(&path, "it is being written"),
            Err(error) => return Err(error),
        }
    }
    if is_folder(&tensors) {
        leftovers(&tensors, &mut work)?;
        unreferenced(&tensors, &mut work)?;
    }
    Ok(work.removed)
}

fn gc_run(run: RunEntry, keep: Option<usize>, work: &mut Work) -> Result<(), DumpError> {
    leftovers(&run.path, work)?;
    for graph in run.graphs {
        leftovers(&graph.path, work)?;
        for part in graph.parts {
            if let Some(keep) = keep {
                old_steps(&part.path, keep, work).map_err(DumpError::io(&part.path, "remove old steps of"))?;
            }
            leftovers(&part.path, work)?;
            let values = reader::value_folders(&part.path).map_err(DumpError::io(&part.path, "list"))?;
            for (_, folder) in values {
                leftovers(&folder, work)?;
            }
            for step in part.steps.iter().filter(|step| step.path.exists()) {
                leftovers(&step.path, work)?;
            }
        }
    }
    Ok(())
}

/// Removes a dump of ours, of whatever version, that nobody writes and that holds nothing else. Errors:
/// [`DumpError::NotOurs`], [`DumpError::Busy`], [`DumpError::Stranger`], [`DumpError::Io`].
pub(super) fn remove_run(folder: &Path) -> Result<(), DumpError> {
    let facts = folder.symlink_metadata().map_err(DumpError::io(folder, "read"))?;
    if !facts.is_dir() {
        return Err(DumpError::NotOurs { path: folder.to_owned() });
    }
    let _held = hold(folder)?;
    check_ours(folder, false)?;
    if let Some(stranger) = stranger_below(folder, Kind::Run).map_err(DumpError::io(folder, "list"))? {
        return Err(DumpError::Stranger { path: folder.to_owned(), stranger });
    }
    fs::remove_dir_all(folder).map_err(DumpError::io(folder, "remove"))
}

/// Removes blobs that no data set holds.
pub(super) fn remove_unreferenced(tensors: &Path) -> Result<(), DumpError> {
    unreferenced(tensors, &mut Work::default())
}

fn unreferenced(tensors: &Path, work: &mut Work) -> Result<(), DumpError> {
    for path in blobs(tensors)? {
        work.blob(&path).map_err(DumpError::io(&path, "remove"))?;
    }
    Ok(())
}

/// Files below `tensors` with the names that we give. None when it is a link: it may lead anywhere.
fn blobs(tensors: &Path) -> Result<Vec<PathBuf>, DumpError> {
    let is_blob = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.strip_suffix(".pb").is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let list = if is_folder(tensors) { entries(tensors)? } else { Vec::new() };
    Ok(list.into_iter().filter(is_blob).collect())
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
}

fn leftovers(folder: &Path, work: &mut Work) -> Result<(), DumpError> {
    for path in entries(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if !is_temporary(name) {
            continue;
        }
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        let old = facts.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFTOVER_AGE));
        if old && facts.is_file() && !is_locked(&path) {
            if !work.dry_run {
                remove_if_there(&path).map_err(DumpError::io(&path, "remove"))?;
            }
            work.removed.leftovers += 1;
            work.removed.bytes += facts.len();
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
fn old_steps(part: &Path, keep: usize, work: &mut Work) -> io::Result<()> {
    let mut complete: Vec<_> =
        reader::steps(part)?.into_iter().filter(|step| step.state == Completeness::Complete).collect();
    complete.truncate(complete.len().saturating_sub(keep));
    for step in &complete {
        match stranger(part, step)? {
            Some(path) => work.removed.keep(&step.path, format!("{} is not ours", path.display())),
            None => remove_step(part, step, work)?,
        }
    }
    Ok(())
}

/// The first thing, in the data set, the reproductions of its nodes and eager's values, that we did not write.
fn stranger(part: &Path, step: &StepEntry) -> io::Result<Option<PathBuf>> {
    let is_ours = |path: &Path, folder: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_its = matches!(name, MODEL_FILE | FILES_FILE) && path.parent() == Some(folder) && folder != step.path;
        // Of a node's reproduction the files are in a data set of its own; a folder in a data set is its user's.
        let of_inside = path.parent().filter(|_| folder != step.path).and_then(Path::parent);
        let is_here = [path.parent(), of_inside].contains(&Some(folder));
        is_here && (is_its || layout::is_data_set_file(name) || is_temporary(name))
    };
    for folder in std::iter::once(step.path.clone()).chain(reproductions(part, step.step)?) {
        for path in below(&folder)? {
            if !is_ours(&path, &folder) || !path.symlink_metadata()?.is_file() {
                return Ok(Some(path));
            }
        }
    }
    let values = part.join(layout::values_folder(step.step));
    let strange = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_ours = layout::is_values_file(name) || is_temporary(name);
        path.parent() != Some(&values) || !is_ours || !path.symlink_metadata().is_ok_and(|facts| facts.is_file())
    };
    Ok(if is_folder(&values) { below(&values)?.into_iter().find(strange) } else { None })
}

/// The first thing in a folder of this kind that we did not write.
fn stranger_below(folder: &Path, kind: Kind) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name, facts) = (entry.path(), entry.file_name(), entry.metadata()?);
        let name = name.to_str().unwrap_or_default();
        let below = if facts.is_dir() { kind.below(name) } else { None };
        match below {
            Some(kind) => {
                if let Some(stranger) = stranger_below(&path, kind)? {
                    return Ok(Some(stranger));
                }
            }
            None if facts.is_file() && kind.has_file(name) => {}
            None => return Ok(Some(path)),
        }
    }
    Ok(None)
}

fn remove_step(part: &Path, step: &StepEntry, work: &mut Work) -> io::Result<()> {
    let mut hashes: BTreeSet<String> = reader::manifest(&step.path)
        .map(|manifest| manifest.entries().map(|entry| entry.hash.clone()).collect())
        .unwrap_or_default();
    if let Ok(Some(values)) = reader::value_set(part, step.step) {
        hashes.extend(values.entries().map(|entry| entry.hash.clone()));
    }
    let values = part.join(layout::values_folder(step.step));
    let mut files = below(&step.path)?;
    if is_folder(&values) {
        files.extend(below(&values)?);
    }
    for folder in reproductions(part, step.step)? {
        files.extend(below(&folder)?);
    }
    let of_step = [layout::comparison_file, layout::nodes_file, layout::blame_file];
    files.extend(of_step.map(|name| part.join(name(step.step))));
    let facts: Vec<_> = files.iter().filter_map(|path| path.symlink_metadata().ok()).collect();
    // What has other names, the blob's among them, goes with the last of them.
    work.removed.bytes += facts.iter().filter(|facts| facts.nlink() == 1).map(|facts| facts.len()).sum::<u64>();
    work.removed.steps += 1;
    if work.dry_run {
        facts.iter().for_each(|facts| *work.names_gone.entry((facts.dev(), facts.ino())).or_default() += 1);
        return Ok(());
    }
    // Manifest first: what is half removed must not read as whole.
    remove_if_there(&step.path.join(MANIFEST_FILE))?;
    fs::remove_dir_all(&step.path)?;
    remove_if_there(&part.join(layout::comparison_file(step.step)))?;
    remove_if_there(&part.join(layout::blame_file(step.step)))?;
    remove_nodes(part, step.step)?;
    remove_values(part, step.step)?;
    // part → graph → run → folder
    if let Some(folder) = part.ancestors().nth(3) {
        let tensors = folder.join(TENSORS_FOLDER);
        for hash in hashes.iter().filter(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            work.blob(&blob_path(&tensors, hash))?;
        }
    }
    Ok(())
}

/// Everything below a folder that is no folder.
fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}
