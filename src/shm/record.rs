//! The record of a call as it lies in a lane: docs/design/protocol.md. Bytes only; what they name is not looked at here.

use crate::base::ids::{CallId, PartHandle};
use crate::tensor::{BadShape, CallRecord, DType, Location, TensorDesc, TensorRef, UnknownDType};

/// Bytes before the locations.
pub(super) const RECORD_HEAD_LEN: usize = 40;

/// Why bytes are no record of a call, or a call does not fit a lane.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum RecordError {
    /// call record: {field} is {got}: expected at most {limit}
    TooMany {
        /// Field of the record.
        field: &'static str,
        /// Its value.
        got: usize,
        /// [`CallRecord::MAX_VALUES`].
        limit: usize,
    },
    /// call record: descriptors_len is {got}: expected at most {capacity} bytes together with the locations; take longer
    /// lanes
    TooLong {
        /// As the client wrote it.
        got: usize,
        /// What the lane has room for.
        capacity: usize,
    },
    /// call record: descriptors_len is {got}: expected {left} bytes fewer for {n_values} descriptors
    LeftOver {
        /// As the client wrote it.
        got: usize,
        /// Bytes behind the last descriptor.
        left: usize,
        /// Tensors of the call.
        n_values: usize,
    },
    /// call record: descriptors_len is {left}: expected bytes for every descriptor
    CutShort {
        /// Bytes where a descriptor, or its dims, should be.
        left: usize,
    },
    /// call record: {field} is {got}: expected 0
    NotZero {
        /// Field of the record.
        field: &'static str,
        /// Its value.
        got: u64,
    },
    /// call record: {0}
    DType(#[from] UnknownDType),
    /// call record: {0}
    Shape(#[from] BadShape),
}

/// A call's record, copied out of shared memory but not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// As the client wrote it.
    pub call: CallId,
    /// As the client wrote it.
    pub handle: PartHandle,
    /// As the client wrote it.
    pub eager_nodes: u32,
    /// As the client wrote it: 0 where no numbers order the call.
    pub slot: u32,
    /// As the client wrote it.
    pub number: u32,
    n_inputs: usize,
    n_outputs: usize,
    /// Locations, then descriptors.
    pub(super) body: Vec<u8>,
}

impl RawRecord {
    /// The same part on the same tensors: all of the record that decides what a run reads and writes.
    pub fn same_run(&self, other: &Self) -> bool {
        (self.handle, self.n_inputs, self.n_outputs) == (other.handle, other.n_inputs, other.n_outputs)
            && self.body == other.body
    }

    /// Errors: [`RecordError`].
    pub fn parse(&self) -> Result<CallRecord, RecordError> {
        let n_values = self.n_inputs + self.n_outputs;
        let (locations, mut descriptors) = self.body.split_at(8 * n_values);
        let mut values = Vec::with_capacity(n_values);
        for location in locations.as_chunks::<8>().0 {
            let location = Location::from_bits(u64::from_le_bytes(*location));
            values.push(TensorRef { location, desc: read_descriptor(&mut descriptors)? });
        }
        if !descriptors.is_empty() {
            let (got, left) = (self.body.len() - 8 * n_values, descriptors.len());
            return Err(RecordError::LeftOver { got, left, n_values });
        }
        let outputs = values.split_off(self.n_inputs);
        let Self { call, handle, eager_nodes, .. } = *self;
        Ok(CallRecord { call, handle, eager_nodes, inputs: values, outputs })
    }

    /// Takes over the fixed part; how many bytes of body follow it. Errors: TooMany, TooLong, NotZero.
    pub(super) fn set_head(&mut self, head: &[u8; RECORD_HEAD_LEN], capacity: usize) -> Result<usize, RecordError> {
        let count = |field, at| counted(field, u32_at(head, at) as usize);
        self.call = CallId(u64::from_le_bytes(*head.first_chunk().expect("the head has 40 bytes")));
        self.handle = PartHandle(u32_at(head, 8));
        self.n_inputs = count("n_inputs", 12)?;
        self.n_outputs = count("n_outputs", 16)?;
        self.eager_nodes = u32_at(head, 20);
        let got = u32_at(head, 24) as usize;
        let body_len = 8 * (self.n_inputs + self.n_outputs) + got;
        if body_len > capacity {
            return Err(RecordError::TooLong { got, capacity });
        }
        (self.slot, self.number) = (u32_at(head, 28), u32_at(head, 32));
        match u32_at(head, 36) {
            0 => Ok(body_len),
            reserved => Err(RecordError::NotZero { field: "reserved", got: reserved.into() }),
        }
    }

