//! The executor process, driven as the daemon and a client drive it: over the link and the lanes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Memory, add, gather, library, slow};
use rust_ort::base::ids::{CallId, GraphId, PartHandle, SegmentId, Work};
use rust_ort::link::message::{Hello, LinkReply, LinkRequest, PieceRun, Pieces, SOURCES};
use rust_ort::link::socket::{self, LinkReceiver, LinkSender};
use rust_ort::protocol::message::{ErrorCode, FrozenInput, PartSpec, Prepared, SessionSpec, WireError};
use rust_ort::shm::{Counter, CounterPage, Failure, Lanes};
use rust_ort::tensor::{CallRecord, DType, Location, TensorDesc, TensorRef};

const IS_WORKER: &str = "RUST_ORT_TEST_IS_WORKER";
const LANES: SegmentId = SegmentId(1);

/// Not a test: the executor process of the other tests is this binary, asked for this test alone, its link on stdin.
#[test]
fn the_executor_process_itself() {
    if std::env::var_os(IS_WORKER).is_some() {
        let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        let code = rust_ort::executor::main(link);
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

fn run(record: CallRecord) -> LinkRequest {
    LinkRequest::Run { record, beside: Vec::new() }
}

/// An executor process and what its daemon and client hold.
pub struct Executor {
    pub process: Child,
    sender: LinkSender<LinkRequest>,
    receiver: LinkReceiver<LinkReply>,
    counters: CounterPage,
    pub memory: Memory,
    lanes: Arc<Lanes>,
    next_id: u64,
    hold: tempfile::TempDir,
}

impl Executor {
    fn spawn() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let hold = tempfile::tempdir().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["process::the_executor_process_itself", "--exact", "--nocapture"])
            .env(IS_WORKER, "1")
            .env("RUST_ORT_TEST_HOLD", hold.path().join("hold"))
            .env("RUST_BACKTRACE", "0") // some tests ask it to panic
            .stdin(std::os::fd::OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, receiver) = socket::split(ours).unwrap();
        let (counters, memory) = (CounterPage::create().unwrap(), Memory::new(64 << 20));
        let lanes = Lanes::create(LANES, 4, 64 << 10).unwrap();
        Self { process, sender, receiver, counters, memory, lanes, next_id: 0, hold }
    }

    /// Loaded, with memory attached and lane 0 open.
    pub fn ready() -> Self {
        let mut executor = Self::spawn();
        let LinkReply::Ready { onnxruntime_version, confined } = executor.hello(&library()).unwrap() else {
            panic!("Hello is answered by Ready");
        };
        assert!(onnxruntime_version.starts_with("1."), "{onnxruntime_version}");
        assert!(confined.is_whole(), "{confined}");
        executor.attach();
        executor
    }

    fn hello(&mut self, library: &std::path::Path) -> Result<LinkReply, WireError> {
        let hello = LinkRequest::Hello(Hello {
            sources: SOURCES.to_owned(),
            library: library.to_owned(),
            threads: 2,
            allow_spinning: false,
            niceness: None,
            libtorch: false,
            code: self.hold.path().join("code"),
            confine: true,
        });
        let fd = self.counters.fd().try_clone_to_owned().unwrap();
        self.ask_with(hello, Some(fd.as_fd()))
    }

    fn attach(&mut self) {
        let (data, lanes) = (self.memory.peer.try_clone_fd().unwrap(), self.lanes.segment().try_clone_fd().unwrap());
        for (segment, fd, len_bytes, lanes) in [
            (Memory::ID, data, self.memory.peer.len_bytes(), false),
            (LANES, lanes, self.lanes.segment().len_bytes(), true),
        ] {
            let attach = LinkRequest::Attach { segment, len_bytes, lanes };
            assert_eq!(self.ask_with(attach, Some(fd.as_fd())), Ok(LinkReply::Done));
        }
        assert_eq!(self.ask(LinkRequest::OpenLane { lane: 0 }), Ok(LinkReply::Done));
    }

    fn ask(&mut self, request: LinkRequest) -> Result<LinkReply, WireError> {
        self.ask_with(request, None)
    }

    fn ask_with(&mut self, request: LinkRequest, fd: Option<BorrowedFd<'_>>) -> Result<LinkReply, WireError> {
        let id = self.send(request, fd);
        self.reply(id)
    }

    fn send(&mut self, request: LinkRequest, fd: Option<BorrowedFd<'_>>) -> u64 {
        self.next_id += 1;
        self.sender.send(self.next_id, &request, fd).unwrap();
        self.next_id
    }

    fn reply(&mut self, id: u64) -> Result<LinkReply, WireError> {
        let reply = self.receiver.recv().unwrap().expect("the executor lives");
        assert_eq!(reply.id, id);
        match reply.body {
            LinkReply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    fn prepare(&mut self, model: &[u8]) -> Result<Prepared, WireError> {
        self.prepare_frozen(model, Vec::new())
    }

    fn prepare_frozen(&mut self, model: &[u8], frozen: Vec<(u32, TensorRef)>) -> Result<Prepared, WireError> {
        self.prepare_as(model, frozen, SessionSpec::default())
    }

    pub fn prepare_as(
        &mut self,
        model: &[u8],
        frozen: Vec<(u32, TensorRef)>,
        session: SessionSpec,
    ) -> Result<Prepared, WireError> {
        let frozen = frozen.into_iter().map(|(input, tensor)| FrozenInput { input, tensor }).collect();
        match self.ask(LinkRequest::Prepare { request: 0, part: part(model, session), frozen })? {
            LinkReply::Prepared(prepared) => Ok(prepared),
            other => panic!("{other:?}"),
        }
    }

    fn add_record(&self, handle: PartHandle, values: &[f32]) -> CallRecord {
        let dims = [values.len() as i64];
        let (x, y) = (self.memory.put(&dims, values), self.memory.put(&dims, values));
        record(handle, vec![x, y], vec![self.memory.alloc(DType::F32, &dims)])
    }

    pub fn call(&self, record: &CallRecord) -> Result<u64, Failure> {
        self.lanes.client(0).unwrap().call(record, || false).unwrap().unwrap()
    }

    fn hold_file(&self) -> std::path::PathBuf {
        self.hold.path().join("hold")
    }

    /// Whether it waits for the file to go.
    fn is_held(&self) -> bool {
        std::fs::metadata(self.hold_file().with_extension("held")).is_ok_and(|facts| facts.len() > 0)
    }

    /// CPU time of all its threads.
    fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let nanos = |task: io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        Duration::from_nanos(tasks.map(nanos).sum())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn record(handle: PartHandle, inputs: Vec<TensorRef>, outputs: Vec<TensorRef>) -> CallRecord {
    CallRecord { call: CallId(1), handle, eager_nodes: 3, inputs, outputs }
}

fn part(model: &[u8], session: SessionSpec) -> PartSpec {
    let fx_values = [("add", "z"), ("input", "x"), ("gone", "no_such_value")];
    PartSpec {
        graph: GraphId::from_bytes([1; 32]),
        part: 0,
        model: model.to_vec().into(),
        session,
        fx_values: fx_values.map(|(fx, value)| (fx.to_owned(), value.to_owned())).into(),
        named_values: Vec::new(),
        described: Default::default(),
    }
}

/// Waits for a condition; the watchdog fails the test.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_call_over_a_lane_and_one_over_the_link_compute_and_are_counted() {
    let mut executor = Executor::ready();
    let prepared = executor.prepare(&add()).unwrap();
    assert_eq!((prepared.built, prepared.fx_nodes, prepared.onnx_nodes), (true, 1, 1));
    let names: Vec<&str> = prepared.inputs.iter().chain(&prepared.outputs).map(|value| value.name.as_str()).collect();
    assert_eq!(names, ["x", "y", "z"]);
    let again = executor.prepare(&add()).unwrap();
    assert!(!again.built && again.handle != prepared.handle);

    for handle in [prepared.handle, again.handle] {
        let record = executor.add_record(handle, &[1., 2., 3.]);
        // The second call finds the first one's binding; the inputs have changed.
        for factor in [1., 2.] {
            executor.memory.set(&record.inputs[0], &[factor, factor, factor]);
            executor.call(&record).unwrap();
            assert_eq!(executor.memory.get(&record.outputs[0]), [factor + 1., factor + 2., factor + 3.]);
        }
    }
    let record = executor.add_record(prepared.handle, &[4.]);
    assert!(matches!(executor.ask(run(record.clone())), Ok(LinkReply::Ran(_))));
    assert_eq!(executor.memory.get(&record.outputs[0]), [8.]);

    let count = |counter| executor.counters.get(counter);
    assert_eq!([Counter::Runs, Counter::NodesOnOrt, Counter::NodesInEager].map(count), [5, 5, 15]);
    assert_eq!([Counter::SessionsBuilt, Counter::SessionHits, Counter::SessionsLive].map(count), [1, 1, 1]);
    assert_eq!([Counter::ObservedRuns, Counter::Errors].map(count), [1, 0]);
    assert!(count(Counter::RunNs) > 0);
}

#[test]
fn a_frozen_input_is_a_constant_of_the_session_copied_when_it_is_made() {
    let mut executor = Executor::ready();
    let (x, y) = (executor.memory.put(&[2], &[1., 2.]), executor.memory.put(&[2], &[10., 20.]));
    let z = executor.memory.alloc(DType::F32, &[2]);
    let prepared = executor.prepare_frozen(&add(), vec![(1, y.clone())]).unwrap();
    let names: Vec<_> = prepared.inputs.iter().map(|input| input.name.clone()).collect();
    assert_eq!((names.as_slice(), prepared.frozen_inputs), (["x".to_owned(), "y".to_owned()].as_slice(), 1));
    executor.memory.set(&y, &[0., 0.]);
    let over_a_lane = record(prepared.handle, vec![x.clone()], vec![z.clone()]);
    executor.call(&over_a_lane).unwrap();
    assert_eq!(executor.memory.get(&z), [11., 22.]);

    // Over the link every input is named.
    let observed = record(prepared.handle, vec![x.clone(), y.clone()], vec![z.clone()]);
    executor.memory.set(&x, &[2., 3.]);
    executor.ask(run(observed.clone())).unwrap();
    assert_eq!(executor.memory.get(&z), [12., 23.]);
    assert_eq!(executor.call(&observed).unwrap_err().code, ErrorCode::BadTensor.code());

    // Another content is another session; the same is the same, and its constant is there once.
    assert_eq!(executor.counters.get(Counter::FrozenBytes), 8);
    let zero = executor.prepare_frozen(&add(), vec![(1, y.clone())]).unwrap();
    executor.memory.set(&y, &[10., 20.]);
    let again = executor.prepare_frozen(&add(), vec![(1, y.clone())]).unwrap();
    assert_eq!((zero.built, again.built, executor.counters.get(Counter::FrozenBytes)), (true, false, 16));
    let swapped = executor.prepare_frozen(&add(), vec![(0, y.clone())]).unwrap();
    assert_eq!((swapped.built, executor.counters.get(Counter::FrozenBytes)), (true, 16));
    executor.call(&record(swapped.handle, vec![x.clone()], vec![z.clone()])).unwrap();
    assert_eq!(executor.memory.get(&z), [12., 23.]);

    // What was released is gone, with its constants; what is still held is not.
    let handles = vec![prepared.handle, zero.handle, swapped.handle];
    executor.ask(LinkRequest::Release { handles }).unwrap();
    assert_eq!(executor.counters.get(Counter::FrozenBytes), 8);
    executor.call(&record(again.handle, vec![x], vec![z.clone()])).unwrap();
    assert_eq!(executor.memory.get(&z), [12., 23.]);
    executor.ask(LinkRequest::Reset).unwrap();
    assert_eq!((executor.counters.get(Counter::FrozenBytes), executor.counters.get(Counter::SessionsLive)), (0, 0));
}

#[test]
fn a_frozen_input_that_is_not_the_models_is_refused() {
    let mut executor = Executor::ready();
    let y = executor.memory.put(&[2], &[10., 20.]);
    let neither = executor.prepare_frozen(&add(), vec![(2, y.clone())]).unwrap_err();
    assert!(neither.code == ErrorCode::BadModel && neither.message.contains("input 2"), "{neither}");
    let integers = TensorRef { desc: TensorDesc::new(DType::I32, [2]).unwrap(), ..y.clone() };
    let another = executor.prepare_frozen(&add(), vec![(1, integers)]).unwrap_err();
    assert!(another.message.contains("not what the model declares"), "{another}");
    let outside = Location::new(Memory::ID, 64 << 20).unwrap();
    let nowhere = executor.prepare_frozen(&add(), vec![(1, TensorRef { location: outside, ..y })]).unwrap_err();
    assert_eq!((nowhere.code, executor.counters.get(Counter::FrozenBytes)), (ErrorCode::BadTensor, 0));
}

#[test]
fn a_bad_call_is_answered_and_the_next_one_served() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    let good = executor.add_record(handle, &[1., 2.]);
    let bad = |change: fn(&mut CallRecord)| {
        let mut record = good.clone();
        change(&mut record);
        record
    };
    let cases = [
        (bad(|record| record.handle = PartHandle(999)), ErrorCode::UnknownGraph, "prepare"),
        (
            bad(|record| record.inputs[0].location = Location::new(SegmentId(55), 0).unwrap()),
            ErrorCode::BadSegment,
            "55",
        ),
        (
            bad(|record| record.inputs[0].location = Location::new(Memory::ID, 64 << 20).unwrap()),
            ErrorCode::BadTensor,
            "do not fit",
        ),
        (bad(|record| record.outputs[0] = record.inputs[1].clone()), ErrorCode::BadTensor, "output 0 overlaps input 1"),
        (bad(|record| record.inputs.truncate(1)), ErrorCode::BadTensor, "1 inputs"),
        (bad(|record| record.inputs[0].desc.dtype = DType::I32), ErrorCode::BadTensor, "\"x\""),
    ];
    for (record, code, text) in &cases {
        let failure = executor.call(record).unwrap_err();
        assert!(failure.code == code.code() && failure.message.contains(text), "{failure:?}");
        let error = executor.ask(run(record.clone())).unwrap_err();
        assert_eq!((error.code, error.message), (*code, failure.message));
        executor.call(&good).unwrap();
    }
    assert_eq!(executor.counters.get(Counter::Errors), 2 * cases.len() as u64);
}

#[test]
fn a_run_that_fails_names_its_node_and_the_next_one_is_served() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&gather()).unwrap().handle;
    let call = |index: i64| {
        let indices = executor.memory.alloc(DType::I64, &[1]);
        executor.memory.peer.write(indices.location.offset(), &index.to_le_bytes()).unwrap();
        let values = executor.memory.put(&[4], &[1., 2., 3., 4.]);
        record(handle, vec![values, indices], vec![executor.memory.alloc(DType::F32, &[1])])
    };
    let (good, bad) = (call(3), call(9));
    let failure = executor.call(&bad).unwrap_err();
    assert_eq!(failure.code, ErrorCode::BadIndex.code());
    assert!(failure.message.contains("'node_y'") && failure.message.contains("idx=9"), "{failure:?}");
    assert_eq!(failure.node, "node_y");
    let error = executor.ask(run(bad)).unwrap_err();
    assert_eq!((error.code, error.node.as_str(), error.message), (ErrorCode::BadIndex, "node_y", failure.message));
    executor.call(&good).unwrap();
    assert_eq!(executor.memory.get(&good.outputs[0]), [4.]);
    assert_eq!(executor.counters.get(Counter::Errors), 2);
}

