//! Executors: leased, warm, killed, mourned.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use crate::common::gather;
use crate::support::{
    self, Client, Home, X, Y, code, crash, graph, is_alive, is_held, kill, library, part, refused, tensor, wait_for,
};
use rust_ort::base::ids::{GraphId, PartHandle, SegmentId};
use rust_ort::client::{Answer, Peer, PeerError};
use rust_ort::daemon::libraries::KnownLibraries;
use rust_ort::protocol::control::{
    CallsToDump, LeaseSpec, Notice, OpenDump, PairToCompare, Reply, Request, VerdictKind,
};
use rust_ort::protocol::message::{CustomOpLibrary, ErrorCode};
use rust_ort::shm::Lanes;
use rust_ort::tensor::{DType, TensorDesc, TensorRef};

/// A client with a lease, the part and lane 0.
fn ready(home: &Home) -> (Client, PartHandle) {
    let mut client = Client::connect(home);
    client.lease().unwrap();
    client.register();
    let handle = client.prepare().unwrap().handle;
    client.open_lane(0);
    (client, handle)
}

/// One element in the data segment.
fn desc(offset: u64, dtype: DType) -> TensorRef {
    TensorRef { desc: TensorDesc::new(dtype, [1]).unwrap(), ..tensor(offset) }
}

fn call(client: &Client, handle: PartHandle) -> [f32; 4] {
    let record = client.record(handle, X);
    client.lanes.client(0).unwrap().call(&record, || false).unwrap().expect("answered").expect("done");
    client.floats(64)
}

#[test]
fn lane_and_observed_call_give_the_same() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    assert_eq!(call(&client, handle), Y);
    client.data.write(64, &[0; 16]).unwrap();
    let run = client.observed(client.record(handle, X));
    let observed = client.observe(run).unwrap();
    assert_eq!((observed.verdicts, observed.dump.as_str()), (None, ""));
    assert_eq!(client.floats(64), Y);
    let counters = &home.status()["counters"];
    let expected = [("runs", 2), ("observed_runs", 1), ("nodes_on_ort", 2), ("sessions_built", 1), ("exports", 0)];
    for (name, value) in expected {
        assert_eq!(counters[name], value, "{name} in {counters}");
    }
}

#[test]
fn a_plan_outlives_the_daemon_and_counts_where_its_graph_is_registered() {
    let mut home = Home::new();
    let (mut client, _) = ready(&home);
    let (graph, other) = (graph().graph, GraphId::from_bytes([9; 32]));
    let get = |client: &mut Client, graph| client.peer.ask(&Request::GetPlan(graph)).unwrap();
    assert_eq!(get(&mut client, graph), Reply::Plan(None));
    for (graph, plan) in [(graph, "plan"), (other, "table"), (graph, "")] {
        assert_eq!(client.peer.ask(&Request::PutPlan { graph, plan: plan.into() }).unwrap(), Reply::Done);
    }
    assert_eq!(get(&mut client, other), Reply::Plan(Some("table".into())));
    let counters = &home.status()["counters"];
    assert_eq!((&counters["exports"], &counters["plan_hits"]), (&2.into(), &1.into()));
    drop(client);
    home.kill_daemon();
    home.start();
    let mut client = Client::connect(&home);
    assert_eq!(get(&mut client, graph), Reply::Plan(Some("plan".into())));
    let counters = &home.status()["counters"];
    assert_eq!((&counters["exports"], &counters["plan_hits"]), (&0.into(), &1.into()));
}

