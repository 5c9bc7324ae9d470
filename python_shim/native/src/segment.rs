//! Shared memory that this process owns.

use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use rust_ort::base::ids::SegmentId;
use rust_ort::shm;

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

pub fn next_id() -> SegmentId {
    SegmentId(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

pub fn os_error(error: impl std::fmt::Display) -> PyErr {
    PyOSError::new_err(error.to_string())
}

pub fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A memfd mapped here, sealed against a change of its size before anyone else can see it. Blocks over it keep it.
#[pyclass(frozen)]
pub struct Segment(pub Arc<shm::Segment>);

#[pymethods]
impl Segment {
    /// Errors: OSError with the kernel's reason, or where this process made as many as a location can name.
    #[new]
    fn new(name: &str, len_bytes: u64) -> PyResult<Self> {
        Ok(Self(Arc::new(shm::Segment::create(next_id(), name, len_bytes).map_err(os_error)?)))
    }

    /// By which a location names it.
    #[getter]
    fn id(&self) -> u32 {
        self.0.id().0
    }

    /// Of the mapping.
    #[getter]
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Where the mapping begins in this process.
    #[getter]
    fn base(&self) -> usize {
        self.0.address()
    }

    /// Descriptor of the memfd, which stays the segment's.
    #[getter]
    fn fd(&self) -> i32 {
        self.0.fd().as_raw_fd()
    }

    /// Bytes of memory behind the segment.
    fn resident_bytes(&self) -> PyResult<u64> {
        self.0.resident_bytes().map_err(os_error)
    }

    /// Gives whole pages in the range back to the system; they read as zeros then.
    fn punch(&self, offset: u64, len_bytes: u64) -> PyResult<()> {
        self.0.punch(offset, len_bytes).map_err(os_error)
    }

    /// In a forked child: puts memory of its own at these addresses, with copies of the (offset, bytes) ranges.
    fn make_private(&self, ranges: Vec<(u64, u64)>) -> PyResult<()> {
        self.0.make_private(&ranges).map_err(|errno| os_error(format!("the copy that a forked child needs: {errno}")))
    }

    /// Errors: ValueError outside of the segment.
    fn read(&self, offset: u64, len_bytes: usize) -> PyResult<Vec<u8>> {
        self.0.read(offset, len_bytes).map_err(value_error)
    }
}
