//! Models as text for people, and as JSON for programs.

mod json;
mod values;

use std::collections::HashMap;

use super::proto::{
    FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TypeProto,
    ValueInfoProto,
};
use super::{OnnxError, rewrite};
use values::{
    attribute_text, domain_text, escape, initializer_text, quoted, sparse_initializer_text, types_of, types_of_graph,
    value_text,
};

pub use json::model_json;
pub use values::{preview, tensor_line, type_text};

/// Bodies in bodies shown.
const MAX_BODIES: usize = 8;
/// Indentation of a node below its graph, at most: a chain of a thousand nodes stays readable.
const MAX_INDENT: usize = 40;

/// The model's data flow, one line an opset, input, initializer, node and output, in the model's order, as pretty_onnx of
/// the studies has it; doc strings and metadata of the model, its graphs and functions. A node stands one level deeper than
/// the shallowest node that it reads. Bodies stand below their node, behind a bar, local functions below the graph. What a terminal should not get is escaped; no line is cut.
/// Errors: [`OnnxError::NoGraph`].
pub fn model_text(model: &ModelProto) -> Result<String, OnnxError> {
    model_text_with(model, &TextOptions::default())
}

/// What [`model_text_with`] tells beside the data flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions<'a> {
    /// Element type and shape of what each node gives, as far as the model says.
    pub shapes: bool,
    /// What the graph's inputs are to their user, such as `layer.weight`, by their name.
    pub called: Option<&'a HashMap<String, String>>,
}

/// As [`model_text`], with what is asked for.
pub fn model_text_with(model: &ModelProto, options: &TextOptions<'_>) -> Result<String, OnnxError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let mut writer = Writer { text: String::new(), options, prefix: String::new() };
    let producer = format!("{} {}", model.producer_name(), model.producer_version());
    writer.line(
        0,
        &format!(
            "model: name={} ir_version={} producer={}",
            quoted(graph.name()),
            model.ir_version(),
            quoted(producer.trim())
        ),
    );
    if let Some(ran) = rewrite::ran(model) {
        writer.line(0, &format!("passes: {ran}"));
    }
    writer.doc(0, model.doc_string());
    writer.metadata(0, model.metadata_props.iter().filter(|entry| entry.key() != rewrite::RAN));
    writer.opsets(&model.opset_import);
    writer.graph(graph, 0, 0);
    model.functions.iter().for_each(|function| writer.function(function));
    Ok(writer.text)
}

struct Writer<'a> {
    text: String,
    options: &'a TextOptions<'a>,
    /// What each line begins with: `| ` for each body that it is in, so that what follows a node is not taken for its body.
    prefix: String,
}

/// Where a node stands: the indentation of its graph, and the bodies that it is in.
#[derive(Clone, Copy)]
struct At {
    indent: usize,
    n_bodies: usize,
}

