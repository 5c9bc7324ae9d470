//! Requests of one client side by side, clients that die in the middle of one, and file systems that do not answer.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use crate::common::{Dim, Model};
use crate::support::{self, Client, Home, X, Y, code, graph, is_held, let_go, part, refused, tensor, wait_for};
use rust_ort::base::ids::{GraphId, PartHandle, SegmentId, StepId};
use rust_ort::client::{Answer, Peer, PeerError};
use rust_ort::protocol::control::*;
use rust_ort::protocol::message::ErrorCode;
use rust_ort::protocol::wire;
use rust_ort::shm::Segment;
use rust_ort::tensor::DType;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

fn ready(home: &Home) -> (Client, PartHandle) {
    let mut client = Client::connect(home);
    client.lease().unwrap();
    client.register();
    let mut part = part();
    part.part.named_values = vec!["y".into()];
    let handle = client.prepare_part(part).unwrap().handle;
    (client, handle)
}

fn send(client: &Client, id: u64, request: &Request) {
    client.peer.send_raw(&wire::encode_request(id, request).unwrap(), None).unwrap();
}

fn observed(client: &Client, handle: PartHandle) -> Request {
    Request::RunObserved(Box::new(client.observed(client.record(handle, X))))
}

fn compare_nodes(handle: PartHandle) -> Request {
    let x = NodeFeed { name: "x".into(), reference: tensor(0), candidate: tensor(0) };
    let node = ComputedNode {
        name: "y".into(),
        reference: tensor(128),
        candidate: tensor(192),
        local: Some(tensor(256)),
        reference_ns: 1,
        float64: Box::default(),
    };
    Request::CompareNodes(Box::new(CompareNodes {
        handle,
        of: NodesOf { graph: graph().graph, part: 0, step: StepId(0) },
        feeds: vec![x],
        values: vec![NodeValue::Computed(node)],
        tolerance: None,
        cumulative_tolerance: None,
        through: None,
        dump_values: false,
        noise: None,
    }))
}

fn is_free(home: &Home) -> Option<()> {
    let status = home.status();
    let executors = status["executors"].as_array().unwrap();
    let free = executors.iter().all(|executor| executor["leased_to"].is_null());
    (status["clients"].as_array().unwrap().is_empty() && free).then_some(())
}

#[test]
fn a_client_that_dies_in_a_long_request_is_noticed_while_it_runs() {
    let home = Home::new();
    let (mut client, mut handle) = ready(&home);
    let pid = home.status()["executors"][0]["pid"].clone();
    for request in ["RunObserved", "CompareNodes"] {
        std::fs::write(home.hold(), b"").unwrap();
        let request = if request == "RunObserved" { observed(&client, handle) } else { compare_nodes(handle) };
        send(&client, 99, &request);
        wait_for("the call is inside", || is_held(&home.hold()));
        drop(client);
        wait_for("the client is gone and its lease back, though nothing lets its call go", || is_free(&home));
        let_go(&home.hold());
        (client, handle) = ready(&home);
        let run = client.observed(client.record(handle, X));
        client.observe(run).unwrap();
        assert_eq!(client.floats(64), Y);
        assert_eq!(home.status()["executors"][0]["pid"], pid, "the same, warm");
    }
}

