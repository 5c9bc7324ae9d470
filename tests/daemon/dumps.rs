//! What is on disk when a daemon ends or an executor dies, and who may read it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use crate::common::{Dim, Model};
use crate::support::{self, Client, Home, crash, graph, is_alive, is_held, part, refused, wait_for};
use bytes::Bytes;
use prost::Message as _;
use rust_ort::base::ids::{CallId, SegmentId, StepId};
use rust_ort::dump::is_being_written;
use rust_ort::dump::reader::{self, Completeness};
use rust_ort::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto};
use rust_ort::onnx::value_info;
use rust_ort::protocol::control::{CallsToDump, OpenDump, PreparePart, Reply, Request, RunObserved};
use rust_ort::protocol::message::ErrorCode;
use rust_ort::shm::Segment;
use rust_ort::tensor::{CallRecord, DType, Location, TensorDesc, TensorRef};

const BIG: SegmentId = SegmentId(9);

/// y = −x on vectors of any length.
fn any_length() -> PreparePart {
    let dims = [Dim::Named("n")];
    let model = Model::default().node("Neg", &["x"], &["y"]);
    let mut part = part();
    part.part.model = model.input("x", DType::F32, &dims).output("y", DType::F32, &dims).build().into();
    part
}

fn open_dump(client: &mut Client, folder: &Path) {
    let open = OpenDump {
        folder: folder.to_owned(),
        run: "run".into(),
        clean: false,
        calls: CallsToDump::All,
        run_json: "{}".into(),
        umask: None,
        answered: Vec::new(),
    };
    assert!(matches!(client.peer.ask(&Request::OpenDump(open)), Ok(Reply::DumpOpened { .. })));
}

/// A segment of `2 · n` floats more, and x and y in it.
fn attach_big(client: &mut Client, n: i64) -> (Segment, TensorRef, TensorRef) {
    let len_bytes = 2 * (4 * n as u64).next_multiple_of(4096);
    let segment = Segment::create(BIG, "big", len_bytes).unwrap();
    let request = Request::AttachSegment { segment: BIG, len_bytes, lanes: false };
    assert_eq!(client.peer.ask_with(&request, Some(segment.fd())).unwrap(), Reply::Done);
    let desc = TensorDesc::new(DType::F32, [n]).unwrap();
    let at = |offset| TensorRef { location: Location::new(BIG, offset).unwrap(), desc: desc.clone() };
    (segment, at(0), at(len_bytes / 2))
}

/// Three dumped calls of 100 MB, none of which the client waited for to be on disk.
fn three_dumped_calls(home: &Home) -> (Client, PathBuf) {
    let folder = home.folder.path().join("dumps");
    let mut client = Client::connect(home);
    dumped_calls(&mut client, &folder, 25_000_000, 0..3);
    (client, folder)
}

/// Calls of these steps on `n` elements, in a dump that stays open.
fn dumped_calls(client: &mut Client, folder: &Path, n: i64, steps: std::ops::Range<u64>) {
    client.lease().unwrap();
    client.register();
    open_dump(client, folder);
    let handle = client.prepare_part(any_length()).unwrap().handle;
    let (segment, x, y) = attach_big(client, n);
    for step in steps {
        segment.write(0, &(step as f32).to_le_bytes()).unwrap();
        let (inputs, outputs) = (vec![x.clone()], vec![y.clone()]);
        let record = CallRecord { call: CallId(step), handle, eager_nodes: 0, inputs, outputs };
        let run = RunObserved { dump: true, step: StepId(step), ..client.observed(record) };
        client.observe(run).unwrap();
    }
}

#[track_caller]
fn assert_complete(folder: &Path) {
    let steps = reader::steps(&folder.join("run/0_0-inference/part_0")).unwrap();
    let states: Vec<_> = steps.iter().map(|step| (step.step, step.n_actuals, &step.state)).collect();
    assert_eq!(states, [0, 1, 2].map(|step| (step, 1, &Completeness::Complete)));
    assert!(!folder.join("run/incomplete.json").exists());
}

