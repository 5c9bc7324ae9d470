//! A model made ready to be interpreted: who computes each node, where values stand, when they go.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::call::Kernel;
use super::operators;
use super::value::{Precision, Value};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::onnx::{self, NamedTensor, OnnxError};
use crate::runtime::RuntimeError;

/// A graph: steps over places for values, numbered from 0.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) steps: Vec<Step>,
    pub(super) n_places: usize,
    /// Of the inputs, in order.
    pub(super) inputs: Vec<usize>,
    /// Of the outputs, in order.
    pub(super) outputs: Vec<usize>,
    /// Constants that are here from the beginning: (place, number among the model's).
    pub(super) constants: Vec<(usize, usize)>,
    /// Values of the graph around a body: (place there, place here).
    pub(super) captures: Vec<(usize, usize)>,
}

/// A node.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) kernel: Kernel,
    /// Without its bodies.
    pub(super) node: NodeProto,
    pub(super) opset: i64,
    pub(super) inputs: Vec<Option<usize>>,
    pub(super) outputs: Vec<Option<usize>>,
    /// By attribute.
    pub(super) bodies: Vec<(String, Graph)>,
    /// Values that nothing needs after it.
    pub(super) frees: Vec<usize>,
}

/// A model's graph and the constants of it and its bodies.
pub(super) struct Plan {
    pub(super) graph: Graph,
    pub(super) constants: Vec<Value>,
}

/// Makes the plan of a model without functions. `given`: constants in the place of inputs and initializers, by name.
/// Errors: BadModel, for a node that nothing here computes with its name, operator and domain.
pub(super) fn plan(
    model: &ModelProto,
    given: BTreeMap<&str, Value>,
    precision: Precision,
) -> Result<Plan, RuntimeError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let mut planner = Planner {
        opsets: opsets(&model.opset_import),
        precision,
        constants: Vec::new(),
        scopes: vec![Scope::default()],
    };
    for (name, value) in given {
        planner.constant(name, value);
    }
    let graph = planner.graph(graph)?;
    Ok(Plan { graph, constants: planner.constants })
}

/// The name by which the default domain is known here.
fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

fn opsets(imports: &[OperatorSetIdProto]) -> HashMap<String, i64> {
    imports.iter().map(|import| (domain(import.domain()).to_owned(), import.version())).collect()
}

fn bad_model(reason: String) -> RuntimeError {
    RuntimeError::BadModel { reason }
}

/// Where the names of a graph stand, and those that it takes from the one around it.
#[derive(Default)]
struct Scope {
    places: HashMap<String, usize>,
    n_places: usize,
    captures: Vec<(usize, usize)>,
    constants: Vec<(usize, usize)>,
}

impl Scope {
    fn define(&mut self, name: &str) -> usize {
        let place = self.n_places;
        self.n_places += 1;
        self.places.insert(name.to_owned(), place);
        place
    }
}

struct Planner {
    opsets: HashMap<String, i64>,
    precision: Precision,
    constants: Vec<Value>,
    /// Of the main graph and the bodies around what is looked at, the innermost last.
    scopes: Vec<Scope>,
}

