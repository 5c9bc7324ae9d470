use proptest::prelude::*;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::memory::*;
use super::*;
use crate::base::ids::{CallId, PartHandle, SegmentId};
use crate::shm::record::{RECORD_HEAD_LEN, RawRecord, RecordError};
use crate::shm::segment::Segment;
use crate::tensor::CallRecord;
use crate::tensor::{DType, Location, TensorDesc, TensorRef};

const LANE_LEN: u32 = 64 << 10;

fn lanes() -> Arc<Lanes> {
    Lanes::create(SegmentId(1), 2, LANE_LEN).unwrap()
}

fn record() -> CallRecord {
    let tensor = |location, dtype, dims: &[i64]| {
        let desc = TensorDesc::new(dtype, dims).unwrap();
        TensorRef { location: Location::from_bits(location), desc }
    };
    CallRecord {
        call: CallId(0x0102_0304_0506_0708),
        handle: PartHandle(3),
        eager_nodes: 4,
        inputs: vec![tensor(5 << 40 | 64, DType::F32, &[2, 3]), tensor(u64::MAX, DType::I64, &[])],
        outputs: vec![tensor(0, DType::BF16, &[0])],
    }
}

fn written(record: &CallRecord) -> ([u8; RECORD_HEAD_LEN], Vec<u8>) {
    let (head, body) = RawRecord::write(record).unwrap();
    (head.to_bytes(), body)
}

/// Puts bytes where the client puts a record.
fn put(lanes: &Lanes, head: &[u8], body: &[u8]) {
    let start = PAGE + RECORD;
    lanes.segment.write(start, head).unwrap();
    lanes.segment.write(start + RECORD_HEAD_LEN as u64, body).unwrap();
}

fn read(lanes: &Arc<Lanes>) -> Result<CallRecord, RecordError> {
    read_ordered(lanes).map(|(record, _)| record)
}

/// The record, its slot and its number there.
fn read_ordered(lanes: &Arc<Lanes>) -> Result<(CallRecord, (u32, u32)), RecordError> {
    let mut raw = RawRecord::default();
    lanes.place(0).unwrap().read_record(&mut raw)?;
    Ok((raw.parse()?, (raw.slot, raw.number)))
}

