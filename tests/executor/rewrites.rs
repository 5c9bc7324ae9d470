//! Models before and after the passes of `onnx::rewrite`, run on ONNX Runtime.

use crate::common::{Memory, built, runtime};
use crate::precision::node;
use prost::Message as _;
use rust_ort::onnx::proto::attribute_proto::AttributeType;
use rust_ort::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use rust_ort::onnx::{self, value_info};
use rust_ort::protocol::message::{ErrorCode, Optimization, SessionSpec, WireError};
use rust_ort::runtime::{self, Runtime as _};
use rust_ort::tensor::{DType, TensorDesc};

type Sizes = &'static [i64];

/// A model of float32 in which a pass finds something to do.
struct Case {
    pass: &'static str,
    nodes: Vec<NodeProto>,
    inputs: Vec<(&'static str, Sizes)>,
    outputs: Vec<(&'static str, Sizes)>,
    between: Vec<(&'static str, Sizes)>,
    /// Shapes of Reshapes.
    constants: Vec<(&'static str, Sizes)>,
}

fn transpose(input: &str, perm: &[i64], output: &str) -> NodeProto {
    let perm = AttributeProto {
        name: Some("perm".into()),
        ints: perm.to_vec(),
        r#type: Some(AttributeType::Ints as i32),
        ..Default::default()
    };
    NodeProto { attribute: vec![perm], ..node("Transpose", &[input], output) }
}

fn cases() -> Vec<Case> {
    let copies = |x| Case {
        pass: "output-copies",
        nodes: vec![
            node("Neg", &["x"], "a"),
            node("Identity", &["a"], "y"),
            node("Identity", &["a"], "z"),
            node("Relu", &["a"], "r"),
            node("Mul", &["r", "a"], "p"),
        ],
        inputs: vec![("x", x)],
        outputs: vec![("p", x), ("z", x), ("y", x)],
        between: vec![("a", x)],
        constants: Vec::new(),
    };
    let reshapes = |x, w, flat, deep| Case {
        pass: "output-reshapes",
        nodes: vec![
            node("Reshape", &["x", "to_flat"], "a"),
            node("MatMul", &["a", "w"], "b"),
            node("Reshape", &["b", "to_deep"], "y"),
            node("Relu", &["y"], "r"),
        ],
        inputs: vec![("x", x), ("w", w)],
        outputs: vec![("r", deep), ("y", deep)],
        between: vec![("a", flat)],
        constants: vec![("to_flat", flat), ("to_deep", deep)],
    };
    let across = |g, x, y| Case {
        pass: "product-orientation",
        nodes: vec![transpose("g", &[1, 0], "t"), node("MatMul", &["t", "x"], "y")],
        inputs: vec![("g", g), ("x", x)],
        outputs: vec![("y", y)],
        between: Vec::new(),
        constants: Vec::new(),
    };
    let turned = |x: Sizes, w: Sizes, y, [left, right]: [bool; 2]| {
        let perm: fn(Sizes) -> &'static [i64] = |sizes| if sizes.len() == 2 { &[1, 0] } else { &[0, 2, 1] };
        let operands = [("x", if left { "t" } else { "x" }), ("w", if right { "u" } else { "w" })];
        let mut nodes = vec![node("MatMul", &operands.map(|(_, read)| read), "y")];
        nodes.extend(left.then(|| transpose("x", perm(x), "t")));
        nodes.extend(right.then(|| transpose("w", perm(w), "u")));
        nodes.rotate_left(1);
        Case {
            pass: "product-transposes",
            nodes,
            inputs: vec![("x", x), ("w", w)],
            outputs: vec![("y", y)],
            between: Vec::new(),
            constants: Vec::new(),
        }
    };
    let half = |pass, x, w: Sizes, y, to, is_turned: bool| {
        let cast = |to, input: &str, output: &str| {
            let to = AttributeProto {
                name: Some("to".into()),
                i: Some(to),
                r#type: Some(AttributeType::Int as i32),
                ..Default::default()
            };
            NodeProto { attribute: vec![to], ..node("Cast", &[input], output) }
        };
        let mut nodes = vec![cast(to, "w", "h")];
        nodes.extend(is_turned.then(|| transpose("h", &[1, 0], "t")));
        nodes.push(cast(1, if is_turned { "t" } else { "h" }, "wide"));
        nodes.push(node("MatMul", &["x", "wide"], "y"));
        let between = Vec::new();
        Case { pass, nodes, inputs: vec![("x", x), ("w", w)], outputs: vec![("y", y)], between, constants: Vec::new() }
    };
    // What it computes is exact: functions of regions are not ONNX Runtime's to the last bit.
    let region = |x, w, y| Case {
        pass: "regions",
        nodes: vec![node("Mul", &["x", "w"], "a"), node("Sub", &["a", "x"], "b"), node("Sqrt", &["b"], "y")],
        inputs: vec![("x", x), ("w", w)],
        outputs: vec![("y", y)],
        between: vec![("a", y), ("b", y)],
        constants: Vec::new(),
    };
    let leaves = |x| Case {
        pass: "leaf-order",
        nodes: vec![node("Exp", &["x"], "y"), node("Neg", &["x"], "a"), node("Exp", &["a"], "z")],
        inputs: vec![("x", x)],
        outputs: vec![("y", x), ("z", x)],
        between: vec![("a", x)],
        constants: Vec::new(),
    };
    let same = |x| Case {
        pass: "same-casts",
        nodes: vec![node("Neg", &["x"], "a"), node("CastLike", &["a", "x"], "b"), node("Exp", &["b"], "y")],
        inputs: vec![("x", x)],
        outputs: vec![("y", x)],
        between: vec![("a", x)],
        constants: Vec::new(),
    };
    let attribute = |name: &str, i, ints: Sizes, kind: AttributeType| AttributeProto {
        name: Some(name.into()),
        i,
        ints: ints.to_vec(),
        r#type: Some(kind as i32),
        ..Default::default()
    };
    let ints = |name, ints| NodeProto {
        attribute: vec![attribute("value_ints", None, ints, AttributeType::Ints)],
        ..node("Constant", &[], name)
    };
    let set = |name, value, node| NodeProto {
        attribute: vec![attribute(name, Some(value), &[], AttributeType::Int)],
        ..node
    };
    let shaped = |x, rows, columns, y| Case {
        pass: "constant-shapes",
        nodes: vec![
            ints("rows", rows),
            ints("columns", columns),
            set("axis", 0, node("Concat", &["rows", "columns"], "shape")),
            node("Reshape", &["x", "shape"], "y"),
        ],
        inputs: vec![("x", x)],
        outputs: vec![("y", y)],
        between: Vec::new(),
        constants: Vec::new(),
    };
    let scaled = |x, factor| Case {
        pass: "constant-shapes",
        nodes: vec![
            ints("whole", factor),
            set("to", 1, node("Cast", &["whole"], "factor")),
            node("Mul", &["x", "factor"], "y"),
        ],
        inputs: vec![("x", x)],
        outputs: vec![("y", x)],
        between: Vec::new(),
        constants: Vec::new(),
    };
    let wide = |op, x: Sizes, axes, y, keeps| Case {
        pass: "wide-sums",
        nodes: vec![
            ints("axes", axes),
            set("to", 11, node("Cast", &["x"], "wide")),
            set("keepdims", keeps, node(op, &["wide", "axes"], "sum")),
            set("to", 1, node("Cast", &["sum"], "y")),
        ],
        inputs: vec![("x", x)],
        outputs: vec![("y", y)],
        between: Vec::new(),
        constants: Vec::new(),
    };
    let convolved = |op, [x, w, y]: [Sizes; 3], others: &[(&str, Sizes)]| {
        let group = w[0];
        let mut attributes = vec![attribute("group", Some(group), &[], AttributeType::Int)];
        attributes.extend(others.iter().map(|&(name, ints)| attribute(name, None, ints, AttributeType::Ints)));
        let reads: &[&str] = if others.is_empty() { &["x", "w"] } else { &["x", "w", "b"] };
        let mut inputs = vec![("x", x), ("w", w)];
        inputs.extend((!others.is_empty()).then(|| ("b", &w[..1])));
        Case {
            pass: "channel-convolutions",
            nodes: vec![NodeProto { attribute: attributes, ..node(op, reads, "y") }],
            inputs,
            outputs: vec![("y", y)],
            between: Vec::new(),
            constants: Vec::new(),
        }
    };
    vec![
        same(&[3, 5]),
        same(&[0, 5]),
        shaped(&[12], &[3], &[4], &[3, 4]),
        shaped(&[2, 30], &[5], &[3, 4], &[5, 3, 4]),
        shaped(&[0, 4], &[2], &[0, 2], &[2, 0, 2]),
        scaled(&[3, 5], &[-7]),
        scaled(&[3, 2], &[1 << 24, -(1 << 24)]),
        copies(&[3, 5]),
        copies(&[]),
        copies(&[0, 4]),
        reshapes(&[2, 3, 70], &[70, 5], &[6, 70], &[2, 3, 5]),
        reshapes(&[2, 3, 4, 7], &[7, 130], &[24, 7], &[2, 3, 4, 130]),
        reshapes(&[2, 3, 0], &[0, 5], &[6, 0], &[2, 3, 5]),
        half("half-products", &[3, 300], &[300, 70], &[3, 70], 16, false),
        half("half-products", &[2, 4, 300], &[300, 70], &[2, 4, 70], 16, false),
        half("half-products", &[3, 301], &[70, 301], &[3, 70], 16, true),
        half("half-products", &[1, 1, 301], &[1030, 301], &[1, 1, 1030], 16, true),
        half("half-products", &[3, 0], &[5, 0], &[3, 5], 16, true),
        half("half-products", &[3, 4], &[4, 0], &[3, 0], 16, false),
        wide("ReduceSum", &[2, 3, 40, 50], &[0, 2, 3], &[3], 0),
        wide("ReduceMean", &[2, 3, 4, 8], &[0, 2, 3], &[1, 3, 1, 1], 1),
        wide("ReduceSum", &[300, 70], &[0], &[70], 0),
        wide("ReduceSum", &[0, 70], &[0], &[1, 70], 1),
        wide("ReduceMean", &[5, 64], &[-1], &[5], 0),
        convolved("Conv", [&[2, 6, 19, 23], &[6, 1, 3, 5], &[2, 6, 17, 19]], &[]),
        convolved(
            "Conv",
            [&[2, 6, 19, 23], &[6, 1, 3, 5], &[2, 6, 9, 5]],
            &[("strides", &[2, 3]), ("dilations", &[1, 2])],
        ),
        convolved("Conv", [&[1, 12, 19, 23], &[6, 2, 17, 19], &[1, 6, 3, 5]], &[]),
        convolved("Conv", [&[3, 4, 70], &[4, 1, 4], &[3, 4, 67]], &[]),
        convolved("Conv", [&[3, 4, 70], &[4, 1, 4], &[3, 4, 73]], &[("pads", &[3, 3])]),
        convolved(
            "Conv",
            [&[2, 6, 9, 7], &[6, 1, 5, 3], &[2, 6, 5, 4]],
            &[("pads", &[2, 1, 2, 1]), ("strides", &[2, 2])],
        ),
        convolved("Conv", [&[0, 6, 9, 7], &[6, 1, 3, 3], &[0, 6, 7, 5]], &[]),
        convolved("ConvTranspose", [&[2, 6, 9, 7], &[6, 1, 3, 5], &[2, 6, 11, 11]], &[]),
        convolved("ConvTranspose", [&[3, 4, 70], &[4, 1, 4], &[3, 4, 142]], &[("strides", &[2])]),
        convolved(
            "ConvTranspose",
            [&[2, 6, 9, 7], &[6, 1, 3, 3], &[2, 6, 18, 14]],
            &[("strides", &[2, 2]), ("pads", &[1, 1, 1, 1]), ("output_padding", &[1, 1])],
        ),
        half("cast-transposes", &[40, 300], &[70, 300], &[40, 70], 10, true),
        half("cast-transposes", &[2, 40, 300], &[70, 300], &[2, 40, 70], 16, true),
        across(&[300, 4096], &[300, 128], &[4096, 128]),
        across(&[210, 4100], &[210, 200], &[4100, 200]),
        turned(&[6, 300], &[50, 300], &[6, 50], [false, true]),
        turned(&[2, 3, 300], &[50, 300], &[2, 3, 50], [false, true]),
        turned(&[2, 3, 300], &[2, 50, 300], &[2, 3, 50], [false, true]),
        turned(&[300, 6], &[300, 130], &[6, 130], [true, false]),
        turned(&[2, 300, 6], &[2, 300, 130], &[2, 6, 130], [true, false]),
        turned(&[300, 6], &[130, 300], &[6, 130], [true, true]),
        turned(&[0, 6], &[130, 0], &[6, 130], [true, true]),
        turned(&[0, 300], &[50, 300], &[0, 50], [false, true]),
        region(&[3, 5], &[3, 5], &[3, 5]),
        region(&[2, 3, 700], &[3, 1], &[2, 3, 700]),
        region(&[4, 1, 6], &[3, 6], &[4, 3, 6]),
        region(&[0, 5], &[5], &[0, 5]),
        leaves(&[3, 5]),
    ]
}

impl Case {
    fn model(&self) -> ModelProto {
        let of = |values: &[(&str, Sizes)]| {
            values.iter().map(|(name, dims)| value_info(name, &TensorDesc::new(DType::F32, *dims).unwrap())).collect()
        };
        let constant = |&(name, sizes): &(&str, Sizes)| TensorProto {
            name: Some(name.to_owned()),
            dims: vec![sizes.len() as i64],
            data_type: Some(DType::I64.onnx_code()),
            int64_data: sizes.to_vec(),
            ..Default::default()
        };
        // A size of 0 is that size.
        let zeros = |node: &NodeProto| {
            let mut node = node.clone();
            let allow = AttributeProto {
                name: Some("allowzero".into()),
                i: Some(1),
                r#type: Some(AttributeType::Int as i32),
                ..Default::default()
            };
            node.attribute.extend((node.op_type() == "Reshape").then_some(allow));
            node
        };
        let graph = GraphProto {
            name: Some("g".into()),
            node: self.nodes.iter().map(zeros).collect(),
            input: of(&self.inputs),
            output: of(&self.outputs),
            value_info: of(&self.between),
            initializer: self.constants.iter().map(constant).collect(),
            ..Default::default()
        };
        ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
            graph: Some(graph),
            ..Default::default()
        }
    }

    /// Adds up in an order of its own.
    fn multiplies(&self) -> bool {
        let sums = ["MatMul", "Conv", "ConvTranspose", "ReduceSum", "ReduceMean"];
        self.nodes.iter().any(|node| sums.contains(&node.op_type()))
    }

    /// Whose zeros ONNX Runtime multiplies by what is not finite, too.
    fn has_margin(&self) -> bool {
        self.nodes.iter().flat_map(|node| &node.attribute).any(|attribute| attribute.name() == "pads")
    }

    /// The bits of every output. Inputs of products are small whole numbers, whose sums are exact in any order.
    fn run(&self, spec: &SessionSpec, special: &[f32]) -> Vec<Vec<u32>> {
        let memory = Memory::new(64 << 20);
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let value = (seed >> 40) as f32 / (1 << 23) as f32 - 1.0;
            if self.multiplies() { (value * 8.0).round() } else { value }
        };
        let feed = |&(_, dims): &(&str, Sizes)| {
            let n_elements = dims.iter().product::<i64>() as usize;
            let mut values: Vec<f32> = (0..n_elements).map(|_| next()).collect();
            for (at, &value) in special.iter().enumerate().filter(|_| n_elements > 0) {
                values[(at * 101 + 7) % n_elements] = value;
            }
            memory.put(dims, &values)
        };
        let feeds: Vec<_> = self.inputs.iter().map(feed).collect();
        let session = built(&self.model().encode_to_vec(), spec).unwrap();
        let (outputs, _) = session.fetch(&memory.table.lease(&feeds, &[]).unwrap()).unwrap();
        let bits = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect();
        outputs.iter().map(|output| bits(output.view().bytes())).collect()
    }

    fn ran(&self, spec: &SessionSpec) -> Option<String> {
        let model = runtime::Model::encode(&self.model());
        let optimized = onnx::decode(runtime().optimized(&model, spec).unwrap().into()).unwrap();
        onnx::ran(&optimized).map(str::to_owned)
    }
}

fn without(passes: impl Iterator<Item = &'static str>) -> SessionSpec {
    SessionSpec { disabled_passes: passes.map(str::to_owned).collect(), ..SessionSpec::default() }
}

/// Only this pass.
fn with(pass: &'static str) -> SessionSpec {
    without(onnx::passes().filter(move |&name| name != pass))
}

#[test]
fn each_pass_has_its_case() {
    let mut met: Vec<_> = cases().iter().map(|case| case.pass).collect();
    met.dedup();
    assert_eq!(met, onnx::passes_for(onnx::Target::Cpu).collect::<Vec<_>>());
}

#[test]
fn values_stay_bit_by_bit() {
    let off = without(onnx::passes());
    for case in cases() {
        let on = with(case.pass);
        assert_eq!((case.ran(&off), case.ran(&on)), (None, Some(format!("{} 1", case.pass))));
        // Of two NaN the hardware keeps the first operand's bits, and a product that is laid out otherwise has them in
        // another order, a region in whichever the compiler chose.
        let is_any_nan = case.multiplies() || case.pass == "regions";
        let known = |bits: u32| if is_any_nan && f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
        let run = |spec, special: &[f32]| {
            let outputs = case.run(spec, special);
            outputs.into_iter().map(|bits| bits.into_iter().map(known).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let small: &[f32] = if case.multiplies() { &[] } else { &[f32::MIN_POSITIVE, 1e-42, f32::MAX] };
        let infinite: &[f32] = &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, -0.0];
        let infinite = if case.has_margin() { &[] } else { infinite };
        for special in [&[], &[-0.0, 0.0][..], small, infinite] {
            assert!(run(&on, special) == run(&off, special), "{} {:?} with {special:?}", case.pass, case.inputs);
        }
    }
}

#[test]
fn passes_run_with_the_graph_optimizer_at_its_higher_levels_only() {
    let case = &cases()[0];
    for &(_, optimization) in Optimization::NAMES {
        let ran = case.ran(&SessionSpec { optimization, ..with(case.pass) });
        let expected = matches!(optimization, Optimization::All | Optimization::Extended);
        assert_eq!(ran, expected.then(|| format!("{} 1", case.pass)), "{optimization:?}");
    }
}

#[test]
fn a_pass_that_is_not_there_is_an_error() {
    let model = cases()[0].model().encode_to_vec();
    for optimization in [Optimization::All, Optimization::Disable] {
        let spec = SessionSpec { optimization, ..without(["output-copy"].into_iter()) };
        let error = WireError::from(built(&model, &spec).err().unwrap());
        assert_eq!(error.code, ErrorCode::BadOption);
        assert!(error.to_string().contains("no pass is called \"output-copy\"; there are same-casts,"), "{error}");
    }
}
