"""Dynamic sizes of rust_ort.to_onnx: an example of size 1 is one among others, and what a model assumes is readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_to_onnx import assert_eager, assumed, shapes
from torch import Tensor, nn
from torch.nn import functional

import rust_ort
from rust_ort.errors import ClientError, OptionError

Dim = torch.export.Dim

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
        (attention, (3, 16), {0: "batch", 1: "length"}),
        (nn.GRU(16, 5, batch_first=True), (5, 16), {0: "batch"}),
    ]
    for model, rest, sizes in models:
        proto = rust_ort.to_onnx(model.eval(), torch.randn(1, *rest), dynamic_shapes=(sizes,))
        assert not any(line.endswith(">= 2") for line in assumed(proto))
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


def test_two_sizes_that_differ_have_two_names() -> None:
    named = {"x": {0: "p"}, "y": {0: Dim("p")}}
    with pytest.raises(OptionError, match=r"x\.shape\[0\] is 3 and y\.shape\[0\] 4, and both are named 'p'"):
        rust_ort.to_onnx(lambda x, y: (x.sum(), y.sum()), torch.ones(3), torch.ones(4), dynamic_shapes=named)
    proto = rust_ort.to_onnx(lambda x, y: (x.sum(), y.sum()), torch.ones(3), torch.ones(3), dynamic_shapes=named)
    assert shapes(proto.graph.input) == {"x": ["p"], "y": ["p"]}


def both_ways(x: Tensor, y: Tensor) -> Tensor:
    if x.shape[0] <= y.shape[0] and y.shape[0] <= x.shape[0]:
        return x * y.sum()
    return x


def windows(x: Tensor, y: Tensor) -> Tensor:
    if x.shape[0] > y.shape[0] - 3 and y.shape[0] % 3 != 0 and x.shape[0] < 100:
        return x.sum() * y
    return y


def is_one(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y.sum() if x.shape[0] == 1 else x * y.shape[0] + y.sum()


@pytest.mark.parametrize(
    ("model", "given", "sizes", "expected"),
    [
        (both_ways, [(6,), (6,)], [{0: "b"}] * 2, ["y.shape[0] == x.shape[0]", "x.shape[0] >= 1"]),
        (
            windows,
            [(6,), (7,)],
            [{0: "b"}, {0: "c"}],
            [
                "x.shape[0] + 2 >= y.shape[0]",
                "y.shape[0] % 3 != 0",
                "x.shape[0] >= 1",
                "x.shape[0] <= 99",
                "y.shape[0] >= 1",
            ],
        ),
        (is_one, [(6,), (7,)], [{0: "b"}, {0: "c"}], ["x.shape[0] >= 2", "y.shape[0] >= 1"]),
        (
            nn.MultiheadAttention(16, 2).eval(),
            [(5, 3, 16)] * 3,
            [{1: "b"}] * 3,
            ["key.shape[1] == value.shape[1]", "key.shape[1] == query.shape[1]", "query.shape[1] >= 1"],
        ),
        (
            nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 4, 3, 2)),
            [(2, 3, 64, 64)],
            [{0: "b", 2: "h", 3: "w"}],
            ["input.shape[0] >= 1", "input.shape[2] >= 9", "input.shape[3] >= 9"],
        ),
    ],
    ids=["equality", "inequalities", "one apart", "factor", "windows"],
)  # fmt: skip
def test_what_is_assumed_of_sizes_is_readable_and_true(
    model: Any, given: list[tuple[int, ...]], sizes: list[dict[int, str]], expected: list[str]
) -> None:
    proto = rust_ort.to_onnx(model, *map(torch.randn, given), dynamic_shapes=sizes)
    assert assumed(proto) == expected


def test_an_example_of_one_is_right_at_one_by_what_is_assumed() -> None:
    proto = rust_ort.to_onnx(lambda x: x + 1, torch.randn(1, 4), dynamic_shapes=({0: "n"},))
    assert assumed(proto) == ["x.shape[0] >= 1"]
    with pytest.raises(OptionError, match="program fixes it at 4"):
        rust_ort.to_onnx(lambda x: x.reshape(2, 2) * 2, torch.randn(4), dynamic_shapes=({0: "n"},))


def test_keywords_of_a_model_are_named_alone_or_together_as_torchs_export_has_them() -> None:
    def added(*xs: Tensor, **more: Tensor) -> Tensor:
        return sum(xs, more["z"])

    given, sizes = {"z": torch.ones(3)}, {0: "n"}
    for named in (
        {"xs": (sizes, sizes), "z": sizes},
        {"xs": (sizes, sizes), "more": {"z": sizes}},
        ((sizes, sizes), sizes),
        ((sizes, sizes), {"z": sizes}),
    ):
        proto = rust_ort.to_onnx(added, torch.ones(3), torch.ones(3), kwargs=given, dynamic_shapes=named)
        assert shapes(proto.graph.input) == {"xs_0": ["n"], "xs_1": ["n"], "z": ["n"]}
    with pytest.raises(OptionError, match="no argument 'y'"):
        rust_ort.to_onnx(added, torch.ones(3), kwargs=given, dynamic_shapes={"more": {"y": sizes}})


def _apart_at_one_and_many(x: Tensor) -> Tensor:
    return x * 100 if x.shape[0] == 1 and x.shape[1] > 1 else x + 1


def test_one_is_tried_of_each_size_beside_larger_ones() -> None:
    """Of both together the graph is right."""
    sizes = {"x": {0: "b", 1: "s"}}
    proto = rust_ort.to_onnx(_apart_at_one_and_many, torch.randn(2, 3, 4), dynamic_shapes=sizes)
    (assumed,) = (entry.value for entry in proto.metadata_props if entry.key == "rust_ort.assumes")
    assert assumed.splitlines() == ["x.shape[0] >= 2", "x.shape[1] >= 1"]
    with pytest.raises(OptionError, match=r"x.shape\[0\] is 1 in the example(.|\n)*right for this example, not for"):
        rust_ort.to_onnx(_apart_at_one_and_many, torch.randn(1, 1, 4), dynamic_shapes=sizes)


def test_one_is_tried_beside_the_least_that_torch_traces() -> None:
    """It drops what two sizes of 2 or more never are."""
    proto = rust_ort.to_onnx(
        lambda x: x * 100 if x.shape[0] * x.shape[1] == 2 else x + 1,
        torch.randn(3, 4),
        dynamic_shapes=({0: "b", 1: "s"},),
    )
    assert {"x.shape[0] >= 1", "x.shape[1] >= 1"} - {*assumed(proto)}


def test_a_size_that_torch_was_left_to_fix_stays_as_it_is_in_a_trial() -> None:
    sizes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    proto = rust_ort.to_onnx(lambda x, y: (x * y).mean(), torch.randn(1), torch.randn(5), dynamic_shapes=sizes)
    assert assumed(proto) == ["y.shape[0] >= 1"]


def test_nothing_is_assumed_of_strides_which_an_onnx_tensor_has_not() -> None:
    base = torch.randn(2, 6, 4)
    sizes = ({0: "b", 1: "s"}, {1: "s", 0: "b"})
    proto = rust_ort.to_onnx(lambda x, y: x @ y.mT, base[:, ::2], base[:, 3:], dynamic_shapes=sizes)
    assert not any("stride" in line or "offset" in line for line in assumed(proto)), assumed(proto)
    for b, s in ((2, 3), (1, 5), (3, 1)):
        x, y = torch.randn(b, s, 4), torch.randn(b, s, 4)
        assert_eager(proto, {"x": x, "y": y}, [x @ y.mT])


def test_what_is_wrong_with_another_size_is_told_of_an_example_of_one() -> None:
    """A program that fixes the sequence does so in a batch of any size."""
    sizes = ({0: "b", 1: "s"},)
    with pytest.raises(OptionError, match=r"^to_onnx dynamic_shapes: x.shape\[1\] is to be dynamic"):
        rust_ort.to_onnx(lambda x: x.reshape(x.shape[0], 12) * 2, torch.randn(1, 3, 4), dynamic_shapes=sizes)
