//! Peers that stop in the middle: clients that do not read or do not write on, executors that do not answer.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{self, Client, Home, X, is_alive, is_held, part, refused, wait_for};
use bytes::Bytes;
use rust_ort::base::ids::{CallId, SegmentId, Work};
use rust_ort::client::Answer;
use rust_ort::protocol::control::*;
use rust_ort::protocol::frame::{self, FrameHeader, FrameKind};
use rust_ort::protocol::message::{ErrorCode, WireError};
use rust_ort::protocol::wire;
use rust_ort::shm::Segment;
use rustix::process::{Pid, Signal, kill_process};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn hello() -> Vec<u8> {
    let hello = Hello { protocol: frame::VERSION.into(), program: "stuck".into(), ..Hello::default() };
    wire::encode_request(1, &Request::Hello(hello)).unwrap()
}

/// A client that asks until nothing more fits, since it takes no answers.
fn glutted(home: &Home) -> UnixStream {
    let mut stream = UnixStream::connect(home.socket()).unwrap();
    stream.write_all(&hello()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let asked = wire::encode_request(2, &Request::GetStatus).unwrap().repeat(100_000);
    let (mut sent, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        match stream.write(&asked[sent..]) {
            Ok(n) => (sent, since) = (sent + n, Instant::now()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(sent < asked.len());
    stream
}

#[test]
fn a_client_that_does_not_read_holds_up_neither_the_end_nor_the_next_daemon() {
    let mut home = Home::new();
    let _client = glutted(&home);
    let stop = home.command().args(["stop", "--force"]).output().unwrap();
    assert!(stop.status.success(), "{stop:?}");
    assert!(home.wait_daemon().success());
    home.start();
}

#[test]
fn an_executor_that_does_not_answer_ends_with_its_client() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let executor = client.lease().unwrap().pid;
    signal(executor, Signal::STOP);
    let segment = Segment::create(SegmentId(9), "test-more", 1 << 16).unwrap();
    let attach = Request::AttachSegment { segment: SegmentId(9), len_bytes: 1 << 16, lanes: false };
    client.peer.send_raw(&wire::encode_request(71, &attach).unwrap(), Some(segment.fd())).unwrap();
    drop(client);
    wait_for("client and executor are gone", || {
        let status = home.status();
        let gone = status["clients"].as_array().unwrap().is_empty() && !is_alive(executor);
        (gone && status["executors"].as_array().unwrap().is_empty()).then_some(())
    });
}

#[test]
fn an_executor_that_takes_no_request_does_not_hold_up_the_end() {
    let mut home = Home::new();
    let mut client = Client::connect(&home);
    let executor = client.lease().unwrap().pid;
    client.register();
    signal(executor, Signal::STOP);
    let mut large = part();
    large.part.model = Bytes::from(vec![0; 4 << 20]);
    let prepare = wire::encode_request(71, &Request::PreparePart(Box::new(large))).unwrap();
    client.peer.send_raw(&prepare, None).unwrap();
    // More than the socket holds: the rest waits.
    wait_for("the model is there", || (home.status()["memory"]["kept_bytes"].as_u64()? > 4 << 20).then_some(()));
    std::thread::sleep(Duration::from_millis(200));
    signal(home.daemon_pid(), Signal::TERM);
    assert!(home.wait_daemon().success());
    wait_for("the executor has ended", || (!is_alive(executor)).then_some(()));
}

#[test]
fn an_executor_that_does_not_answer_in_time_is_killed_and_its_client_told() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let executor = client.lease().unwrap().pid;
    signal(executor, Signal::STOP);
    client.peer.send_raw(&wire::encode_request(71, &Request::OpenLane(0)).unwrap(), None).unwrap();
    let error = error_of(&mut client, 71);
    assert_eq!(error.code, ErrorCode::ExecutorLost);
    assert!(error.message.contains("did not answer OpenLane within 30 s"), "{error}");
    assert!(!is_alive(executor));
    assert_ne!(client.lease().unwrap().pid, executor);
}

/// The answer to a raw request of this id.
fn error_of(client: &mut Client, id: u64) -> WireError {
    wait_for("an answer", || match client.peer.next_answer(Duration::from_secs(120)).unwrap() {
        Some(Answer::Reply(answered, Reply::Error(error))) if answered == id => Some(error),
        Some(Answer::Notice(_) | Answer::Reply(_, Reply::Done)) => None,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_kernel_that_hangs_after_its_call_was_cancelled_ends_with_its_executor_and_accuses_no_graph() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let executor = client.lease().unwrap().pid;
    client.register();
    let handle = client.prepare().unwrap().handle;
    std::fs::write(home.hold(), "hang").unwrap();
    let run = Request::RunObserved(Box::new(client.observed(client.record(handle, X))));
    client.peer.send_raw(&wire::encode_request(71, &run).unwrap(), None).unwrap();
    wait_for("the call is inside", || is_held(&home.hold()));
    let cancel = Request::CancelCall(Work::Call(CallId(77)));
    for id in 72..80 {
        client.peer.send_raw(&wire::encode_request(id, &cancel).unwrap(), None).unwrap();
    }
    let error = error_of(&mut client, 71);
    std::fs::remove_file(home.hold()).unwrap();
    assert_eq!((error.code, error.dump.as_str()), (ErrorCode::ExecutorLost, ""));
    let told =
        "in call 77 of graph 0_0-inference, part 0: killed since call 77, which its client cancelled, went on for 10 s";
    assert!(error.message.contains(told), "{error}");
    assert!(!is_alive(executor));
    assert_eq!(home.status()["quarantine"], serde_json::json!([]));
    assert_ne!(client.lease().unwrap().pid, executor);
}

#[test]
fn an_optimizer_that_hangs_on_a_dumped_part_ends_when_nobody_waits_for_it() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    let executor = client.lease().unwrap().pid;
    let open = OpenDump {
        folder: home.folder.path().join("dumps"),
        run: "run".into(),
        clean: false,
        calls: CallsToDump::All,
        run_json: "{}".into(),
        umask: None,
        answered: Vec::new(),
    };
    assert!(matches!(client.peer.ask(&Request::OpenDump(open)), Ok(Reply::DumpOpened { .. })));
    client.register();
    std::fs::write(home.hold(), "hang optimize").unwrap();
    let prepare = wire::encode_request(71, &Request::PreparePart(Box::new(part()))).unwrap();
    client.peer.send_raw(&prepare, None).unwrap();
    wait_for("the optimizer runs", || is_held(&home.hold()));
    let cancel = Request::CancelCall(Work::Request(71));
    client.peer.send_raw(&wire::encode_request(72, &cancel).unwrap(), None).unwrap();
    wait_for("its executor has ended", || (!is_alive(executor)).then_some(()));
    std::fs::remove_file(home.hold()).unwrap();
    // Nobody takes it.
    wait_for("the answer", || match client.peer.next_answer(Duration::from_secs(120)).unwrap() {
        Some(Answer::Reply(71, _)) => Some(()),
        _ => None,
    });
    let told = "request 71, which its client cancelled, went on for 10 s";
    wait_for("the end is told", || home.log().contains(told).then_some(()));
    assert_eq!(home.status()["quarantine"], serde_json::json!([]));
    assert_ne!(client.lease().unwrap().pid, executor);
}

#[test]
fn what_is_announced_and_not_sent_takes_no_room_and_ends_its_connection() {
    let mut home = Home::empty();
    home.memory_mb = Some(64);
    home.start();
    let mut idle = UnixStream::connect(home.socket()).unwrap();
    idle.write_all(&hello()).unwrap();
    let body_bytes = 64 << 20;
    idle.write_all(&FrameHeader { kind: FrameKind::Request, body_bytes }.encode()).unwrap();
    wait_for("it is welcome", || (home.status()["clients"].as_array().unwrap().len() == 1).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    let mut client = Client::connect(&home);
    let graph = RegisterGraph { fx_text: "x".repeat(100_000), ..support::graph() };
    let registered = client.peer.ask(&Request::RegisterGraph(Box::new(graph))).unwrap();
    assert!(matches!(registered, Reply::Registered { .. }), "{registered:?}");
    // Until it is told and closed.
    idle.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut answers = Vec::new();
    idle.read_to_end(&mut answers).unwrap();
    assert!(String::from_utf8_lossy(&answers).contains("no byte of a request's body for 30 s"));
}

#[test]
fn a_dump_that_a_former_connection_of_the_process_still_ends_is_waited_for() {
    let home = Home::new();
    let open = |run_json: &str| {
        Request::OpenDump(OpenDump {
            folder: home.folder.path().join("dumps"),
            run: "run".into(),
            clean: false,
            calls: CallsToDump::All,
            run_json: run_json.into(),
            umask: None,
            answered: Vec::new(),
        })
    };
    let mut former = Client::connect(&home);
    let executor = former.lease().unwrap().pid;
    assert!(matches!(former.peer.ask(&open("{}")), Ok(Reply::DumpOpened { .. })));
    let mut client = Client::connect(&home);
    let busy = refused(client.peer.ask(&open(r#"{"another": 1}"#)).unwrap_err());
    assert!(busy.message.contains("another client is writing this dump"), "{busy}");
    // Its end waits for the executor's.
    signal(executor, Signal::STOP);
    drop(former);
    assert!(matches!(client.peer.ask(&open(r#"{"another": 1}"#)), Ok(Reply::DumpOpened { .. })));
}
