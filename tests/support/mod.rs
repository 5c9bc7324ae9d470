//! A daemon in a folder of its own, and clients of it. The daemon is the built binary.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rust_ort::base::ids::{CallId, GraphId, PartHandle, SegmentId, StepId};
use rust_ort::client::{Peer, PeerError};
use rust_ort::protocol::control::{
    Direction, LeaseSpec, Leased, PreparePart, RegisterGraph, Reply, Request, RunObserved,
};
use rust_ort::protocol::message::{ErrorCode, PartSpec, Prepared, SessionSpec, WireError};
use rust_ort::shm::{Lanes, Segment};
use rust_ort::tensor::{CallRecord, DType, Location, TensorDesc, TensorRef};
use serde_json::Value;

pub use crate::common::library;
use crate::common::{Dim, Model};

/// Waits for a condition; fails after a watchdog's time, which says nothing about speed.
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let watchdog = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < watchdog, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with a daemon; both end on drop.
pub struct Home {
    pub folder: tempfile::TempDir,
    pub idle_timeout_s: f64,
    /// The program that is run.
    pub program: PathBuf,
    /// Whose the daemon and commands are; None: this process's user's.
    pub uid: Option<u32>,
    /// Arguments of the shell's `ulimit`, for the daemon.
    pub ulimit: Option<&'static str>,
    pub log_filter: &'static str,
    pub memory_mb: Option<u64>,
    /// More of its environment.
    pub environment: Vec<(&'static str, PathBuf)>,
    daemon: Option<Child>,
}

impl Home {
    /// Without a daemon yet.
    pub fn empty() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_rust-ort"));
        let folder = tempfile::tempdir().unwrap();
        let (log_filter, environment) = ("info", Vec::new());
        Self {
            folder,
            idle_timeout_s: 600.,
            program,
            uid: None,
            ulimit: None,
            log_filter,
            memory_mb: None,
            environment,
            daemon: None,
        }
    }

