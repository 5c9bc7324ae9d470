"""Attention is one operator each way: eager's values, layouts and extremes, and a model that runs anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor
from torch.nn import functional

import rust_ort
from rust_ort.export import attention
from rust_ort.observe.sums import parts_added_up

pytestmark = pytest.mark.usefixtures("served")
aten = torch.ops.aten
sdpa = functional.scaled_dot_product_attention
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SLACK = {torch.float32: 1e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Of the largest element: half a unit in the last place of the dtype, or a few of float32 and float64."""


def heads(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seen(length: int, keys: int) -> Tensor:
    """A bool mask; the last query sees no key."""
    mask = heads(length, keys, seed=7) > -0.5
    mask[-1] = False
    return mask


def bias(*shape: int) -> Tensor:
    return heads(*shape, seed=8)


def step(function: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The result in this dtype, and the inputs' gradients."""
    inputs = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    output = function(*inputs)
    grad = heads(*output.shape, seed=9).to(dtype)
    return [output, *torch.autograd.grad(output, inputs, grad)]


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), [(2, 3, 37, 16)] * 3),
    "full": (lambda q, k, v: sdpa(q, k, v, scale=0.7), [(1, 2, 5, 33)] * 3),
    "cross": (lambda q, k, v: sdpa(q, k, v), [(2, 2, 7, 8), (2, 2, 530, 8), (2, 2, 530, 8)]),
    "causal cross": (lambda q, k, v: sdpa(q, k, v, is_causal=True), [(1, 2, 19, 8), (1, 2, 11, 8), (1, 2, 11, 8)]),
    "long": (lambda q, k, v: sdpa(q, k, v, is_causal=True), [(1, 2, 797, 8)] * 3),
    "one": (lambda q, k, v: sdpa(q, k, v), [(1, 1, 1, 1)] * 3),
    "grouped": (
        lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        [(2, 6, 13, 8), (2, 2, 13, 8), (2, 2, 13, 8)],
    ),
    "bool mask": (
        lambda q, k, v: sdpa(q, k, v, attn_mask=seen(17, 23)),
        [(2, 2, 17, 8), (2, 2, 23, 8), (2, 2, 23, 8)],
    ),
    "float mask": (
        lambda q, k, v: sdpa(q, k, v, attn_mask=bias(2, 1, 17, 23).to(q.dtype)),
        [(2, 2, 17, 8), (2, 2, 23, 8), (2, 2, 23, 8)],
    ),
    "mask of one row": (
        lambda q, k, v: sdpa(q, k, v, attn_mask=bias(1, 2, 1, 23).to(q.dtype)),
        [(2, 2, 17, 8), (2, 2, 23, 8), (2, 2, 23, 8)],
    ),
    "projected": (
        lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2).flatten(2),
        [(2, 29, 4, 16)] * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_as_near_to_float64_as_eager_is(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    inputs = [heads(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    candidate = step(torch.compile(function, backend=backend, dynamic=dynamic), inputs, dtype)
    reference = step(function, inputs, dtype)
    exact = step(function, [tensor.to(dtype).double() for tensor in inputs], torch.float64)
    if dtype is not torch.float64:
        exact[0:1] = [function(*(tensor.to(dtype).double() for tensor in inputs))]
    assert [graph.eager for graph in backend.graphs] == [[], []]
    for ours, eagers, right in zip(candidate, reference, exact, strict=True):
        assert (ours.dtype, ours.stride()) == (eagers.dtype, eagers.stride())
        slack = SLACK[dtype] * float(right.detach().abs().max())
        error, eagers_error = ((made.double() - right).abs().max() for made in (ours, eagers))
        assert error <= 2 * eagers_error + slack, f"{float(error)}, eager {float(eagers_error)}"


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_are_eagers(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, mask: sdpa(q, k, v, attn_mask=mask), backend="rust_ort", dynamic=False)
    q, k, v = (heads(1, 2, 6, 8, seed=seed).to(dtype) for seed in range(3))
    mask = torch.zeros(6, 6, dtype=dtype)
    large = 100.0 if dtype is torch.float16 else 1e4

    def put(tensor: Tensor, value: float, *place: Any) -> Tensor:
        changed = tensor.clone()
        changed[place] = value
        return changed

    for given in [
        (q, k, v, put(mask, -math.inf, 2)),
        (q, k, v, torch.full_like(mask, -math.inf)),
        (q, k, v, put(mask, -math.inf, slice(None), 3)),
        (q, k, v, put(mask, math.inf, 1, 1)),
        (q, k, v, put(mask, math.nan, 4, 0)),
        (put(q, math.nan, 0, 0, 3), k, v, mask),
        (q, put(k, math.nan, 0, 1, 5), v, mask),
        (q, k, put(v, math.nan, 0, 1, 5), mask),
        (q, k, put(v, math.inf, 0, 1, 5), mask),
        (put(q, math.inf, 0, 0, 3, 0), k, v, mask),
        (q * large, k, v, mask),
        (q, k, v * large, mask),
    ]:
        candidate, reference = compiled(*given), sdpa(*given[:3], attn_mask=given[3])
        largest = float(reference.nan_to_num(0, 0, 0).abs().max())
        torch.testing.assert_close(candidate, reference, equal_nan=True, rtol=0, atol=2 * SLACK[dtype] * largest)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("optimization", ["all", "disable"])
def test_both_results_of_the_operators_are_eagers(is_causal: bool, masked: bool, optimization: str) -> None:
    """With the kernel, and as nodes of ONNX."""
    mask = torch.where(seen(9, 9), 0.0, -math.inf) if masked else None

    def both(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        forward = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=mask)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, *forward, 0.0, is_causal, attn_mask=mask
        )
        return [*forward, *backward]

    q, grad = (heads(2, 4, 9, 8, seed=seed).float() for seed in (0, 3))
    k, v = (heads(2, 2, 9, 8, seed=seed).float() for seed in (1, 2))
    torch._dynamo.reset()
    compiled = torch.compile(both, backend="rust_ort", options={"ort_optimization": optimization})
    for ours, eagers in zip(compiled(grad, q, k, v), both(grad, q, k, v), strict=True):
        torch.testing.assert_close(ours, eagers, check_stride=True, rtol=2e-5, atol=2e-5)


def test_dropout_of_attention_draws_eagers_numbers() -> None:
    torch._dynamo.reset()

    def dropping(q: Tensor) -> Tensor:
        return sdpa(q, q, q, dropout_p=0.5)

    q, made = heads(1, 2, 5, 8).float(), []
    for function in (torch.compile(dropping, backend="rust_ort"), dropping):
        torch.manual_seed(0)
        made.append(function(q))
    torch.testing.assert_close(*made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", ["causal", "grouped", "bool mask", "float mask", "projected"])
def test_the_models_run_anywhere(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """In onnxruntime, which knows nothing of us, and in onnx' own evaluator."""
    function, shapes = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="rust_ort", options={"compare": "outputs"}, dynamic=False)
    with rust_ort.dump("attention", folder=tmp_path) as folder:
        step(compiled, [heads(*shape, seed=seed) for seed, shape in enumerate(shapes)], dtype)
    models = sorted(folder.rglob("model.onnx"))
    assert len(models) == 2
    for path in models:
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        calls = [node.op_type for node in model.graph.node if node.domain == attention.DOMAIN]
        assert len(calls) == 1 and [function.name for function in model.functions] == calls
        (data,) = path.parent.glob("test_data_set_*")
        feeds, actual = (values(data, prefix) for prefix in ("input", "actual"))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        evaluators = [session.run(names, feeds), onnx.reference.ReferenceEvaluator(model).run(names, feeds)]
        for made in (array for evaluator in evaluators for array in zip(names, evaluator, strict=True)):
            np.testing.assert_allclose(
                made[1].astype(np.float64), actual[made[0]].astype(np.float64), rtol=0, atol=5 * SLACK[dtype] + 1e-5
            )


def values(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    protos = [onnx.load_tensor(str(path)) for path in sorted(folder.glob(f"{prefix}_*.pb"))]
    return {proto.name: numpy_helper.to_array(proto) for proto in protos}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nodes_are_compared_and_named(dtype: torch.dtype) -> None:
    function, shapes = CASES["projected"]
    torch._dynamo.reset()
    backend = rust_ort.Backend({"compare": "nodes"})
    step(
        torch.compile(function, backend=backend), [heads(*shape, seed=seed) for seed, shape in enumerate(shapes)], dtype
    )
    for graph in backend.graphs:
        verdicts = [node for _, node in graph.nodes]
        assert any("getitem" in node.name for node in verdicts)
        assert {node.local.kind for node in verdicts} == {"match"}, [str(node) for node in verdicts]


@pytest.mark.parametrize("way", ["plain", "causal", "masked", "biased"])
def test_what_the_gradient_of_attention_adds_up_is_known(way: str) -> None:
    """Where values are alike a score's gradient is a difference of equals: only its terms measure its rounding."""
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(2, 3, 8, 4) for _ in range(4))
    value = 1.0 + 1e-3 * value
    mask = {"masked": torch.rand(8, 8) > 0.3, "biased": torch.randn(8, 8)}.get(way)
    if mask is not None and mask.dtype is torch.bool:
        mask = mask | torch.eye(8, dtype=torch.bool)
        mask = torch.zeros(8, 8).masked_fill(~mask, -math.inf)
    causal = way == "causal"
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, rows = forward(query, key, value, 0.0, causal, attn_mask=mask)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    given = (grad, query, key, value, out, rows, 0.0, causal)
    gradients = backward(*given, attn_mask=mask)
    terms = parts_added_up(backward, given, {"attn_mask": mask})
    for gradient, added in zip(gradients, terms, strict=True):
        assert added.dtype is torch.float64 and added.shape == gradient.shape
        assert (added * (1 + 1e-6) >= gradient.double().abs()).all()
    of_query = gradients[0].double().abs().mean() / terms[0].mean()
    assert of_query < 0.01, "what cancels is known by what it adds up"


def test_terms_of_attention_are_bounded_where_a_row_is_masked_whole() -> None:
    """Beside scores of -1e9 the kernel's logsumexp has lost the number of keys."""
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(1, 2, 8, 4) for _ in range(4))
    mask = torch.zeros(8, 8)
    mask[3] = -1e9
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, rows = forward(query, key, value, 0.0, False, attn_mask=mask)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    terms = parts_added_up(backward, (grad, query, key, value, out, rows, 0.0, False), {"attn_mask": mask})
    bound = 8 * 8 * 4 * 2 * grad.abs().max() * max(value.abs().max(), out.abs().max()) * max(query.abs().max(), 1) * 4
    assert all(float(of.max()) < float(bound) for of in terms)
