//! A Pad with constants, without Pad: what is cut off is a Slice, what is added a Concat with an Expand of the value. These
//! move the elements as they are, once an axis, where casts read and write all of them twice more.

use std::collections::HashMap;

use super::super::elements::{Element, attribute, is};
use super::nodes::{constant, of};
use crate::onnx::proto::tensor_shape_proto::dimension::Value;
use crate::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, attribute_proto::AttributeType, type_proto,
};
use crate::tensor::DType;

/// More axes are a copy of everything each: casts are no slower.
const MAX_AXES: usize = 2;
/// More numbers are no pads.
const MAX_NUMBERS: usize = 64;
/// The last element, to a Slice.
const END: i64 = i64::MAX;

/// Sizes and whole numbers that a graph tells.
#[derive(Default)]
pub(super) struct Known {
    dims: HashMap<String, Vec<i64>>,
    numbers: HashMap<String, Vec<i64>>,
}

impl Known {
    /// Of the graph's declarations and weights, before its nodes.
    pub(super) fn of(graph: &GraphProto) -> Self {
        let mut known = Self::default();
        for info in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            known.dims.extend(sizes(info).map(|sizes| (info.name().to_owned(), sizes)));
        }
        let inputs: Vec<&str> = graph.input.iter().map(|input| input.name()).collect();
        for tensor in graph.initializer.iter() {
            known.dims.insert(tensor.name().to_owned(), tensor.dims.clone());
            // One that is an input may be another in a call.
            if !inputs.contains(&tensor.name()) {
                known.numbers.extend(numbers(tensor).map(|numbers| (tensor.name().to_owned(), numbers)));
            }
        }
        known
    }

    /// Of a node, if it is a Constant.
    pub(super) fn constant(&mut self, node: &NodeProto) {
        let ([value], [output]) = (node.attribute.as_slice(), node.output.as_slice()) else { return };
        if is(node, "Constant") {
            let found = match value.name() {
                "value" => value.t.as_ref().and_then(numbers),
                "value_ints" => Some(value.ints.clone()),
                _ => None,
            };
            self.numbers.extend(found.map(|found| (output.clone(), found)));
        }
    }
}

/// The nodes in the place of a Pad that puts a constant beside, as many as it says; None for another node, or where the
/// graph does not tell enough.
pub(super) fn without_pad(
    node: &NodeProto,
    inputs: &[Option<Element>],
    known: &Known,
    fresh: &mut impl FnMut(&str) -> String,
) -> Option<Vec<NodeProto>> {
    let is_constant = attribute(node, "mode").is_none_or(|mode| mode.s.as_deref() == Some(b"constant"));
    let (data, output) = (node.input.first()?, node.output.first()?);
    let input = |at: usize| node.input.get(at).filter(|name| !name.is_empty());
    let pads = known.numbers.get(input(1).filter(|_| is(node, "Pad") && is_constant)?)?;
    let mut dims = known.dims.get(data)?.clone();
    let axes = match input(3) {
        Some(axes) => known.numbers.get(axes)?.clone(),
        None => (0..i64::try_from(dims.len()).ok()?).collect(),
    };
    let sides = sides(pads, &axes, dims.len())?;
    for side in &sides {
        let size = dims[side.axis].checked_add(side.before.min(0))?.checked_add(side.after.min(0))?;
        dims[side.axis] = size;
    }
    let cut: Vec<_> = sides.iter().filter(|side| side.before.min(side.after) < 0).collect();
    let added: Vec<_> = sides.iter().filter(|side| side.before.max(side.after) > 0).collect();
    // Without elements, kernels are at their worst.
    if added.len() > MAX_AXES || dims.iter().any(|&size| size <= 0) {
        return None;
    }
    let mut writing = Writing { nodes: Vec::new(), fresh, output, name: node.name() };
    let mut from = data.clone();
    if !cut.is_empty() {
        from = writing.slice(&from, &cut, added.is_empty());
    }
    if !added.is_empty() {
        let value = match input(2) {
            Some(value) => value.clone(),
            None => writing.zero(inputs.first().copied().flatten()?)?,
        };
        for (at, side) in added.iter().enumerate() {
            from = writing.concat(&from, side, &value, &dims, at + 1 == added.len());
            dims[side.axis] = dims[side.axis].checked_add(side.before.max(0))?.checked_add(side.after.max(0))?;
        }
    }
    if sides.is_empty() {
        writing.write("Identity", &[&from], Vec::new(), true);
    }
    Some(writing.nodes)
}

/// What a Pad does to an axis; negative: it takes so many away.
struct Side {
    axis: usize,
    before: i64,
    after: i64,
}

