//! The thread that writes what nobody waits for, and the queue to it, bounded by bytes. When the thread is gone, whatever
//! way, or the dump was ended, the queue takes nothing more: what would be handed over is lost and told.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::files;
use super::layout::{self, COMPARISON_SCHEMA, Comparison, DataSet, FileEntry, FileList, MANIFEST_FILE, Role};
use super::message::{Content, Copied};
use super::nodes::{NodeReproduction, NodeTable, remove_nodes};
use super::store::{Store, Stored};
use super::values::{EagerValues, ValuesFolder};
use crate::base::files::{Folders, Making, Umask, write_whole, write_whole_as};
use crate::base::ids::ValueName;
use crate::base::parallel::in_parallel;
use crate::base::sync::lock;
use crate::compare::{Policy, TensorVerdict, summary};

/// Losses told one by one; more are only counted.
const MAX_TOLD: usize = 1000;

/// What has been written, and what has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Files put in place since the dump was opened.
    pub written: u64,
    /// Bytes of those that are new on disk.
    pub written_bytes: u64,
    /// What could not be written since the last report, and why.
    pub lost: Vec<String>,
}

/// One data set on its way to disk.
#[derive(Debug)]
pub(super) struct StepState {
    pub folder: PathBuf,
    pub part_folder: PathBuf,
    pub manifest: Mutex<DataSet>,
    /// Nothing more comes for it.
    pub finished: AtomicBool,
}

#[derive(Debug)]
pub(super) enum Job {
    Tensor {
        step: Arc<StepState>,
        role: Role,
        index: usize,
        tensor: Copied,
    },
    Comparison {
        step: Arc<StepState>,
        verdicts: Vec<TensorVerdict>,
        policy: Policy,
    },
    Nodes {
        part_folder: PathBuf,
        table: NodeTable,
        reproductions: Vec<NodeReproduction>,
    },
    Finish {
        step: Arc<StepState>,
    },
    Values(ValuesFolder),
    Flush(Sender<FlushReport>),
    #[cfg(test)]
    Panic,
    /// Dropped when everything before it is done.
    Kept(Box<dyn Any + Send>),
}

impl Job {
    fn n_bytes(&self) -> usize {
        match self {
            Job::Tensor { tensor, .. } => tensor.desc.len_bytes(),
            Job::Nodes { reproductions, .. } => reproductions.iter().map(NodeReproduction::n_bytes).sum(),
            _ => 0,
        }
    }

    /// The file that it writes; None: none.
    fn file(&self) -> Option<PathBuf> {
        let comparison = |step: &StepState| layout::comparison_file(lock(&step.manifest).step);
        match self {
            Job::Tensor { step, role, index, .. } => Some(step.folder.join(role.file(*index))),
            Job::Comparison { step, .. } => Some(step.part_folder.join(comparison(step))),
            Job::Nodes { part_folder, table, .. } => Some(part_folder.join(layout::nodes_file(table.step))),
            Job::Finish { step } => Some(step.folder.join(MANIFEST_FILE)),
            Job::Values(values) => Some(values.path().join(MANIFEST_FILE)),
            Job::Flush(_) | Job::Kept(_) => None,
            #[cfg(test)]
            Job::Panic => None,
        }
    }
}

/// First in, first out; [`Queue::push`] waits while more than `limit_bytes` are inside.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    limit_bytes: usize,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The file that is being written.
    writing: Option<PathBuf>,
    /// A job is being done.
    busy: bool,
    n_bytes: usize,
    /// Nothing more comes; what is there is still written.
    closed: bool,
    /// Nothing more is written.
    ended: bool,
}

impl State {
    /// Ends it. Returns the files that were not written, in their order; one that is being written may still appear.
    fn end(&mut self) -> Vec<PathBuf> {
        self.ended = true;
        let waiting = std::mem::take(&mut self.jobs);
        self.writing.take().into_iter().chain(waiting.iter().filter_map(Job::file)).collect()
    }
}

