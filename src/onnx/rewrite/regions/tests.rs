use super::super::nodes::attribute;
use super::super::nodes::tests::{graph, node, of, text};
use super::*;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto, ValueInfoProto};
use crate::onnx::region::STEPS;
use crate::onnx::{TypedProgram, value_info};
use crate::tensor::{DType, TensorDesc};

fn typed(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    value_info(name, &TensorDesc::new(dtype, dims).unwrap())
}

fn constant(name: &str, number: f32) -> NodeProto {
    let tensor = TensorProto { data_type: Some(1), float_data: vec![number], ..TensorProto::default() };
    let value = AttributeProto {
        name: Some("value".to_owned()),
        t: Some(tensor),
        r#type: Some(AttributeType::Tensor as i32),
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![value], ..node("Constant", &[], name) }
}

fn mean(input: &str, output: &str) -> NodeProto {
    let axes = AttributeProto { name: Some("axes".to_owned()), ints: vec![-1], ..AttributeProto::default() };
    NodeProto { attribute: vec![axes], ..node("ReduceMean", &[input], output) }
}

fn cast(input: &str, output: &str, to: DType) -> NodeProto {
    let to = super::super::nodes::integer("to", to.onnx_code().into());
    NodeProto { attribute: vec![to], ..node("Cast", &[input], output) }
}

/// What the graph is afterwards, without attributes, and the programs of its regions.
fn rewritten(
    nodes: Vec<NodeProto>,
    inputs: &[ValueInfoProto],
    outputs: &[ValueInfoProto],
) -> (Vec<String>, Vec<String>) {
    // What a node does not tell the model does.
    let between = [of("square", &[2, 3, 4]), of("mean", &[2, 3, 1])];
    of_graph(graph(nodes, inputs, outputs, &between), on_cpu)
}

fn of_graph(mut found: GraphProto, run: fn(&mut GraphProto) -> usize) -> (Vec<String>, Vec<String>) {
    let n_places = run(&mut found);
    let steps = |node: &NodeProto| {
        let steps = attribute(node, STEPS)?;
        String::from_utf8(steps.s.as_ref()?.to_vec()).ok()
    };
    let programs: Vec<String> = found.node.iter().filter_map(steps).collect();
    assert_eq!(programs.len(), n_places);
    let line = |line: String| line.split(" rank=").next().unwrap().to_owned();
    (text(&found).into_iter().map(line).collect(), programs)
}

#[test]
fn a_norm_is_one_region_with_all_that_others_read() {
    let nodes = vec![
        constant("two", 2.0),
        constant("epsilon", 1e-6),
        node("Pow", &["x", "two"], "square"),
        mean("square", "mean"),
        node("Add", &["mean", "epsilon"], "a"),
        node("Sqrt", &["a"], "s"),
        node("Reciprocal", &["s"], "r"),
        node("Mul", &["x", "r"], "n"),
        node("Mul", &["w", "n"], "y"),
        node("Softplus", &["n"], "z"),
    ];
    let inputs = [of("x", &[2, 3, 4]), of("w", &[4])];
    let outputs = [of("r", &[2, 3, 1]), of("y", &[2, 3, 4]), of("z", &[2, 3, 4])];
    let (nodes, programs) = rewritten(nodes, &inputs, &outputs);
    assert_eq!(nodes, ["r, n, y = RegionFloat(x, w)", "z = Softplus(n)"]);
    assert_eq!(programs, ["Square 0; ReduceMean 3; Add 4 2; Sqrt 5; Reciprocal 6; Mul 0 7; Mul 1 8"]);
}

#[test]
fn a_way_through_another_node_parts_two_regions() {
    let nodes = vec![
        node("Neg", &["x"], "a"),
        node("Exp", &["a"], "b"),
        node("Softplus", &["b"], "c"),
        node("Mul", &["c", "b"], "d"),
        node("Abs", &["d"], "y"),
    ];
    let (nodes, programs) = rewritten(nodes, &[of("x", &[2, 3])], &[of("c", &[2, 3]), of("y", &[2, 3])]);
    assert_eq!(nodes, ["b = RegionFloat(x)", "c = Softplus(b)", "y = RegionFloat(c, b)"]);
    assert_eq!(programs, ["Neg 0; Exp 1", "Mul 0 1; Abs 2"]);
}

