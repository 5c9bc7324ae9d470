//! Nodes without a kernel of half precision (float16, bfloat16), computing in float32.

use std::collections::{HashMap, HashSet};

use super::elements::{self, Element, FLOAT, is_half, is_onnx};
use super::{casts, mentions};
use crate::onnx::graph::describe;
use crate::onnx::inline::inline_but;
use crate::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, type_proto};
use crate::onnx::{Attention, OnnxError, sort, walk};
use crate::tensor::DType;

/// Operators that move data and whose kernels of half precision on the CPU work, in onnxruntime 1.31.1 at opsets 18 and 23.
/// Those of `ScatterElements` and `ScatterND` do without a reduction only. Compress, DepthToSpace, Equal, Expand, IsNaN
/// (18), NonZero, Pad, Size, Tile, Trilu and Where have none of bfloat16; for Constant none is needed.
const MOVES: &[&str] = &[
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Operators whose result is no tensor, so that nothing can round it. ONNX has no sequence of bfloat16 before opset 24:
/// it holds float32, and what is taken out is rounded.
const SEQUENCES: &[&str] =
    &["Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"];

/// Operators with bodies; what goes in and comes out is half precision as declared.
const CONTROL: &[&str] = &["If", "Loop", "Scan", "SequenceMap"];

/// The model in which every node that has no kernel of half precision computes in float32, and no cast is left out; None
/// where nothing had to change. (ONNX Runtime computes float16 so by itself, and leaves out the rounding between two
/// such nodes.)
///
/// Graph inputs, graph outputs and `named_values` keep name and element type: torch rounds once, when an operator is
/// done. What lies between two of them is float32 and rounded by a Cast of the model only, but for that of a number:
/// torch takes numbers in float32. Bodies of If, Loop and Scan likewise, but for their inputs and outputs. Weights are
/// cast by the graph, not here. Model-local functions are put in place.
/// Errors: those of [`crate::onnx::inline_functions`] and [`sort`], [`OnnxError::ElementType`], [`OnnxError::Arity`].
pub fn widen<S: AsRef<str>>(model: &ModelProto, named_values: &[S]) -> Result<Option<ModelProto>, OnnxError> {
    widen_but(model, named_values, |_| false)
}

/// As [`widen`], for a runtime with a kernel for the functions of [`Attention`]: these, and calls of them, are kept. What
/// such a call reads and gives has the element type that it is declared with.
pub fn widen_around_attention<S: AsRef<str>>(
    model: &ModelProto,
    named_values: &[S],
) -> Result<Option<ModelProto>, OnnxError> {
    widen_but(model, named_values, |function| Attention::of(function.domain(), function.name()).is_some())
}

fn widen_but<S: AsRef<str>>(
    model: &ModelProto,
    named_values: &[S],
    kept: impl Fn(&FunctionProto) -> bool,
) -> Result<Option<ModelProto>, OnnxError> {
    if model.graph.is_none() {
        return Err(OnnxError::NoGraph);
    }
    let has_half = [DType::BF16, DType::F16].iter().any(|&half| mentions(model, half));
    if !has_half && !casts::any_chained(model, &kept) {
        return Ok(None);
    }
    let mut wide = model.clone();
    inline_but(&mut wide, kept)?;
    let mut graph = wide.graph.take().ok_or(OnnxError::NoGraph)?;
    let names = walk::names(&graph).into_iter().map(str::to_owned).collect();
    let named = named_values.iter().map(|name| name.as_ref().to_owned()).collect();
    let mut pass = Pass { names, named, changed: false };
    if has_half {
        sort(&mut graph)?;
        (graph, _) = pass.graph(graph, None, &[])?;
    }
    wide.graph = Some(graph);
    pass.changed |= casts::separate(&mut wide, &mut pass.names);
    Ok(pass.changed.then_some(wide))
}

struct Pass {
    /// Every name of the model: new ones are none of them.
    names: HashSet<String>,
    named: HashSet<String>,
    changed: bool,
}

/// What is known of a value. One of `narrow` and `wide` is its own name; the other, once needed, that of a cast.
#[derive(Clone, Default)]
struct Value {
    element: Option<Element>,
    narrow: Option<String>,
    wide: Option<String>,
}

/// The graph that is being written, inside those around it.
struct Scope<'a> {
    outer: Option<&'a Scope<'a>>,
    values: HashMap<String, Value>,
    /// Values that keep their element type.
    kept: HashSet<String>,
    /// Constants of rank 0, and what is computed of nothing else.
    numbers: HashSet<String>,
    /// What the graph says of types; asked where the operator does not tell.
    declared: HashMap<String, Element>,
    nodes: Vec<NodeProto>,
}

