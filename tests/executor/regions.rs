//! The operator that runs a region's program, on ONNX Runtime, beside the nodes that it stands for.

use crate::common::{Memory, built};
use crate::precision::node;
use prost::Message as _;
use rust_ort::onnx::proto::attribute_proto::AttributeType;
use rust_ort::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use rust_ort::onnx::{DOMAIN, REGION, region, value_info};
use rust_ort::protocol::message::SessionSpec;
use rust_ort::tensor::{DType, TensorDesc};

fn named(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(r#type as i32), ..Default::default() }
}

/// Of x, as one value less its row's largest, and as its gate: x · sigmoid(x) · w.
fn of_region(steps: &str) -> Vec<NodeProto> {
    let text = |name: &str, text: &str| AttributeProto {
        s: Some(text.as_bytes().to_vec()),
        ..named(name, AttributeType::String)
    };
    let attribute = vec![
        text(region::INPUTS, "ff"),
        text(region::STEPS, steps),
        AttributeProto { ints: vec![2, 3, 5], ..named(region::OUTPUTS, AttributeType::Ints) },
        AttributeProto { i: Some(3), ..named(region::RANK, AttributeType::Int) },
    ];
    let own = |names: [&str; 3]| names.map(str::to_owned).to_vec();
    let mut region = node(REGION, &["x", "w"], "m");
    (region.domain, region.output, region.attribute) = (Some(DOMAIN.to_owned()), own(["m", "d", "y"]), attribute);
    vec![region]
}

fn of_nodes() -> Vec<NodeProto> {
    let axes = AttributeProto { ints: vec![2], ..named("axes", AttributeType::Ints) };
    let mut largest = node("ReduceMax", &["x"], "m");
    largest.attribute = vec![axes];
    vec![largest, node("Sub", &["x", "m"], "d"), node("Sigmoid", &["x"], "s"), node("Mul", &["s", "w"], "y")]
}

fn run(nodes: Vec<NodeProto>, sizes: [i64; 3]) -> Result<Vec<Vec<f32>>, String> {
    let [batch, length, n] = sizes;
    let of = |name: &str, dims: &[i64]| value_info(name, &TensorDesc::new(DType::F32, dims).unwrap());
    let graph = GraphProto {
        name: Some("g".into()),
        node: nodes,
        input: vec![of("x", &sizes), of("w", &[length, n])],
        output: vec![of("m", &[batch, length, 1]), of("d", &sizes), of("y", &sizes)],
        ..Default::default()
    };
    let opset = |domain: Option<&str>, version| OperatorSetIdProto {
        domain: domain.map(str::to_owned),
        version: Some(version),
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset(None, 17), opset(Some(DOMAIN), 1)],
        graph: Some(graph),
        ..Default::default()
    };
    let session = built(&model.encode_to_vec(), &SessionSpec::default()).map_err(|error| error.to_string())?;
    let memory = Memory::new(64 << 20);
    let values = |n: i64, by: f32| (0..n).map(|at| (at as f32 * by).sin() * 3.0).collect::<Vec<_>>();
    let feeds =
        [memory.put(&sizes, &values(batch * length * n, 0.37)), memory.put(&[length, n], &values(length * n, 0.73))];
    let (outputs, _) = session.fetch(&memory.table.lease(&feeds, &[]).unwrap()).map_err(|error| error.to_string())?;
    let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
    Ok(outputs.iter().map(|output| floats(output.view().bytes())).collect())
}

#[test]
fn a_region_gives_what_its_nodes_give() {
    for sizes in [[1, 1, 1], [2, 3, 40], [4, 64, 500], [1, 2, 100_000], [2, 0, 5]] {
        let (made, wanted) = (
            run(of_region("ReduceMax 0; Sub 0 2; Sigmoid 0; Mul 4 1"), sizes).unwrap(),
            run(of_nodes(), sizes).unwrap(),
        );
        for (made, wanted) in made.iter().zip(&wanted) {
            assert_eq!(made.len(), wanted.len());
            for (made, wanted) in made.iter().zip(wanted) {
                assert!((made - wanted).abs() <= 1e-6 * (1.0 + wanted.abs()), "{sizes:?}: {made}, expected {wanted}");
            }
        }
    }
}

#[test]
fn what_is_no_program_is_an_error_of_the_model() {
    for steps in ["ReduceMax 0; Sub 0 2; Sigmoid 9; Mul 4 1", "Softmax 0", ""] {
        let error = run(of_region(steps), [2, 3, 4]).unwrap_err();
        assert!(error.contains("its attributes are no program"), "{error}");
    }
}