#[test]
fn a_panic_costs_its_call_only() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    let record = executor.add_record(handle, &[1., 2.]);
    std::fs::write(executor.hold_file(), "panic").unwrap();
    let failure = executor.call(&record).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Internal.code(), "{failure:?}");
    assert_eq!(executor.ask(run(record.clone())).unwrap_err().code, ErrorCode::Internal);
    assert_eq!(executor.lanes.running(), []);
    std::fs::remove_file(executor.hold_file()).unwrap();
    executor.call(&record).unwrap();
    assert_eq!(executor.memory.get(&record.outputs[0]), [2., 4.]);
    assert!(matches!(executor.ask(run(record)), Ok(LinkReply::Ran(_))));
    assert_eq!(executor.counters.get(Counter::Errors), 2);
}

#[test]
fn requests_at_the_wrong_time_are_refused_and_the_link_goes_on() {
    let mut executor = Executor::spawn();
    let code = |reply: Result<LinkReply, WireError>| reply.unwrap_err().code;
    assert_eq!(code(executor.ask(LinkRequest::OpenLane { lane: 0 })), ErrorCode::BadState);
    let error = executor.hello("/no/such/libonnxruntime.so".as_ref()).unwrap_err();
    assert!(error.code == ErrorCode::RuntimeMissing && error.message.contains("/no/such/"), "{error}");
    assert!(executor.hello(&library()).is_ok());
    assert_eq!(code(executor.hello(&library())), ErrorCode::BadState);
    assert_eq!(code(executor.ask(LinkRequest::OpenLane { lane: 0 })), ErrorCode::BadState);
    executor.attach();
    assert_eq!(code(executor.ask(LinkRequest::OpenLane { lane: 0 })), ErrorCode::BadState);
    assert_eq!(code(executor.ask(LinkRequest::OpenLane { lane: 4 })), ErrorCode::BadState);
    assert_eq!(code(executor.ask(LinkRequest::Detach { segment: SegmentId(9) })), ErrorCode::BadSegment);
    let no_fd = LinkRequest::Attach { segment: SegmentId(9), len_bytes: 4096, lanes: false };
    assert_eq!(code(executor.ask(no_fd)), ErrorCode::BadState);
    assert_eq!(executor.prepare(b"garbage").unwrap_err().code, ErrorCode::BadModel);
    assert_eq!(code(executor.ask(LinkRequest::Release { handles: vec![PartHandle(9)] })), ErrorCode::UnknownGraph);
    executor.send(LinkRequest::Exit, None);
    assert!(executor.process.wait().unwrap().success());
}