impl Scope<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).or_else(|| self.outer?.value(name))
    }

    fn element(&self, name: &str) -> Option<Element> {
        self.value(name)?.element
    }

    fn is_half(&self, name: &str) -> bool {
        self.element(name).is_some_and(is_half)
    }

    fn is_narrow(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.narrow.as_deref() == Some(name))
    }

    fn is_number(&self, name: &str) -> bool {
        match self.values.contains_key(name) {
            true => self.numbers.contains(name),
            false => self.outer.is_some_and(|outer| outer.is_number(name)),
        }
    }

    /// A value under its own name as the original model has it.
    fn add(&mut self, name: &str, element: Option<Element>) {
        let value = Value { element, narrow: Some(name.to_owned()), wide: None };
        self.values.insert(name.to_owned(), value);
    }

    /// A value of half precision that is float32 under its own name.
    fn add_wide(&mut self, name: &str, half: Element) {
        let value = Value { element: Some(half), narrow: None, wide: Some(name.to_owned()) };
        self.values.insert(name.to_owned(), value);
    }
}

impl Pass {
    /// The graph rewritten, and the element types of its outputs. `given`: those of its inputs, as far as known.
    fn graph(
        &mut self,
        mut graph: GraphProto,
        outer: Option<&Scope<'_>>,
        given: &[Option<Element>],
    ) -> Result<(GraphProto, Vec<Option<Element>>), OnnxError> {
        let mut scope = open(&graph, outer, given);
        if outer.is_none() {
            scope.kept.extend(self.named.iter().cloned());
        }
        for (at, node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
            self.node(at, node, &mut scope)?;
        }
        let results = graph.output.iter().map(|output| scope.element(output.name())).collect();
        for output in &mut graph.output {
            // Only a value from outside can be wide here.
            if scope.is_half(output.name()) {
                output.name = Some(self.narrow(output.name().to_owned(), &mut scope));
            }
        }
        graph
            .value_info
            .retain_mut(|info| !scope.is_half(info.name()) || scope.is_narrow(info.name()) || declare_float(info));
        graph.node = scope.nodes;
        Ok((graph, results))
    }

    fn node(&mut self, at: usize, node: NodeProto, scope: &mut Scope<'_>) -> Result<(), OnnxError> {
        let inputs: Vec<_> = node.input.iter().map(|name| scope.element(name)).collect();
        let op = if is_onnx(&node) { node.op_type() } else { "" };
        if CONTROL.contains(&op) {
            return self.control(node, &inputs, scope);
        }
        let results = results(at, &node, &inputs, scope)?;
        if !inputs.iter().chain(&results).any(|element| element.is_some_and(is_half)) {
            push(node, &results, scope);
            return Ok(());
        }
        let reduces = elements::attribute(&node, "reduction").is_some_and(|mode| mode.s.as_deref() != Some(b"none"));
        if Attention::called_by(&node).is_some() {
            let node = self.with_inputs(node, scope, Self::narrow);
            push(node, &results, scope);
            return Ok(());
        }
        let all_narrow = node.input.iter().all(|name| !scope.is_half(name) || scope.is_narrow(name));
        match op {
            "Cast" | "CastLike" if let Some(&Some(half)) = results.first().filter(|to| to.is_some_and(is_half)) => {
                self.cast_to_half(at, node, half, scope)?
            }
            // A cast from half precision reads what there is.
            "Cast" | "CastLike" => push(node, &results, scope),
            "BitCast" => {
                let node = self.with_inputs(node, scope, Self::narrow);
                push(node, &results, scope);
            }
            _ if MOVES.contains(&op) && all_narrow && !reduces => push(node, &results, scope),
            _ => self.compute(node, &results, scope),
        }
        Ok(())
    }

