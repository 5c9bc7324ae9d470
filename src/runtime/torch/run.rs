//! The interpreter: one run of a plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use tch::Kind;

use super::call::{Bodies, Call, Outputs};
use super::failure::Failure;
use super::plan::{Graph, Step};
use super::value::{Precision, Value};
use crate::runtime::RuntimeError;

/// What all graphs of a run share.
pub(super) struct Run<'a> {
    pub(super) constants: Vec<Value>,
    pub(super) precision: Precision,
    /// Looked at before each node.
    pub(super) stopped: &'a AtomicBool,
}

type Places = Vec<Option<Value>>;

impl Run<'_> {
    /// The outputs of the main graph. `inputs`: in its order. Errors: RunFailed and its kin, which name the node; Stopped.
    pub(super) fn main(&self, graph: &Graph, inputs: Vec<Value>) -> Result<Vec<Value>, RuntimeError> {
        let _no_gradients = tch::no_grad_guard();
        self.graph(graph, inputs, &[])
    }

    fn graph(&self, graph: &Graph, inputs: Vec<Value>, around: &[Option<Value>]) -> Result<Vec<Value>, RuntimeError> {
        // Here too: a body may have no nodes, and a Loop no end.
        if self.stopped.load(Ordering::Relaxed) {
            return Err(RuntimeError::Stopped);
        }
        let mut places: Places = vec![None; graph.n_places];
        for &(place, number) in &graph.constants {
            places[place] = Some(self.constants[number].clone());
        }
        for &(there, here) in &graph.captures {
            places[here].clone_from(&around[there]);
        }
        if inputs.len() != graph.inputs.len() {
            return Err(RuntimeError::ValueCount { kind: "input", expected: graph.inputs.len(), got: inputs.len() });
        }
        for (&place, input) in graph.inputs.iter().zip(inputs) {
            places[place] = Some(input);
        }
        for step in &graph.steps {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(RuntimeError::Stopped);
            }
            let made = self.step(step, &places);
            let made = made.map_err(|failure| failure.of_node(step.node.name(), step.node.op_type()))?;
            let given = made.len();
            for (place, value) in step.outputs.iter().zip(made) {
                if let &Some(place) = place {
                    places[place] = Some(value);
                }
            }
            if step.outputs.iter().skip(given).any(Option::is_some) {
                let reason = format!("the kernel gives {given} outputs, the node has {}", step.outputs.len());
                return Err(Failure::Said(reason).of_node(step.node.name(), step.node.op_type()));
            }
            step.frees.iter().for_each(|&place| places[place] = None);
        }
        let output = |&place: &usize| {
            let missing =
                || RuntimeError::RunFailed { reason: "an output has no value".to_owned(), node: String::new() };
            places[place].clone().ok_or_else(missing)
        };
        graph.outputs.iter().map(output).collect()
    }

    fn step(&self, step: &Step, places: &Places) -> Outputs {
        let inputs: Vec<_> = step.inputs.iter().map(|place| places[(*place)?].as_ref()).collect();
        match self.call(step, places, inputs.clone()) {
            Err(failure) if failure.lacks_kernel() => {
                // Of half precision libtorch lacks some kernels on the CPU: in float32 then, rounded after the node.
                let wide = inputs.iter().map(|&input| input.map(widened).transpose()).collect::<Result<Vec<_>, _>>()?;
                self.call(step, places, wide.iter().map(Option::as_ref).collect())
            }
            made => made,
        }
    }

    fn call(&self, step: &Step, places: &Places, inputs: Vec<Option<&Value>>) -> Outputs {
        let bodies = InStep { run: self, step, places };
        let call = Call { node: &step.node, opset: step.opset, precision: self.precision, inputs, bodies: &bodies };
        catch_unwind(AssertUnwindSafe(|| (step.kernel)(&call))).unwrap_or_else(|panic| Err(Failure::of_panic(&*panic)))
    }
}

fn widened(value: &Value) -> Result<Value, Failure> {
    match value.tensor.f_kind()? {
        Kind::Half | Kind::BFloat16 => Ok(Value { tensor: value.tensor.f_totype(Kind::Float)?, ..value.clone() }),
        _ => Ok(value.clone()),
    }
}

/// The bodies of a node, among the values of its graph.
struct InStep<'a> {
    run: &'a Run<'a>,
    step: &'a Step,
    places: &'a Places,
}

impl Bodies for InStep<'_> {
    fn run(&self, attribute: &str, inputs: Vec<Value>) -> Outputs {
        let body = self.step.bodies.iter().find(|(name, _)| name == attribute);
        let Some((_, graph)) = body else { return Err(Failure::Said(format!("attribute {attribute:?} is left out"))) };
        self.run.graph(graph, inputs, self.places).map_err(Failure::Inside)
    }
}
