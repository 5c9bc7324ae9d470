//! Exporter or kernel: a node's ONNX nodes in float64, on eager's inputs.

use prost::Message as _;

use super::answer::Layer;
use super::error::BlameError;
use super::probe::Prober;
use crate::base::ids::ValueName;
use crate::compare::{self, Explained, Noise};
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto};
use crate::onnx::{Piece, decode, double, mentions};
use crate::protocol::message::SessionSpec;
use crate::tensor::{DType, TensorBuf};

/// What float64 says of a value.
pub enum Said {
    /// The ONNX nodes, in float64, are as near to eager as they are to their kernels. With what is known of how both round.
    Rounding(Errors),
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
            Said::Rounding(found)
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
    /// By what each element adds up; None where that is not known.
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
    let terms = if adds_up(&piece.model) { self::exact(prober, piece, name, absolute)? } else { None };
    let reference = prober.eager(name)?;
    let measure =
        |explained| Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR);
    let of_all = measure(Explained::Kernel);
    let of_terms = terms.as_ref().and_then(|terms| measure(Explained::Terms(terms.shared())));
    Ok(of_all.map(|of_all| Errors { of_all, of_terms }))
}

/// Operators that add up products of what they are given, and others that only move it: of absolute values they give what
/// each element adds up.
const ADDING: [&str; 13] = [
    "Add",
    "Concat",
    "Conv",
    "CumSum",
    "Expand",
    "Gemm",
    "Identity",
    "MatMul",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Transpose",
    "Unsqueeze",
];

/// Whether all of a model adds up; numbers in it may be no factors.
fn adds_up(model: &ModelProto) -> bool {
    let is_whole = |tensor: &TensorProto| tensor.data_type() == DType::I64.onnx_code();
    let graph = model.graph.iter();
    let adds = |node: &NodeProto| match node.op_type() {
        "Constant" => node.attribute.iter().all(|attribute| attribute.t.as_ref().is_none_or(is_whole)),
        op => ADDING.contains(&op) && node.attribute.iter().all(|attribute| attribute.f() >= 0.),
    };
    graph.clone().flat_map(|graph| &graph.node).all(adds) && graph.flat_map(|graph| &graph.initializer).all(is_whole)
}

fn absolute(value: TensorBuf) -> TensorBuf {
    let view = value.view();
    let values = (view.dtype() == DType::F64).then(|| view.flat_f64(0..view.shape().n_elements())).flatten();
    match values {
        Some(values) => {
            let sizes: Vec<f64> = values.into_iter().map(f64::abs).collect();
            TensorBuf::from_f64(view.shape().clone(), &sizes)
        }
        None => value,
    }
}

/// The piece's output in float64, of eager's inputs as `of` has them. None where there is none to ask. Errors: Budget.
fn exact(
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
fn there<T>(what: &str, computed: Result<T, BlameError>) -> Result<Option<T>, BlameError> {
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
fn in_float64(
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