impl Queue {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { state: Mutex::default(), limit_bytes, changed: Condvar::new() }
    }

    /// Waits for room; a job that is larger than the limit goes in alone. Errors: the job, when nobody takes it any more.
    pub(super) fn push(&self, job: Job) -> Result<(), Box<Job>> {
        let n_bytes = job.n_bytes();
        let full = |state: &mut State| {
            !state.ended && state.n_bytes > 0 && state.n_bytes.saturating_add(n_bytes) > self.limit_bytes
        };
        let state = self.changed.wait_while(lock(&self.state), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return Err(Box::new(job));
        }
        state.n_bytes += n_bytes;
        state.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    /// The next job; None when the queue is closed and empty. Its bytes count until the job after it is asked for.
    fn pop(&self, done_bytes: usize) -> Option<(Job, usize)> {
        let mut state = lock(&self.state);
        state.n_bytes -= done_bytes;
        (state.busy, state.writing) = (false, None);
        self.changed.notify_all();
        let idle = |state: &mut State| state.jobs.is_empty() && !state.closed && !state.ended;
        let mut state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let job = state.jobs.pop_front()?;
        (state.busy, state.writing) = (true, job.file());
        let n_bytes = job.n_bytes();
        Some((job, n_bytes))
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Ends it once everything is written, or after `limit`. Returns the files that were not.
    pub(super) fn end_within(&self, limit: Duration) -> Vec<PathBuf> {
        let working = |state: &mut State| !state.ended && (state.busy || !state.jobs.is_empty());
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, working);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let left = state.end();
        self.changed.notify_all();
        left
    }
}

/// What both sides of the queue use.
/// Permissions of a file, before its client's umask.
pub(super) const FILE_MODE: u32 = 0o666;

pub(super) struct Shared {
    pub queue: Queue,
    pub store: Store,
    pub folders: Folders,
    pub umask: Umask,
    /// What is written outlives a power cut: each step of it before the next.
    pub durable: bool,
    pub report: Mutex<Progress>,
    /// Held while a folder's list of files is read and written.
    pub listing: Mutex<()>,
}

#[derive(Default)]
pub(super) struct Progress {
    report: FlushReport,
    untold: usize,
}

impl Shared {
    pub(super) fn lose(&self, what: String) {
        tracing::warn!(%what, "dump: a file is lost; the run goes on");
        let mut progress = lock(&self.report);
        if progress.report.lost.len() < MAX_TOLD {
            progress.report.lost.push(what);
        } else {
            progress.untold += 1;
        }
    }

    /// Makes a folder and those above it that are missing. Errors: the file system's.
    pub(super) fn make(&self, folder: &Path) -> io::Result<()> {
        self.folders.make(folder)
    }

    pub(super) fn making(&self) -> Making {
        self.umask.of_file(FILE_MODE).durable(self.durable)
    }

    /// Write a file; what fails is lost and told. Returns whether it is there.
    pub(super) fn write(&self, path: &Path, bytes: &[u8]) -> bool {
        self.written(path, write_whole(path, self.making(), &[bytes]).map(|()| bytes.len() as u64))
    }

