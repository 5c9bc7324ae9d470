//! Many questions answered in one go: what they are goes to the device, kernels are queued for all of them, what is left of
//! each comes back.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::results::{DeviceStats, Found, MOST_WORDS, Numbers, Segments, Sums};
use crate::compare::noise::Errors;
use crate::compare::range::Range;
use crate::compare::stats::Outside;
use crate::cuda::{CudaError, Device, Kernel, Kernels, Memory, Pinned, Span, Stream};

/// Threads that read a tensor, at most: several for each lane of a device's processors, so that some read while others wait.
const THREADS: u64 = 1 << 16;
/// Numbers that are worth a thread.
const NUMBERS: u64 = 16;
/// How many threads' words a thread merges: as kernels.cu has it.
const FAN: u64 = 64;
/// Elements that a thread adds up for a signature, at most: as kernels.cu has it.
const PIECE: u64 = 1024;
/// Tasks at once.
const TASKS: usize = 1024;
/// What threads leave lies in so many bytes: those of a few large tensors.
const FOUND_BYTES: u64 = 64 << 20;

/// Kinds of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Stats,
    Outside,
    Range,
    Errors,
    Sums,
    Signature,
    Numbers,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Stats, Self::Outside, Self::Range, Self::Errors, Self::Sums, Self::Signature, Self::Numbers];

    /// Of the words that one thread leaves.
    fn n_words(self) -> u64 {
        let n_words = match self {
            Self::Stats => DeviceStats::WORDS,
            Self::Outside => Outside::WORDS,
            Self::Range => Range::WORDS,
            Self::Errors => Errors::WORDS,
            Self::Sums => Sums::WORDS,
            Self::Signature => 1,
            Self::Numbers => Numbers::WORDS,
        };
        n_words as u64
    }

    fn names(self) -> (&'static std::ffi::CStr, Option<&'static std::ffi::CStr>) {
        match self {
            Self::Stats => (c"find_stats", Some(c"merge_stats")),
            Self::Outside => (c"find_outside", Some(c"merge_outside")),
            Self::Range => (c"find_range", Some(c"merge_range")),
            Self::Errors => (c"find_errors", Some(c"merge_errors")),
            Self::Sums => (c"find_sums", Some(c"merge_sums")),
            Self::Signature => (c"find_signature", Some(c"merge_signature")),
            Self::Numbers => (c"find_numbers", None),
        }
    }
}

const _: () = assert!(Segments::WORDS <= MOST_WORDS && Numbers::WORDS <= MOST_WORDS && Errors::WORDS <= MOST_WORDS);

/// One question, laid out as `Task` of kernels.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Task {
    pub reference: u64,
    pub candidate: u64,
    pub exact: u64,
    pub terms: u64,
    /// Set by the round, as all that is about threads.
    pub found: u64,
    pub out: u64,
    pub first: u64,
    pub n_threads: u64,
    pub n_numbers: u64,
    pub dtype: u64,
    pub equal_nan: u64,
    pub fill_limit: f64,
    pub atol: f64,
    pub rtol: f64,
    pub floor: f64,
    pub of_exact: f64,
    pub of_terms: f64,
    pub of_all: f64,
    pub epsilon: f64,
    pub smallest: f64,
    pub depth: u64,
    pub at: [u64; 2],
}

