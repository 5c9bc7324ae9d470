//! Metrics of tensors that lie on a device, reduced there: only numbers come back.
//!
//! `kernels.cu` says what `scalar.rs` says, and agrees with it in everything but the order of the sums, which depends on the
//! tensor's length alone.
#![allow(unsafe_code)]

mod found;

use std::sync::{Arc, Mutex};

use found::{DeviceStats, Found, Words};

use super::element::part_of;
use super::metrics::Measured;
use super::stats::Outside;
use super::tolerance::{Bounds, Tolerance};
use crate::base::sync::lock;
use crate::cuda::{CudaError, Device, Kernel, Kernels, Memory, Pinned, Span, Stream};
use crate::tensor::{DType, TensorDesc};

/// Threads that read a tensor, at most: several for each lane of a device's processors, so that some read while others wait.
const THREADS: u64 = 1 << 16;
/// Threads that merge what those found, at most; the host merges what these leave.
const MERGERS: u64 = 1 << 8;
/// Numbers that are worth a thread.
const NUMBERS: u64 = 16;

/// What measures tensors on one device.
pub struct DeviceMeter {
    stats: Pass,
    outside: Pass,
    /// What threads leave. Held while a pair is measured.
    scratch: Mutex<Scratch>,
}

/// The two kernels of a pass.
struct Pass {
    find: Kernel,
    merge: Kernel,
}

struct Scratch {
    found: Memory,
    merged: Memory,
    host: Host,
}

/// Page-locked memory that results are read to, made when it is needed and after a read that failed.
#[derive(Default)]
struct Host(Option<Pinned>);

impl Host {
    /// What `from` holds after all queued work, as `look` takes it; `from` has no more bytes than what MERGERS leave.
    fn read<T>(&mut self, stream: &Stream, from: Span<'_>, look: impl FnOnce(&[u8]) -> T) -> Result<T, CudaError> {
        let host = match self.0.take() {
            Some(host) => host,
            None => Pinned::new(stream.device(), MERGERS as usize * WORDS_BYTES)?,
        };
        let host = stream.read_to(from, host)?;
        let seen = look(&host.bytes()[..from.len_bytes()]);
        self.0 = Some(host);
        Ok(seen)
    }
}

/// Of the words of one thread, at most.
const WORDS_BYTES: usize = DeviceStats::WORDS * size_of::<u64>();

/// One launch, laid out as `Task` of kernels.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Task {
    reference: u64,
    candidate: u64,
    found: u64,
    merged: u64,
    n_numbers: u64,
    n_threads: u64,
    n_merged: u64,
    dtype: u64,
    equal_nan: u64,
    fill_limit: f64,
    atol: f64,
    rtol: f64,
    floor: f64,
}

impl DeviceMeter {
    /// Compiles the kernels for the device. Errors: Compiler (no NVRTC), Library, OutOfMemory, Call.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let kernels = Kernels::compile(device, include_str!("kernels.cu"), "rust_ort_kernels.cu", None)?;
        const { assert!(Outside::WORDS <= DeviceStats::WORDS) };
        let words = WORDS_BYTES as u64;
        let scratch = Scratch {
            found: Memory::new(device, THREADS * words)?,
            merged: Memory::new(device, MERGERS * words)?,
            host: Host::default(),
        };
        Ok(Self {
            stats: Pass { find: kernels.kernel(c"find_stats")?, merge: kernels.kernel(c"merge_stats")? },
            outside: Pass { find: kernels.kernel(c"find_outside")?, merge: kernels.kernel(c"merge_outside")? },
            scratch: Mutex::new(scratch),
        })
    }

    /// Measures a candidate against its reference, both of `desc`, on `stream`, which is of the device. Nobody writes them
    /// meanwhile. Blocks until it is done. Errors: Range where a span is no such tensor, Call.
    pub fn measure(
        &self,
        stream: &Stream,
        desc: &TensorDesc,
        [reference, candidate]: [Span<'_>; 2],
        tolerance: &Tolerance,
    ) -> Result<Measured, CudaError> {
        let len_bytes = desc.len_bytes() as u64;
        let [reference, candidate] = [reference.part(0, len_bytes)?, candidate.part(0, len_bytes)?];
        let part = part_of(desc.dtype);
        let n_numbers = len_bytes / part.size_bytes() as u64;
        if n_numbers == 0 {
            return Ok(Measured::default());
        }
        let mut scratch = lock(&self.scratch);
        let n_threads = n_numbers.div_ceil(NUMBERS).next_multiple_of(MERGERS).min(THREADS);
        let mut task = Task {
            reference: reference.address(),
            candidate: candidate.address(),
            found: scratch.found.span(0, scratch.found.len_bytes())?.address(),
            merged: scratch.merged.span(0, scratch.merged.len_bytes())?.address(),
            n_numbers,
            n_threads,
            n_merged: MERGERS,
            dtype: part.onnx_code() as u64,
            equal_nan: tolerance.equal_nan.into(),
            fill_limit: Tolerance::fill_limit(desc.dtype),
            atol: tolerance.atol,
            rtol: tolerance.rtol,
            floor: 0.,
        };
        // SAFETY: the spans hold the tensors, and `scratch`, locked, what the threads leave; both are borrowed until the
        // passes are over, which wait for what they have queued whatever comes of it.
        let DeviceStats { stats, not_zero } = unsafe { self.stats.run(stream, &task, &mut scratch) }?;
        let bounds = Bounds::new(tolerance, stats.max_reference);
        task.floor = bounds.floor;
        let outside = match bounds.may_be_beyond(stats.max_abs) {
            // SAFETY: as above.
            true => unsafe { self.outside.run(stream, &task, &mut scratch) }?,
            false => Outside::default(),
        };
        let mut read = |tensor: Span<'_>, index: u64| {
            let size = part.size_bytes() as u64;
            scratch.host.read(stream, tensor.part(index * size, size)?, |bytes| number(part, bytes))
        };
        let looked_at = [outside.worst.or(stats.argmax_abs), outside.first];
        let numbers =
            looked_at.into_iter().flatten().map(|index| Ok((index, read(reference, index)?, read(candidate, index)?)));
        let numbers = numbers.collect::<Result<_, CudaError>>()?;
        Ok(Measured { stats, outside, not_zero, numbers })
    }
}

/// A number of a real dtype, widened.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    super::element::widen(dtype, u64::from_le_bytes(bits))
}

impl Pass {
    /// # Safety
    /// What `task` names is there until this returns, and nobody else writes it.
    unsafe fn run<F: Found>(&self, stream: &Stream, task: &Task, scratch: &mut Scratch) -> Result<F, CudaError> {
        let mut run = || {
            // SAFETY: `Task` is laid out as the kernels' parameter; the rest is the caller's. `read` waits for both.
            unsafe {
                stream.launch(&self.find, task.n_threads, task)?;
                stream.launch(&self.merge, task.n_merged, task)?;
            }
            let len_bytes = task.n_merged * (F::WORDS * size_of::<u64>()) as u64;
            scratch.host.read(stream, scratch.merged.span(0, len_bytes)?, |bytes| Words::merged(bytes))
        };
        run().or_else(|error| {
            stream.synchronize()?; // one of the kernels may be queued
            Err(error)
        })
    }
}