#[test]
fn what_was_detached_or_released_cannot_be_called_again() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    let record = executor.add_record(handle, &[1.]);
    executor.call(&record).unwrap();
    assert_eq!(executor.ask(LinkRequest::Detach { segment: Memory::ID }), Ok(LinkReply::Done));
    assert_eq!(executor.call(&record).unwrap_err().code, ErrorCode::BadSegment.code());
    let fd = executor.memory.peer.try_clone_fd().unwrap();
    let attach = LinkRequest::Attach { segment: Memory::ID, len_bytes: 64 << 20, lanes: false };
    assert_eq!(executor.ask_with(attach, Some(fd.as_fd())), Ok(LinkReply::Done));
    executor.call(&record).unwrap();
    assert_eq!(executor.ask(LinkRequest::Release { handles: vec![handle] }), Ok(LinkReply::Done));
    assert_eq!(executor.call(&record).unwrap_err().code, ErrorCode::UnknownGraph.code());
}

#[test]
fn reset_ends_running_calls_and_the_next_client_finds_warm_sessions() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&slow(2000)).unwrap().handle;
    let dims = [1024, 1024];
    let tensor = || executor.memory.alloc(DType::F32, &dims);
    let (on_lane, on_link) =
        (record(handle, vec![tensor()], vec![tensor()]), record(handle, vec![tensor()], vec![tensor()]));
    let lanes = Arc::clone(&executor.lanes);
    let client = std::thread::spawn(move || lanes.client(0).unwrap().call(&on_lane, || false).unwrap().unwrap());
    let running = executor.send(run(on_link), None);
    let lanes = Arc::clone(&executor.lanes);
    wait_for("the call to run", || !lanes.running().is_empty());
    let reset = executor.send(LinkRequest::Reset, None);
    assert_eq!(executor.reply(running).unwrap_err().code, ErrorCode::ExecutorLost);
    assert_eq!(executor.reply(reset), Ok(LinkReply::Done));
    assert_eq!(client.join().unwrap().unwrap_err().code, ErrorCode::ExecutorLost.code());

    executor.attach();
    let prepared = executor.prepare(&add()).unwrap();
    assert!(prepared.built);
    assert!(!executor.prepare(&slow(2000)).unwrap().built);
    executor.call(&executor.add_record(prepared.handle, &[1.])).unwrap();
}