#[test]
fn observed_call_is_judged_and_dumped() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    let dumps = home.folder.path().join("dumps");
    let open = OpenDump {
        folder: dumps.clone(),
        run: "run".into(),
        clean: true,
        calls: CallsToDump::All,
        run_json: "{}".into(),
        umask: None,
        answered: Vec::new(),
    };
    assert!(matches!(client.peer.ask(&Request::OpenDump(open)), Ok(Reply::DumpOpened { .. })));
    let right: Vec<u8> = Y.iter().flat_map(|y| y.to_le_bytes()).collect();
    let wrong: Vec<u8> = [-1_f32, 2., -3.5, 0.25].iter().flat_map(|y| y.to_le_bytes()).collect();
    for (step, reference, kind, outside) in [(0, &right, VerdictKind::Match, 0), (1, &wrong, VerdictKind::Mismatch, 1)]
    {
        client.data.write(128, reference).unwrap();
        let mut run = client.observed(client.record(handle, X));
        (run.dump, run.references, run.step.0) = (true, Some(vec![tensor(128)]), step);
        let observed = client.observe(run).unwrap();
        let verdicts = observed.verdicts.unwrap();
        assert_eq!((verdicts.len(), verdicts[0].name.as_str()), (1, "y"));
        assert_eq!((verdicts[0].kind, verdicts[0].outside), (kind, outside));
        assert!(Path::new(&observed.dump).join("input_0.pb").exists(), "{}", observed.dump);
    }
    assert_eq!(client.peer.ask(&Request::FlushDump).unwrap(), Reply::Done);
    let part = dumps.join("run/0_0-inference/part_0");
    for file in [
        "model.onnx",
        "model.ort.onnx",
        "provenance.json",
        "test_data_set_1/actual_0.pb",
        "test_data_set_1/output_0.pb",
    ] {
        assert!(part.join(file).exists(), "{file}");
    }
    assert_eq!(client.peer.ask(&Request::CloseDump).unwrap(), Reply::Done);
    assert_eq!(code(client.peer.ask(&Request::FlushDump).unwrap_err()), ErrorCode::BadState);
    assert_eq!(home.status()["last_steps"][1]["summary"]["mismatch"], 1);
}

#[test]
fn a_run_that_fails_names_graph_and_node_and_the_next_one_is_served() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    let mut failing = part();
    failing.part.part = 1;
    failing.part.model = gather().into();
    let gather = client.prepare_part(failing).unwrap().handle;
    client.data.write(128, &9_i64.to_le_bytes()).unwrap();
    let mut record = client.record(gather, X);
    record.inputs.push(desc(128, DType::I64));
    record.outputs[0] = desc(192, DType::F32);
    let on_lane = client.lanes.client(0).unwrap().call(&record, || false).unwrap().expect("answered").unwrap_err();
    let mut run = client.observed(record);
    run.part = 1;
    let error = refused(client.observe(run).unwrap_err());
    let found = (error.code, error.graph.as_str(), error.node.as_str());
    assert_eq!(found, (ErrorCode::BadIndex, "0_0-inference", "node_y"), "{error:?}");
    assert!(error.message.contains("'node_y'") && !error.log.is_empty(), "{error:?}");
    assert_eq!((on_lane.code, &on_lane.message), (error.code.code(), &error.message));
    assert_eq!(call(&client, handle), Y);
}

#[test]
fn a_panic_of_the_executor_costs_its_request_only() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    std::fs::write(home.hold(), "panic").unwrap();
    let run = client.observed(client.record(handle, X));
    let error = refused(client.observe(run).unwrap_err());
    assert_eq!((error.code, error.graph.as_str()), (ErrorCode::Internal, "0_0-inference"));
    std::fs::remove_file(home.hold()).unwrap();
    assert_eq!(call(&client, handle), Y);
    assert_eq!(home.status()["executors"].as_array().unwrap().len(), 1);
}

#[test]
fn reference_that_the_run_would_overwrite_is_refused() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    let mut run = client.observed(client.record(handle, X));
    run.references = Some(vec![tensor(64)]);
    assert_eq!(code(client.observe(run).unwrap_err()), ErrorCode::BadTensor);
}