impl Task {
    fn bytes(&self) -> &[u8] {
        // SAFETY: words of 8 bytes without padding; any byte of them may be read.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// One launch, laid out as `Launch` of kernels.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Launch {
    tasks: u64,
    n_tasks: u64,
    n_threads: u64,
    level: u64,
    n_each: u64,
}

/// The kernels of a kind.
struct Pass {
    find: Kernel,
    merge: Option<Kernel>,
}

/// What answers on one device.
pub(super) struct Rounds {
    passes: Vec<Pass>,
    tasks: Memory,
    found: Memory,
    out: Memory,
    /// Page-locked memory that tasks come from and words go to, made when it is needed and after an error.
    host: Option<[Pinned; 2]>,
}

/// Words that are left of each task, in their order.
pub(super) type Answers = Vec<[u64; MOST_WORDS]>;

impl Rounds {
    /// Errors: OutOfMemory, Call.
    pub fn new(device: &Arc<Device>, kernels: &Arc<Kernels>) -> Result<Self, CudaError> {
        let pass = |kind: Kind| {
            let (find, merge) = kind.names();
            Ok(Pass { find: kernels.kernel(find)?, merge: merge.map(|merge| kernels.kernel(merge)).transpose()? })
        };
        Ok(Self {
            passes: Kind::ALL.into_iter().map(pass).collect::<Result<_, CudaError>>()?,
            tasks: Memory::new(device, (TASKS * size_of::<Task>()) as u64)?,
            found: Memory::new(device, FOUND_BYTES)?,
            out: Memory::new(device, (TASKS * OUT_BYTES) as u64)?,
            host: None,
        })
    }

    /// What is left of each task. Blocks until it is done.
    ///
    /// Errors: OutOfMemory, Call; nothing of it is queued any more then.
    ///
    /// # Safety
    /// What the tasks name is there until this returns, on the stream's device, and as long as they say; nobody writes it.
    pub unsafe fn run(&mut self, stream: &Stream, asked: &[(Kind, Task)]) -> Result<Answers, CudaError> {
        let mut answers = Answers::with_capacity(asked.len());
        for asked in asked.chunks(TASKS) {
            // SAFETY: the caller's.
            unsafe { self.run_some(stream, asked, &mut answers) }?;
        }
        Ok(answers)
    }

    /// # Safety
    /// As of [`Rounds::run`].
    unsafe fn run_some(
        &mut self,
        stream: &Stream,
        asked: &[(Kind, Task)],
        answers: &mut Answers,
    ) -> Result<(), CudaError> {
        let mut order: Vec<usize> = (0..asked.len()).collect();
        order.sort_by_key(|&index| asked[index].0);
        let out = self.out.span(0, (asked.len() * OUT_BYTES) as u64)?;
        let tasks = self.tasks.span(0, (asked.len() * size_of::<Task>()) as u64)?;
        let found = self.found.span(0, FOUND_BYTES)?.address();
        let [mut given, taken] = match self.host.take() {
            Some(host) => host,
            None => {
                let device = stream.device();
                [Pinned::new(device, TASKS * size_of::<Task>())?, Pinned::new(device, TASKS * OUT_BYTES)?]
            }
        };
        let mut groups = Vec::new();
        let slots = given.bytes_mut().chunks_exact_mut(size_of::<Task>());
        for ((place, &index), slot) in order.iter().enumerate().zip(slots) {
            let (kind, mut task) = asked[index];
            task.out = out.address() + (index * OUT_BYTES) as u64;
            Group::add(&mut groups, kind, &mut task, place, found)?;
            slot.copy_from_slice(task.bytes());
        }
        let launches = || {
            groups.iter().try_for_each(|group| {
                // SAFETY: the tasks lie where the groups say when the kernels read them; the rest is the caller's, until
                // `round_trip` returns, which waits for what was queued whatever comes of it.
                unsafe { group.launch(stream, &self.passes[group.kind as usize], tasks.address()) }
            })
        };
        let host = stream.round_trip((tasks, given), launches, (out, taken))?;
        let words = host[1].bytes()[..out.len_bytes()].as_chunks::<OUT_BYTES>().0;
        answers.extend(words.iter().map(|bytes| {
            let words = bytes.as_chunks::<8>().0;
            std::array::from_fn(|word| u64::from_le_bytes(words[word]))
        }));
        self.host = Some(host);
        Ok(())
    }
}

const OUT_BYTES: usize = MOST_WORDS * size_of::<u64>();

/// Tasks of a kind that are launched together.
struct Group {
    kind: Kind,
    /// Of the tasks as they are sorted.
    first: usize,
    n_tasks: u64,
    n_threads: u64,
    /// Of a task, at most.
    most_threads: u64,
    found_bytes: u64,
}

impl Group {
    /// Puts a task into the last group, or a new one, and tells it where its threads and their words are. Errors: Range for a
    /// tensor of more pieces than there is room for.
    fn add(groups: &mut Vec<Self>, kind: Kind, task: &mut Task, place: usize, found: u64) -> Result<(), CudaError> {
        (task.n_threads, task.depth) = match kind {
            Kind::Numbers => (1, 0),
            Kind::Signature => pieces(task.n_numbers),
            _ => (task.n_numbers.div_ceil(NUMBERS).next_multiple_of(FAN).min(THREADS), 0),
        };
        let bytes = found_words(task.n_threads) * kind.n_words() * size_of::<u64>() as u64;
        if bytes > FOUND_BYTES {
            return Err(CudaError::Range { offset: 0, len_bytes: bytes, limit: FOUND_BYTES });
        }
        let fits = |group: &&mut Self| group.kind == kind && group.found_bytes + bytes <= FOUND_BYTES;
        if groups.last_mut().as_ref().is_none_or(|group| !fits(group)) {
            groups.push(Self { kind, first: place, n_tasks: 0, n_threads: 0, most_threads: 0, found_bytes: 0 });
        }
        let group = groups.last_mut().expect("pushed where there was none");
        (task.first, task.found) = (group.n_threads, found + group.found_bytes);
        group.n_tasks += 1;
        group.n_threads += task.n_threads;
        group.most_threads = group.most_threads.max(task.n_threads);
        group.found_bytes += bytes;
        Ok(())
    }

