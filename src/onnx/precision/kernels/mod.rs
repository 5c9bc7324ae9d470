//! Nodes for which a provider has no kernel of half precision (float16, bfloat16), done otherwise: by other nodes that give
//! the same, or in float32, each result rounded, as the kernels of torch do it. Pads of integers, too.

mod cuda;
mod nodes;
mod pad;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use super::elements::{self, BOOL, Element, FLOAT, INT64, TYPE_ATTRIBUTES, is, is_half, is_onnx};
use super::widen::{CONTROL, SEQUENCES};
use super::{casts, half_of};
use crate::onnx::inline::inline_but;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::{OnnxError, sort, walk};
use crate::tensor::DType;
use nodes::{constant, of};

/// The name of this pass.
pub const MISSING_KERNELS: &str = "missing-kernels";

/// Beginnings and ends of an operator's name in what ONNX Runtime says when it refuses a model: no provider takes a node, a
/// kernel is not found, the operator does not have the type.
const REFUSALS: &[(&str, &str)] =
    &[("Provider type for ", " node"), ("Could not find an implementation for ", "("), ("of operator (", ")")];

/// The operator that ONNX Runtime named when it refused a model; None: none.
pub fn refused_operator(refusal: &str) -> Option<&str> {
    REFUSALS.iter().find_map(|(before, after)| {
        let (name, _) = refusal.split_once(before)?.1.split_once(after)?;
        (!name.is_empty() && name.chars().all(char::is_alphanumeric)).then_some(name)
    })
}

/// Operators that have the element type that they say, or give what they have.
const NOT_WIDENED: &[&str] = &["BitCast", "Cast", "CastLike", "Constant"];

/// Which kernels of half precision a provider lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingKernels {
    /// Of the CUDA provider, as it was measured.
    is_known: bool,
    /// Operators that the library refused.
    refused: BTreeSet<String>,
}

impl MissingKernels {
    /// Of the CUDA provider that was measured.
    pub fn measured() -> Self {
        Self { is_known: true, refused: BTreeSet::new() }
    }

    /// Of the CUDA provider in ONNX Runtime's library of this version; of one that was not measured nothing is known but
    /// what it refuses.
    pub fn of_cuda(version: &str) -> Self {
        if cuda::knows(version) { Self::measured() } else { Self::default() }
    }

    /// Learns from what ONNX Runtime said when it refused a model. The operator that it named; None: none, or one that was
    /// known.
    pub fn learn(&mut self, refusal: &str) -> Option<String> {
        let named = refused_operator(refusal)?.to_owned();
        self.refused.insert(named.clone()).then_some(named)
    }

    /// Whether a node of this operator lacks a kernel of the type.
    fn lacks(&self, op: &str, opset: i64, element: Element) -> bool {
        let is_refused = is_half(element) && self.refused.contains(op);
        is_refused || self.is_known && DType::from_onnx(element).is_ok_and(|dtype| cuda::lacks(op, opset, dtype))
    }

