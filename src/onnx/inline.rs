//! Model-local functions put in their callers' place.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use prost::Message as _;

use super::OnnxError;
use super::attention::Attention;
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use super::walk;

/// A model may not grow past this many nodes, nor by more calls: functions that call functions grow exponentially.
const MAX_NODES: usize = 1_000_000;
/// Nor by more bytes than these and so many times those of its functions, nor by more than protobuf readers accept: a list of
/// short texts takes sixteen times its bytes in memory.
const GROWTH_BYTES: usize = 256 << 20;
const GROWTH_FACTOR: usize = 16;
const MAX_BYTES: usize = i32::MAX as usize;
/// Nor by more steps: of a call its function's inputs, outputs and defaults, used or not, and of each node there its inputs,
/// outputs and attributes.
const MAX_STEPS: usize = 4_000_000;
/// Characters of a function's name in the names of its values.
const SHOWN_NAME: usize = 64;
/// Calls inside calls. Every level is one of recursion, here.
const MAX_CALL_DEPTH: usize = 64;
/// Bodies (of If, Loop, …) inside bodies, which calls may add to. Every level is one of recursion wherever a graph is
/// walked, and three of the hundred that protobuf readers accept.
const MAX_BODY_DEPTH: usize = 30;

/// Replace every call of a model-local function by the function's nodes, subgraphs included, until none is left; the
/// functions themselves are dropped. Values given by a call keep their names; the values inside a function get a prefix
/// that no name of the model starts with. Names of the nodes get it too.
/// Errors: [`OnnxError::Inline`] for recursion, calls nested more than 64 deep, bodies more than 30, opset versions that
/// differ, calls with too many inputs or outputs, a result of more than a million nodes or 2 GiB, or one that takes more than
/// four million steps; [`OnnxError::NoGraph`]. The model is unchanged after an error.
pub fn inline_functions(model: &mut ModelProto) -> Result<(), OnnxError> {
    inline_but(model, |_| false)
}

/// As [`inline_functions`], but for the functions of [`Attention`]: these, and calls of them, are kept.
pub fn inline_around_attention(model: &mut ModelProto) -> Result<(), OnnxError> {
    inline_but(model, |function| Attention::of(function.domain(), function.name()).is_some())
}

/// As [`inline_functions`], but for the functions that are kept, and calls of them.
pub(super) fn inline_but(model: &mut ModelProto, kept: impl Fn(&FunctionProto) -> bool) -> Result<(), OnnxError> {
    let Some(graph) = &model.graph else { return Err(OnnxError::NoGraph) };
    if model.functions.iter().all(&kept) {
        return Ok(());
    }
    let replaced = model.functions.iter().filter(|function| !kept(function));
    let functions: Vec<_> = replaced.collect();
    let mut inliner = Inliner::of(&functions, free_prefix(graph));
    let mut inlined = graph.clone();
    inliner.graph(&mut inlined, &mut Vec::new())?;
    let opsets = merged_opsets(model, &inliner.used, &kept)?;
    model.graph = Some(inlined);
    model.opset_import = opsets;
    model.functions.retain(kept);
    Ok(())
}

type Key = (String, String, String);

struct Inliner<'a> {
    /// Each with its steps in a call.
    functions: HashMap<Key, (&'a FunctionProto, usize)>,
    base: String,
    n_calls: usize,
    n_nodes: usize,
    n_steps: usize,
    /// Of the functions put in place so far.
    n_bytes: usize,
    /// At most so many.
    max_bytes: usize,
    body_depth: usize,
    used: BTreeSet<Key>,
}

