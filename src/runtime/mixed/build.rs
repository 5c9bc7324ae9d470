//! Sessions of a divided part.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::plan::{Plan, plan};
use super::segment::{Segment, given};
use super::session::{Ends, MixedSession, Step};
use crate::base::ids::ValueName;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::{self, Descriptions};
use crate::protocol::message::{Division, NodeRuntime, PartSpec, RuntimeRule, SessionSpec};
use crate::runtime::types::declared_type;
use crate::runtime::{Constant, Model, Runtime, RuntimeError, Session, StopToken, precision};
use crate::tensor::DType;

/// A session of a part that has rules, and what these made of its nodes. `runtime` is ONNX Runtime, with the others beside
/// it. Errors: Stopped, the runtimes', BadModel for what cannot be divided, NoLibtorch.
pub(in crate::runtime) fn build(
    runtime: &dyn Runtime,
    part: &PartSpec,
    exported: ModelProto,
    constants: Vec<Constant>,
    stop: &StopToken,
) -> Result<(Arc<dyn Session>, Division), RuntimeError> {
    let mut whole = exported;
    onnx::inline_around_attention(&mut whole)?;
    let graph = whole.graph.as_ref().ok_or(onnx::OnnxError::NoGraph)?;
    let plan = plan(graph, &part.session.runtimes, &part.described)?;
    let division = division(&plan);
    let on = |of: NodeRuntime| division.nodes.get(&of).copied().unwrap_or_default();
    let (ort, torch, torch_f64) = (on(NodeRuntime::Ort), on(NodeRuntime::Torch), on(NodeRuntime::TorchF64));
    tracing::info!(part = part.part, segments = division.segments, ort, torch, torch_f64, "nodes by runtime");
    // Of the whole: a pattern may fit a node for the sake of one in another segment.
    let unrounded = precision::kept(&whole, &part.session.keep_float32, &part.described)?;
    refuse_kept_by_libtorch(graph, &plan, &unrounded)?;
    let builder = Builder { runtime, part, whole: &whole, graph, unrounded, stop };
    stop.check()?;
    let session: Arc<dyn Session> = match plan.segments.as_slice() {
        [] => builder.of_all(NodeRuntime::Ort, constants)?,
        [one] => {
            builder.require(one)?;
            builder.of_all(one.runtime, constants)?
        }
        several => Arc::new(builder.mixed(several, constants)?),
    };
    Ok((session, division))
}

/// What rules make of a part's nodes, without a session. Errors: as [`build`]'s, but for the runtimes'.
pub fn divide(exported: ModelProto, rules: &[RuntimeRule], described: &Descriptions) -> Result<Division, RuntimeError> {
    let mut whole = exported;
    onnx::inline_around_attention(&mut whole)?;
    let graph = whole.graph.as_ref().ok_or(onnx::OnnxError::NoGraph)?;
    Ok(division(&plan(graph, rules, described)?))
}

fn division(plan: &Plan) -> Division {
    let mut division =
        Division { taken: plan.taken.clone(), segments: plan.segments.len() as u32, ..Division::default() };
    for segment in &plan.segments {
        *division.nodes.entry(segment.runtime).or_default() += segment.own.len() as u32;
    }
    division
}

/// libtorch computes in the dtypes that the model has. Errors: BadOption where it gives a value of half precision that is
/// to be kept in float32.
fn refuse_kept_by_libtorch(
    graph: &GraphProto,
    plan: &Plan,
    unrounded: &HashSet<ValueName>,
) -> Result<(), RuntimeError> {
    let is_half = |info: &&ValueInfoProto| matches!(declared_type(info), Some(DType::F16 | DType::BF16));
    let halves = graph.value_info.iter().chain(&graph.output).filter(is_half).map(ValueInfoProto::name);
    let unrounded: HashSet<&str> = halves.filter(|name| unrounded.contains(*name)).collect();
    for segment in plan.segments.iter().filter(|segment| segment.runtime != NodeRuntime::Ort) {
        let mut nodes = segment.own.iter().map(|&at| &graph.node[at]);
        let is_kept = |node: &&NodeProto| node.output.iter().any(|name| unrounded.contains(name.as_str()));
        let Some(node) = nodes.find(is_kept) else { continue };
        let (name, on) = (node.name(), segment.runtime.name());
        return Err(RuntimeError::BadOption {
            name: "precision_rules".to_owned(),
            reason: format!(
                "they fit node {name:?} ({}), which a rule of runtimes gives to {on}, and values are kept in float32 on \
                 ONNX Runtime alone; leave it out of one of them",
                node.op_type()
            ),
        });
    }
    Ok(())
}

