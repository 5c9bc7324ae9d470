//! The private link between the daemon and its executor: two processes of one build, so the encoding (bincode) is never
//! kept and needs no version.
//!
//! A message is a u32 length (little-endian) and that many bytes: a `u64` id and the body. A descriptor travels with the
//! length's first byte. A reply carries the id of its request; replies come in any order, because `Prepare`, `Widen`, `Optimize`,
//! `Run`, `CopyOut`, `Copy`, `Measure`, `Ranges`, `RunPieces` and `Release` are served on threads of their own. End of file means that the other side is gone.

use std::path::PathBuf;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::ids::{PartHandle, SegmentId, Work};
use crate::compare::{Explained, Measured, Pair, Range, Tolerance};
use crate::confine::Confined;
use crate::protocol::message::{
    DeviceSegmentSpec, Division, FrozenInput, LaneEventsSpec, PartSpec, Prepared, RunStats, SlotSpec, WireError,
};
use crate::tensor::{CallRecord, TensorRef};

/// The sources that this program was built of: those of daemon and executor are the same, or they do not understand each
/// other.
pub const SOURCES: &str = env!("RUST_ORT_SOURCES");

/// What an executor loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The daemon's [`SOURCES`].
    pub sources: String,
    /// Absolute path of libonnxruntime.so*.
    pub library: PathBuf,
    /// Intra-op threads of the global pool; 0 = one a core.
    pub threads: u32,
    /// Let the pool's threads spin.
    pub allow_spinning: bool,
    /// Its client's; None: stays as it is.
    pub niceness: Option<i32>,
    /// The process's libtorch, too.
    pub libtorch: bool,
    /// Folder of compiled code that executors share.
    pub code: PathBuf,
    /// Put walls around the process before it loads anything.
    pub confine: bool,
}

/// From the daemon to the executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LinkRequest {
    /// Load the runtime; carries the descriptor of the counter page. Answered by [`LinkReply::Ready`]; the first request.
    Hello(Hello),
    /// Serve a client from now on, until `Reset`; errors for want of a device's memory name it. Answered by `Done`.
    Serve {
        /// Its process; None where it has no pid in the executor's namespace.
        pid: Option<u32>,
        /// CPUs to run on, as the client does: a bit each; empty: all.
        cpus: Vec<u8>,
    },
    /// Look anew what this process holds of the memory of devices, and say so in the counter page. Answered by `Done`.
    CountDeviceMemory,
    /// Map a segment of the client; carries its descriptor. Answered by `Done`.
    Attach {
        /// Chosen by the client.
        segment: SegmentId,
        /// Its length.
        len_bytes: u64,
        /// It holds lanes, not data.
        lanes: bool,
    },
    /// Forget a segment. Answered by `Done`.
    Detach {
        /// As attached.
        segment: SegmentId,
    },
    /// Serve a lane with a thread of its own. Answered by `Done`.
    OpenLane {
        /// Index in the lanes segment.
        lane: u32,
    },
    /// Map memory of a device that the client allocated. Answered by `Done`.
    AttachDevice(DeviceSegmentSpec),
    /// Order the streams of an open lane's calls on a device. Answered by `Done`.
    OpenLaneEvents(LaneEventsSpec),
    /// Order the calls of a stream of the client's by numbers. Answered by `Done`.
    OpenSlot(SlotSpec),
    /// Make a session. Answered by `Prepared`.
    Prepare {
        /// Id of the client's request.
        request: u64,
        /// The model.
        part: PartSpec,
        /// Inputs that become constants.
        frozen: Vec<FrozenInput>,
    },
    /// Tell what the precision pass makes of a part's model, for a dump. Answered by `Widened`.
    Widen {
        /// What ends it.
        work: Work,
        /// The part.
        part: PartSpec,
    },
    /// Tell what the runtime's graph optimizer makes of a part's model, for a dump. Answered by `Optimized`.
    Optimize {
        /// What ends it.
        work: Work,
        /// The part.
        part: PartSpec,
    },
    /// Forget handles and end the sessions that no other handle uses. Answered by `Done` when they are gone.
    Release {
        /// As prepared.
        handles: Vec<PartHandle>,
    },
    /// Run a call to its end. Answered by `Ran`.
    Run {
        /// The call.
        record: CallRecord,
        /// What else is read of memory that the client placed: no output may overlap it.
        beside: Vec<TensorRef>,
    },
    /// Copy tensors, wherever they lie, into a segment, whose descriptor it carries; done when it is answered, by `Done`.
    CopyOut {
        /// From where and to where, of one dtype and shape.
        copies: Vec<[TensorRef; 2]>,
        /// The segment that all second ones name.
        segment: SegmentId,
        /// Its length.
        len_bytes: u64,
    },
    /// Copy each first tensor to the second, wherever they lie; both are the client's. Answered by `Done`.
    Copy(Vec<[TensorRef; 2]>),
    /// Measure candidates against references where both lie on a device, with these tolerances. Answered by `Measured`.
    Measure(Vec<Comparison>),
    /// Tell what tensors on a device hold. Answered by `Ranged`.
    Ranges(Vec<TensorRef>),
    /// Run pieces of parts, one after the other, with sessions of their own; the page of counters tells which it is. Answered
    /// by `RanPieces`.
    RunPieces(Pieces),
    /// End what nobody waits for: a call, over a lane or of `Run`, between two of its nodes, a `Prepare` between two of its
    /// steps, `RunPieces` also between two pieces. What does not run ends as it begins. Answered by `Done`, which does not
    /// wait for it; what goes on after [`limits::EXECUTOR_CANCEL`](crate::base::limits::EXECUTOR_CANCEL) is told by `GoesOn`.
    Cancel(Work),
    /// The client is gone: end its calls, forget its segments, lanes and handles; sessions stay. Answered by `Done`.
    Reset,
    /// End the process. Not answered.
    Exit,
}

