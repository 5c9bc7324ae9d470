//! The record of a call as it lies in a lane: docs/protocol.md. Bytes only; what they name is not looked at here.

use super::ShmError;
use crate::base::ids::{CallId, PartHandle};
use crate::tensor::{CallRecord, DType, TensorDesc, TensorRef};

/// Bytes before the locations.
pub(super) const RECORD_HEAD_LEN: usize = 32;

/// A call's record, copied out of shared memory but not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// As the client wrote it.
    pub call: CallId,
    /// As the client wrote it.
    pub handle: PartHandle,
    /// As the client wrote it.
    pub eager_nodes: u32,
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

    /// Errors: BadRecord, DType, Shape.
    pub fn parse(&self) -> Result<CallRecord, ShmError> {
        let n_values = self.n_inputs + self.n_outputs;
        let (locations, mut descriptors) = self.body.split_at(8 * n_values);
        let mut values = Vec::with_capacity(n_values);
        for location in locations.as_chunks::<8>().0 {
            let (segment, offset) = TensorRef::split_location(u64::from_le_bytes(*location));
            values.push(TensorRef { segment, offset, desc: read_descriptor(&mut descriptors)? });
        }
        if !descriptors.is_empty() {
            let expected = format!("{} bytes fewer for {n_values} descriptors", descriptors.len());
            return Err(bad_record("descriptors_len", (self.body.len() - 8 * n_values) as u64, expected));
        }
        let outputs = values.split_off(self.n_inputs);
        let Self { call, handle, eager_nodes, .. } = *self;
        Ok(CallRecord { call, handle, eager_nodes, inputs: values, outputs })
    }

    /// Takes over the fixed part; how many bytes of body follow it. Errors: BadRecord.
    pub(super) fn set_head(&mut self, head: &[u8; RECORD_HEAD_LEN], capacity: usize) -> Result<usize, ShmError> {
        let count = |field: &'static str, at: usize| match u32_at(head, at) as usize {
            count if count <= CallRecord::MAX_VALUES => Ok(count),
            count => Err(bad_record(field, count as u64, format!("at most {}", CallRecord::MAX_VALUES))),
        };
        self.call = CallId(u64::from_le_bytes(*head.first_chunk().expect("the head has 32 bytes")));
        self.handle = PartHandle(u32_at(head, 8));
        self.n_inputs = count("n_inputs", 12)?;
        self.n_outputs = count("n_outputs", 16)?;
        self.eager_nodes = u32_at(head, 20);
        let descriptors_len = u32_at(head, 24);
        let body_len = 8 * (self.n_inputs + self.n_outputs) + descriptors_len as usize;
        if body_len > capacity {
            let expected = format!("at most {capacity} bytes together with the locations; take longer lanes");
            return Err(bad_record("descriptors_len", descriptors_len.into(), expected));
        }
        match u32_at(head, 28) {
            0 => Ok(body_len),
            reserved => Err(bad_record("reserved", reserved.into(), "0".to_owned())),
        }
    }

    /// Head and body of a call. Errors: BadRecord when it has too many tensors.
    pub(super) fn write(record: &CallRecord) -> Result<([u8; RECORD_HEAD_LEN], Vec<u8>), ShmError> {
        for (field, values) in [("n_inputs", &record.inputs), ("n_outputs", &record.outputs)] {
            if values.len() > CallRecord::MAX_VALUES {
                let expected = format!("at most {}", CallRecord::MAX_VALUES);
                return Err(bad_record(field, values.len() as u64, expected));
            }
        }
        let values = || record.inputs.iter().chain(&record.outputs);
        let mut body: Vec<u8> = values().flat_map(|value| value.location().to_le_bytes()).collect();
        let descriptors_at = body.len();
        for TensorDesc { dtype, shape } in values().map(|value| &value.desc) {
            body.extend([dtype.onnx_code() as u8, shape.rank() as u8, 0, 0, 0, 0, 0, 0]);
            body.extend(shape.dims().iter().flat_map(|dim| dim.to_le_bytes()));
        }
        let mut head = [0; RECORD_HEAD_LEN];
        head[..8].copy_from_slice(&record.call.0.to_le_bytes());
        let counts = [record.inputs.len() as u32, record.outputs.len() as u32];
        let descriptors_len = (body.len() - descriptors_at) as u32;
        let words = [record.handle.0, counts[0], counts[1], record.eager_nodes, descriptors_len, 0];
        for (bytes, word) in head[8..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok((head, body))
    }
}

fn read_descriptor(bytes: &mut &[u8]) -> Result<TensorDesc, ShmError> {
    let cut = |left: usize| bad_record("descriptors_len", left as u64, "bytes for every descriptor".to_owned());
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| cut(bytes.len()))?;
    let [dtype, rank, padding @ ..] = *head;
    if padding != [0; 6] {
        let got = u64::from_le_bytes(*head) >> 16;
        return Err(bad_record("descriptor padding", got, "0".to_owned()));
    }
    let (dims, rest) = rest.split_at_checked(8 * usize::from(rank)).ok_or_else(|| cut(rest.len()))?;
    let dims: Vec<i64> = dims.as_chunks().0.iter().map(|dim| i64::from_le_bytes(*dim)).collect();
    *bytes = rest;
    Ok(TensorDesc::new(DType::from_onnx(dtype.into())?, dims)?)
}

pub(super) fn bad_record(field: &'static str, got: u64, expected: String) -> ShmError {
    ShmError::BadRecord { field, got, expected }
}

/// The little-endian number at a place inside a fixed-size header.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("callers read inside fixed-size headers"))
}
