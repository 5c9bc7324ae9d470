//! Models and tensors of anybody: decoded, then all that is done to a model.

use std::path::Path;

use bytes::Bytes;
use prost::Message as _;
use rust_ort::observe::nodes::PartNodes;
use rust_ort::onnx::{self, Target as Provider};

use crate::any_model::{model, use_all};
use crate::common;
use crate::counting::most;
use crate::mutate::{self, Draws};
use crate::protobuf;
use crate::small_dump;
use crate::target::{Reached, Target};

pub const TARGET: Target = Target {
    name: "models",
    seeds,
    open: || Box::new(models),
    mutate: mutated,
    most_bytes: |len| 65536 * len + (1 << 20),
};

fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let run = small_dump::dump(folder.path());
    let tensor = std::fs::read(run.join("0_0-forward/part_0/test_data_set_0/input_0.pb")).unwrap();
    let seeds = [
        ("everything.onnx", model().encode_to_vec()),
        ("add.onnx", common::add()),
        ("gather.onnx", common::gather()),
        ("input.pb", tensor),
    ];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn mutated(draws: &mut Draws, input: &[u8], other: &[u8]) -> Vec<u8> {
    match draws.below(4) {
        0 => mutate::bytes(draws, input, other),
        1 => {
            let once = protobuf::message(draws, input, other);
            protobuf::message(draws, &once, other)
        }
        _ => protobuf::message(draws, input, other),
    }
}

fn models(bytes: &[u8]) -> Reached {
    let shared = Bytes::copy_from_slice(bytes);
    let limit = PartNodes::footprint(bytes, &[], "{}") + 4096;
    let nodes = most(|| PartNodes::read(&shared, &[], "{}"));
    assert!(nodes <= limit, "nodes of a part take {nodes} bytes, told at most {limit}");
    let footprint = onnx::footprint(bytes);
    let limit = footprint.text_bytes + footprint.n_bytes + 4096;
    let taken = most(|| onnx::decode(shared.clone()));
    assert!(taken <= limit, "decoding takes {taken} bytes, told at most {limit}");
    // A tensor's file stands in a dump beside the models.
    let tensor = onnx::decode_tensor(shared.clone(), Path::new("input_0.pb"));
    let model = match onnx::decode(shared) {
        Err(error) => return if tensor.is_ok() { Reached::accepted("tensor") } else { Reached::refused(error) },
        Ok(model) => model,
    };
    let written = model.encode_to_vec();
    let again = onnx::decode(Bytes::from(written.clone())).map(|model| model.encode_to_vec());
    assert!(again.is_ok_and(|again| again == written), "a model that is written is read as it was");
    for provider in [Provider::Cpu, Provider::Cuda] {
        let mut rewritten = model.clone();
        onnx::rewrite(&mut rewritten, provider, &[]);
    }
    let _ = onnx::double(&model);
    let _ = onnx::keep_transposed_outputs(model.clone());
    let n_nodes = model.graph.as_ref().map_or(0, |graph| graph.node.len());
    let ordered = model.graph.as_ref().is_some_and(|graph| onnx::order(graph).is_ok());
    use_all(model, &std::env::temp_dir());
    let tensor = tensor.map_or_else(|error| error.to_string(), |_| "tensor".to_owned());
    let size = "n".repeat(n_nodes.min(9));
    Reached::accepted(format!("{size} {ordered} {tensor}"))
}