#[test]
fn casts_within_are_roundings_and_what_others_read_is_cast_outside() {
    let (half, x) = (DType::BF16, typed("x", DType::BF16, &[2, 3]));
    let nodes = vec![
        cast("x", "a", DType::F32),
        node("Exp", &["a"], "b"),
        cast("b", "h", half),
        cast("h", "c", DType::F32),
        node("Neg", &["c"], "d"),
        node("Abs", &["d"], "y"),
    ];
    let outputs = [typed("h", half, &[2, 3]), of("y", &[2, 3])];
    let (nodes, programs) = rewritten(nodes, &[x], &outputs);
    assert_eq!(nodes, ["h/region, y = RegionFloat(x)", "h = Cast(h/region) to=16"]);
    assert_eq!(programs, ["Exp 0; RoundBFloat16 1; Neg 2; Abs 3"]);
}

#[test]
fn a_cast_outside_has_a_name_that_no_node_has() {
    let half = DType::BF16;
    let unrounded = NodeProto { name: Some("node_h".to_owned()), ..node("Softplus", &["x"], "h/unrounded") };
    let nodes = vec![
        unrounded,
        cast("h/unrounded", "h", half),
        cast("h", "c", DType::F32),
        node("Neg", &["c"], "d"),
        node("Abs", &["d"], "y"),
    ];
    let outputs = [typed("h", half, &[2, 3]), of("y", &[2, 3])];
    let mut found = graph(nodes, &[of("x", &[2, 3])], &outputs, &[of("h/unrounded", &[2, 3])]);
    assert_eq!(on_cpu(&mut found), 1);
    let casts: Vec<_> = found.node.iter().filter(|node| node.output == ["h"]).collect();
    assert_eq!((casts.len(), casts[0].name()), (1, "region_cast/h"));
}

#[test]
fn what_does_the_same_is_done_once() {
    let nodes = vec![node("Exp", &["x"], "a"), node("Exp", &["x"], "b"), node("Mul", &["a", "b"], "y")];
    let (nodes, programs) = rewritten(nodes, &[of("x", &[2, 3])], &[of("y", &[2, 3])]);
    assert_eq!((nodes, programs), (vec!["y = RegionFloat(x)".to_owned()], vec!["Exp 0; Mul 1 1".to_owned()]));
}

#[test]
fn what_the_model_does_not_tell_or_onnx_runtime_does_better_is_left_alone() {
    let pair = || vec![node("Neg", &["x"], "a"), node("Mul", &["a", "w"], "y")];
    let untold = ValueInfoProto { name: Some("w".to_owned()), ..ValueInfoProto::default() };
    let int = |name| typed(name, DType::I64, &[2, 3]);
    let double = |name| typed(name, DType::F64, &[2, 3]);
    let convolution = || vec![constant("k", 1.0), pair().remove(0), pair().remove(1), node("Conv", &["y", "k"], "z")];
    let gemm = || vec![node("MatMul", &["x", "w"], "p"), node("Add", &["p", "c"], "a"), node("Abs", &["a"], "y")];
    for (nodes, inputs) in [
        (pair(), vec![int("x"), int("w")]),
        (pair(), vec![double("x"), double("w")]),
        (pair(), vec![of("x", &[2, 3]), untold]), // w is of any shape
        (pair(), vec![of("x", &[2, 3]), of("w", &[4, 2, 3])]), // of two shapes
        (pair()[..1].to_vec(), vec![of("x", &[2, 3])]), // one node
        (convolution(), vec![of("x", &[2, 3]), of("w", &[2, 3])]), // of unknown rank
        (gemm(), vec![of("x", &[2, 3]), of("w", &[3, 3]), of("c", &[3])]),
    ] {
        let before = text(&graph(nodes.clone(), &[], &[], &[]));
        let output = nodes.last().unwrap().output[0].clone();
        let (after, programs) =
            rewritten(nodes, &inputs, &[ValueInfoProto { name: Some(output), ..ValueInfoProto::default() }]);
        assert_eq!((after, programs.len()), (before, 0));
    }
    let flags = vec![node("And", &["f", "g"], "a"), node("Not", &["a"], "y")];
    let inputs = ["f", "g"].map(|name| typed(name, DType::Bool, &[2, 3]));
    assert!(rewritten(flags, &inputs, &[typed("y", DType::Bool, &[2, 3])]).1.is_empty());
}

