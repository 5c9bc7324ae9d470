//! Nodes of a part against eager, through a daemon and its executor.

mod dumped;
mod float64;
mod refusals;
mod verdicts;

use std::path::{Path, PathBuf};

use crate::common::{Dim, Model};
use crate::support::{Client, Home, graph, part};
use rust_ort::base::ids::{PartHandle, SegmentId, StepId};
use rust_ort::client::PeerError;
use rust_ort::dump::{NodeTable, reader};
use rust_ort::protocol::control::*;
use rust_ort::tensor::{DType, Location, TensorDesc, TensorRef};

const X: [f32; 4] = [1., -2., 3.5, 0.25];
const Y: [f32; 4] = [10., 20., -30., 40.];
const NOT_COMPARED: VerdictKind = VerdictKind::NotCompared;
const MATCH: VerdictKind = VerdictKind::Match;
const MISMATCH: VerdictKind = VerdictKind::Mismatch;
const FAILED: VerdictKind = VerdictKind::Failed;

/// a = 2·x, b = a + y, c = b, d = relu(c), g = d[i], h = −g.
fn model() -> Vec<u8> {
    let dims = [Dim::Is(4)];
    Model::default()
        .input("x", DType::F32, &dims)
        .input("y", DType::F32, &dims)
        .input("i", DType::I64, &dims)
        .initializer("two", &[], &[2.])
        .node("Mul", &["x", "two"], &["a"])
        .node("Add", &["a", "y"], &["sum"])
        .node("Identity", &["sum"], &["b"])
        .node("Identity", &["b"], &["c"])
        .node("Relu", &["c"], &["d"])
        .node("Gather", &["d", "i"], &["g"])
        .node("Neg", &["g"], &["h"])
        .output("h", DType::F32, &dims)
        .build()
}

const PROVENANCE: &str = r#"{
    "values": {"b": {"fx": "b", "op": "aten.add.Tensor", "module": "layer.0", "source": "m.py:3 in forward", "seq_nr": 7}},
    "outputs": [{"name": "h", "fx": "h", "role": "PlainAOTOutput", "of": "weight"}],
    "nodes": {"node_sum": "b", "node_b": "b"}
}"#;

/// A client with a lease and the model, and memory handed out piece by piece.
struct Bench {
    client: Client,
    handle: PartHandle,
    next: u64,
    model: Vec<u8>,
    named: Vec<String>,
}

impl Bench {
    fn new(home: &Home) -> Self {
        Self::of(home, model(), &["a", "b", "c", "d", "g", "h"])
    }

    /// named: values of the model.
    fn of(home: &Home, model: Vec<u8>, named: &[&str]) -> Self {
        let named = named.iter().map(|&name| name.to_owned()).collect();
        let mut bench = Self { client: Client::connect(home), handle: PartHandle(0), next: 0, model, named };
        bench.prepare();
        bench
    }

    fn prepare(&mut self) {
        self.client.lease().unwrap();
        self.client.register();
        let mut prepare = part();
        prepare.part.model = self.model.clone().into();
        prepare.part.named_values.clone_from(&self.named);
        prepare.provenance_json = PROVENANCE.to_owned();
        self.handle = self.client.prepare_part(prepare).unwrap().handle;
    }

    fn tensor(&mut self, dtype: DType, dims: &[i64]) -> TensorRef {
        let location = Location::new(SegmentId(1), self.next).unwrap();
        self.next += 64;
        TensorRef { location, desc: TensorDesc::new(dtype, dims).unwrap() }
    }

    fn floats(&mut self, values: [f32; 4]) -> TensorRef {
        let tensor = self.tensor(DType::F32, &[4]);
        self.client.data.write(tensor.location.offset(), values.map(f32::to_le_bytes).as_flattened()).unwrap();
        tensor
    }

    fn doubles(&mut self, values: [f64; 4]) -> TensorRef {
        let tensor = self.tensor(DType::F64, &[4]);
        self.client.data.write(tensor.location.offset(), values.map(f64::to_le_bytes).as_flattened()).unwrap();
        tensor
    }

    /// x, y and the index, equal on both sides.
    fn feeds(&mut self, index: i64) -> Vec<NodeFeed> {
        let i = self.tensor(DType::I64, &[4]);
        self.client.data.write(i.location.offset(), [index; 4].map(i64::to_le_bytes).as_flattened()).unwrap();
        let (x, y) = (self.floats(X), self.floats(Y));
        [("x", x), ("y", y), ("i", i)]
            .map(|(name, tensor)| NodeFeed { name: name.into(), reference: tensor.clone(), candidate: tensor })
            .to_vec()
    }

