//! `nodes_<step>.json`: every node of a part against eager.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::{self, NODES_SCHEMA, NODES_SCHEMAS};
use super::store::remove_if_there;
use crate::base::ids::ValueName;
use crate::compare::{Birth, Noise, NoiseKind, Side, TensorVerdict, Verdict};
use crate::tensor::TensorBuf;

/// The one before [`NODES_SCHEMAS`], which is read, too: what float64 says of a node's own kernel stood beside its verdict.
const OLDEST_SCHEMA: &str = "rust_ort/nodes/2";

/// The nodes of a part in one call, in graph order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTable {
    /// Name and version of this format.
    pub schema: String,
    /// Id of the run; empty: of a version before ids.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// Outputs of the part: the plain session (candidate) against the instrumented one (reference), so what observing
    /// changed.
    pub plain: Vec<TensorVerdict>,
    /// One an FX node.
    pub nodes: Vec<NodeRow>,
}

/// One FX node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Position in the table.
    pub index: u64,
    /// FX name, which is the ONNX value's.
    pub name: String,
    /// The FX node's operator, such as `aten.mm.default`.
    pub op: String,
    /// Operators of the ONNX nodes behind it, in the model's order. Rows of one FX node share the list.
    #[serde(with = "operators")]
    pub onnx_ops: Arc<[String]>,
    /// Index in the model of the ONNX node that makes the value; −1 when there is none.
    pub onnx_index: i64,
    /// Path of the module, such as `model.layers.0.mlp`, or empty.
    pub module: String,
    /// Line of the user's code, or empty.
    pub source: String,
    /// Of a graph's output: what it is and of what, such as `GradAOTOutput layer.weight`; else empty.
    pub role: String,
    /// Number that autograd gave the forward operator; −1 unknown.
    pub seq_nr: i64,
    /// Of the reference: torch's name of the element type; empty when there is no reference.
    pub dtype: String,
    /// Of the reference.
    pub dims: Vec<i64>,
    /// Four letters that stand for the reference's content, or empty.
    pub reference_signature: String,
    /// Of the value as it drifted.
    pub candidate_signature: String,
    /// Time in eager; 0 unknown.
    pub reference_ns: u64,
    /// Time of the node's own kernel in ONNX Runtime, or where rules have it run; 0 unknown.
    pub candidate_ns: u64,
    /// Where its ONNX nodes ran, of a part that rules divide: "ort", "torch", "torch-f64".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    /// The node's own kernel, fed with the reference's inputs. Its noise is against the node in float64 on the same
    /// inputs: of all elements, or of those that are outside the tolerance and decide.
    pub local: TensorVerdict,
    /// The value as it drifted. Its noise is against a float64 that drifted from the graph's inputs.
    pub cumulative: TensorVerdict,
    /// Why there is no float64 to measure noise against, where it was asked for; or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub no_float64: String,
    /// Why these are as right as the reference's; or empty.
    pub as_right: String,
    /// There was nothing to compare, whoever looks: memory that nobody wrote. Nothing of ours was left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nothing: bool,
    /// NaN and infinities that are in the value, the reference's or the drifted one, and in nothing that it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub births: Vec<Birth>,
}

/// A shared list in JSON: as any other list.
mod operators {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(list: &Arc<[String]>, serializer: S) -> Result<S::Ok, S::Error> {
        list.as_ref().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[String]>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::from)
    }
}

/// One node whose kernel gave something else than eager, to be run again by any runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReproduction {
    /// FX name.
    pub node: String,
    /// ModelProto of the node alone.
    pub model: Bytes,
    /// Eager's values, in the model's order.
    pub inputs: Vec<(ValueName, TensorBuf)>,
    /// What eager made of them.
    pub reference: TensorBuf,
    /// What ONNX Runtime made of them.
    pub actual: TensorBuf,
}

impl NodeReproduction {
    /// Bytes of the model and of all tensors.
    pub fn n_bytes(&self) -> usize {
        let tensors = self.inputs.iter().map(|(_, tensor)| tensor).chain([&self.reference, &self.actual]);
        self.model.len() + tensors.map(|tensor| tensor.desc().len_bytes()).sum::<usize>()
    }
}

impl NodeRow {
    /// What float64 says of a local mismatch: whether it is a match all the same.
    pub fn settle(&mut self, noise: Option<Noise>) -> bool {
        let settles = noise.is_some_and(|noise| noise.settles());
        // Under float64 of all elements, that tells more than what is of those that decide, but for an accusation.
        if !(self.has_float64_of_all() && settles) {
            self.local.noise = noise;
        }
        if settles {
            self.local.verdict = Verdict::Match;
        }
        settles
    }