impl<'a> Inliner<'a> {
    fn of(functions: &[&'a FunctionProto], base: String) -> Self {
        let len_bytes = functions.iter().map(|function| function.encoded_len()).fold(0, usize::saturating_add);
        let max_bytes = len_bytes.saturating_mul(GROWTH_FACTOR).saturating_add(GROWTH_BYTES).min(MAX_BYTES);
        let functions = functions.iter().map(|&function| (key_of_function(function), (function, steps(function))));
        Self {
            functions: functions.collect(),
            base,
            n_calls: 0,
            n_nodes: 0,
            n_steps: 0,
            n_bytes: 0,
            max_bytes,
            body_depth: 0,
            used: BTreeSet::new(),
        }
    }

    fn graph(&mut self, graph: &mut GraphProto, stack: &mut Vec<Key>) -> Result<(), OnnxError> {
        graph.node = self.nodes(std::mem::take(&mut graph.node), stack)?;
        Ok(())
    }

    fn nodes(&mut self, nodes: Vec<NodeProto>, stack: &mut Vec<Key>) -> Result<Vec<NodeProto>, OnnxError> {
        let mut result = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            let key = key_of_call(&node);
            if let Some(&(function, n_steps)) = self.functions.get(&key) {
                self.check_call(&key, stack)?;
                self.n_steps = self.n_steps.saturating_add(n_steps).saturating_add(node.attribute.len());
                if self.n_steps > MAX_STEPS {
                    let why = format!(
                        "the calls of the model's functions take more than {MAX_STEPS} steps, {n_steps} each of this one; \
                         keep its functions, or export it flatter"
                    );
                    return Err(fail(&key, &why));
                }
                let body = self.expand(function, &node)?;
                self.used.insert(key.clone());
                stack.push(key);
                result.extend(self.nodes(body, stack)?);
                stack.pop();
                continue;
            }
            self.n_nodes += 1;
            if self.n_nodes > MAX_NODES {
                return Err(fail(&key, &format!("the model grows past {MAX_NODES} nodes; keep its functions")));
            }
            walk::bodies_mut(&mut node).try_for_each(|body| self.body(body, &key, stack))?;
            result.push(node);
        }
        Ok(result)
    }

    fn check_call(&self, key: &Key, stack: &[Key]) -> Result<(), OnnxError> {
        if stack.contains(key) {
            return Err(fail(key, "it calls itself; ONNX functions may not"));
        }
        let depth = stack.len() + 1;
        if depth > MAX_CALL_DEPTH {
            let why =
                format!("calls nest {depth} deep here: at most {MAX_CALL_DEPTH} are put in place; export flatter");
            return Err(fail(key, &why));
        }
        if self.n_calls >= MAX_NODES {
            return Err(fail(key, &format!("the model grows by more than {MAX_NODES} calls; keep its functions")));
        }
        Ok(())
    }

    fn body(&mut self, body: &mut GraphProto, key: &Key, stack: &mut Vec<Key>) -> Result<(), OnnxError> {
        self.body_depth += 1;
        let depth = self.body_depth;
        if depth > MAX_BODY_DEPTH {
            let why = format!("bodies nest {depth} deep here: at most {MAX_BODY_DEPTH} are run; export flatter");
            return Err(fail(key, &why));
        }
        self.graph(body, stack)?;
        self.body_depth -= 1;
        Ok(())
    }

