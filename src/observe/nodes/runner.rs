//! Pieces of a part's model on their way to the executor.

use std::sync::Arc;

use prost::Message as _;

use super::error::NodesError;
use super::piece::{Ran, Ready, SubModel};
use super::reach::Reach;
use crate::base::ids::{CallId, PartHandle, ValueName};
use crate::onnx::{Canonical, OnnxError, Piece};
use crate::tensor::{CallRecord, TensorRef};

/// Pieces that are run as one, and what each gives.
pub(super) struct Together<'a> {
    pub pieces: Vec<Result<Piece, OnnxError>>,
    pub ready: &'a Ready<'a>,
    /// Of all, in order.
    pub outputs: Vec<TensorRef>,
}

/// Runs pieces of one part.
pub(super) struct Runner<'r> {
    pub handle: PartHandle,
    /// Rules look for names in the pieces, which stay as they are.
    pub has_rules: bool,
    pub reach: &'r mut dyn Reach,
}

impl Runner<'_> {
    /// What came of each. What fails is its own alone, but for a lost executor. Errors: [`NodesError::Lost`].
    pub fn run(&mut self, all: Vec<Together<'_>>) -> Result<Vec<Ran>, NodesError> {
        let mut models = Vec::with_capacity(all.len());
        let uncut: Vec<Option<String>> = (all.into_iter())
            .map(|together| match self.sub_model(together) {
                Ok(model) => {
                    models.push(model);
                    None
                }
                Err(error) => Some(error.to_string()),
            })
            .collect();
        let models: Arc<[SubModel]> = models.into();
        let outcomes = if models.is_empty() { Vec::new() } else { self.reach.run(Arc::clone(&models))? };
        let mut outcomes = outcomes.into_iter().zip(models.iter());
        let ran = |uncut: Option<String>| match uncut {
            Some(why) => Ran::Failed(why),
            None => match outcomes.next() {
                Some((Ok(ran), _)) => Ran::Done(ran),
                Some((Err(error), model)) => Ran::Failed(model.named_text(&error.message)),
                None => Ran::Failed("the executor did not say what came of it".to_owned()),
            },
        };
        Ok(uncut.into_iter().map(ran).collect())
    }

    fn sub_model(&self, together: Together<'_>) -> Result<SubModel, OnnxError> {
        let Together { pieces, ready, outputs } = together;
        let pieces = pieces.into_iter().collect::<Result<Vec<_>, _>>()?;
        let results: Vec<&ValueName> = pieces.iter().flat_map(|piece| &piece.outputs).collect();
        let node = match results.as_slice() {
            [first, .., last] => format!("{first} … {last}"),
            few => few.iter().copied().cloned().collect(),
        };
        let (model, inputs, named_values, names) = match <[Piece; 1]>::try_from(pieces) {
            Ok([Piece { model, inputs, named_values, .. }]) if self.has_rules => (model, inputs, named_values, None),
            given => {
                let pieces = given.map_or_else(|pieces| pieces, Vec::from);
                let Canonical { model, names, inputs, named_values } = Canonical::of(pieces);
                (model, inputs, named_values, Some(names))
            }
        };
        let tensors = inputs.iter().map(|name| ready.tensors[name.as_str()].clone()).collect();
        let record = CallRecord { call: CallId(0), handle: self.handle, eager_nodes: 0, inputs: tensors, outputs };
        Ok(SubModel { node, model: model.encode_to_vec().into(), named_values, inputs, record, names })
    }
}