    /// With a daemon that answers.
    pub fn new() -> Self {
        let mut home = Self::empty();
        home.start();
        home
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket/v1.sock")
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// While this file exists, executors stop before they enter the runtime.
    pub fn hold(&self) -> PathBuf {
        self.folder.path().join("hold")
    }

    pub fn command(&self) -> Command {
        self.with_environment(Command::new(&self.program))
    }

    fn with_environment(&self, mut command: Command) -> Command {
        command
            .env("RUST_ORT_SOCKET", self.socket())
            .env("RUST_ORT_STATE_DIR", self.state())
            .env("RUST_ORT_TEST_HOLD", self.hold())
            .env("RUST_ORT_LOG", self.log_filter)
            .env("RUST_ORT_MEMORY_MB", self.memory_mb.map(|mb| mb.to_string()).unwrap_or_default())
            .env("RUST_ORT_IDLE_TIMEOUT_S", self.idle_timeout_s.to_string())
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// A `rust-ort serve` that is not waited for.
    pub fn spawn_daemon(&self) -> Child {
        let mut command = match self.ulimit {
            None => self.command(),
            Some(arguments) => {
                let mut shell = self.with_environment(Command::new("sh"));
                shell.arg("-c").arg(format!("ulimit {arguments} && exec \"$0\" \"$@\"")).arg(&self.program);
                shell
            }
        };
        command.arg("serve").stdin(Stdio::null()).process_group(0).spawn().unwrap()
    }

    pub fn start(&mut self) {
        self.daemon = Some(self.spawn_daemon());
        wait_for("the daemon answers", || Peer::connect(&self.socket(), "test").ok());
    }

    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("started").id()
    }

    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("started");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Waits until the daemon has ended by itself.
    pub fn wait_daemon(&mut self) -> std::process::ExitStatus {
        let mut daemon = self.daemon.take().expect("started");
        wait_for("the daemon ends", || daemon.try_wait().unwrap())
    }

    pub fn log(&self) -> String {
        let path = self.state().join(format!("log/daemon-{}.log", self.daemon_pid()));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    pub fn status(&self) -> Value {
        let (mut peer, welcome) = Peer::connect(&self.socket(), "test status").unwrap();
        let Reply::Status(json) = peer.ask(&Request::GetStatus).unwrap() else { panic!("no status") };
        let mut status: Value = serde_json::from_str(&json).unwrap();
        status["clients"].as_array_mut().unwrap().retain(|client| client["id"] != welcome.client.0);
        status
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A held executor would wait for its file.
        let _ = std::fs::remove_file(self.hold());
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A client with one data segment of 1 MiB (id 1) and four lanes (id 2).
pub struct Client {
    pub peer: Peer,
    pub data: Segment,
    pub lanes: Arc<Lanes>,
}

impl Client {
    pub fn connect(home: &Home) -> Self {
        let (mut peer, _) = Peer::connect(&home.socket(), "test").unwrap();
        let data = Segment::create(SegmentId(1), "test-data", 1 << 20).unwrap();
        let lanes = Lanes::create(SegmentId(2), 4, 64 << 10).unwrap();
        for (segment, is_lanes) in [(&data, false), (lanes.segment(), true)] {
            let len_bytes = segment.len_bytes();
            let request = Request::AttachSegment { segment: segment.id(), len_bytes, lanes: is_lanes };
            assert_eq!(peer.ask_with(&request, Some(segment.fd())).unwrap(), Reply::Done);
        }
        Self { peer, data, lanes }
    }

    pub fn lease(&mut self) -> Result<Leased, PeerError> {
        let spec = LeaseSpec { onnxruntime_library: library(), threads: 1, ..LeaseSpec::default() };
        match self.peer.ask(&Request::LeaseExecutor(spec))? {
            Reply::Leased(leased) => Ok(leased),
            other => panic!("{other:?}"),
        }
    }

    pub fn register(&mut self) {
        let reply = self.peer.ask(&Request::RegisterGraph(Box::new(graph()))).unwrap();
        assert!(matches!(reply, Reply::Registered { .. }));
    }

    pub fn prepare(&mut self) -> Result<Prepared, PeerError> {
        self.prepare_part(part())
    }

    pub fn prepare_part(&mut self, part: PreparePart) -> Result<Prepared, PeerError> {
        match self.peer.ask(&Request::PreparePart(Box::new(part)))? {
            Reply::Prepared(prepared) => Ok(prepared),
            other => panic!("{other:?}"),
        }
    }

    pub fn open_lane(&mut self, lane: u32) {
        assert_eq!(self.peer.ask(&Request::OpenLane(lane)).unwrap(), Reply::Done);
    }

    /// x at 0, y at 64.
    pub fn record(&self, handle: PartHandle, x: [f32; 4]) -> CallRecord {
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.data.write(0, &bytes).unwrap();
        CallRecord { call: CallId(77), handle, eager_nodes: 0, inputs: vec![tensor(0)], outputs: vec![tensor(64)] }
    }

    pub fn floats(&self, offset: u64) -> [f32; 4] {
        let bytes = self.data.read(offset, 16).unwrap();
        std::array::from_fn(|i| f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
    }

    pub fn observe(&mut self, run: RunObserved) -> Result<rust_ort::protocol::control::Observed, PeerError> {
        match self.peer.ask(&Request::RunObserved(Box::new(run)))? {
            Reply::Observed(observed) => Ok(observed),
            other => panic!("{other:?}"),
        }
    }

    /// The error of an observed call that is inside the executor while `end` ends that.
    pub fn observed_while(&mut self, home: &Home, record: CallRecord, end: impl FnOnce() + Send) -> WireError {
        std::fs::write(home.hold(), b"").unwrap();
        let hold = home.hold();
        let run = self.observed(record);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for("the call is inside", || is_held(&hold));
                end();
            });
            self.observe(run).unwrap_err()
        });
        let_go(&hold);
        refused(error)
    }

    pub fn observed(&self, record: CallRecord) -> RunObserved {
        RunObserved {
            record,
            graph: graph().graph,
            part: 0,
            step: StepId(0),
            dump: false,
            references: None,
            tolerance: None,
            through: None,
            noise: None,
        }
    }
}

/// float32 [4] in the data segment.
pub fn tensor(offset: u64) -> TensorRef {
    let location = Location::new(SegmentId(1), offset).unwrap();
    TensorRef { location, desc: TensorDesc::new(DType::F32, [4]).unwrap() }
}

pub fn graph() -> RegisterGraph {
    RegisterGraph {
        graph: GraphId::from_bytes([7; 32]),
        name: "0_0-inference".into(),
        direction: Direction::Inference,
        dynamo_text: "dynamo".into(),
        joint_text: String::new(),
        fx_text: "fx".into(),
        parts_json: "{}".into(),
    }
}

pub fn part() -> PreparePart {
    PreparePart {
        part: PartSpec {
            graph: graph().graph,
            part: 0,
            model: Bytes::from(neg_model()),
            session: SessionSpec::default(),
            fx_values: BTreeMap::from([("neg".into(), "y".into())]),
            named_values: Vec::new(),
            described: BTreeMap::new(),
        },
        provenance_json: "{}".into(),
        frozen: Vec::new(),
    }
}

/// For [`neg_model`].
pub const X: [f32; 4] = [1., -2., 3.5, 0.];
/// What it gives.
pub const Y: [f32; 4] = [-1., 2., -3.5, -0.];

/// y = Neg(x), float32 [4].
pub fn neg_model() -> Vec<u8> {
    let dims = [Dim::Is(4)];
    Model::default().node("Neg", &["x"], &["y"]).input("x", DType::F32, &dims).output("y", DType::F32, &dims).build()
}

pub fn refused(error: PeerError) -> WireError {
    match error {
        PeerError::Refused(error) => error,
        other => panic!("expected an answer, got {other}"),
    }
}

pub fn code(error: PeerError) -> ErrorCode {
    refused(error).code
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie is dead.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

pub fn kill(pid: u32) {
    send(pid, rustix::process::Signal::KILL);
}

/// Ends an executor as a crash of ONNX Runtime does.
pub fn crash(pid: u32) {
    send(pid, rustix::process::Signal::ABORT);
}

fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Whether an executor waits for this file to go.
pub fn is_held(hold: &Path) -> Option<()> {
    std::fs::metadata(hold.with_extension("held")).is_ok_and(|facts| facts.len() > 0).then_some(())
}

/// Ends the wait. The file that tells of it stays: executors have it open.
pub fn let_go(hold: &Path) {
    std::fs::remove_file(hold).unwrap();
    std::fs::write(hold.with_extension("held"), "").unwrap();
}