    /// The function's nodes in the words of the call.
    fn expand(&mut self, function: &FunctionProto, call: &NodeProto) -> Result<Vec<NodeProto>, OnnxError> {
        let key = key_of_call(call);
        if call.input.len() > function.input.len() || call.output.len() > function.output.len() {
            let (n_inputs, n_outputs) = (call.input.len(), call.output.len());
            let (most_in, most_out) = (function.input.len(), function.output.len());
            return Err(fail(
                &key,
                &format!("called with {n_inputs} inputs and {n_outputs} outputs, it has {most_in} and {most_out}"),
            ));
        }
        let op: String = call.op_type().chars().take(SHOWN_NAME).collect();
        let prefix = format!("{}{}/{op}/", self.base, self.n_calls);
        self.n_calls += 1;
        let mut names: HashMap<&str, String> = HashMap::new();
        for (at, formal) in function.input.iter().enumerate() {
            names.insert(formal, call.input.get(at).cloned().unwrap_or_default());
        }
        let too_large = || fail(&key, &format!("the model grows past {} bytes; keep its functions", self.max_bytes));
        let (mut copies, mut copied_bytes) = (Vec::new(), self.n_bytes);
        for (formal, actual) in function.output.iter().zip(&call.output).filter(|(_, actual)| !actual.is_empty()) {
            // An output that is an input, or is given twice, has a name already.
            if let Some(source) = names.get(formal.as_str()) {
                copied_bytes = copied_bytes.saturating_add(source.len() + actual.len());
                if copied_bytes > self.max_bytes {
                    return Err(too_large());
                }
                copies.push(NodeProto {
                    op_type: Some("Identity".into()),
                    input: vec![source.clone()],
                    output: vec![actual.clone()],
                    ..NodeProto::default()
                });
            } else {
                names.insert(formal, actual.clone());
            }
        }
        let defaults = function.attribute_proto.iter().map(|attribute| (attribute.name(), attribute));
        let given = call.attribute.iter().map(|attribute| (attribute.name(), attribute));
        let scope = Scope { prefix, names, attributes: defaults.chain(given).collect() };
        if scope.len_bytes(&function.node, self.max_bytes - copied_bytes).is_none() {
            return Err(too_large());
        }
        let mut body: Vec<NodeProto> = function.node.clone();
        body.iter_mut().for_each(|node| scope.node(node));
        if body.len() > MAX_NODES - self.n_nodes.min(MAX_NODES) {
            return Err(fail(&key, &format!("the model grows past {MAX_NODES} nodes; keep its functions")));
        }
        body.extend(copies);
        let grown = body.iter().map(NodeProto::encoded_len).fold(self.n_bytes, usize::saturating_add);
        if grown > self.max_bytes {
            return Err(too_large());
        }
        self.n_bytes = grown;
        Ok(body)
    }
}

/// What the names and attributes of a function mean in one call of it.
struct Scope<'a> {
    prefix: String,
    names: HashMap<&'a str, String>,
    attributes: HashMap<&'a str, &'a AttributeProto>,
}

impl Scope<'_> {
    fn name(&self, name: &mut String) {
        if let Some(actual) = self.names.get(name.as_str()) {
            name.clone_from(actual);
        } else if !name.is_empty() {
            name.insert_str(0, &self.prefix);
        }
    }

    /// Bytes of a function's nodes in this call; to be known before anything is cloned: a call's attribute, or a name in it,
    /// may be large, and referred to often. None: more than these.
    fn len_bytes(&self, nodes: &[NodeProto], at_most: usize) -> Option<usize> {
        let mut sum = 0_usize;
        for node in nodes {
            sum = sum.saturating_add(node.encoded_len());
            for body in walk::graphs(walk::bodies(node)) {
                sum = sum.saturating_add(self.longer_by(names_of_graph(body)));
            }
            let inside = walk::graphs(walk::bodies(node)).flat_map(|body| &body.node);
            for node in inside.chain([node]) {
                let own = if node.name().is_empty() { 0 } else { self.prefix.len() };
                let names = node.input.iter().chain(&node.output).map(String::as_str);
                sum = sum.saturating_add(own).saturating_add(self.longer_by(names));
                for actual in node.attribute.iter().filter_map(|one| self.attributes.get(one.ref_attr_name())) {
                    // Each time counted, however large it is: no further than the limit.
                    sum = Some(sum.saturating_add(actual.encoded_len())).filter(|&sum| sum <= at_most)?;
                }
            }
            if sum > at_most {
                return None;
            }
        }
        Some(sum)
    }

    /// By how many bytes these names are longer in this call.
    fn longer_by<'n>(&self, names: impl Iterator<Item = &'n str>) -> usize {
        let longer = |name: &str| match self.names.get(name) {
            Some(actual) => actual.len().saturating_sub(name.len()),
            None if name.is_empty() => 0,
            None => self.prefix.len(),
        };
        names.map(longer).fold(0, usize::saturating_add)
    }

    fn optional_name(&self, name: &mut Option<String>) {
        name.iter_mut().for_each(|name| self.name(name));
    }

    fn node(&self, node: &mut NodeProto) {
        node.input.iter_mut().chain(&mut node.output).for_each(|name| self.name(name));
        if let Some(name) = node.name.as_mut().filter(|name| !name.is_empty()) {
            name.insert_str(0, &self.prefix);
        }
        // A reference to an attribute that the call leaves out, without a default, is an attribute left out.
        node.attribute.retain_mut(|attribute| {
            if attribute.ref_attr_name().is_empty() {
                attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(|graph| self.graph(graph));
                return true;
            }
            let Some(actual) = self.attributes.get(attribute.ref_attr_name()) else { return false };
            // Its bodies, if any, are in the caller's words already.
            *attribute = AttributeProto { name: attribute.name.take(), ..(*actual).clone() };
            true
        });
    }

    fn graph(&self, graph: &mut GraphProto) {
        for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
            self.optional_name(&mut info.name);
        }
        graph.initializer.iter_mut().for_each(|tensor| self.optional_name(&mut tensor.name));
        for sparse in &mut graph.sparse_initializer {
            sparse.values.iter_mut().for_each(|tensor| self.optional_name(&mut tensor.name));
        }
        graph.node.iter_mut().for_each(|node| self.node(node));
    }
}

