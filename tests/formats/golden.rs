//! Golden frames: the bytes of version 1 of the wire, read by this test and by the Python shim's.
//! Regenerate after a change of version with `RUST_ORT_REGENERATE=1 cargo test --test formats golden`; see
//! `tests/golden/README.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rust_ort::base::ids::{CallId, ClientId, DeviceUuid, ExecutorId, GraphId, PartHandle, SegmentId, StepId, Work};
use rust_ort::cuda::IpcHandle;
use rust_ort::onnx::Described;
use rust_ort::protocol::control::*;
use rust_ort::protocol::frame::{FrameHeader, FrameKind, HEADER_LEN, MAX_BODY_BYTES};
use rust_ort::protocol::message::{
    CustomOpLibrary, DeviceSegmentSpec, Division, ErrorCode, ErrorKind, FrozenInput, LaneEventsSpec, NodeRuntime,
    Optimization, PartSpec, Placed, Placement, Prepared, RuntimeRule, SessionSpec, SlotSpec, ValueSpec, WireError,
};
use rust_ort::protocol::wire;
use rust_ort::tensor::{CallRecord, DType, Location, TensorDesc, TensorRef};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden(name: &str, current: &[u8]) -> Vec<u8> {
    let path = folder().join(name);
    if std::env::var_os("RUST_ORT_REGENERATE").is_some() {
        std::fs::write(&path, current).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn graph() -> GraphId {
    GraphId::from_bytes(std::array::from_fn(|i| i as u8))
}

fn tensor(segment: u32, offset: u64, dims: &[i64]) -> TensorRef {
    let location = Location::new(SegmentId(segment), offset).unwrap();
    TensorRef { location, desc: TensorDesc::new(DType::F32, dims).unwrap() }
}

/// An ExportPlan, which only clients read: `linalg_solve` in eager; a part with model 08 0a, x → mm.
fn export_plan() -> Bytes {
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
    let entry = |key: &[u8], value: &[u8]| [field(1, key), field(2, value)].concat();
    let eager = entry(b"linalg_solve", b"no ONNX form");
    let part = [
        field(1, &[8, 10]),
        field(2, b"x"),
        field(3, b"mm"),
        field(4, &entry(b"mm", b"mm")),
        field(5, &entry(b"node_mm", b"mm")),
        field(6, b"mm"),
    ]
    .concat();
    Bytes::from([field(1, &eager), field(2, &part)].concat())
}

fn requests() -> Vec<(&'static str, u64, Request)> {
    let hello = Hello {
        protocol: 1,
        shim_version: "0.1.0".into(),
        pid: 4321,
        python_version: "3.11.9".into(),
        torch_version: "2.13.0".into(),
        program: "train.py".into(),
        ..Hello::default()
    };
    let session = SessionSpec {
        providers: vec![("CPUExecutionProvider".into(), BTreeMap::from([("use_arena".into(), "1".into())]))],
        optimization: Optimization::Extended,
        config: BTreeMap::from([("session.set_denormal_as_zero".into(), "1".into()), ("a".into(), "b".into())]),
        disabled_optimizers: vec!["ConstantFolding".into()],
        custom_op_libraries: Vec::new(),
        disabled_passes: Vec::new(),
        runtimes: Vec::new(),
        keep_float32: Vec::new(),
        device: None,
    };
    let part = PartSpec {
        graph: graph(),
        part: 2,
        model: Bytes::from_static(&[8, 10]),
        session,
        fx_values: BTreeMap::from([("mm".into(), "mm".into()), ("relu".into(), "relu_1".into())]),
        named_values: Vec::new(),
        described: BTreeMap::new(),
    };
    let frozen_part = part.clone();
    let device = DeviceUuid(std::array::from_fn(|at| at as u8));
    let handle = |from: u8| IpcHandle::from_bytes(&std::array::from_fn::<u8, 64, _>(|at| from + at as u8)).unwrap();
    let mut on_device = part.clone();
    on_device.session.device = Some(device);
    let mut without_passes = part.clone();
    without_passes.session.disabled_passes = vec!["output-copies".into(), "product-transposes".into()];
    let mut with_rules = part.clone();
    let rule = |runtime, patterns: &[&str]| RuntimeRule {
        runtime,
        patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
    };
    with_rules.session.runtimes =
        vec![rule(NodeRuntime::TorchF64, &["Softmax"]), rule(NodeRuntime::Torch, &["*.norm*", "aten.mm.?"])];
    with_rules.session.keep_float32 = vec!["*.mlp".into()];
    let told = Described { fx: "mm".into(), op: "aten.mm.default".into(), module: "up.mlp".into() };
    with_rules.described = BTreeMap::from([("mm_1".into(), told)]);
    const PROVENANCE: &str = r#"{"values": {"mm_1": {"fx": "mm", "op": "aten.mm.default", "module": "up.mlp"}}}"#;
    let lease = LeaseSpec {
        onnxruntime_library: "/opt/ort/libonnxruntime.so.1".into(),
        threads: 2,
        allow_spinning: true,
        libtorch: Some("/opt/torch/lib".into()),
        ..LeaseSpec::default()
    };
    let run = RunObserved {
        record: CallRecord {
            call: CallId(7),
            handle: PartHandle(3),
            eager_nodes: 1,
            inputs: vec![tensor(1, 0, &[2, 3])],
            outputs: vec![tensor(1, 64, &[])],
        },
        graph: graph(),
        part: 2,
        step: StepId(5),
        dump: true,
        references: Some(vec![tensor(1, 128, &[])]),
        tolerance: Some(ToleranceTerms { atol: 1e-6, rtol: 1e-5, scale: 0.5, equal_nan: true }),
        through: None,
        noise: None,
    };
    let run_through = RunObserved { through: Some(DType::F16), ..run.clone() };
    let noise = Some(NoiseTerms { factor: 2.5, step: 0. });
    let run_noise = RunObserved { noise, ..run_through.clone() };
    vec![
        (
            "hello_surroundings_request.bin",
            62,
            Request::Hello(Hello {
                pid_namespace: 4_026_531_836,
                cpus: vec![0b0000_0101, 0b1000_0000],
                ..hello.clone()
            }),
        ),
        ("hello_request.bin", 1, Request::Hello(hello)),
        (
            "attach_segment_request.bin",
            2,
            Request::AttachSegment { segment: SegmentId(1), len_bytes: 1 << 20, lanes: true },
        ),
        (
            "lease_executor_cuda_request.bin",
            24,
            Request::LeaseExecutor(LeaseSpec {
                library_folders: vec!["/opt/nvidia/cu13/lib".into(), "/opt/nvidia/cudnn/lib".into()],
                cuda_visible_devices: Some("1".into()),
                ..lease.clone()
            }),
        ),
        (
            "lease_executor_surroundings_request.bin",
            63,
            Request::LeaseExecutor(LeaseSpec {
                niceness: Some(-5),
                environment: Some(BTreeMap::from([("OMP_NUM_THREADS".into(), "2".into())])),
                ..lease.clone()
            }),
        ),
        (
            "lease_executor_libraries_request.bin",
            64,
            Request::LeaseExecutor(LeaseSpec {
                custom_op_libraries: vec![CustomOpLibrary {
                    path: "/opt/ops/libcustom.so".into(),
                    len_bytes: 4096,
                    modified_ns: 1_700_000_000_000_000_001,
                }],
                ..lease.clone()
            }),
        ),
        ("lease_executor_request.bin", 22, Request::LeaseExecutor(lease)),
        (
            "attach_device_segment_request.bin",
            25,
            Request::AttachDeviceSegment(DeviceSegmentSpec {
                segment: SegmentId(7),
                len_bytes: 20 << 20,
                device,
                handle: handle(1),
            }),
        ),
        (
            "open_lane_events_request.bin",
            26,
            Request::OpenLaneEvents(LaneEventsSpec { lane: 2, device, ready: handle(2), done: handle(3) }),
        ),
        ("open_slot_request.bin", 28, Request::OpenSlot(SlotSpec { slot: 5, device })),
        (
            "prepare_part_device_request.bin",
            27,
            Request::PreparePart(Box::new(PreparePart {
                part: on_device,
                provenance_json: "{}".into(),
                frozen: Vec::new(),
            })),
        ),
        (
            "prepare_part_rules_request.bin",
            23,
            Request::PreparePart(Box::new(PreparePart {
                part: with_rules,
                provenance_json: PROVENANCE.into(),
                frozen: Vec::new(),
            })),
        ),
        (
            "prepare_part_request.bin",
            3,
            Request::PreparePart(Box::new(PreparePart { part, provenance_json: "{}".into(), frozen: Vec::new() })),
        ),
        (
            "prepare_part_passes_request.bin",
            3,
            Request::PreparePart(Box::new(PreparePart {
                part: without_passes,
                provenance_json: "{}".into(),
                frozen: Vec::new(),
            })),
        ),
        (
            "prepare_part_frozen_request.bin",
            3,
            Request::PreparePart(Box::new(PreparePart {
                part: frozen_part,
                provenance_json: "{}".into(),
                frozen: vec![
                    FrozenInput { input: 1, tensor: tensor(1, 4096, &[2, 3]) },
                    FrozenInput { input: 200, tensor: tensor(2, 64, &[]) },
                ],
            })),
        ),
        ("run_observed_request.bin", 4, Request::RunObserved(Box::new(run))),
        ("run_observed_through_request.bin", 4, Request::RunObserved(Box::new(run_through))),
        ("run_observed_noise_request.bin", 4, Request::RunObserved(Box::new(run_noise))),
        ("put_plan_request.bin", 5, Request::PutPlan { graph: graph(), plan: export_plan() }),
        ("compare_nodes_request.bin", 5, Request::CompareNodes(Box::new(compare_nodes()))),
        (
            "compare_nodes_values_request.bin",
            5,
            Request::CompareNodes(Box::new(CompareNodes { dump_values: true, ..compare_nodes() })),
        ),
        (
            "compare_nodes_through_request.bin",
            5,
            Request::CompareNodes(Box::new(CompareNodes { through: Some(DType::BF16), ..compare_nodes() })),
        ),
        ("compare_nodes_nothing_request.bin", 5, Request::CompareNodes(Box::new(compare_nodes_nothing()))),
        ("compare_nodes_float64_request.bin", 5, Request::CompareNodes(Box::new(compare_nodes_float64()))),
        ("settle_node_request.bin", 6, Request::SettleNode(Box::new(settle_node(false)))),
        ("settle_node_terms_request.bin", 6, Request::SettleNode(Box::new(settle_node(true)))),
        (
            "settle_node_drift_request.bin",
            6,
            Request::SettleNode(Box::new(SettleNode { by: SettledBy::Terms(drifted_sum()), ..settle_node(false) })),
        ),
        (
            "settle_node_as_right_request.bin",
            6,
            Request::SettleNode(Box::new(SettleNode {
                of: of(),
                name: "sort".into(),
                by: SettledBy::AsRight("equal keys".into()),
            })),
        ),
        ("compare_tensors_request.bin", 9, compare_tensors()),
        ("compare_tensors_float64_request.bin", 9, compare_tensors_float64()),
        ("compare_tensors_settles_request.bin", 9, compare_tensors_settles()),
        ("compare_tensors_spread_request.bin", 9, compare_tensors_spread()),
        ("finish_nodes_request.bin", 7, Request::FinishNodes(finish_nodes())),
        (
            "finish_nodes_through_request.bin",
            7,
            Request::FinishNodes(FinishNodes { through: Some(DType::F16), ..finish_nodes() }),
        ),
        ("cancel_call_request.bin", 10, Request::CancelCall(Work::Call(CallId(7)))),
        ("cancel_request_request.bin", 10, Request::CancelCall(Work::Request(5))),
        (
            "release_request.bin",
            8,
            Request::Release(Release { handles: vec![PartHandle(3), PartHandle(200)], graphs: vec![graph()] }),
        ),
    ]
}

fn of() -> NodesOf {
    NodesOf { graph: graph(), part: 2, step: StepId(5) }
}

fn compare_nodes() -> CompareNodes {
    let computed = |name: &str, offset, local| ComputedNode {
        name: name.into(),
        reference: tensor(1, offset, &[2]),
        candidate: tensor(1, offset + 64, &[2]),
        local,
        reference_ns: 1500,
        float64: Box::default(),
    };
    CompareNodes {
        handle: PartHandle(3),
        of: of(),
        feeds: vec![NodeFeed { name: "x".into(), reference: tensor(1, 0, &[2, 3]), candidate: tensor(1, 64, &[2, 3]) }],
        values: vec![
            NodeValue::Computed(computed("mm", 128, Some(tensor(1, 256, &[2])))),
            NodeValue::Computed(computed("relu", 320, None)),
            NodeValue::NotCompared { name: "size".into(), reason: "no tensor".into(), nothing: false },
        ],
        tolerance: Some(ToleranceTerms { atol: 1e-6, rtol: 1e-5, scale: 0.5, equal_nan: true }),
        cumulative_tolerance: Some(ToleranceTerms { atol: 0.25, rtol: 0., scale: 0., equal_nan: false }),
        through: None,
        dump_values: false,
        noise: None,
    }
}

fn float64(offset: u64) -> TensorRef {
    TensorRef { desc: TensorDesc::new(DType::F64, [2]).unwrap(), ..tensor(1, offset, &[]) }
}

fn compare_nodes_nothing() -> CompareNodes {
    let mut compare = compare_nodes();
    compare.values.pop();
    let reason = "memory that nobody wrote into".into();
    compare.values.push(NodeValue::NotCompared { name: "empty".into(), reason, nothing: true });
    compare
}

fn compare_nodes_float64() -> CompareNodes {
    let mut compare = CompareNodes { noise: Some(NoiseTerms { factor: 2.5, step: 0.0078125 }), ..compare_nodes() };
    let NodeValue::Computed(mm) = &mut compare.values[0] else { unreachable!() };
    mm.float64.local = Some(float64(384));
    mm.float64.cumulative = Some(float64(448));
    let NodeValue::Computed(relu) = &mut compare.values[1] else { unreachable!() };
    relu.float64.missing = "random".into();
    compare
}

fn compare_tensors_float64() -> Request {
    let pair = PairToCompare::Pair {
        reference: tensor(1, 0, &[2]),
        candidate: tensor(1, 64, &[2]),
        terms: None,
        exact: Some(float64(512)),
        excuse: None,
    };
    Request::CompareTensors {
        pairs: vec![("bias".into(), pair)],
        tolerance: None,
        noise: Some(NoiseTerms { factor: 2.5, step: 0.0078125 }),
        through: None,
        settles: None,
    }
}

fn settle_node(with_terms: bool) -> SettleNode {
    let f64 = TensorDesc::new(DType::F64, [2]).unwrap();
    SettleNode {
        of: of(),
        name: "mm".into(),
        by: SettledBy::Float64(InFloat64 {
            exact: TensorRef { desc: f64.clone(), ..tensor(1, 512, &[]) },
            reference: tensor(1, 128, &[2]),
            local: tensor(1, 256, &[2]),
            terms: with_terms.then(|| TensorRef { desc: f64, ..tensor(1, 576, &[]) }),
        }),
    }
}

fn drifted_sum() -> DriftedSum {
    let desc = TensorDesc::new(DType::F64, [2]).unwrap();
    let terms = TensorRef { desc, ..tensor(1, 576, &[]) };
    DriftedSum { reference: tensor(1, 128, &[2]), candidate: tensor(1, 320, &[2]), terms }
}

/// A tie and an open order, outputs of a call.
fn compare_tensors_settles() -> Request {
    let pair = |excuse| PairToCompare::Pair {
        reference: tensor(1, 0, &[2]),
        candidate: tensor(1, 64, &[2]),
        terms: None,
        exact: None,
        excuse: Some(excuse),
    };
    Request::CompareTensors {
        pairs: vec![
            ("logits".into(), pair(Excuse::Tie("1 of 2 elements of le".into()))),
            ("values".into(), pair(Excuse::OpenOrder("topk is not sorted".into()))),
        ],
        tolerance: None,
        noise: None,
        through: Some(DType::BF16),
        settles: Some(of()),
    }
}

/// A value whose nodes alone are right, and how far rounding moves it.
fn compare_tensors_spread() -> Request {
    let pair = PairToCompare::Pair {
        reference: tensor(1, 0, &[2]),
        candidate: tensor(1, 64, &[2]),
        terms: None,
        exact: Some(TensorRef { desc: TensorDesc::new(DType::F64, [2]).unwrap(), ..tensor(1, 512, &[]) }),
        excuse: Some(Excuse::Rounding(SpreadTerms { largest: 0.25, rms: 0.125 })),
    };
    Request::CompareTensors {
        pairs: vec![("bias".into(), pair)],
        tolerance: None,
        noise: None,
        through: None,
        settles: None,
    }
}

fn compare_tensors() -> Request {
    let terms = TensorRef { desc: TensorDesc::new(DType::F64, [2]).unwrap(), ..tensor(1, 512, &[]) };
    let pair = PairToCompare::Pair {
        reference: tensor(1, 0, &[2]),
        candidate: tensor(1, 64, &[2]),
        terms: Some(terms),
        exact: None,
        excuse: None,
    };
    Request::CompareTensors {
        pairs: vec![("bias".into(), pair)],
        tolerance: None,
        noise: None,
        through: None,
        settles: None,
    }
}

fn finish_nodes() -> FinishNodes {
    let pair = PairToCompare::Pair {
        reference: tensor(1, 0, &[]),
        candidate: tensor(1, 64, &[]),
        terms: None,
        exact: None,
        excuse: None,
    };
    let plain = vec![("mm".into(), pair), ("size".into(), PairToCompare::NotCompared("no tensor".into()))];
    FinishNodes { of: of(), dump: true, plain, tolerance: None, through: None }
}

fn prepared() -> Prepared {
    let value = |name: &str, dims: &[i64]| ValueSpec { name: name.into(), dtype: DType::F32, dims: dims.into() };
    Prepared {
        handle: PartHandle(3),
        built: true,
        fx_nodes: 2,
        onnx_nodes: 4,
        inputs: vec![value("x", &[-1, 3])],
        outputs: vec![value("mm", &[-1, 2])],
        build_us: 1500,
        frozen_inputs: 0,
        division: Division {
            nodes: BTreeMap::from([(NodeRuntime::Ort, 3), (NodeRuntime::Torch, 1)]),
            taken: vec![0, 1],
            segments: 2,
        },
        placement: Placement::CpuOnly,
    }
}

fn placed() -> Placement {
    let placed =
        |nodes, ops: &[(&str, u32)]| Placed { nodes, ops: ops.iter().map(|&(op, n)| (op.to_owned(), n)).collect() };
    Placement::Told(BTreeMap::from([
        ("CPUExecutionProvider".to_owned(), placed(3, &[("NonZero", 1), ("Shape", 2)])),
        ("CUDAExecutionProvider".to_owned(), placed(120, &[("MatMul", 118), ("MemcpyToHost", 2)])),
    ]))
}

fn replies() -> Vec<(&'static str, u64, Reply)> {
    let welcome = Welcome {
        protocol: 1,
        daemon_version: "0.1.0".into(),
        client: ClientId(12),
        daemon_pid: 99,
        log: "/state/log/daemon-99.log".into(),
        pid_namespace: 0,
    };
    let error = WireError {
        kind: ErrorKind::Client,
        code: ErrorCode::BadTensor,
        message: "feed \"x\": expected float32[2, 3], got float64[2, 3]; cast it".into(),
        graph: "0_0-forward".into(),
        node: "mm".into(),
        dump: "/dumps/run/0_0-forward".into(),
        log: "/state/log/executor-7.log".into(),
    };
    let verdict = VerdictSummary {
        name: "mm".into(),
        kind: VerdictKind::Mismatch,
        reason: "1 of 6 elements outside tolerance".into(),
        metrics_json: "{\"max_abs\":0.25}".into(),
        max_abs: 0.25,
        max_rel_to_max: 0.125,
        outside: 1,
        noise_json: String::new(),
    };
    let matched = VerdictSummary {
        kind: VerdictKind::Match,
        reason: String::new(),
        max_abs: 0.,
        max_rel_to_max: 0.,
        outside: 0,
        ..verdict.clone()
    };
    let with_noise =
        |verdict: &VerdictSummary| VerdictSummary { noise_json: "{\"ratio\":1.0}".into(), ..verdict.clone() };
    let node = |local, cumulative| NodeVerdictSummary { local, cumulative, births_json: String::new() };
    let noisy = vec![node(with_noise(&matched), with_noise(&verdict))];
    let born =
        NodeVerdictSummary { births_json: "[{\"kind\":\"nan\"}]".into(), ..node(matched.clone(), verdict.clone()) };
    let nodes = vec![node(matched, verdict.clone())];
    let observed =
        Observed { run_us: 250, verdicts: Some(vec![verdict]), dump: "/dumps/run/0_0-forward/part_2".into() };
    vec![
        (
            "welcome_pid_namespace_reply.bin",
            62,
            Reply::Welcome(Welcome { pid_namespace: 4_026_531_836, ..welcome.clone() }),
        ),
        ("welcome_reply.bin", 1, Reply::Welcome(welcome)),
        ("error_reply.bin", 2, Reply::Error(error)),
        ("observed_reply.bin", 4, Reply::Observed(observed)),
        ("prepared_divided_reply.bin", 3, Reply::Prepared(prepared())),
        (
            "prepared_placed_reply.bin",
            3,
            Reply::Prepared(Prepared { division: Division::default(), placement: placed(), ..prepared() }),
        ),
        (
            "prepared_unplaced_reply.bin",
            3,
            Reply::Prepared(Prepared { division: Division::default(), placement: Placement::Unknown, ..prepared() }),
        ),
        ("plan_reply.bin", 6, Reply::Plan(Some(export_plan()))),
        ("nodes_compared_reply.bin", 5, Reply::NodesCompared(nodes)),
        ("nodes_compared_noise_reply.bin", 5, Reply::NodesCompared(noisy)),
        ("nodes_compared_births_reply.bin", 5, Reply::NodesCompared(vec![born])),
    ]
}

fn executor_lost() -> Notice {
    let mut call = WireError::new(ErrorKind::Fault, ErrorCode::ExecutorLost, "the executor died in call 7");
    call.graph = "0_0-forward".into();
    call.dump = "/state/quarantine/x".into();
    Notice::ExecutorLost { executor: ExecutorId(5), calls: vec![call], cause: "killed by signal 9".into() }
}

/// The record of one call as a lane carries it, from offset 256 of the lane, by docs/design/protocol.md alone.
fn lane_record() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(7_u64.to_le_bytes()); // call_id
    for word in [3_u32, 2, 1, 4, 40, 0, 0, 0] {
        bytes.extend(word.to_le_bytes()); // handle, n_inputs, n_outputs, eager_nodes, descriptors_len, slot, number, reserved
    }
    for (segment, offset) in [(1_u64, 0_u64), (1, 4096), (2, 64)] {
        bytes.extend((segment << 40 | offset).to_le_bytes());
    }
    // float32 [2, 3]; int64 []; float32 []
    for (dtype, dims) in [(1_u8, &[2_i64, 3][..]), (7, &[]), (1, &[])] {
        bytes.extend([dtype, dims.len() as u8, 0, 0, 0, 0, 0, 0]);
        bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    }
    bytes
}

#[test]
fn golden_requests_read_and_write_alike() {
    for (name, id, request) in requests() {
        let frame = golden(name, &wire::encode_request(id, &request).unwrap());
        let header = FrameHeader::decode_request(frame.first_chunk::<HEADER_LEN>().unwrap(), MAX_BODY_BYTES).unwrap();
        assert_eq!(header.body_bytes as usize, frame.len() - HEADER_LEN, "{name}");
        assert_eq!(
            wire::decode_request(Bytes::from(frame[HEADER_LEN..].to_vec())),
            (id, Ok(request.clone())),
            "{name}"
        );
        assert_eq!(wire::encode_request(id, &request).unwrap(), frame, "{name}");
    }
}

#[test]
fn golden_answers_read_and_write_alike() {
    for (name, id, reply) in replies() {
        let frame = golden(name, &wire::encode_reply(id, &reply).unwrap());
        assert_eq!(wire::decode_reply(Bytes::from(frame[HEADER_LEN..].to_vec())), Ok((id, reply.clone())), "{name}");
        assert_eq!(wire::encode_reply(id, &reply).unwrap(), frame, "{name}");
    }
    let notice = executor_lost();
    let frame = golden("executor_lost_notice.bin", &wire::encode_notice(&notice).unwrap());
    let header = FrameHeader::decode_answer(frame.first_chunk::<HEADER_LEN>().unwrap()).unwrap();
    assert_eq!(header.kind, FrameKind::Notice);
    assert_eq!(wire::decode_notice(Bytes::from(frame[HEADER_LEN..].to_vec())), Ok(notice));
}

#[test]
fn golden_lane_record_is_the_documented_layout() {
    let record = lane_record();
    assert_eq!(golden("lane_record.bin", &record), record);
}

#[test]
fn every_golden_file_is_checked() {
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".bin"))
        .collect();
    files.sort();
    let mut checked: Vec<String> = requests().iter().map(|(name, ..)| (*name).to_owned()).collect();
    checked.extend(replies().iter().map(|(name, ..)| (*name).to_owned()));
    checked.extend(["executor_lost_notice.bin".to_owned(), "lane_record.bin".to_owned()]);
    checked.sort();
    assert_eq!(files, checked);
}
