//! Exporter or kernel: a node's ONNX nodes in float64, on eager's inputs.

use prost::Message as _;

use super::answer::Layer;
use super::error::BlameError;
use super::probe::Prober;
use crate::compare::{Explained, Noise, NoiseKind};
use crate::onnx::{Piece, double, mentions};
use crate::protocol::message::SessionSpec;
use crate::tensor::{DType, TensorBuf};

/// What float64 says of a value.
pub enum Said {
    /// The ONNX nodes, in float64, are as near to eager as they are to their kernels. With what is known of how both round.
    Rounding(NoiseKind),
    /// Which of the two is far from it.
    Wrong(Layer),
    /// There is no float64 to ask.
    Nothing,
}

/// What is said of a value that differs from eager's. `candidate`: what its kernels gave. Errors: Budget.
pub fn said(prober: &Prober<'_>, piece: Piece, name: &str, candidate: &TensorBuf) -> Result<Said, BlameError> {
    let reference = prober.eager(name)?;
    if rounds_on_the_way(prober, &piece, reference.desc.dtype)? {
        return Ok(Said::Wrong(Layer::Exporter));
    }
    // What is float64 already, or no float, would be asked of the very kernels that are accused.
    let narrow = [DType::F32, DType::F16, DType::BF16];
    if !reference.desc.dtype.is_float() || !narrow.iter().any(|&dtype| mentions(&piece.model, dtype)) {
        return Ok(Said::Nothing);
    }
    let exact = match in_float64(prober, piece) {
        Err(BlameError::Budget) => return Err(BlameError::Budget),
        Err(error) => {
            tracing::debug!(node = name, %error, "no float64");
            return Ok(Said::Nothing);
        }
        Ok(exact) => exact,
    };
    let errors = Noise::measure(&reference.view(), &candidate.view(), &exact.view(), Explained::Kernel, Noise::FACTOR);
    Ok(errors.map_or(Said::Nothing, |Noise { errors, kind, .. }| {
        let (reference, candidate) = (errors.reference_excess, errors.candidate_excess);
        if reference > CLEARLY * candidate.max(1.) {
            Said::Wrong(Layer::Exporter)
        } else if candidate > CLEARLY * reference.max(1.) {
            Said::Wrong(Layer::Kernel)
        } else if reference.is_finite() && candidate.is_finite() {
            Said::Rounding(kind)
        } else {
            Said::Nothing
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
    // Rules of runtimes are of the part as it ran: what both are held against has none.
    let spec = SessionSpec { runtimes: Vec::new(), ..prober.case.unoptimized() };
    let part = prober.case.part(model.into(), Vec::new(), spec);
    let session = crate::runtime::session(prober.runtime(), &part)?;
    let mut wide = Vec::with_capacity(piece.inputs.len());
    for name in &piece.inputs {
        wide.push(prober.eager(name)?.view().in_float64());
    }
    let views: Vec<_> = wide.iter().map(TensorBuf::view).collect();
    let mut outputs = session.fetch(&crate::runtime::leased(&views)?)?.0;
    match outputs.len() {
        1 => Ok(outputs.remove(0)),
        got => Err(BlameError::Outputs { expected: 1, got }),
    }
}