    /// # Safety
    /// The tasks lie at `tasks`, and what they name, until the queued work is done.
    unsafe fn launch(&self, stream: &Stream, pass: &Pass, tasks: u64) -> Result<(), CudaError> {
        let tasks = tasks + (self.first * size_of::<Task>()) as u64;
        let (n_tasks, n_threads) = (self.n_tasks, self.n_threads);
        let launch = Launch { tasks, n_tasks, n_threads, level: 0, n_each: 1 };
        // SAFETY: `Launch` is laid out as the kernels' parameter; the rest is the caller's.
        unsafe { stream.launch(&pass.find, n_threads, &launch) }?;
        let Some(merge) = &pass.merge else { return Ok(()) };
        let (mut left, mut level) = (self.most_threads, 0);
        loop {
            let n_each = self.kind.left_of(left);
            let launch = Launch { level, n_each, ..launch };
            // SAFETY: as above.
            unsafe { stream.launch(merge, n_tasks * n_each, &launch) }?;
            if n_each <= self.kind.left_of(1) {
                return Ok(());
            }
            (left, level) = (n_each, level + 1);
        }
    }
}

impl Kind {
    /// Of so many threads, how many are left by a merge.
    fn left_of(self, n_threads: u64) -> u64 {
        match self {
            Self::Signature => n_threads.div_ceil(FAN).max(4),
            _ => n_threads.div_ceil(FAN),
        }
    }
}

/// Threads that leave something: those that find, and those that merge.
fn found_words(n_threads: u64) -> u64 {
    let (mut all, mut left) = (n_threads, n_threads);
    while left > 1 {
        left = left.div_ceil(FAN);
        all += left;
    }
    // What is left of a signature is four times as much.
    all + 4 * FAN
}

/// Pieces of a tensor's four segments, and how often each segment is cut into two.
fn pieces(n_numbers: u64) -> (u64, u64) {
    let (mut len, mut depth) = (if n_numbers <= 4 { 1 } else { n_numbers.div_ceil(4) }, 0);
    while len > PIECE {
        let half = len / 2;
        (len, depth) = (len - (half - half % 8), depth + 1);
    }
    (4 << depth, depth)
}

/// A part of a span that begins with it, as an address. Errors: Range where it is shorter.
pub(super) fn address(span: Span<'_>, len_bytes: u64) -> Result<u64, CudaError> {
    span.part(0, len_bytes).map(|part| part.address())
}
