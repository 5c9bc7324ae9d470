//! Records of lanes in shared memory that a client fills with anything while an executor serves them: the executor lives,
//! answers, and another lane's calls stay right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rust_ort::base::ids::{CallId, PartHandle, SegmentId};
use rust_ort::protocol::control::{Reply, Request};
use rust_ort::shm::{ClientLane, Lanes, RecordHead, Segment, descriptors};
use rust_ort::tensor::{CallRecord, Location, TensorRef};

use crate::mutate::{self, Draws};
use crate::support::{Client, Home, X, Y, is_alive, tensor};
use crate::target::{Reached, Target};

pub const TARGET: Target = Target {
    name: "records",
    seeds,
    open: || {
        let mut served = Served::new();
        Box::new(move |bytes| served.read(bytes))
    },
    mutate: mutated,
    most_bytes: |len| 64 * len + (256 << 10),
};

/// docs/design/protocol.md: a lane's record, behind the page of the header.
const RECORD: u64 = 4096 + 256;
const LANE_LEN: u64 = 64 << 10;
const HEAD_LEN: usize = 40;
/// The daemon's first.
const HANDLE: PartHandle = PartHandle(1);
/// Where the other lane's tensors are; no mutation comes upon it by a few bits.
const OTHER: SegmentId = SegmentId(0x5a_96_c3);
/// Between two calls of the other lane, and two looks at the executor's memory.
const CHECK_EVERY: u64 = 64;
/// How much an executor may grow, whatever it was sent.
const MOST_GROWTH_KIB: u64 = 64 << 10;

/// Lane 0 has the inputs, lane 1 good calls, lane 2 is written over all the time.
struct Served {
    _home: Home,
    client: Client,
    executor: u32,
    lane: ClientLane,
    other: Segment,
    n_read: u64,
    rss_kib: u64,
    scribbler: Scribbler,
}

impl Served {
    fn new() -> Self {
        let home = Home::new();
        let mut client = Client::connect(&home);
        let other = Segment::create(OTHER, "test-other", 4096).unwrap();
        let attach = Request::AttachSegment { segment: OTHER, len_bytes: other.len_bytes(), lanes: false };
        assert_eq!(client.peer.ask_with(&attach, Some(other.fd())).unwrap(), Reply::Done);
        let leased = client.lease().unwrap();
        client.register();
        assert_eq!(client.prepare().unwrap().handle, HANDLE);
        (0..3).for_each(|lane| client.open_lane(lane));
        let lane = client.lanes.client(0).unwrap();
        let scribbler = Scribbler::new(Arc::clone(&client.lanes));
        let (executor, rss_kib) = (leased.pid, 0);
        Self { _home: home, client, executor, lane, other, n_read: 0, rss_kib, scribbler }
    }

    fn read(&mut self, record: &[u8]) -> Reached {
        let record = &record[..record.len().min(LANE_LEN as usize - 256 - 4096)];
        self.client.lanes.segment().write(RECORD, record).unwrap();
        self.lane.post();
        self.wait(|served, give_up| served.lane.wait(Duration::from_micros(50), give_up).then_some(()));
        self.n_read += 1;
        if self.n_read % CHECK_EVERY == 1 {
            self.check();
        }
        match self.lane.answer() {
            Ok(_) => Reached::accepted("run"),
            Err(failure) => Reached::refused(failure.message),
        }
    }

