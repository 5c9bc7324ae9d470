//! Calls of attention that a kernel of libtorch's takes the place of, and why others stay what they are.

use std::collections::{HashMap, HashSet};

use super::attention::IS_CAUSAL;
use super::cuda_attention::{KERNEL, Kind, SCALE, WANTS_LOGSUMEXP, kind_of};
use crate::onnx::proto::tensor_shape_proto::dimension::Value;
use crate::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, attribute_proto::AttributeType,
};
use crate::onnx::{self, Attention, NamedTensor};
use crate::runtime::ort::libtorch::Kernel;
use crate::runtime::types::declared_shape;
use crate::tensor::DType;

/// Puts operators in the place of calls; how many, and of each call that stays (its node, why).
pub(super) fn replace(model: &mut ModelProto) -> (usize, Vec<(String, String)>) {
    let (mut elements, mut calls) = (Vec::new(), false);
    onnx::for_each_typed(model, |node, inputs| {
        elements.push(inputs.first().copied().flatten());
        calls |= Attention::called_by(node).is_some();
    });
    let Some(graph) = model.graph.as_mut().filter(|_| calls) else { return (0, Vec::new()) };
    let facts = Facts::of(graph, &elements);
    let (mut nodes, mut n_replaced, mut left) = (Vec::with_capacity(graph.node.len()), 0, Vec::new());
    for (node, &element) in graph.node.iter().zip(&elements) {
        match Attention::called_by(node).map(|attention| facts.replaced(node, attention, element)) {
            None => nodes.push(node.clone()),
            Some(Ok(replaced)) => {
                nodes.extend(replaced);
                n_replaced += 1;
            }
            Some(Err(why)) => {
                left.push((node.name().to_owned(), why));
                nodes.push(node.clone());
            }
        }
    }
    graph.node = nodes;
    without_unread(graph);
    (n_replaced, left)
}

/// What was done to masks, and nobody reads any more, would run nevertheless.
fn without_unread(graph: &mut GraphProto) {
    let is_of_masks = |node: &NodeProto| is_onnx(node) && matches!(node.op_type(), "Cast" | "Expand");
    let mut n_nodes = usize::MAX;
    while graph.node.len() < n_nodes {
        n_nodes = graph.node.len();
        let read = read_in(graph);
        graph.node.retain(|node| !is_of_masks(node) || node.output.iter().any(|output| read.contains(output)));
    }
}

/// What a node reads, or is an output of the graph.
fn read_in(graph: &GraphProto) -> HashSet<String> {
    let outputs = graph.output.iter().map(|output| output.name().to_owned());
    graph.node.iter().flat_map(onnx::uses).map(str::to_owned).chain(outputs).collect()
}

/// What is known of a graph's values.
struct Facts {
    /// {number that is a constant: it}.
    numbers: HashMap<String, f32>,
    /// {what a Cast gives: (what it reads, the element type of that)}.
    casts: HashMap<String, (String, Option<i32>)>,
    /// {what an Expand gives: what it broadcasts}.
    expanded: HashMap<String, String>,
    /// {value: its declared dimensions}.
    shapes: HashMap<String, Vec<Option<Value>>>,
    /// See [`read_in`].
    read: HashSet<String>,
}

impl Facts {
    /// elements: of each node, the element type of its first input.
    fn of(graph: &GraphProto, elements: &[Option<i32>]) -> Self {
        let number = |tensor: &TensorProto| {
            let tensor = NamedTensor::from_proto(tensor).ok()?;
            let bytes = <[u8; 4]>::try_from(tensor.view().bytes()).ok()?;
            (tensor.desc.dtype == DType::F32).then(|| f32::from_le_bytes(bytes))
        };
        let fed: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
        let initializers = graph.initializer.iter().filter(|tensor| !fed.contains(tensor.name()));
        let mut numbers: HashMap<String, f32> =
            initializers.filter_map(|tensor| Some((tensor.name().to_owned(), number(tensor)?))).collect();
        let (mut casts, mut expanded) = (HashMap::new(), HashMap::new());
        for (node, &element) in graph.node.iter().zip(elements).filter(|(node, _)| is_onnx(node)) {
            let (Some(output), value) = (node.output.first(), attribute_of(node, "value")) else { continue };
            match (node.op_type(), node.input.first()) {
                ("Constant", _) => {
                    let constant = value.and_then(|value| number(value.t.as_ref()?));
                    let constant = constant.or_else(|| attribute_of(node, "value_float")?.f);
                    numbers.extend(constant.map(|number| (output.clone(), number)));
                }
                ("Cast", Some(input)) => drop(casts.insert(output.clone(), (input.clone(), element))),
                ("Expand", Some(input)) => drop(expanded.insert(output.clone(), input.clone())),
                _ => {}
            }
        }
        let declared = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
        let dims =
            |info: &ValueInfoProto| Some(declared_shape(info)?.dim.iter().map(|dim| dim.value.clone()).collect());
        let shapes = declared.filter_map(|info| Some((info.name().to_owned(), dims(info)?))).collect();
        Self { numbers, casts, expanded, shapes, read: read_in(graph) }
    }