#[test]
fn a_call_that_nobody_waits_for_is_ended_and_the_next_one_runs() {
    let mut executor = Executor::ready();
    let (handle, soon) = (executor.prepare(&slow(2000)).unwrap().handle, executor.prepare(&slow(1)).unwrap().handle);
    let tensor = || executor.memory.alloc(DType::F32, &[1024, 1024]);
    let call = |id, handle| CallRecord { call: CallId(id), ..record(handle, vec![tensor()], vec![tensor()]) };
    let (on_lane, on_link, after) = (call(7, handle), call(8, handle), call(9, soon));
    let lanes = Arc::clone(&executor.lanes);
    let client = std::thread::spawn(move || lanes.client(0).unwrap().call(&on_lane, || false).unwrap().unwrap());
    let lanes = Arc::clone(&executor.lanes);
    wait_for("the call to run", || !lanes.running().is_empty());
    assert_eq!(executor.ask(LinkRequest::Cancel(Work::Call(CallId(6)))), Ok(LinkReply::Done));
    assert!(!lanes.running().is_empty(), "another call was ended");
    assert_eq!(executor.ask(LinkRequest::Cancel(Work::Call(CallId(7)))), Ok(LinkReply::Done));
    let ended = client.join().unwrap().unwrap_err();
    assert!(ended.code == ErrorCode::ExecutorLost.code() && ended.message.contains("waits no more"), "{ended:?}");

    let observed = executor.send(run(on_link), None);
    // Its thread may not have begun.
    let error = loop {
        let cancel = executor.send(LinkRequest::Cancel(Work::Call(CallId(8))), None);
        let reply = executor.receiver.recv().unwrap().expect("the executor lives");
        match reply.body {
            LinkReply::Failed(error) if reply.id == observed => break error,
            LinkReply::Done => {}
            other => panic!("{other:?} to {cancel}"),
        }
    };
    assert_eq!(error.code, ErrorCode::ExecutorLost);
    executor.call(&after).unwrap();
    assert_eq!(executor.counters.get(Counter::Errors), 2);
}