/// From the executor to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LinkReply {
    /// The runtime is loaded.
    Ready {
        /// Such as "1.31.1".
        onnxruntime_version: String,
        /// What holds the process.
        confined: Confined,
    },
    /// The request is done.
    Done,
    /// To `Prepare`.
    Prepared(Prepared),
    /// To `Widen`: a ModelProto; None where the pass changes nothing.
    Widened(Option<Bytes>),
    /// To `Optimize`: a ModelProto.
    Optimized(Bytes),
    /// To `Run`.
    Ran(RunStats),
    /// To `Measure`, one a pair. None: a tensor lies on the host, or nothing here measures on the device.
    Measured(Vec<Option<Measured>>),
    /// To `Ranges`, one a tensor. None: as of `Measured`, or a dtype that has none.
    Ranged(Vec<Option<Range>>),
    /// To `RunPieces`, one a run: a piece that fails is the others' no matter.
    RanPieces(Vec<Result<RanOnce, WireError>>),
    /// The request failed; the link goes on.
    Failed(WireError),
    /// To nothing: this was cancelled, and does not end.
    GoesOn(Work),
}

/// A pair of tensors of one dtype and shape, and what to find out of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Eager's.
    pub reference: TensorRef,
    /// The runtime's.
    pub candidate: TensorRef,
    /// What is inside.
    pub tolerance: Tolerance,
    /// Σ|terms| of each element, float64: looked at where something is outside.
    pub terms: Option<TensorRef>,
    /// What both should be, float64, and what rounding explains.
    pub exact: Option<(TensorRef, Explained<TensorRef>)>,
    /// Their signatures, too.
    pub signatures: bool,
}

impl Comparison {
    /// Of a pair, with the tolerance that it is measured by.
    pub fn of(pair: &Pair<'_, &TensorRef>, tolerance: Tolerance) -> Self {
        Self {
            reference: pair.reference.clone(),
            candidate: pair.candidate.clone(),
            tolerance,
            terms: pair.terms.cloned(),
            exact: pair.exact.map(|exact| (exact.value.clone(), exact.explained.map(TensorRef::clone))),
            signatures: pair.signatures,
        }
    }
}

/// Pieces of parts to be run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pieces {
    /// Id of the client's request, which may be of several of these.
    pub request: u64,
    /// Each model once.
    pub models: Vec<PartSpec>,
    /// In order. The records' handles mean nothing.
    pub runs: Vec<PieceRun>,
    /// What else is read of memory that the client placed: nothing that any run gives may overlap it.
    pub beside: Vec<TensorRef>,
}

