//! Graphs, models and tensors on disk, in a layout that other tools read.
//!
//! `<folder>/<run>/<graph>/part_<k>/test_data_set_<step>/`; equal tensors stand once below `<folder>/tensors/`. Every
//! file is written whole or not at all, a data set's `manifest.json` last. What cannot be written (a full disk) is told
//! in the [`FlushReport`] and the log, and never stops the run. Files are not synced: they outlive any process, not a
//! power cut. A tensor past 2 GiB is written too, though protobuf's own readers refuse it; [`crate::onnx`] reads it.

mod layout;
mod nodes;
pub mod reader;
mod retention;
mod store;
mod writer;

use std::any::Any;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use thiserror::Error;

use crate::base::ids::{GraphId, StepId, ValueName};
use crate::compare::TensorVerdict;
use crate::tensor::SharedTensor;
use layout::{DATA_SET_SCHEMA, PARTS_SCHEMA, PROVENANCE_SCHEMA, RUN_SCHEMA, TENSORS_FOLDER, check_name, schema};
use writer::{GONE, Job, Queue, Shared, StepState, lock};

pub use crate::protocol::control::CallsToDump;
pub use layout::{Comparison, DataSet, FileEntry, Incomplete, Role};
pub use nodes::{NODES_SCHEMA, NodeReproduction, NodeRow, NodeTable};
pub use retention::{Kept, Removed, gc};
pub use writer::FlushReport;

/// Copies of tensors that may wait for the disk; whoever hands over more waits.
const QUEUE_BYTES: usize = 1 << 30;

/// Time for writing down that a dump is incomplete.
const TELL: Duration = Duration::from_secs(2);

/// Why a dump cannot be opened, or why what the client sent cannot be part of one.
#[derive(Debug, Error)]
pub enum DumpError {
    /// The file system said no.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// "create", "list", …
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A name that is not one folder's.
    #[error(
        "{what} name {name:?}: expected 1 to 200 bytes without '/', control characters or a leading '.', and not \
         \"tensors\" for a run; choose another name"
    )]
    BadName {
        /// "run" or "graph".
        what: &'static str,
        /// As given, its start.
        name: String,
    },
    /// Text that should be JSON.
    #[error("{what}: no JSON: {source}; send a JSON object")]
    BadJson {
        /// "run.json", …
        what: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The run's folder holds something else.
    #[error("{}: not a dump of ours (no run.json that says so), so it stays; choose another folder or run", path.display())]
    NotOurs {
        /// The run's folder.
        path: PathBuf,
    },
    /// The run's folder holds something that no dump has.
    #[error(
        "{}: {} in it is not ours, so that nothing is removed; move it elsewhere, or choose another run",
        path.display(),
        stranger.display()
    )]
    Stranger {
        /// The run's folder.
        path: PathBuf,
        /// What is there.
        stranger: PathBuf,
    },
    /// The run's folder holds a dump of another version.
    #[error("{}: a dump of version {found:?}, expected {RUN_SCHEMA:?}; open it with clean, or choose another run", path.display())]
    OtherVersion {
        /// The run's folder.
        path: PathBuf,
        /// The schema in its run.json.
        found: String,
    },
    /// Another client dumps there.
    #[error("{}: another client is writing this dump; choose another run name", path.display())]
    Busy {
        /// The run's folder.
        path: PathBuf,
    },
    /// A folder without runs.
    #[error("{}: not a folder of dumps: neither runs nor tensors of ours are in it; name the folder that holds the runs", path.display())]
    NoRuns {
        /// The folder.
        path: PathBuf,
    },
    /// A path that is nothing of a dump.
    #[error(
        "{}: neither a folder of dumps, a run, a graph, a part, a data set, a folder of a node, nor a .onnx, .pb or .json \
         file; name one",
        path.display()
    )]
    NoDump {
        /// The path.
        path: PathBuf,
    },
}

impl DumpError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}