#[test]
fn a_comparison_of_nodes_that_nobody_waits_for_is_ended_with_its_later_batches() {
    let mut executor = Executor::ready();
    let tensor = || executor.memory.alloc(DType::F32, &[1024, 1024]);
    let runs = [(); 2].map(|()| PieceRun { model: 0, record: record(PartHandle(0), vec![tensor()], vec![tensor()]) });
    let of = |request| {
        let models = vec![part(&slow(1), SessionSpec::default())];
        LinkRequest::RunPieces(Pieces { request, models, runs: runs.to_vec(), beside: Vec::new() })
    };
    std::fs::write(executor.hold_file(), "").unwrap();
    let asked = executor.send(of(5), None);
    wait_for("the first piece", || executor.is_held());
    assert_eq!(executor.ask(LinkRequest::Cancel(Work::Request(5))), Ok(LinkReply::Done));
    std::fs::remove_file(executor.hold_file()).unwrap();
    assert_eq!(executor.reply(asked).unwrap_err().code, ErrorCode::ExecutorLost);
    assert_eq!(executor.counters.piece(), 0, "it went on with the next piece");
    assert_eq!(executor.ask(of(5)).unwrap_err().code, ErrorCode::ExecutorLost);
    assert!(matches!(executor.ask(of(6)), Ok(LinkReply::RanPieces(ran)) if ran.iter().all(Result::is_ok)));
}