/// A piece and its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceRun {
    /// Its place among the models.
    pub model: u32,
    /// The tensors.
    pub record: CallRecord,
}

/// A piece that was run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanOnce {
    /// As of any run.
    pub stats: RunStats,
    /// What the part's rules made of its nodes.
    pub division: Division,
}

/// Why bytes are no message, or a message has no bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadLinkMessage {
    /// A message is longer than the limit.
    #[error("link: message of {len_bytes} bytes: expected at most {MAX_LEN_BYTES}; make the model smaller")]
    TooLong {
        /// Its length.
        len_bytes: u64,
    },
    /// The bytes are no message: the two sides are not of one build.
    #[error("link: undecodable message: {0}; daemon and executor must be the same binary")]
    Encoding(String),
}

/// Id of what needs no answer, and of an answer to nothing.
pub const UNASKED: u64 = 0;

/// Longest message: a model of 1 GiB and what goes with it.
pub const MAX_LEN_BYTES: u64 = (1 << 30) + (64 << 20);

/// Bytes of the length in front of a message.
pub const HEADER_LEN: usize = 4;

/// The whole message, length included. Errors: [`BadLinkMessage`].
pub fn encode<T: Serialize>(id: u64, body: &T) -> Result<Vec<u8>, BadLinkMessage> {
    let mut message = vec![0; HEADER_LEN];
    bincode::serde::encode_into_std_write((id, body), &mut message, bincode::config::standard())
        .map_err(|error| BadLinkMessage::Encoding(error.to_string()))?;
    let len_bytes = check_len((message.len() - HEADER_LEN) as u64)?;
    message[..HEADER_LEN].copy_from_slice(&(len_bytes as u32).to_le_bytes());
    Ok(message)
}

/// Bytes that follow this header. Errors: [`BadLinkMessage::TooLong`].
pub fn body_len(header: [u8; HEADER_LEN]) -> Result<usize, BadLinkMessage> {
    check_len(u32::from_le_bytes(header).into()).map(|len_bytes| len_bytes as usize)
}

/// Id and body of a message without its length. Errors: [`BadLinkMessage::Encoding`].
pub fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<(u64, T), BadLinkMessage> {
    let config = bincode::config::standard().with_limit::<{ 2 * MAX_LEN_BYTES as usize }>();
    let (id_and_body, read) = bincode::serde::decode_from_slice(message, config)
        .map_err(|error| BadLinkMessage::Encoding(error.to_string()))?;
    match message.len() - read {
        0 => Ok(id_and_body),
        left => Err(BadLinkMessage::Encoding(format!("{left} bytes left over"))),
    }
}

fn check_len(len_bytes: u64) -> Result<u64, BadLinkMessage> {
    if len_bytes > MAX_LEN_BYTES { Err(BadLinkMessage::TooLong { len_bytes }) } else { Ok(len_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::GraphId;
    use crate::protocol::message::SessionSpec;

    #[test]
    fn a_message_reads_as_it_was_written_and_cut_or_longer_ones_are_refused() {
        let part = PartSpec {
            graph: GraphId::from_bytes([7; 32]),
            part: 1,
            model: vec![1, 2, 3].into(),
            session: SessionSpec::default(),
            fx_values: [("add".to_owned(), "add".to_owned())].into(),
            named_values: vec!["add".to_owned()],
            described: Default::default(),
        };
        let request = LinkRequest::Prepare { request: 4, part, frozen: Vec::new() };
        let message = encode(9, &request).unwrap();
        let (header, body) = message.split_first_chunk().unwrap();
        assert_eq!(body_len(*header), Ok(body.len()));
        assert_eq!(decode(body), Ok((9, request)));
        for len in 0..body.len() {
            assert!(decode::<LinkRequest>(&body[..len]).is_err(), "{len}");
        }
        assert!(decode::<LinkRequest>(&[body, &[0]].concat()).is_err());
        assert_eq!(body_len([255; 4]), Err(BadLinkMessage::TooLong { len_bytes: u32::MAX.into() }));
    }
}
