//! Tensors of the client's against each other.

use super::on_device::{OnDevice, lie_on_device};
use super::state::{Answer, Connected};
use crate::compare::{Compared, Exact, Explained, Pair, TensorVerdict, Tolerance};
use crate::daemon::verdicts::{self, NOISE, tolerance};
use crate::observe::on_device;
use crate::protocol::control::{NoiseTerms, PairToCompare, Reply, ToleranceTerms};
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{DType, TensorRef};

/// A verdict a pair. `noise`: of those whose float64 is there.
pub fn compare(
    at: &Connected<'_>,
    pairs: Vec<(String, PairToCompare)>,
    terms: Option<ToleranceTerms>,
    noise: Option<NoiseTerms>,
) -> Answer {
    let judged = judge(at, pairs, terms.map(tolerance).as_ref(), noise)?;
    Ok(Reply::Comparison(verdicts::summaries(&judged)))
}

/// As [`compare()`], with all that is known of each. Errors: BadState when the client leaves meanwhile.
pub fn judge(
    at: &Connected<'_>,
    pairs: Vec<(String, PairToCompare)>,
    tolerance: Option<&Tolerance>,
    noise: Option<NoiseTerms>,
) -> Result<Vec<TensorVerdict>, WireError> {
    let NoiseTerms { factor, step } = noise.unwrap_or(NOISE);
    let mut pairs_of = Vec::new();
    for (name, pair) in &pairs {
        let PairToCompare::Pair { reference, candidate, terms, exact } = pair else { continue };
        check_float64(name, "terms", reference, terms.as_ref())?;
        check_float64(name, "exact", reference, exact.as_ref())?;
        let explained = Explained::Drift { step };
        pairs_of.push(Pair {
            terms: terms.as_ref(),
            exact: exact.as_ref().map(|value| Exact { value, explained, factor }),
            ..Pair::new(name, reference, candidate, tolerance.copied())
        });
    }
    let mut compared = compared(at, pairs_of)?.into_iter();
    let judged = pairs.iter().filter_map(|(name, pair)| match pair {
        PairToCompare::NotCompared(reason) => Some(TensorVerdict::not_compared(name, reason)),
        PairToCompare::Pair { .. } => compared.next().map(|compared| compared.verdict),
    });
    Ok(judged.collect())
}

/// What comes of pairs, wherever their tensors lie. Errors: BadState where they lie on a device and there is no executor, or
/// when the client leaves meanwhile; those of a lease.
pub fn compared(at: &Connected<'_>, pairs: Vec<Pair<'_, &TensorRef>>) -> Result<Vec<Compared>, WireError> {
    if lie_on_device(at, pairs.iter().flat_map(Pair::tensors).copied()) {
        let leased = at.leased()?;
        return on_device::compared(&mut OnDevice::new(&leased, &[]), pairs);
    }
    let on_host = |pair: Pair<'_, &TensorRef>| {
        at.client.is_there()?;
        let read: Vec<TensorRef> = pair.tensors().map(|&tensor| tensor.clone()).collect();
        let lease = at.client.state().segments.lease(&read, &[])?;
        Ok(on_device::on_host(pair, &lease))
    };
    pairs.into_iter().map(on_host).collect()
}

/// What is known of a value in float64 is float64 and of its shape. Errors: BadTensor.
pub fn check_float64(
    name: &str,
    what: &'static str,
    of: &TensorRef,
    tensor: Option<&TensorRef>,
) -> Result<(), WireError> {
    match tensor {
        Some(tensor) if tensor.desc.dtype != DType::F64 || tensor.desc.shape != of.desc.shape => {
            let why = format!("{what} of {name:?}: expected float64{}, got {}", of.desc.shape, tensor.desc);
            Err(WireError::client(ErrorCode::BadTensor, why))
        }
        _ => Ok(()),
    }
}
