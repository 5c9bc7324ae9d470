//! Which nodes can be in a region, and what the graph tells of their values.

use std::collections::{HashMap, HashSet};

use half::{bf16, f16};

use super::super::nodes::{attribute, is, only_output};
use super::super::values::{Dim, Values};
use super::policy::Policy;
use crate::onnx::graph;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::{HIGHEST_RANK, NamedTensor, Op};
use crate::tensor::DType;

/// What a node is in a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    Step(Op),
    /// Its value is its first input's.
    Same,
    /// Softmax of the last axis, or its logarithm.
    Softmax {
        log: bool,
    },
}

impl Meaning {
    /// Its value of an element depends on the whole row.
    fn takes_rows(self) -> bool {
        match self {
            Self::Step(op) => op.reduces(),
            Self::Softmax { .. } => true,
            Self::Same => false,
        }
    }
}

/// A node that can be in a region.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) meaning: Meaning,
    /// What rounds its result, where that has half precision.
    pub(super) rounds: Option<Op>,
    /// Sizes of all axes but the last.
    pub(super) leading: Vec<Dim>,
    /// Of the last axis; None where it gives one value of a row, and reads no more.
    pub(super) last: Option<Dim>,
}

/// What the pass knows of a graph.
pub(super) struct Facts<'p> {
    pub(super) policy: &'p Policy,
    dims: HashMap<String, Vec<Dim>>,
    elements: HashMap<String, DType>,
    numbers: HashMap<String, f32>,
    /// {value: what it is cast from without a digit less}, where a region can read either: what a region may keep for itself
    /// is none.
    sources: HashMap<String, String>,
    /// Of each node.
    pub(super) members: Vec<Option<Member>>,
}

impl<'p> Facts<'p> {
    pub(super) fn of(graph: &GraphProto, policy: &'p Policy) -> Self {
        let values = Values::of(graph);
        let (dims, elements, numbers) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut facts = Self { policy, dims, elements, numbers, sources: HashMap::new(), members: Vec::new() };
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
        for info in &graph.input {
            facts.declare(info.name(), &values);
        }
        for tensor in &graph.initializer {
            facts.declare(tensor.name(), &values);
            if !inputs.contains(tensor.name()) {
                facts.numbers.extend(number(tensor).map(|number| (tensor.name().to_owned(), number)));
            }
        }
        let constants = constants(graph, &inputs);
        let is_laid_out = |node: &&NodeProto| {
            let weight = node.input.get(1).map_or("", String::as_str);
            matches!(node.op_type(), "Conv" | "ConvTranspose") && constants.contains(weight)
        };
        let convolved: HashSet<Option<usize>> = (graph.node.iter().filter(is_laid_out))
            .map(|node| values.dims(node.output.first().map_or("", String::as_str)).map(<[Dim]>::len))
            .collect();
        for node in &graph.node {
            facts.infer(node, &values);
            let rank = only_output(node).and_then(|output| facts.dims.get(output)).map(Vec::len);
            let member = facts.member(graph, node, &values);
            // ONNX Runtime lays convolutions out otherwise where their weights are constant, and what is between them.
            let is_apart = !convolved.contains(&rank) && !convolved.contains(&None);
            let member = member.filter(|_| is_apart || !policy.leaves_convolutions);
            let is_same = member.as_ref().is_some_and(|member| member.meaning == Meaning::Same);
            let is_kept = || {
                values
                    .producer(graph, &node.input[0])
                    .is_some_and(|(at, _)| facts.members.get(at).is_some_and(Option::is_some))
            };
            if is_same && is(node, "Cast") && !is_kept() {
                facts.sources.extend(only_output(node).map(|output| (output.to_owned(), node.input[0].clone())));
            }
            facts.members.push(member);
        }
        facts
    }

    pub(super) fn dims(&self, name: &str) -> Option<&[Dim]> {
        self.dims.get(name).map(Vec::as_slice)
    }

    /// What a region that reads a value reads better: what it is cast from, of fewer bytes.
    pub(super) fn source<'n>(&'n self, name: &'n str) -> &'n str {
        self.sources.get(name).filter(|_| self.policy.is_typed).map_or(name, String::as_str)
    }

    pub(super) fn element(&self, name: &str) -> Option<DType> {
        self.elements.get(name).copied()
    }