impl Writer<'_> {
    fn line(&mut self, indent: usize, content: &str) {
        self.text.push_str(&self.prefix);
        self.text.extend(std::iter::repeat_n("  ", indent));
        escape(&mut self.text, content);
        self.text.push('\n');
    }

    fn doc(&mut self, indent: usize, doc: &str) {
        if !doc.is_empty() {
            self.line(indent, &format!("doc: {}", quoted(doc)));
        }
    }

    fn metadata<'m>(&mut self, indent: usize, entries: impl Iterator<Item = &'m StringStringEntryProto>) {
        for entry in entries {
            self.line(indent, &format!("metadata: {}={}", quoted(entry.key()), quoted(entry.value())));
        }
    }

    fn opsets(&mut self, opsets: &[OperatorSetIdProto]) {
        for opset in opsets {
            self.line(0, &format!("opset: domain={} version={}", quoted(opset.domain()), opset.version()));
        }
    }

    fn graph(&mut self, graph: &GraphProto, indent: usize, n_bodies: usize) {
        let value =
            |info: &ValueInfoProto| format!("name={} {}", quoted(info.name()), value_text(info.r#type.as_ref()));
        self.doc(indent, graph.doc_string());
        self.metadata(indent, graph.metadata_props.iter());
        for info in &graph.input {
            // Names of bodies are their own.
            let called = self.options.called.filter(|_| n_bodies == 0).and_then(|called| called.get(info.name()));
            let called = called.map(|called| format!(" of={}", quoted(called))).unwrap_or_default();
            self.line(indent, &format!("input: {}{called}", value(info)));
        }
        for tensor in &graph.initializer {
            self.line(indent, &format!("init: name={} {}", quoted(tensor.name()), initializer_text(tensor)));
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            self.line(indent, &format!("init: name={} {}", quoted(name), sparse_initializer_text(sparse)));
        }
        self.nodes(&graph.node, &mut types_of_graph(graph), At { indent, n_bodies });
        graph.output.iter().for_each(|info| self.line(indent, &format!("output: {}", value(info))));
    }

    fn function(&mut self, function: &FunctionProto) {
        let overload = if function.overload().is_empty() { "" } else { ":" };
        let (name, domain) = (function.name(), function.domain());
        self.line(0, &format!("----- function name={name} domain={domain}{overload}{}", function.overload()));
        self.doc(0, function.doc_string());
        self.metadata(0, function.metadata_props.iter());
        self.opsets(&function.opset_import);
        function.input.iter().for_each(|name| self.line(0, &format!("input: {}", quoted(name))));
        function.attribute.iter().for_each(|name| self.line(0, &format!("attribute: {}", quoted(name))));
        for default in &function.attribute_proto {
            self.line(0, &format!("attribute: {}", attribute_text(default)));
        }
        let mut types = types_of(function.value_info.iter());
        self.nodes(&function.node, &mut types.clone(), At { indent: 0, n_bodies: 0 });
        for name in &function.output {
            self.line(0, &format!("output: name={} {}", quoted(name), value_text(types.remove(name.as_str()))));
        }
    }

    /// One level deeper than the shallowest node that is read; at the left those that read none. types: taken by the first
    /// who gives a value, so that a model in which many say that they do is not written out many times.
    fn nodes(&mut self, nodes: &[NodeProto], types: &mut HashMap<&str, &TypeProto>, at: At) {
        let mut levels: HashMap<&str, usize> = HashMap::new();
        for node in nodes {
            let shallowest = node.input.iter().filter_map(|name| levels.get(name.as_str())).min();
            let level = shallowest.map_or(0, |level| (level + 1).min(MAX_INDENT));
            let given = node.output.iter().filter(|name| !name.is_empty());
            levels.extend(given.map(|name| (name.as_str(), level)));
            self.node(node, types, At { indent: at.indent + level, ..at });
        }
    }

    fn node(&mut self, node: &NodeProto, types: &mut HashMap<&str, &TypeProto>, at: At) {
        let name = |name: &String| if name.is_empty() { "''".to_owned() } else { name.clone() };
        let domain = domain_text(node);
        let domain = if domain.is_empty() { domain } else { format!("[{domain}]") };
        let given = node.input.iter().map(name).chain(node.attribute.iter().map(attribute_text));
        let given = given.collect::<Vec<_>>().join(", ");
        let shapes = self.options.shapes;
        let output = |value: &String| match shapes && !value.is_empty() {
            true => format!("{value}: {}", type_text(types.remove(value.as_str()))),
            false => name(value),
        };
        let outputs = node.output.iter().map(output).collect::<Vec<_>>().join(", ");
        self.line(at.indent, &format!("{}{domain}({given}) -> {outputs}", node.op_type()));
        let own = self.prefix.len();
        self.prefix.extend(std::iter::repeat_n("  ", at.indent + 1));
        self.prefix += "| ";
        for attribute in &node.attribute {
            for graph in attribute.g.iter().chain(&attribute.graphs) {
                let hidden = if at.n_bodies < MAX_BODIES { "" } else { ", not shown: too deep" };
                self.line(0, &format!("{}: graph name={}{hidden}", attribute.name(), quoted(graph.name())));
                if hidden.is_empty() {
                    self.graph(graph, 1, at.n_bodies + 1);
                }
            }
        }
        self.prefix.truncate(own);
    }
}

#[cfg(test)]
mod tests;
