//! Models computed in float64, on eager's inputs.

use prost::Message as _;

use super::error::BlameError;
use super::probe::Prober;
use crate::base::ids::ValueName;
use crate::onnx::proto::ModelProto;
use crate::onnx::{Piece, decode, double, mentions};
use crate::protocol::message::SessionSpec;
use crate::tensor::{DType, TensorBuf};

/// The piece's output in float64, of eager's inputs as `of` has them. None where there is none to ask. Errors: Budget.
pub fn exact(
    prober: &Prober<'_>,
    piece: &Piece,
    name: &str,
    of: fn(TensorBuf) -> TensorBuf,
) -> Result<Option<TensorBuf>, BlameError> {
    // What is float64 already, or no float, would be asked of the very kernels that are accused.
    let narrow = [DType::F32, DType::F16, DType::BF16];
    let is_float = prober.eager(name)?.desc.dtype.is_float();
    if !is_float || !narrow.iter().any(|&dtype| mentions(&piece.model, dtype)) {
        return Ok(None);
    }
    let outputs = there(name, in_float64(prober, &piece.model, &piece.inputs, of))?;
    Ok(outputs.and_then(|mut outputs| outputs.pop()))
}

/// What the part gives in float64, of eager's inputs, in its order. None where there is none to ask. Errors: Budget.
pub fn outputs_in_float64(prober: &Prober<'_>) -> Result<Option<Vec<TensorBuf>>, BlameError> {
    let case = prober.case;
    let inputs: Vec<ValueName> = case.feeds.iter().map(|feed| feed.name.clone()).collect();
    let outputs = decode(case.model.clone()).map_err(BlameError::from);
    there("the part", outputs.and_then(|model| in_float64(prober, &model, &inputs, |value| value)))
}

/// None of an error, but for Budget.
pub fn there<T>(what: &str, computed: Result<T, BlameError>) -> Result<Option<T>, BlameError> {
    match computed {
        Err(BlameError::Budget) => Err(BlameError::Budget),
        Err(error) => {
            tracing::debug!(what, %error, "no float64");
            Ok(None)
        }
        Ok(exact) => Ok(Some(exact)),
    }
}

/// A model's outputs, computed in float64.
pub fn in_float64(
    prober: &Prober<'_>,
    model: &ModelProto,
    inputs: &[ValueName],
    of: fn(TensorBuf) -> TensorBuf,
) -> Result<Vec<TensorBuf>, BlameError> {
    let model = double(model)?.encode_to_vec();
    // Rules of runtimes are of the part as it ran: what both are held against has none.
    let spec = SessionSpec { runtimes: Vec::new(), ..prober.case.unoptimized() };
    let part = prober.case.part(model.into(), Vec::new(), spec);
    let session = crate::runtime::session(prober.runtime(), &part)?;
    let mut wide = Vec::with_capacity(inputs.len());
    for name in inputs {
        wide.push(of(prober.eager(name)?.view().in_float64()));
    }
    let views: Vec<_> = wide.iter().map(TensorBuf::view).collect();
    Ok(session.fetch(&crate::runtime::leased(&views)?)?.0)
}