    /// The number that a value is that a program computes with, where it is known and has one element.
    pub(super) fn number(&self, name: &str) -> Option<f32> {
        self.numbers.get(name).copied().filter(|_| self.element(name).is_some_and(|element| self.is_float(element)))
    }

    /// Whether nodes of a region may compute in it.
    fn is_float(&self, element: DType) -> bool {
        element == DType::F32 || (self.policy.is_typed && rounding(element).is_some())
    }

    fn declare(&mut self, name: &str, values: &Values) {
        if let Some(dims) = values.dims(name) {
            self.dims.insert(name.to_owned(), dims.to_vec());
        }
        if let Some(element) = values.element(name).and_then(|code| DType::from_onnx(code).ok()) {
            self.elements.insert(name.to_owned(), element);
        }
    }

    /// What the model says of a node's results, or the node does.
    fn infer(&mut self, node: &NodeProto, values: &Values) {
        for output in &node.output {
            self.declare(output, values);
        }
        let Some(output) = only_output(node) else { return };
        if is(node, "Constant") {
            let Some(tensor) = node.attribute.iter().find_map(|attribute| attribute.t.as_ref()) else {
                if let Some(number) = attribute(node, "value_float").and_then(|float| float.f) {
                    self.dims.insert(output.to_owned(), Vec::new());
                    self.numbers.insert(output.to_owned(), number);
                }
                return;
            };
            self.dims.insert(output.to_owned(), tensor.dims.iter().map(|&size| Dim::Is(size)).collect());
            self.numbers.extend(number(tensor).map(|number| (output.to_owned(), number)));
            return;
        }
        let Some(first) = node.input.first() else { return };
        if (is(node, "Cast") || is(node, "Identity"))
            && let Some(&number) = self.numbers.get(first)
        {
            let rounded = match self.element(output) {
                _ if is(node, "Identity") => Some(number),
                Some(DType::F32) => Some(number),
                Some(DType::BF16) => Some(bf16::from_f32(number).to_f32()),
                Some(DType::F16) => Some(f16::from_f32(number).to_f32()),
                _ => None,
            };
            self.numbers.extend(rounded.map(|number| (output.to_owned(), number)));
        }
        let keeps_sizes = ["Cast", "Identity", "Softmax", "LogSoftmax"].iter().any(|op| is(node, op));
        if self.dims.contains_key(output) || !(elementwise(node).is_some() || keeps_sizes) {
            return;
        }
        let inputs: Option<Vec<_>> = node.input.iter().map(|input| self.dims(input)).collect();
        if let Some(dims) = inputs.and_then(|inputs| broadcast(&inputs)) {
            self.dims.insert(output.to_owned(), dims);
        }
    }

    fn member(&self, graph: &GraphProto, node: &NodeProto, values: &Values) -> Option<Member> {
        let output = only_output(node)?;
        let meaning = self.meaning(node, output)?;
        let rounds = self.element(output).and_then(rounding).filter(|_| rounds(meaning));
        let dims = self.dims(output)?;
        if becomes_gemm(graph, node, values) || self.numbers.contains_key(output) {
            return None;
        }
        let (last, leading) = dims.split_last()?;
        if dims.len() > HIGHEST_RANK || dims.contains(&Dim::Unknown) {
            return None;
        }
        let reduces = matches!(meaning, Meaning::Step(op) if op.reduces());
        let last = if reduces { Some(self.reduced(node, dims)?) } else { Some(last.clone()) };
        let whole: Vec<Dim> = leading.iter().chain(&last).cloned().collect();
        if meaning.takes_rows() && (self.is_long(&whole) || whole.last() == Some(&Dim::Is(1))) {
            return None;
        }
        let read = if reduces || is(node, "Expand") { &node.input[..1] } else { &node.input[..] };
        let fits = read.iter().all(|input| self.dims(input).is_some_and(|dims| goes_to(dims, &whole)));
        let leading = leading.to_vec();
        fits.then(|| Member { meaning, rounds, leading, last: last.filter(|last| *last != Dim::Is(1)) })
    }

