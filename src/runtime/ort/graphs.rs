//! CUDA graphs of a session's calls, under the option `enable_cuda_graph` of CUDA's provider.
//!
//! A run under an id that is new to the thread computes twice, then once more while it captures, and replays what it
//! captured; later runs under it on that thread replay, whatever tensors they bring. So an id stands for one bound call, whose
//! addresses and shapes are fixed, and for one thread. What a graph holds is let go of when the session ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

use super::host_memory;
use super::operators::is_of_libtorch;
use crate::onnx;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::runtime::RuntimeError;

/// Captured for one session; its other calls run as they do without the option.
const MOST: u32 = 32;
/// Runs of a call before it is captured: most are of allocations that do not come again.
const RUNS_BEFORE: u32 = 2;
/// The id of runs that neither capture nor replay.
pub(super) const NONE: i32 = -1;

/// Operators whose kernels draw numbers: a replay draws the captured ones again.
const RANDOM: &[&str] =
    &["Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// Inputs that kernels of CUDA's provider read on the host (`InputMemoryType(OrtMemTypeCPUInput, …)` in 1.30): such an input
/// of a model is copied when a graph is captured, and a replay computes with the captured value.
const READ_ON_HOST: &[(&str, &[usize])] = &[
    ("ConstantOfShape", &[0]),
    ("CumSum", &[1]),
    ("Expand", &[1]),
    ("GRU", &[4]),
    ("LSTM", &[4]),
    ("MatMulInteger", &[2, 3]),
    ("NonMaxSuppression", &[2, 3, 4]),
    ("OneHot", &[1, 2]),
    ("Pad", &[1, 2, 3]),
    ("RNN", &[4]),
    ("Range", &[0, 1, 2]),
    ("Reshape", &[1]),
    ("Resize", &[1, 2, 3]),
    ("SequenceAt", &[1]),
    ("Slice", &[1, 2, 3, 4]),
    ("Split", &[1]),
    ("Squeeze", &[1]),
    ("Tile", &[1]),
    ("TopK", &[1]),
    ("Trilu", &[1]),
    ("Unsqueeze", &[1]),
    ("Upsample", &[1]),
];

/// Of one session.
pub(super) struct Graphs {
    given: AtomicU32,
    /// None: its calls are not captured.
    most: u32,
    /// A graph of it may copy from memory of the host that the provider gives to the next run that asks: it is replayed
    /// while no other run comes between.
    one_at_a_time: bool,
    /// Runs that replayed nothing.
    runs: AtomicU64,
    aside: Aside,
}

impl Graphs {
    /// Of a session of this model. Errors: BadModel where it cannot be read, or there is no thread to be had.
    pub(super) fn of(model: &bytes::Bytes) -> Result<Self, RuntimeError> {
        let model = onnx::decode(model.clone())?;
        let refused = refused(&model);
        if let Some(why) = &refused {
            tracing::warn!(why, "enable_cuda_graph: calls of a session run without a graph");
        }
        let aside = Aside::new().map_err(|error| RuntimeError::BadModel { reason: format!("no thread: {error}") })?;
        let most = if refused.is_some() { 0 } else { MOST };
        let one_at_a_time = host_memory::is_captured(&model);
        Ok(Self { given: AtomicU32::new(0), most, one_at_a_time, runs: AtomicU64::new(0), aside })
    }

    /// A run that replays nothing begins: how many there were with it.
    pub(super) fn begin(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// An id that no call of the session has had; None: there are enough.
    fn next(&self) -> Option<i32> {
        let next = |given| (given < self.most).then_some(given + 1);
        let given = self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? + 1;
        if given == MOST {
            tracing::warn!(n_graphs = MOST, "enable_cuda_graph: a session has all its graphs; other calls run without");
        }
        Some(given as i32)
    }

    /// Runs on a thread of the session's own. The provider keeps what CUDA's libraries need for each thread that ever ran a
    /// session with graphs; runs on threads that come and go are for here.
    pub(super) fn aside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.aside.run(work)
    }
}

/// Why calls of a model cannot be replayed.
fn refused(model: &ModelProto) -> Option<String> {
    let graph = model.graph.as_ref()?;
    let nodes = graph.node.iter().chain(model.functions.iter().flat_map(|function| &function.node));
    let named = |node: &NodeProto| format!("node {:?} ({})", node.name(), node.op_type());
    if let Some(node) = nodes.clone().find(|node| RANDOM.contains(&node.op_type())) {
        return Some(format!("{} would draw the same numbers in each", named(node)));
    }
    if let Some(node) = graph.node.iter().find(|node| is_of_libtorch(node)) {
        return Some(format!("{} is libtorch's, whose allocator may give away what a captured call uses", named(node)));
    }
    let (node, input) = graph.node.iter().find_map(|node| Some((node, read_on_host(graph, node)?)))?;
    Some(format!("{} reads the input {input:?} on the host, where a replay has the captured value", named(node)))
}

fn read_on_host<'g>(graph: &GraphProto, node: &'g NodeProto) -> Option<&'g str> {
    let places: &[usize] = match node.op_type() {
        op if op.starts_with("Reduce") => &[1],
        op => READ_ON_HOST.iter().find(|(known, _)| *known == op)?.1,
    };
    let is_constant = |name: &str| graph.initializer.iter().any(|constant| constant.name() == name);
    let is_fed = |name: &str| graph.input.iter().any(|input| input.name() == name) && !is_constant(name);
    places.iter().filter_map(|&place| node.input.get(place)).map(String::as_str).find(|name| is_fed(name))
}

