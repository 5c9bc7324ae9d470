//! One process's dump, open: what it hands over, on disk at once or by the writer's thread.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::error::DumpError;
use super::layout::{
    self, DATA_SET_SCHEMA, DataSet, Incomplete, PARTS_SCHEMA, PROVENANCE_SCHEMA, RUN_SCHEMA, Role, TENSORS_FOLDER,
    check_name, schema,
};
use super::message::Content;
use super::nodes::{NodeReproduction, NodeTable, remove_nodes};
use super::owner::{Lock, check_ours, hold};
use super::reader;
use super::retention::{remove_run, remove_unreferenced};
use super::store::{Store, remove_if_there};
use super::values::{EagerValues, OpenValues, ValuesFolder, remove_values};
use super::writer::{FILE_MODE, FlushReport, GONE, Job, Queue, Shared, StepState};
use crate::base::files::{Folders, Umask, random_name, sync, write_whole};
use crate::base::ids::{GraphId, StepId, ValueName};
use crate::base::sync::lock;
use crate::compare::{Policy, TensorVerdict};
use crate::protocol::control::CallsToDump;
use crate::tensor::SharedTensor;

/// Copies of tensors that may wait for the disk; whoever hands over more waits.
const QUEUE_BYTES: usize = 1 << 30;

/// Time for calls to end whose data sets are begun, where a dump ends: one may hang.
const ENDING_CALLS: Duration = Duration::from_secs(5);

/// Time for writing down that a dump is incomplete.
const TELL: Duration = Duration::from_secs(2);

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
    /// Versions, devices, process, start: a JSON object. Who opens a dump that is open with the same says so of the same
    /// dump, over another connection. With `"durable": true` what is answered or told as written outlives a power cut.
    pub run_json: String,
    /// What is taken from permissions of its files: the client's umask.
    pub umask: Umask,
}

impl RunSpec {
    /// Whether run.json says so.
    fn is_durable(&self) -> bool {
        let facts: Option<Value> = serde_json::from_str(&self.run_json).ok();
        facts.and_then(|facts| facts.get("durable")?.as_bool()).unwrap_or(false)
    }

    /// `<folder>/<run>`, absolute. Errors: [`DumpError::Io`].
    pub fn path(&self) -> Result<PathBuf, DumpError> {
        let folder = std::path::absolute(&self.folder).map_err(DumpError::io(&self.folder, "find"))?;
        Ok(folder.join(&self.run))
    }
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

/// One process's dump. Methods may be called from several threads. Dropping it waits for the writer thread.
///
/// ```
/// use rust_ort::base::ids::StepId;
/// use rust_ort::dump::reader::{Completeness, steps};
/// use rust_ort::dump::{CallsToDump, DumpError, Run, RunSpec};
/// use rust_ort::tensor::TensorBuf;
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// let (folder, run_json) = (folder.path().to_owned(), String::new());
/// let (calls, umask) = (CallsToDump::All, Default::default());
/// let run = Run::open(&RunSpec { folder, run: "mine".into(), clean: false, calls, run_json, umask })?;
///
/// let x = TensorBuf::from_f32([2], &[1., 2.]).expect("two elements");
/// let step = run.begin_step("0_0-forward", 0, StepId(3), &[("x".to_owned(), x.shared())])?;
/// // Here the call runs: what it read is on disk, should it never end.
/// run.actuals(&step, &[("y".to_owned(), x.shared())]);
/// run.finish(&step);
/// assert!(run.flush().lost.is_empty());
///
/// let part = step.path().parent().expect("part_0");
/// let found = &steps(part).expect("a folder")[0];
/// assert_eq!((found.step, found.n_inputs, found.n_actuals, &found.state), (3, 1, 1, &Completeness::Complete));
/// # Ok::<(), DumpError>(())
/// ```
pub struct Run {
    /// What its files tell: see [`layout::run_id`].
    id: String,
    folder: PathBuf,
    calls: CallsToDump,
    run_json: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Folder name → the graph in it.
    graphs: Mutex<HashMap<String, GraphId>>,
    /// (folder name, part) → first step begun.
    first: Mutex<HashMap<(String, u32), StepId>>,
    /// Data sets of calls that have begun; some have ended since.
    begun: Mutex<Vec<Weak<StepState>>>,
    values: OpenValues,
    /// Its lock says that this dump is being written.
    _lock: Lock,
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
        // What is no JSON is refused before anything is removed.
        layout::with_facts(layout::RUN_FILE, &spec.run_json, &[schema(RUN_SCHEMA)])?;
        let folder = spec.path()?;
        let parent = folder.parent().unwrap_or(&folder);
        if spec.clean && folder.symlink_metadata().is_ok() {
            remove_run(&folder)?;
            let tensors = parent.join(TENSORS_FOLDER);
            if tensors.is_dir() {
                remove_unreferenced(&tensors)?;
            }
        }
        let durable = spec.is_durable();
        let folders = Folders::below(parent, spec.umask, durable);
        folders.make(&folder).map_err(DumpError::io(&folder, "create"))?;
        let held = hold(&folder)?;
        check_ours(&folder, true)?;
        let run_file = folder.join(layout::RUN_FILE);
        let id =
            layout::run_id(&folder).map_or_else(random_name, Ok).map_err(DumpError::io(&run_file, "draw an id for"))?;
        let facts = [schema(RUN_SCHEMA), (layout::RUN_ID_KEY, Value::from(id.as_str()))];
        let content = layout::with_facts(layout::RUN_FILE, &spec.run_json, &facts)?;
        // Who joins a run, or opens it again at another daemon, needs no room on a disk that is full by now.
        if layout::read_json(&run_file).ok().as_ref() != Some(&content) {
            write_whole(&run_file, spec.umask.of_file(FILE_MODE).durable(durable), &[&content])
                .map_err(DumpError::io(&run_file, "write"))?;
        }

