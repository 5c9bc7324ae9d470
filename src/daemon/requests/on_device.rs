//! Tensors of a client's that lie on a device: the executor alone reaches them.

use super::state::{Connected, Leased, unexpected};
use crate::base::ids::SegmentId;
use crate::compare::{Measured, Range};
use crate::daemon::ledger::Held;
use crate::link::message::{Comparison, LinkReply, LinkRequest};
use crate::observe::on_device::Reach;
use crate::protocol::message::{ErrorCode, RunStats, WireError};
use crate::shm::{Lease, Segment, SegmentTable};
use crate::tensor::{CallRecord, Location, TensorRef};

/// Whether one of these tensors lies in memory of a device.
pub fn lie_on_device<'t>(at: &Connected<'_>, mut tensors: impl Iterator<Item = &'t TensorRef>) -> bool {
    let state = at.client.state();
    !state.device_segments.is_empty()
        && tensors.any(|tensor| state.device_segments.contains_key(&tensor.location.segment()))
}

/// Runs a call. beside: what else is read of the client's memory, where nobody has looked whether outputs overlap it.
pub fn run_on(leased: &Leased<'_>, record: &CallRecord, beside: &[TensorRef]) -> Result<RunStats, WireError> {
    match leased.ask(&LinkRequest::Run { record: record.clone(), beside: beside.to_vec() })? {
        LinkReply::Ran(stats) => Ok(stats),
        other => Err(unexpected("Run", &other)),
    }
}

/// Tensors on a device, by way of the executor.
pub struct OnDevice<'a> {
    leased: &'a Leased<'a>,
    /// Read beside a call.
    beside: &'a [TensorRef],
    /// What the newest copies count for: those before them are gone.
    held: Option<Held>,
}

impl<'a> OnDevice<'a> {
    /// Of a client. beside: what a call's outputs may not overlap.
    pub fn new(leased: &'a Leased<'a>, beside: &'a [TensorRef]) -> Self {
        Self { leased, beside, held: None }
    }
}

/// Of the memory that the executor copies to. No client names it.
const COPIES: SegmentId = SegmentId(1);

impl Reach for OnDevice<'_> {
    type Error = WireError;

    fn run(&mut self, record: &CallRecord) -> Result<RunStats, WireError> {
        let stats = run_on(self.leased, record, self.beside)?;
        // An executor that dies from now on dies of our own kernels and copies, not of the part.
        self.leased.at.client.state().observing = None;
        Ok(stats)
    }

    fn copied(&mut self, tensors: &[TensorRef]) -> Result<Lease, WireError> {
        let Leased { at, executor } = self.leased;
        let mut len_bytes = 0_u64;
        let mut copies = Vec::new();
        for from in tensors {
            let location = Location::new(COPIES, len_bytes).map_err(|error| too_large(&error.to_string()))?;
            copies.push([from.clone(), TensorRef { location, desc: from.desc.clone() }]);
            len_bytes = len_bytes.saturating_add(from.desc.len_bytes() as u64).next_multiple_of(COPY_ALIGN_BYTES);
        }
        let held = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.held = None;
        self.held = Some(at.client.memory.hold("tensors of a device, copied to the host", held)?);
        let segment = Segment::create(COPIES, "rust-ort-copies", len_bytes.max(1))?;
        let to: Vec<_> = copies.iter().map(|[_, to]| to.clone()).collect();
        let request = LinkRequest::CopyOut { copies, segment: COPIES, len_bytes: segment.len_bytes() };
        match executor.ask_with(at.client.id, &request, Some(segment.fd()))? {
            LinkReply::Done => {}
            other => return Err(unexpected("CopyOut", &other)),
        }
        let mut table = SegmentTable::default();
        table.attach(segment)?;
        Ok(table.lease(&to, &[])?)
    }

    fn copy(&mut self, copies: Vec<[TensorRef; 2]>) -> Result<(), WireError> {
        match self.leased.ask(&LinkRequest::Copy(copies))? {
            LinkReply::Done => Ok(()),
            other => Err(unexpected("Copy", &other)),
        }
    }

    fn is_lost(&self) -> bool {
        self.leased.executor.is_gone()
    }

    fn measured(&mut self, pairs: Vec<Comparison>) -> Result<Vec<Option<Measured>>, WireError> {
        let n_pairs = pairs.len();
        if n_pairs == 0 {
            return Ok(Vec::new());
        }
        match self.leased.ask(&LinkRequest::Measure(pairs))? {
            LinkReply::Measured(found) if found.len() == n_pairs => Ok(found),
            other => Err(unexpected("Measure", &other)),
        }
    }

    fn ranges(&mut self, tensors: Vec<TensorRef>) -> Result<Vec<Option<Range>>, WireError> {
        let n_tensors = tensors.len();
        match self.leased.ask(&LinkRequest::Ranges(tensors))? {
            LinkReply::Ranged(found) if found.len() == n_tensors => Ok(found),
            other => Err(unexpected("Ranges", &other)),
        }
    }
}

/// Where a copy begins.
const COPY_ALIGN_BYTES: u64 = 64;

fn too_large(why: &str) -> WireError {
    WireError::client(ErrorCode::Limit, format!("tensors of a device, copied to the host: {why}"))
}
