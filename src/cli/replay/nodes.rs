//! Values inside a model.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;

use crate::cli::exit::Failure;
use crate::cli::nearest;
use crate::cli::rerun::{Model, Runtime, Target};
use crate::cli::statistics::{Statistics, statistics};
use crate::cli::table::{Give, roomy};
use crate::cli::verdicts::said;
use crate::compare::{TensorVerdict, Verdict, distance_text, signature, significant};
use crate::dump::Judging;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::{OnnxError, expose_intermediates};
use crate::protocol::message::Optimization;
use crate::tensor::{TensorBuf, TensorView};

/// Values fetched by one session: all of a large model at once would not fit into memory.
const BATCH: usize = 64;

/// One value.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    name: String,
    fx: String,
    op: String,
    onnx_op: String,
    dtype: String,
    dims: Vec<i64>,
    statistics: Option<Statistics>,
    signature: String,
    /// The value in the optimized model (candidate) against this one (reference).
    optimized: TensorVerdict,
}

/// The values that were asked for, as they are when nothing is optimized, and what optimizing changes in them.
/// Errors: an unknown name, a run that fails.
pub(super) fn look(
    runtime: &Runtime,
    target: &Target,
    model: &Model<'_>,
    feeds: &[TensorView<'_>],
    asked: &[String],
) -> Result<Vec<Facts>, Failure> {
    let (provenance, judging) = (target.provenance()?, target.judging()?);
    let names = resolve(graph(model.proto)?, &provenance, asked)?;
    let optimized = runtime.optimized(model);
    let mut facts = Vec::new();
    for batch in names.chunks(BATCH) {
        let values = fetch(runtime, model, feeds, batch)?;
        let fetched = match &optimized {
            Err(error) => Err(error.to_string()),
            Ok(proto) => {
                let there = produced(graph(proto)?);
                let there: Vec<_> = batch.iter().filter(|name| there.contains(name.as_str())).cloned().collect();
                let optimized = Model { proto, ..*model };
                fetch(runtime, &optimized, feeds, &there).map_err(|error| error.to_string())
            }
        };
        for (name, value) in values {
            let optimized = verdict(&judging, &name, &value, &fetched);
            facts.push(described(model.proto, &provenance, name, &value, optimized));
        }
    }
    Ok(facts)
}

fn verdict(
    judging: &Judging,
    name: &str,
    value: &TensorBuf,
    optimized: &Result<Vec<(String, TensorBuf)>, String>,
) -> TensorVerdict {
    let found = match optimized {
        Err(error) => return TensorVerdict::not_compared(name, format!("the optimized model does not run: {error}")),
        Ok(values) => values.iter().find(|(other, _)| other == name),
    };
    match found {
        None => TensorVerdict::not_compared(name, "fused away"),
        Some((_, other)) if other.desc() != value.desc() => {
            TensorVerdict::not_compared(name, format!("optimized to another layout, {}", other.desc()))
        }
        Some((_, other)) => judging.judge(name, &value.view(), &other.view()),
    }
}

fn described(
    model: &ModelProto,
    provenance: &Value,
    name: String,
    value: &TensorBuf,
    optimized: TensorVerdict,
) -> Facts {
    let text = |key: &str| provenance[&name][key].as_str().unwrap_or_default().to_owned();
    let node = model.graph.iter().flat_map(|graph| &graph.node).find(|node| node.output.contains(&name));
    Facts {
        fx: text("fx"),
        op: text("op"),
        onnx_op: node.map(|node| node.op_type().to_owned()).unwrap_or_default(),
        dtype: value.desc().dtype.to_string(),
        dims: value.desc().shape.dims().to_vec(),
        statistics: statistics(&value.view()),
        signature: signature(&value.view()),
        optimized,
        name,
    }
}

/// These values of the model, when nothing is optimized, in the order asked.
pub(super) fn fetch(
    runtime: &Runtime,
    model: &Model<'_>,
    feeds: &[TensorView<'_>],
    names: &[String],
) -> Result<Vec<(String, TensorBuf)>, Failure> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut proto = model.proto.clone();
    // Only these: what the part itself gives may be large.
    graph_mut(&mut proto)?.output.retain(|output| names.iter().any(|name| name == output.name()));
    expose_intermediates(&mut proto, names)?;
    let instrumented = Model { proto: &proto, optimization: Optimization::Disable, ..*model };
    let mut outputs = runtime.look(&instrumented, feeds)?.outputs;
    outputs.sort_by_key(|(name, _)| names.iter().position(|asked| asked == name));
    Ok(outputs)
}

/// Names of values, in the model's order for "all". Errors: an unknown name, with the nearest known one.
pub(super) fn resolve(graph: &GraphProto, provenance: &Value, asked: &[String]) -> Result<Vec<String>, Failure> {
    let produced = produced(graph);
    let in_order = || graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    if asked == ["all"] {
        let is_named = |name: &&String| provenance.as_object().is_none_or(|values| values.contains_key(*name));
        return Ok(in_order().filter(is_named).cloned().collect());
    }
    let fx = || provenance.as_object().into_iter().flatten().filter_map(|(name, of)| Some((of["fx"].as_str()?, name)));
    let mut names: Vec<String> = Vec::new();
    for asked in asked {
        let value = Some(asked.as_str()).filter(|name| produced.contains(name));
        let by_fx =
            || fx().find(|(fx, value)| fx == asked && produced.contains(value.as_str())).map(|(_, name)| name.as_str());
        let Some(name) = value.or_else(by_fx) else {
            let known = in_order().map(String::as_str).chain(fx().map(|(name, _)| name));
            let hint = nearest::hint(asked, known);
            return Err(format!("node {asked:?}: the model has no such value{hint}; `--nodes all` lists them").into());
        };
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

pub(super) fn graph(model: &ModelProto) -> Result<&GraphProto, OnnxError> {
    model.graph.as_ref().ok_or(OnnxError::NoGraph)
}

fn graph_mut(model: &mut ModelProto) -> Result<&mut GraphProto, OnnxError> {
    model.graph.as_mut().ok_or(OnnxError::NoGraph)
}

fn produced(graph: &GraphProto) -> HashSet<&str> {
    graph.node.iter().flat_map(|node| &node.output).map(String::as_str).filter(|name| !name.is_empty()).collect()
}

/// One row a value.
pub(super) fn table(facts: &[Facts], width: usize) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| significant(value, 4));
    let row = |facts: &Facts| {
        let statistics = facts.statistics.as_ref();
        let nan = statistics.map_or("-".to_owned(), |statistics| statistics.nan.to_string());
        let changed = match (&facts.optimized.verdict, &facts.optimized.metrics) {
            (Verdict::Match, Some(metrics)) if metrics.max_abs == 0. => "nothing".to_owned(),
            (_, Some(metrics)) => format!("{} {}", distance_text(metrics.max_abs), said(&facts.optimized.verdict)),
            _ => said(&facts.optimized.verdict),
        };
        vec![
            facts.name.clone(),
            facts.op.clone(),
            facts.onnx_op.clone(),
            format!("{}{:?}", facts.dtype, facts.dims),
            number(statistics.and_then(|statistics| statistics.min)),
            number(statistics.and_then(|statistics| statistics.max)),
            number(statistics.and_then(|statistics| statistics.mean)),
            nan,
            facts.signature.clone(),
            changed,
        ]
    };
    let header = ["name", "op", "onnx", "type", "min", "max", "mean", "nan", "sign.", "optimized: max|Δ|"];
    use Give::{End, Middle, Never};
    let gives = [Middle, Middle, End, End, Never, Never, Never, Never, Never, End];
    let rooms = [0, 3, 4, 2, 5, 5, 5, 1, 6, 0];
    roomy(&header, &facts.iter().map(row).collect::<Vec<_>>(), &gives, &rooms, width)
}