    /// Whether rows are so long and few that ONNX Runtime, whose threads share one, is faster.
    fn is_long(&self, whole: &[Dim]) -> bool {
        let Some((last, leading)) = whole.split_last() else { return false };
        let n_rows = leading.iter().map(Dim::number).try_fold(1_i64, |rows, size| rows.checked_mul(size?));
        let is_long = matches!(last, Dim::Is(size) if *size > self.policy.long_row);
        is_long && n_rows.is_some_and(|n_rows| n_rows < self.policy.few_rows)
    }

    /// The size of the axis that is added up: the last one, which stays, of size 1.
    fn reduced(&self, node: &NodeProto, dims: &[Dim]) -> Option<Dim> {
        let source = self.dims(node.input.first()?)?;
        let last = source.last()?;
        let is_last = dims.len() == source.len() && dims.last() == Some(&Dim::Is(1)) && *last != Dim::Is(1);
        is_last.then(|| last.clone()).filter(|last| *last != Dim::Unknown)
    }

    fn meaning(&self, node: &NodeProto, output: &str) -> Option<Meaning> {
        let is_float = |name: &String| self.element(name).is_some_and(|element| self.is_float(element));
        let is_bool = |name: &String| self.element(name) == Some(DType::Bool);
        let first = node.input.first()?;
        if is(node, "Identity") {
            return is_float(first).then_some(Meaning::Same);
        }
        if is(node, "Cast") {
            return match (self.element(first)?, self.element(output)?) {
                (DType::F32 | DType::BF16 | DType::F16 | DType::Bool, DType::F32) => Some(Meaning::Same),
                (DType::F32, half) if rounding(half).is_some() => rounding(half).map(Meaning::Step),
                _ if !self.policy.is_typed => None,
                (DType::BF16, DType::BF16) | (DType::F16, DType::F16) => Some(Meaning::Same),
                (DType::Bool, DType::BF16 | DType::F16) => Some(Meaning::Same),
                (DType::BF16 | DType::F16, half) => rounding(half).map(Meaning::Step),
                _ => None,
            };
        }
        if is(node, "Softmax") || is(node, "LogSoftmax") {
            return self.softmax(node).filter(|_| is_float(first));
        }
        if is(node, "Expand") {
            return self.expanded(node, output).filter(|_| is_float(first));
        }
        if let Some(op) = reduction(node) {
            return (is_float(first) && self.is_of_last_axis(node)).then_some(Meaning::Step(op));
        }
        if is(node, "Pow") {
            let [base, exponent] = node.input.as_slice() else { return None };
            // Another rank of the exponent could be that of the result.
            let op = match self.number(exponent)? {
                2.0 => Op::Square,
                3.0 => Op::Cube,
                _ => return None,
            };
            let stays = self.dims(exponent)?.len() <= self.dims(base)?.len();
            return (is_float(base) && stays).then_some(Meaning::Step(op));
        }
        let op = elementwise(node)?;
        let fits = node.input.len() == op.arity()
            && match op {
                Op::And | Op::Or | Op::Not => node.input.iter().all(is_bool),
                Op::Where => is_bool(first) && node.input[1..].iter().all(is_float),
                _ => node.input.iter().all(is_float),
            };
        fits.then_some(Meaning::Step(op))
    }

    /// An Expand that gives each element of a row its value, or leaves all as it is.
    fn expanded(&self, node: &NodeProto, output: &str) -> Option<Meaning> {
        let (source, dims) = (self.dims(node.input.first()?)?, self.dims(output)?);
        let (from, to) = (source.last()?, dims.last()?);
        match source == dims {
            true => Some(Meaning::Same),
            false if *from == Dim::Is(1) && *to != Dim::Is(1) => Some(Meaning::Step(Op::Spread)),
            false => None,
        }
    }

    /// Of the last axis. Alone it stays ONNX Runtime's, whose kernel is one, too.
    fn softmax(&self, node: &NodeProto) -> Option<Meaning> {
        let rank = self.dims(node.input.first()?)?.len() as i64;
        let axis = attribute(node, "axis").map_or(Some(-1), |axis| axis.i)?;
        let is_last = axis == -1 || axis == rank - 1;
        (self.policy.is_typed && is_last).then_some(Meaning::Softmax { log: is(node, "LogSoftmax") })
    }