/// What a graph itself names: its inputs, outputs, values and initializers.
fn names_of_graph(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info).map(|info| info.name());
    let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    infos.chain(graph.initializer.iter().chain(sparse).map(|tensor| tensor.name()))
}

/// Steps of a call of a function.
fn steps(function: &FunctionProto) -> usize {
    let of_node = |node: &NodeProto| 1 + node.input.len() + node.output.len() + node.attribute.len();
    let bodies = walk::graphs(function.node.iter().flat_map(walk::bodies));
    let inside = bodies.map(|body| names_of_graph(body).count() + body.node.iter().map(of_node).sum::<usize>());
    let own = 1 + function.input.len() + function.output.len() + function.attribute_proto.len();
    own + function.node.iter().map(of_node).sum::<usize>() + inside.sum::<usize>()
}

fn key_of_call(node: &NodeProto) -> Key {
    (domain(node.domain()), node.op_type().to_owned(), node.overload().to_owned())
}

fn key_of_function(function: &FunctionProto) -> Key {
    (domain(function.domain()), function.name().to_owned(), function.overload().to_owned())
}

fn domain(name: &str) -> String {
    if name == "ai.onnx" { String::new() } else { name.to_owned() }
}

fn fail(key: &Key, reason: &str) -> OnnxError {
    OnnxError::Inline { function: format!("{}::{}", key.0, key.1), reason: reason.to_owned() }
}

/// A prefix that no value, node or initializer of the graph starts with.
fn free_prefix(graph: &GraphProto) -> String {
    let names = walk::names(graph);
    let is_free = |prefix: &String| {
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        names.range::<str, _>(from).next().is_none_or(|name| !name.starts_with(prefix.as_str()))
    };
    let short = (0..4).map(|n| format!("fn{}", "_".repeat(n)));
    // No name starts with two of these.
    let mut candidates = short.chain((0_u64..).map(|n| format!("fn_{n}_")));
    candidates.find(is_free).expect("names are finite, numbers are not")
}

