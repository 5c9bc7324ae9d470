//! Ten thousand connections that mean harm: each is answered or closed, and the daemon and its real client are as before.
//! `RUST_ORT_TEST_HOSTILE=<n>` changes the number, `RUST_ORT_TEST_SEED=<n>` the seed.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::{self, Client, Home, graph, library, part, tensor, wait_for};
use bytes::Bytes;
use rust_ort::base::ids::{CallId, GraphId, PartHandle, SegmentId, StepId, Work};
use rust_ort::client::{Answer, Peer};
use rust_ort::protocol::control::*;
use rust_ort::protocol::frame::{self, FrameHeader, FrameKind, HEADER_LEN};
use rust_ort::protocol::message::{ErrorCode, WireError};
use rust_ort::protocol::wire;
use rust_ort::shm::Segment;
use rust_ort::tensor::CallRecord;

/// xorshift64*: the same connections for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn hello() -> Vec<u8> {
    wire::encode_request(1, &Request::Hello(Hello { protocol: 1, program: "hostile".into(), ..Hello::default() }))
        .unwrap()
}

/// Requests that are well-formed; what they name mostly does not exist.
fn requests(folder: &std::path::Path) -> Vec<Request> {
    let record = CallRecord {
        call: CallId(1),
        handle: PartHandle(3),
        eager_nodes: 0,
        inputs: vec![tensor(0)],
        outputs: vec![tensor(64)],
    };
    let observed = RunObserved {
        record,
        graph: graph().graph,
        part: 0,
        step: StepId(0),
        dump: true,
        references: Some(vec![tensor(128)]),
        tolerance: Some(ToleranceTerms { atol: f64::NAN, rtol: -1., scale: f64::INFINITY, equal_nan: true }),
        through: None,
        noise: None,
    };
    let pair = PairToCompare::Pair {
        reference: tensor(0),
        candidate: tensor(1 << 30),
        terms: None,
        exact: None,
        excuse: None,
    };
    let mut bad_level = part();
    bad_level.part.session.config.insert("no.such.entry".into(), "x".into());
    let absent = folder.join("absent.so");
    vec![
        Request::Hello(Hello { protocol: 2, ..Hello::default() }),
        Request::AttachSegment { segment: SegmentId(1), len_bytes: 4096, lanes: false },
        Request::AttachSegment { segment: SegmentId(1), len_bytes: u64::MAX, lanes: false },
        Request::AttachSegment { segment: SegmentId(2), len_bytes: 4096, lanes: true },
        Request::DetachSegment(SegmentId(9)),
        Request::LeaseExecutor(LeaseSpec { onnxruntime_library: absent, threads: 1, ..LeaseSpec::default() }),
        Request::LeaseExecutor(LeaseSpec {
            onnxruntime_library: library(),
            threads: u32::MAX,
            allow_spinning: true,
            ..LeaseSpec::default()
        }),
        Request::OpenLane(u32::MAX),
        Request::RegisterGraph(Box::new(graph())),
        Request::PreparePart(Box::new(bad_level)),
        Request::OpenDump(OpenDump {
            folder: folder.join("dumps"),
            run: "hostile".into(),
            clean: true,
            calls: CallsToDump::All,
            run_json: "not json".into(),
            umask: None,
            answered: Vec::new(),
        }),
        Request::CancelCall(Work::Call(CallId(u64::MAX))),
        Request::CancelCall(Work::Request(u64::MAX)),
        Request::CloseDump,
        Request::FlushDump,
        Request::RunObserved(Box::new(observed)),
        Request::CompareTensors {
            pairs: vec![("x".into(), pair)],
            tolerance: None,
            noise: None,
            through: None,
            settles: None,
        },
        Request::ReportEager { graph: GraphId::from_bytes([9; 32]), eager_nodes: u32::MAX },
        Request::GetStatus,
    ]
}