/// How far a bound call is on its way to a graph.
#[derive(Debug, PartialEq)]
pub(super) struct Replay {
    state: State,
    /// Of [`Graphs::begin`], at its own last run that replayed nothing.
    last: u64,
}

#[derive(Debug, PartialEq)]
enum State {
    /// It has none, and gets none.
    Never,
    /// It ran so often, as any other.
    Plain { runs: u32 },
    /// Its graph.
    Kept { id: i32 },
}

/// What a run of a call is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    Plain,
    Capture,
    Replay { id: i32 },
}

impl Replay {
    /// Of a call that one thread runs again and again; all on the device: its tensors, but for those without elements, lie
    /// there, so that nothing is copied when it is captured.
    pub(super) fn of(all_on_device: bool) -> Self {
        Self { state: if all_on_device { State::Plain { runs: 0 } } else { State::Never }, last: 0 }
    }

    /// What its next run is to be; the session's other runs wait for their turn.
    pub(super) fn next(&mut self, graphs: &Graphs) -> Next {
        if graphs.one_at_a_time && self.last != graphs.runs.load(Ordering::Relaxed) && self.state != State::Never {
            self.state = State::Plain { runs: 0 };
        }
        match self.state {
            State::Never => Next::Plain,
            State::Plain { runs } if runs < RUNS_BEFORE => Next::Plain,
            State::Plain { .. } => Next::Capture,
            State::Kept { id } => Next::Replay { id },
        }
    }

    /// A run of it that is none of a graph begins.
    pub(super) fn begin_plain(&mut self, graphs: &Graphs) {
        self.last = graphs.begin();
        if let State::Plain { runs } = &mut self.state {
            *runs = runs.saturating_add(1);
        }
    }

    /// It is to be captured now: an id of its own; None: there are enough.
    pub(super) fn take(&mut self, graphs: &Graphs) -> Option<i32> {
        let id = graphs.next();
        self.state = id.map_or(State::Never, |id| State::Kept { id });
        self.last = graphs.begin();
        id
    }

    /// Capturing failed, or what was captured did: what the runtime keeps under the id is not run again.
    pub(super) fn fail(&mut self) {
        self.state = State::Never;
    }
}

