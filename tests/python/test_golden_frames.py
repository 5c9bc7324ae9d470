"""The same bytes that tests/formats/golden.rs reads and writes; tests/golden/README.md says what each holds."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from rust_ort._native import DeviceBlocks, Plan
from rust_ort.errors import ClientError, DaemonFault, ExecutorLost
from rust_ort.link import wire
from rust_ort.link.lanes import Lanes
from rust_ort.link.specs import Policy, verdict_from
from rust_ort.memory.arena import Arena
from rust_ort.observe.placement import Placement
from rust_ort.observe.rules import Division
from rust_ort.options import Options

GOLDEN = Path(__file__).parents[1] / "golden"
GRAPH = bytes(range(32)).hex()


def tensor(segment: int, offset: int, dims: list[int]) -> Any:
    return wire.TensorRef(segment=segment, offset=offset, dtype=1, dims=dims)


def hello() -> Any:
    request = wire.Request(request_id=1)
    fields = {"shim_version": "0.1.0", "python_version": "3.11.9", "torch_version": "2.13.0", "program": "train.py"}
    request.hello.SetInParent()
    for name, value in fields.items():
        setattr(request.hello, name, value)
    request.hello.protocol = 1
    request.hello.pid = 4321
    return request


def hello_surroundings() -> Any:
    request = hello()
    request.request_id = 62
    request.hello.pid_namespace = 4_026_531_836
    request.hello.cpus = bytes([0b0000_0101, 0b1000_0000])
    return request


def attach_segment() -> Any:
    request = wire.Request(request_id=2)
    request.attach_segment.segment = 1
    request.attach_segment.len_bytes = 1 << 20
    request.attach_segment.kind = 2
    return request


def prepare_part() -> Any:
    request = wire.Request(request_id=3)
    part = request.prepare_part
    part.graph_id, part.part, part.model, part.provenance_json = GRAPH, 2, b"\x08\x0a", "{}"
    provider = part.session.providers.add(name="CPUExecutionProvider")
    provider.options["use_arena"] = "1"
    part.session.optimization = "extended"
    part.session.config.update({"session.set_denormal_as_zero": "1", "a": "b"})
    part.session.disabled_optimizers.append("ConstantFolding")
    part.fx_values.update({"mm": "mm", "relu": "relu_1"})
    return request


def prepare_part_passes() -> Any:
    request = prepare_part()
    request.prepare_part.session.disabled_passes.extend(["output-copies", "product-transposes"])
    return request


def prepare_part_rules() -> Any:
    request = prepare_part()
    request.request_id = 23
    part = request.prepare_part
    part.session.runtimes.add(runtime="torch-f64", patterns=["Softmax"])
    part.session.runtimes.add(runtime="torch", patterns=["*.norm*", "aten.mm.?"])
    part.session.keep_float32.append("*.mlp")
    part.provenance_json = '{"values": {"mm_1": {"fx": "mm", "op": "aten.mm.default", "module": "up.mlp"}}}'
    return request


def lease_executor() -> Any:
    request = wire.Request(request_id=22)
    lease = request.lease_executor
    lease.onnxruntime_library, lease.threads, lease.allow_spinning = "/opt/ort/libonnxruntime.so.1", 2, True
    lease.libtorch = "/opt/torch/lib"
    return request


def lease_executor_surroundings() -> Any:
    request = lease_executor()
    request.request_id = 63
    request.lease_executor.niceness = -5
    request.lease_executor.environment.variables["OMP_NUM_THREADS"] = "2"
    return request


def lease_executor_libraries() -> Any:
    request = lease_executor()
    request.request_id = 64
    request.lease_executor.custom_op_libraries.add(
        path="/opt/ops/libcustom.so", len_bytes=4096, modified_ns=1_700_000_000_000_000_001
    )
    return request


DEVICE = bytes(range(16))


def lease_executor_cuda() -> Any:
    request = lease_executor()
    request.request_id = 24
    request.lease_executor.library_folders.extend(["/opt/nvidia/cu13/lib", "/opt/nvidia/cudnn/lib"])
    request.lease_executor.cuda_visible_devices = "1"
    return request


def attach_device_segment() -> Any:
    request = wire.Request(request_id=25)
    attach = request.attach_device_segment
    attach.segment, attach.len_bytes, attach.device, attach.handle = 7, 20 << 20, DEVICE, bytes(range(1, 65))
    return request


def open_lane_events() -> Any:
    request = wire.Request(request_id=26)
    events = request.open_lane_events
    events.lane, events.device, events.ready, events.done = 2, DEVICE, bytes(range(2, 66)), bytes(range(3, 67))
    return request


def open_slot() -> Any:
    request = wire.Request(request_id=28)
    request.open_slot.slot, request.open_slot.device = 5, DEVICE
    return request


def prepare_part_device() -> Any:
    request = prepare_part()
    request.request_id = 27
    request.prepare_part.session.device = DEVICE
    return request


def prepare_part_frozen() -> Any:
    request = prepare_part()
    request.prepare_part.frozen.add(input=1, tensor=tensor(1, 4096, [2, 3]))
    request.prepare_part.frozen.add(input=200, tensor=tensor(2, 64, []))
    return request


def run_observed() -> Any:
    request = wire.Request(request_id=4)
    run = request.run_observed
    run.call.call_id, run.call.handle, run.call.eager_nodes = 7, 3, 1
    run.call.inputs.append(tensor(1, 0, [2, 3]))
    run.call.outputs.append(tensor(1, 64, []))
    run.graph_id, run.part, run.step, run.dump, run.compare = GRAPH, 2, 5, True, True
    run.references.append(tensor(1, 128, []))
    run.tolerance.atol, run.tolerance.rtol, run.tolerance.scale, run.tolerance.equal_nan = 1e-6, 1e-5, 0.5, True
    return request


def export_plan() -> Any:
    plan = wire.ExportPlan(eager={"linalg_solve": "no ONNX form"})
    plan.parts.add(
        model=b"\x08\x0a", input_names=["x"], output_names=["mm"], fx_values={"mm": "mm"}, onnx_nodes={"node_mm": "mm"},
        named_values=["mm"],
    )  # fmt: skip
    return plan


def put_plan() -> Any:
    request = wire.Request(request_id=5)
    request.put_plan.graph_id = GRAPH
    request.put_plan.plan = export_plan().SerializeToString(deterministic=True)
    return request


def compare_nodes() -> Any:
    request = wire.Request(request_id=5)
    compare = request.compare_nodes
    compare.handle, compare.graph_id, compare.part, compare.step = 3, GRAPH, 2, 5
    compare.feeds.add(name="x", reference=tensor(1, 0, [2, 3]), candidate=tensor(1, 64, [2, 3]))
    for name, offset, judge in (("mm", 128, True), ("relu", 320, False)):
        value = compare.values.add(name=name, reference_ns=1500, judge=judge)
        value.reference.CopyFrom(tensor(1, offset, [2]))
        value.candidate.CopyFrom(tensor(1, offset + 64, [2]))
        if judge:
            value.local.CopyFrom(tensor(1, 256, [2]))
    compare.values.add(name="size", not_compared="no tensor")
    terms = compare.tolerance
    terms.atol, terms.rtol, terms.scale, terms.equal_nan = 1e-6, 1e-5, 0.5, True
    compare.cumulative_tolerance.atol = 0.25
    return request


def run_observed_through() -> Any:
    request = run_observed()
    request.run_observed.through = 10
    return request


def run_observed_noise() -> Any:
    request = run_observed()
    Policy(through=torch.float16, noise_factor=2.5).set(request.run_observed)
    return request


def compare_nodes_through() -> Any:
    request = compare_nodes()
    request.compare_nodes.through = 16
    return request


def compare_tensors_settles() -> Any:
    request = wire.Request(request_id=9)
    compare = request.compare_tensors
    for name, why in (("logits", {"tie": "1 of 2 elements of le"}), ("values", {"open_order": "topk is not sorted"})):
        compare.pairs.add(name=name, reference=tensor(1, 0, [2]), candidate=tensor(1, 64, [2]), **why)
    compare.through = 16
    compare.settles.graph_id, compare.settles.part, compare.settles.step = GRAPH, 2, 5
    return request


def finish_nodes_through() -> Any:
    request = finish_nodes()
    Policy(through=torch.float16).set(request.finish_nodes)
    return request


def compare_nodes_values() -> Any:
    request = compare_nodes()
    request.compare_nodes.dump_values = True
    return request


def compare_nodes_nothing() -> Any:
    request = compare_nodes()
    del request.compare_nodes.values[-1]
    request.compare_nodes.values.add(name="empty", not_compared="memory that nobody wrote into", nothing=True)
    return request


def float64(offset: int) -> Any:
    return wire.TensorRef(segment=1, offset=offset, dtype=11, dims=[2])


def compare_nodes_float64() -> Any:
    request = compare_nodes()
    mm, relu, _ = request.compare_nodes.values
    mm.exact.CopyFrom(float64(384))
    mm.exact_cumulative.CopyFrom(float64(448))
    relu.no_float64 = "random"
    request.compare_nodes.noise.factor, request.compare_nodes.noise.step = 2.5, 2.0**-7
    return request


def compare_tensors_float64() -> Any:
    request = wire.Request(request_id=9)
    pairs = request.compare_tensors.pairs
    pairs.add(name="bias", reference=tensor(1, 0, [2]), candidate=tensor(1, 64, [2]), exact=float64(512))
    request.compare_tensors.noise.factor, request.compare_tensors.noise.step = 2.5, 2.0**-7
    return request


def compare_tensors_spread() -> Any:
    request = wire.Request(request_id=9)
    pairs = request.compare_tensors.pairs
    pair = pairs.add(name="bias", reference=tensor(1, 0, [2]), candidate=tensor(1, 64, [2]), exact=float64(512))
    pair.spread.largest, pair.spread.rms = 0.25, 0.125
    return request


def settle_node() -> Any:
    request = wire.Request(request_id=6)
    settle = request.settle_node
    settle.graph_id, settle.part, settle.step, settle.name = GRAPH, 2, 5, "mm"
    settle.exact.CopyFrom(wire.TensorRef(segment=1, offset=512, dtype=11, dims=[2]))
    settle.reference.CopyFrom(tensor(1, 128, [2]))
    settle.local.CopyFrom(tensor(1, 256, [2]))
    return request


def settle_node_terms() -> Any:
    request = settle_node()
    request.settle_node.terms.CopyFrom(wire.TensorRef(segment=1, offset=576, dtype=11, dims=[2]))
    return request


def settle_node_drift() -> Any:
    request = settle_node_terms()
    settle = request.settle_node
    settle.ClearField("exact")
    settle.ClearField("local")
    settle.candidate.CopyFrom(tensor(1, 320, [2]))
    return request


def settle_node_as_right() -> Any:
    request = wire.Request(request_id=6)
    settle = request.settle_node
    settle.graph_id, settle.part, settle.step, settle.name, settle.as_right = GRAPH, 2, 5, "sort", "equal keys"
    return request


def compare_tensors() -> Any:
    request = wire.Request(request_id=9)
    terms = wire.TensorRef(segment=1, offset=512, dtype=11, dims=[2])
    pairs = request.compare_tensors.pairs
    pairs.add(name="bias", reference=tensor(1, 0, [2]), candidate=tensor(1, 64, [2]), terms=terms)
    return request


def release() -> Any:
    request = wire.Request(request_id=8)
    request.release.handles.extend([3, 200])
    request.release.graph_ids.append(GRAPH)
    return request


def finish_nodes() -> Any:
    request = wire.Request(request_id=7)
    finish = request.finish_nodes
    finish.graph_id, finish.part, finish.step, finish.dump = GRAPH, 2, 5, True
    finish.plain.add(name="mm", reference=tensor(1, 0, []), candidate=tensor(1, 64, []))
    finish.plain.add(name="size", not_compared="no tensor")
    return request


def cancel_call() -> Any:
    request_ = wire.Request(request_id=10)
    request_.cancel_call.call_id = 7
    return request_


def cancel_request() -> Any:
    request_ = wire.Request(request_id=10)
    request_.cancel_call.request_id = 5
    return request_


REQUESTS = [
    ("hello_request.bin", hello()),
    ("hello_surroundings_request.bin", hello_surroundings()),
    ("lease_executor_surroundings_request.bin", lease_executor_surroundings()),
    ("lease_executor_libraries_request.bin", lease_executor_libraries()),
    ("attach_segment_request.bin", attach_segment()),
    ("prepare_part_request.bin", prepare_part()),
    ("prepare_part_passes_request.bin", prepare_part_passes()),
    ("prepare_part_rules_request.bin", prepare_part_rules()),
    ("lease_executor_request.bin", lease_executor()),
    ("lease_executor_cuda_request.bin", lease_executor_cuda()),
    ("attach_device_segment_request.bin", attach_device_segment()),
    ("open_lane_events_request.bin", open_lane_events()),
    ("open_slot_request.bin", open_slot()),
    ("prepare_part_device_request.bin", prepare_part_device()),
    ("prepare_part_frozen_request.bin", prepare_part_frozen()),
    ("run_observed_request.bin", run_observed()),
    ("run_observed_through_request.bin", run_observed_through()),
    ("run_observed_noise_request.bin", run_observed_noise()),
    ("put_plan_request.bin", put_plan()),
    ("compare_nodes_request.bin", compare_nodes()),
    ("compare_nodes_values_request.bin", compare_nodes_values()),
    ("compare_nodes_nothing_request.bin", compare_nodes_nothing()),
    ("compare_nodes_through_request.bin", compare_nodes_through()),
    ("compare_nodes_float64_request.bin", compare_nodes_float64()),
    ("compare_tensors_float64_request.bin", compare_tensors_float64()),
    ("settle_node_request.bin", settle_node()),
    ("settle_node_terms_request.bin", settle_node_terms()),
    ("settle_node_drift_request.bin", settle_node_drift()),
    ("settle_node_as_right_request.bin", settle_node_as_right()),
    ("compare_tensors_request.bin", compare_tensors()),
    ("compare_tensors_settles_request.bin", compare_tensors_settles()),
    ("compare_tensors_spread_request.bin", compare_tensors_spread()),
    ("finish_nodes_request.bin", finish_nodes()),
    ("finish_nodes_through_request.bin", finish_nodes_through()),
    ("release_request.bin", release()),
    ("cancel_call_request.bin", cancel_call()),
    ("cancel_request_request.bin", cancel_request()),
]


@pytest.mark.parametrize(("name", "request_"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_a_request_has_the_golden_bytes(name: str, request_: Any) -> None:
    golden = (GOLDEN / name).read_bytes()
    assert wire.encode_frame(wire.REQUEST, request_.SerializeToString(deterministic=True)) == golden
    assert wire.Request.FromString(golden[16:]) == request_


def answer(name: str, kind: int, message: Any) -> Any:
    frame = (GOLDEN / name).read_bytes()
    assert wire.decode_header(frame[:16]) == (kind, len(frame) - 16)
    return message.FromString(frame[16:])


def test_the_golden_welcome_is_read() -> None:
    reply = answer("welcome_reply.bin", wire.REPLY, wire.Reply)
    assert reply.request_id == 1
    assert (reply.welcome.protocol, reply.welcome.daemon_version, reply.welcome.client_id) == (1, "0.1.0", 12)
    assert (reply.welcome.daemon_pid, reply.welcome.log) == (99, "/state/log/daemon-99.log")


def test_the_golden_welcome_tells_its_namespace() -> None:
    reply = answer("welcome_pid_namespace_reply.bin", wire.REPLY, wire.Reply)
    assert reply.welcome.pid_namespace == 4_026_531_836


def test_the_golden_error_becomes_an_exception() -> None:
    error = wire.error_from(answer("error_reply.bin", wire.REPLY, wire.Reply).error)
    assert type(error) is ClientError
    assert (error.code, error.graph, error.node) == ("BAD_TENSOR", "0_0-forward", "mm")
    assert (error.dump, error.log) == ("/dumps/run/0_0-forward", "/state/log/executor-7.log")
    assert str(error).startswith('feed "x": expected float32[2, 3], got float64[2, 3]; cast it\n  graph: 0_0-forward')


def test_the_golden_observation_is_read() -> None:
    observed = answer("observed_reply.bin", wire.REPLY, wire.Reply).observed
    (verdict,) = observed.comparison.verdicts
    assert (observed.run_us, observed.dump) == (250, "/dumps/run/0_0-forward/part_2")
    assert (verdict.name, wire.VERDICT_KINDS[verdict.verdict]) == ("mm", "mismatch")
    assert (verdict.max_abs, verdict.max_rel_to_max, verdict.outside) == (0.25, 0.125, 1)


def test_the_golden_part_that_is_divided_is_read() -> None:
    reply = answer("prepared_divided_reply.bin", wire.REPLY, wire.Reply)
    prepared = reply.prepared
    assert (reply.request_id, prepared.handle, prepared.onnx_nodes, prepared.build_us) == (3, 3, 4, 1500)
    options = Options.parse({"runtimes": {"torch": ["mm"], "torch-f64": ["x"]}})
    assert Division.of([prepared], options) == Division(
        nodes={"ort": 3, "torch": 1}, rules={"torch-f64": 0, "torch": 1}, segments=2
    )


def test_the_golden_part_whose_nodes_are_placed_is_read() -> None:
    prepared = answer("prepared_placed_reply.bin", wire.REPLY, wire.Reply).prepared
    assert Placement.of([prepared]) == Placement(
        nodes={"CPUExecutionProvider": 3, "CUDAExecutionProvider": 120},
        ops={
            "CPUExecutionProvider": {"NonZero": 1, "Shape": 2},
            "CUDAExecutionProvider": {"MatMul": 118, "MemcpyToHost": 2},
        },
    )
    unknown = answer("prepared_unplaced_reply.bin", wire.REPLY, wire.Reply).prepared
    assert Placement.of([prepared, unknown]).unknown == 1 and not unknown.placed
    assert not Placement.of([answer("prepared_divided_reply.bin", wire.REPLY, wire.Reply).prepared])


def test_the_golden_plan_is_read() -> None:
    reply = answer("plan_reply.bin", wire.REPLY, wire.Reply)
    assert (reply.request_id, reply.plan.found) == (6, True)
    assert wire.ExportPlan.FromString(reply.plan.plan) == export_plan()


def test_the_golden_comparison_of_nodes_is_read() -> None:
    (noisy,) = answer("nodes_compared_noise_reply.bin", wire.REPLY, wire.Reply).nodes_compared.verdicts
    assert verdict_from(noisy.local).noise == {"ratio": 1.0}
    (node,) = answer("nodes_compared_reply.bin", wire.REPLY, wire.Reply).nodes_compared.verdicts
    assert node.local.noise_json == node.births_json == ""
    (born,) = answer("nodes_compared_births_reply.bin", wire.REPLY, wire.Reply).nodes_compared.verdicts
    assert born.births_json == '[{"kind":"nan"}]'
    assert (node.local.name, wire.VERDICT_KINDS[node.local.verdict]) == ("mm", "match")
    assert (wire.VERDICT_KINDS[node.cumulative.verdict], node.cumulative.outside) == ("mismatch", 1)


def test_the_golden_notice_is_read() -> None:
    lost = answer("executor_lost_notice.bin", wire.NOTICE, wire.Notice).executor_lost
    assert (lost.executor_id, lost.cause) == (5, "killed by signal 9")
    error = wire.error_from(lost.calls[0])
    assert type(error) is ExecutorLost
    assert (error.graph, error.dump) == ("0_0-forward", "/state/quarantine/x")


def test_a_lane_holds_the_golden_record() -> None:
    lanes = Lanes(threads=1)
    arena = Arena()
    plan = Plan([(1, (2, 3), "tensor", None, None), (7, (), "int", None, None)], [(1, (), (), False)])
    call = plan.gather(arena, arena.blocks, DeviceBlocks(), [torch.zeros(2, 3), 5], False)
    golden = bytearray((GOLDEN / "lane_record.bin").read_bytes())
    golden[40:64] = struct.pack("<3Q", *call.locations)  # where tensors lie is the arena's
    lanes.lanes[5].write(call, 7, 3, 4)
    assert lanes.memory.read(4096 + 5 * (1 << 20) + 256, len(golden)) == golden
    assert lanes.memory.read(0, 24) == b"RORTLANE" + struct.pack("<4I", 2, 64, 1 << 20, 0)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"HTTP" + bytes(12), "no rust-ort daemon"),
        (struct.pack("<4sHHII", b"RORT", 2, 2, 0, 0), "speaks protocol 2, this package 1"),
        (struct.pack("<4sHHII", b"RORT", 1, 1, 0, 0), "kind 1"),
        (struct.pack("<4sHHII", b"RORT", 1, 2, 0, 1), "reserved 1"),
        (struct.pack("<4sHHII", b"RORT", 1, 2, (1 << 30) + 1, 0), "bad frame"),
    ],
)
def test_another_header_is_refused(header: bytes, message: str) -> None:
    with pytest.raises(DaemonFault, match=message):
        wire.decode_header(header)