#[test]
fn tensors_are_compared_without_an_executor() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.data.write(0, &1_f32.to_le_bytes()).unwrap();
    let pair = |reference, candidate| PairToCompare::Pair {
        reference: tensor(reference),
        candidate: tensor(candidate),
        terms: None,
        exact: None,
        excuse: None,
    };
    let pairs = vec![
        ("same".to_owned(), pair(0, 0)),
        ("other".to_owned(), pair(0, 64)),
        ("none".to_owned(), PairToCompare::NotCompared("graph break".into())),
    ];
    let Reply::Comparison(verdicts) = client
        .peer
        .ask(&Request::CompareTensors { pairs, tolerance: None, noise: None, through: None, settles: None })
        .unwrap()
    else {
        panic!("no comparison")
    };
    let kinds: Vec<VerdictKind> = verdicts.iter().map(|verdict| verdict.kind).collect();
    assert_eq!(kinds, [VerdictKind::Match, VerdictKind::Mismatch, VerdictKind::NotCompared]);
}

#[test]
fn two_clients_have_two_executors() {
    let home = Home::new();
    let (mut one, mut two) = (Client::connect(&home), Client::connect(&home));
    let (first, second) = (one.lease().unwrap(), two.lease().unwrap());
    assert_ne!(first.executor, second.executor);
    assert_ne!(first.pid, second.pid);
    assert_eq!(first.onnxruntime_version, second.onnxruntime_version);
    assert_eq!(code(one.lease().unwrap_err()), ErrorCode::BadState);
}

#[test]
fn next_client_gets_the_executor_warm_with_its_sessions() {
    let home = Home::new();
    let mut first = Client::connect(&home);
    let cold = first.lease().unwrap();
    first.register();
    assert!(first.prepare().unwrap().built);
    drop(first);
    wait_for("the lease comes back", || home.status()["executors"][0]["leased_to"].is_null().then_some(()));
    let mut second = Client::connect(&home);
    let warm = second.lease().unwrap();
    assert_eq!((warm.executor, warm.pid, cold.warm, warm.warm), (cold.executor, cold.pid, false, true));
    second.register();
    let prepared = second.prepare().unwrap();
    assert!(!prepared.built);
    second.open_lane(0);
    assert_eq!(call(&second, prepared.handle), Y);
    let counters = &home.status()["counters"];
    assert_eq!((&counters["sessions_built"], &counters["session_hits"]), (&1.into(), &1.into()));
}

/// A process unloads no library: the code of one client's would run beside another's data.
#[test]
fn an_executor_with_a_clients_library_goes_to_those_alone_that_name_it() {
    let home = Home::new();
    let library = crate::common::custom_ops();
    let lease = |client: &mut Client, named: &[CustomOpLibrary]| {
        let spec = LeaseSpec {
            onnxruntime_library: support::library(),
            threads: 1,
            custom_op_libraries: named.to_vec(),
            ..LeaseSpec::default()
        };
        let Ok(Reply::Leased(leased)) = client.peer.ask(&Request::LeaseExecutor(spec)) else { panic!("no lease") };
        leased
    };
    let is_free = || {
        let executors = home.status()["executors"].clone();
        executors.as_array().unwrap().iter().all(|executor| executor["leased_to"].is_null()).then_some(())
    };
    let mut first = Client::connect(&home);
    // What is named may be loaded; this one does.
    let cold = lease(&mut first, &[]);
    first.register();
    let mut with_library = part();
    with_library.part.session.custom_op_libraries = vec![library.clone()];
    first.prepare_part(with_library).unwrap();
    drop(first);
    wait_for("the lease comes back", is_free);
    let changed = CustomOpLibrary { modified_ns: library.modified_ns + 1, ..library.clone() };
    for named in [&[][..], &[changed]] {
        let mut other = Client::connect(&home);
        let leased = lease(&mut other, named);
        assert!(leased.executor != cold.executor, "{named:?}");
        drop(other);
        wait_for("the lease comes back", is_free);
    }
    let mut same = Client::connect(&home);
    let warm: Vec<_> = home.status()["executors"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
    assert_eq!(warm.len(), 2, "one with the library, one that serves whoever names it or not");
    let mut next = Client::connect(&home);
    let leased = [lease(&mut same, std::slice::from_ref(&library)), lease(&mut next, &[library])];
    assert!(leased.iter().all(|leased| leased.warm), "{leased:?}");
    assert!(leased.iter().any(|leased| leased.executor == cold.executor), "{leased:?}");
}

#[test]
fn a_state_folder_that_was_removed_is_made_again() {
    let home = Home::new();
    fs::remove_dir_all(home.state()).unwrap();
    let (client, handle) = ready(&home);
    assert_eq!(call(&client, handle), Y);
    let folder = home.state().join("log");
    let logs: Vec<_> = fs::read_dir(&folder).unwrap().map(|log| log.unwrap().file_name()).collect();
    assert!(logs.iter().any(|log| log.to_string_lossy().starts_with("executor-")), "{logs:?}");
    assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn idle_executors_above_the_limit_end() {
    let home = Home::new();
    let clients: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = Client::connect(&home);
            client.lease().unwrap();
            client
        })
        .collect();
    assert_eq!(home.status()["executors"].as_array().unwrap().len(), 6);
    drop(clients);
    wait_for("four are left", || (home.status()["executors"].as_array().unwrap().len() == 4).then_some(()));
}