    /// The other lane computes, and the executor does not grow.
    fn check(&mut self) {
        let bytes: Vec<u8> = X.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.other.write(0, &bytes).unwrap();
        self.other.write(64, &[0; 16]).unwrap();
        let at = |offset| TensorRef { location: Location::new(OTHER, offset).unwrap(), ..tensor(0) };
        let record = CallRecord { inputs: vec![at(0)], outputs: vec![at(64)], ..call() };
        let lane = self.client.lanes.client(1).unwrap();
        let answer = self.wait(|_, give_up| lane.call(&record, give_up).unwrap());
        assert!(answer.is_ok(), "the other lane: {answer:?}");
        let expected: Vec<u8> = Y.iter().flat_map(|y| y.to_le_bytes()).collect();
        assert_eq!(self.other.read(64, 16).unwrap(), expected, "the other lane's result");
        let rss_kib = rss_kib(self.executor);
        self.rss_kib = if self.rss_kib == 0 { rss_kib } else { self.rss_kib };
        assert!(rss_kib < self.rss_kib + MOST_GROWTH_KIB, "the executor grew from {} to {rss_kib} KiB", self.rss_kib);
        assert!(!self.scribbler.thread.is_finished());
    }

    fn wait<T>(&self, mut wait: impl FnMut(&Self, &mut dyn FnMut() -> bool) -> Option<T>) -> T {
        let watchdog = Instant::now() + Duration::from_secs(30);
        let mut give_up = || !is_alive(self.executor) || Instant::now() > watchdog;
        let answer = wait(self, &mut give_up);
        answer.unwrap_or_else(|| match is_alive(self.executor) {
            true => panic!("a record is not answered"),
            false => panic!("the executor died"),
        })
    }
}

/// Writes over a lane that nobody waits for: records, bells and flags.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Scribbler {
    fn new(lanes: Arc<Lanes>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut draws, seeds) = (Draws::new(2), seeds());
            let start = 4096 + 2 * LANE_LEN;
            while !stopped.load(Ordering::Relaxed) {
                let record = &seeds[draws.below(seeds.len())].1;
                lanes.segment().write(start + 256, record).unwrap();
                for _ in 0..4 {
                    let at = start + 4 * draws.below(96) as u64;
                    lanes.segment().write(at, &(draws.edge() as u32).to_le_bytes()).unwrap();
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Self { stop, thread }
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn rss_kib(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    4 * statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

/// y at 64 of x at 0.
fn call() -> CallRecord {
    CallRecord { call: CallId(7), handle: HANDLE, eager_nodes: 0, inputs: vec![tensor(0)], outputs: vec![tensor(64)] }
}

/// As a client writes it.
fn bytes_of(record: &CallRecord) -> Vec<u8> {
    let lanes = Lanes::create(SegmentId(1), 1, LANE_LEN as u32).unwrap();
    let tensors = || record.inputs.iter().chain(&record.outputs);
    let descriptors = descriptors(tensors().map(|tensor| &tensor.desc));
    let mut head = RecordHead::new(record.inputs.len(), record.outputs.len(), descriptors.len()).unwrap();
    (head.call, head.handle, head.eager_nodes) = (record.call, record.handle, record.eager_nodes);
    let locations: Vec<u64> = tensors().map(|tensor| tensor.location.bits()).collect();
    lanes.client(0).unwrap().write(&head, &locations, Some(&descriptors)).unwrap();
    lanes.segment().read(RECORD, HEAD_LEN + 8 * locations.len() + descriptors.len()).unwrap()
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let elsewhere = CallRecord { inputs: vec![tensor(256)], outputs: vec![tensor((1 << 20) - 16)], ..call() };
    [("call", call()), ("elsewhere", elsewhere)].map(|(name, record)| (name.to_owned(), bytes_of(&record))).into()
}

fn mutated(draws: &mut Draws, record: &[u8], other: &[u8]) -> Vec<u8> {
    // Most fields are words: one that moves makes every other another.
    if draws.below(4) == 0 || record.len() < 8 {
        return mutate::bytes(draws, record, other);
    }
    let mut record = record.to_vec();
    for _ in 0..=draws.below(3) {
        let (width, number) = (draws.pick([1, 4, 8]), draws.edge().to_le_bytes());
        let at = draws.below(record.len() / width) * width;
        record[at..at + width].copy_from_slice(&number[..width]);
    }
    record
}
