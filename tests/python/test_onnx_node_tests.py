"""ONNX's own node tests through the executor: whatever onnxruntime itself passes, the executor passes."""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import torch
from conftest import Daemon
from onnx import TensorProto
from onnx.backend.test.case.test_case import TestCase as NodeCase

from rust_ort.call.client import Client
from rust_ort.link.specs import GraphSpec, OutputSpec, PartSpec
from rust_ort.memory.layout import ONNX_CODE

TORCH_DTYPE = {code: dtype for dtype, code in ONNX_CODE.items()}
VIEWED = {np.dtype(getattr(ml_dtypes, name)): getattr(torch, name) for name in (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)}  # fmt: skip
DRAWS = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


class Skipped(Exception):
    """The text is a category."""


@dataclass
class Results:
    """Cases by what came of them.

    rounded: the executor rounds after every node, as the model says, where onnxruntime leaves it out between two nodes.
    as_wrong: onnxruntime does not pass them, and the executor gives the same. only_executor: passed by it alone.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    rounded: list[str] = field(default_factory=list)
    as_wrong: list[str] = field(default_factory=list)
    only_executor: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"ONNX node tests (onnx {onnx.__version__}): {len(self.passed)} passed, {len(self.failed)} failed, "
            f"{len(self.as_wrong)} not passed by onnxruntime {onnxruntime.__version__} either, "
            f"{len(self.skipped)} skipped",
            *(f"  {count} skipped: {why}" for why, count in Counter(self.skipped.values()).most_common()),
            f"  not passed by onnxruntime either: {', '.join(self.as_wrong) or 'none'}",
            f"  rounded to half precision after every node: {', '.join(self.rounded) or 'none'}",
            f"  passed by the executor alone: {', '.join(self.only_executor) or 'none'}",
            *(f"  FAILED {name}: {why}" for name, why in self.failed.items()),
        ]
        return "\n".join(lines)


@functools.cache
def cases() -> list[NodeCase]:
    """Every node test of the installed onnx."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def test_the_executor_passes_every_node_test_that_onnxruntime_passes(daemon: Daemon) -> None:
    results = Results()
    for number, case in enumerate(cases()):
        try:
            run_case(case, number, daemon, results)
        except Skipped as why:
            results.skipped[case.name] = str(why)
    print(results)
    assert len(results.passed) > 1000
    assert not results.failed


def run_case(case: NodeCase, number: int, daemon: Daemon, results: Results) -> None:
    """Raises Skipped where the case says nothing about the executor."""
    inputs, expected = data_set(case)
    own = attempt(lambda: run_in_process(case, inputs, expected))
    mine = attempt(lambda: executed(case, number, daemon, inputs, expected))
    own_is_right = isinstance(own, list) and not difference(case, own, expected)
    if isinstance(mine, list) and not difference(case, mine, expected):
        (results.passed if own_is_right else results.only_executor).append(case.name)
    elif own_is_right and isinstance(mine, list) and in_half_steps(mine, expected):
        results.rounded.append(case.name)
    elif own_is_right:
        results.failed[case.name] = mine if isinstance(mine, str) else difference(case, mine, expected)
    elif isinstance(own, list) and any(node.op_type in DRAWS for node in case.model.graph.node):
        raise Skipped("it draws random numbers")
    elif isinstance(own, str) and isinstance(mine, str):
        raise Skipped(refusal(own))
    elif isinstance(own, list) and isinstance(mine, list) and not difference(case, mine, own):
        results.as_wrong.append(case.name)
    elif isinstance(own, str) and isinstance(mine, list) and in_half_steps(mine, expected):
        results.only_executor.append(case.name)
    else:
        results.failed[case.name] = f"onnxruntime: {str(own)[:300]}; executor: {str(mine)[:300]}"