/// The id of the reply that comes next.
fn next_reply(client: &mut Client) -> (u64, Reply) {
    match client.peer.next_answer(Duration::from_secs(120)).unwrap() {
        Some(Answer::Reply(id, reply)) => (id, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_is_attached_while_a_long_request_runs() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    std::fs::write(home.hold(), b"").unwrap();
    send(&client, 70, &observed(&client, handle));
    wait_for("the call is inside", || is_held(&home.hold()));
    let segment = Segment::create(SegmentId(9), "test-more", 1 << 20).unwrap();
    let attach = Request::AttachSegment { segment: SegmentId(9), len_bytes: 1 << 20, lanes: false };
    client.peer.send_raw(&wire::encode_request(71, &attach).unwrap(), Some(segment.fd().as_fd())).unwrap();
    assert_eq!(next_reply(&mut client), (71, Reply::Done));
    send(&client, 72, &Request::OpenLane(0));
    assert_eq!(next_reply(&mut client), (72, Reply::Done));
    std::fs::remove_file(home.hold()).unwrap();
    assert!(matches!(next_reply(&mut client), (70, Reply::Observed(_))));
}

#[test]
fn long_requests_are_answered_in_their_order_and_too_many_are_refused() {
    let home = Home::new();
    let (mut client, handle) = ready(&home);
    std::fs::write(home.hold(), b"").unwrap();
    let waiting = rust_ort::base::limits::WAITING_REQUESTS as u64;
    send(&client, 100, &observed(&client, handle));
    wait_for("the call is inside", || is_held(&home.hold()));
    for id in 101..=101 + waiting {
        send(&client, id, &Request::GetPlan(graph().graph));
    }
    let (id, refused) = next_reply(&mut client);
    let Reply::Error(error) = refused else { panic!("{refused:?}") };
    assert_eq!((id, error.code), (101 + waiting, ErrorCode::Limit), "{error}");
    std::fs::remove_file(home.hold()).unwrap();
    assert!(matches!(next_reply(&mut client), (100, Reply::Observed(_))));
    for id in 101..101 + waiting {
        assert_eq!(next_reply(&mut client), (id, Reply::Plan(None)));
    }
}

fn hangs(home: &Home) -> PathBuf {
    dumps(home).with_extension("hangs")
}

/// From now on no file of a dump is opened.
fn hang(home: &Home) {
    std::fs::write(hangs(home), "").unwrap();
}

/// fixtures/hanging_mount.c, built once.
fn hanging_mount() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hanging_mount.so");
        let unfinished = library.with_extension(std::process::id().to_string());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hanging_mount.c");
        let mut cc = std::process::Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&unfinished).arg(source);
        assert!(cc.status().unwrap().success());
        std::fs::rename(unfinished, &library).unwrap();
        library
    };
    LIBRARY.get_or_init(build).clone()
}

fn dumps(home: &Home) -> PathBuf {
    home.folder.path().join("dumps")
}

fn open_dump(home: &Home) -> Request {
    Request::OpenDump(OpenDump {
        folder: dumps(home),
        run: "run".into(),
        clean: false,
        calls: CallsToDump::All,
        run_json: "{}".into(),
        umask: None,
        answered: Vec::new(),
    })
}

fn opened(home: &Home, client: &mut Client) {
    assert!(matches!(client.peer.ask(&open_dump(home)), Ok(Reply::DumpOpened { .. })));
}

/// Status and an end by force, while `request` of `client` waits for a file system.
fn others_go_on(mut home: Home, client: Client, request: &Request) {
    send(&client, 500, request);
    wait_for("the daemon has the request", || home.log().contains("id=500").then_some(()));
    let waits = || std::fs::metadata(hangs(&home)).is_ok_and(|facts| facts.len() > 0);
    wait_for("a file of the dump is waited for", || waits().then_some(()));
    // Whoever hangs would not tell: another client's view says whether the daemon answers.
    let socket = home.socket();
    let (answered_to, answered) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut peer, _) = Peer::connect(&socket, "test").unwrap();
        assert!(matches!(peer.ask(&Request::GetStatus), Ok(Reply::Status(_))));
        assert_eq!(code(peer.ask(&Request::Stop { force: false }).unwrap_err()), ErrorCode::BadState);
        assert_eq!(peer.ask(&Request::Stop { force: true }).unwrap(), Reply::Done);
        answered_to.send(()).unwrap();
    });
    answered.recv_timeout(Duration::from_secs(60)).expect("status and stop are answered");
    home.wait_daemon();
}

/// A daemon that logs each request as it begins, and whose dumps are on a mount that may hang.
fn verbose() -> Home {
    let mut home = Home::empty();
    home.log_filter = "rust_ort=debug";
    home.environment = vec![("LD_PRELOAD", hanging_mount()), ("HANGING_MOUNT", dumps(&home))];
    home.start();
    home
}

#[test]
fn opening_a_dump_on_a_mount_that_hangs_blocks_neither_status_nor_stop() {
    let home = verbose();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    hang(&home);
    let request = open_dump(&home);
    others_go_on(home, client, &request);
}

#[test]
fn registering_on_a_mount_that_hangs_blocks_neither_status_nor_stop() {
    let home = verbose();
    let mut client = Client::connect(&home);
    opened(&home, &mut client);
    hang(&home);
    others_go_on(home, client, &Request::RegisterGraph(Box::new(graph())));
}

#[test]
fn preparing_on_a_mount_that_hangs_blocks_neither_status_nor_stop() {
    let home = verbose();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    opened(&home, &mut client);
    hang(&home);
    others_go_on(home, client, &Request::PreparePart(Box::new(part())));
}

#[test]
fn observing_on_a_mount_that_hangs_blocks_neither_status_nor_stop() {
    let home = verbose();
    let (mut client, handle) = ready(&home);
    opened(&home, &mut client);
    hang(&home);
    let mut run = client.observed(client.record(handle, X));
    run.dump = true;
    others_go_on(home, client, &Request::RunObserved(Box::new(run)));
}