/// The model's opsets and those of the functions put in place.
fn merged_opsets(
    model: &ModelProto,
    used: &BTreeSet<Key>,
    kept: impl Fn(&FunctionProto) -> bool,
) -> Result<Vec<OperatorSetIdProto>, OnnxError> {
    let mut opsets = model.opset_import.clone();
    let mut versions: HashMap<String, i64> = HashMap::new();
    for opset in &opsets {
        versions.entry(domain(opset.domain())).or_insert(opset.version());
    }
    for function in model.functions.iter().filter(|function| used.contains(&key_of_function(function))) {
        for opset in &function.opset_import {
            match versions.get(&domain(opset.domain())) {
                None => {
                    versions.insert(domain(opset.domain()), opset.version());
                    opsets.push(opset.clone());
                }
                Some(&known) if known == opset.version() => {}
                Some(has) => {
                    let (name, wants) = (opset.domain(), opset.version());
                    let reason =
                        format!("needs opset {name:?} {wants}, the model has {has}; export both with one opset");
                    return Err(fail(&key_of_function(function), &reason));
                }
            }
        }
    }
    let (left, replaced): (Vec<_>, Vec<_>) = model.functions.iter().partition(|&function| kept(function));
    let [replaced, left]: [HashSet<&str>; 2] =
        [replaced, left].map(|functions| functions.iter().map(|function| function.domain()).collect());
    let still_called =
        |name: &str| name.is_empty() || name == "ai.onnx" || !replaced.contains(name) || left.contains(name);
    opsets.retain(|opset| still_called(opset.domain()));
    Ok(opsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::ValueInfoProto;

    fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        NodeProto {
            domain: Some(domain.into()),
            op_type: Some(op.into()),
            input: own(inputs),
            output: own(outputs),
            ..Default::default()
        }
    }

    fn function(name: &str, inputs: &[&str], outputs: &[&str], node: Vec<NodeProto>) -> FunctionProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        FunctionProto {
            name: Some(name.into()),
            domain: Some("local".into()),
            input: own(inputs),
            output: own(outputs),
            node,
            ..Default::default()
        }
    }

    fn model(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
        let info = |name: &str| ValueInfoProto { name: Some(name.into()), ..Default::default() };
        let graph = GraphProto { node: nodes, input: vec![info("x")], output: vec![info("y")], ..Default::default() };
        ModelProto { graph: Some(graph), functions, ..Default::default() }
    }

    fn calls(model: &ModelProto) -> Vec<String> {
        let show =
            |node: &NodeProto| format!("{} = {}({})", node.output.join(","), node.op_type(), node.input.join(","));
        model.graph.as_ref().unwrap().node.iter().map(show).collect()
    }

    #[test]
    fn nested_calls_become_nodes_and_outer_names_stay() {
        let inner =
            function("Inner", &["a"], &["b"], vec![node("", "Neg", &["a"], &["t"]), node("", "Abs", &["t"], &["b"])]);
        let outer = function(
            "Outer",
            &["a", "b"],
            &["c"],
            vec![node("local", "Inner", &["a"], &["m"]), node("", "Add", &["m", "b"], &["c"])],
        );
        let mut model =
            model(vec![node("local", "Outer", &["x"], &["fn"]), node("", "Relu", &["fn"], &["y"])], vec![inner, outer]);
        inline_functions(&mut model).unwrap();
        assert_eq!(
            calls(&model),
            ["fn_1/Inner/t = Neg(x)", "fn_0/Outer/m = Abs(fn_1/Inner/t)", "fn = Add(fn_0/Outer/m,)", "y = Relu(fn)",]
        );
        assert!(model.functions.is_empty());
    }

    #[test]
    fn attributes_come_from_the_call_then_from_the_default_or_vanish() {
        let attribute = |name: &str, i: Option<i64>, reference: Option<&str>| AttributeProto {
            name: Some(name.into()),
            i,
            ref_attr_name: reference.map(str::to_owned),
            ..Default::default()
        };
        let mut body = node("", "Op", &["a"], &["b"]);
        body.attribute = vec![
            attribute("axis", None, Some("dim")),
            attribute("keep", None, Some("keep")),
            attribute("gone", None, Some("gone")),
        ];
        let mut function = function("F", &["a"], &["b"], vec![body]);
        function.attribute_proto = vec![attribute("dim", Some(1), None), attribute("keep", Some(2), None)];
        let mut call = node("local", "F", &["x"], &["y"]);
        call.attribute = vec![attribute("dim", Some(7), None)];
        let mut model = model(vec![call], vec![function]);
        inline_functions(&mut model).unwrap();
        let got = model.graph.unwrap().node[0].attribute.clone();
        assert_eq!(got, [attribute("axis", Some(7), None), attribute("keep", Some(2), None)]);
    }

    #[test]
    fn a_function_that_hands_an_input_through_becomes_identity() {
        let through = function("F", &["a"], &["a"], vec![]);
        let mut model = model(vec![node("local", "F", &["x"], &["y"])], vec![through]);
        inline_functions(&mut model).unwrap();
        assert_eq!(calls(&model), ["y = Identity(x)"]);
    }

    #[test]
    fn recursion_and_explosion_are_refused_and_change_nothing() {
        let loops = function("F", &["a"], &["b"], vec![node("local", "F", &["a"], &["b"])]);
        let mut recursive = model(vec![node("local", "F", &["x"], &["y"])], vec![loops]);
        let before = recursive.clone();
        assert!(inline_functions(&mut recursive).unwrap_err().to_string().contains("calls itself"));
        assert_eq!(recursive, before);

        let level = |n: usize| {
            let callee = format!("F{}", n + 1);
            let body = (0..10).map(|_| node(if n == 9 { "" } else { "local" }, &callee, &["a"], &["b"])).collect();
            function(&format!("F{n}"), &["a"], &["b"], body)
        };
        let mut bomb = model(vec![node("local", "F0", &["x"], &["y"])], (0..10).map(level).collect());
        assert!(inline_functions(&mut bomb).unwrap_err().to_string().contains("grows past"));
    }

    #[test]
    fn a_model_that_grows_past_what_readers_accept_is_refused() {
        let body = function("F", &["a"], &["b"], vec![node("", "Neg", &["a"], &["b"])]);
        let call = node("local", "F", &["x"], &["y"]);
        for (n_bytes, fits) in [(0, true), (MAX_BYTES - 10, false)] {
            let mut inliner = Inliner { n_bytes, max_bytes: MAX_BYTES, ..Inliner::of(&[&body], String::new()) };
            let inlined = inliner.nodes(vec![call.clone()], &mut Vec::new()).map_err(|error| error.to_string());
            assert_eq!(inlined.is_ok(), fits);
            assert!(inlined.err().is_none_or(|text| text.contains("grows past 2147483647 bytes")));
        }
    }

    fn reference(name: &str, to: &str) -> AttributeProto {
        AttributeProto { name: Some(name.into()), ref_attr_name: Some(to.into()), ..Default::default() }
    }

    #[test]
    fn references_to_a_large_attribute_are_added_up_before_any_is_cloned() {
        let given = AttributeProto { name: Some("v".into()), s: Some(vec![0; 1 << 20]), ..Default::default() };
        let mut inner = node("", "Constant", &[], &["c"]);
        inner.attribute = vec![reference("value", "v")];
        let mut outer = node("", "If", &["a"], &["b"]);
        let body = GraphProto { node: vec![inner.clone()], ..Default::default() };
        outer.attribute =
            vec![AttributeProto { name: Some("then_branch".into()), g: Some(body), ..Default::default() }];
        let scope = Scope { prefix: String::new(), names: HashMap::new(), attributes: HashMap::from([("v", &given)]) };
        let nodes: Vec<NodeProto> = (0..1500).flat_map(|_| [inner.clone(), outer.clone()]).collect();
        let n_bytes = scope.len_bytes(&nodes, usize::MAX).unwrap();
        assert!(n_bytes > 3000 << 20 && n_bytes < 3001 << 20, "{n_bytes}");
        assert_eq!((scope.len_bytes(&nodes, n_bytes), scope.len_bytes(&nodes, n_bytes - 1)), (Some(n_bytes), None));
        let mut call = node("local", "F", &["x"], &["y"]);
        call.attribute = vec![given];
        let mut model = model(vec![call], vec![function("F", &["a"], &["b"], nodes)]);
        assert!(inline_functions(&mut model).unwrap_err().to_string().contains("the model grows past "));
    }

    /// Used or not, and whether or not there is a node in it.
    #[test]
    fn inputs_and_defaults_of_a_function_count_in_every_call() {
        let refused = |function: &FunctionProto, n: usize| {
            let calls = vec![node("local", "F", &[], &[]); n];
            let mut model = model(calls, vec![function.clone()]);
            inline_functions(&mut model).err().map(|error| error.to_string())
        };
        let inputs = function("F", &["a"; 3000], &[], Vec::new());
        let mut defaults = function("F", &[], &[], Vec::new());
        defaults.attribute_proto = vec![AttributeProto::default(); 3000];
        for function in [inputs, defaults] {
            assert_eq!(refused(&function, 100), None);
            let error = refused(&function, 3000).unwrap();
            assert!(error.contains("more than 4000000 steps, 3001 each of this one"), "{error}");
        }
    }

    #[test]
    fn functions_that_double_are_refused() {
        let level = |n: usize| {
            let callee = format!("F{}", n + 1);
            let (domain, op) = if n == 24 { ("", "Neg") } else { ("local", callee.as_str()) };
            function(
                &format!("F{n}"),
                &["p"],
                &["q"],
                vec![node(domain, op, &["p"], &["m"]), node(domain, op, &["m"], &["q"])],
            )
        };
        let mut model = model(vec![node("local", "F0", &["x"], &["y"])], (0..25).map(level).collect());
        assert!(inline_functions(&mut model).unwrap_err().to_string().contains("keep its functions"));
    }

    /// A name of the caller's stands wherever the function reads its input, or hands it through.
    #[test]
    fn long_names_are_counted_before_they_are_copied() {
        let long = "x".repeat(1 << 20);
        let reads = function("F", &["a"], &["b"], vec![node("", "Sum", &["a"; 1000], &["b"])]);
        let hands = function("F", &["a"], &["a"; 1000], Vec::new());
        for (function, outputs) in [(reads, vec!["y"]), (hands, vec!["y"; 1000])] {
            let mut model = model(vec![node("local", "F", &[&long], &outputs)], vec![function]);
            assert!(inline_functions(&mut model).unwrap_err().to_string().contains("the model grows past "));
        }
        let body = function(&"F".repeat(1 << 20), &["a"], &["b"], vec![node("", "Neg", &["t"; 1000], &["t"])]);
        let mut model = model(vec![node("local", &"F".repeat(1 << 20), &["x"], &["y"])], vec![body]);
        inline_functions(&mut model).unwrap();
        assert!(model.graph.unwrap().node[0].input[0].len() < 100);
    }

    #[test]
    fn a_free_prefix_is_short_however_names_begin() {
        let prefix = |names: &[&str]| {
            free_prefix(&GraphProto {
                node: names.iter().map(|name| node("", "Neg", &[name], &[])).collect(),
                ..Default::default()
            })
        };
        assert_eq!(prefix(&["x", "f", "gn"]), "fn");
        assert_eq!(prefix(&["fn"]), "fn_");
        assert_eq!(prefix(&["fn", &format!("fn{}", "_".repeat(1 << 16)), "fn_0_", "fn_1_x"]), "fn_2_");
    }

    #[test]
    fn a_body_that_a_call_gives_keeps_its_callers_names_and_references() {
        let mut then = node("", "Neg", &["x"], &["t"]);
        then.attribute = vec![reference("again", "body")];
        let body = GraphProto { node: vec![then], ..Default::default() };
        let mut call = node("local", "F", &["x"], &["y"]);
        call.attribute =
            vec![AttributeProto { name: Some("body".into()), g: Some(body.clone()), ..Default::default() }];
        let mut inner = node("", "If", &["a"], &["b"]);
        inner.attribute = vec![reference("then_branch", "body")];
        let mut model = model(vec![call], vec![function("F", &["a"], &["b"], vec![inner])]);
        inline_functions(&mut model).unwrap();
        assert_eq!(model.graph.unwrap().node[0].attribute[0].g, Some(body));
    }

    #[test]
    fn opsets_of_functions_are_merged_and_must_agree() {
        let opset = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
        let mut function = function("F", &["a"], &["b"], vec![node("", "Neg", &["a"], &["b"])]);
        function.opset_import = vec![opset("", 20), opset("com.microsoft", 1)];
        let mut model = model(vec![node("local", "F", &["x"], &["y"])], vec![function]);
        model.opset_import = vec![opset("ai.onnx", 20), opset("local", 1)];
        let mut other = model.clone();
        inline_functions(&mut model).unwrap();
        assert_eq!(model.opset_import, [opset("ai.onnx", 20), opset("com.microsoft", 1)]);
        other.opset_import[0].version = Some(18);
        assert!(
            inline_functions(&mut other).unwrap_err().to_string().contains("needs opset \"\" 20, the model has 18")
        );
    }
}