    fn is_of_last_axis(&self, node: &NodeProto) -> bool {
        let keeps = attribute(node, "keepdims").is_none_or(|keeps| keeps.i != Some(0));
        let axes = match node.input.get(1) {
            Some(axes) => self.numbers.get(axes).copied(),
            None => attribute(node, "axes").and_then(|axes| match axes.ints.as_slice() {
                [axis] => Some(*axis as f32),
                _ => None,
            }),
        };
        let rank = node.input.first().and_then(|input| self.dims(input)).map_or(0, <[Dim]>::len);
        keeps && rank > 0 && axes.is_some_and(|axis| axis == -1.0 || axis == rank as f32 - 1.0)
    }
}

/// Values that no input of the graph decides.
fn constants<'g>(graph: &'g GraphProto, inputs: &HashSet<&str>) -> HashSet<&'g str> {
    let mut constants = graph::constants(graph);
    constants.retain(|name| !inputs.contains(name));
    for node in &graph.node {
        if node.input.iter().all(|input| input.is_empty() || constants.contains(input.as_str())) {
            constants.extend(graph::outputs(node));
        }
    }
    constants
}

/// What rounds to a half precision.
fn rounding(element: DType) -> Option<Op> {
    match element {
        DType::BF16 => Some(Op::RoundBFloat16),
        DType::F16 => Some(Op::RoundFloat16),
        _ => None,
    }
}

/// Whether what a node gives may have more digits than what it reads.
fn rounds(meaning: Meaning) -> bool {
    let op = match meaning {
        Meaning::Step(op) => op,
        Meaning::Softmax { .. } => return true,
        Meaning::Same => return false,
    };
    !matches!(
        op,
        Op::Max
            | Op::Min
            | Op::Neg
            | Op::Abs
            | Op::Relu
            | Op::Where
            | Op::Spread
            | Op::ReduceMax
            | Op::RoundBFloat16
            | Op::RoundFloat16
    )
}

fn elementwise(node: &NodeProto) -> Option<Op> {
    let name = node.op_type();
    let op = Op::named(name).filter(|_| is(node, name))?;
    let is_another =
        op.reduces() || matches!(op, Op::Spread | Op::Square | Op::Cube | Op::RoundBFloat16 | Op::RoundFloat16);
    (!is_another).then_some(op)
}

fn reduction(node: &NodeProto) -> Option<Op> {
    let name = node.op_type();
    Op::named(name).filter(|op| op.reduces() && is(node, name))
}

/// The number that a constant of one element holds.
fn number(tensor: &TensorProto) -> Option<f32> {
    if tensor.dims.iter().any(|&size| size != 1) {
        return None;
    }
    let tensor = NamedTensor::from_proto(tensor).ok()?;
    let bytes = tensor.view().bytes();
    match tensor.desc.dtype {
        DType::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?)),
        DType::BF16 => Some(bf16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        DType::F16 => Some(f16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        DType::I64 => Some(i64::from_le_bytes(bytes.try_into().ok()?)).map(|number| number as f32),
        _ => None,
    }
}

/// Whether a value of these sizes broadcasts to those.
pub(super) fn goes_to(dims: &[Dim], whole: &[Dim]) -> bool {
    dims.len() <= whole.len()
        && (dims.iter().rev().zip(whole.iter().rev())).all(|(own, size)| *own == Dim::Is(1) || own.equals(size))
}

/// The sizes that these broadcast to, where they are told to.
fn broadcast(inputs: &[&[Dim]]) -> Option<Vec<Dim>> {
    let rank = inputs.iter().map(|dims| dims.len()).max()?;
    let mut whole = vec![Dim::Is(1); rank];
    for dims in inputs {
        let offset = rank - dims.len();
        for (size, own) in whole[offset..].iter_mut().zip(*dims) {
            match (&*size, own) {
                (_, Dim::Is(1)) => {}
                (Dim::Is(1), _) => *size = own.clone(),
                _ if size.equals(own) => {}
                _ => return None,
            }
        }
    }
    Some(whole)
}

/// Whether ONNX Runtime makes one Gemm of an Add and the product that it alone reads.
fn becomes_gemm(graph: &GraphProto, node: &NodeProto, values: &Values) -> bool {
    let is_product = |input: &String| {
        let product = values.producer(graph, input).filter(|(_, product)| is(product, "MatMul"));
        let is_matrix = values.dims(input).is_none_or(|dims| dims.len() == 2);
        product.is_some() && is_matrix && values.only_reader(input).is_some()
    };
    is(node, "Add") && node.input.iter().any(is_product)
}