fn kept(home: &Home) -> (u64, u64) {
    let client = &home.status()["clients"][0];
    (client["kept_bytes"].as_u64().unwrap(), client["parts"].as_u64().unwrap())
}

#[test]
fn a_preparation_that_fails_half_way_gives_back_what_it_kept_and_can_be_tried_again() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    opened(&home, &mut client);
    let before = kept(&home);
    let mut bad = part();
    bad.provenance_json = "no JSON".into();
    assert_eq!(code(client.prepare_part(bad).unwrap_err()), ErrorCode::Dump);
    assert_eq!(kept(&home), before);
    let mut refused = part();
    refused.part.model = b"\x08\x0a no model"[..].into();
    assert_eq!(code(client.prepare_part(refused).unwrap_err()), ErrorCode::BadModel);
    assert_eq!(kept(&home), before);
    let part = part();
    let len_bytes = (part.part.model.len() + part.provenance_json.len()) as u64;
    client.prepare_part(part).unwrap();
    let (after, parts) = kept(&home);
    // Beside them a few names.
    assert!((len_bytes..len_bytes + 1024).contains(&(after - before.0)) && parts == 1, "{after} after {before:?}");
    assert_eq!(client.peer.ask(&Request::FlushDump).unwrap(), Reply::Done);
    let folder = dumps(&home).join("run/0_0-inference/part_0");
    assert_eq!(std::fs::read(folder.join("model.onnx")).unwrap(), support::neg_model(), "the last one's");
}

#[test]
fn a_graph_whose_texts_cannot_be_dumped_is_not_registered() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    opened(&home, &mut client);
    let bad = RegisterGraph { parts_json: "no JSON".into(), ..graph() };
    let refused = client.peer.ask(&Request::RegisterGraph(Box::new(bad))).unwrap_err();
    assert_eq!(code(refused), ErrorCode::Dump);
    let status = home.status();
    assert_eq!((&status["clients"][0]["graphs"], &status["clients"][0]["kept_bytes"]), (&0.into(), &0.into()));
    client.register();
}

#[test]
fn nothing_stays_of_a_graph_that_nobody_has() {
    let home = Home::new();
    let (mut one, mut other) = (Client::connect(&home), Client::connect(&home));
    let graphs = || home.status()["graphs"].as_u64().unwrap();
    let named = |n: u8| Request::RegisterGraph(Box::new(numbered(n).0));
    for n in 1..=40 {
        assert_eq!(one.peer.ask(&named(n)).unwrap(), Reply::Registered { known: false });
    }
    assert_eq!(other.peer.ask(&named(40)).unwrap(), Reply::Registered { known: true });
    assert_eq!(graphs(), 40);
    let all: Vec<_> = (1..=40).map(|n| numbered(n).0.graph).collect();
    release(&mut one, &[], &all).unwrap();
    assert_eq!(graphs(), 1);
    drop(other);
    wait_for("the client to have left", || (graphs() == 0).then_some(()));
    assert_eq!(one.peer.ask(&named(40)).unwrap(), Reply::Registered { known: false });
}

fn release(client: &mut Client, handles: &[PartHandle], graphs: &[GraphId]) -> Result<Reply, PeerError> {
    client.peer.ask(&Request::Release(Release { handles: handles.to_vec(), graphs: graphs.to_vec() }))
}

#[test]
fn a_release_of_many_unknown_handles_names_the_first_and_counts_the_others() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let handles: Vec<PartHandle> = (0..100_000).rev().map(PartHandle).collect();
    let error = release(&mut client, &handles, &[]).unwrap_err().to_string();
    assert!(error.contains("handle 0: not of this lease") && error.contains("handle 9:"), "{error}");
    assert!(error.contains("and 99990 more") && error.len() < 2000, "{error}");
}

/// y = x + n: a model, a graph and a session of its own for each n.
fn numbered(n: u8) -> (RegisterGraph, PreparePart) {
    let dims = [Dim::Is(4)];
    let model = Model::default()
        .input("x", DType::F32, &dims)
        .initializer("n", &[], &[n.into()])
        .node("Add", &["x", "n"], &["y"])
        .output("y", DType::F32, &dims);
    let graph = RegisterGraph { graph: GraphId::from_bytes([n; 32]), name: format!("{n}_0-inference"), ..graph() };
    let mut prepare = part();
    (prepare.part.graph, prepare.part.model) = (graph.graph, model.build().into());
    (graph, prepare)
}

fn compile(client: &mut Client, n: u8) -> (GraphId, PartHandle) {
    let (graph, prepare) = numbered(n);
    let id = graph.graph;
    assert!(matches!(client.peer.ask(&Request::RegisterGraph(Box::new(graph))), Ok(Reply::Registered { .. })));
    (id, client.prepare_part(prepare).unwrap().handle)
}

