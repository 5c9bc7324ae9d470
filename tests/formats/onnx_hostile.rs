//! Models with flipped, dropped and repeated bytes: errors, never panics, whatever is done with them.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use rust_ort::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
};
use rust_ort::onnx::{self, value_info};
use rust_ort::tensor::{DType, TensorDesc};

use crate::any_model::{model, node, use_all};

#[test]
fn the_model_itself_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), [0; 4]).unwrap();
    let mut model = onnx::decode(Bytes::from(model().encode_to_vec())).unwrap();
    onnx::read_external(&mut model, folder.path()).unwrap();
    onnx::inline_functions(&mut model).unwrap();
    assert_eq!(onnx::order(model.graph.as_ref().unwrap()).unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(onnx::count_nodes(&model), 5);
    assert_eq!(onnx::cut(&model, &["x", "c"], &["b"]).unwrap().graph.unwrap().node.len(), 2);
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    let mut graph = GraphProto { node: vec![node("", "Neg", &["x"], &["y"])], ..Default::default() };
    for _ in 0..5000 {
        let attribute = AttributeProto { g: Some(graph), ..Default::default() };
        graph = GraphProto {
            node: vec![NodeProto { attribute: vec![attribute], ..Default::default() }],
            ..Default::default()
        };
    }
    // Encoding and dropping recurse as deep as the message: only decoding meets strangers.
    let bytes = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(move || ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec())
        .unwrap()
        .join()
        .unwrap();
    assert!(onnx::decode(Bytes::from(bytes)).unwrap_err().to_string().contains("recursion"));
}

/// `depth` functions, each of which calls the next one inside `bodies` bodies; the innermost negates. The input is
/// bfloat16.
fn nested_functions(depth: usize, bodies: usize) -> ModelProto {
    let function = |n: usize| {
        let mut inside = match n + 1 == depth {
            true => node("", "Neg", &["a"], &["b"]),
            false => node("local", &format!("F{}", n + 1), &["a"], &["b"]),
        };
        for _ in 0..bodies {
            let output = vec![ValueInfoProto { name: Some("b".to_owned()), ..Default::default() }];
            let body = GraphProto { node: vec![inside], output, ..Default::default() };
            inside = node("", "If", &["a"], &["b"]);
            inside.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        }
        FunctionProto {
            name: Some(format!("F{n}")),
            domain: Some("local".to_owned()),
            input: vec!["a".to_owned()],
            output: vec!["b".to_owned()],
            node: vec![inside],
            ..Default::default()
        }
    };
    let info = |name: &str| value_info(name, &TensorDesc::new(DType::BF16, [2]).unwrap());
    let graph = GraphProto {
        input: vec![info("x")],
        output: vec![info("y")],
        node: vec![node("local", "F0", &["x"], &["y"])],
        ..Default::default()
    };
    ModelProto { graph: Some(graph), functions: (0..depth).map(function).collect(), ..Default::default() }
}

/// On a thread with the stack that the standard library gives one.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap()
}

#[test]
fn deeply_nested_functions_are_an_error_and_no_stack_overflow() {
    for (depth, bodies, expected) in [
        (60_000, 0, "calls nest 65 deep here: at most 64 are put in place"),
        (20, 2, "bodies nest 31 deep here: at most 30 are run"),
    ] {
        let bytes = Bytes::from(nested_functions(depth, bodies).encode_to_vec());
        let text = on_a_thread(move || onnx::widen(&onnx::decode(bytes).unwrap(), &["y"]).unwrap_err().to_string());
        assert!(text.contains(expected), "{text}");
    }
}

/// Each function calls the next one twice: nothing is computed, 2^50 times.
#[test]
fn calls_that_double_end() {
    let mut model = nested_functions(50, 0);
    for function in &mut model.functions[..49] {
        let call = function.node[0].clone();
        function.node.push(NodeProto { output: vec!["again".to_owned()], ..call });
    }
    model.functions[49].node.clear();
    let text = on_a_thread(move || onnx::inline_functions(&mut model).unwrap_err().to_string());
    assert!(text.contains("take more than 4000000 steps"), "{text}");
}

/// What decoding lets through, and what calls of functions may nest, fits the stack of any thread.
#[test]
fn the_deepest_model_that_is_decoded_goes_through_every_pass() {
    let mut deepest = 0;
    for bodies in 1..60 {
        let mut model = nested_functions(1, bodies);
        let graph = model.graph.as_mut().unwrap();
        graph.node = std::mem::take(&mut model.functions[0].node);
        model.functions.clear();
        let Ok(model) = onnx::decode(Bytes::from(model.encode_to_vec())) else { break };
        on_a_thread(move || use_all(model, &std::env::temp_dir()));
        deepest = bodies;
    }
    assert!(deepest >= 20, "{deepest}");
    let mut model = onnx::decode(Bytes::from(nested_functions(64, 0).encode_to_vec())).unwrap();
    on_a_thread(move || onnx::inline_functions(&mut model).unwrap());
}