    /// {(domain, name)} of the model-local functions with a node, in themselves or in functions that they call, that lacks a
    /// kernel where it is half precision. All others stay calls: somebody may have a kernel for them.
    fn functions(&self, model: &ModelProto, opset: i64) -> HashSet<(String, String)> {
        let mut found = HashSet::new();
        let lacks = |node: &NodeProto, found: &HashSet<_>| {
            let half = |half: DType| self.lacks(node.op_type(), opset, half.onnx_code());
            let calls = (node.domain().to_owned(), node.op_type().to_owned());
            is_onnx(node) && [DType::BF16, DType::F16].into_iter().any(half) || found.contains(&calls)
        };
        loop {
            let before = found.len();
            for function in &model.functions {
                let bodies = walk::graphs(function.node.iter().flat_map(walk::bodies));
                let mut nodes = function.node.iter().chain(bodies.flat_map(|body| &body.node));
                if nodes.any(|node| lacks(node, &found)) {
                    found.insert((function.domain().to_owned(), function.name().to_owned()));
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// Whether the node may be done otherwise. Of what it reads and gives any half precision counts, of other types that of
    /// what comes first: pads are integers.
    fn has(&self, node: &NodeProto, opset: i64, inputs: &[Option<Element>], results: &[Option<Element>]) -> bool {
        let op = node.op_type();
        if !is_onnx(node) || [NOT_WIDENED, SEQUENCES, CONTROL].iter().any(|ops| ops.contains(&op)) {
            return false;
        }
        let lacks = |element| self.lacks(op, opset, element);
        let mut halves = inputs.iter().chain(results).flatten().filter(|&&element| is_half(element));
        let first = inputs.first().copied().flatten();
        halves.any(|&half| lacks(half)) || first.is_some_and(lacks)
    }
}

/// Does what these kernels are missing for otherwise, in the main graph and in bodies; model-local functions with such nodes
/// are put in place. The number of nodes; 0: the model is as it was. Values keep their names and types.
///
/// A Pad with constants becomes Concats, a ConstantOfShape an Expand; all others read float32 by Casts, and what they give
/// is rounded by Casts. Errors: those of [`crate::onnx::inline_functions`] and [`sort`].
pub fn around_missing_kernels(model: &mut ModelProto, missing: &MissingKernels) -> Result<usize, OnnxError> {
    let has_half = half_of(model).is_some();
    let has_pad = || walk::graphs(&model.graph).flat_map(|graph| &graph.node).any(|node| is(node, "Pad"));
    if !has_half && !has_pad() {
        return Ok(0);
    }
    let (mut whole, opset) = (model.clone(), casts::opset(model));
    if has_half {
        let functions = missing.functions(model, opset);
        inline_but(&mut whole, |function| {
            !functions.contains(&(function.domain().to_owned(), function.name().to_owned()))
        })?;
    }
    let Some(graph) = &mut whole.graph else { return Err(OnnxError::NoGraph) };
    sort(graph)?;
    let names = walk::names(graph).into_iter().map(str::to_owned).collect();
    let mut pass = Pass { missing, opset, names, n_places: 0 };
    pass.graph(graph, &HashMap::new(), &[]);
    let n_places = pass.n_places;
    if n_places > 0 {
        *model = whole;
    }
    Ok(n_places)
}

/// {value: its element type}.
type Elements = HashMap<String, Element>;

struct Pass<'m> {
    missing: &'m MissingKernels,
    opset: i64,
    /// Of the model: new ones are none of them.
    names: HashSet<String>,
    n_places: usize,
}

/// A graph that is being written.
struct Writing {
    elements: Elements,
    /// Types that the graph declares; asked where the operator does not tell.
    declared: Elements,
    /// {value of half precision: the same in float32}.
    wide: HashMap<String, String>,
    known: pad::Known,
    nodes: Vec<NodeProto>,
}

impl Pass<'_> {
    /// outer: what graphs around it have. given: the element types of its inputs, as far as known.
    fn graph(&mut self, graph: &mut GraphProto, outer: &Elements, given: &[Option<Element>]) {
        let declared = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
        let declared: Elements = declared
            .filter_map(|info| Some((info.name().to_owned(), elements::of_type(info.r#type.as_ref())?)))
            .collect();
        let mut elements = outer.clone();
        let of_input = |(at, name): (usize, &str)| {
            let element = declared.get(name).copied().or(given.get(at).copied().flatten())?;
            Some((name.to_owned(), element))
        };
        elements.extend(graph.input.iter().map(|input| input.name()).enumerate().filter_map(of_input));
        let weights = graph.initializer.iter();
        elements.extend(weights.filter_map(|tensor| Some((tensor.name().to_owned(), tensor.data_type?))));
        let known = pad::Known::of(graph);
        let mut writing = Writing { elements, declared, wide: HashMap::new(), known, nodes: Vec::new() };
        for node in std::mem::take(&mut graph.node) {
            self.node(node, &mut writing);
        }
        graph.node = writing.nodes;
    }

    fn node(&mut self, mut node: NodeProto, writing: &mut Writing) {
        let inputs: Vec<_> = node.input.iter().map(|name| writing.elements.get(name).copied()).collect();
        self.bodies(&mut node, &inputs, writing);
        let of_result = |(index, name): (usize, &String)| {
            elements::of_result(&node, index, &inputs).or_else(|| writing.declared.get(name).copied())
        };
        let results: Vec<_> = node.output.iter().enumerate().map(of_result).collect();
        for (name, element) in node.output.iter().zip(&results) {
            writing.elements.extend(element.map(|element| (name.clone(), element)));
        }
        writing.known.constant(&node);
        if !self.missing.has(&node, self.opset, &inputs, &results) {
            writing.nodes.push(node);
            return;
        }
        let fresh = &mut |name: &str| walk::fresh(name, &mut self.names);
        let others = pad::without_pad(&node, &inputs, &writing.known, fresh).or_else(|| filled(&node, fresh));
        let has_half = inputs.iter().chain(&results).any(|element| element.is_some_and(is_half));
        self.n_places += usize::from(others.is_some() || has_half);
        match others {
            // Of these one may lack a kernel, too, where refusals told so.
            Some(nodes) => nodes.into_iter().for_each(|node| self.node(node, writing)),
            None if has_half => self.widen(node, &inputs, &results, writing),
            None => writing.nodes.push(node),
        }
    }

    fn bodies(&mut self, node: &mut NodeProto, inputs: &[Option<Element>], writing: &Writing) {
        let given: Vec<_> = match node.op_type() {
            // Number and condition, then what is carried.
            "Loop" => [Some(INT64), Some(BOOL)].iter().chain(inputs.iter().skip(2)).copied().collect(),
            "Scan" => inputs.to_vec(),
            _ => Vec::new(),
        };
        for body in walk::bodies_mut(node) {
            self.graph(body, &writing.elements, &given);
        }
    }

    /// In float32, each result rounded.
    fn widen(
        &mut self,
        mut node: NodeProto,
        inputs: &[Option<Element>],
        results: &[Option<Element>],
        writing: &mut Writing,
    ) {
        let is_half = |element: &Option<Element>| element.is_some_and(is_half);
        for (name, _) in node.input.iter_mut().zip(inputs).filter(|(_, element)| is_half(element)) {
            *name = self.wide(name, writing);
        }
        for attribute in node.attribute.iter_mut().filter(|attribute| TYPE_ATTRIBUTES.contains(&attribute.name())) {
            if is_half(&attribute.i.map(|code| code as Element)) {
                attribute.i = Some(FLOAT.into());
            }
        }
        let mut rounded = Vec::new();
        for (name, element) in node.output.iter_mut().zip(results).filter(|(name, _)| !name.is_empty()) {
            let Some(half) = element.filter(|_| is_half(element)) else { continue };
            let wide = self.fresh(&format!("{name}/unrounded"));
            let to = std::mem::replace(name, wide.clone());
            rounded.push(casts::cast(self.fresh(&format!("cast/{to}")), wide, to, half));
        }
        writing.nodes.push(node);
        writing.nodes.extend(rounded);
    }

    /// The value in float32; one Cast serves all that read it so.
    fn wide(&mut self, name: &str, writing: &mut Writing) -> String {
        if let Some(wide) = writing.wide.get(name) {
            return wide.clone();
        }
        let wide = self.fresh(&format!("{name}/float32"));
        writing.nodes.push(casts::cast(self.fresh(&format!("cast/{wide}")), name.to_owned(), wide.clone(), FLOAT));
        writing.wide.insert(name.to_owned(), wide.clone());
        wide
    }

    fn fresh(&mut self, name: &str) -> String {
        walk::fresh(name, &mut self.names)
    }
}

/// A ConstantOfShape as an Expand of its value; None for another node. What gives zeros by default gives float32.
fn filled(node: &NodeProto, fresh: &mut impl FnMut(&str) -> String) -> Option<Vec<NodeProto>> {
    let value = elements::attribute(node, "value").filter(|_| is(node, "ConstantOfShape"))?.t.clone()?;
    let ([shape], [output]) = (node.input.as_slice(), node.output.as_slice()) else { return None };
    let name = fresh(&format!("{output}/value"));
    let expand = NodeProto { attribute: Vec::new(), ..of("Expand", &[&name, shape], output, node.name()) };
    Some(vec![constant(&name, TensorProto { name: None, ..value }), expand])
}
