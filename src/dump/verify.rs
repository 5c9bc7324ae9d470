//! All files of a dump held against what it says of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::{Damage, DumpError};
use super::files::{list_of, other_content};
use super::layout::{self, FILES_FILE, Kind, MANIFEST_FILE, TENSORS_FOLDER};
use super::reader::{self, Completeness, Place};
use crate::base::files::{is_temporary, open_regular};
use crate::base::limits;
use crate::onnx::tensor_file_len;

/// What became of the files below a place of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Files whose content is what was written.
    pub whole: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Files whose content is not, or that cannot be read.
    pub damaged: Vec<Damage>,
    /// Files that are told of and are not there.
    pub missing: Vec<PathBuf>,
    /// Files of which nothing tells what should be in them, in folders that list theirs.
    pub unlisted: Vec<PathBuf>,
    /// Files of which nothing tells: of a version before seals, or of a data set that was never finished.
    pub not_sealed: Vec<PathBuf>,
    /// What was never whole, as the dump itself says.
    pub incomplete: Vec<Incompleteness>,
}

/// What of a dump was not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incompleteness {
    /// The folder, or the file.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl Verified {
    /// Whether nothing is damaged or missing.
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty()
    }
}

/// Reads every file below a folder of runs, a run, a graph, a part, a data set or the folder of a node. A file with several
/// names is read once. Errors: [`DumpError::NoDump`], [`DumpError::Io`] of a folder that cannot be listed.
pub fn verify(path: &Path) -> Result<Verified, DumpError> {
    let mut work = Work::default();
    let told = |error| DumpError::io(path, "list")(error);
    match reader::find(path)? {
        Place::Folder(runs) => {
            for run in &runs {
                work.folder(&run.path, Kind::Run).map_err(told)?;
            }
            work.without_run_file(path, &runs).map_err(told)?;
            work.blobs(&path.join(TENSORS_FOLDER)).map_err(told)?;
        }
        Place::Run(_) => work.folder(path, Kind::Run).map_err(told)?,
        Place::Graph(_) => work.folder(path, Kind::Graph).map_err(told)?,
        Place::Part(_) => work.folder(path, Kind::Part).map_err(told)?,
        Place::Case(_) => work.folder(path, Kind::Reproduction).map_err(told)?,
        Place::Step(_) => work.folder(path, Kind::DataSet).map_err(told)?,
        Place::Model(_) | Place::Tensor(_) | Place::Json(_) | Place::Text(_) => {
            return Err(DumpError::NoDump { path: path.to_owned() });
        }
    }
    Ok(work.found)
}

#[derive(Default)]
struct Work {
    found: Verified,
    /// (device, inode) → blake3.
    hashes: HashMap<(u64, u64), String>,
}

