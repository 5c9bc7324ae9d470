//! What a peer is told of each error of shared memory and of devices: the client's, who allocates it, but for what CUDA
//! fails at.

use super::{BadSegment, LaneError, LanesError, LeaseError, RecordError, UnknownSegment};
use crate::cuda::CudaError;
use crate::protocol::message::{ErrorCode, WireError};

impl From<BadSegment> for WireError {
    fn from(error: BadSegment) -> Self {
        WireError::client(ErrorCode::BadSegment, error.to_string())
    }
}

impl From<UnknownSegment> for WireError {
    fn from(error: UnknownSegment) -> Self {
        WireError::client(ErrorCode::BadSegment, error.to_string())
    }
}

impl From<LeaseError> for WireError {
    fn from(error: LeaseError) -> Self {
        let code = match &error {
            LeaseError::Unknown(_) => ErrorCode::BadSegment,
            LeaseError::OutOfRange(_)
            | LeaseError::Misaligned { .. }
            | LeaseError::OnDevice { .. }
            | LeaseError::TwoDevices { .. }
            | LeaseError::Overlap { .. } => ErrorCode::BadTensor,
        };
        WireError::client(code, error.to_string())
    }
}

impl From<LanesError> for WireError {
    fn from(error: LanesError) -> Self {
        let code = match &error {
            LanesError::Segment(_) | LanesError::Header { .. } => ErrorCode::BadSegment,
            LanesError::OutOfRange(_) => ErrorCode::BadTensor,
        };
        WireError::client(code, error.to_string())
    }
}

impl From<CudaError> for WireError {
    fn from(error: CudaError) -> Self {
        let text = error.to_string();
        match error {
            CudaError::Library { .. } => WireError::client(ErrorCode::RuntimeMissing, text),
            CudaError::NoDevice { .. } => WireError::client(ErrorCode::BadOption, text),
            CudaError::Handle { .. } | CudaError::NotExportable { .. } => {
                WireError::client(ErrorCode::BadSegment, text)
            }
            CudaError::Range { .. } => WireError::client(ErrorCode::BadTensor, text),
            CudaError::Call { .. }
            | CudaError::OutOfMemory { .. }
            | CudaError::NoStreamValues { .. }
            | CudaError::Compiler { .. } => WireError::fault(ErrorCode::RunFailed, text),
        }
    }
}

impl From<LaneError> for WireError {
    fn from(error: LaneError) -> Self {
        WireError::client(ErrorCode::BadState, error.to_string())
    }
}