        let shared = Arc::new(Shared {
            queue: Queue::new(QUEUE_BYTES),
            store: Store::new(parent.join(TENSORS_FOLDER), spec.umask, durable),
            folders,
            umask: spec.umask,
            durable,
            report: Mutex::default(),
            listing: Mutex::default(),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("dump-writer".to_owned()).spawn(move || worker.work());
        let thread = Some(thread.map_err(DumpError::io(&folder, "start the writer thread of"))?);
        let (graphs, first, begun, values) = Default::default();
        let run_json = spec.run_json.clone();
        Ok(Run { id, folder, calls: spec.calls, run_json, shared, thread, graphs, first, begun, values, _lock: held })
    }

    /// Whether this is the dump that is asked for, by whoever opened it.
    pub fn is_of(&self, spec: &RunSpec) -> bool {
        !spec.clean && self.calls == spec.calls && self.run_json == spec.run_json
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
            let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
            let texts = texts.map(|(file, text)| (file, text.as_bytes()));
            let files: Vec<_> = texts.chain([(layout::PARTS_FILE, parts.as_slice())]).collect();
            self.shared.write_listed(&folder, &files);
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
        let provenance = layout::with_facts(layout::PROVENANCE_FILE, provenance_json, &[schema(PROVENANCE_SCHEMA)])?;
        if self.make(&folder) {
            let files = [(layout::MODEL_FILE, model), (layout::PROVENANCE_FILE, provenance.as_slice())];
            self.shared.write_listed(&folder, &files);
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
            self.shared.write_listed(&folder, &[(file, model)]);
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
            run: self.id.clone(),
            graph: graph.to_owned(),
            part,
            step: step.0,
            inputs: Vec::new(),
            references: Vec::new(),
            actuals: Vec::new(),
            float64: Vec::new(),
            terms: Vec::new(),
            comparison: None,
            lost: Vec::new(),
        };
        let folder = part_folder.join(layout::step_folder(step.0));
        let (manifest, finished) = (Mutex::new(manifest), AtomicBool::new(false));
        let state = StepState { folder, part_folder, manifest, finished };
        let emptied =
            empty_step(&state, step.0, &self.shared).and_then(|()| self.values.remove_old(&state.part_folder, step));
        if let Err(error) = emptied {
            self.shared.lose_of(&state, format!("{}: {error}", state.folder.display()));
        }
        let step = StepFolder(Arc::new(state));
        {
            let mut begun = lock(&self.begun);
            begun.retain(|step| step.strong_count() > 0);
            begun.push(Arc::downgrade(&step.0));
        }
        self.inputs(&step, 0, inputs);
        Ok(step)
    }

    /// Writes inputs that were not at hand when the step began, the `first` of the model's and those after it; on disk on
    /// return, or lost and told.
    pub fn inputs(&self, step: &StepFolder, first: usize, inputs: &[(ValueName, SharedTensor<'_>)]) {
        let contents: Vec<_> = inputs.iter().map(|(name, tensor)| Content::shared(name, tensor)).collect();
        self.shared.put_all(&step.0, Role::Input, first, &contents);
    }

    /// Hand over what eager gave, in the model's order. Copies; waits only when the queue is full.
    pub fn references(&self, step: &StepFolder, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.references_from(step, 0, outputs);
    }

    /// As [`Run::references`], of the `first` and those after it.
    pub fn references_from(&self, step: &StepFolder, first: usize, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.tensors(step, Role::Reference, first, outputs);
    }

    /// Hand over what ONNX Runtime gave, in the model's order. Copies; waits only when the queue is full.
    pub fn actuals(&self, step: &StepFolder, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.actuals_from(step, 0, outputs);
    }

    /// As [`Run::actuals`], of the `first` and those after it.
    pub fn actuals_from(&self, step: &StepFolder, first: usize, outputs: &[(ValueName, SharedTensor<'_>)]) {
        self.tensors(step, Role::Actual, first, outputs);
    }

    fn tensors(&self, step: &StepFolder, role: Role, first: usize, tensors: &[(ValueName, SharedTensor<'_>)]) {
        for (index, (name, tensor)) in (first..).zip(tensors) {
            let (step, tensor) = (Arc::clone(&step.0), self.shared.store.copy(name, tensor));
            self.shared.hand_over(Job::Tensor { step, role, index, tensor });
        }
    }

    /// Hand over the verdicts of a call, and by what they are.
    pub fn comparison(&self, step: &StepFolder, verdicts: &[TensorVerdict], policy: Policy) {
        self.shared.hand_over(Job::Comparison { step: Arc::clone(&step.0), verdicts: verdicts.to_vec(), policy });
    }

    /// Hand over what more is known of an output, by its position: "float64" or "terms". Copies; waits only when the queue
    /// is full. The data set is to be finished once more.
    pub fn known(&self, step: &StepFolder, role: Role, output: usize, (name, tensor): (&str, SharedTensor<'_>)) {
        self.tensors(step, role, output, &[(name.to_owned(), tensor)]);
    }

    /// Hand over the nodes of a part in one call, and models of those that went wrong. Replaces what is there of this
    /// call. Errors: [`DumpError::BadName`].
    pub fn nodes(&self, mut table: NodeTable, reproductions: Vec<NodeReproduction>) -> Result<(), DumpError> {
        table.run.clone_from(&self.id);
        let part_folder = self.part_folder(&table.graph, table.part)?;
        if self.make(&part_folder) {
            self.shared.hand_over(Job::Nodes { part_folder, table, reproductions });
        }
        Ok(())
    }

    /// Begins the folder of eager's values in a call, in the place of what is there of this call. It stays incomplete
    /// until [`Run::finish_values`]. Errors: [`DumpError::BadName`].
    pub fn begin_values(&self, graph: &str, part: u32, step: StepId) -> Result<ValuesFolder, DumpError> {
        let part_folder = self.part_folder(graph, part)?;
        let values = ValuesFolder::new(&self.id, &part_folder, (graph, part, step));
        let made = remove_values(&part_folder, step.0).and_then(|()| self.shared.make(values.path()));
        if let Err(error) = made {
            self.shared.lose_value(&values, format!("{}: {error}", values.path().display()));
        }
        self.values.add(&values);
        Ok(values)
    }

    /// Writes eager's values; on disk on return, or lost and told. An input that is there already stays.
    pub fn values(&self, folder: &ValuesFolder, values: &EagerValues<'_>) {
        self.shared.put_values(folder, values);
    }

    /// Nothing more comes for this folder: its manifest is written after everything handed over for the call.
    pub fn finish_values(&self, folder: ValuesFolder) {
        self.shared.hand_over(Job::Values(folder));
    }

    /// Nothing more comes for this data set: its manifest is written after everything handed over for it. Of a durable dump
    /// that is done on return.
    pub fn finish(&self, step: &StepFolder) {
        self.shared.hand_over(Job::Finish { step: Arc::clone(&step.0) });
        step.0.finished.store(true, Ordering::SeqCst);
        if self.shared.durable {
            // Whoever asked is answered next.
            self.wait();
        }
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

    /// Ends the dump: calls that have begun may end, and what was handed over is written, within `limit`. Returns the files
    /// that are not, manifests of calls that have not ended among them, which are then told in the log and in
    /// `incomplete.json`, too; what is handed over later is lost. A second time returns nothing.
    pub fn end_within(&self, limit: Duration) -> Vec<PathBuf> {
        let began = Instant::now();
        // Those that begin meanwhile are not waited for: a client may go on calling.
        let running = self.running();
        while began.elapsed() < limit.min(ENDING_CALLS) && running.iter().any(is_running) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let running = self.running();
        let mut left = self.shared.queue.end_within(limit.saturating_sub(began.elapsed()));
        let manifests = running.iter().filter(|step| is_running(step)).filter_map(Weak::upgrade);
        left.extend(manifests.map(|step| step.folder.join(layout::MANIFEST_FILE)));
        left.sort();
        left.dedup();
        lock(&self.begun).clear();
        if let Some(first) = left.first() {
            let (n, run) = (left.len(), self.folder.display().to_string());
            tracing::error!(run, n, first = %first.display(), "dump: ended before everything was written");
            self.tell_incomplete(&left);
        }
        left
    }

    /// Calls that have begun, and not ended.
    fn running(&self) -> Vec<Weak<StepState>> {
        lock(&self.begun).iter().filter(|step| is_running(step)).cloned().collect()
    }

    /// Tells as lost what is not whole of data sets that another writer of this dump, which has ended, told a client of.
    /// One of which nothing is there has an empty folder afterwards, so that whoever reads the dump sees it, too.
    pub fn tell_unwritten(&self, answered: &[PathBuf]) {
        let of_run = answered.iter().filter(|path| reader::is_data_set_of(path, &self.folder));
        for path in of_run.filter(|path| !reader::is_whole(path)) {
            // A run that was moved is not begun anew.
            if path.parent().is_some_and(Path::is_dir) {
                self.make(path);
            }
            let why = "it is not there whole, and the daemon that answered its call has ended";
            self.shared.lose(format!("{}: {why}", path.display()));
        }
    }

    /// On a thread of its own: a disk that did not take the rest in time may not take this either.
    fn tell_incomplete(&self, left: &[PathBuf]) {
        let missing = left.iter().map(|path| path.strip_prefix(&self.folder).unwrap_or(path).to_owned()).collect();
        let json = layout::to_json(&Incomplete::new(missing));
        let (path, mode) = (self.folder.join(layout::INCOMPLETE_FILE), self.shared.making());
        let (done, waiting) = mpsc::channel();
        let write = move || drop(done.send(write_whole(&path, mode, &[&json])));
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
        let made = self.shared.make(folder);
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

/// Whether something may still come for a data set: its call holds it.
fn is_running(step: &Weak<StepState>) -> bool {
    step.upgrade().is_some_and(|step| !step.finished.load(Ordering::SeqCst))
}

/// An empty folder for the data set; a manifest goes first, so that the rest does not read as whole.
fn empty_step(state: &StepState, step: u64, shared: &Shared) -> io::Result<()> {
    shared.make(&state.folder)?;
    remove_if_there(&state.folder.join(layout::MANIFEST_FILE))?;
    if shared.durable {
        sync(&state.folder)?;
    }
    remove_if_there(&state.part_folder.join(layout::comparison_file(step)))?;
    remove_nodes(&state.part_folder, step)?;
    for role in Role::ALL {
        for path in reader::tensor_paths(&state.folder, role)? {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}

fn graph_on_disk(folder: &Path) -> Option<GraphId> {
    let parts: Value = serde_json::from_slice(&layout::read_json(&folder.join(layout::PARTS_FILE)).ok()?).ok()?;
    parts.get("graph_id")?.as_str()?.parse().ok()
}