#[test]
fn executor_killed_in_a_call_costs_that_call_only() {
    let home = Home::new();
    let (mut other, other_handle) = ready(&home);
    let (mut client, handle) = ready(&home);
    let victim = home.status()["executors"][1]["pid"].as_u64().unwrap() as u32;

    std::fs::write(home.hold(), b"").unwrap();
    let record = client.record(handle, X);
    let lane = client.lanes.client(0).unwrap();
    let (lost_to, lost) = std::sync::mpsc::channel::<()>();
    let waiting = std::thread::spawn(move || lane.call(&record, || lost.try_recv().is_ok()).unwrap().is_none());
    wait_for("the call is inside", || is_held(&home.hold()));
    crash(victim);
    let notice = client.peer.next_answer(Duration::from_secs(60)).unwrap();
    std::fs::remove_file(home.hold()).unwrap();
    lost_to.send(()).unwrap();
    assert!(waiting.join().unwrap(), "the call has no answer");

    let Some(Answer::Notice(Notice::ExecutorLost { calls, cause, .. })) = notice else { panic!("{notice:?}") };
    assert_eq!((cause.as_str(), calls.len()), ("ONNX Runtime or a custom operator crashed (signal 6, SIGABRT)", 1));
    let error = &calls[0];
    assert_eq!((error.code, error.graph.as_str()), (ErrorCode::ExecutorLost, "0_0-inference"));
    assert!(error.message.contains("call 77") && error.message.contains("signal 6"), "{error}");
    assert!(Path::new(&error.log).exists(), "{}", error.log);
    let part = Path::new(&error.dump).join("0_0-inference/part_0");
    assert!(error.dump.starts_with(home.state().join("quarantine").to_str().unwrap()), "{}", error.dump);
    assert_eq!(std::fs::read(part.join("model.onnx")).unwrap(), support::neg_model());
    let input = std::fs::read(part.join("test_data_set_0/input_0.pb")).unwrap();
    assert!(input.windows(16).any(|bytes| bytes == X.map(f32::to_le_bytes).concat()), "the input's bytes");

    assert_eq!(client.floats(0), X, "the client's memory is whole");
    assert!(!client.lease().unwrap().warm);
    let handle = client.prepare().unwrap().handle;
    client.open_lane(0);
    assert_eq!(call(&client, handle), Y);
    assert_eq!(call(&other, other_handle), Y);
    assert!(other.peer.next_answer(Duration::from_millis(50)).unwrap().is_none());
    assert_eq!(home.status()["quarantine"][0]["deaths_in_a_row"], 1);
}