#[test]
fn a_daemon_that_is_told_to_end_by_a_signal_writes_its_dumps_first() {
    let mut home = Home::new();
    let (_client, folder) = three_dumped_calls(&home);
    let pid = rustix::process::Pid::from_raw(home.daemon_pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(home.wait_daemon().success());
    assert_complete(&folder);
}

#[test]
fn a_forced_stop_names_the_calls_whose_data_sets_are_incomplete() {
    let mut home = Home::new();
    let folder = home.folder.path().join("dumps");
    let mut client = Client::connect(&home);
    dumped_calls(&mut client, &folder, 1_000, 0..2);
    std::fs::write(home.hold(), "").unwrap();
    let calls = std::thread::spawn({
        let folder = folder.clone();
        move || {
            let handle = client.prepare_part(any_length()).unwrap().handle;
            let x = support::tensor(0);
            let record = CallRecord {
                call: CallId(2),
                handle,
                eager_nodes: 0,
                inputs: vec![x],
                outputs: vec![support::tensor(64)],
            };
            let run = RunObserved { dump: true, step: StepId(2), ..client.observed(record) };
            assert!(client.observe(run).is_err(), "{}", folder.display());
        }
    });
    wait_for("the call is inside", || is_held(&home.hold()));
    let stop = home.command().args(["stop", "--force"]).output().unwrap();
    let text = String::from_utf8(stop.stderr).unwrap();
    assert!(text.contains("1 files, in 0_0-inference/part_0/test_data_set_2"), "{text}");
    calls.join().unwrap();
    assert!(home.wait_daemon().success());
    let steps = reader::steps(&folder.join("run/0_0-inference/part_0")).unwrap();
    let complete: Vec<_> = steps.iter().map(|step| step.state == Completeness::Complete).collect();
    assert_eq!(complete, [true, true, false]);
}

#[test]
fn clients_of_one_process_have_one_dump_which_the_last_ends() {
    let home = Home::new();
    let folder = home.folder.path().join("dumps");
    let (mut first, mut second) = (Client::connect(&home), Client::connect(&home));
    dumped_calls(&mut first, &folder, 1_000, 0..1);
    dumped_calls(&mut second, &folder, 1_000, 1..2);
    drop(first);
    wait_for("the first has left", || (home.status()["clients"].as_array().unwrap().len() == 1).then_some(()));
    dumped_calls(&mut Client::connect(&home), &folder, 1_000, 2..3);
    assert_eq!(second.peer.ask(&Request::CloseDump).unwrap(), Reply::Done);
    wait_for("all have left it", || (!is_being_written(&folder.join("run"))).then_some(()));
    assert_complete(&folder);
}

#[test]
fn clients_of_one_process_that_open_a_dump_at_once_all_have_it() {
    let home = Home::new();
    let open = Request::OpenDump(OpenDump {
        folder: home.folder.path().join("dumps"),
        run: "run".into(),
        clean: false,
        calls: CallsToDump::All,
        run_json: "{}".into(),
        umask: None,
        answered: Vec::new(),
    });
    let barrier = Barrier::new(3);
    let open_and_leave = || {
        let mut client = Client::connect(&home);
        barrier.wait();
        client.peer.ask(&open)
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| (0..100).map(|_| open_and_leave()).collect::<Vec<_>>()));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(answers.len(), 300);
    for answer in answers {
        assert!(matches!(answer, Ok(Reply::DumpOpened { .. })), "{answer:?}");
    }
}

#[test]
fn a_forced_stop_writes_dumps_first() {
    let mut home = Home::new();
    let (_client, folder) = three_dumped_calls(&home);
    assert!(home.command().args(["stop", "--force"]).status().unwrap().success());
    assert!(home.wait_daemon().success());
    assert_complete(&folder);
}

/// Functions that call one another, one in the other, with a bfloat16 input: the precision pass puts them in place.
fn nested_functions(depth: usize) -> Bytes {
    let call = |op: String, domain: &str, input: &str, output: &str| NodeProto {
        op_type: Some(op),
        domain: Some(domain.to_owned()),
        input: vec![input.to_owned()],
        output: vec![output.to_owned()],
        ..Default::default()
    };
    let function = |n: usize| FunctionProto {
        name: Some(format!("F{n}")),
        domain: Some("local".to_owned()),
        input: vec!["a".to_owned()],
        output: vec!["b".to_owned()],
        node: vec![match n + 1 == depth {
            true => call("Neg".to_owned(), "", "a", "b"),
            false => call(format!("F{}", n + 1), "local", "a", "b"),
        }],
        ..Default::default()
    };
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::BF16, [4]).unwrap());
    let graph = GraphProto {
        input: vec![info("x")],
        output: vec![info("y")],
        node: vec![call("F0".to_owned(), "local", "x", "y")],
        ..Default::default()
    };
    let functions = (0..depth).map(function).collect();
    ModelProto { graph: Some(graph), functions, ..Default::default() }.encode_to_vec().into()
}

