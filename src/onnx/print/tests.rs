use super::*;
use crate::onnx::proto::{
    AttributeProto, SparseTensorProto, StringStringEntryProto, TensorProto, attribute_proto::AttributeType,
    tensor_proto::DataType,
};
use crate::onnx::{tensor_proto, value_info};
use crate::tensor::{DType, TensorBuf, TensorDesc};

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: Some(op.into()), input: own(inputs), output: own(outputs), ..Default::default() }
}

fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), ..Default::default() }
}

fn typed(name: &str) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(DType::F16, [2, 3]).unwrap())
}

fn model_of(graph: GraphProto) -> ModelProto {
    ModelProto { ir_version: Some(10), graph: Some(graph), ..Default::default() }
}

fn body(name: &str, graph: GraphProto) -> AttributeProto {
    let r#type = Some(AttributeType::Graph as i32);
    AttributeProto { name: Some(name.into()), r#type, g: Some(graph), ..Default::default() }
}

const SHAPES: TextOptions<'_> = TextOptions { shapes: true, called: None };

/// Lines below the first, which is of the model.
fn lines(model: &ModelProto) -> Vec<String> {
    model_text(model).unwrap().lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn a_model_reads_as_lines() {
    let weight = TensorBuf::from_f32([2, 4], &[1., 2.5, -3., 4., 5., 6., 7., 8.]).unwrap();
    let mut transpose = node("Transpose", &["w"], &["y\n\u{202e}"]);
    transpose.domain = Some("com.example".into());
    transpose.attribute = vec![AttributeProto {
        name: Some("perm".into()),
        r#type: Some(AttributeType::Ints as i32),
        ints: vec![1, 0],
        ..Default::default()
    }];
    let graph = GraphProto {
        name: Some("main".into()),
        input: vec![typed("x")],
        initializer: vec![tensor_proto("w", &weight.view())],
        node: vec![transpose],
        output: vec![untyped("y")],
        ..Default::default()
    };
    assert_eq!(
        model_text(&model_of(graph)).unwrap(),
        "model: name='main' ir_version=10 producer=''\n\
         input: name='x' type=dtype('float16') shape=[2, 3]\n\
         init: name='w' type=float32 shape=(2, 4) -- [1.0, 2.5, -3.0, 4.0, 5.0, 6.0, … 8]\n\
         Transpose[com.example](w, perm=[1,0]) -> y\\n\\u{202e}\noutput: name='y' type=? shape=?\n"
    );
}

#[test]
fn a_node_stands_one_level_below_the_shallowest_that_it_reads() {
    let graph = GraphProto {
        input: vec![untyped("x")],
        node: vec![
            node("Neg", &["x"], &["a"]),
            node("Exp", &["a"], &["b"]),
            node("Abs", &["x"], &["c"]),
            node("Add", &["b", "c"], &["d"]),
            node("Clip", &["d", "", "x"], &["e"]),
        ],
        ..Default::default()
    };
    let nodes = ["Neg(x) -> a", "  Exp(a) -> b", "Abs(x) -> c", "  Add(b, c) -> d", "    Clip(d, '', x) -> e"];
    assert_eq!(lines(&model_of(graph))[1..], nodes);
}

#[test]
fn a_long_chain_is_indented_so_far_and_no_further() {
    let name = |at: usize| format!("v{at}");
    let chain = (0..5000).map(|at| node("Relu", &[&name(at)], &[&name(at + 1)])).collect();
    let text = model_text(&model_of(GraphProto { node: chain, ..Default::default() })).unwrap();
    let widest = text.lines().map(str::len).max().unwrap();
    assert!(widest < 2 * MAX_INDENT + 30, "{widest}");
}

#[test]
fn bodies_stand_below_their_node() {
    let inner = GraphProto {
        name: Some("deep".into()),
        node: vec![node("Neg", &["a"], &["n"])],
        output: vec![untyped("n")],
        ..Default::default()
    };
    let mut branch = node("If", &["c"], &["b"]);
    branch.attribute = vec![body("then_branch", inner)];
    let of_loop = GraphProto {
        name: Some("turn".into()),
        input: vec![typed("i")],
        node: vec![branch],
        output: vec![typed("b")],
        ..Default::default()
    };
    let mut scan = node("Scan", &["y"], &["z"]);
    scan.attribute = vec![body("body", GraphProto { name: Some("scanned".into()), ..Default::default() })];
    let mut turns = node("Loop", &["n", "", "x"], &["y"]);
    turns.attribute = vec![body("body", of_loop)];
    let graph = GraphProto { node: vec![turns, scan], ..Default::default() };
    assert_eq!(
        lines(&model_of(graph)),
        [
            "Loop(n, '', x, body=below) -> y",
            "  | body: graph name='turn'",
            "  |   input: name='i' type=dtype('float16') shape=[2, 3]",
            "  |   If(c, then_branch=below) -> b",
            "  |     | then_branch: graph name='deep'",
            "  |     |   Neg(a) -> n",
            "  |     |   output: name='n' type=? shape=?",
            "  |   output: name='b' type=dtype('float16') shape=[2, 3]",
            "  Scan(y, body=below) -> z",
            "    | body: graph name='scanned'",
        ]
    );
}

#[test]
fn functions_stand_below_the_graph() {
    let opset = |domain: &str| OperatorSetIdProto { domain: Some(domain.into()), version: Some(20) };
    let function = FunctionProto {
        name: Some("F".into()),
        domain: Some("local".into()),
        input: vec!["p".into()],
        attribute: vec!["alpha".into()],
        output: vec!["q".into()],
        node: vec![node("Abs", &["p"], &["q"])],
        opset_import: vec![opset("")],
        value_info: vec![typed("q")],
        ..Default::default()
    };
    let mut call = node("F", &["x"], &["y"]);
    call.domain = Some("local".into());
    let mut model = model_of(GraphProto { node: vec![call], ..Default::default() });
    (model.opset_import, model.functions) = (vec![opset(""), opset("local")], vec![function]);
    assert_eq!(
        lines(&model),
        [
            "opset: domain='' version=20",
            "opset: domain='local' version=20",
            "F[local](x) -> y",
            "----- function name=F domain=local",
            "opset: domain='' version=20",
            "input: 'p'",
            "attribute: 'alpha'",
            "Abs(p) -> q",
            "output: name='q' type=dtype('float16') shape=[2, 3]",
        ]
    );
}

#[test]
fn tensors_elsewhere_and_sparse_ones_say_so() {
    let entry = |(key, value): (&str, &str)| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    let outside = TensorProto {
        name: Some("e".into()),
        dims: vec![4],
        data_type: Some(1),
        data_location: Some(1),
        external_data: [("location", "w.bin"), ("offset", "8"), ("length", "16")].map(entry).to_vec(),
        ..Default::default()
    };
    let values = TensorBuf::from_f32([2], &[1., 2.]).unwrap();
    let sparse = SparseTensorProto { values: Some(tensor_proto("s", &values.view())), indices: None, dims: vec![9] };
    let graph = GraphProto { initializer: vec![outside], sparse_initializer: vec![sparse], ..Default::default() };
    let model = model_of(graph);
    assert_eq!(
        lines(&model),
        [
            "init: name='e' type=float32 shape=(4,) -- in file 'w.bin' offset 8 length 16",
            "init: name='s' type=float32 shape=(9,) -- sparse, 2 set",
        ]
    );
    let json = model_json(&model).unwrap();
    assert_eq!(json["graph"]["initializers"][0]["external"]["location"], "w.bin");
    assert_eq!(json["graph"]["initializers"][1]["sparse"], true);
}

#[test]
fn shapes_stand_beside_outputs_as_far_as_the_model_says() {
    let graph = GraphProto {
        node: vec![node("Split", &["x"], &["a", "b", ""]), node("Neg", &["a"], &["y"])],
        value_info: vec![typed("a")],
        output: vec![typed("y")],
        ..Default::default()
    };
    let model = model_of(graph);
    let text = model_text_with(&model, &SHAPES).unwrap();
    assert!(text.contains("Split(x) -> a: float16[2, 3], b: ?, ''\n  Neg(a) -> y: float16[2, 3]\n"), "{text}");
    let json = model_json(&model).unwrap();
    assert_eq!(json["graph"]["nodes"][0]["outputs"][0]["type"], "float16[2, 3]");
}

#[test]
fn names_that_are_quoted_end_where_their_quotes_do() {
    let graph = GraphProto { input: vec![untyped("it's \\")], ..Default::default() };
    assert_eq!(lines(&model_of(graph)), ["input: name='it\\'s \\\\' type=? shape=?"]);
}

#[test]
fn the_passes_that_ran_are_a_line() {
    let graph = GraphProto {
        input: vec![untyped("x")],
        node: vec![node("Neg", &["x"], &["a"]), node("Identity", &["a"], &["y"]), node("Exp", &["a"], &["z"])],
        output: vec![untyped("y"), untyped("z")],
        ..Default::default()
    };
    let mut model = model_of(graph);
    assert_eq!(lines(&model)[0], "input: name='x' type=? shape=?");
    assert!(rewrite::rewrite(&mut model, rewrite::Target::Cpu, &[]));
    let expected = ["passes: output-copies 1", "input: name='x' type=? shape=?", "Neg(x) -> y"];
    assert_eq!(lines(&model)[..3], expected);
}

#[test]
fn numbers_of_attributes_are_numbers_in_json() {
    let attribute = |name: &str, r#type: AttributeType, f: f32| AttributeProto {
        name: Some(name.into()),
        r#type: Some(r#type as i32),
        f: Some(f),
        ints: vec![1; 9],
        ..Default::default()
    };
    let mut one = node("Op", &[], &["y"]);
    one.attribute = vec![
        attribute("epsilon", AttributeType::Float, 0.5),
        attribute("low", AttributeType::Float, f32::NEG_INFINITY),
        attribute("axes", AttributeType::Ints, 0.),
    ];
    let model = model_of(GraphProto { node: vec![one], ..Default::default() });
    let attributes = &model_json(&model).unwrap()["graph"]["nodes"][0]["attributes"];
    let expected = serde_json::json!({ "epsilon": 0.5, "low": "-inf", "axes": [1, 1, 1, 1, 1, 1, 1, 1, 1] });
    assert_eq!(*attributes, expected);
    assert_eq!(lines(&model), ["Op(epsilon=0.5, low=-inf, axes=[1,1,1,1,1,1,… 9]) -> y"]);
}

/// A model of n outputs that are called alike, and one type of n dimensions for them.
fn alike(n: usize) -> ModelProto {
    use crate::onnx::proto::{TensorShapeProto, TypeProto, tensor_shape_proto::Dimension, type_proto};
    let shape = TensorShapeProto { dim: vec![Dimension::default(); n] };
    let tensor = type_proto::Tensor { elem_type: Some(1), shape: Some(shape) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    let info = ValueInfoProto { name: Some("a".into()), r#type: Some(r#type), ..Default::default() };
    let node = NodeProto { op_type: Some("Split".into()), output: vec!["a".into(); n], ..Default::default() };
    let function = FunctionProto {
        name: Some("F".into()),
        node: vec![node.clone()],
        output: vec!["a".into(); n],
        value_info: vec![info.clone()],
        ..Default::default()
    };
    let graph = GraphProto { node: vec![node], value_info: vec![info], ..Default::default() };
    ModelProto { graph: Some(graph), functions: vec![function], ..Default::default() }
}

#[test]
fn a_type_is_written_once_and_no_longer_than_a_tensor_has_dimensions() {
    let [few, many] = [100, 400].map(|n| {
        let model = alike(n);
        let texts = [model_text(&model).unwrap(), model_text_with(&model, &SHAPES).unwrap()];
        let dims = format!("{}, … {n}]", vec!["?"; 64].join(", "));
        assert_eq!(texts.each_ref().map(|text| text.matches(&dims).count()), [1, 3], "{}", texts[1]);
        let json = model_json(&model).unwrap().to_string();
        assert_eq!(json.matches(&dims).count(), 2, "{json}");
        texts.iter().chain([&json]).map(String::len).sum::<usize>()
    });
    assert!(many < 5 * few, "{few} and {many} bytes: four times the model is four times the text");
}

#[test]
fn doc_strings_metadata_and_what_inputs_are_called_are_told() {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let graph = GraphProto {
        doc_string: Some("two\nlines".into()),
        metadata_props: vec![entry("g", "1")],
        input: vec![typed("primals_1"), typed("x")],
        ..Default::default()
    };
    let mut model = model_of(graph);
    (model.doc_string, model.metadata_props) = (Some("a model".into()), vec![entry("rust_ort.assumes", "b >= 2")]);
    let called = HashMap::from([("primals_1".to_owned(), "layer.weight".to_owned())]);
    let options = TextOptions { shapes: false, called: Some(&called) };
    let text = model_text_with(&model, &options).unwrap();
    assert_eq!(
        text.lines().skip(1).collect::<Vec<_>>(),
        [
            "doc: 'a model'",
            "metadata: 'rust_ort.assumes'='b >= 2'",
            "doc: 'two\\nlines'",
            "metadata: 'g'='1'",
            "input: name='primals_1' type=dtype('float16') shape=[2, 3] of='layer.weight'",
            "input: name='x' type=dtype('float16') shape=[2, 3]",
        ]
    );
    let json = model_json(&model).unwrap();
    assert_eq!((&json["metadata"]["rust_ort.assumes"], &json["doc"]), (&"b >= 2".into(), &"a model".into()));
    assert_eq!((&json["graph"]["metadata"]["g"], &json["graph"]["doc"]), (&"1".into(), &"two\nlines".into()));
}

#[test]
fn four_bits_and_texts_are_shown_as_numbers_are() {
    let four = |code: DataType, bytes: &[u8], n: i64| TensorProto {
        data_type: Some(code as i32),
        dims: vec![n],
        raw_data: Some(bytes.to_vec().into()),
        ..Default::default()
    };
    let apart = TensorProto { raw_data: None, int32_data: vec![0x21], ..four(DataType::Uint4, &[], 2) };
    let texts = TensorProto {
        data_type: Some(DataType::String as i32),
        dims: vec![2],
        string_data: vec![b"a".to_vec(), b"it's".to_vec()],
        ..Default::default()
    };
    for (tensor, expected) in [
        (four(DataType::Int4, &[0xf1, 0x78], 4), "type=int4 shape=(4,) -- [1, -1, -8, 7]"),
        (four(DataType::Uint4, &[0xf1, 0x08], 3), "type=uint4 shape=(3,) -- [1, 15, 8]"),
        (four(DataType::Int4, &[0x11; 8], 16), "type=int4 shape=(16,) -- [1, 1, 1, 1, 1, 1, … 16]"),
        (apart, "type=uint4 shape=(2,) -- [1, 2]"),
        (texts, "type=string shape=(2,) -- ['a', 'it\\'s']"),
        (four(DataType::Int4, &[0x11], 16), "type=int4 shape=(16,)"),
    ] {
        assert_eq!(initializer_text(&tensor), expected);
    }
}