#[test]
fn a_region_stands_beside_a_convolution_whose_weight_is_an_input() {
    let nodes = vec![node("Neg", &["x"], "a"), node("Mul", &["a", "w"], "y"), node("Conv", &["y", "k"], "z")];
    let inputs = [of("x", &[1, 2, 3, 3]), of("w", &[2, 1, 1]), of("k", &[2, 2, 1, 1])];
    let (nodes, programs) = rewritten(nodes, &inputs, &[of("z", &[1, 2, 3, 3])]);
    assert_eq!((nodes.len(), programs), (2, vec!["Neg 0; Mul 2 1".to_owned()]));
}

/// Element types of what a region reads and gives, and elements of its row where they are known.
type Typed = (Vec<DType>, Vec<DType>, Option<usize>);

/// The graph as CUDA runs it, the programs of its regions, and the element types of what each reads and gives.
fn on_device(
    nodes: Vec<NodeProto>,
    inputs: &[ValueInfoProto],
    outputs: &[ValueInfoProto],
    between: &[ValueInfoProto],
) -> (Vec<String>, Vec<String>, Vec<Typed>) {
    let mut found = graph(nodes, inputs, outputs, between);
    let (nodes, programs) = of_graph(found.clone(), on_cuda);
    on_cuda(&mut found);
    let typed: Vec<TypedProgram> = found.node.iter().filter_map(TypedProgram::of).collect();
    for name in typed
        .iter()
        .zip(found.node.iter().filter(|node| TypedProgram::of(node).is_some()))
        .flat_map(|(_, node)| &node.output)
    {
        assert!(found.value_info.iter().chain(&found.output).any(|info| info.name() == name), "{name} has no type");
    }
    (nodes, programs, typed.into_iter().map(|it| (it.inputs, it.outputs, it.row)).collect())
}

const HALF: DType = DType::BF16;

#[test]
fn on_cuda_nodes_of_half_precision_round_as_they_do() {
    let half = |name: &str| typed(name, HALF, &[2, 3]);
    let nodes = vec![
        node("Mul", &["x", "y"], "a"),
        node("Neg", &["a"], "b"),
        node("Add", &["b", "x"], "c"),
        node("Greater", &["c", "y"], "d"),
        node("Where", &["d", "c", "x"], "z"),
    ];
    let between = [half("a"), half("b"), half("c"), typed("d", DType::Bool, &[2, 3])];
    let (nodes, programs, types) =
        on_device(nodes, &[half("x"), half("y")], &[half("z"), typed("d", DType::Bool, &[2, 3])], &between);
    assert_eq!(nodes, ["d, z = Region(x, y)"]);
    assert_eq!(programs, ["Mul 0 1; RoundBFloat16 2; Neg 3; Add 4 0; RoundBFloat16 5; Greater 6 1; Where 7 6 0"]);
    assert_eq!(types, [(vec![HALF; 2], vec![DType::Bool, HALF], Some(3))]);
}

#[test]
fn on_cuda_a_region_gives_what_it_casts_and_reads_what_is_cast() {
    let nodes = vec![
        cast("x", "a", DType::F32),
        node("Exp", &["a"], "b"),
        node("Softplus", &["b"], "s"), // nobody's but ONNX Runtime's
        node("Mul", &["s", "a"], "c"),
        cast("c", "h", HALF),
        cast("h", "d", DType::F32),
        node("Abs", &["d"], "e"),
    ];
    let inputs = [typed("x", HALF, &[2, 3])];
    let outputs = [typed("h", HALF, &[2, 3]), of("d", &[2, 3]), of("e", &[2, 3])];
    let between = ["a", "b", "s", "c"].map(|name| of(name, &[2, 3]));
    let (nodes, programs, types) = on_device(nodes, &inputs, &outputs, &between);
    assert_eq!(nodes, ["a = Cast(x) to=1", "b = Exp(a)", "s = Softplus(b)", "h, d, e = Region(s, x)"]);
    assert_eq!(programs, ["Mul 0 1; RoundBFloat16 2; Abs 3"]);
    assert_eq!(types, [(vec![DType::F32, HALF], vec![HALF, DType::F32, DType::F32], Some(3))]);
}