#[test]
fn a_part_that_nobody_waits_for_is_not_prepared_and_the_next_one_is() {
    let mut executor = Executor::ready();
    assert_eq!(executor.ask(LinkRequest::Cancel(Work::Request(5))), Ok(LinkReply::Done));
    let of = |request| LinkRequest::Prepare { request, part: part(&add(), SessionSpec::default()), frozen: Vec::new() };
    assert_eq!(executor.ask(of(5)).unwrap_err().code, ErrorCode::ExecutorLost);
    assert_eq!(executor.counters.get(Counter::SessionsBuilt), 0);
    assert!(matches!(executor.ask(of(6)), Ok(LinkReply::Prepared(prepared)) if prepared.built));
}

#[test]
fn a_killed_executor_leaves_the_record_of_what_it_was_running() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    let record = executor.add_record(handle, &[1., 2.]);
    executor.call(&record).unwrap();
    assert_eq!(executor.lanes.running(), []);
    std::fs::write(executor.hold_file(), "").unwrap();
    let (lanes, ours) = (Arc::clone(&executor.lanes), record.clone());
    let (given_up, gives_up) =
        (Arc::new(std::sync::atomic::AtomicBool::new(false)), std::sync::atomic::Ordering::SeqCst);
    let flag = Arc::clone(&given_up);
    let client = std::thread::spawn(move || lanes.client(0).unwrap().call(&ours, || flag.load(gives_up)).unwrap());
    wait_for("the call to be held", || executor.is_held());
    executor.process.kill().unwrap();
    executor.process.wait().unwrap();
    assert_eq!(executor.lanes.running(), [(0, record)]);
    given_up.store(true, gives_up);
    assert_eq!(client.join().unwrap(), None);
}