/// Operators that a pass treats in a way of its own, and one that nobody knows.
#[rustfmt::skip]
const OPERATORS: &[&str] = &[
    "Cast", "Cast", "Cast", "Cast", "CastLike", "CastLike", "BitCast", "Neg", "Concat", "ScatterND", "If", "Loop", "Scan", "SequenceMap",
    "SequenceConstruct", "SequenceAt", "SequenceEmpty", "Optional", "Constant", "ConstantOfShape", "TopK", "LayerNormalization",
    "BatchNormalization", "Where", "QuantizeLinear", "DequantizeLinear", "RandomNormal", "F", "NoSuchOperator",
];

/// What it gives is named by [`any_graph`].
fn any_node(depth: u32) -> BoxedStrategy<NodeProto> {
    // Few names, so that values meet; one of them empty, as an input that is left out.
    let inputs = prop::collection::vec(prop::sample::select(vec!["", "x", "x", "v0", "v1", "v2"]), 0..4);
    let outputs = prop::collection::vec(prop::sample::select(vec!["", "v", "v"]), 0..3);
    let names = prop::sample::select(vec!["to", "to", "dtype", "axis", "reduction", "value"]);
    let attributes = prop::collection::vec((names, prop::sample::select(vec![0_i64, 1, 16, 16, 99])), 0..3);
    let bodies = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => prop::collection::vec(any_graph(depth - 1), 0..3).boxed(),
    };
    (prop::sample::select(OPERATORS), inputs, outputs, attributes, bodies)
        .prop_map(|(op, inputs, outputs, attributes, bodies)| {
            let mut made = node(if op == "F" { "local" } else { "" }, op, &inputs, &outputs);
            let plain = attributes.into_iter().map(|(name, i)| AttributeProto {
                name: Some(name.to_owned()),
                i: Some(i),
                t: (name == "value").then(|| TensorProto { data_type: Some(i as i32), ..Default::default() }),
                ..Default::default()
            });
            let nested = bodies.into_iter().map(|g| AttributeProto { g: Some(g), ..Default::default() });
            made.attribute = plain.chain(nested).collect();
            made
        })
        .boxed()
}

fn any_graph(depth: u32) -> BoxedStrategy<GraphProto> {
    let nodes = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => prop::collection::vec(any_node(depth - 1), 0..5).boxed(),
    };
    let infos = |names: &'static [&'static str]| {
        let dtype = prop::sample::select(vec![DType::BF16, DType::BF16, DType::F32]);
        prop::collection::vec((prop::sample::select(names), prop::option::of(dtype)), 0..3)
    };
    let info = |(name, dtype): (&str, Option<DType>)| match dtype {
        Some(dtype) => value_info(name, &TensorDesc::new(dtype, [2]).unwrap()),
        None => ValueInfoProto { name: Some(name.to_owned()), ..Default::default() },
    };
    (nodes, infos(&["x"]), infos(&["", "x", "v0", "v3"]), infos(&["", "x", "v0", "v1"]))
        .prop_map(move |(mut node, input, output, value_info)| {
            for (at, node) in node.iter_mut().enumerate() {
                for (nth, name) in node.output.iter_mut().enumerate().filter(|(_, name)| !name.is_empty()) {
                    *name = if nth == 0 { format!("v{at}") } else { format!("v{at}.{nth}") };
                }
            }
            GraphProto {
                node,
                input: input.into_iter().map(info).collect(),
                output: output.into_iter().map(info).collect(),
                value_info: value_info.into_iter().map(info).collect(),
                ..Default::default()
            }
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn graphs_with_missing_inputs_and_outputs_never_panic(
        graph in prop_oneof![any_graph(1), any_graph(3)],
        body in prop::collection::vec(any_node(1), 0..3),
    ) {
        let function = FunctionProto { node: body, ..model().functions.remove(0) };
        use_all(ModelProto { graph: Some(graph), functions: vec![function], ..Default::default() }, &std::env::temp_dir());
    }

    #[test]
    fn mutated_models_never_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..6),
    ) {
        let folder = std::env::temp_dir();
        let mut bytes = model().encode_to_vec();
        for (at, value, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => { bytes.remove(at); }
                _ => bytes.insert(at, bytes[at]),
            }
        }
        if let Ok(model) = onnx::decode(Bytes::from(bytes)) {
            use_all(model, &folder);
        }
    }
}