    /// Writes files that say nothing of themselves, by their path below `folder`, and lists what is in them: the list goes
    /// last, and one that told of other content is put right before. What fails is lost and told, and is not listed.
    pub(super) fn write_listed(&self, folder: &Path, files: &[(&str, &[u8])]) {
        let hash = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), blake3::hash(bytes).to_string());
        let mut coming: BTreeMap<String, String> = files.iter().map(hash).collect();
        let _listing = lock(&self.listing);
        if let Some(list) = files::without_others(folder, &coming) {
            self.write(&folder.join(layout::FILES_FILE), &layout::to_json(&list));
        }
        for (name, bytes) in files {
            if !self.write(&folder.join(name), bytes) {
                coming.remove(*name);
            }
        }
        if let Some(list) = files::extended(folder, &coming) {
            self.write(&folder.join(layout::FILES_FILE), &layout::to_json(&list));
        }
    }

    /// The same of a table whose text may be much larger than the table: lists that its rows share stand there in full.
    fn write_table(&self, path: &Path, table: &NodeTable) -> bool {
        let written = write_whole_as(path, self.making(), |file| {
            let mut out = BufWriter::new(&mut *file);
            layout::write_json(table, &mut out)?;
            out.flush()?;
            drop(out);
            Ok((path.to_owned(), file.metadata()?.len()))
        });
        self.written(path, written)
    }

    fn written(&self, path: &Path, n_bytes: io::Result<u64>) -> bool {
        match n_bytes {
            Ok(n_bytes) => {
                self.count(n_bytes);
                true
            }
            Err(error) => {
                self.lose(format!("{}: {error}", path.display()));
                false
            }
        }
    }

    fn count(&self, n_bytes: u64) {
        let mut progress = lock(&self.report);
        progress.report.written += 1;
        progress.report.written_bytes += n_bytes;
    }

    /// Put tensors into a data set and its manifest, in their order, the `first` and those after it; what fails is lost and
    /// told.
    pub(super) fn put_all(&self, step: &StepState, role: Role, first: usize, contents: &[Content<'_>]) {
        let n_bytes = contents.iter().map(Content::n_bytes).fold(0, usize::saturating_add);
        let stored =
            in_parallel(contents.len(), n_bytes, |index| self.store(step, role, first + index, &contents[index]));
        for (index, (content, stored)) in contents.iter().zip(stored).enumerate() {
            self.note(step, role, first + index, content, stored);
        }
    }

    /// The same of one.
    fn put(&self, step: &StepState, role: Role, index: usize, content: &Content<'_>) {
        self.note(step, role, index, content, self.store(step, role, index, content));
    }

    fn store(&self, step: &StepState, role: Role, index: usize, content: &Content<'_>) -> io::Result<Stored> {
        self.store.put(content, &step.folder.join(role.file(index)))
    }

    fn note(&self, step: &StepState, role: Role, index: usize, content: &Content<'_>, stored: io::Result<Stored>) {
        let file = role.file(index);
        match stored {
            Ok(stored) => {
                self.count(stored.written);
                let entry = FileEntry::new(file, content.name(), &content.desc(), stored.hash);
                lock(&step.manifest).entries_mut(role).push(entry);
            }
            Err(error) => self.lose_of(step, format!("{}: {error}", step.folder.join(file).display())),
        }
    }

    pub(super) fn lose_of(&self, step: &StepState, what: String) {
        lock(&step.manifest).lost.push(what.clone());
        self.lose(what);
    }

    /// Puts eager's values into their folder and its manifest; an input that is there stays, what fails is lost and told.
    pub(super) fn put_values(&self, folder: &ValuesFolder, values: &EagerValues<'_>) {
        let there: Vec<ValueName> = folder.manifest().inputs.iter().map(|entry| entry.name.clone()).collect();
        let inputs = values.inputs.iter().filter(|(name, _)| !there.contains(name));
        let contents: Vec<_> =
            inputs.chain(&values.nodes).map(|(name, tensor)| Content::shared(name, tensor)).collect();
        let n_nodes = values.nodes.len();
        let n_bytes = contents.iter().map(Content::n_bytes).fold(0, usize::saturating_add);
        let stored = in_parallel(contents.len(), n_bytes, |index| {
            let content = &contents[index];
            layout::check_name("value", content.name()).map_err(io::Error::other)?;
            self.store.put(content, &folder.path().join(layout::value_file(content.name())))
        });
        let n_inputs = contents.len() - n_nodes;
        for (index, (content, stored)) in contents.iter().zip(stored).enumerate() {
            self.note_value(folder, index < n_inputs, content, stored);
        }
    }

    fn note_value(&self, folder: &ValuesFolder, is_input: bool, content: &Content<'_>, stored: io::Result<Stored>) {
        match stored {
            Ok(stored) => {
                self.count(stored.written);
                let file = layout::value_file(content.name());
                let entry = FileEntry::new(file, content.name(), &content.desc(), stored.hash);
                let mut manifest = folder.manifest();
                if is_input { &mut manifest.inputs } else { &mut manifest.nodes }.push(entry);
            }
            Err(error) => {
                self.lose_value(folder, format!("{}: {:?}: {error}", folder.path().display(), content.name()));
            }
        }
    }

    pub(super) fn lose_value(&self, folder: &ValuesFolder, what: String) {
        folder.manifest().lost.push(what.clone());
        self.lose(what);
    }

    pub(super) fn finish_values(&self, folder: &ValuesFolder) {
        let json = layout::to_json(&*folder.manifest());
        self.write(&folder.path().join(MANIFEST_FILE), &json);
    }

    /// Hands over a job; what nobody takes is lost and told.
    pub(super) fn hand_over(&self, job: Job) {
        if let Err(job) = self.queue.push(job)
            && let Some(file) = job.file()
        {
            self.lose(format!("{}: {GONE}", file.display()));
        }
    }

    pub(super) fn take_report(&self) -> FlushReport {
        let mut progress = lock(&self.report);
        let mut lost = std::mem::take(&mut progress.report.lost);
        match std::mem::take(&mut progress.untold) {
            0 => {}
            n => lost.push(format!("… and {n} more")),
        }
        FlushReport { lost, ..progress.report.clone() }
    }

    fn compare(&self, step: &StepState, verdicts: Vec<TensorVerdict>, policy: Policy) {
        let comparison = {
            let manifest = lock(&step.manifest);
            Comparison {
                schema: COMPARISON_SCHEMA.to_owned(),
                run: manifest.run.clone(),
                graph: manifest.graph.clone(),
                part: manifest.part,
                step: manifest.step,
                policy: Some(policy),
                summary: summary(&verdicts),
                verdicts,
            }
        };
        let file = layout::comparison_file(comparison.step);
        let written = self.write(&step.part_folder.join(&file), &layout::to_json(&comparison));
        let mut manifest = lock(&step.manifest);
        match written {
            true => manifest.comparison = Some(file),
            false => manifest.lost.push(file),
        }
    }

    fn nodes(&self, part_folder: &Path, table: &NodeTable, reproductions: &[NodeReproduction]) {
        if let Err(error) = remove_nodes(part_folder, table.step) {
            self.lose(format!("{}: {error}", part_folder.display()));
        }
        for reproduction in reproductions {
            if let Err(error) = self.reproduction(part_folder, table.step, reproduction) {
                self.lose(format!("{}: reproduction of {:?}: {error}", part_folder.display(), reproduction.node));
            }
        }
        self.write_table(&part_folder.join(layout::nodes_file(table.step)), table);
    }

    /// A folder in ONNX's own test layout, and the list of its files; the model goes last, so that a folder with a model is whole.
    fn reproduction(&self, part_folder: &Path, step: u64, reproduction: &NodeReproduction) -> io::Result<()> {
        let NodeReproduction { node, model, inputs, reference, actual } = reproduction;
        layout::check_name("node", node).map_err(io::Error::other)?;
        let (prefix, suffix) = layout::reproduction_folder(step);
        let folder = part_folder.join(format!("{prefix}{node}{suffix}"));
        let data = folder.join(layout::step_folder(0));
        self.make(&data)?;
        let mut list = FileList::default();
        let results = [(Role::Reference, 0, node, reference), (Role::Actual, 0, node, actual)];
        let inputs = inputs.iter().enumerate().map(|(index, (name, tensor))| (Role::Input, index, name, tensor));
        for (role, index, name, tensor) in inputs.chain(results) {
            let file = role.file(index);
            let stored = self.store.put(&Content::shared(name, &tensor.shared()), &data.join(&file))?;
            self.count(stored.written);
            list.files.insert(format!("{}/{file}", layout::step_folder(0)), stored.hash);
        }
        list.files.insert(layout::MODEL_FILE.to_owned(), blake3::hash(model).to_string());
        self.write(&folder.join(layout::FILES_FILE), &layout::to_json(&list));
        self.write(&folder.join(layout::MODEL_FILE), model);
        Ok(())
    }

    fn finish(&self, step: &StepState) {
        let json = layout::to_json(&*lock(&step.manifest));
        self.write(&step.folder.join(MANIFEST_FILE), &json);
    }

    /// The thread's life: until the queue is closed and empty, or ended. However it ends, nobody waits for it any more.
    pub(super) fn work(&self) {
        let _gone = Gone(self);
        let mut done_bytes = 0;
        while let Some((job, n_bytes)) = self.queue.pop(done_bytes) {
            match job {
                Job::Tensor { step, role, index, tensor } => {
                    self.put(&step, role, index, &Content::Private(tensor));
                }
                Job::Comparison { step, verdicts, policy } => self.compare(&step, verdicts, policy),
                Job::Nodes { part_folder, table, reproductions } => {
                    self.nodes(&part_folder, &table, &reproductions);
                }
                Job::Finish { step } => self.finish(&step),
                Job::Values(values) => self.finish_values(&values),
                #[cfg(test)]
                Job::Panic => panic!("a test asked for this panic"),
                // Nobody listens any more: nothing to tell.
                Job::Flush(reply) => drop(reply.send(self.take_report())),
                Job::Kept(kept) => drop(kept),
            }
            done_bytes = n_bytes;
        }
    }
}