def attempt(run: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | str:
    """What it gives, or the text of its error."""
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def refusal(text: str) -> str:
    """The category of an error of onnxruntime."""
    for sign, category in {
        "under development": "an opset that onnxruntime 1.31.1 does not implement",
        "Unsupported model IR version": "an IR version that onnxruntime 1.31.1 does not implement",
        "not a registered function/op": "an operator that onnxruntime 1.31.1 does not implement",
        "NOT_IMPLEMENTED": "no kernel in onnxruntime 1.31.1",
        "INVALID_GRAPH": "onnxruntime 1.31.1 finds the model invalid",
        "Fail: [ONNXRuntimeError]": "onnxruntime 1.31.1 refuses it",
        "Error in execution": "onnxruntime 1.31.1 fails in it",
        "Type Error": "onnxruntime 1.31.1 finds the model invalid",
    }.items():
        if sign in text:
            return category
    return text


def difference(case: NodeCase, candidate: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> str:
    """What of dtypes, shapes and values differs, by the case's own tolerance; "": nothing."""
    try:
        for mine, other in zip(candidate, reference, strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            if mine.dtype.is_floating_point or mine.dtype.is_complex:
                np.testing.assert_allclose(wide(mine), wide(other), rtol=case.rtol, atol=case.atol)
            else:
                assert torch.equal(mine, other)
    except AssertionError as error:
        return str(error) or "different"
    return ""


ROUNDED = {torch.bfloat16: {}, torch.float16: {"rtol": 4 * torch.finfo(torch.float16).eps, "atol": 1e-5}}
"""How near half precision is that was rounded after every node: torch.testing's tolerance, four steps of float16."""


def in_half_steps(candidate: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> bool:
    """Whether all is half precision and as near as `ROUNDED`: a case's own tolerance is about one step or finer."""
    if any(tensor.dtype not in ROUNDED for tensor in reference):
        return False
    try:
        for mine, other in zip(candidate, reference, strict=True):
            torch.testing.assert_close(mine, other, equal_nan=True, **ROUNDED[other.dtype])
    except AssertionError:
        return False
    return True


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64).numpy()


# --- a case as tensors ---


def data_set(case: NodeCase) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and outputs. Raises Skipped for what a tensor call cannot carry."""
    for value in (*case.model.graph.input, *case.model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise Skipped(f"{str(kind).removesuffix('_type')} types")
        code = value.type.tensor_type.elem_type
        if code not in TORCH_DTYPE:
            raise Skipped(f"{TensorProto.DataType.Name(code).lower()} tensors")
    ((inputs, outputs),) = case.data_sets
    return [as_tensor(value) for value in inputs], [as_tensor(value) for value in outputs]


def as_tensor(value: object) -> torch.Tensor:
    if isinstance(value, TensorProto):
        value = onnx.numpy_helper.to_array(value)
    array = np.asarray(value)
    dtype = VIEWED.get(array.dtype)
    if dtype is None:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: the generators share arrays
    bits = np.array(array, order="C").view(np.int16 if array.dtype.itemsize == 2 else np.uint8)
    return torch.from_numpy(bits).view(dtype)


# --- onnxruntime in this process ---


def run_in_process(
    case: NodeCase, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """At the executor's optimization level."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    outputs = [torch.empty_like(tensor) for tensor in expected]
    spare = torch.empty(1)  # an empty tensor has no address
    for bind, values, tensors in (
        (binding.bind_input, session.get_inputs(), inputs),
        (binding.bind_output, session.get_outputs(), outputs),
    ):
        for value, tensor in zip(values, tensors, strict=True):
            bind(
                value.name,
                "cpu",
                0,
                ONNX_CODE[tensor.dtype],
                tuple(tensor.shape),
                tensor.data_ptr() or spare.data_ptr(),
            )
    session.run_with_iobinding(binding)
    return outputs


# --- the executor ---


def executed(
    case: NodeCase, number: int, daemon: Daemon, inputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    graph = case.model.graph
    initialized = {initializer.name for initializer in graph.initializer}
    names = [value.name for value in graph.output]
    spec = PartSpec(
        graph=GraphSpec(graph_id=f"{number:064x}", name=case.name, direction="inference"),
        part=0,
        model=case.model.SerializeToString(),
        fx_values={name: name for name in names},
        input_names=[value.name for value in graph.input if value.name not in initialized],
        output_names=names,
        outputs=[OutputSpec(dtype=tensor.dtype, shape=tuple(tensor.shape)) for tensor in expected],
    )
    return Client.get(daemon.options()).part(spec, daemon.options())(list(inputs))