#[test]
fn a_record_reads_as_it_was_written() {
    let (lanes, record) = (lanes(), record());
    let (head, body) = written(&record);
    put(&lanes, &head, &body);
    assert_eq!(read(&lanes), Ok(record));
    // docs/design/protocol.md: the third descriptor is bfloat16 (16) of rank 1.
    assert_eq!(body[24 + 24 + 8..][..8], [16, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(head[24..], [24 + 8 + 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut ordered = RawRecord::write(&self::record()).unwrap().0;
    (ordered.slot, ordered.number) = (5, u32::MAX);
    put(&lanes, &ordered.to_bytes(), &body);
    assert_eq!(read_ordered(&lanes), Ok((self::record(), (5, u32::MAX))));
}

#[test]
fn every_field_changed_to_nonsense_is_refused() {
    let lanes = lanes();
    let (head, body) = written(&record());
    let changed = |bytes: &[u8], at: usize, value: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    // (offset in the head, value)
    for (at, value) in [
        (12, 0_u32),
        (12, 1),
        (12, 3),
        (12, 65_535),
        (12, 65_536),
        (12, u32::MAX),
        (16, 0),
        (16, 2),
        (16, u32::MAX),
        (24, 0),
        (24, 47),
        (24, 49),
        (24, LANE_LEN),
        (24, u32::MAX),
        (36, 1),
    ] {
        put(&lanes, &changed(&head, at, &value.to_le_bytes()), &body);
        assert!(read(&lanes).is_err(), "head {at}: {value}");
    }
    // (offset in the body, value): the first descriptor starts behind three locations.
    let dim = |dim: i64| dim.to_le_bytes().to_vec();
    for (at, value) in [
        (24, vec![0]),
        (24, vec![8]),
        (24, vec![21]),
        (24, vec![255]),
        (25, vec![0]),
        (25, vec![1]),
        (25, vec![3]),
        (25, vec![65]),
        (25, vec![255]),
        (26, vec![1]),
        (27, vec![1]),
        (28, vec![1]),
        (31, vec![128]),
        (32, dim(-1)),
        (32, dim(i64::MIN)),
        (32, dim(i64::MAX)),
    ] {
        put(&lanes, &head, &changed(&body, at, &value));
        assert!(read(&lanes).is_err(), "body {at}: {value:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_record_or_an_error(
        head in prop::collection::vec(any::<u8>(), RECORD_HEAD_LEN),
        body in prop::collection::vec(any::<u8>(), 0..200),
        counts in prop::option::of((0..4_u32, 0..4_u32, 0..100_u32)),
    ) {
        let (lanes, mut head) = (lanes(), head);
        if let Some((n_inputs, n_outputs, descriptors_len)) = counts {
            head[12..20].copy_from_slice(&[n_inputs.to_le_bytes(), n_outputs.to_le_bytes()].concat());
            head[24..].copy_from_slice(&[descriptors_len.to_le_bytes(), [5; 4], [7; 4], [0; 4]].concat());
        }
        put(&lanes, &head, &body);
        if let Ok(record) = read(&lanes) {
            prop_assert!(record.inputs.len() + record.outputs.len() < 8);
        }
    }

    #[test]
    fn one_byte_changed_is_another_record_or_an_error(at in 0..RECORD_HEAD_LEN + 72, value: u8) {
        let lanes = lanes();
        let (head, body) = written(&record());
        let mut bytes = [&head[..], &body].concat();
        prop_assume!(bytes[at] != value);
        bytes[at] = value;
        put(&lanes, &bytes[..RECORD_HEAD_LEN], &bytes[RECORD_HEAD_LEN..]);
        prop_assert_ne!(read_ordered(&lanes), Ok((record(), (0, 0))));
    }
}

#[test]
fn a_header_that_is_wrong_is_refused() {
    let header = |at: u64, bytes: &[u8]| {
        let segment = Segment::create(SegmentId(1), "test", PAGE + 2 * u64::from(LANE_LEN)).unwrap();
        segment.write(0, &MAGIC).unwrap();
        for (index, field) in [VERSION, 2, LANE_LEN, 0].into_iter().enumerate() {
            segment.write(8 + 4 * index as u64, &field.to_le_bytes()).unwrap();
        }
        segment.write(at, bytes).unwrap();
        Lanes::map(segment).map(|lanes| lanes.n_lanes())
    };
    assert_eq!(header(8, &VERSION.to_le_bytes()), Ok(2));
    for (at, value) in [
        (0, 0_u32),
        (4, 0),
        (8, 0),
        (8, 1),
        (8, 3),
        (12, 0),
        (12, 3),
        (12, 65),
        (12, u32::MAX),
        (16, 0),
        (16, LANE_LEN - 4096),
        (16, LANE_LEN + 64),
        (16, (4 << 20) + 4096),
        (16, u32::MAX),
        (20, 1),
    ] {
        assert!(header(at, &value.to_le_bytes()).is_err(), "{at}: {value}");
    }
    let short = Segment::create(SegmentId(1), "test", 8).unwrap();
    assert!(Lanes::map(short).is_err());
}

/// Serves calls until stopped: adds call ids up, fails for odd ones.
fn serve(mut lane: ExecutorLane, stop: &AtomicBool) -> Vec<u64> {
    let (mut raw, mut calls) = (RawRecord::default(), Vec::new());
    while lane.next(stop) == Wake::Request {
        lane.read(&mut raw).unwrap();
        lane.set_running(true);
        calls.push(raw.call.0);
        let failure = || Failure { kind: 2, code: 13, message: "é".repeat(3000), node: "node_ü".to_owned() };
        lane.set_running(false);
        lane.answer(&if raw.call.0 % 2 == 0 { Ok(raw.call.0 * 10) } else { Err(failure()) });
    }
    calls
}

#[test]
fn calls_are_answered_one_by_one_polling_or_asleep() {
    let (lanes, stop) = (lanes(), AtomicBool::new(false));
    let executor = lanes.serve(1).unwrap();
    assert!(matches!(lanes.serve(1), Err(LaneError::Open { lane: 1 })));
    assert!(lanes.serve(2).is_err() && lanes.client(2).is_err());
    let wake = executor.waker();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(executor, &stop));
        let client = lanes.client(1).unwrap();
        let call = |id| {
            let record = CallRecord { call: CallId(id), ..record() };
            client.call(&record, || false).unwrap().unwrap()
        };
        for id in 0..1000 {
            match call(id) {
                Ok(run_ns) => assert_eq!((id % 2, run_ns), (0, 10 * id)),
                Err(Failure { kind, code, message, node }) => {
                    assert_eq!((id % 2, kind, code, node.as_str()), (1, 2, 13, "node_ü"));
                    assert_eq!(message, "é".repeat(2044)); // 4096 - 7 bytes, and no half of an é
                }
            }
            if id % 100 == 0 {
                // Long enough for the executor to sleep, once in its first, once in its endless sleep.
                std::thread::sleep(Duration::from_micros(if id % 200 == 0 { 500 } else { 3000 }));
            }
        }
        stop.store(true, Ordering::SeqCst);
        while !served.is_finished() {
            wake();
            std::thread::yield_now();
        }
        assert_eq!(served.join().unwrap(), (0..1000).collect::<Vec<u64>>());
    });
    assert!(lanes.serve(1).is_ok());
}

#[test]
fn a_call_that_a_dead_executor_left_is_not_served_by_the_next() {
    let lanes = lanes();
    drop(lanes.serve(0).unwrap());
    assert_eq!(lanes.client(0).unwrap().call(&record(), || true), Ok(None));
    lanes.place(0).unwrap().word(RUNNING).store(1, Ordering::SeqCst);
    assert_eq!(lanes.running(), [(0, record())]);
    let mut next = lanes.serve(0).unwrap();
    assert_eq!(next.next(&AtomicBool::new(true)), Wake::Stopped);
    assert_eq!(lanes.running(), []);
}

#[test]
fn a_record_longer_than_the_lane_is_refused_by_the_client() {
    let lanes = lanes();
    let record = CallRecord { inputs: vec![record().inputs[0].clone(); 2000], ..record() };
    assert!(matches!(lanes.client(0).unwrap().call(&record, || true), Err(RecordError::TooLong { .. })));
}