    /// The nodes that take a call's place, or why it stays.
    fn replaced(&self, node: &NodeProto, attention: Attention, element: Option<i32>) -> Result<Vec<NodeProto>, String> {
        let dtype =
            element.and_then(|element| DType::from_onnx(element).ok()).ok_or("its element type is not known")?;
        let kind = kind_of(dtype).ok_or_else(|| format!("no kernel computes in {dtype}"))?;
        let n_heads = if attention.is_gradient { 6 } else { 3 };
        let (heads, rest) = node.input.split_at_checked(n_heads).ok_or("it has too few inputs")?;
        let (scale, mask) = match (rest, attention.is_masked) {
            ([scale], false) => (scale, None),
            ([scale, mask], true) => (scale, Some(mask)),
            _ => return Err(format!("it has {} inputs", node.input.len())),
        };
        let scale = self.numbers.get(scale).ok_or("its scale is no constant: a head's size is not known")?;
        let query = usize::from(attention.is_gradient);
        let kernel = self.kernel(node, [&heads[query], &heads[query + 1]], kind, attention.is_masked)?;
        let mut input = heads.to_vec();
        let mut nodes = Vec::new();
        input.extend(mask.map(|mask| self.mask(node, mask, dtype, &mut nodes)));
        let wants_logsumexp = node.output.get(1).is_some_and(|sums| self.read.contains(sums));
        let mut attribute = vec![
            int(IS_CAUSAL, attention.is_causal),
            AttributeProto { f: Some(*scale), ..attribute(SCALE, AttributeType::Float) },
            AttributeProto { s: Some(kernel.name().into()), ..attribute(KERNEL, AttributeType::String) },
        ];
        attribute.extend((!attention.is_gradient).then(|| int(WANTS_LOGSUMEXP, wants_logsumexp)));
        let op_type = Some(kind.names[usize::from(attention.is_gradient)].to_owned());
        nodes.push(NodeProto { op_type, input, attribute, ..node.clone() });
        Ok(nodes)
    }

    /// The kernel that the graph had in eager, where it computes in this element type; else the memory-efficient one, if it
    /// is known to fit.
    fn kernel(
        &self,
        node: &NodeProto,
        [query, key]: [&String; 2],
        kind: &Kind,
        is_masked: bool,
    ) -> Result<Kernel, String> {
        let name = attribute_of(node, KERNEL).and_then(|kernel| kernel.s.as_deref()).unwrap_or_default();
        let named = Kernel::named(&String::from_utf8_lossy(name));
        if let Some(kernel) = named.filter(|kernel| kernel.takes(kind.element, is_masked)) {
            return Ok(kernel);
        }
        // Both are needed: heads that share none, of whole words.
        let heads = |value: &String| self.shapes.get(value)?.get(1)?.as_ref();
        let size = self.shapes.get(query).and_then(|dims| dims.get(3)?.as_ref());
        let is_aligned = matches!(size, Some(Value::DimValue(size)) if size % 8 == 0);
        if is_aligned && heads(query).is_some_and(|queries| heads(key) == Some(queries)) {
            return Ok(Kernel::Efficient);
        }
        let had = named.map_or("an unknown kernel", Kernel::name);
        Err(format!("in eager it had {had}, which does not compute in {}, and no other is known to fit", kind.dtype))
    }

    /// The mask in the queries' element type, which it had in eager, before it is broadcast, which the kernels do; a Cast of it
    /// where it comes from nothing of that type.
    fn mask(&self, node: &NodeProto, mask: &str, dtype: DType, nodes: &mut Vec<NodeProto>) -> String {
        let (code, mut mask, mut is_wide) = (dtype.onnx_code(), mask, dtype != DType::F32);
        loop {
            mask = match (self.expanded.get(mask), self.casts.get(mask)) {
                (Some(before), _) => before,
                (_, Some((before, Some(element)))) if is_wide && *element == code => {
                    is_wide = false;
                    before
                }
                _ => break,
            };
        }
        if !is_wide {
            return mask.to_owned();
        }
        let narrow = format!("{}/{mask}/{dtype}", node.name());
        nodes.push(NodeProto {
            op_type: Some("Cast".to_owned()),
            name: Some(format!("cast/{narrow}")),
            input: vec![mask.to_owned()],
            output: vec![narrow.clone()],
            attribute: vec![AttributeProto { i: Some(code.into()), ..attribute("to", AttributeType::Int) }],
            ..NodeProto::default()
        });
        narrow
    }
}