/// Where a dump goes and what it keeps.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Folder of dumps; created when missing.
    pub folder: PathBuf,
    /// Folder name below it.
    pub run: String,
    /// Remove `<folder>/<run>` first, if it is a dump of ours and nothing else is in it. Without it a dump of ours is carried on.
    pub clean: bool,
    /// Which calls.
    pub calls: CallsToDump,
    /// Versions, devices, options, start: a JSON object.
    pub run_json: String,
    /// Only the newest complete steps of each part stay; None: all.
    pub keep_steps: Option<usize>,
}

/// One AOT graph on its way to disk.
#[derive(Clone, Debug)]
pub struct GraphRecord<'a> {
    /// Content hash.
    pub graph: GraphId,
    /// torch's name of it, e.g. "0_0-forward".
    pub name: &'a str,
    /// "forward", "backward" or "inference".
    pub direction: &'a str,
    /// As Dynamo captured it.
    pub dynamo_text: &'a str,
    /// Forward and backward together; "" where there is none.
    pub joint_text: &'a str,
    /// What was compiled.
    pub fx_text: &'a str,
    /// The partition.
    pub parts_json: &'a str,
}

/// One client's dump. Methods may be called from several threads. Dropping it waits for the writer thread.
pub struct Run {
    folder: PathBuf,
    calls: CallsToDump,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Folder name → the graph in it.
    graphs: Mutex<HashMap<String, GraphId>>,
    /// (folder name, part) → first step begun.
    first: Mutex<HashMap<(String, u32), StepId>>,
    /// Its lock says that this dump is being written.
    _lock: File,
}

/// A data set being written. It stays incomplete until [`Run::finish`].
#[derive(Clone, Debug)]
pub struct StepFolder(Arc<StepState>);

impl StepFolder {
    /// `…/test_data_set_<step>`.
    pub fn path(&self) -> &Path {
        &self.0.folder
    }
}

