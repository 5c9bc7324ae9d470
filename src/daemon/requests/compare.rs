//! Tensors of the client's against each other.

use super::state::{Answer, Connected};
use crate::compare::{self, TensorVerdict, Tolerance};
use crate::daemon::verdicts::{self, tolerance};
use crate::protocol::control::{PairToCompare, Reply, ToleranceTerms};
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{DType, TensorRef};

/// A verdict a pair.
pub fn compare(at: &Connected<'_>, pairs: Vec<(String, PairToCompare)>, terms: Option<ToleranceTerms>) -> Answer {
    let judged = judge(at, pairs, terms.map(tolerance).as_ref())?;
    Ok(Reply::Comparison(verdicts::summaries(&judged)))
}

/// As [`compare()`], with all that is known of each. Errors: BadState when the client leaves meanwhile.
pub fn judge(
    at: &Connected<'_>,
    pairs: Vec<(String, PairToCompare)>,
    tolerance: Option<&Tolerance>,
) -> Result<Vec<TensorVerdict>, WireError> {
    let mut judged = Vec::with_capacity(pairs.len());
    for (name, pair) in pairs {
        at.client.is_there()?;
        judged.push(match pair {
            PairToCompare::NotCompared(reason) => TensorVerdict::not_compared(&name, reason),
            PairToCompare::Pair { reference, candidate, terms } => {
                check_terms(&name, &reference, terms.as_ref())?;
                let read: Vec<TensorRef> = [reference, candidate].into_iter().chain(terms).collect();
                let lease = at.client.state().segments.lease(&read, &[])?;
                let tensors = lease.inputs();
                let verdict = compare::judge(&name, tensors[0], tensors[1], tolerance);
                match tensors.get(2) {
                    Some(&terms) => compare::judge_sums(verdict, tensors[0], tensors[1], terms),
                    None => verdict,
                }
            }
        });
    }
    Ok(judged)
}

/// Σ|terms| of a value are float64 and of its shape. Errors: BadTensor.
pub fn check_terms(name: &str, of: &TensorRef, terms: Option<&TensorRef>) -> Result<(), WireError> {
    match terms {
        Some(terms) if terms.desc.dtype != DType::F64 || terms.desc.shape != of.desc.shape => {
            let why = format!("terms of {name:?}: expected float64{}, got {}", of.desc.shape, terms.desc);
            Err(WireError::client(ErrorCode::BadTensor, why))
        }
        _ => Ok(()),
    }
}
