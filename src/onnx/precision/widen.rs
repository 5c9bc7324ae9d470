//! Nodes without a kernel of half precision (float16, bfloat16), computing in float32.

use std::collections::HashSet;

use super::elements::{self, Element, FLOAT, is_half, is_onnx};
use super::scope::{Scope, Value, declare_float, open, push, results};
use super::{casts, half_of};
use crate::base::ids::ValueName;
use crate::onnx::graph::describe;
use crate::onnx::inline::inline_but;
use crate::onnx::proto::{FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::onnx::{Attention, OnnxError, sort, walk};

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

/// Operators that move data, too, without such kernels.
const MOVES_IN_FLOAT32: &[&str] =
    &["Compress", "DepthToSpace", "Expand", "Pad", "SpaceToDepth", "Tile", "Trilu", "Where"];

/// Operators whose result is no tensor, so that nothing can round it. ONNX has no sequence of bfloat16 before opset 24:
/// it holds float32, and what is taken out is rounded.
pub(super) const SEQUENCES: &[&str] =
    &["Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"];

/// Operators with bodies; what goes in and comes out is half precision as declared.
pub(super) const CONTROL: &[&str] = &["If", "Loop", "Scan", "SequenceMap"];

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
    Ok(widen_but(model, named_values, &HashSet::new(), Attend::InPlainNodes)?.map(|wide| wide.model))
}

/// What becomes of calls of [`Attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attend {
    /// They are put in place as other functions are.
    InPlainNodes,
    /// For a runtime with a kernel for them: functions and calls stay. What such a call reads and gives has the element
    /// type that it is declared with; float32 where something of that is not rounded.
    AsCalls,
}

/// A widened model.
#[derive(Clone, Debug, PartialEq)]
pub struct Widened {
    /// The model.
    pub model: ModelProto,
    /// What would have been rounded, in the order of the nodes.
    pub unrounded: Vec<Unrounded>,
    /// {graph output of half precision: the same in float32}, of those that are rounded there.
    pub outputs: Vec<(ValueName, ValueName)>,
}

/// A value that nothing rounds, and that would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrounded {
    /// As the model calls it.
    pub name: ValueName,
    /// What its readers read, in float32: its own name, but for a graph output.
    pub wide: ValueName,
    /// The half precision that it would have (TensorProto.DataType).
    pub element: i32,
}

/// As [`widen`], but for values of the main graph that are not rounded: who reads one gets it in float32, where nodes
/// compute as ever, and what merely moves it is not rounded either. Graph outputs are rounded all the same, and what goes
/// into and comes out of bodies. Errors: as there.
pub fn widen_but<S: AsRef<str>>(
    model: &ModelProto,
    named_values: &[S],
    unrounded: &HashSet<ValueName>,
    attend: Attend,
) -> Result<Option<Widened>, OnnxError> {
    if model.graph.is_none() {
        return Err(OnnxError::NoGraph);
    }
    let stays = |function: &FunctionProto| {
        attend == Attend::AsCalls && Attention::of(function.domain(), function.name()).is_some()
    };
    let has_half = half_of(model).is_some();
    if !has_half && !casts::any_chained(model, stays) {
        return Ok(None);
    }
    let mut wide = model.clone();
    inline_but(&mut wide, stays)?;
    let mut graph = wide.graph.take().ok_or(OnnxError::NoGraph)?;
    let names = walk::names(&graph).into_iter().map(str::to_owned).collect();
    let named = named_values.iter().map(|name| name.as_ref().to_owned()).collect();
    let mut pass = Pass { names, named, unrounded, changed: false, found: Vec::new(), outputs: Vec::new() };
    if has_half {
        sort(&mut graph)?;
        (graph, _) = pass.graph(graph, None, &[])?;
    }
    wide.graph = Some(graph);
    pass.changed |= casts::separate(&mut wide, &mut pass.names);
    let Pass { changed, found, outputs, .. } = pass;
    Ok(changed.then_some(Widened { model: wide, unrounded: found, outputs }))
}

