//! Losses of classification.

use tch::{Kind, Tensor};

use super::normalization::wide;
use crate::runtime::torch::call::{Call, Table};
use crate::runtime::torch::failure::{Failure, fail};

pub(super) const TABLE: Table = &[
    ("", "NegativeLogLikelihoodLoss", |call| call.one(loss(call, call.tensor(0)?)?)),
    ("", "SoftmaxCrossEntropyLoss", |call| {
        let log = wide(call.tensor(0)?)?.f_log_softmax(1, None)?;
        Ok(vec![call.like(loss(call, &log)?)?, call.like(log)?])
    }),
];

/// Of logarithms [batch, classes, …] at targets [batch, …], by class weights in input 2.
fn loss(call: &Call<'_>, logs: &Tensor) -> Result<Tensor, Failure> {
    let targets = call.tensor(1)?.f_totype(Kind::Int64)?;
    let Some(&classes) = logs.size().get(1) else { return fail(format!("{:?} has no classes", logs.size())) };
    let counted = match call.maybe_int("ignore_index")? {
        Some(ignored) => targets.f_ne(ignored)?,
        None => targets.f_eq_tensor(&targets)?,
    };
    let within = targets.f_masked_fill(&counted.f_logical_not()?, 0)?;
    let safe = super::index::from_zero(&within, classes)?;
    let chosen = logs.f_gather(1, &safe.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?.f_neg()?;
    let kind = chosen.f_kind()?;
    let weights = match call.maybe_tensor(2) {
        Some(weights) => weights.f_totype(kind)?.f_index_select(0, &safe.f_reshape([-1])?)?.f_reshape(safe.size())?,
        None => chosen.f_ones_like()?,
    };
    let weights = weights.f_masked_fill(&counted.f_logical_not()?, 0.0)?;
    let losses = chosen.f_mul(&weights)?;
    Ok(match call.text("reduction", "mean")? {
        "none" => losses,
        "sum" => losses.f_sum(None)?,
        "mean" => losses.f_sum(None)?.f_div(&weights.f_sum(None)?)?,
        other => return fail(format!("attribute \"reduction\" is {other:?}: expected none, sum or mean")),
    })
}
