//! Exporter or kernel: a node's ONNX nodes in float64, on eager's inputs.

use super::answer::Layer;
use super::error::BlameError;
use super::float64::exact;
use super::probe::Prober;
use super::terms::terms;
use crate::compare::{self, Explained, Noise};
use crate::onnx::{Piece, mentions};
use crate::tensor::{DType, TensorBuf};

/// What float64 says of a value.
pub enum Said {
    /// The ONNX nodes, in float64, are as near to eager as they are to their kernels. With what is known of how both round.
    Rounding(Box<Errors>),
    /// Which of the two is far from it.
    Wrong(Layer),
    /// There is no float64 to ask.
    Nothing,
}

/// What is said of a value that differs from eager's. `candidate`: what its kernels gave. Errors: Budget, Onnx.
pub fn said(prober: &Prober<'_>, piece: &Piece, name: &str, candidate: &TensorBuf) -> Result<Said, BlameError> {
    if rounds_on_the_way(prober, piece, prober.eager(name)?.desc.dtype)? {
        return Ok(Said::Wrong(Layer::Exporter));
    }
    Ok(errors(prober, piece, name, candidate)?.map_or(Said::Nothing, Said::from))
}

/// By the largest element.
impl From<Errors> for Said {
    fn from(found: Errors) -> Self {
        let compare::Errors { reference_excess: reference, candidate_excess: candidate, .. } = found.of_all.errors;
        if reference > CLEARLY * candidate.max(1.) {
            Said::Wrong(Layer::Exporter)
        } else if candidate > CLEARLY * reference.max(1.) {
            Said::Wrong(Layer::Kernel)
        } else if reference.is_finite() && candidate.is_finite() {
            Said::Rounding(Box::new(found))
        } else {
            Said::Nothing
        }
    }
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

/// How far eager and a candidate are from float64, as the comparison of nodes measures it.
#[derive(Clone, Copy)]
pub struct Errors {
    /// By the largest element.
    pub of_all: Noise,
    /// By what each element adds up, or a bound of it; None where that is not known.
    pub of_terms: Option<Noise>,
}

/// Against `piece`, which is not doubted. None where there is no float64 to ask. Errors: Budget, Onnx.
pub fn errors(
    prober: &Prober<'_>,
    piece: &Piece,
    name: &str,
    candidate: &TensorBuf,
) -> Result<Option<Errors>, BlameError> {
    let Some(exact) = exact(prober, piece, name, |value| value)? else { return Ok(None) };
    let terms = terms(prober, piece, name, &exact)?;
    let reference = prober.eager(name)?;
    let measure =
        |explained| Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR);
    let of_all = measure(Explained::Kernel);
    let of_terms = terms.as_ref().and_then(|terms| measure(Explained::Terms(terms.shared())));
    Ok(of_all.map(|of_all| Errors { of_all, of_terms }))
}