fn call(client: &Client, handle: PartHandle) -> f32 {
    let record = client.record(handle, [0.; 4]);
    client.lanes.client(0).unwrap().call(&record, || false).unwrap().expect("answered").expect("done");
    client.floats(64)[0]
}

/// Graphs and parts that the daemon knows of the one client, and its executor's sessions.
fn known(home: &Home) -> [u64; 3] {
    let status = home.status();
    let (client, executor) = (&status["clients"][0], &status["executors"][0]);
    [&client["graphs"], &client["parts"], &executor["sessions"]].map(|n| n.as_u64().unwrap())
}

#[test]
fn what_is_released_goes_with_its_sessions_and_the_rest_stays() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.open_lane(0);
    let (one, one_part) = compile(&mut client, 1);
    let (two, two_part) = compile(&mut client, 2);
    // Another handle of the same session.
    let twin = client.prepare_part(numbered(1).1).unwrap().handle;
    assert_eq!((call(&client, one_part), call(&client, two_part), known(&home)), (1., 2., [2, 3, 2]));
    let before = kept(&home).0;

    let (absent, nowhere) = (PartHandle(999), GraphId::from_bytes([9; 32]));
    assert_eq!(code(release(&mut client, &[absent], &[]).unwrap_err()), ErrorCode::UnknownGraph);
    assert_eq!(code(release(&mut client, &[], &[nowhere]).unwrap_err()), ErrorCode::UnknownGraph);
    assert_eq!(code(release(&mut client, &[], &[one]).unwrap_err()), ErrorCode::BadState);
    assert_eq!((known(&home), kept(&home).0), ([2, 3, 2], before), "what is refused changes nothing");

    assert_eq!(release(&mut client, &[one_part], &[]).unwrap(), Reply::Done);
    assert_eq!((call(&client, twin), known(&home)), (1., [2, 2, 2]));
    assert_eq!(release(&mut client, &[twin, twin], &[one]).unwrap(), Reply::Done);
    assert_eq!((call(&client, two_part), known(&home)), (2., [1, 1, 1]));
    assert!(kept(&home).0 < before);

    let record = client.record(one_part, X);
    let gone = client.lanes.client(0).unwrap().call(&record, || false).unwrap().expect("answered").unwrap_err();
    assert_eq!(gone.code, ErrorCode::UnknownGraph.code());
    let (_, again) = compile(&mut client, 1);
    assert_eq!((call(&client, again), call(&client, two_part), known(&home)), (1., 2., [2, 2, 2]));
    assert_eq!(release(&mut client, &[two_part, again], &[one, two]).unwrap(), Reply::Done);
    assert_eq!((known(&home), kept(&home).0), ([0, 0, 0], 0));
}

#[test]
fn a_part_that_the_client_cannot_name_keeps_its_graph_and_nothing_else() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    let (one, one_part) = compile(&mut client, 1);
    let (two, two_part) = compile(&mut client, 2);
    // As one of a PreparePart that was interrupted: its handle was never read.
    let nameless = client.prepare_part(numbered(1).1).unwrap().handle;
    assert_eq!(known(&home), [2, 3, 2]);
    let error = refused(release(&mut client, &[one_part, PartHandle(999), two_part], &[one, two]).unwrap_err());
    let nameless_is = format!("graph 1_0-inference has parts that stay (handle {})", nameless.0);
    assert!(error.message.contains(&nameless_is) && error.message.contains("handle 999: not of this lease"), "{error}");
    assert_eq!(known(&home), [1, 1, 1], "the rest has gone");
    assert_eq!(release(&mut client, &[nameless], &[one]).unwrap(), Reply::Done);
    assert_eq!(known(&home), [0, 0, 0]);
}

#[test]
fn two_hundred_graphs_that_are_released_leave_nothing_behind() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.open_lane(0);
    let mut most = 0;
    for n in 0..200_u8 {
        let (graph, handle) = compile(&mut client, n);
        assert_eq!(call(&client, handle), f32::from(n));
        most = most.max(known(&home)[2]);
        assert_eq!(release(&mut client, &[handle], &[graph]).unwrap(), Reply::Done);
    }
    assert_eq!((most, known(&home), kept(&home).0), (1, [0, 0, 0], 0));
    assert_eq!(home.status()["counters"]["sessions_built"], 200);
}

/// A daemon that keeps at most 1 MiB for all its clients.
fn small() -> Home {
    let mut home = Home::empty();
    home.memory_mb = Some(1);
    home.start();
    home
}

