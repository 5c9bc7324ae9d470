"""Dynamic sizes of rust_ort.to_onnx: an example of size 1 is one among others, and what a model assumes is readable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_to_onnx import assert_eager, assumed, shapes
from torch import Tensor, nn
from torch.nn import functional

import rust_ort
from rust_ort.errors import ClientError, OptionError

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum with a number": lambda x: x + 1,
    "relu": lambda x: x.relu() * 2,
    "view of its own size": lambda x: x.view(x.shape[0], -1) + 1,
    "flatten": lambda x: x.flatten(1).softmax(-1),
    "mean over it": lambda x: x.mean(0, keepdim=True) - x,
    "concatenation": lambda x: torch.cat([x, x * 2]),
    "expand": lambda x: x[:, :1].expand(x.shape[0], 4, -1) * torch.ones(x.shape[0], 1, 1),
    "stack": lambda x: torch.stack([x, -x], 1).sum(1) / x.shape[0],
    "transpose": lambda x: x.transpose(0, 1).contiguous() + torch.arange(x.shape[0])[:, None],
    "matmul": lambda x: x @ x.transpose(1, 2),
    "layer norm": lambda x: functional.layer_norm(x, (3,)).mul(2).clamp(0, 1),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_an_example_of_size_one_is_one_among_others(program: Callable[[Tensor], Tensor]) -> None:
    proto = rust_ort.to_onnx(program, torch.randn(1, 4, 3), dynamic_shapes=({0: "batch"},))
    (sizes,) = shapes(proto.graph.input).values()
    assert sizes == ["batch", 4, 3]
    assert not any("==" in line for line in assumed(proto))
    for n in (1, 2, 5):
        x = torch.randn(n, 4, 3)
        assert_eager(proto, {proto.graph.input[0].name: x}, [program(x)])


def test_a_layer_that_takes_a_batch_of_one_apart_serves_any_batch() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1))
    attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    models: list[tuple[nn.Module, tuple[int, ...], dict[int, str]]] = [
        (pooled, (3, 16, 16), {0: "batch", 2: "height", 3: "width"}),
        (attention, (1, 16), {0: "batch", 1: "length"}),
        (nn.GRU(16, 5, batch_first=True), (5, 16), {0: "batch"}),
    ]
    for model, rest, sizes in models:
        proto = rust_ort.to_onnx(model.eval(), torch.randn(1, *rest), dynamic_shapes=(sizes,))
        for n in (1, 2, 5):
            x = torch.randn(n, *(size + 4 if axis + 1 in sizes else size for axis, size in enumerate(rest)))
            with torch.no_grad():
                expected = torch.utils._pytree.tree_leaves(model(x))
            assert_eager(proto, {proto.graph.input[0].name: x}, expected)


def test_sizes_that_move_together_may_begin_at_one() -> None:
    """A decoder's next token: with 2 tokens, the mask of the example would be too short."""

    def step(ids: Tensor, mask: Tensor) -> Tensor:
        return ids * mask[:, -ids.shape[1] :] + mask.sum(1, keepdim=True) * (mask.shape[1] - ids.shape[1])

    sizes = {"ids": {1: "new"}, "mask": {1: "all"}}
    proto = rust_ort.to_onnx(step, torch.ones(2, 1), torch.ones(2, 6), dynamic_shapes=sizes)
    for new in (1, 2, 5):
        ids, mask = torch.randn(2, new), torch.randn(2, 7)
        assert_eager(proto, {"ids": ids, "mask": mask}, [step(ids, mask)])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + torch.ones(3, 4),
        lambda x: x * 2 if x.shape[0] == 1 else x * 3,
        lambda x: x.squeeze(0) + 1,
    ],
    ids=["broadcast", "branch", "squeeze"],
)
def test_a_program_that_takes_one_apart_is_told_to_give_two(program: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(OptionError, match=r"x\.shape\[0\] is 1 in the example.*take an example of size >= 2") as caught:
        rust_ort.to_onnx(program, torch.randn(1, 4), dynamic_shapes={"x": {0: "batch"}})
    assert caught.value.code == "FIXED_SIZE"
    assert "AUTO" not in str(caught.value)


def test_what_has_nothing_to_do_with_sizes_is_told_as_it_is_of_an_example_of_one() -> None:
    def breaks(x: Tensor) -> Tensor:
        print("a side effect")
        return x * 2

    for program, code in ((breaks, "GRAPH_BREAK"), (lambda x: x.add_(1), "MUTATION"), (torch.rand_like, "UNSUPPORTED")):
        with pytest.raises(ClientError) as caught:
            rust_ort.to_onnx(program, torch.ones(1, 3), dynamic_shapes=({0: "n"},))
        assert caught.value.code == code
        assert ">= 2" not in str(caught.value)