#[test]
fn the_end_of_the_link_ends_the_executor_in_mid_call() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    std::fs::write(executor.hold_file(), "").unwrap();
    let record = executor.add_record(handle, &[1.]);
    executor.send(run(record), None);
    wait_for("the call to be held", || executor.is_held());
    let (sender, receiver) = socket::split(UnixStream::pair().unwrap().0).unwrap();
    drop((std::mem::replace(&mut executor.sender, sender), std::mem::replace(&mut executor.receiver, receiver)));
    wait_for("the executor to end", || executor.process.try_wait().unwrap().is_some());
}

#[test]
fn an_idle_executor_uses_no_cpu() {
    let mut executor = Executor::ready();
    for lane in 1..4 {
        assert_eq!(executor.ask(LinkRequest::OpenLane { lane }), Ok(LinkReply::Done));
    }
    let handle = executor.prepare(&add()).unwrap().handle;
    executor.call(&executor.add_record(handle, &[1.; 10])).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = executor.cpu();
    std::thread::sleep(Duration::from_millis(300));
    let used = executor.cpu() - before;
    assert!(used < Duration::from_millis(3), "{used:?}");
}

/// Prints times; asserts results only. `cargo test --release --test executor -- --ignored --nocapture bench`.
#[test]
#[ignore = "a measurement"]
fn bench_a_lane_round_trip() {
    let mut executor = Executor::ready();
    let handle = executor.prepare(&add()).unwrap().handle;
    let lane = executor.lanes.client(0).unwrap();
    let records: Vec<CallRecord> = (0..64).map(|_| executor.add_record(handle, &[1.; 10])).collect();
    for (name, n_records) in [("one record", 1), ("four in turn", 4), ("64 in turn, bound anew", 64)] {
        let mut times: Vec<(u64, u64)> = Vec::new();
        for i in 0..20_000 {
            let start = Instant::now();
            let run_ns = lane.call(&records[i % n_records], || false).unwrap().unwrap().unwrap();
            times.push((start.elapsed().as_nanos() as u64, run_ns));
        }
        let median = |mut values: Vec<u64>| {
            values.sort_unstable();
            (values[values.len() / 10], values[values.len() / 2], values[values.len() * 9 / 10])
        };
        let (round_trip, inside) = times.into_iter().unzip();
        println!("{name}: p10, median, p90 in ns: round trip {:?}, inside {:?}", median(round_trip), median(inside));
    }
}