impl From<RecordError> for WireError {
    fn from(error: RecordError) -> Self {
        let code = match &error {
            RecordError::DType(_) | RecordError::Shape(_) => ErrorCode::BadTensor,
            _ => ErrorCode::BadMessage,
        };
        WireError::client(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::{OutOfRange, Role, SegmentFault};
    use super::*;
    use crate::base::ids::SegmentId;
    use crate::tensor::{DType, Location, Shape, TensorDesc, UnknownDType};

    const SEGMENT: SegmentId = SegmentId(3);

    #[track_caller]
    fn told(error: impl Into<WireError>, code: ErrorCode, text: &str) {
        assert_eq!(error.into(), WireError::client(code, text));
    }

    #[test]
    fn a_segment_that_is_refused() {
        let len_bytes = 8;
        for (fault, text) in [
            (SegmentFault::Id { limit: SegmentId::LIMIT }, "segment 3: ids are below 16777216"),
            (
                SegmentFault::Length { len_bytes: 0, limit: Location::OFFSET_LIMIT },
                "segment 3: 0 bytes: expected 1 to 1099511627776",
            ),
            (
                SegmentFault::NoMemfd(Errno::INVAL),
                "segment 3: no memfd (Invalid argument (os error 22)); make it by memfd_create",
            ),
            (SegmentFault::Unsealed, "segment 3: not sealed against shrinking; add F_SEAL_SHRINK before sending it"),
            (SegmentFault::OtherLength { announced: 8, in_file: 16 }, "segment 3: 8 bytes announced, 16 in the file"),
            (
                SegmentFault::Unmappable { len_bytes, errno: Errno::NOMEM },
                "segment 3: mmap of 8 bytes: Cannot allocate memory (os error 12)",
            ),
            (SegmentFault::System(Errno::MFILE), "segment 3: Too many open files (os error 24)"),
            (SegmentFault::Attached, "segment 3: attached already; choose another id"),
            (
                SegmentFault::SameMemory { other: SegmentId(5) },
                "segment 3: the same memory is attached as segment 5; send another memfd",
            ),
        ] {
            told(BadSegment { segment: SEGMENT, fault }, ErrorCode::BadSegment, text);
        }
        let unknown = UnknownSegment { segment: SEGMENT };
        let text = "segment 3 is not attached; attach it before naming it";
        told(unknown, ErrorCode::BadSegment, text);
        told(LeaseError::Unknown(unknown), ErrorCode::BadSegment, text);
    }

    #[test]
    fn a_tensor_that_is_refused() {
        let outside = OutOfRange { segment: SEGMENT, offset: 6, needed: 4, len_bytes: 8 };
        let text = "segment 3 has 8 bytes: 4 bytes from offset 6 do not fit";
        told(LeaseError::OutOfRange(outside), ErrorCode::BadTensor, text);
        told(LanesError::OutOfRange(outside), ErrorCode::BadTensor, text);
        let desc = TensorDesc::new(DType::F32, [1]).unwrap();
        told(
            LeaseError::Misaligned { value: Role::Input(1), desc, segment: SEGMENT, offset: 6, align: 4 },
            ErrorCode::BadTensor,
            "input 1: float32[1] at offset 6 of segment 3 is not aligned to 4 bytes",
        );
        told(
            LeaseError::Overlap { output: Role::Output(0), other: Role::Input(2), segment: SEGMENT },
            ErrorCode::BadTensor,
            "output 0 overlaps input 2 in segment 3; give every output memory of its own",
        );
    }

    #[test]
    fn a_lane_or_a_record_that_is_refused() {
        told(
            LanesError::Header { field: "version", got: 2, expected: "1" },
            ErrorCode::BadSegment,
            "lanes segment: version is 2: expected 1",
        );
        told(LaneError::Absent { lane: 4, n_lanes: 2 }, ErrorCode::BadState, "lane 4: the segment has 2 lanes");
        told(LaneError::Open { lane: 1 }, ErrorCode::BadState, "lane 1: open already");
        for (error, text) in [
            (
                RecordError::TooMany { field: "n_inputs", got: 65_536, limit: 65_535 },
                "call record: n_inputs is 65536: expected at most 65535",
            ),
            (
                RecordError::TooLong { got: 99, capacity: 64 },
                "call record: descriptors_len is 99: expected at most 64 bytes together with the locations; take longer \
                 lanes",
            ),
            (
                RecordError::LeftOver { got: 24, left: 8, n_values: 1 },
                "call record: descriptors_len is 24: expected 8 bytes fewer for 1 descriptors",
            ),
            (
                RecordError::CutShort { left: 7 },
                "call record: descriptors_len is 7: expected bytes for every descriptor",
            ),
            (RecordError::NotZero { field: "reserved", got: 1 }, "call record: reserved is 1: expected 0"),
        ] {
            told(error, ErrorCode::BadMessage, text);
        }
        let of_shape = Shape::new([-1]).unwrap_err();
        for (error, text) in [
            (RecordError::DType(UnknownDType(8)), format!("call record: {}", UnknownDType(8))),
            (RecordError::Shape(of_shape.clone()), format!("call record: {of_shape}")),
        ] {
            told(error, ErrorCode::BadTensor, &text);
        }
    }
}