impl Run {
    /// Create or carry on `<folder>/<run>` and start its writer thread. Errors: [`DumpError`].
    pub fn open(spec: &RunSpec) -> Result<Run, DumpError> {
        check_name("run", &spec.run)?;
        let run_json = layout::with_facts("run.json", &spec.run_json, &[schema(RUN_SCHEMA)])?;
        let parent = std::path::absolute(&spec.folder).map_err(DumpError::io(&spec.folder, "find"))?;
        let folder = parent.join(&spec.run);
        if spec.clean && folder.symlink_metadata().is_ok() {
            remove_run(&folder)?;
            let tensors = parent.join(TENSORS_FOLDER);
            if tensors.is_dir() {
                retention::unreferenced(&tensors, &mut Removed::default())?;
            }
        }
        fs::create_dir_all(&folder).map_err(DumpError::io(&folder, "create"))?;
        let held = hold(&folder)?;
        check_ours(&folder, true)?;
        let run_file = folder.join(layout::RUN_FILE);
        crate::base::files::write_whole(&run_file, 0o644, &[&run_json]).map_err(DumpError::io(&run_file, "write"))?;

        let shared = Arc::new(Shared {
            queue: Queue::new(QUEUE_BYTES),
            store: store::Store::new(parent.join(TENSORS_FOLDER)),
            keep_steps: spec.keep_steps,
            report: Mutex::default(),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("dump-writer".to_owned()).spawn(move || worker.work());
        let thread = Some(thread.map_err(DumpError::io(&folder, "start the writer thread of"))?);
        let (graphs, first) = Default::default();
        Ok(Run { folder, calls: spec.calls, shared, thread, graphs, first, _lock: held })
    }

    /// `<folder>/<run>`, absolute.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Write the graph's texts and partition; on disk on return, or lost and told. Returns the graph's folder name:
    /// its own, or with `.2`, `.3` … when another graph has it (torch counts from 0 again after a reset). A graph that
    /// is there already keeps its folder. Errors: [`DumpError::BadName`], [`DumpError::BadJson`].
    pub fn graph(&self, record: &GraphRecord<'_>) -> Result<String, DumpError> {
        check_name("graph", record.name)?;
        let name = self.folder_of(record);
        let facts = [
            schema(PARTS_SCHEMA),
            ("graph_id", Value::from(record.graph.to_string())),
            ("name", Value::from(record.name)),
            ("direction", Value::from(record.direction)),
        ];
        let parts = layout::with_facts(layout::PARTS_FILE, record.parts_json, &facts)?;
        let folder = self.folder.join(&name);
        if self.make(&folder) {
            let texts =
                [("dynamo.txt", record.dynamo_text), ("joint.txt", record.joint_text), ("fx.txt", record.fx_text)];
            for (file, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
                self.shared.write(&folder.join(file), text.as_bytes());
            }
            self.shared.write(&folder.join(layout::PARTS_FILE), &parts);
        }
        Ok(name)
    }

    fn folder_of(&self, record: &GraphRecord<'_>) -> String {
        let mut graphs = lock(&self.graphs);
        let mut name = record.name.to_owned();
        for n in 2_u64.. {
            let holder = graphs.get(&name).copied().or_else(|| graph_on_disk(&self.folder.join(&name)));
            if holder.is_none_or(|holder| holder == record.graph) {
                break;
            }
            name = format!("{}.{n}", record.name);
        }
        graphs.insert(name.clone(), record.graph);
        name
    }

    /// Write a part's model and provenance; on disk on return, or lost and told. `graph`: a folder name that
    /// [`Run::graph`] gave. Errors: [`DumpError::BadName`], [`DumpError::BadJson`].
    pub fn part(&self, graph: &str, part: u32, model: &[u8], provenance_json: &str) -> Result<(), DumpError> {
        let folder = self.part_folder(graph, part)?;
        let provenance = layout::with_facts("provenance.json", provenance_json, &[schema(PROVENANCE_SCHEMA)])?;
        if self.make(&folder) {
            self.shared.write(&folder.join(layout::MODEL_FILE), model);
            self.shared.write(&folder.join("provenance.json"), &provenance);
        }
        Ok(())
    }

    /// Write a part's model after the precision pass. As [`Run::part`].
    pub fn precision(&self, graph: &str, part: u32, model: &[u8]) -> Result<(), DumpError> {
        self.beside_model(graph, part, "model.precision.onnx", model)
    }

    /// Write a part's model as ONNX Runtime optimized it. As [`Run::part`].
    pub fn optimized(&self, graph: &str, part: u32, model: &[u8]) -> Result<(), DumpError> {
        self.beside_model(graph, part, "model.ort.onnx", model)
    }

    fn beside_model(&self, graph: &str, part: u32, file: &str, model: &[u8]) -> Result<(), DumpError> {
        let folder = self.part_folder(graph, part)?;
        if self.make(&folder) {
            self.shared.write(&folder.join(file), model);
        }
        Ok(())
    }

    /// Whether this call is one of those to dump. The first call is the first that was begun: a dump may be opened
    /// after a graph has run.
    pub fn wants(&self, graph: &str, part: u32, step: StepId) -> bool {
        match self.calls {
            CallsToDump::None => false,
            CallsToDump::All => true,
            CallsToDump::First => lock(&self.first).get(&(graph.to_owned(), part)).is_none_or(|&first| first == step),
        }
    }

    /// Write the inputs of a call, in the model's order; on disk on return, or lost and told. A data set that is there
    /// already is replaced. Errors: [`DumpError::BadName`].
    pub fn begin_step(
        &self,
        graph: &str,
        part: u32,
        step: StepId,
        inputs: &[(ValueName, SharedTensor<'_>)],
    ) -> Result<StepFolder, DumpError> {
        let part_folder = self.part_folder(graph, part)?;
        lock(&self.first).entry((graph.to_owned(), part)).or_insert(step);
        let manifest = DataSet {
            schema: DATA_SET_SCHEMA.to_owned(),
            graph: graph.to_owned(),
            part,
            step: step.0,
            inputs: Vec::new(),
            references: Vec::new(),
            actuals: Vec::new(),
            comparison: None,
            lost: Vec::new(),
        };
        let folder = part_folder.join(layout::step_folder(step.0));
        let state = StepState { folder, part_folder, manifest: Mutex::new(manifest) };
        if let Err(error) = empty_step(&state, step.0) {
            self.shared.lose_of(&state, format!("{}: {error}", state.folder.display()));
        }
        for (index, (name, tensor)) in inputs.iter().enumerate() {
            self.shared.put(&state, Role::Input, index, name, tensor);
        }
        Ok(StepFolder(Arc::new(state)))
    }

    /// Hand over what eager gave, in the model's order. Copies; waits only when the queue is full.
    pub fn references(&self, step: &StepFolder, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.tensors(step, Role::Reference, outputs);
    }

    /// Hand over what ONNX Runtime gave, in the model's order. Copies; waits only when the queue is full.
    pub fn actuals(&self, step: &StepFolder, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.tensors(step, Role::Actual, outputs);
    }

    fn tensors(&self, step: &StepFolder, role: Role, tensors: &[(ValueName, SharedTensor<'_>)]) {
        for (index, (name, tensor)) in tensors.iter().enumerate() {
            let (step, name, tensor) = (Arc::clone(&step.0), name.clone(), tensor.to_owned());
            self.shared.hand_over(Job::Tensor { step, role, index, name, tensor });
        }
    }

    /// Hand over the verdicts of a call.
    pub fn comparison(&self, step: &StepFolder, verdicts: &[TensorVerdict]) {
        self.shared.hand_over(Job::Comparison { step: Arc::clone(&step.0), verdicts: verdicts.to_vec() });
    }

    /// Hand over the nodes of a part in one call, and models of those that went wrong. Replaces what is there of this
    /// call. Errors: [`DumpError::BadName`].
    pub fn nodes(&self, table: NodeTable, reproductions: Vec<NodeReproduction>) -> Result<(), DumpError> {
        let part_folder = self.part_folder(&table.graph, table.part)?;
        if self.make(&part_folder) {
            self.shared.hand_over(Job::Nodes { part_folder, table, reproductions });
        }
        Ok(())
    }

    /// Nothing more comes for this data set: its manifest is written after everything handed over for it.
    pub fn finish(&self, step: &StepFolder) {
        self.shared.hand_over(Job::Finish { step: Arc::clone(&step.0) });
    }

    /// Drops `kept` when everything handed over so far is on disk or lost: what counts its bytes, say.
    pub fn keep_until_written(&self, kept: impl Any + Send) {
        self.shared.hand_over(Job::Kept(Box::new(kept)));
    }

    /// Waits until everything handed over so far is on disk or lost; [`Run::flush`] tells what was lost.
    pub fn wait(&self) {
        let (until, written) = mpsc::channel::<()>();
        self.keep_until_written(until);
        // It ends with the other side.
        let _ = written.recv();
    }

    /// Wait until everything handed over so far is on disk or lost, and tell. Of a dump that has ended, or whose writer
    /// thread has, that is told as a loss, every time.
    pub fn flush(&self) -> FlushReport {
        let (reply, answer) = mpsc::channel();
        // One that is not taken is dropped, and so answered.
        drop(self.shared.queue.push(Job::Flush(reply)));
        answer.recv().unwrap_or_else(|_| {
            let mut report = self.shared.take_report();
            report.lost.push(format!("{}: {GONE}", self.folder.display()));
            report
        })
    }

    /// Ends the dump: what was handed over is written within `limit`. Returns the files that are not, which are then
    /// told in the log and in `incomplete.json`, too; what is handed over later is lost. A second time returns nothing.
    pub fn end_within(&self, limit: Duration) -> Vec<PathBuf> {
        let left = self.shared.queue.end_within(limit);
        if let Some(first) = left.first() {
            let (n, run) = (left.len(), self.folder.display().to_string());
            tracing::error!(run, n, first = %first.display(), "dump: ended before everything was written");
            self.tell_incomplete(&left);
        }
        left
    }

    /// On a thread of its own: a disk that did not take the rest in time may not take this either.
    fn tell_incomplete(&self, left: &[PathBuf]) {
        let missing = left.iter().map(|path| path.strip_prefix(&self.folder).unwrap_or(path).to_owned()).collect();
        let json = layout::to_json(&Incomplete::new(missing));
        let path = self.folder.join(layout::INCOMPLETE_FILE);
        let (done, waiting) = mpsc::channel();
        let write = move || drop(done.send(crate::base::files::write_whole(&path, 0o644, &[&json])));
        let started = std::thread::Builder::new().name("dump-incomplete".to_owned()).spawn(write);
        let written = started.map_err(|error| error.to_string()).and_then(|_| {
            let told = waiting.recv_timeout(TELL).map_err(|_| "the disk does not answer".to_owned())?;
            told.map_err(|error| error.to_string())
        });
        if let Err(error) = written {
            tracing::error!(run = %self.folder.display(), error, "dump: that it is incomplete could not be written there");
        }
    }

    fn part_folder(&self, graph: &str, part: u32) -> Result<PathBuf, DumpError> {
        check_name("graph", graph)?;
        Ok(self.folder.join(graph).join(layout::part_folder(part)))
    }

    fn make(&self, folder: &Path) -> bool {
        let made = fs::create_dir_all(folder);
        if let Err(error) = &made {
            self.shared.lose(format!("{}: {error}", folder.display()));
        }
        made.is_ok()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.queue.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(run = %self.folder.display(), "dump: the writer thread panicked; what it had is lost");
        }
    }
}

/// An empty folder for the data set; a manifest goes first, so that the rest does not read as whole.
fn empty_step(state: &StepState, step: u64) -> io::Result<()> {
    fs::create_dir_all(&state.folder)?;
    store::remove_if_there(&state.folder.join(layout::MANIFEST_FILE))?;
    store::remove_if_there(&state.part_folder.join(layout::comparison_file(step)))?;
    nodes::remove_nodes(&state.part_folder, step)?;
    for role in Role::ALL {
        for (_, path) in reader::tensors(&state.folder, role)? {
            store::remove_if_there(&path)?;
        }
    }
    Ok(())
}

fn graph_on_disk(folder: &Path) -> Option<GraphId> {
    let parts: Value = serde_json::from_slice(&fs::read(folder.join(layout::PARTS_FILE)).ok()?).ok()?;
    parts.get("graph_id")?.as_str()?.parse().ok()
}

fn hold(folder: &Path) -> Result<File, DumpError> {
    let held = File::open(folder).map_err(DumpError::io(folder, "open"))?;
    flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => DumpError::Busy { path: folder.to_owned() },
        other => DumpError::io(folder, "lock")(other.into()),
    })?;
    Ok(held)
}

/// Whether a folder is a dump of ours, of whatever version.
pub fn is_ours(folder: &Path) -> bool {
    layout::run_schema(folder).is_some()
}

/// Whether somebody has the dump open.
pub fn is_being_written(folder: &Path) -> bool {
    matches!(hold(folder), Err(DumpError::Busy { .. }))
}

/// A dump of ours, or an empty folder.
fn check_ours(folder: &Path, this_version: bool) -> Result<(), DumpError> {
    let path = folder.to_owned();
    match layout::run_schema(folder) {
        Some(found) if this_version && found != RUN_SCHEMA => Err(DumpError::OtherVersion { path, found }),
        Some(_) => Ok(()),
        None => {
            let mut entries = fs::read_dir(folder).map_err(DumpError::io(folder, "list"))?;
            if entries.next().is_none() { Ok(()) } else { Err(DumpError::NotOurs { path }) }
        }
    }
}

fn remove_run(folder: &Path) -> Result<(), DumpError> {
    let facts = folder.symlink_metadata().map_err(DumpError::io(folder, "read"))?;
    if !facts.is_dir() {
        return Err(DumpError::NotOurs { path: folder.to_owned() });
    }
    let _held = hold(folder)?;
    check_ours(folder, false)?;
    if let Some(stranger) = retention::stranger_in(folder).map_err(DumpError::io(folder, "list"))? {
        return Err(DumpError::Stranger { path: folder.to_owned(), stranger });
    }
    fs::remove_dir_all(folder).map_err(DumpError::io(folder, "remove"))
}