struct Builder<'a> {
    runtime: &'a dyn Runtime,
    part: &'a PartSpec,
    whole: &'a ModelProto,
    graph: &'a GraphProto,
    /// Values that are not rounded to half precision.
    unrounded: HashSet<ValueName>,
    /// Looked at between two segments.
    stop: &'a StopToken,
}

impl<'a> Builder<'a> {
    /// The runtime of a segment. Errors: NoLibtorch.
    fn require(&self, segment: &Segment) -> Result<&'a dyn Runtime, RuntimeError> {
        if segment.runtime == NodeRuntime::Ort {
            return Ok(self.runtime);
        }
        self.runtime.beside(segment.runtime).ok_or_else(|| {
            let first = segment.nodes.first().map(|&at| &self.graph.node[at]);
            let name = first.map(|node| if node.name().is_empty() { node.op_type() } else { node.name() });
            RuntimeError::NoLibtorch { runtime: segment.runtime.name(), node: name.unwrap_or_default().to_owned() }
        })
    }

    /// How ONNX Runtime runs what is its.
    fn spec(&self) -> SessionSpec {
        SessionSpec { runtimes: Vec::new(), ..self.part.session.clone() }
    }

    /// The whole part on one runtime.
    fn of_all(&self, on: NodeRuntime, constants: Vec<Constant>) -> Result<Arc<dyn Session>, RuntimeError> {
        if on == NodeRuntime::Ort {
            let part = PartSpec { session: self.spec(), ..self.part.clone() };
            let model = precision::runnable(&part, &onnx::decode(part.model.clone())?)?;
            return self.runtime.build_with(&model, &part.session, constants);
        }
        let runtime = self
            .runtime
            .beside(on)
            .ok_or_else(|| RuntimeError::NoLibtorch { runtime: on.name(), node: String::new() })?;
        on_libtorch(on, runtime, self.whole, constants)
    }

    fn mixed(&self, segments: &[Segment], constants: Vec<Constant>) -> Result<MixedSession, RuntimeError> {
        let declared = self.graph.value_info.iter().chain(&self.graph.output).chain(&self.graph.input);
        let mut known: HashMap<String, ValueInfoProto> =
            declared.map(|info| (info.name().to_owned(), info.clone())).collect();
        let mut steps = Vec::with_capacity(segments.len());
        for segment in segments {
            self.stop.check()?;
            let session = self.session(segment, &known, &constants)?;
            for spec in session.outputs() {
                let info = given(spec, known.get(&spec.name));
                known.insert(spec.name.clone(), info);
            }
            steps.push(Step::new(session));
        }
        let initialized = |name: &str| self.graph.initializer.iter().any(|tensor| tensor.name() == name);
        let is_constant = |name: &str| constants.iter().any(|constant| constant.name == name);
        let inputs = self.graph.input.iter().filter(|input| !initialized(input.name()) && !is_constant(input.name()));
        let outputs: Vec<ValueInfoProto> =
            self.graph.output.iter().map(|output| known.get(output.name()).unwrap_or(output).clone()).collect();
        MixedSession::new(steps, &Ends { inputs: inputs.collect(), outputs: outputs.iter().collect() }, constants)
    }

    fn session(
        &self,
        segment: &Segment,
        known: &HashMap<String, ValueInfoProto>,
        constants: &[Constant],
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        let runtime = self.require(segment)?;
        let model = segment.model(self.whole, known);
        let reads = |constant: &&Constant| segment.inputs.contains(&constant.name);
        let constants: Vec<Constant> = constants.iter().filter(reads).cloned().collect();
        if segment.runtime != NodeRuntime::Ort {
            return on_libtorch(segment.runtime, runtime, &model, constants);
        }
        let made = |name: &&String| segment.nodes.iter().any(|&at| self.graph.node[at].output.contains(*name));
        let part = PartSpec {
            model: Model::encode(&model).bytes,
            session: self.spec(),
            named_values: self.part.named_values.iter().filter(made).cloned().collect(),
            ..self.part.clone()
        };
        runtime.build_with(&precision::runnable_but(&part, &model, &self.unrounded)?, &part.session, constants)
    }
}

/// What libtorch does not take is a rule's fault, not the model's: nothing of it goes elsewhere. Errors: BadOption.
fn on_libtorch(
    on: NodeRuntime,
    runtime: &dyn Runtime,
    model: &ModelProto,
    constants: Vec<Constant>,
) -> Result<Arc<dyn Session>, RuntimeError> {
    let built = runtime.build_with(&Model::encode(model), &SessionSpec::default(), constants);
    built.map_err(|error| RuntimeError::BadOption {
        name: "runtimes".to_owned(),
        reason: format!("a rule gives nodes to {} that it does not take: {error}; leave them to ort", on.name()),
    })
}
