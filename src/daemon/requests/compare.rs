//! Tensors of the client's against each other.

use super::state::{Answer, Connected};
use crate::compare::{self, TensorVerdict, Tolerance};
use crate::daemon::verdicts::{self, tolerance};
use crate::protocol::control::{PairToCompare, Reply, ToleranceTerms};
use crate::protocol::message::WireError;

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
            PairToCompare::Pair { reference, candidate } => {
                let lease = at.client.state().segments.lease(&[reference, candidate], &[])?;
                let tensors = lease.inputs();
                compare::judge(&name, tensors[0], tensors[1], tolerance)
            }
        });
    }
    Ok(judged)
}