    /// In float32; results that keep their element type are rounded.
    fn compute(&mut self, node: NodeProto, results: &[Option<Element>], scope: &mut Scope<'_>) {
        let mut node = self.with_inputs(node, scope, Self::wide);
        let types = elements::TYPE_ATTRIBUTES;
        let own = is_onnx(&node);
        for attribute in node.attribute.iter_mut().filter(|attribute| own && types.contains(&attribute.name())) {
            if attribute.i.is_some_and(|code| is_half(code as Element)) {
                attribute.i = Some(FLOAT.into());
            }
        }
        let rounds = !SEQUENCES.contains(&node.op_type());
        let mut rounded = Vec::new();
        for (name, &element) in node.output.iter_mut().zip(results).filter(|(name, _)| !name.is_empty()) {
            match element {
                Some(half) if is_half(half) && rounds && scope.kept.contains(name) => {
                    let unrounded = self.fresh(&format!("{name}/unrounded"));
                    rounded.push((std::mem::replace(name, unrounded.clone()), unrounded, half));
                }
                Some(half) if is_half(half) => scope.add_wide(name, half),
                _ => scope.add(name, element),
            }
        }
        self.changed = true;
        scope.nodes.push(node);
        for (name, unrounded, half) in rounded {
            let cast = self.cast(&unrounded, &name, half);
            scope.nodes.push(cast);
            scope.add(&name, Some(half));
        }
    }

    /// A cast to half precision rounds, but that of a number: what computes with it takes it in float32.
    /// Errors: [`OnnxError::Arity`].
    fn cast_to_half(
        &mut self,
        at: usize,
        node: NodeProto,
        half: Element,
        scope: &mut Scope<'_>,
    ) -> Result<(), OnnxError> {
        let (Some(from), [to]) = (node.input.first(), node.output.as_slice()) else {
            let (n_inputs, n_outputs) = (node.input.len(), node.output.len());
            return Err(OnnxError::Arity { node: describe(at, &node), n_inputs, n_outputs });
        };
        let is_number = scope.is_number(from) && !scope.kept.contains(to);
        if !is_number && node.op_type() == "Cast" {
            push(node, &[Some(half)], scope);
            return Ok(());
        }
        self.changed = true;
        let cast = self.cast(from, to, if is_number { FLOAT } else { half });
        scope.nodes.push(NodeProto { name: node.name.clone(), ..cast });
        if is_number {
            scope.add_wide(to, half);
            scope.numbers.insert(to.clone());
        } else {
            scope.add(to, Some(half));
        }
        Ok(())
    }

    fn control(&mut self, node: NodeProto, inputs: &[Option<Element>], scope: &mut Scope<'_>) -> Result<(), OnnxError> {
        let given: Vec<_> = match node.op_type() {
            // Number and condition, then what is carried.
            "Loop" => {
                [Some(elements::INT64), Some(elements::BOOL)].iter().chain(inputs.iter().skip(2)).copied().collect()
            }
            _ => inputs.to_vec(),
        };
        let mut node = self.with_inputs(node, scope, Self::narrow);
        let mut results = Vec::new();
        for body in walk::bodies_mut(&mut node) {
            let (wide, of_body) = self.graph(std::mem::take(body), Some(scope), &given)?;
            *body = wide;
            results = of_body;
        }
        // A loop's body gives the next condition first.
        results.drain(..usize::from(node.op_type() == "Loop").min(results.len()));
        push(node, &results, scope);
        Ok(())
    }

