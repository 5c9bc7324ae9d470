//! What changes the model between the export and the run: optimization levels, our rewrites, ONNX Runtime's optimizers.

use std::collections::HashSet;

use super::answer::{Fused, OptimizerKind};
use super::error::BlameError;
use super::nodes::Nodes;
use super::probe::Prober;
use super::search;
use crate::base::ids::ValueName;
use crate::compare::{Verdict, judge};
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::{self, Feeds, Isolator};
use crate::protocol::message::{Optimization, SessionSpec};
use crate::runtime::ort::OPTIMIZERS;
use crate::runtime::{Model, leased};
use crate::tensor::{TensorBuf, TensorView};

/// What was found.
pub struct Found {
    /// To be turned off.
    pub names: Vec<String>,
    /// What these are.
    pub what: OptimizerKind,
    /// Nodes of the optimized model.
    pub fused: Vec<Fused>,
    /// Nodes that only the optimized model has were run on eager's inputs, and none gives what it should not.
    pub is_rounding: bool,
}

/// Something that can be turned off.
#[derive(Clone, Copy)]
enum Switch {
    Pass(&'static str),
    Optimizer(&'static str),
}

/// Which of them bring the part's outputs within tolerance when they are off. `is_right`: of the outputs of a run of the
/// whole part, in the model's order. Errors: [`BlameError`], Budget when the time is up.
pub fn find(
    prober: &Prober<'_>,
    feeds: &[TensorView<'_>],
    is_right: impl Fn(&[TensorBuf]) -> bool,
) -> Result<Option<Found>, BlameError> {
    let switches: Vec<Switch> =
        onnx::passes().map(Switch::Pass).chain(OPTIMIZERS.iter().copied().map(Switch::Optimizer)).collect();
    let mut failure = None;
    let found = search::smallest(switches.len(), |off| {
        let spec = without(&prober.case.spec, off.iter().map(|&at| switches[at]));
        match prober.whole(&spec, feeds) {
            Ok(outputs) => Some(is_right(&outputs)),
            Err(BlameError::Budget) => {
                failure = Some(BlameError::Budget);
                None
            }
            // A combination that the runtime refuses is not an answer.
            Err(_) => Some(false),
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let Some(off) = found else { return level(prober, feeds, is_right) };
    let chosen: Vec<Switch> = off.iter().map(|&at| switches[at]).collect();
    let spec = without(&prober.case.spec, chosen.iter().copied());
    let names = chosen.iter().map(|switch| switch.name().to_owned()).collect();
    let n_passes = chosen.iter().filter(|switch| matches!(switch, Switch::Pass(_))).count();
    let what = match (n_passes, chosen.len() - n_passes) {
        (_, 0) => OptimizerKind::Pass,
        (0, _) => OptimizerKind::Optimizer,
        _ => OptimizerKind::Both,
    };
    let (fused, n_examined) = fused(prober, &spec)?;
    Ok(Some(Found { names, what, is_rounding: fused.is_empty() && n_examined > 0, fused }))
}

/// The lowest level at which the outputs are wrong, where no name is to blame.
fn level(
    prober: &Prober<'_>,
    feeds: &[TensorView<'_>],
    is_right: impl Fn(&[TensorBuf]) -> bool,
) -> Result<Option<Found>, BlameError> {
    for optimization in [Optimization::Kernels, Optimization::Basic, Optimization::Extended, Optimization::All] {
        let spec = SessionSpec { optimization, ..prober.case.spec.clone() };
        if !is_right(&prober.whole(&spec, feeds)?) {
            let names = vec![optimization.name().to_owned()];
            let (fused, n_examined) = fused(prober, &prober.case.unoptimized())?;
            let is_rounding = fused.is_empty() && n_examined > 0;
            return Ok(Some(Found { names, what: OptimizerKind::Level, is_rounding, fused }));
        }
        if optimization == prober.case.spec.optimization {
            break;
        }
    }
    Ok(None)
}

fn without(spec: &SessionSpec, off: impl Iterator<Item = Switch>) -> SessionSpec {
    let mut spec = spec.clone();
    for switch in off {
        match switch {
            Switch::Pass(name) => spec.disabled_passes.push(name.to_owned()),
            Switch::Optimizer(name) => spec.disabled_optimizers.push(name.to_owned()),
        }
    }
    spec
}

impl Switch {
    fn name(self) -> &'static str {
        match self {
            Switch::Pass(name) | Switch::Optimizer(name) => name,
        }
    }
}

/// Nodes of the model as it ran that the model of `right` has not, and that give another value than eager on eager's
/// inputs; and how many could be run at all.
fn fused(prober: &Prober<'_>, right: &SessionSpec) -> Result<(Vec<Fused>, usize), BlameError> {
    if !prober.case.spec.runtimes.is_empty() {
        // There is no one optimized model to look into; the answer says so.
        return Ok((Vec::new(), 0));
    }
    let optimized = |spec: &SessionSpec| {
        let model = prober.runtime().optimized(&Model::read(prober.case.model.clone())?, spec)?;
        Ok::<ModelProto, BlameError>(onnx::decode(model.into())?)
    };
    let (wrong, right) = (optimized(&prober.case.spec)?, optimized(right)?);
    let known: HashSet<NodeKey> = right.graph.iter().flat_map(|graph| &graph.node).map(key).collect();
    let values = &prober.case.values;
    let new: Vec<ValueName> = (wrong.graph.iter().flat_map(|graph| &graph.node))
        .filter(|node| !known.contains(&key(node)))
        .flat_map(|node| node.output.iter().filter(|name| values.has(name)).cloned().collect::<Vec<_>>())
        .collect();
    let named: Vec<ValueName> = values.descs().keys().cloned().collect();
    let isolator = Isolator::new(wrong, &named)?;
    let nodes = Nodes::new(prober);
    let feeds: Feeds<'_> = values.descs().iter().map(|(name, desc)| (name.as_str(), desc)).collect();
    let (mut found, mut n_examined) = (Vec::new(), 0);
    // Without values of eager's inside the part, what is examined is all of it.
    if !prober.case.has_inner_values() {
        return Ok((found, n_examined));
    }
    for value in new {
        match examined(&nodes, prober, &isolator, &feeds, &value) {
            Ok(one) => {
                n_examined += 1;
                found.extend(one);
            }
            Err(BlameError::Budget) => return Err(BlameError::Budget),
            // An operator of one runtime and machine alone may not run by itself.
            Err(error) => tracing::debug!(value, %error, "not examined"),
        }
    }
    Ok((found, n_examined))
}

/// What tells one node from another.
type NodeKey = (String, String, Vec<String>, Vec<String>);

fn key(node: &NodeProto) -> NodeKey {
    (node.domain().to_owned(), node.op_type().to_owned(), node.input.clone(), node.output.clone())
}

fn examined(
    nodes: &Nodes<'_, '_>,
    prober: &Prober<'_>,
    isolator: &Isolator,
    feeds: &Feeds<'_>,
    value: &str,
) -> Result<Option<Fused>, BlameError> {
    let piece = isolator.local(value, &HashSet::new(), feeds)?;
    let spec = SessionSpec { optimization: Optimization::Disable, ..prober.case.spec.clone() };
    let session = prober.runtime().build(&Model::encode(&piece.model), &spec)?;
    let inputs = piece.inputs.iter().map(|name| prober.eager(name)).collect::<Result<Vec<_>, _>>()?;
    let views: Vec<_> = inputs.iter().map(|input| input.view()).collect();
    let outputs = session.fetch(&leased(&views)?)?.0;
    let [output] = outputs.as_slice() else {
        return Err(BlameError::Outputs { expected: 1, got: outputs.len() });
    };
    let reference = prober.eager(value)?;
    let tolerance = prober.case.policy().tolerance(reference.desc.dtype);
    let verdict = judge(value, &reference.view(), &output.view(), Some(&tolerance));
    if verdict.verdict == Verdict::Match {
        return Ok(None);
    }
    // A sum that is zero but for rounding is another one in each order.
    match nodes.is_rounding(value, output) {
        Ok(true) => return Ok(None),
        Err(BlameError::Budget) => return Err(BlameError::Budget),
        Ok(false) | Err(_) => {}
    }
    let op = isolator.producer(value).map(|at| isolator.nodes()[at].op_type().to_owned()).unwrap_or_default();
    let case = prober.case;
    let inputs: HashSet<&str> = piece.inputs.iter().map(String::as_str).collect();
    let behind = case.between(&inputs, value);
    let instead_of = case.named_values.iter().filter(|name| behind.contains(name.as_str())).cloned().collect();
    Ok(Some(Fused { op, value: value.to_owned(), instead_of, verdict }))
}