#[test]
fn executor_killed_from_outside_in_a_call_accuses_no_graph() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    let victim = home.status()["executors"][0]["pid"].as_u64().unwrap() as u32;
    let record = client.record(handle, X);
    let error = client.observed_while(&home, record, || kill(victim));
    assert_eq!((error.code, error.dump.as_str()), (ErrorCode::ExecutorLost, ""));
    let told = "in call 77 of graph 0_0-inference, part 0: killed from outside (signal 9, SIGKILL)";
    assert!(error.message.contains(told) && error.message.contains("run again"), "{error}");
    assert_eq!(home.status()["quarantine"], serde_json::json!([]));
    assert!(!home.state().join("quarantine").exists());
    assert!(!client.lease().unwrap().warm);
    let handle = client.prepare().unwrap().handle;
    let run = client.observed(client.record(handle, X));
    client.observe(run).unwrap();
}

#[test]
fn observed_call_of_a_killed_executor_is_answered() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    let victim = home.status()["executors"][0]["pid"].as_u64().unwrap() as u32;
    let record = client.record(handle, X);
    let error = client.observed_while(&home, record, || crash(victim));
    assert_eq!(error.code, ErrorCode::ExecutorLost);
    assert!(error.message.contains("call 77"), "{error}");
    assert!(Path::new(&error.dump).join("0_0-inference/part_0/model.onnx").exists(), "{}", error.dump);
    assert!(matches!(client.peer.notices[..], [Notice::ExecutorLost { .. }]), "{:?}", client.peer.notices);
    assert!(client.lease().is_ok());
}

#[test]
fn part_whose_executors_died_three_times_in_a_row_is_refused() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.register();
    for death in 1..=3 {
        let victim = client.lease().unwrap().pid;
        let handle = client.prepare().unwrap().handle;
        let record = client.record(handle, X);
        assert_eq!(client.observed_while(&home, record, || crash(victim)).code, ErrorCode::ExecutorLost);
        assert_eq!(home.status()["quarantine"][0]["deaths_in_a_row"], death);
    }
    client.lease().unwrap();
    let error = refused(client.prepare().unwrap_err());
    assert_eq!((error.code, error.graph.as_str()), (ErrorCode::Quarantined, "0_0-inference"));
    assert!(error.message.contains("rust-ort stop") && Path::new(&error.dump).exists(), "{error}");
}

#[test]
fn idle_executor_that_is_killed_is_replaced() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let first = client.lease().unwrap();
    kill(first.pid);
    let notice = client.peer.next_answer(Duration::from_secs(60)).unwrap();
    assert!(
        matches!(&notice, Some(Answer::Notice(Notice::ExecutorLost { calls, .. })) if calls.is_empty()),
        "{notice:?}"
    );
    assert_ne!(client.lease().unwrap().executor, first.executor);
}

#[test]
fn client_that_dies_in_a_call_returns_its_executor() {
    let home = Home::new();
    let (client, handle) = ready(&home);
    let pid = home.status()["executors"][0]["pid"].clone();
    std::fs::write(home.hold(), b"").unwrap();
    let record = client.record(handle, X);
    let lane = client.lanes.client(0).unwrap();
    let waiting = std::thread::spawn(move || lane.call(&record, || true).unwrap());
    wait_for("the call is inside", || is_held(&home.hold()));
    drop(client);
    waiting.join().unwrap();
    std::fs::remove_file(home.hold()).unwrap();
    wait_for("the client is gone and its lease back", || {
        let status = home.status();
        let executors = status["executors"].as_array().unwrap();
        let free = executors.iter().all(|executor| executor["leased_to"].is_null());
        (status["clients"].as_array().unwrap().is_empty() && free).then_some(())
    });
    let (next, handle) = ready(&home);
    assert_eq!(call(&next, handle), Y);
    assert_eq!(home.status()["executors"][0]["pid"], pid, "the same, warm");
}

#[test]
fn executors_end_with_a_killed_daemon() {
    let mut home = Home::new();
    let mut client = Client::connect(&home);
    let pid = client.lease().unwrap().pid;
    home.kill_daemon();
    wait_for("the executor ends", || (!is_alive(pid)).then_some(()));
    assert!(matches!(client.peer.ask(&Request::GetStatus), Err(PeerError::Transport(_) | PeerError::Io(_))));
    assert_eq!(client.floats(0), [0.; 4], "the client's memory is whole");
}