    fn with_inputs(
        &mut self,
        mut node: NodeProto,
        scope: &mut Scope<'_>,
        form: fn(&mut Self, String, &mut Scope<'_>) -> String,
    ) -> NodeProto {
        for name in &mut node.input {
            if scope.is_half(name) {
                *name = form(self, std::mem::take(name), scope);
            }
        }
        node
    }

    /// The value's name as half precision.
    fn narrow(&mut self, name: String, scope: &mut Scope<'_>) -> String {
        let value = scope.value(&name).cloned().unwrap_or_default();
        if let Some(narrow) = value.narrow {
            return narrow;
        }
        let narrow = self.fresh(&format!("{name}/half"));
        if let Some(half) = value.element {
            scope.nodes.push(self.cast(&name, &narrow, half));
        }
        self.changed = true;
        scope.values.insert(name, Value { narrow: Some(narrow.clone()), ..value });
        narrow
    }

    /// The value's name as float32.
    fn wide(&mut self, name: String, scope: &mut Scope<'_>) -> String {
        let value = scope.value(&name).cloned().unwrap_or_default();
        if let Some(wide) = value.wide {
            return wide;
        }
        let wide = self.fresh(&format!("{name}/float32"));
        scope.nodes.push(self.cast(&name, &wide, FLOAT));
        scope.values.insert(name, Value { wide: Some(wide.clone()), ..value });
        wide
    }

    fn cast(&mut self, from: &str, to: &str, element: Element) -> NodeProto {
        casts::cast(self.fresh(&format!("cast/{to}")), from.to_owned(), to.to_owned(), element)
    }

    fn fresh(&mut self, name: &str) -> String {
        walk::fresh(name, &mut self.names)
    }
}

/// A graph before its first node.
fn open<'a>(graph: &GraphProto, outer: Option<&'a Scope<'a>>, given: &[Option<Element>]) -> Scope<'a> {
    let declared = |info: &ValueInfoProto| Some((info.name().to_owned(), elements::of_type(info.r#type.as_ref())?));
    let mut scope = Scope {
        outer,
        values: HashMap::new(),
        kept: graph.output.iter().map(|output| output.name().to_owned()).collect(),
        numbers: HashSet::new(),
        declared: graph.value_info.iter().chain(&graph.output).filter_map(declared).collect(),
        nodes: Vec::with_capacity(graph.node.len()),
    };
    for tensor in &graph.initializer {
        scope.add(tensor.name(), tensor.data_type);
        if tensor.dims.is_empty() {
            scope.numbers.insert(tensor.name().to_owned());
        }
    }
    for tensor in graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref()) {
        scope.add(tensor.name(), tensor.data_type);
    }
    for (at, input) in graph.input.iter().enumerate() {
        let element = elements::of_type(input.r#type.as_ref()).or(given.get(at).copied().flatten());
        scope.add(input.name(), element);
    }
    scope
}

/// The node as it is, with results as they were.
fn push(node: NodeProto, results: &[Option<Element>], scope: &mut Scope<'_>) {
    let of_numbers =
        elements::OF_NUMBERS.contains(&node.op_type()) && node.input.iter().all(|name| scope.is_number(name));
    let is_number = is_onnx(&node) && (elements::is_number(&node) || of_numbers);
    for (at, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        scope.add(name, results.get(at).copied().flatten());
        if is_number {
            scope.numbers.insert(name.clone());
        }
    }
    scope.nodes.push(node);
}

/// Element types of a node's outputs. The operator goes before what is declared: the exporter declares what torch said,
/// which a node may contradict. Errors: [`OnnxError::ElementType`].
fn results(
    at: usize,
    node: &NodeProto,
    inputs: &[Option<Element>],
    scope: &Scope<'_>,
) -> Result<Vec<Option<Element>>, OnnxError> {
    let of_result = |(index, name): (usize, &String)| {
        elements::of_result(node, index, inputs).or_else(|| scope.declared.get(name).copied())
    };
    let results: Vec<_> = node.output.iter().enumerate().map(of_result).collect();
    let unknown = results.iter().zip(&node.output).any(|(element, name)| element.is_none() && !name.is_empty());
    if unknown && inputs.iter().any(|element| element.is_some_and(is_half)) {
        return Err(OnnxError::ElementType { node: describe(at, node) });
    }
    Ok(results)
}

/// False for what is no tensor: a sequence's type says more than that of its tensors.
fn declare_float(info: &mut ValueInfoProto) -> bool {
    let value = info.r#type.as_mut().and_then(|declared: &mut TypeProto| declared.value.as_mut());
    let Some(type_proto::Value::TensorType(tensor)) = value else { return false };
    tensor.elem_type = Some(FLOAT);
    true
}