#[test]
fn a_model_of_60000_nested_functions_is_refused_and_the_daemon_lives() {
    for dumped in [false, true] {
        let home = Home::new();
        let mut other = Client::connect(&home);
        let mut client = Client::connect(&home);
        client.lease().unwrap();
        client.register();
        if dumped {
            open_dump(&mut client, &home.folder.path().join("dumps"));
        }
        let mut part = part();
        part.part.model = nested_functions(60_000);
        let error = refused(client.prepare_part(part).unwrap_err());
        assert_eq!(error.code, ErrorCode::BadModel, "{error}");
        assert!(error.message.contains("calls nest 65 deep here: at most 64"), "{error}");
        assert!(matches!(other.peer.ask(&Request::GetStatus), Ok(Reply::Status(_))));
        assert!(is_alive(home.daemon_pid()) && client.prepare().is_ok());
    }
}

/// Kills the executor in a call on x, and returns what the daemon says of it.
fn die_in_a_call(home: &Home, part: PreparePart, n: i64) -> rust_ort::protocol::message::WireError {
    let mut client = Client::connect(home);
    let pid = client.lease().unwrap().pid;
    client.register();
    let handle = client.prepare_part(part).unwrap().handle;
    let (_segment, x, y) = attach_big(&mut client, n);
    let record = CallRecord { call: CallId(1), handle, eager_nodes: 0, inputs: vec![x], outputs: vec![y] };
    client.observed_while(home, record, || crash(pid))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn quarantine_and_logs_are_open_to_nobody_else() {
    let home = Home::empty();
    // As an earlier version left them.
    for folder in ["log", "quarantine"] {
        std::fs::create_dir_all(home.state().join(folder)).unwrap();
    }
    let mut home = home;
    home.start();
    let error = die_in_a_call(&home, any_length(), 4);
    assert!(error.message.contains("model and inputs are in"), "{error}");
    let folder = PathBuf::from(error.dump);
    assert!(folder.join("0_0-inference/part_0/test_data_set_0/input_0.pb").exists(), "{}", folder.display());
    for folder in [&folder, &home.state().join("quarantine"), &home.state().join("log")] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    let logs: Vec<_> = std::fs::read_dir(home.state().join("log")).unwrap().map(|log| log.unwrap().path()).collect();
    assert!(logs.len() >= 2 && logs.iter().all(|log| mode(log) == 0o600), "{logs:?}");
}

/// 20 GB of zeros that nobody wrote: a copy would be real.
#[test]
fn inputs_too_large_to_be_copied_are_left_out_and_said_to_be() {
    let home = Home::new();
    let error = die_in_a_call(&home, any_length(), 5_000_000_000);
    assert!(error.message.contains("the model, without its inputs (20000000000 bytes: at most"), "{error}");
    let part = PathBuf::from(&error.dump).join("0_0-inference/part_0");
    assert!(part.join("model.onnx").exists() && !part.join("test_data_set_0").exists(), "{}", part.display());
    let run = std::fs::read_to_string(PathBuf::from(&error.dump).join("run.json")).unwrap();
    assert!(run.contains("\"inputs_left_out\": \"20000000000 bytes"), "{run}");
    assert!(!PathBuf::from(&error.dump).parent().unwrap().join("tensors").exists());
}

/// A pass over a model that has just killed a process would run in the process that all clients need.
#[test]
fn no_pass_runs_over_a_model_that_was_running_when_its_executor_died() {
    let home = Home::new();
    let dims = [Dim::Is(4)];
    let mut part = part();
    part.part.model = Model::default()
        .node("Mul", &["x", "x"], &["y"])
        .input("x", DType::BF16, &dims)
        .output("y", DType::BF16, &dims)
        .build()
        .into();
    let mut client = Client::connect(&home);
    let pid = client.lease().unwrap().pid;
    client.register();
    let handle = client.prepare_part(part).unwrap().handle;
    let at = |offset| TensorRef { desc: TensorDesc::new(DType::BF16, [4]).unwrap(), ..support::tensor(offset) };
    let record = CallRecord { call: CallId(1), handle, eager_nodes: 0, inputs: vec![at(0)], outputs: vec![at(64)] };
    let error = client.observed_while(&home, record, || crash(pid));
    let part = PathBuf::from(&error.dump).join(&graph().name).join("part_0");
    assert!(part.join("model.onnx").exists() && !part.join("model.precision.onnx").exists(), "{}", part.display());
}
