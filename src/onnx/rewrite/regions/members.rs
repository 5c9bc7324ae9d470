//! Which nodes can be in a region, and what the graph tells of their values.

use std::collections::{HashMap, HashSet};

use super::super::nodes::{attribute, is, only_output};
use super::super::values::{Dim, Values};
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::{HIGHEST_RANK, NamedTensor, Op};
use crate::tensor::DType;

/// Elements of a row, and rows, with which a sum is left to ONNX Runtime, whose threads share a row.
const LONG_ROW: i64 = 1 << 15;
const FEW_ROWS: i64 = 4;

/// What a node is in a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    Step(Op),
    /// Its value is its first input's.
    Same,
}

/// A node that can be in a region.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) meaning: Meaning,
    /// Sizes of all axes but the last.
    pub(super) leading: Vec<Dim>,
    /// Of the last axis; None where it gives one value of a row, and reads no more.
    pub(super) last: Option<Dim>,
}

/// What the pass knows of a graph.
pub(super) struct Facts {
    dims: HashMap<String, Vec<Dim>>,
    elements: HashMap<String, DType>,
    numbers: HashMap<String, f32>,
    /// Of each node.
    pub(super) members: Vec<Option<Member>>,
}

impl Facts {
    pub(super) fn of(graph: &GraphProto) -> Self {
        let values = Values::of(graph);
        let mut facts =
            Self { dims: HashMap::new(), elements: HashMap::new(), numbers: HashMap::new(), members: Vec::new() };
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
        let of_convolution = |node: &&NodeProto| matches!(node.op_type(), "Conv" | "ConvTranspose");
        let convolved: HashSet<Option<usize>> = (graph.node.iter().filter(of_convolution))
            .map(|node| values.dims(node.output.first().map_or("", String::as_str)).map(<[Dim]>::len))
            .collect();
        for node in &graph.node {
            facts.infer(node, &values);
            let rank = only_output(node).and_then(|output| facts.dims.get(output)).map(Vec::len);
            let member = facts.member(graph, node, &values);
            // ONNX Runtime lays convolutions out otherwise, and what is between them.
            let is_apart = !convolved.contains(&rank) && !convolved.contains(&None);
            facts.members.push(member.filter(|_| is_apart));
        }
        facts
    }

    pub(super) fn dims(&self, name: &str) -> Option<&[Dim]> {
        self.dims.get(name).map(Vec::as_slice)
    }

    pub(super) fn element(&self, name: &str) -> Option<DType> {
        self.elements.get(name).copied()
    }

    /// The float32 that a value is, where it is known and has one element.
    pub(super) fn number(&self, name: &str) -> Option<f32> {
        self.numbers.get(name).copied().filter(|_| self.element(name) == Some(DType::F32))
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
            && (is(node, "Identity") || self.element(output) == Some(DType::F32))
        {
            self.numbers.insert(output.to_owned(), number);
        }
        if self.dims.contains_key(output) || !(elementwise(node).is_some() || is(node, "Cast") || is(node, "Identity"))
        {
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
        let read = if reduces || is(node, "Expand") { &node.input[..1] } else { &node.input[..] };
        let fits = read.iter().all(|input| self.dims(input).is_some_and(|dims| goes_to(dims, &whole)));
        let leading = leading.to_vec();
        fits.then(|| Member { meaning, leading, last: last.filter(|last| *last != Dim::Is(1)) })
    }

    /// The size of the axis that is added up: the last one, which stays, of size 1.
    fn reduced(&self, node: &NodeProto, dims: &[Dim]) -> Option<Dim> {
        let source = self.dims(node.input.first()?)?;
        let (last, leading) = source.split_last()?;
        let is_long = matches!(last, Dim::Is(size) if *size > LONG_ROW);
        let n_rows = leading.iter().map(Dim::number).try_fold(1_i64, |rows, size| rows.checked_mul(size?));
        if is_long && n_rows.is_some_and(|n_rows| n_rows < FEW_ROWS) {
            return None;
        }
        let is_last = dims.len() == source.len() && dims.last() == Some(&Dim::Is(1)) && *last != Dim::Is(1);
        is_last.then(|| last.clone()).filter(|last| *last != Dim::Unknown)
    }

    fn meaning(&self, node: &NodeProto, output: &str) -> Option<Meaning> {
        let is_f32 = |name: &String| self.element(name) == Some(DType::F32);
        let is_bool = |name: &String| self.element(name) == Some(DType::Bool);
        let first = node.input.first()?;
        if is(node, "Identity") {
            return is_f32(first).then_some(Meaning::Same);
        }
        if is(node, "Cast") {
            return match (self.element(first)?, self.element(output)?) {
                (DType::F32 | DType::BF16 | DType::F16 | DType::Bool, DType::F32) => Some(Meaning::Same),
                (DType::F32, DType::BF16) => Some(Meaning::Step(Op::RoundBFloat16)),
                (DType::F32, DType::F16) => Some(Meaning::Step(Op::RoundFloat16)),
                _ => None,
            };
        }
        if is(node, "Expand") {
            return self.expanded(node, output).filter(|_| is_f32(first));
        }
        if let Some(op) = reduction(node) {
            return (is_f32(first) && self.is_of_last_axis(node)).then_some(Meaning::Step(op));
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
            return (is_f32(base) && stays).then_some(Meaning::Step(op));
        }
        let op = elementwise(node)?;
        let fits = node.input.len() == op.arity()
            && match op {
                Op::And | Op::Or | Op::Not => node.input.iter().all(is_bool),
                Op::Where => is_bool(first) && node.input[1..].iter().all(is_f32),
                _ => node.input.iter().all(is_f32),
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