/// Why what is handed over late is lost.
pub(super) const GONE: &str = "the dump has ended, or its writer thread has; see the daemon's log";

/// The writer thread is gone, by a panic too: tells what it leaves, and wakes all who wait for it.
struct Gone<'a>(&'a Shared);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        for file in self.0.queue.end_within(Duration::ZERO) {
            self.0.lose(format!("{}: {GONE}", file.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorBuf, TensorDesc};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn job(n_bytes: i64) -> Job {
        let manifest = DataSet {
            schema: String::new(),
            run: String::new(),
            graph: String::new(),
            part: 0,
            step: 0,
            inputs: vec![],
            references: vec![],
            actuals: vec![],
            float64: vec![],
            terms: vec![],
            comparison: None,
            lost: vec![],
        };
        let finished = AtomicBool::new(false);
        let (folder, part_folder, manifest) = (PathBuf::new(), PathBuf::new(), Mutex::new(manifest));
        let step = StepState { folder, part_folder, manifest, finished };
        let (store, tensor) = (
            Store::new(PathBuf::new(), Umask::default(), false),
            TensorBuf::zeros(TensorDesc::new(DType::U8, [n_bytes]).unwrap()),
        );
        let tensor = store.copy("", &tensor.shared());
        Job::Tensor { step: Arc::new(step), role: Role::Actual, index: 0, tensor }
    }

    #[test]
    fn a_full_queue_waits_and_a_job_larger_than_it_goes_in_alone() {
        let queue = Queue::new(100);
        queue.push(job(1000)).unwrap();
        let pushed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    queue.push(job(60)).unwrap();
                    pushed.fetch_add(1, Ordering::SeqCst);
                }
            });
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(pushed.load(Ordering::SeqCst), 0);
            let mut done = 0;
            for _ in 0..4 {
                done = queue.pop(done).unwrap().1;
            }
            queue.pop(done_and_close(&queue, done)).is_none().then_some(()).unwrap();
        });
        assert_eq!(pushed.load(Ordering::SeqCst), 3);
    }

    fn shared(limit_bytes: usize) -> Shared {
        let store = Store::new(PathBuf::from("/nonexistent"), Umask::default(), false);
        Shared {
            queue: Queue::new(limit_bytes),
            store,
            folders: Folders::below(Path::new("/nonexistent"), Umask::default(), false),
            umask: Umask::default(),
            durable: false,
            report: Mutex::default(),
            listing: Mutex::default(),
        }
    }

    #[test]
    fn who_waits_for_a_writer_that_panics_is_told_what_is_lost() {
        let shared = shared(100);
        shared.queue.push(Job::Panic).unwrap();
        shared.queue.push(job(100)).unwrap();
        let (reply, answer) = std::sync::mpsc::channel();
        shared.queue.push(Job::Flush(reply)).unwrap();
        std::thread::scope(|scope| {
            // Full: waits until the writer is gone.
            scope.spawn(|| shared.hand_over(job(1)));
            let writer = scope.spawn(|| shared.work());
            assert!(answer.recv().is_err());
            assert!(writer.join().is_err());
        });
        shared.hand_over(job(1));
        let lost = shared.take_report().lost;
        assert_eq!(lost.len(), 3, "{lost:?}");
        assert!(lost.iter().all(|lost| lost == &format!("actual_0.pb: {GONE}")), "{lost:?}");
    }

    #[test]
    fn what_is_not_written_in_time_is_named() {
        let shared = shared(1000);
        shared.queue.push(job(1)).unwrap();
        assert_eq!(shared.queue.end_within(Duration::ZERO), [PathBuf::from("actual_0.pb")]);
        assert!(shared.queue.push(job(1)).is_err());
        assert!(shared.queue.pop(0).is_none());
        assert!(shared.queue.end_within(Duration::ZERO).is_empty());
    }

    fn done_and_close(queue: &Queue, done: usize) -> usize {
        queue.close();
        done
    }
}