#[test]
fn what_needs_a_lease_says_so() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    assert_eq!(code(client.prepare().unwrap_err()), ErrorCode::BadState);
    assert_eq!(code(client.peer.ask(&Request::OpenLane(0)).unwrap_err()), ErrorCode::BadState);
    let run = client.observed(client.record(PartHandle(1), X));
    assert_eq!(code(client.observe(run).unwrap_err()), ErrorCode::BadState);
    client.lease().unwrap();
    assert_eq!(code(client.prepare().unwrap_err()), ErrorCode::UnknownGraph);
    client.register();
    let run = client.observed(client.record(PartHandle(999), X));
    assert_eq!(code(client.observe(run).unwrap_err()), ErrorCode::UnknownGraph);
    assert_eq!(code(client.peer.ask(&Request::OpenLane(4)).unwrap_err()), ErrorCode::Limit);
    let report = Request::ReportEager { graph: graph().graph, eager_nodes: 3 };
    assert_eq!(client.peer.ask(&report).unwrap(), Reply::Done);
    assert_eq!(home.status()["counters"]["nodes_in_eager"], 3);
}

#[test]
fn one_memfd_is_lanes_or_data_and_not_both() {
    let home = Home::new();
    let lanes = Lanes::create(SegmentId(5), 1, 64 << 10).unwrap();
    let attach = |segment, lanes| Request::AttachSegment { segment: SegmentId(segment), len_bytes: LEN, lanes };
    const LEN: u64 = (64 << 10) + 4096;
    assert_eq!(lanes.segment().len_bytes(), LEN);
    for lanes_first in [true, false] {
        let (mut peer, _) = Peer::connect(&home.socket(), "test").unwrap();
        let mut attach = |segment, is_lanes| peer.ask_with(&attach(segment, is_lanes), Some(lanes.segment().fd()));
        assert_eq!(attach(5, lanes_first).unwrap(), Reply::Done);
        let error = refused(attach(6, !lanes_first).unwrap_err());
        assert_eq!(error.code, ErrorCode::BadSegment);
        assert!(error.message.contains("the same memory is attached as segment 5"), "{error}");
    }
}

#[test]
fn library_that_is_none_is_named() {
    let home = Home::new();
    let (mut peer, _) = Peer::connect(&home.socket(), "test").unwrap();
    let text = home.folder.path().join("libonnxruntime.so");
    std::fs::write(&text, b"not a library").unwrap();
    for path in [home.folder.path().join("absent.so"), text] {
        let spec = LeaseSpec { onnxruntime_library: path.clone(), threads: 1, ..LeaseSpec::default() };
        let error = refused(peer.ask(&Request::LeaseExecutor(spec)).unwrap_err());
        assert_eq!(error.code, ErrorCode::RuntimeMissing);
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    }
    let spec = LeaseSpec { onnxruntime_library: library(), threads: 1, ..LeaseSpec::default() };
    assert!(matches!(peer.ask(&Request::LeaseExecutor(spec)), Ok(Reply::Leased(_))));
}

#[test]
fn a_library_that_an_executor_has_loaded_is_known_by_its_content() {
    let home = Home::new();
    let path = home.folder.path().join("libonnxruntime.so");
    fs::copy(library(), &path).unwrap();
    let known = KnownLibraries::below(&home.state());
    assert!(!known.knows(&path).unwrap());
    let (mut peer, _) = Peer::connect(&home.socket(), "test").unwrap();
    let text = home.folder.path().join("text.so");
    fs::write(&text, b"not a library").unwrap();
    let bad = LeaseSpec { onnxruntime_library: text.clone(), threads: 1, ..LeaseSpec::default() };
    assert!(peer.ask(&Request::LeaseExecutor(bad)).is_err());
    let spec = LeaseSpec { onnxruntime_library: path.clone(), threads: 1, ..LeaseSpec::default() };
    assert!(matches!(peer.ask(&Request::LeaseExecutor(spec)), Ok(Reply::Leased(_))));
    wait_for("the library is remembered", || known.knows(&path).unwrap().then_some(()));
    assert!(!known.knows(&text).unwrap());
    fs::File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert!(!known.knows(&path).unwrap());
}