/// One for each axis that changes. None: the numbers do not fit together.
fn sides(pads: &[i64], axes: &[i64], rank: usize) -> Option<Vec<Side>> {
    if pads.len() != 2 * axes.len() {
        return None;
    }
    let (before, after) = pads.split_at(axes.len());
    let mut sides: Vec<Side> = Vec::new();
    for ((&axis, &before), &after) in axes.iter().zip(before).zip(after) {
        let from_end = if axis < 0 { i64::try_from(rank).ok()? } else { 0 };
        let axis = usize::try_from(axis.checked_add(from_end)?).ok().filter(|&axis| axis < rank)?;
        if sides.iter().any(|side| side.axis == axis) {
            return None;
        }
        sides.extend((before != 0 || after != 0).then_some(Side { axis, before, after }));
    }
    Some(sides)
}

/// The nodes, one after the other.
struct Writing<'a, F> {
    nodes: Vec<NodeProto>,
    fresh: &'a mut F,
    output: &'a str,
    /// Of the Pad: the last one has it.
    name: &'a str,
}

impl<F: FnMut(&str) -> String> Writing<'_, F> {
    /// The name of what it gives: the Pad's, of the last node.
    fn write(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>, is_last: bool) -> String {
        let to = if is_last { self.output.to_owned() } else { (self.fresh)(&format!("{}/part", self.output)) };
        let name = if is_last { self.name } else { &to };
        self.nodes.push(NodeProto { attribute, ..of(op, inputs, &to, name) });
        to
    }

    fn slice(&mut self, from: &str, cut: &[&Side], is_last: bool) -> String {
        let end = |side: &Side| if side.after < 0 { side.after } else { END };
        let starts = self.row("starts", cut.iter().map(|side| -side.before.min(0)).collect());
        let ends = self.row("ends", cut.iter().map(|side| end(side)).collect());
        let axes = self.row("axes", cut.iter().map(|side| side.axis as i64).collect());
        self.write("Slice", &[from, &starts, &ends, &axes], Vec::new(), is_last)
    }

    /// dims: of `from`.
    fn concat(&mut self, from: &str, side: &Side, value: &str, dims: &[i64], is_last: bool) -> String {
        let [before, after] = [side.before, side.after].map(|size| (size > 0).then_some(size));
        let first = before.map(|size| self.block(side.axis, size, value, dims));
        let last =
            if before == after { first.clone() } else { after.map(|size| self.block(side.axis, size, value, dims)) };
        let inputs: Vec<&str> = first.as_deref().into_iter().chain([from]).chain(last.as_deref()).collect();
        let axis = AttributeProto {
            name: Some("axis".to_owned()),
            i: Some(side.axis as i64),
            r#type: Some(AttributeType::Int as i32),
            ..AttributeProto::default()
        };
        self.write("Concat", &inputs, vec![axis], is_last)
    }

    /// As large as `dims` say, but for an axis.
    fn block(&mut self, axis: usize, size: i64, value: &str, dims: &[i64]) -> String {
        let mut sizes = dims.to_vec();
        sizes[axis] = size;
        let shape = self.row("shape", sizes);
        self.write("Expand", &[value, &shape], Vec::new(), false)
    }

    /// A Constant of whole numbers.
    fn row(&mut self, what: &str, numbers: Vec<i64>) -> String {
        let name = (self.fresh)(&format!("{}/{what}", self.output));
        let value = TensorProto {
            dims: vec![numbers.len() as i64],
            data_type: Some(DType::I64.onnx_code()),
            raw_data: Some(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into()),
            ..TensorProto::default()
        };
        self.nodes.push(constant(&name, value));
        name
    }

    /// A Constant of rank 0.
    fn zero(&mut self, element: Element) -> Option<String> {
        let name = (self.fresh)(&format!("{}/value", self.output));
        let zero = vec![0; DType::from_onnx(element).ok()?.size_bytes()];
        let value = TensorProto { data_type: Some(element), raw_data: Some(zero.into()), ..TensorProto::default() };
        self.nodes.push(constant(&name, value));
        Some(name)
    }
}

/// None where one is not a number.
fn sizes(info: &ValueInfoProto) -> Option<Vec<i64>> {
    let type_proto::Value::TensorType(tensor) = info.r#type.as_ref()?.value.as_ref()? else { return None };
    let size = |value: Option<&Value>| match value {
        Some(Value::DimValue(size)) if *size > 0 => Some(*size),
        _ => None,
    };
    tensor.shape.as_ref()?.dim.iter().map(|dim| size(dim.value.as_ref())).collect()
}

/// Of a row of int64.
fn numbers(tensor: &TensorProto) -> Option<Vec<i64>> {
    let is_row = tensor.dims.len() == 1 && tensor.data_type() == DType::I64.onnx_code();
    if !is_row || !tensor.external_data.is_empty() || tensor.segment.is_some() {
        return None;
    }
    let (raw, rest) = tensor.raw_data().as_chunks::<8>();
    let numbers: Vec<i64> = match tensor.int64_data.is_empty() {
        true => raw.iter().map(|&number| i64::from_le_bytes(number)).collect(),
        false => tensor.int64_data.clone(),
    };
    let fits = rest.is_empty() && usize::try_from(tensor.dims[0]) == Ok(numbers.len()) && numbers.len() <= MAX_NUMBERS;
    fits.then_some(numbers)
}