impl Work {
    fn folder(&mut self, folder: &Path, kind: Kind) -> io::Result<()> {
        let mut told = self.told_of(folder, kind);
        for name in self.names(folder)? {
            let path = folder.join(&name);
            if path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
                match kind.below(&name) {
                    Some(below) => self.folder(&path, below)?,
                    None => self.found.unlisted.push(path),
                }
            } else if !is_temporary(&name) {
                self.file(&path, &name, &mut told);
            }
        }
        // A folder that is there tells of its files itself.
        let is_told = |name: &String| match name.split_once('/') {
            Some((inside, _)) => !folder.join(inside).is_dir(),
            None => true,
        };
        let missing = told.hashes.into_keys().filter(is_told).map(|name| folder.join(name));
        self.found.missing.extend(missing.chain(told.others.into_iter().map(|name| folder.join(name))));
        self.incomplete(folder, kind);
        Ok(())
    }

    /// What a folder says was not written. A file of it that cannot be read is damaged, which is told of the file.
    fn incomplete(&mut self, folder: &Path, kind: Kind) {
        match kind {
            Kind::Run => {
                let told = reader::incomplete(folder).ok().flatten();
                for path in told.into_iter().flat_map(|incomplete| incomplete.missing) {
                    self.not_whole(&folder.join(path), "its daemon ended before it was written");
                }
            }
            Kind::Graph => {
                for part in reader::parts_told(folder).unwrap_or_default() {
                    let path = folder.join(layout::part_folder(part));
                    if !path.is_dir() {
                        self.not_whole(&path, "parts.json tells of it, and it was never written or is gone");
                    }
                }
            }
            Kind::DataSet => match (reader::manifest(folder), reader::state(folder)) {
                (Ok(manifest), _) => {
                    manifest.lost.iter().for_each(|reason| self.not_whole(folder, reason));
                    let comparison = manifest.comparison.map(|_| layout::comparison_file(manifest.step));
                    let path = comparison.map(|file| folder.with_file_name(file));
                    self.found.missing.extend(path.filter(|path| !path.exists()));
                }
                (Err(_), Completeness::Incomplete(reason)) => self.not_whole(folder, &reason),
                _ => {}
            },
            Kind::Values => {
                let step = folder
                    .file_name()
                    .and_then(OsStr::to_str)
                    .and_then(|name| layout::number(name, layout::VALUES_PREFIX, ""));
                let part = folder.parent().unwrap_or(Path::new("."));
                match reader::value_set(part, step.unwrap_or_default()) {
                    Ok(Some(values)) => values.lost.iter().for_each(|reason| self.not_whole(folder, reason)),
                    Ok(None) => self.not_whole(folder, "no manifest: the run ended before it was whole"),
                    Err(_) => {}
                }
            }
            Kind::Part | Kind::Reproduction => {}
        }
    }

    fn not_whole(&mut self, path: &Path, reason: &str) {
        self.found.incomplete.push(Incompleteness { path: path.to_owned(), reason: reason.to_owned() });
    }

    /// What is in a folder, by name. A name that is no UTF-8 is none that we give.
    fn names(&mut self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            match entry?.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(name) => self.found.unlisted.push(folder.join(name)),
            }
        }
        names.sort();
        Ok(names)
    }

    fn file(&mut self, path: &Path, name: &str, told: &mut Told) {
        let is_json = name.ends_with(".json");
        told.others.remove(name);
        let hash = told.hashes.remove(name);
        if is_json {
            if let Err(error) = self.json(path, name, hash.as_deref()) {
                self.bad(path, &error);
            }
            return;
        }
        match hash {
            Some(hash) => self.content(path, &hash),
            None if told.lists => self.found.unlisted.push(path.to_owned()),
            None => self.found.not_sealed.push(path.to_owned()),
        }
    }

    /// A JSON file tells of itself; one that is listed, twice.
    fn json(&mut self, path: &Path, name: &str, listed: Option<&str>) -> io::Result<()> {
        let bytes = layout::read_checked(path)?;
        if let Some(hash) = listed {
            super::files::compare(path, &bytes, hash)?;
        }
        self.found.bytes += bytes.len() as u64;
        if !layout::is_sealed(&bytes) {
            self.found.not_sealed.push(path.to_owned());
            return Ok(());
        }
        if let Some(expected) = layout::schemas_of(name) {
            let schema = serde_json::from_slice::<layout::Version<'_>>(&bytes)?.schema;
            layout::versioned(path, &schema, expected)?;
        }
        // What it says it is of.
        let folder = path.parent().unwrap_or(Path::new("."));
        let step = |prefix| layout::number(name, prefix, ".json");
        let folder_name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if let Some(step) = step("comparison_") {
            reader::comparison_of(folder, step)?;
        } else if let Some(step) = step("nodes_") {
            reader::nodes(folder, step)?;
        } else if name == MANIFEST_FILE {
            match layout::number(folder_name, layout::VALUES_PREFIX, "") {
                Some(step) => drop(reader::value_set(folder.parent().unwrap_or(Path::new(".")), step)?),
                None => drop(reader::manifest(folder)?),
            }
        }
        self.found.whole += 1;
        Ok(())
    }

    fn content(&mut self, path: &Path, expected: &str) {
        match self.hash(path) {
            Err(error) => self.bad(path, &error),
            Ok(hash) if hash == expected => self.found.whole += 1,
            Ok(hash) => self.found.damaged.push(other_content(path, expected, &hash)),
        }
    }

    fn bad(&mut self, path: &Path, error: &io::Error) {
        let damage = Damage::of(error).cloned().unwrap_or_else(|| Damage::new(path, error.to_string()));
        self.found.damaged.push(damage);
    }

    fn hash(&mut self, path: &Path) -> io::Result<String> {
        let (mut file, facts) = open_regular(path)?;
        let key = (facts.dev(), facts.ino());
        if let Some(known) = self.hashes.get(&key) {
            return Ok(known.clone());
        }
        check_length(path, &mut file, facts.len())?;
        let most = limits::file_bytes();
        if facts.len() > most {
            let why = format!("{} bytes, which is more than any reader takes here ({most}): not read", facts.len());
            return Err(Damage::new(path, why).into());
        }
        let hash = blake3::Hasher::new().update_reader(&mut file)?.finalize().to_string();
        self.found.bytes += facts.len();
        self.hashes.insert(key, hash.clone());
        Ok(hash)
    }

    /// What is told of the files of a folder. What cannot be read is damaged itself, which is found when it is its turn.
    fn told_of(&self, folder: &Path, kind: Kind) -> Told {
        let entry = |entry: &layout::FileEntry| (entry.file.clone(), entry.hash.clone());
        let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let above = absolute.parent().unwrap_or(Path::new("/"));
        let name = absolute.file_name().and_then(OsStr::to_str).unwrap_or_default();
        match kind {
            Kind::Run => Told { lists: true, ..Told::default() },
            Kind::Graph | Kind::Part | Kind::Reproduction => match list_of(folder) {
                Ok(Some(list)) => Told { hashes: list.files, ..Told::listing() },
                Ok(None) => Told { others: self.expected_list(folder, kind), ..Told::default() },
                Err(_) => Told::default(),
            },
            Kind::DataSet => match reader::manifest(folder) {
                Ok(manifest) => Told { hashes: manifest.entries().map(entry).collect(), ..Told::listing() },
                Err(_) => {
                    let list = list_of(above).ok().flatten().unwrap_or_default();
                    let own = list.files.into_iter().filter_map(|(path, hash)| {
                        Some((path.strip_prefix(name)?.strip_prefix('/')?.to_owned(), hash))
                    });
                    let hashes: BTreeMap<_, _> = own.collect();
                    Told { lists: !hashes.is_empty(), hashes, ..Told::default() }
                }
            },
            Kind::Values => {
                let step = layout::number(name, layout::VALUES_PREFIX, "").unwrap_or_default();
                match reader::value_set(above, step) {
                    Ok(Some(values)) => Told { hashes: values.entries().map(entry).collect(), ..Told::listing() },
                    _ => Told::default(),
                }
            }
        }
    }

    /// The list of a folder, where its other files are of a version that has lists.
    fn expected_list(&self, folder: &Path, kind: Kind) -> BTreeSet<String> {
        let file = match kind {
            Kind::Graph => layout::PARTS_FILE,
            Kind::Part => layout::PROVENANCE_FILE,
            _ => return BTreeSet::new(),
        };
        let is_sealed = layout::read_json(&folder.join(file)).is_ok_and(|bytes| layout::is_sealed(&bytes));
        if is_sealed { BTreeSet::from([FILES_FILE.to_owned()]) } else { BTreeSet::new() }
    }

    /// Runs whose run.json is gone: folders with graphs of ours.
    fn without_run_file(&mut self, folder: &Path, known: &[reader::RunEntry]) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            let is_graph = |entry: io::Result<fs::DirEntry>| {
                entry.is_ok_and(|entry| entry.path().join(layout::PARTS_FILE).symlink_metadata().is_ok())
            };
            if kind.is_dir() && known.iter().all(|run| run.path != path) && fs::read_dir(&path)?.any(is_graph) {
                self.found.missing.push(path.join(layout::RUN_FILE));
                self.folder(&path, Kind::Run)?;
            }
        }
        Ok(())
    }

    /// Tensors by content: each is named by its hash.
    fn blobs(&mut self, tensors: &Path) -> io::Result<()> {
        if !tensors.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
            return Ok(());
        }
        for name in self.names(tensors)? {
            let path = tensors.join(&name);
            match layout::blob_hash(&name) {
                Some(hash) => self.content(&path, hash),
                None if is_temporary(&name) => {}
                None => self.found.unlisted.push(path),
            }
        }
        Ok(())
    }
}