/// A thread that runs what it is given, one after the other.
struct Aside {
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

/// What a job answers with; dropped after all that the work holds.
struct Work<W, R> {
    work: W,
    answer: mpsc::SyncSender<std::thread::Result<R>>,
}

impl Aside {
    fn new() -> std::io::Result<Self> {
        let (jobs, given) = mpsc::channel::<Job>();
        // It ends with the sender, hence with the session.
        std::thread::Builder::new()
            .name("beside-lanes".to_owned())
            .spawn(move || given.into_iter().for_each(|job| job()))?;
        Ok(Self { jobs })
    }

    fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let (answer, answered) = mpsc::sync_channel(1);
        let job = Work { work, answer };
        let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
            let whole = job; // not a capture for each field, whose order of going is nobody's promise
            let Work { work, answer } = whole;
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // The receiver waits below.
            let _ = answer.send(outcome);
        });
        // SAFETY: the job is used no longer than this function lasts, which its lifetime allows: `recv` returns when the
        // work was called, and gone with all that it holds, or when `answer` was dropped with the job uncalled, which a
        // Work drops last.
        let job: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        if let Err(mpsc::SendError(job)) = self.jobs.send(job) {
            job();
        }
        match answered.recv().expect("the thread calls every job, and no job unwinds") {
            Ok(outcome) => outcome,
            Err(panic) => resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prost::Message as _;

    use super::*;
    use crate::onnx::proto::{FunctionProto, TensorProto, ValueInfoProto};

    fn node(op: &str, inputs: &[&str]) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            name: Some(format!("the_{op}")),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            ..NodeProto::default()
        }
    }

    /// With inputs x and s, and the initializer c, which is declared as an input too.
    fn model(node: NodeProto) -> ModelProto {
        let input = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
        let constant = TensorProto { name: Some("c".to_owned()), ..TensorProto::default() };
        let graph = GraphProto {
            node: vec![node],
            input: ["x", "s", "c"].map(input).into(),
            initializer: vec![constant],
            ..GraphProto::default()
        };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    fn graphs(node: NodeProto) -> Graphs {
        Graphs::of(&model(node).encode_to_vec().into()).unwrap()
    }

    fn plain(replay: &mut Replay, graphs: &Graphs) {
        assert_eq!(replay.next(graphs), Next::Plain);
        replay.begin_plain(graphs);
    }

    /// Runs the call until it is captured, and captures it.
    fn captured(replay: &mut Replay, graphs: &Graphs) -> i32 {
        (0..RUNS_BEFORE).for_each(|_| plain(replay, graphs));
        assert_eq!(replay.next(graphs), Next::Capture);
        replay.take(graphs).unwrap()
    }

    #[test]
    fn a_call_is_captured_at_its_third_run_and_replayed_from_then_on() {
        let graphs = graphs(node("Add", &["x", "s"]));
        let (mut one, mut two) = (Replay::of(true), Replay::of(true));
        (0..RUNS_BEFORE).for_each(|_| plain(&mut one, &graphs));
        assert_eq!(one.next(&graphs), Next::Capture);
        one.begin_plain(&graphs); // others used the device
        assert_eq!(one.next(&graphs), Next::Capture);
        assert_eq!(one.take(&graphs), Some(1));
        assert_eq!(one.next(&graphs), Next::Replay { id: 1 });
        assert_eq!(captured(&mut two, &graphs), 2);
        graphs.begin(); // one that is observed
        for (call, id) in [(&mut one, 1), (&mut two, 2)] {
            assert_eq!(call.next(&graphs), Next::Replay { id });
        }
    }

    #[test]
    fn a_graph_with_memory_of_the_host_is_replayed_until_another_run_comes_between() {
        let graphs = graphs(node("ScatterND", &["x", "c", "s"]));
        assert!(graphs.one_at_a_time);
        let (mut one, mut two) = (Replay::of(true), Replay::of(true));
        for _ in 0..4 {
            plain(&mut one, &graphs); // in turns, none comes twice in a row
            plain(&mut two, &graphs);
        }
        assert_eq!(captured(&mut one, &graphs), 1);
        assert_eq!(one.next(&graphs), Next::Replay { id: 1 });
        assert_eq!(captured(&mut two, &graphs), 2);
        assert_eq!(two.next(&graphs), Next::Replay { id: 2 });
        assert_eq!(captured(&mut one, &graphs), 3, "its first graph is gone for good");
        graphs.begin(); // one that is observed
        assert_eq!(one.next(&graphs), Next::Plain);
        assert_eq!(captured(&mut one, &graphs), 4);
    }

    #[test]
    fn a_call_with_a_tensor_on_the_host_is_never_captured() {
        for op in ["Add", "ScatterND"] {
            let graphs = graphs(node(op, &["x", "s"]));
            let mut replay = Replay::of(false);
            (0..10).for_each(|_| plain(&mut replay, &graphs));
        }
    }

    #[test]
    fn an_id_is_of_one_call_even_if_capturing_fails_and_there_are_so_many() {
        let graphs = graphs(node("Add", &["x", "s"]));
        let mut ids = HashSet::new();
        for n in 0..MOST {
            let mut replay = Replay::of(true);
            assert!(ids.insert(captured(&mut replay, &graphs)));
            if n % 2 == 0 {
                replay.fail();
                plain(&mut replay, &graphs);
                assert_eq!(replay.state, State::Never);
            }
        }
        assert!(!ids.contains(&NONE) && !ids.contains(&0), "0 is the runtime's for runs without an id");
        let mut replay = Replay::of(true);
        (0..RUNS_BEFORE).for_each(|_| plain(&mut replay, &graphs));
        assert_eq!((replay.next(&graphs), replay.take(&graphs)), (Next::Capture, None));
        plain(&mut replay, &graphs);
    }

    #[test]
    fn threads_get_different_ids() {
        let graphs = graphs(node("Add", &["x", "s"]));
        let take = || (0..MOST / 4).filter_map(|_| graphs.next()).collect::<Vec<_>>();
        let ids: Vec<i32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((ids.len(), ids.iter().collect::<HashSet<_>>().len()), (MOST as usize, MOST as usize));
    }

    #[test]
    fn what_a_replay_would_repeat_is_never_captured() {
        for (node, why) in [
            (node("RandomNormalLike", &["x"]), "draw"),
            (node("Reshape", &["x", "s"]), "\"s\""),
            (node("Slice", &["x", "c", "c", "", "s"]), "\"s\""),
            (node("ReduceSum", &["x", "s"]), "\"s\""),
            (node("Range", &["s", "c", "c"]), "\"s\""),
        ] {
            let told = refused(&model(node.clone())).unwrap();
            assert!(told.contains(why) && told.contains(node.op_type()), "{told}");
            assert_eq!(graphs(node).next(), None);
        }
        let mut inside = model(node("Add", &["x", "s"]));
        inside.functions = vec![FunctionProto { node: vec![node("Dropout", &["x"])], ..FunctionProto::default() }];
        assert!(refused(&inside).unwrap().contains("Dropout"));
        for node in [node("Reshape", &["x", "c"]), node("Gather", &["x", "s"]), node("ReduceSum", &["x"])] {
            assert_eq!(refused(&model(node)), None);
        }
    }

    #[test]
    fn what_runs_aside_runs_on_one_thread_and_gives_what_it_gave() {
        let graphs = graphs(node("Add", &["x", "s"]));
        let (mut sum, numbers) = (0, [1, 2, 3]);
        let threads: HashSet<_> = (numbers.iter())
            .map(|number| {
                graphs.aside(|| {
                    sum += number;
                    std::thread::current().id()
                })
            })
            .collect();
        assert_eq!((sum, threads.len()), (6, 1));
        assert!(!threads.contains(&std::thread::current().id()));
        let panicked = catch_unwind(AssertUnwindSafe(|| graphs.aside(|| panic!("of the work"))));
        assert!(panicked.unwrap_err().downcast_ref::<&str>() == Some(&"of the work"));
        assert_eq!(graphs.aside(|| 7), 7, "the thread is there yet");
    }
}