fn is_onnx(node: &NodeProto) -> bool {
    matches!(node.domain(), "" | "ai.onnx")
}

fn attribute_of<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

fn attribute(name: &str, of: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(of as i32), ..AttributeProto::default() }
}

fn int(name: &str, value: bool) -> AttributeProto {
    AttributeProto { i: Some(value.into()), ..attribute(name, AttributeType::Int) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::value_info;
    use crate::runtime::ort::operators::by_row;
    use crate::tensor::TensorDesc;

    const HEADS: [i64; 4] = [2, 4, 9, 16];

    fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (domain, op_type) = (Some(domain.to_owned()), Some(op.to_owned()));
        NodeProto {
            domain,
            op_type,
            name: Some("n".into()),
            input: own(inputs),
            output: own(outputs),
            ..Default::default()
        }
    }

    /// Of inputs q, k, v, g, o (heads), l (logsumexp) and m (a mask of the scores, float32), and a scale of 0.5.
    fn model(nodes: Vec<NodeProto>, dtype: DType, of_keys: [i64; 4], outputs: &[&str]) -> ModelProto {
        let info = |name: &str, dtype, dims: &[i64]| value_info(name, &TensorDesc::new(dtype, dims).unwrap());
        let sizes = [("q", HEADS), ("k", of_keys), ("v", of_keys), ("g", HEADS), ("o", HEADS)];
        let mut input: Vec<ValueInfoProto> = sizes.iter().map(|(name, dims)| info(name, dtype, dims)).collect();
        input.extend([info("l", DType::F32, &HEADS[..3]), info("m", DType::F32, &[9, 9]), info("h", dtype, &[9, 9])]);
        let scale = TensorProto {
            name: Some("s".into()),
            data_type: Some(DType::F32.onnx_code()),
            raw_data: Some(0.5_f32.to_le_bytes().to_vec().into()),
            ..Default::default()
        };
        let output = outputs.iter().map(|name| info(name, dtype, &HEADS)).collect();
        let graph = GraphProto { node: nodes, input, output, initializer: vec![scale], ..Default::default() };
        ModelProto { graph: Some(graph), ..Default::default() }
    }

    fn call(name: &str, kernel: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let mut node = node("rust_ort", name, inputs, outputs);
        node.attribute.extend(
            (!kernel.is_empty()).then(|| AttributeProto {
                s: Some(kernel.to_owned().into()),
                ..attribute(KERNEL, AttributeType::String)
            }),
        );
        node
    }

    /// Nodes after it, each on a line, and why calls stayed.
    fn made(mut model: ModelProto) -> (Vec<String>, Vec<String>) {
        let (n_replaced, left) = replace(&mut model);
        by_row::without_transposes(&mut model);
        let graph = model.graph.unwrap();
        assert_eq!(n_replaced, graph.node.iter().filter(|node| node.op_type().starts_with("Libtorch")).count());
        let value = |attribute: &AttributeProto| match (attribute.i, attribute.f, &attribute.s) {
            (Some(i), ..) => i.to_string(),
            (_, Some(f), _) => f.to_string(),
            (.., Some(s)) => String::from_utf8_lossy(s).into_owned(),
            _ => format!("{:?}", attribute.ints),
        };
        let line = |node: &NodeProto| {
            let attributes: Vec<_> =
                node.attribute.iter().map(|attribute| format!(", {}={}", attribute.name(), value(attribute))).collect();
            let (op, inputs) = (node.op_type(), node.input.join(", "));
            format!("{} = {op}({inputs}{})", node.output.join(", "), attributes.concat())
        };
        (graph.node.iter().map(line).collect(), left.into_iter().map(|(_, why)| why).collect())
    }

    #[test]
    fn a_call_has_the_kernel_that_eager_has_and_its_scale() {
        for (kernel, dtype, op) in [
            ("flash", DType::BF16, "LibtorchAttentionBFloat16"),
            ("cudnn", DType::F16, "LibtorchAttentionHalf"),
            ("efficient", DType::F32, "LibtorchAttentionFloat"),
        ] {
            let nodes = vec![
                call("CausalScaledDotProductAttention", kernel, &["q", "k", "v", "s"], &["y", "sums"]),
                call(
                    "CausalScaledDotProductAttentionGradient",
                    kernel,
                    &["g", "q", "k", "v", "o", "l", "s"],
                    &["a", "b", "c"],
                ),
            ];
            let expected = [
                format!("y, sums = {op}(q, k, v, is_causal=1, scale=0.5, kernel={kernel}, wants_logsumexp=0)"),
                format!(
                    "a, b, c = {}(g, q, k, v, o, l, is_causal=1, scale=0.5, kernel={kernel})",
                    op.replace("Attention", "AttentionGradient")
                ),
            ];
            assert_eq!(made(model(nodes, dtype, HEADS, &["y"])), (expected.to_vec(), vec![]));
        }
    }

    #[test]
    fn sums_that_somebody_reads_are_written_and_transposes_of_heads_are_left_to_the_kernel() {
        let swap = |input: &str, output: &str| NodeProto {
            attribute: vec![AttributeProto { ints: vec![0, 2, 1, 3], ..attribute("perm", AttributeType::Ints) }],
            ..node("", "Transpose", &[input], &[output])
        };
        let attend = call("ScaledDotProductAttention", "flash", &["qt", "kt", "vt", "s"], &["yt", "sums"]);
        let nodes = vec![swap("q", "qt"), swap("k", "kt"), swap("v", "vt"), attend, swap("yt", "y")];
        let mut model = model(nodes, DType::F16, HEADS, &["y", "sums"]);
        let declared = ["qt", "kt", "vt"].map(|name| value_info(name, &TensorDesc::new(DType::F16, HEADS).unwrap()));
        model.graph.as_mut().unwrap().value_info = declared.to_vec();
        let expected = "y, sums = LibtorchAttentionHalf(q, k, v, is_causal=0, scale=0.5, kernel=flash, wants_logsumexp=1, \
                        inputs_by_row=[0, 1, 2], outputs_by_row=[0])";
        assert_eq!(made(model), (vec![expected.to_owned()], vec![]));
    }

    #[test]
    fn a_mask_is_as_it_came_before_it_was_cast_and_broadcast_or_is_cast() {
        let cast = NodeProto {
            attribute: vec![AttributeProto { i: Some(1), ..attribute("to", AttributeType::Int) }],
            ..node("", "Cast", &["h"], &["wide"])
        };
        let broadcast = || node("", "Expand", &["wide", "shape"], &["everywhere"]);
        let attend =
            |mask| call("MaskedScaledDotProductAttention", "efficient", &["q", "k", "v", "s", mask], &["y", "sums"]);
        let replaced = |mask: &str, op: &str| {
            format!("y, sums = {op}(q, k, v, {mask}, is_causal=0, scale=0.5, kernel=efficient, wants_logsumexp=0)")
        };
        let half = "LibtorchAttentionBFloat16";
        let given = |nodes, dtype| made(model(nodes, dtype, HEADS, &["y"])).0;
        assert_eq!(given(vec![cast.clone(), attend("wide")], DType::BF16), [replaced("h", half)]);
        assert_eq!(given(vec![cast, broadcast(), attend("everywhere")], DType::BF16), [replaced("h", half)]);
        let narrowed = ["n/m/bfloat16 = Cast(m, to=16)".to_owned(), replaced("n/m/bfloat16", half)];
        assert_eq!(given(vec![attend("m")], DType::BF16), narrowed);
        assert_eq!(given(vec![attend("m")], DType::F32), [replaced("m", "LibtorchAttentionFloat")]);
    }

    #[test]
    fn a_call_that_no_kernel_is_known_to_fit_stays_with_the_reason() {
        let shared = [2, 2, 9, 16];
        let attend = |kernel, scale| call("ScaledDotProductAttention", kernel, &["q", "k", "v", scale], &["y", "sums"]);
        let left = |kernel, scale, dtype, of_keys| made(model(vec![attend(kernel, scale)], dtype, of_keys, &["y"])).1;
        // In float32, which flash does not compute in, and of a graph that does not say which it had.
        for (kernel, dtype) in [("flash", DType::F32), ("", DType::F32), ("", DType::BF16), ("new", DType::F16)] {
            assert!(left(kernel, "s", dtype, HEADS).is_empty(), "{kernel:?}: heads that share none fit `efficient`");
            let why = left(kernel, "s", dtype, shared).concat();
            let had = if kernel == "flash" { "flash" } else { "an unknown kernel" };
            assert_eq!(
                why,
                format!("in eager it had {had}, which does not compute in {dtype}, and no other is known to fit")
            );
        }
        assert!(left("flash", "s", DType::F16, shared).is_empty());
        assert_eq!(left("efficient", "s", DType::F64, HEADS), ["no kernel computes in float64"]);
        assert_eq!(left("flash", "l", DType::F16, HEADS), ["its scale is no constant: a head's size is not known"]);
    }
}
