//! A piece of a part's model, run once.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message as _;

use super::error::NodesError;
use crate::base::ids::{CallId, PartHandle, ValueName};
use crate::link::message::RanOnce;
use crate::onnx::{OnnxError, Piece};
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{CallRecord, TensorDesc, TensorRef};

/// A piece of a part's model to run once.
#[derive(Clone, Debug)]
pub struct SubModel {
    /// The node, or the first and the last of several.
    pub node: String,
    /// ModelProto.
    pub model: Bytes,
    /// The named values in it.
    pub named_values: Vec<ValueName>,
    /// Of the model, in its order.
    pub inputs: Vec<ValueName>,
    /// The tensors.
    pub record: CallRecord,
}

/// Values that stand ready for a piece to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready<'a> {
    tensors: HashMap<&'a str, &'a TensorRef>,
    /// What these are, in the form that cutting asks for.
    pub descs: HashMap<&'a str, &'a TensorDesc>,
}

impl<'a> Ready<'a> {
    pub fn insert(&mut self, name: &'a str, tensor: &'a TensorRef) {
        self.tensors.insert(name, tensor);
        self.descs.insert(name, &tensor.desc);
    }
}

/// What came of a piece.
#[derive(Debug)]
pub(super) enum Ran {
    Done(RanOnce),
    /// Why it could not be cut, or did not run.
    Failed(String),
}

/// Runs pieces of one part.
pub(super) struct Runner<'r> {
    pub handle: PartHandle,
    pub run: &'r mut dyn FnMut(&SubModel) -> Result<RanOnce, WireError>,
}

impl Runner<'_> {
    /// A piece that was cut out of what stands `ready`. What fails is the piece's alone, but for a lost executor.
    /// Errors: [`NodesError::Lost`].
    pub fn run(
        &mut self,
        piece: Result<Piece, OnnxError>,
        ready: &Ready<'_>,
        outputs: Vec<TensorRef>,
    ) -> Result<Ran, NodesError> {
        let model = match piece {
            Ok(piece) => self.sub_model(piece, ready, outputs),
            Err(error) => return Ok(Ran::Failed(error.to_string())),
        };
        match (self.run)(&model) {
            Ok(ran) => Ok(Ran::Done(ran)),
            Err(error) if error.code == ErrorCode::ExecutorLost => Err(NodesError::Lost(error)),
            Err(error) => Ok(Ran::Failed(error.message)),
        }
    }

    fn sub_model(&self, piece: Piece, ready: &Ready<'_>, outputs: Vec<TensorRef>) -> SubModel {
        let Piece { model, inputs: names, outputs: results, named_values } = piece;
        let node = match results.as_slice() {
            [first, .., last] => format!("{first} … {last}"),
            few => few.concat(),
        };
        let inputs = names.iter().map(|name| ready.tensors[name.as_str()].clone()).collect();
        let record = CallRecord { call: CallId(0), handle: self.handle, eager_nodes: 0, inputs, outputs };
        SubModel { node, model: model.encode_to_vec().into(), named_values, inputs: names, record }
    }
}
