//! Blocks of shared memory: lent for as long as a tensor over them lives, then lent again.

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rust_ort::shm;
use rust_ort::tensor::Location;

use crate::segment::Segment;

/// Of every block's place and size.
const ALIGNMENT: usize = 64;
/// From this size on a block's memory is given back when nobody used it for a while.
pub const LARGE_BLOCK_BYTES: usize = 1 << 20;
const TRIM_EVERY: Duration = Duration::from_secs(5);

/// Size of the block that serves `len_bytes`: a multiple of 64, at most 12.5 % larger above 512 bytes.
#[pyfunction]
pub fn block_bytes(len_bytes: usize) -> usize {
    if len_bytes <= 512 {
        return len_bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
    }
    len_bytes.next_multiple_of(1 << ((len_bytes - 1).ilog2() - 3))
}

/// A piece of a segment. It returns to its [`Blocks`] when the last that has it lets go, from any thread, without the GIL.
pub struct Block {
    location: Location,
    len_bytes: usize,
    segment: Arc<shm::Segment>,
    home: Arc<Home>,
}

/// Where blocks return to.
struct Home {
    returned: Sender<Location>,
    /// See [`Blocks::leave`].
    left: AtomicBool,
}

impl Block {
    pub fn location(&self) -> u64 {
        self.location.bits()
    }

    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Its first byte.
    pub fn memory(&self) -> NonNull<u8> {
        self.segment.at(self.location.offset(), self.len_bytes).expect("a block is cut from its segment")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.home.left.load(Ordering::Relaxed) {
            // Fails where nobody lends any more.
            let _ = self.home.returned.send(self.location);
        }
    }
}

/// A block that Python has.
#[pyclass(frozen, name = "Block")]
pub struct PyBlock(pub Arc<Block>);

#[pymethods]
impl PyBlock {
    /// `segment << 40 | offset`.
    #[getter]
    fn location(&self) -> u64 {
        self.0.location()
    }
}

#[derive(Default)]
struct Free {
    /// Newest last.
    locations: Vec<Location>,
    /// Fewest there were since the last trim; of large ones.
    low: usize,
}

struct Live {
    len_bytes: usize,
    block: Weak<Block>,
}

struct State {
    /// By size.
    free: HashMap<usize, Free>,
    /// By location.
    live: BTreeMap<u64, Live>,
    /// By address.
    segments: Vec<Arc<shm::Segment>>,
    /// None in a forked child.
    returned: Option<Receiver<Location>>,
    trimmed_at: Instant,
}

/// The blocks of one arena. Freed ones are lent again newest first, so that their pages and cache lines are warm.
#[pyclass(frozen)]
pub struct Blocks {
    home: Arc<Home>,
    /// Locked by threads that have the GIL and keep it: a fork, which needs it too, never finds it locked.
    state: Mutex<State>,
}

impl Blocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of a size that [`block_bytes`] gives. arena: cuts one where none is free. Errors: the arena's.
    pub fn block(&self, arena: &Bound<'_, PyAny>, len_bytes: usize) -> PyResult<Arc<Block>> {
        let mut state = self.state();
        if state.reclaim() && state.trimmed_at.elapsed() > TRIM_EVERY {
            drop(state);
            arena.call_method0("trim")?;
            state = self.state();
        }
        if let Some(location) = state.take(len_bytes) {
            return self.lend(&mut state, location, len_bytes);
        }
        drop(state);
        let location = Location::from_bits(arena.call_method1("carve", (len_bytes,))?.extract()?);
        self.lend(&mut self.state(), location, len_bytes)
    }

    fn lend(&self, state: &mut State, location: Location, len_bytes: usize) -> PyResult<Arc<Block>> {
        let segment = state.segments.iter().find(|segment| segment.id() == location.segment());
        let segment = segment.filter(|segment| segment.at(location.offset(), len_bytes).is_ok());
        let segment = segment.ok_or_else(|| PyValueError::new_err("a block outside of the arena's segments"))?;
        let (segment, home) = (Arc::clone(segment), Arc::clone(&self.home));
        let block = Arc::new(Block { location, len_bytes, segment, home });
        state.live.insert(location.bits(), Live { len_bytes, block: Arc::downgrade(&block) });
        Ok(block)
    }

    /// Location of an address inside a segment.
    pub fn location_of(&self, address: usize) -> Option<u64> {
        self.state().locate(address).map(Location::bits)
    }

    /// What keeps the block that a location is in.
    pub fn keeper(&self, location: u64) -> Option<Arc<Block>> {
        let state = self.state();
        let (start, live) = state.live.range(..=location).next_back()?;
        (location - start < live.len_bytes as u64).then(|| live.block.upgrade())?
    }
}

