//! Tensors of this process as feeds of a session.

use displaydoc::Display;
use thiserror::Error;

use crate::base::ids::SegmentId;
use crate::shm::{BadSegment, Lease, LeaseError, OutOfRange, Segment, SegmentTable};
use crate::tensor::{BadLocation, Location, TensorRef, TensorView};

const ALIGN: u64 = 64;
const ID: SegmentId = SegmentId(0);

/// Why tensors could not be laid out as feeds.
#[derive(Debug, Display, Error)]
pub enum FeedsError {
    /// feeds: {0}
    Memory(#[from] BadSegment),
    /// feeds: {0}
    Place(#[from] BadLocation),
    /// feeds: {0}
    Range(#[from] OutOfRange),
    /// feeds: {0}
    Lease(#[from] LeaseError),
}

/// A copy of the tensors, in their order, in memory that a session may be run on (see
/// [`Session::fetch`](super::Session::fetch)). Errors: [`FeedsError`], such as no memory.
pub fn leased(feeds: &[TensorView<'_>]) -> Result<Lease, FeedsError> {
    let mut len_bytes = ALIGN;
    let place = |feed: &TensorView<'_>| {
        let location = Location::new(ID, len_bytes)?;
        len_bytes += (feed.bytes().len() as u64).next_multiple_of(ALIGN);
        Ok(TensorRef { location, desc: feed.desc() })
    };
    let places = feeds.iter().map(place).collect::<Result<Vec<_>, BadLocation>>()?;
    let segment = Segment::create(ID, "rust-ort-feeds", len_bytes)?;
    for (feed, place) in feeds.iter().zip(&places) {
        segment.write(place.location.offset(), feed.bytes())?;
    }
    let mut table = SegmentTable::default();
    table.attach(segment)?;
    Ok(table.lease(&places, &[])?)
}