/// Flips, cuts, repeats and inserts, a few of them.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            bytes.push(random.next() as u8);
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => bytes.insert(at, [0, 0x7f, 0x80, 0xff][random.below(4)]),
            _ => bytes.extend_from_within(at..),
        }
    }
}

/// What one connection sends: after a good `Hello` or without it; and how many answers it may wait for.
struct Attack {
    frames: Vec<Vec<u8>>,
    /// The header is good, the body is mutated.
    body_only: bool,
    fd: bool,
}

fn attack(random: &mut Random, requests: &[Request]) -> Attack {
    let mut frames = if random.one_in(5) { vec![] } else { vec![hello()] };
    let request = &requests[random.below(requests.len())];
    let frame = wire::encode_request(random.next(), request).unwrap();
    let fd = random.one_in(3);
    if random.one_in(4) {
        // The header, too.
        let mut frame = frame;
        if random.one_in(2) {
            let mut header = frame[..HEADER_LEN].to_vec();
            header[random.below(HEADER_LEN)] = random.next() as u8;
            frame.splice(..HEADER_LEN, header);
        } else {
            mutate(random, &mut frame);
        }
        frames.push(frame);
        return Attack { frames, body_only: false, fd };
    }
    let mut body = frame[HEADER_LEN..].to_vec();
    let body_only = !random.one_in(6);
    if body_only {
        mutate(random, &mut body);
    }
    frames.push(frame::encode(FrameKind::Request, &body).unwrap());
    Attack { frames, body_only, fd }
}

/// Every answer until the daemon closes. A connection that is neither answered nor closed fails by the watchdog.
fn answers(stream: &mut UnixStream, codes: &mut BTreeMap<u32, u64>) -> usize {
    let mut bytes = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("neither answered nor closed: {error}"),
        Ok(_) => {}
    }
    let (mut rest, mut n) = (&bytes[..], 0);
    while let Some((header, tail)) = rest.split_first_chunk::<HEADER_LEN>() {
        let header = FrameHeader::decode_answer(header).unwrap();
        let (body, tail) = tail.split_at(header.body_bytes as usize);
        let (_, reply) = wire::decode_reply(Bytes::copy_from_slice(body)).unwrap();
        let code = if let Reply::Error(error) = reply { error.code.code() } else { 0 };
        *codes.entry(code).or_default() += 1;
        (rest, n) = (tail, n + 1);
    }
    assert!(rest.is_empty(), "half an answer: {rest:?}");
    n
}