impl State {
    fn take(&mut self, len_bytes: usize) -> Option<Location> {
        let free = self.free.get_mut(&len_bytes)?;
        let location = free.locations.pop()?;
        free.low = free.low.min(free.locations.len());
        Some(location)
    }

    /// Takes back what nobody has any more. Whether a large one was among it.
    fn reclaim(&mut self) -> bool {
        let mut large = false;
        while let Some(Ok(location)) = self.returned.as_ref().map(Receiver::try_recv) {
            if let Some(Live { len_bytes, .. }) = self.live.remove(&location.bits()) {
                self.free.entry(len_bytes).or_default().locations.push(location);
                large |= len_bytes >= LARGE_BLOCK_BYTES;
            }
        }
        large
    }

    fn locate(&self, address: usize) -> Option<Location> {
        let after = self.segments.partition_point(|segment| segment.address() <= address);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        let offset = (address - segment.address()) as u64;
        (offset < segment.len_bytes()).then(|| Location::new(segment.id(), offset).ok())?
    }
}

#[pymethods]
impl Blocks {
    #[new]
    fn new() -> Self {
        let (returned, receiver) = channel();
        let home = Arc::new(Home { returned, left: AtomicBool::new(false) });
        let state = State {
            free: HashMap::new(),
            live: BTreeMap::new(),
            segments: Vec::new(),
            returned: Some(receiver),
            trimmed_at: Instant::now(),
        };
        Self { home, state: Mutex::new(state) }
    }

    /// From now on blocks are cut from this segment, too.
    fn add(&self, segment: &Segment) {
        let mut state = self.state();
        let at = state.segments.partition_point(|known| known.address() < segment.0.address());
        state.segments.insert(at, Arc::clone(&segment.0));
    }

    /// A block of a size that `block_bytes` gives, cut by `arena.carve` where none is free.
    fn lent(&self, arena: &Bound<'_, PyAny>, len_bytes: usize) -> PyResult<PyBlock> {
        self.block(arena, len_bytes).map(PyBlock)
    }

    /// Location of an address inside a segment, 0 for any other.
    fn locate(&self, address: usize) -> u64 {
        self.location_of(address).unwrap_or(0)
    }

    /// What keeps the block that a location is in and owns no tensor over it; None where no block has it.
    fn holder(&self, location: u64) -> Option<PyBlock> {
        self.keeper(location).map(PyBlock)
    }

    /// (location, bytes) of every block that is lent, in order.
    fn live(&self) -> Vec<(u64, usize)> {
        let mut state = self.state();
        state.reclaim();
        state.live.iter().map(|(at, live)| (*at, live.len_bytes)).collect()
    }

    /// (bytes, location) of every free block, which the caller has from now on.
    fn drained(&self) -> Vec<(usize, u64)> {
        let mut state = self.state();
        let free = std::mem::take(&mut state.free).into_iter();
        free.flat_map(|(size, free)| free.locations.into_iter().map(move |at| (size, at.bits()))).collect()
    }

    /// (bytes, location) of the large blocks that were free all the time since the last trim, oldest first, if they are
    /// more than `slack_bytes` together: the caller has them from now on.
    fn idle(&self, slack_bytes: usize) -> Vec<(usize, u64)> {
        let mut state = self.state();
        state.trimmed_at = Instant::now();
        let large = |size: &usize| *size >= LARGE_BLOCK_BYTES;
        let idle = |free: &Free| free.low.min(free.locations.len());
        let total: usize =
            state.free.iter().filter(|(size, _)| large(size)).map(|(size, free)| size * idle(free)).sum();
        let mut taken = Vec::new();
        for (size, free) in state.free.iter_mut().filter(|(size, _)| large(size)) {
            if total > slack_bytes {
                taken.extend(free.locations.drain(..idle(free)).map(|at| (*size, at.bits())));
            }
            free.low = free.locations.len();
        }
        taken
    }

    /// In a forked child: the blocks are their parent's, and none returns here. A thread of the parent's that was returning
    /// one will never end doing so, and the channel waits for it where it is read and where it is dropped: it is neither.
    fn leave(&self) {
        self.home.left.store(true, Ordering::Relaxed);
        std::mem::forget(self.state().returned.take());
        std::mem::forget(Arc::clone(&self.home));
    }
}