    /// Whether every element was measured against float64, of the node alone and as it drifted.
    pub fn has_float64_of_all(&self) -> bool {
        self.cumulative.noise.is_some() && self.local.noise.is_some()
    }
}

impl NodeTable {
    /// From the bytes of the file at `path`. Errors: InvalidData.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> io::Result<Self> {
        // An older one goes through a value, which takes many times the memory.
        match &*serde_json::from_slice::<layout::Version<'_>>(bytes)?.schema {
            OLDEST_SCHEMA => Self::from_json(serde_json::from_slice(bytes)?),
            schema => {
                layout::versioned(path, schema, &NODES_SCHEMAS)?;
                Ok(serde_json::from_slice(bytes)?)
            }
        }
    }

    /// From JSON of this version or the four before. Errors: InvalidData for any other.
    pub fn from_json(mut table: Value) -> io::Result<Self> {
        if NODES_SCHEMAS.iter().any(|known| table["schema"] == *known) {
            table["schema"] = NODES_SCHEMA.into();
        }
        if table["schema"] == OLDEST_SCHEMA {
            table["schema"] = NODES_SCHEMA.into();
            for node in table["nodes"].as_array_mut().into_iter().flatten() {
                node["local"]["noise"] = node["float64"].take();
            }
        }
        layout::versioned(Path::new("table"), table["schema"].as_str().unwrap_or_default(), &[NODES_SCHEMA])?;
        Ok(serde_json::from_value(table)?)
    }

    /// Which part and which call it is of, in few words: "0_0-forward/0 #3".
    pub fn place(&self) -> String {
        format!("{}/{} #{}", self.graph, self.part, self.step)
    }

    /// The first node whose own kernel is wrong; one that could not be compared accuses nobody.
    pub fn first_local_mismatch(&self) -> Option<&NodeRow> {
        self.nodes.iter().find(|node| is_wrong(&node.local))
    }

    /// The first node whose value has drifted out of tolerance.
    pub fn first_cumulative_mismatch(&self) -> Option<&NodeRow> {
        self.nodes.iter().find(|node| is_wrong(&node.cumulative))
    }

    /// The first births, in graph order: of a NaN and of an infinity, of either side.
    pub fn first_births(&self) -> Vec<(&NodeRow, &Birth)> {
        let all = || self.nodes.iter().flat_map(|node| node.births.iter().map(move |birth| (node, birth)));
        let wanted = [Side::Candidate, Side::Reference].into_iter().flat_map(|side| [(side, true), (side, false)]);
        wanted.filter_map(|wanted| all().find(|(_, birth)| (birth.side, birth.is_nan()) == wanted)).collect()
    }

    /// The first node whose own kernel is further from float64 than eager's by more than noise.
    pub fn first_worse(&self) -> Option<&NodeRow> {
        let worse = |noise: &Noise| noise.kind == NoiseKind::CandidateWorse;
        self.nodes.iter().find(|node| node.local.noise.as_ref().is_some_and(worse))
    }
}

/// Removes what is there of the nodes of a call. The table goes last: without one nothing is looked for.
pub(super) fn remove_nodes(part_folder: &Path, step: u64) -> io::Result<()> {
    let table = part_folder.join(layout::nodes_file(step));
    if !table.exists() {
        return Ok(());
    }
    for folder in reproductions(part_folder, step)? {
        fs::remove_dir_all(folder)?;
    }
    remove_if_there(&table)
}

/// The folders `node_<name>_<step>` of a call.
pub(super) fn reproductions(part_folder: &Path, step: u64) -> io::Result<Vec<PathBuf>> {
    let (prefix, suffix) = layout::reproduction_folder(step);
    let mut folders = Vec::new();
    for entry in fs::read_dir(part_folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(&suffix));
        if ours && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn is_wrong(verdict: &TensorVerdict) -> bool {
    verdict.verdict == Verdict::Mismatch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_call_goes_and_other_calls_stay() {
        let part = tempfile::tempdir().unwrap();
        let at = |name: &str| part.path().join(name);
        let mine = ["nodes_3.json", "node_a_3/test_data_set_0/x", "node_a_1_3/x"];
        let others = ["nodes_13.json", "node_a_13/x", "comparison_3.json", "test_data_set_3/x"];
        for name in mine.iter().chain(&others) {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "x").unwrap();
        }
        remove_nodes(part.path(), 3).unwrap();
        assert!(others.iter().all(|name| at(name).exists()));
        assert!(mine.iter().all(|name| !at(name).exists()));
        assert!(!at("node_a_3").exists() && !at("node_a_1_3").exists());
        remove_nodes(part.path(), 3).unwrap();
    }
}