fn n_fds(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn resident_kb(pid: u32) -> u64 {
    memory_kb(pid, "VmRSS:")
}

/// The most that was resident so far.
fn peak_kb(pid: u32) -> u64 {
    memory_kb(pid, "VmHWM:")
}

fn memory_kb(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no number")))
}

fn storm(home: &Home, random: &mut Random, n: u64, codes: &mut BTreeMap<u32, u64>) -> u64 {
    let requests = requests(home.folder.path());
    let segment = Segment::create(SegmentId(1), "hostile", 4096).unwrap();
    let mut body_only = 0;
    for _ in 0..n {
        let attack = attack(random, &requests);
        body_only += u64::from(attack.body_only);
        let mut stream = UnixStream::connect(home.socket()).unwrap();
        for frame in &attack.frames {
            let fds = [segment.fd(), segment.fd()];
            let n_fds = if attack.fd { 1 + random.below(2) } else { 0 };
            // The daemon may have closed by now.
            let _ = rust_ort::shm::fds::send(stream.as_fd(), frame, &fds[..n_fds], None);
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        answers(&mut stream, codes);
    }
    body_only
}

#[test]
fn hostile_connections_are_answered_or_closed_and_leave_nothing() {
    let (n, seed) = (number("RUST_ORT_TEST_HOSTILE", 10_000), number("RUST_ORT_TEST_SEED", 1));
    let mut home = Home::empty();
    // What a hostile client leased stays warm, with its descriptors, for so long.
    home.idle_timeout_s = 0.5;
    home.start();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let handle = client.prepare().unwrap().handle;
    client.open_lane(0);
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut codes = BTreeMap::new();

    // Memory is measured once the allocator has seen the worst.
    storm(&home, &mut random, n / 5, &mut codes);
    let settled = || {
        let status = home.status();
        (["clients", "executors"].iter().all(|held| status[held].as_array().unwrap().len() == 1)).then_some(())
    };
    wait_for("hostile clients and their executors are gone", settled);
    let (fds, kb) = (n_fds(home.daemon_pid()), resident_kb(home.daemon_pid()));

    let mut body_only = storm(&home, &mut random, n / 2, &mut codes);
    let record = client.record(handle, [1., 2., 3., 4.]);
    let lane = client.lanes.client(0).unwrap();
    lane.call(&record, || false).unwrap().unwrap().unwrap();
    assert_eq!(client.floats(64), [-1., -2., -3., -4.], "a real client beside");
    body_only += storm(&home, &mut random, n - n / 2, &mut codes);

    let another = LeaseSpec { onnxruntime_library: library(), threads: 2, ..LeaseSpec::default() };
    assert!(matches!(peer(&home).ask(&Request::LeaseExecutor(another)), Ok(Reply::Leased(_))));

    wait_for("hostile clients and their executors are gone", settled);
    wait_for("descriptors are as before", || (n_fds(home.daemon_pid()) <= fds).then_some(()));
    let after_kb = resident_kb(home.daemon_pid());
    // Not println!: these lines are shown of a passing test, too.
    let mut shown = std::io::stderr();
    let _ = writeln!(
        shown,
        "{n} connections, {body_only} with a good header and a mutated body; RSS {kb} -> {after_kb} kB; answers by code:"
    );
    for (code, count) in &codes {
        let _ = writeln!(shown, "  {:>7} {:?}", count, ErrorCode::from_code(*code));
    }
    assert!(after_kb <= kb + 8192, "resident memory grew from {kb} to {after_kb} kB");
    assert!(body_only * 2 >= n);
    assert!(!home.log().contains("panicked"), "{}", home.log());
    lane.call(&record, || false).unwrap().unwrap().unwrap();
    assert!(matches!(client.peer.ask(&Request::GetStatus), Ok(Reply::Status(_))));

    // RuntimeMissing and Dump are seldom: what waits for an executor or a disk goes with its client, and these hang up at
    // once (executors.rs and requests.rs).
    // RunFailed, ExecutorLost, Quarantined and Internal need an executor that fails (executors.rs); Permission
    // another user (start.rs).
    use ErrorCode::*;
    let expected =
        [ProtocolVersion, BadFrame, BadMessage, BadState, Limit, BadSegment, BadTensor, BadOption, UnknownGraph];
    for code in expected {
        assert!(codes.contains_key(&code.code()), "{code:?} was never reached in {codes:?}");
    }
}

#[test]
fn model_that_is_none_costs_its_request_only() {
    let home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let mut random = Random(7);
    let mut refused = 0;
    for _ in 0..100 {
        let mut model = support::neg_model();
        mutate(&mut random, &mut model);
        let mut part = part();
        part.part.model = Bytes::from(model);
        match client.peer.ask(&Request::PreparePart(Box::new(part))) {
            Ok(Reply::Prepared(_)) => {}
            Err(error) => {
                let error = support::refused(error);
                assert!(matches!(error.code, BadModel | BadTensor), "{error:?}");
                assert_eq!(error.graph, "0_0-inference");
                refused += 1;
            }
            Ok(other) => panic!("{other:?}"),
        }
        use ErrorCode::{BadModel, BadTensor};
    }
    assert!(refused >= 50, "only {refused} of 100 mutated models were refused");
    assert!(client.prepare().is_ok());
}

fn peer(home: &Home) -> Peer {
    Peer::connect(&home.socket(), "test").unwrap().0
}

#[test]
fn clients_over_the_limit_are_told_so_and_keep_neither_status_nor_stop_out() {
    let mut home = Home::new();
    let mut clients: Vec<Peer> = (0..256).map(|_| peer(&home)).collect();
    let mut one_more = peer(&home);
    assert!(matches!(one_more.ask(&Request::GetStatus), Ok(Reply::Status(_))));
    let refused = one_more.ask(&Request::CloseDump).unwrap_err().to_string();
    assert!(refused.contains("CloseDump: 256 clients are connected already"), "{refused}");
    // As many as there are places for those that ask, and as many again, which make room for each other.
    let mut asking: Vec<Peer> = (0..16).map(|_| peer(&home)).collect();
    assert!(one_more.ask(&Request::GetStatus).is_err(), "the oldest made room");
    // One that made room is listed until its thread has ended; each status that is asked for may take a place of these.
    wait_for("the clients, and those that ask", || {
        let n = home.status()["clients"].as_array().unwrap().len();
        assert!(n > 256, "{n}");
        (n <= 256 + 7).then_some(())
    });

    // Who asked is a client as soon as there is room for one.
    let newest = asking.last_mut().unwrap();
    assert!(newest.ask(&Request::CloseDump).unwrap_err().to_string().contains("256 clients"));
    clients.truncate(255);
    wait_for("room for a client", || {
        let answer = newest.ask(&Request::CloseDump).err()?.to_string();
        (!answer.contains("256 clients")).then_some(())
    });
    let stopped = home.command().args(["stop", "--force"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    home.wait_daemon();
}

#[test]
fn connections_that_say_nothing_keep_neither_status_nor_clients_out() {
    let mut home = Home::new();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let handle = client.prepare().unwrap().handle;
    client.open_lane(0);
    let mut silent: Vec<UnixStream> = (0..264).map(|_| UnixStream::connect(home.socket()).unwrap()).collect();
    let status = home.status();
    assert_eq!(status["clients"][0]["pid"], std::process::id());
    let record = client.record(handle, [1., 2., 3., 4.]);
    client.lanes.client(0).unwrap().call(&record, || false).unwrap().unwrap().unwrap();
    assert_eq!(client.floats(64), [-1., -2., -3., -4.], "a real client beside");
    let mut another = peer(&home);
    assert!(matches!(another.ask(&Request::GetStatus), Ok(Reply::Status(_))));

    // Whoever has been silent longest made room, and was told so.
    let mut codes = BTreeMap::new();
    assert_eq!((answers(&mut silent[0], &mut codes), codes), (1, BTreeMap::from([(ErrorCode::Limit.code(), 1)])));
    let mut newest = silent.pop().unwrap();
    newest.write_all(&hello()).unwrap();
    newest.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    newest.read_exact(&mut [0; HEADER_LEN]).unwrap();

    let stopped = home.command().args(["stop", "--force"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    home.wait_daemon();
    drop(silent);
}

fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A request of this id whose body, a message of this field, is these bytes.
fn request_of(id: u8, field: u8, content: &[u8]) -> Vec<u8> {
    let mut body = vec![0x08, id];
    varint(usize::from(field) << 3 | 2, &mut body);
    varint(content.len(), &mut body);
    body.extend_from_slice(content);
    frame::encode(FrameKind::Request, &body).unwrap()
}

fn refusal(peer: &mut Peer) -> (u64, WireError) {
    match peer.next_answer(Duration::from_secs(120)).unwrap() {
        Some(Answer::Reply(id, Reply::Error(error))) => (id, error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_request_decodes_to_counts_before_it_is_decoded() {
    let mut home = Home::empty();
    home.memory_mb = Some(64);
    home.start();
    let mut client = peer(&home);
    let before_kb = resident_kb(home.daemon_pid());
    // Ten million empty pairs of CompareTensors, providers of PreparePart, and names of values.
    let providers = request_of(2, 8, &[&[0x22, 0x80, 0xda, 0xc4, 0x09][..], &[0x0a, 0].repeat(10_000_000)].concat());
    for (id, frame) in [
        (1, request_of(1, 12, &[0x0a, 0].repeat(10_000_000))),
        (2, providers),
        (3, request_of(3, 8, &[0x3a, 0].repeat(10_000_000))),
    ] {
        let (answered, error) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                client.send_raw(&frame, None).unwrap();
                refusal(&mut client)
            });
            while !asking.is_finished() {
                // Another is served meanwhile.
                home.status();
            }
            asking.join().unwrap()
        });
        assert_eq!((answered, error.code), (id, ErrorCode::Limit), "{error}");
        assert!(error.message.contains("decoded: 1000000") && error.message.contains("at most 67108864"), "{error}");
    }
    let peak_kb = peak_kb(home.daemon_pid());
    assert!(peak_kb < before_kb + 128 * 1024, "resident memory grew from {before_kb} to {peak_kb} kB");
    assert!(matches!(client.ask(&Request::GetStatus), Ok(Reply::Status(_))), "the connection goes on");
    assert_eq!(home.status()["memory"]["kept_bytes"], 0);

    // Before Hello little is decoded; a request of few elements has its answer.
    let mut early = Peer::connect_raw(&home.socket()).unwrap();
    early.send_raw(&request_of(7, 12, &[0x0a, 0].repeat(20_000)), None).unwrap();
    let (answered, error) = refusal(&mut early);
    assert!(answered == 7 && error.code == ErrorCode::Limit && error.message.contains("before Hello"), "{error}");
}

#[test]
fn what_a_model_decodes_to_counts_before_its_nodes_are_read() {
    let mut home = Home::empty();
    home.memory_mb = Some(64);
    home.start();
    let mut client = Client::connect(&home);
    client.lease().unwrap();
    client.register();
    let mut part = part();
    // 200,000 empty training_info, which a runtime does not look into.
    part.part.model = [support::neg_model(), [0xa2, 0x01, 0].repeat(200_000)].concat().into();
    part.part.named_values = vec!["y".into()];
    let handle = client.prepare_part(part).unwrap().handle;
    let of = NodesOf { graph: graph().graph, part: 0, step: StepId(0) };
    let compare = CompareNodes {
        handle,
        of,
        feeds: Vec::new(),
        values: Vec::new(),
        tolerance: None,
        cumulative_tolerance: None,
        through: None,
        dump_values: false,
        noise: None,
    };
    let error = support::refused(client.peer.ask(&Request::CompareNodes(Box::new(compare))).unwrap_err());
    assert_eq!(error.code, ErrorCode::Limit);
    assert!(error.message.starts_with("nodes of a part's model: "), "{error}");
}

#[test]
fn announced_length_is_not_allocated_and_a_half_frame_ends_with_its_connection() {
    let home = Home::new();
    let before_kb = resident_kb(home.daemon_pid());
    let streams: Vec<UnixStream> = (0..20)
        .map(|_| {
            let mut stream = UnixStream::connect(home.socket()).unwrap();
            stream.write_all(&hello()).unwrap();
            let header = FrameHeader { kind: FrameKind::Request, body_bytes: frame::MAX_BODY_BYTES }.encode();
            stream.write_all(&header).unwrap();
            stream.write_all(&[0; 100]).unwrap();
            stream
        })
        .collect();
    wait_for("all are welcome", || (home.status()["clients"].as_array().unwrap().len() == 20).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    let kb = resident_kb(home.daemon_pid());
    assert!(kb < before_kb + 64 * 1024, "resident memory grew from {before_kb} to {kb} kB");
    drop(streams);
    wait_for("all are gone", || home.status()["clients"].as_array().unwrap().is_empty().then_some(()));
}
