//! Tensors of the client's against each other.

use super::state::{Answer, Connected};
use crate::compare::{self, Explained, Noise, TensorVerdict, Tolerance};
use crate::daemon::verdicts::{self, NOISE, tolerance};
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
    let mut judged = Vec::with_capacity(pairs.len());
    for (name, pair) in pairs {
        at.client.is_there()?;
        judged.push(match pair {
            PairToCompare::NotCompared(reason) => TensorVerdict::not_compared(&name, reason),
            PairToCompare::Pair { reference, candidate, terms, exact } => {
                check_float64(&name, "terms", &reference, terms.as_ref())?;
                check_float64(&name, "exact", &reference, exact.as_ref())?;
                let (sum, known) = (terms.is_some(), exact.is_some());
                let read: Vec<TensorRef> = [reference, candidate].into_iter().chain(terms).chain(exact).collect();
                let lease = at.client.state().segments.lease(&read, &[])?;
                let tensors = lease.inputs();
                let (reference, candidate) = (tensors[0], tensors[1]);
                let mut verdict = compare::judge(&name, reference, candidate, tolerance);
                if sum {
                    verdict = compare::judge_sums(verdict, reference, candidate, tensors[2]);
                }
                if let (true, Some(&exact)) = (known, tensors.last()) {
                    verdict.noise = Noise::measure(reference, candidate, exact, Explained::Drift { step }, factor);
                }
                verdict
            }
        });
    }
    Ok(judged)
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
