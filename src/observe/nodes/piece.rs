//! A piece of a part's model, run once.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message as _;

use crate::base::ids::ValueName;
use crate::link::message::RanOnce;
use crate::onnx::{self, Canonical};
use crate::tensor::{CallRecord, TensorDesc, TensorRef};

/// A piece of a part's model to run once.
#[derive(Clone, Debug)]
pub struct SubModel {
    /// The node, or the first and the last of several.
    pub node: String,
    /// ModelProto, in which numbers stand for names, so that those of equal pieces are equal, or with the part's own names.
    pub model: Bytes,
    /// The named values in it, as they are there.
    pub named_values: Vec<ValueName>,
    /// Of the model, in its order, as the part names them.
    pub inputs: Vec<ValueName>,
    /// The tensors.
    pub record: CallRecord,
    /// What the numbers stand for; None: there are none.
    pub(super) names: Option<Vec<String>>,
}

impl SubModel {
    /// The model and its named values with the names that they have in the part.
    pub fn named(&self) -> (Bytes, Vec<ValueName>) {
        let Some(names) = &self.names else { return (self.model.clone(), self.named_values.clone()) };
        let model = onnx::decode(self.model.clone());
        let model =
            model.map_or_else(|_| self.model.clone(), |model| Canonical::named(model, names).encode_to_vec().into());
        (model, self.named_values.iter().map(|name| Canonical::named_text(name, names)).collect())
    }

    /// A text of the runtime's, with the names that values and nodes have in the part.
    pub(super) fn named_text(&self, text: &str) -> String {
        self.names.as_ref().map_or_else(|| text.to_owned(), |names| Canonical::named_text(text, names))
    }
}

/// Values that stand ready for a piece to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready<'a> {
    pub tensors: HashMap<&'a str, &'a TensorRef>,
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
#[derive(Clone, Debug)]
pub(super) enum Ran {
    Done(RanOnce),
    /// Why it could not be cut, or did not run.
    Failed(String),
}