    fn node(&mut self, name: &str, reference: [f32; 4]) -> ComputedNode {
        let [candidate, local] = [(); 2].map(|()| self.floats([f32::NAN; 4]));
        let reference = self.floats(reference);
        ComputedNode {
            name: name.into(),
            reference,
            candidate,
            local: Some(local),
            reference_ns: 5,
            float64: Box::default(),
        }
    }

    fn nodes(&mut self, references: &[(&str, [f32; 4])]) -> Vec<NodeValue> {
        references.iter().map(|&(name, reference)| NodeValue::Computed(self.node(name, reference))).collect()
    }

    fn request(&self, feeds: Vec<NodeFeed>, values: Vec<NodeValue>) -> CompareNodes {
        CompareNodes {
            handle: self.handle,
            of: of(),
            feeds,
            values,
            tolerance: None,
            cumulative_tolerance: None,
            through: None,
            dump_values: false,
            noise: None,
        }
    }

    fn compare(&mut self, request: CompareNodes) -> Result<Vec<NodeVerdictSummary>, PeerError> {
        match self.client.peer.ask(&Request::CompareNodes(Box::new(request)))? {
            Reply::NodesCompared(verdicts) => Ok(verdicts),
            other => panic!("{other:?}"),
        }
    }

    fn batch(&mut self, index: i64, references: &[(&str, [f32; 4])]) -> Vec<NodeVerdictSummary> {
        let feeds = self.feeds(index);
        let values = self.nodes(references);
        self.compare(self.request(feeds, values)).unwrap()
    }

    fn open_dump(&mut self, folder: &Path) -> PathBuf {
        let (run, calls) = ("run".to_owned(), CallsToDump::All);
        let open = OpenDump {
            folder: folder.to_owned(),
            run,
            clean: true,
            calls,
            run_json: "{}".into(),
            umask: None,
            answered: Vec::new(),
        };
        assert!(matches!(self.client.peer.ask(&Request::OpenDump(open)), Ok(Reply::DumpOpened { .. })));
        folder.join("run/0_0-inference/part_0")
    }

    fn finish(&mut self, dump: bool, plain: Vec<(String, PairToCompare)>) -> Vec<VerdictSummary> {
        let reply = self
            .client
            .peer
            .ask(&Request::FinishNodes(FinishNodes { of: of(), dump, plain, tolerance: None, through: None }))
            .unwrap();
        let Reply::Comparison(verdicts) = reply else { panic!("{reply:?}") };
        if dump {
            assert_eq!(self.client.peer.ask(&Request::FlushDump).unwrap(), Reply::Done);
        }
        verdicts
    }

    fn settle(&mut self, name: &str, tensors: [TensorRef; 3]) -> Result<NodeVerdictSummary, PeerError> {
        let [exact, reference, local] = tensors;
        self.settle_by(name, SettledBy::Float64(InFloat64 { exact, reference, local, terms: None }))
    }

    fn settle_by(&mut self, name: &str, by: SettledBy) -> Result<NodeVerdictSummary, PeerError> {
        let request = SettleNode { of: of(), name: name.into(), by };
        match self.client.peer.ask(&Request::SettleNode(Box::new(request)))? {
            Reply::NodesCompared(mut verdicts) if verdicts.len() == 1 => Ok(verdicts.remove(0)),
            other => panic!("{other:?}"),
        }
    }
}

fn of() -> NodesOf {
    NodesOf { graph: graph().graph, part: 0, step: StepId(3) }
}

fn table(part: &Path) -> NodeTable {
    reader::nodes(part, 3).unwrap().expect("a table")
}

/// (name, local, cumulative).
fn kinds(verdicts: &[NodeVerdictSummary]) -> Vec<(&str, VerdictKind, VerdictKind)> {
    verdicts.iter().map(|node| (node.local.name.as_str(), node.local.kind, node.cumulative.kind)).collect()
}

fn doubled() -> [f32; 4] {
    X.map(|x| 2. * x)
}

fn zip(f: impl Fn(f32, f32) -> f32, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// What the model gives, with index 1.
fn right() -> Vec<(&'static str, [f32; 4])> {
    let a = doubled();
    let b = zip(|a, y| a + y, a, Y);
    let d = b.map(|b| b.max(0.));
    vec![("a", a), ("b", b), ("c", b), ("d", d), ("g", [d[1]; 4]), ("h", [-d[1]; 4])]
}

/// What eager would give if `b` were a · y.
fn other() -> Vec<(&'static str, [f32; 4])> {
    let a = doubled();
    let b = zip(|a, y| a * y, a, Y);
    vec![("a", a), ("b", b), ("c", b), ("d", b.map(|b| b.max(0.)))]
}
