//! A client that writes into what is being compared: the verdict and its metrics are of the same bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::ids::SegmentId;
use crate::compare::{Exact, Excused, Explained, Metrics, Pair, TensorVerdict, Tolerance, Verdict};
use crate::shm::{Segment, SegmentTable};
use crate::tensor::{DType, Location, TensorDesc, TensorRef};

const N: usize = 3 << 16;
const ROUNDS: usize = 300;
const REFERENCE: f32 = 1.;
const CANDIDATE: f32 = 3.;
const WRITTEN: f32 = 999_999.;
const TERMS: f64 = 1e7;
/// Looser where max|r| is the written one.
const TOLERANCE: Tolerance = Tolerance { atol: 0.5, rtol: 0., scale: 1e-3, equal_nan: true };

fn tensor(segment: u32, dtype: DType) -> TensorRef {
    let location = Location::new(SegmentId(segment), 0).unwrap();
    TensorRef { location, desc: TensorDesc::new(dtype, [N as i64]).unwrap() }
}

/// Pairs compared while a thread writes `WRITTEN` into reference and candidate and takes it back. In segments 1 to 4:
/// reference, candidate, Σ|terms|, and the exact value, in the middle of both.
fn judged(candidate: f32, tolerance: Tolerance, of: impl Fn(Pair<'static, TensorRef>) -> Pair<'static, TensorRef>) {
    let float = |value: f32| value.to_le_bytes().repeat(N);
    let double = |value: f64| value.to_le_bytes().repeat(N);
    let mut table = SegmentTable::default();
    let contents = [float(REFERENCE), float(candidate), double(TERMS), double(2.)];
    for (id, bytes) in (1..).zip(contents) {
        let segment = Segment::create(SegmentId(id), "test", bytes.len() as u64).unwrap();
        segment.write(0, &bytes).unwrap();
        table.attach(segment).unwrap();
    }
    let pair = of(Pair::new("y", tensor(1, DType::F32), tensor(2, DType::F32), Some(tolerance)));
    let read: Vec<_> = pair.tensors().cloned().collect();
    let lease = table.lease(&read, &[]).unwrap();
    let tensors = lease.inputs();
    let at = |asked: TensorRef| tensors[read.iter().position(|tensor| *tensor == asked).unwrap()];
    let done = AtomicBool::new(false);
    let verdicts: Vec<TensorVerdict> = thread::scope(|scope| {
        scope.spawn(|| {
            let of = |id| table.iter().find(|segment| segment.id() == SegmentId(id)).unwrap();
            let segments = [of(1), of(2)];
            let mut offset = 0;
            while !done.load(Ordering::Relaxed) {
                offset = (offset + 4 * 7919) % (4 * N as u64);
                for (segment, kept) in segments.iter().zip([REFERENCE, candidate]) {
                    segment.write(offset, &WRITTEN.to_le_bytes()).unwrap();
                    thread::yield_now();
                    segment.write(offset, &kept.to_le_bytes()).unwrap();
                }
            }
        });
        let (mut verdicts, watchdog) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        // The other thread may not have had a turn yet.
        while verdicts.len() < ROUNDS || !verdicts.iter().any(is_written) && Instant::now() < watchdog {
            verdicts.push(pair.clone().map(at).compared().verdict);
        }
        done.store(true, Ordering::Relaxed);
        verdicts
    });
    assert!(verdicts.iter().any(is_written), "nothing was written meanwhile");
    for verdict in &verdicts {
        let metrics = metrics(verdict);
        let explained = metrics.max_terms.map_or(0., |terms| 0.25 * tolerance.rtol * terms);
        let allowed = (tolerance.atol + tolerance.scale * metrics.max_reference).max(explained);
        match (&verdict.verdict, verdict.noise) {
            // Right where the reference is what was written: float64 says so of the same numbers.
            (Verdict::Noise, noise) => assert_eq!(noise.unwrap().errors.distance, metrics.max_abs, "{verdict}"),
            _ => assert_eq!(verdict.verdict.is_pass(), metrics.max_abs <= allowed, "{verdict}"),
        }
        if let Some(worst) = &metrics.worst {
            assert_eq!((worst.candidate - worst.reference).abs(), metrics.max_abs, "{verdict}");
        }
    }
}

fn is_written(verdict: &TensorVerdict) -> bool {
    metrics(verdict).max_abs > 1000.
}

fn metrics(verdict: &TensorVerdict) -> &Metrics {
    verdict.metrics.as_ref().unwrap()
}

#[test]
fn a_verdict_is_on_the_bytes_that_were_measured() {
    judged(REFERENCE, TOLERANCE, |pair| pair);
    judged(CANDIDATE, TOLERANCE, |pair| pair);
}

#[test]
fn a_verdict_by_terms_is_on_the_bytes_that_were_measured() {
    let tolerance = Tolerance { rtol: 1e-6, ..TOLERANCE };
    judged(CANDIDATE, tolerance, |pair| Pair { terms: Some(tensor(3, DType::F64)), ..pair });
}

#[test]
fn a_verdict_by_float64_is_on_the_bytes_that_were_measured() {
    let exact = || Exact {
        value: tensor(4, DType::F64),
        explained: Explained::Drift { step: 0. },
        factor: 1.5,
        excused: Excused::AsReference,
    };
    judged(CANDIDATE, TOLERANCE, |pair| Pair { exact: Some(exact()), ..pair });
}