#[test]
fn what_all_clients_keep_is_bounded_and_given_back() {
    let home = small();
    let text = |n: u8, len: usize| {
        let (graph, _) = numbered(n);
        Request::RegisterGraph(Box::new(RegisterGraph { fx_text: "x".repeat(len), ..graph }))
    };
    let mut one = Client::connect(&home);
    let mut two = Client::connect(&home);
    let (_, three) = numbered(1);
    one.peer.ask(&text(1, 600 << 10)).unwrap();
    let error = support::refused(two.peer.ask(&text(2, 500 << 10)).unwrap_err());
    assert_eq!(error.code, ErrorCode::Limit);
    assert!(error.message.contains("at most 1048576; drop compiled functions"), "{error}");
    two.peer.ask(&text(2, 300 << 10)).unwrap();
    let kept = |name: &str| home.status()["memory"][name].as_u64().unwrap();
    assert!((900 << 10..1 << 20).contains(&kept("kept_bytes")), "{}", kept("kept_bytes"));
    assert_eq!(kept("kept_limit_bytes"), 1 << 20);
    // Small requests pass however much is kept, or nothing could be given back.
    assert_eq!(release(&mut one, &[], &[three.part.graph]).unwrap(), Reply::Done);
    two.peer.ask(&text(2, 300 << 10)).unwrap();
    drop(two);
    wait_for("what the client kept is given back", || (kept("kept_bytes") == 0).then_some(()));
    one.peer.ask(&text(1, 500 << 10)).unwrap();
}

#[test]
fn a_model_beyond_what_is_left_is_refused_and_the_connection_goes_on() {
    let home = small();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let mut large = part();
    large.provenance_json = " ".repeat(2 << 20);
    let error = support::refused(client.prepare_part(large).unwrap_err());
    assert_eq!(error.code, ErrorCode::Limit);
    assert!(error.message.contains("request: ") && error.message.contains("at most 1048576"), "{error}");
    assert!(client.prepare().unwrap().built);
}

#[test]
fn what_waits_for_a_dumps_disk_counts_and_is_waited_for() {
    let home = small();
    let (mut client, handle) = ready(&home);
    let before = kept(&home).0;
    opened(&home, &mut client);
    // Far less than the bound at a time, and given back when it is written.
    for step in 0..50 {
        let mut run = client.observed(client.record(handle, X));
        (run.dump, run.step) = (true, StepId(step));
        client.observe(run).unwrap();
    }
    assert_eq!(client.peer.ask(&Request::FlushDump).unwrap(), Reply::Done);
    assert_eq!(kept(&home).0, before);
}

/// Attaches a sparse segment without mapping it here.
fn attach_sparse(peer: &mut Peer, segment: u32, len_bytes: u64) -> Result<Reply, PeerError> {
    let fd = memfd_create("test-sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len_bytes).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let attach = Request::AttachSegment { segment: SegmentId(segment), len_bytes, lanes: false };
    peer.ask_with(&attach, Some(fd.as_fd()))
}

#[test]
fn huge_sparse_segments_of_some_clients_leave_every_other_its_share() {
    let home = Home::new();
    let connect = || Peer::connect(&home.socket(), "test").unwrap().0;
    // Together far more than there is.
    let mut greedy: Vec<Peer> = (0..12).map(|_| connect()).collect();
    let attached: Vec<usize> = (greedy.iter_mut())
        .map(|peer| (0..9).take_while(|&segment| attach_sparse(peer, segment, 1 << 40).is_ok()).count())
        .collect();
    assert!(attached.iter().sum::<usize>() >= 30 && attached[11] == 0, "{attached:?}");

    let mut other = connect();
    let share = rust_ort::base::limits::SHARE_OF_SEGMENT_BYTES;
    assert_eq!(attach_sparse(&mut other, 1, share / 2).unwrap(), Reply::Done);
    assert_eq!(attach_sparse(&mut other, 2, share / 2).unwrap(), Reply::Done);
    let error = refused(attach_sparse(&mut other, 3, 1 << 40).unwrap_err());
    assert_eq!(error.code, ErrorCode::Limit);
    let facts = format!("this client holds {share} of at most");
    assert!(error.message.contains(&facts) && error.message.contains("`rust-ort status`"), "{error}");
    let status = home.status();
    let shared: Vec<u64> = (status["clients"].as_array().unwrap().iter())
        .map(|client| client["segment_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!((shared[0], shared[12]), (attached[0] as u64 * (1 << 40), share), "who holds how much");
    drop(greedy);
    wait_for("what is common is free again", || attach_sparse(&mut other, 3, 1 << 40).ok());
}