#[test]
fn a_library_that_was_rebuilt_at_its_path_is_loaded_anew() {
    let home = Home::new();
    let path = home.folder.path().join("libonnxruntime.so");
    fs::copy(library(), &path).unwrap();
    let spec = LeaseSpec { onnxruntime_library: path.clone(), threads: 1, ..LeaseSpec::default() };
    let lease = || {
        let (mut peer, _) = Peer::connect(&home.socket(), "test").unwrap();
        let Reply::Leased(leased) = peer.ask(&Request::LeaseExecutor(spec.clone())).unwrap() else {
            panic!("no lease")
        };
        drop(peer);
        wait_for("the lease comes back", || {
            let status = home.status();
            let executors = status["executors"].as_array().unwrap();
            executors.iter().all(|executor| executor["leased_to"].is_null()).then_some(())
        });
        leased
    };
    let cold = lease();
    let warm = lease();
    assert_eq!((warm.pid, warm.warm), (cold.pid, true));

    // Another file of the same length and time in its place.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let rebuilt = home.folder.path().join("rebuilt");
    fs::copy(library(), &rebuilt).unwrap();
    fs::File::options().write(true).open(&rebuilt).unwrap().set_modified(modified).unwrap();
    fs::rename(&rebuilt, &path).unwrap();
    let other_file = lease();
    assert!(!other_file.warm && other_file.executor != cold.executor, "{other_file:?}");
    wait_for("the old one ends", || (!is_alive(cold.pid)).then_some(()));

    // The same file, written again.
    let later = modified + Duration::from_secs(1);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let other_time = lease();
    assert!(!other_time.warm && other_time.executor != other_file.executor, "{other_time:?}");
    wait_for("the old one ends", || (!is_alive(other_file.pid)).then_some(()));
    assert!(lease().warm);
}

/// A daemon of a copy of the program, which tests may replace.
fn daemon_of_a_copy() -> Home {
    let mut home = Home::empty();
    let program = home.folder.path().join("rust-ort");
    fs::copy(&home.program, &program).unwrap();
    home.program = program;
    home.start();
    home
}

/// As `pip install --upgrade` does: another file, then renamed over it.
fn replace(program: &Path) {
    let upgrade = program.with_extension("new");
    fs::copy("/bin/false", &upgrade).unwrap();
    fs::rename(&upgrade, program).unwrap();
}

#[test]
fn executors_are_of_the_daemons_build_after_its_program_was_replaced() {
    let home = daemon_of_a_copy();
    let program = |pid: u32| {
        let facts = fs::metadata(format!("/proc/{pid}/exe")).unwrap();
        (facts.dev(), facts.ino())
    };
    let (mut first, mut second) = (Client::connect(&home), Client::connect(&home));
    replace(&home.program);
    assert_eq!(program(first.lease().unwrap().pid), program(home.daemon_pid()));
    fs::remove_file(&home.program).unwrap();
    let leased = second.lease().unwrap();
    assert_eq!(program(leased.pid), program(home.daemon_pid()));
    let name = fs::read_to_string(format!("/proc/{}/comm", leased.pid)).unwrap();
    assert_eq!(name.trim(), "rust-ort");
}

#[test]
fn a_daemon_whose_program_was_replaced_ends_when_its_last_client_has_left() {
    let mut home = daemon_of_a_copy();
    let mut client = Client::connect(&home);
    replace(&home.program);
    client.lease().unwrap();
    let log = home.log();
    drop(client);
    assert!(home.wait_daemon().success());
    assert!(!log.contains("ending"), "{log}");
    assert!(!home.socket().exists());
}