impl Planner {
    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("the main graph's stays")
    }

    /// The place of a name in the graph at this depth, which takes it from those around it if need be.
    fn find(&mut self, name: &str, depth: usize) -> Option<usize> {
        if let Some(&place) = self.scopes[depth].places.get(name) {
            return Some(place);
        }
        let there = self.find(name, depth.checked_sub(1)?)?;
        let here = self.scopes[depth].define(name);
        self.scopes[depth].captures.push((there, here));
        Some(here)
    }

    fn find_here(&mut self, name: &str) -> Option<usize> {
        self.find(name, self.scopes.len() - 1)
    }

    fn constant(&mut self, name: &str, value: Value) {
        let number = self.constants.len();
        self.constants.push(value);
        let scope = self.scope();
        let place = scope.define(name);
        scope.constants.push((place, number));
    }

    fn read(&self, proto: &TensorProto) -> Result<Value, RuntimeError> {
        let tensor = NamedTensor::from_proto(proto)?;
        let read = Value::read_view(&tensor.view(), self.precision);
        read.map_err(|failure| bad_model(format!("tensor {:?}: {}", proto.name(), failure.text())))
    }

    fn graph(&mut self, graph: &GraphProto) -> Result<Graph, RuntimeError> {
        if let Some(sparse) = graph.sparse_initializer.first() {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            return Err(bad_model(format!("initializer {name:?} is sparse: no libtorch kernel reads it")));
        }
        let is_main = self.scopes.len() == 1;
        let initialized: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        let mut inputs = Vec::new();
        for input in graph.input.iter().map(|input| input.name()) {
            if !initialized.contains(input) && !self.scope().places.contains_key(input) {
                inputs.push(self.scope().define(input));
            }
        }
        for initializer in &graph.initializer {
            if !self.scope().places.contains_key(initializer.name()) {
                let value = self.read(initializer)?;
                self.constant(initializer.name(), value);
            }
        }
        let mut steps = Vec::with_capacity(graph.node.len());
        let order = if is_main { onnx::order(graph)? } else { (0..graph.node.len()).collect() };
        for at in order {
            let node = &graph.node[at];
            match self.constant_of(node)? {
                Some(value) => self.constant(&node.output[0], value),
                None => steps.push(self.step(node)?),
            }
        }
        let mut outputs = Vec::with_capacity(graph.output.len());
        for output in graph.output.iter().map(|output| output.name()) {
            let place = self.find_here(output);
            outputs.push(place.ok_or_else(|| bad_model(format!("nothing gives the output {output:?}")))?);
        }
        let scope = self.scope();
        let constants = std::mem::take(&mut scope.constants);
        let captures = std::mem::take(&mut scope.captures);
        let n_places = scope.n_places;
        free(&mut steps, outputs.iter().copied().chain(constants.iter().map(|&(place, _)| place)).collect());
        Ok(Graph { steps, n_places, inputs, outputs, constants, captures })
    }

    /// What a Constant node gives; None of another node.
    fn constant_of(&self, node: &NodeProto) -> Result<Option<Value>, RuntimeError> {
        if node.op_type() != "Constant" || !domain(node.domain()).is_empty() || node.output.len() != 1 {
            return Ok(None);
        }
        let made = operators::constant(node, self.precision);
        made.map(Some).map_err(|failure| bad_model(format!("Constant of node {:?}: {}", node.name(), failure.text())))
    }

    fn step(&mut self, node: &NodeProto) -> Result<Step, RuntimeError> {
        let (name, operator) = (node.name(), node.op_type());
        let domain = domain(node.domain());
        let Some(kernel) = operators::find(domain, operator) else {
            let of = if domain.is_empty() { "ONNX's own domain".to_owned() } else { format!("domain {domain:?}") };
            return Err(bad_model(format!("node {name:?}: no libtorch kernel for operator {operator} of {of}")));
        };
        let mut inputs = Vec::with_capacity(node.input.len());
        for input in &node.input {
            let unknown = || bad_model(format!("node {name:?} needs {input:?}, which nothing before it gives"));
            inputs.push(match input.as_str() {
                "" => None,
                input => Some(self.find_here(input).ok_or_else(unknown)?),
            });
        }
        let mut bodies = Vec::new();
        for attribute in &node.attribute {
            if let Some(body) = &attribute.g {
                self.scopes.push(Scope::default());
                let made = self.graph(body);
                self.scopes.pop();
                bodies.push((attribute.name().to_owned(), made?));
            }
        }
        let mut plain = node.clone();
        plain.attribute.iter_mut().for_each(|attribute| attribute.g = None);
        let outputs =
            (node.output.iter()).map(|output| (!output.is_empty()).then(|| self.scope().define(output))).collect();
        let opset = self.opsets.get(domain).copied().unwrap_or(1);
        Ok(Step { kernel, node: plain, opset, inputs, outputs, bodies, frees: Vec::new() })
    }
}

/// Tells each step what it is the last to need; what is kept is never let go.
fn free(steps: &mut [Step], kept: HashSet<usize>) {
    let mut needed = kept;
    for step in steps.iter_mut().rev() {
        let captured = step.bodies.iter().flat_map(|(_, body)| body.captures.iter().map(|&(there, _)| there));
        let used = step.inputs.iter().flatten().copied().chain(captured).chain(step.outputs.iter().flatten().copied());
        step.frees = used.filter(|&place| needed.insert(place)).collect();
    }
}