#[test]
fn on_cuda_what_a_region_keeps_for_itself_is_no_others_source() {
    let nodes = vec![
        node("Exp", &["x"], "a"),
        cast("a", "h", HALF),
        cast("h", "d", DType::F32),
        node("Softplus", &["d"], "s"),
        node("Mul", &["s", "d"], "b"),
        node("Neg", &["b"], "y"),
    ];
    let between = [of("a", &[2, 3]), typed("h", HALF, &[2, 3]), of("d", &[2, 3]), of("s", &[2, 3]), of("b", &[2, 3])];
    let (nodes, programs, types) = on_device(nodes, &[of("x", &[2, 3])], &[of("y", &[2, 3])], &between);
    assert_eq!(nodes, ["d = Region(x, x)", "s = Softplus(d)", "y = Region(s, d)"]);
    assert_eq!(programs, ["Exp 0; RoundBFloat16 1", "Mul 0 1; Neg 2"]);
    assert_eq!(types[0], (vec![DType::F32], vec![DType::F32], Some(3)));
}

#[test]
fn one_input_and_one_output_of_another_type_are_told_apart() {
    let nodes = vec![cast("x", "a", DType::F32), node("Exp", &["a"], "y")];
    let (nodes, programs, types) =
        on_device(nodes, &[typed("x", HALF, &[2, 3])], &[of("y", &[2, 3])], &[of("a", &[2, 3])]);
    assert_eq!((nodes, programs), (vec!["y = Region(x, x)".to_owned()], vec!["Exp 0".to_owned()]));
    assert_eq!(types, [(vec![HALF], vec![DType::F32], Some(3))]);
}

#[test]
fn on_cuda_numbers_of_half_precision_are_numbers() {
    let number = TensorProto {
        name: Some("two".to_owned()),
        data_type: Some(HALF.onnx_code()),
        int32_data: vec![0x4000],
        ..TensorProto::default()
    };
    let nodes = vec![node("Mul", &["x", "two"], "a"), node("Abs", &["a"], "y")];
    let mut found =
        graph(nodes, &[typed("x", HALF, &[2, 3])], &[typed("y", HALF, &[2, 3])], &[typed("a", HALF, &[2, 3])]);
    found.initializer.push(number);
    let (_, programs) = of_graph(found, on_cuda);
    assert_eq!(programs, ["Mul 0 1; RoundBFloat16 2; Abs 3"]);
}

#[test]
fn on_cuda_a_softmax_is_in_a_region_with_what_is_around_it() {
    let axis = || super::super::nodes::integer("axis", -1);
    let softmax = NodeProto { attribute: vec![axis()], ..node("LogSoftmax", &["a"], "y") };
    let inputs = [typed("x", HALF, &[2, 3])];
    let nodes = vec![cast("x", "a", DType::F32), softmax];
    let (nodes, programs, types) = on_device(nodes, &inputs, &[of("y", &[2, 3])], &[of("a", &[2, 3])]);
    assert_eq!(nodes, ["y = Region(x, x)"]);
    assert_eq!(programs, ["ReduceMax 0; Sub 0 1; Exp 2; ReduceSum 3; Log 4; Sub 2 5"]);
    assert_eq!(types, [(vec![HALF], vec![DType::F32], Some(3))]);
    let alone = NodeProto { attribute: vec![axis()], ..node("Softmax", &["x"], "y") };
    assert!(on_device(vec![alone], &inputs, &[typed("y", HALF, &[2, 3])], &[]).1.is_empty());
}

#[test]
fn on_cuda_long_rows_are_a_regions_where_there_are_many() {
    let sum = |rows: i64, columns: i64| {
        let nodes = vec![node("Exp", &["x"], "a"), mean("a", "m"), node("Sub", &["a", "m"], "y")];
        let of_all = |name| of(name, &[rows, columns]);
        on_device(nodes, &[of_all("x")], &[of_all("y")], &[of_all("a"), of("m", &[rows, 1])]).1
    };
    assert_eq!(sum(4096, 100_000), ["Exp 0; ReduceMean 1; Sub 1 2"]);
    assert!(sum(4, 100_000).is_empty());
}