    /// Head and body of a call. Errors: TooMany.
    pub(super) fn write(record: &CallRecord) -> Result<(RecordHead, Vec<u8>), RecordError> {
        let values = || record.inputs.iter().chain(&record.outputs);
        let mut body: Vec<u8> = values().flat_map(|value| value.location.bits().to_le_bytes()).collect();
        let descriptors = descriptors(values().map(|value| &value.desc));
        let CallRecord { call, handle, eager_nodes, ref inputs, ref outputs } = *record;
        let mut head = RecordHead::new(inputs.len(), outputs.len(), descriptors.len())?;
        (head.call, head.handle, head.eager_nodes) = (call, handle, eager_nodes);
        body.extend(descriptors);
        Ok((head, body))
    }
}

/// What a record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Chosen by the client.
    pub call: CallId,
    /// The part to run.
    pub handle: PartHandle,
    /// Of this call's graph, which ran beside the part.
    pub eager_nodes: u32,
    /// Numbers that order the call on its device: [`Slot::index`](super::Slot::index); 0 for none.
    pub slot: u32,
    /// The call's in its slot.
    pub number: u32,
    n_inputs: u32,
    n_outputs: u32,
    pub(super) descriptors_len: u32,
}

impl RecordHead {
    /// Of a call with so many tensors and bytes of [`descriptors`], whose other fields are still 0. Errors: TooMany.
    pub fn new(n_inputs: usize, n_outputs: usize, descriptors_len: usize) -> Result<Self, RecordError> {
        Ok(Self {
            call: CallId::default(),
            handle: PartHandle::default(),
            eager_nodes: 0,
            slot: 0,
            number: 0,
            n_inputs: counted("n_inputs", n_inputs)? as u32,
            n_outputs: counted("n_outputs", n_outputs)? as u32,
            descriptors_len: descriptors_len as u32,
        })
    }

    pub(super) fn to_bytes(self) -> [u8; RECORD_HEAD_LEN] {
        let mut bytes = [0; RECORD_HEAD_LEN];
        bytes[..8].copy_from_slice(&self.call.0.to_le_bytes());
        let Self { handle, n_inputs, n_outputs, eager_nodes, descriptors_len, slot, number, .. } = self;
        let words = [handle.0, n_inputs, n_outputs, eager_nodes, descriptors_len, slot, number, 0];
        for (bytes, word) in bytes[8..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }
}

/// Dtypes and dims of tensors, as a record carries them behind its locations.
pub fn descriptors<'a>(tensors: impl IntoIterator<Item = &'a TensorDesc>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for TensorDesc { dtype, shape } in tensors {
        bytes.extend([dtype.onnx_code() as u8, shape.rank() as u8, 0, 0, 0, 0, 0, 0]);
        bytes.extend(shape.dims().iter().flat_map(|dim| dim.to_le_bytes()));
    }
    bytes
}

fn counted(field: &'static str, got: usize) -> Result<usize, RecordError> {
    let limit = CallRecord::MAX_VALUES;
    if got <= limit { Ok(got) } else { Err(RecordError::TooMany { field, got, limit }) }
}

fn read_descriptor(bytes: &mut &[u8]) -> Result<TensorDesc, RecordError> {
    let cut = |left: usize| RecordError::CutShort { left };
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| cut(bytes.len()))?;
    let [dtype, rank, padding @ ..] = *head;
    if padding != [0; 6] {
        return Err(RecordError::NotZero { field: "descriptor padding", got: u64::from_le_bytes(*head) >> 16 });
    }
    let (dims, rest) = rest.split_at_checked(8 * usize::from(rank)).ok_or_else(|| cut(rest.len()))?;
    let dims: Vec<i64> = dims.as_chunks().0.iter().map(|dim| i64::from_le_bytes(*dim)).collect();
    *bytes = rest;
    Ok(TensorDesc::new(DType::from_onnx(dtype.into())?, dims)?)
}

/// The little-endian number at a place inside a fixed-size header.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("callers read inside fixed-size headers"))
}
