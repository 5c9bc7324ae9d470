//! Writes a small dump into a folder, for tests of its readers: `write_dump <folder>`. One graph with the model
//! `y = x + w`, one complete data set that matches, one that does not, and one that a crash left incomplete.

use std::error::Error;

use rust_ort::compare::judge;
use rust_ort::dump::{CallsToDump, GraphRecord, Run, RunSpec};
use rust_ort::ids::{GraphId, StepId};
use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use rust_ort::onnx::value_info;
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

use prost::Message;

fn model() -> Result<ModelProto, Box<dyn Error>> {
    let desc = TensorDesc::new(DType::F32, [2, 2])?;
    let add = NodeProto {
        op_type: Some("Add".to_owned()),
        input: vec!["x".to_owned(), "w".to_owned()],
        output: vec!["y".to_owned()],
        ..Default::default()
    };
    let graph = GraphProto {
        name: Some("0_0-forward".to_owned()),
        input: vec![value_info("x", &desc), value_info("w", &desc)],
        output: vec![value_info("y", &desc)],
        node: vec![add],
        ..Default::default()
    };
    Ok(ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(20) }],
        graph: Some(graph),
        ..Default::default()
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: write_dump <folder>")?;
    let run = Run::open(&RunSpec {
        folder: folder.into(),
        run: "example".to_owned(),
        clean: true,
        calls: CallsToDump::All,
        run_json: r#"{"torch": "2.13.0"}"#.to_owned(),
        keep_steps: None,
    })?;
    let graph = run.graph(&GraphRecord {
        graph: GraphId::from_bytes([7; 32]),
        name: "0_0-forward",
        direction: "forward",
        dynamo_text: "def forward(self, x): ...\n",
        joint_text: "def forward(primals, tangents): ...\n",
        fx_text: "def forward(self, w, x): ...\n",
        parts_json: r#"{"parts": [{"part": 0, "nodes": ["y"]}]}"#,
    })?;
    run.part(&graph, 0, &model()?.encode_to_vec(), r#"{"values": {"y": {"fx": "add"}}}"#)?;
    let tensor = |values: &[f32]| TensorBuf::from_f32([2, 2], values);
    let (x, w) = (tensor(&[1., 2., 3., 4.])?, tensor(&[0.5; 4])?);
    let inputs = [("x".to_owned(), x.view()), ("w".to_owned(), w.view())];
    let reference = tensor(&[1.5, 2.5, 3.5, 4.5])?;
    for (step, last) in [(0, 4.5), (1, 5.0)] {
        let actual = tensor(&[1.5, 2.5, 3.5, last])?;
        let data_set = run.begin_step(&graph, 0, StepId(step), &inputs)?;
        run.references(&data_set, &[("y".to_owned(), reference.view())]);
        run.actuals(&data_set, &[("y".to_owned(), actual.view())]);
        run.comparison(&data_set, &[judge("y", &reference.view(), &actual.view(), None)]);
        run.finish(&data_set);
    }
    run.begin_step(&graph, 0, StepId(2), &inputs)?;
    match run.flush().lost.as_slice() {
        [] => Ok(()),
        lost => Err(lost.join("\n").into()),
    }
}
