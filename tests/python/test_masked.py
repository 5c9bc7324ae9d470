"""Rows that a huge mask takes whole: float64 has their scores, eager has lost them, and no fault hides behind that."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor
from torch.nn import functional

import rust_ort
from rust_ort.export import attention as attention_calls
from rust_ort.observe.masked import BACKWARD, FORWARD, attention, lost_beside
from rust_ort.observe.wide import Wide

HEADS = 4


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return (query @ key.mT / 4 + mask).softmax(-1) @ value


def in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.mT / 4
    scores += mask
    return scores.softmax(-1) @ value


def given(fill: float, seed: int = 0) -> tuple[Tensor, ...]:
    """Query, key, value, and a mask that takes one row whole."""
    torch.manual_seed(seed)
    mask = torch.zeros(32, 32)
    mask[3] = fill
    return *(torch.randn(2, HEADS, 32, 16, requires_grad=True) for _ in range(3)), mask


def without_a_head(*, backward: bool, result: int) -> Callable[[Any], None]:
    """A transform: the first head of a result of the attention's kernel, or of its gradient's, is zero."""

    def change(proto: Any) -> None:
        nodes = proto.graph.node
        for at, node in enumerate(nodes):
            if node.domain == attention_calls.DOMAIN and ("Grad" in node.op_type) is backward:
                right, name = f"{node.output[result]}_right", node.output[result]
                kept = helper.make_tensor("kept", TensorProto.FLOAT, [1, HEADS, 1, 1], [0.0] + [1.0] * (HEADS - 1))
                proto.graph.initializer.append(kept)
                node.output[result] = right
                nodes.insert(at + 1, helper.make_node("Mul", [right, "kept"], [name]))
                return

    return change


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("compare", ["nodes", "outputs"])
@pytest.mark.parametrize(("backward", "result"), [(False, 0), (True, 0), (True, 1), (True, 2)])
def test_a_head_of_zeros_is_no_noise(compare: str, backward: bool, result: int) -> None:
    torch.compiler.reset()
    options = {"compare": compare, "transforms": [without_a_head(backward=backward, result=result)]}
    report = rust_ort.compare(fused, *given(-1e9), options=options)
    assert not report.ok, report
    assert any(verdict.kind == "mismatch" for verdict in report.verdicts)
    if compare == "nodes":
        assert report.first_wrong_node is not None and "attention" in report.first_wrong_node[1].op


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("function", [fused, by_products])
@pytest.mark.parametrize("fill", [-1e4, -1e7, -3e8, -1e9, -1e12, torch.finfo(torch.float32).min], ids=str)
def test_what_is_right_is_right_under_every_mask(function: Callable[..., Tensor], fill: float) -> None:
    torch.compiler.reset()
    rust_ort.compare(function, *given(fill), options={"compare": "nodes", "compare_float64": "all"}).check()


@pytest.mark.parametrize("function", [fused, by_products, in_place])
@pytest.mark.parametrize("fill", [-1e9, -1e12], ids=str)
def test_float64_of_a_model_has_what_eager_lost_no_more(function: Callable[..., Tensor], fill: float) -> None:
    query, key, value, mask = given(fill)
    with Wide() as wide:
        out = function(query, key, value, mask)
        gradients = torch.autograd.grad(out.cos().sum(), (query, key, value))
        exact = [wide.of(made) for made in (out, *gradients)]
    for made, beside in zip((out, *gradients), exact, strict=True):
        assert beside is not None
        torch.testing.assert_close(made.double(), beside, rtol=1e-4, atol=1e-4)


def test_where_no_score_is_lost_it_is_torchs() -> None:
    query, key, value, mask = (tensor.detach().double() for tensor in given(-1e9))
    for other in (None, mask.bool(), mask.clamp(min=-1e4), torch.zeros_like(mask).masked_fill(mask < 0, -math.inf)):
        assert attention(FORWARD, (query, key, value), {"attn_mask": other}) is None
    mask[3] = 0
    mask[:, 30:] = -1e9  # columns that no row sees: nothing is lost
    made = attention(FORWARD, (query, key, value), {"attn_mask": mask})
    expected = FORWARD(query, key, value, attn_mask=mask)
    torch.testing.assert_close(made, expected)
    gradient = torch.ones_like(query)
    made = attention(BACKWARD, (gradient, query, key, value, *expected, 0.0, False), {"attn_mask": mask})
    torch.testing.assert_close(made, BACKWARD(gradient, query, key, value, *expected, 0.0, False, attn_mask=mask))


def test_a_sum_loses_the_smaller_of_two_where_eagers_did() -> None:
    score, mask = torch.tensor([1.5, 1.5, 1e8, -3.0]), torch.tensor([-1e9, 0.25, 1e8, 3.0])
    wide = lost_beside(score.double() + mask.double(), score + mask, (score.double(), mask.double()))
    assert wide.tolist() == [-1e9, 1.75, 2e8, 0.0]
