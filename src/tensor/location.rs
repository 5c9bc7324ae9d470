//! Where in shared memory a tensor lies.

use serde::{Deserialize, Serialize};

use crate::base::ids::SegmentId;

/// A segment of a client and an offset in it, packed as lanes carry it (docs/design/protocol.md): `segment << 40 | offset`. What
/// travels is this, never an address.
///
/// Every 64-bit number is a location; whether there is such a segment, and whether the tensor fits it, is proven by
/// `shm::SegmentTable::lease`.
///
/// ```
/// use rust_ort::base::ids::SegmentId;
/// use rust_ort::tensor::{BadLocation, Location};
///
/// let location = Location::new(SegmentId(3), 128)?;
/// assert_eq!(location.bits(), 0x300_0000_0080);
/// assert_eq!(Location::from_bits(location.bits()), location);
/// assert_eq!((location.segment(), location.offset()), (SegmentId(3), 128));
///
/// assert_eq!(Location::new(SegmentId(3), 1 << 40), Err(BadLocation::Offset(1 << 40)));
/// # Ok::<(), BadLocation>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location(u64);

/// Why a segment and an offset are no [`Location`].
#[derive(Clone, Copy, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum BadLocation {
    /// expected a segment below 2^24, got {0}
    Segment(u32),
    /// offset {0}: expected below 2^40
    Offset(u64),
}

impl Location {
    const OFFSET_BITS: u32 = 40;
    /// Exclusive upper bound of an offset in bytes, and so the largest length of a segment.
    pub const OFFSET_LIMIT: u64 = 1 << Self::OFFSET_BITS;

    /// Offset in bytes. Errors: [`BadLocation`], the offset's first.
    pub const fn new(segment: SegmentId, offset: u64) -> Result<Self, BadLocation> {
        if offset >= Self::OFFSET_LIMIT {
            Err(BadLocation::Offset(offset))
        } else if segment.0 >= SegmentId::LIMIT {
            Err(BadLocation::Segment(segment.0))
        } else {
            Ok(Self((segment.0 as u64) << Self::OFFSET_BITS | offset))
        }
    }

    /// As lanes carry it.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As lanes carry it.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The segment.
    pub const fn segment(self) -> SegmentId {
        SegmentId((self.0 >> Self::OFFSET_BITS) as u32)
    }

    /// In bytes, from the segment's start.
    pub const fn offset(self) -> u64 {
        self.0 & (Self::OFFSET_LIMIT - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_splits_into_what_it_was_made_of() {
        for (segment, offset) in [(0, 0), (1, 64), (SegmentId::LIMIT - 1, Location::OFFSET_LIMIT - 1)] {
            let location = Location::new(SegmentId(segment), offset).unwrap();
            assert_eq!((location.segment(), location.offset()), (SegmentId(segment), offset));
            assert_eq!(Location::from_bits(location.bits()), location);
        }
        assert_eq!(Location::new(SegmentId(SegmentId::LIMIT), 0), Err(BadLocation::Segment(SegmentId::LIMIT)));
        assert_eq!(Location::new(SegmentId(0), u64::MAX), Err(BadLocation::Offset(u64::MAX)));
    }
}
