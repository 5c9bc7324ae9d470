//! Tensors of the client's against each other.

use super::on_device::{OnDevice, lie_on_device};
use super::state::{Answer, Connected};
use crate::compare::{self, Compared, Pair, Policy, Spread, TensorVerdict, Verdict, Wanted};
use crate::daemon::verdicts;
use crate::dump::Role;
use crate::observe::on_device::{self, Reach as _};
use crate::protocol::control::{Excuse, NodesOf, PairToCompare, Reply, SpreadTerms};
use crate::protocol::message::{ErrorCode, WireError};
use crate::shm::Lease;
use crate::tensor::{DType, TensorRef};

/// A verdict a pair. `settles`: the call whose outputs they are.
pub fn compare(
    at: &Connected<'_>,
    pairs: &[(String, PairToCompare)],
    policy: Policy,
    settles: Option<NodesOf>,
) -> Answer {
    let judged = judge(at, pairs, policy)?;
    let reply = verdicts::summaries(&judged);
    if let Some(of) = settles {
        settle(at, of, pairs, judged, policy);
    }
    Ok(Reply::Comparison(reply))
}

/// Notes what more is known of a call's outputs, and writes it to the dump that has the call. Of a call that is no longer
/// known, nothing.
fn settle(
    at: &Connected<'_>,
    of: NodesOf,
    pairs: &[(String, PairToCompare)],
    judged: Vec<TensorVerdict>,
    policy: Policy,
) {
    let mut state = at.client.state();
    let Some(call) = state.unsettled.get_mut(&of) else { return };
    let mut new = Vec::new();
    for (verdict, (name, pair)) in judged.into_iter().zip(pairs) {
        let Some(output) = call.verdicts.iter().position(|other| other.name == *name) else { continue };
        call.verdicts[output] = verdict;
        let PairToCompare::Pair { terms, exact, .. } = pair else { continue };
        for (role, tensor) in [(Role::Float64, exact), (Role::Terms, terms)] {
            if let Some(tensor) = tensor
                && call.known.insert((role, output))
            {
                new.push((role, output, name, tensor));
            }
        }
    }
    let call = call.clone();
    drop(state);
    at.daemon.last_steps.settle(at.client.id, (&call.graph, of.part, of.step), compare::summary(&call.verdicts));
    let Some((run, step)) = call.into else { return };
    for (role, output, name, tensor) in new {
        let hold = || at.client.memory.hold("what is known of outputs, until it is written", tensor.desc.len_bytes());
        // The verdicts are written all the same; without it they cannot be judged again.
        match hold().and_then(|held| Ok((held, on_the_host(at, tensor)?))) {
            Ok((held, lease)) => {
                run.known(&step, role, output, (name, lease.inputs()[0]));
                run.keep_until_written(held);
            }
            Err(error) => tracing::warn!(output = name, %error, "dump: what is known of an output is not in it"),
        }
    }
    run.comparison(&step, &call.verdicts, policy);
    run.finish(&step);
}

/// A tensor where the daemon reads it.
fn on_the_host(at: &Connected<'_>, tensor: &TensorRef) -> Result<Lease, WireError> {
    if lie_on_device(at, [tensor].into_iter()) {
        return OnDevice::new(&at.leased()?, &[]).copied(std::slice::from_ref(tensor));
    }
    Ok(at.client.state().segments.lease(std::slice::from_ref(tensor), &[])?)
}

/// As [`compare()`], with all that is known of each. Errors: BadState when the client leaves meanwhile.
pub fn judge(
    at: &Connected<'_>,
    pairs: &[(String, PairToCompare)],
    policy: Policy,
) -> Result<Vec<TensorVerdict>, WireError> {
    let mut pairs_of = Vec::new();
    for (name, pair) in pairs {
        let PairToCompare::Pair { reference, candidate, terms, exact, excuse } = pair else { continue };
        check_float64(name, "terms", reference, terms.as_ref())?;
        check_float64(name, "exact", reference, exact.as_ref())?;
        pairs_of.push(Pair {
            terms: terms.as_ref(),
            exact: exact.as_ref().map(|value| policy.drifted(value, spread(excuse.as_ref()))),
            ..Pair::new(name, reference, candidate, Some(policy.tolerance(reference.desc.dtype)))
        });
    }
    let mut compared = compared(at, pairs_of)?.into_iter();
    let judged = pairs.iter().filter_map(|(name, pair)| match pair {
        PairToCompare::NotCompared(reason) => Some(TensorVerdict::not_compared(name, reason)),
        PairToCompare::Pair { excuse, .. } => {
            compared.next().map(|compared| excused(compared.verdict, excuse.as_ref()))
        }
    });
    Ok(judged.collect())
}

fn spread(excuse: Option<&Excuse>) -> Option<Spread> {
    let Some(&Excuse::Rounding(SpreadTerms { largest, rms })) = excuse else { return None };
    Some(Spread { largest, rms })
}

/// A mismatch that is none.
fn excused(verdict: TensorVerdict, excuse: Option<&Excuse>) -> TensorVerdict {
    // No choice between numbers makes what is none.
    if verdict.metrics.as_ref().is_some_and(|metrics| metrics.nan_disagreements + metrics.inf_disagreements > 0) {
        return verdict;
    }
    let kind = match (&verdict.verdict, excuse) {
        (Verdict::Mismatch, Some(Excuse::Tie(why))) => Verdict::Tie(why.clone()),
        (Verdict::Mismatch, Some(Excuse::OpenOrder(why))) => Verdict::OpenOrder(why.clone()),
        _ => return verdict,
    };
    TensorVerdict { verdict: kind, ..verdict }
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
        let is_there = || at.client.is_there().is_ok();
        let pair = Pair { wanted: Wanted::while_so(&is_there), ..pair };
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