/// What is read of a tensor's file before the rest: more than any header of ours.
const START_BYTES: u64 = 64 << 10;

/// A tensor's file that is longer or shorter than it says is damaged, and is not read: a sparse one may claim to be as large
/// as it likes.
fn check_length(path: &Path, file: &mut File, len_bytes: u64) -> io::Result<()> {
    if len_bytes <= START_BYTES || path.extension() != Some(OsStr::new("pb")) {
        return Ok(());
    }
    let mut start = Vec::with_capacity(START_BYTES as usize);
    file.by_ref().take(START_BYTES).read_to_end(&mut start)?;
    file.rewind()?;
    let why = match tensor_file_len(&start) {
        Ok(Some(expected)) if expected != len_bytes => {
            format!("its header is of a file of {expected} bytes, got {len_bytes}")
        }
        Ok(_) => return Ok(()),
        Err(why) => format!("{len_bytes} bytes that do not begin as a tensor: {why}"),
    };
    Err(Damage::new(path, why).into())
}

/// What a folder tells of its files.
#[derive(Default)]
struct Told {
    /// Name → blake3.
    hashes: BTreeMap<String, String>,
    /// Files that are to be there.
    others: BTreeSet<String>,
    /// Whether all of its files should be told of.
    lists: bool,
}

impl Told {
    fn listing() -> Self {
        Self { lists: true, ..Self::default() }
    }
}