struct Pass<'k> {
    /// Every name of the model: new ones are none of them.
    names: HashSet<String>,
    named: HashSet<String>,
    /// As asked for.
    unrounded: &'k HashSet<ValueName>,
    changed: bool,
    found: Vec<Unrounded>,
    outputs: Vec<(ValueName, ValueName)>,
}

impl Pass<'_> {
    /// The graph rewritten, and the element types of its outputs. `given`: those of its inputs, as far as known.
    fn graph(
        &mut self,
        mut graph: GraphProto,
        outer: Option<&Scope<'_>>,
        given: &[Option<Element>],
    ) -> Result<(GraphProto, Vec<Option<Element>>), OnnxError> {
        let mut scope = open(&graph, outer, given);
        if outer.is_none() {
            scope.rounded.extend(self.named.iter().cloned());
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
        let reads_unrounded = node.input.iter().any(|name| scope.is_unrounded(name));
        if Attention::called_by(&node).is_some() {
            // Sums that the backward gets are of the queries and keys that it gets, which are rounded: its softmax would
            // not add up to one.
            let saves = node.output.iter().skip(1).any(|name| scope.is_output(name));
            let node = if saves { self.with_inputs(node, scope, Self::rounded) } else { node };
            if (reads_unrounded && !saves) || node.output.iter().any(|name| self.asks(name, scope)) {
                self.compute(node, &results, false, scope);
            } else {
                let node = self.with_inputs(node, scope, Self::narrow);
                push(node, &results, scope);
            }
            return Ok(());
        }
        let is_narrow = |name: &String| scope.is_narrow(name) && !scope.is_unrounded(name);
        let all_narrow = node.input.iter().all(|name| !scope.is_half(name) || is_narrow(name));
        let moves = (MOVES.contains(&op) || MOVES_IN_FLOAT32.contains(&op)) && !reduces;
        match op {
            "Cast" | "CastLike" if let Some(&Some(half)) = results.first().filter(|to| to.is_some_and(is_half)) => {
                self.cast_to_half(at, node, half, scope)?
            }
            // A cast from half precision reads what there is.
            "Cast" if reads_unrounded && results == [Some(FLOAT)] => {
                let from = self.as_read(node.input[0].clone(), scope);
                push(casts::identity(node.name.clone(), from, node.output[0].clone()), &results, scope);
            }
            "Cast" | "CastLike" => {
                let node = self.with_inputs(node, scope, Self::as_read);
                push(node, &results, scope);
            }
            "BitCast" => {
                let node = self.with_inputs(node, scope, Self::narrow);
                push(node, &results, scope);
            }
            _ if MOVES.contains(&op) && all_narrow && !reduces => push(node, &results, scope),
            _ => self.compute(node, &results, moves && reads_unrounded, scope),
        }
        Ok(())
    }

    /// In float32; results are rounded where they are to be. `moves`: it gives what nothing rounded, as it is.
    fn compute(&mut self, node: NodeProto, results: &[Option<Element>], moves: bool, scope: &mut Scope<'_>) {
        let mut node = self.with_inputs(node, scope, Self::wide);
        let types = elements::TYPE_ATTRIBUTES;
        let own = is_onnx(&node);
        for attribute in node.attribute.iter_mut().filter(|attribute| own && types.contains(&attribute.name())) {
            if attribute.i.is_some_and(|code| is_half(code as Element)) {
                attribute.i = Some(FLOAT.into());
            }
        }
        let rounds = !SEQUENCES.contains(&node.op_type());
        let mut done = Vec::new();
        for (name, &element) in node.output.iter_mut().zip(results).filter(|(name, _)| !name.is_empty()) {
            let Some(half) = element.filter(|&element| is_half(element)) else {
                scope.add(name, element);
                continue;
            };
            let asked = self.asks(name, scope);
            let is_rounded = rounds && scope.rounded.contains(name);
            if (is_rounded && !asked && !moves) || scope.is_output(name) && rounds {
                let wide = self.fresh(&format!("{name}/unrounded"));
                done.push((std::mem::replace(name, wide.clone()), wide, half, asked || moves));
            } else {
                scope.add_wide(name, half, asked || moves);
                let found = || Unrounded { name: name.clone(), wide: name.clone(), element: half };
                self.found.extend((is_rounded && asked && !moves).then(found));
            }
        }
        self.changed = true;
        scope.nodes.push(node);
        for (name, wide, half, unrounded) in done {
            let found = || Unrounded { name: name.clone(), wide: wide.clone(), element: half };
            self.found.extend((unrounded && !moves).then(found));
            self.round(&name, wide, half, unrounded, scope);
        }
    }

    /// Rounds what is called `wide`. `unrounded`: for a graph output only, who reads it reads that.
    fn round(&mut self, name: &str, wide: String, half: Element, unrounded: bool, scope: &mut Scope<'_>) {
        let cast = self.cast(&wide, name, half);
        scope.nodes.push(cast);
        scope.add(name, Some(half));
        if scope.is_outermost() && scope.is_output(name) {
            self.outputs.push((name.to_owned(), wide.clone()));
        }
        if unrounded && let Some(value) = scope.values.get_mut(name) {
            (value.wide, value.unrounded) = (Some(wide), true);
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
        let is_number = scope.is_number(from) && !scope.rounded.contains(to);
        let is_same = scope.element(from) == Some(half);
        let moves = is_same && scope.is_unrounded(from);
        let asked = self.asks(to, scope);
        if (moves || asked) && !is_number {
            self.leave_unrounded(&node, half, asked && !is_same, scope);
            return Ok(());
        }
        let from = self.as_read(from.clone(), scope);
        if !is_number && node.op_type() == "Cast" {
            push(NodeProto { input: vec![from], ..node }, &[Some(half)], scope);
            return Ok(());
        }
        self.changed = true;
        let cast = self.cast(&from, to, if is_number { FLOAT } else { half });
        scope.nodes.push(NodeProto { name: node.name.clone(), ..cast });
        if is_number {
            scope.add_wide(to, half, false);
            scope.numbers.insert(to.clone());
        } else {
            scope.add(to, Some(half));
        }
        Ok(())
    }

    /// A cast to half precision that casts to float32 instead. `would_round`: it is what was asked for.
    fn leave_unrounded(&mut self, node: &NodeProto, half: Element, would_round: bool, scope: &mut Scope<'_>) {
        let (own, to) = (&node.input[0], &node.output[0]);
        let is_float32 = scope.is_unrounded(own) || scope.element(own) == Some(FLOAT);
        let from = self.as_read(own.clone(), scope);
        let is_output = scope.is_output(to);
        let wide = if is_output { self.fresh(&format!("{to}/unrounded")) } else { to.clone() };
        scope.nodes.push(match is_float32 {
            true => casts::identity(node.name.clone(), from, wide.clone()),
            false => NodeProto { name: node.name.clone(), ..self.cast(&from, &wide, FLOAT) },
        });
        self.changed = true;
        if would_round {
            self.found.push(Unrounded { name: to.clone(), wide: wide.clone(), element: half });
        }
        match is_output {
            true => self.round(to, wide, half, true, scope),
            false => scope.add_wide(to, half, true),
        }
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

    /// The value's name as its readers have it: in float32 where it is not rounded.
    fn as_read(&mut self, name: String, scope: &mut Scope<'_>) -> String {
        if scope.is_unrounded(&name) { self.wide(name, scope) } else { name }
    }

    /// The value's name as half precision, where it is not rounded; its readers' rounding is that of a value of its own.
    fn rounded(&mut self, name: String, scope: &mut Scope<'_>) -> String {
        if !scope.is_unrounded(&name) {
            return name;
        }
        let element = scope.element(&name);
        let narrow = self.narrow(name, scope);
        scope.add(&narrow, element);
        narrow
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

    /// Whether it is not to be rounded.
    fn asks(&self, name: &str, scope: &Scope<'_>) -> bool {
        scope.is_outermost() && self.unrounded.contains(name)
    }

    fn cast(&mut self, from: &str, to: &str, element: Element) -> NodeProto {
        casts::cast(self.fresh(&format!("cast/{to}")), from.to_owned(), to.to_owned(), element)
    }

    fn fresh(&mut self, name: &str) -> String {
        walk::fresh(name, &mut self.names)
    }
}
