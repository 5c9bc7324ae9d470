//! Exporter or kernel: a node's ONNX nodes in float64, on eager's inputs.

use prost::Message as _;

use super::answer::Layer;
use super::error::BlameError;
use super::probe::Prober;
use crate::compare::Opinion;
use crate::onnx::{Piece, double, mentions};
use crate::tensor::{DType, TensorBuf, TensorView};

/// What of a value is wrong. `candidate`: what its kernels gave. Errors: Budget.
pub fn of(prober: &Prober<'_>, piece: Piece, name: &str, candidate: &TensorBuf) -> Result<Layer, BlameError> {
    let reference = prober.eager(name)?;
    if rounds_on_the_way(prober, &piece, reference.desc.dtype)? {
        return Ok(Layer::Exporter);
    }
    let exact = match in_float64(prober, piece) {
        Err(BlameError::Budget) => return Err(BlameError::Budget),
        Err(error) => {
            tracing::debug!(node = name, %error, "no float64");
            return Ok(Layer::Unknown);
        }
        Ok(exact) => exact,
    };
    if !reference.desc.dtype.is_float() {
        let differs = |value: TensorView<'_>| {
            value.flat_f64(0..value.shape().n_elements()) != exact.view().flat_f64(0..value.shape().n_elements())
        };
        return Ok(match (differs(reference.view()), differs(candidate.view())) {
            (true, false) => Layer::Exporter,
            (false, true) => Layer::Kernel,
            _ => Layer::Unknown,
        });
    }
    let opinion = Opinion::measure(&reference.view(), &candidate.view(), &exact.view(), None);
    Ok(opinion.map_or(Layer::Unknown, |Opinion { reference_excess, candidate_excess, .. }| {
        if reference_excess > CLEARLY * candidate_excess.max(1.) {
            Layer::Exporter
        } else if candidate_excess > CLEARLY * reference_excess.max(1.) {
            Layer::Kernel
        } else {
            Layer::Unknown
        }
    }))
}

/// So many times as far from float64 as the other, or as rounding explains.
const CLEARLY: f64 = 2.;

/// Whether the nodes go through half precision that neither their inputs nor their value have.
fn rounds_on_the_way(prober: &Prober<'_>, piece: &Piece, dtype: DType) -> Result<bool, BlameError> {
    let mut known = vec![dtype];
    for name in &piece.inputs {
        known.push(prober.eager(name)?.desc.dtype);
    }
    let halves = [DType::F16, DType::BF16];
    Ok(!halves.iter().any(|half| known.contains(half)) && halves.iter().any(|&half| mentions(&piece.model, half)))
}

/// The piece's one output, computed in float64 from eager's inputs.
fn in_float64(prober: &Prober<'_>, piece: Piece) -> Result<TensorBuf, BlameError> {
    let model = double(&piece.model)?.encode_to_vec();
    let part = prober.case.part(model.into(), Vec::new(), prober.case.unoptimized());
    let session = crate::runtime::precision::build(prober.runtime(), &part)?;
    let mut wide = Vec::with_capacity(piece.inputs.len());
    for name in &piece.inputs {
        wide.push(widened(&prober.eager(name)?.view()));
    }
    let views: Vec<_> = wide.iter().map(TensorBuf::view).collect();
    let mut outputs = session.fetch(&crate::runtime::leased(&views)?)?.0;
    match outputs.len() {
        1 => Ok(outputs.remove(0)),
        got => Err(BlameError::Outputs { expected: 1, got }),
    }
}

/// Floating elements as float64; others as they are.
fn widened(tensor: &TensorView<'_>) -> TensorBuf {
    let values = tensor.dtype().is_float().then(|| tensor.flat_f64(0..tensor.shape().n_elements())).flatten();
    values.map_or_else(|| tensor.to_owned(), |values| TensorBuf::from_f64(tensor.shape().clone(), &values))
}
