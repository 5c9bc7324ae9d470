"""What decomposed operators make of images with channels last and of permuted tensors has eager's strides."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import Compile, check
from support import together
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from rust_ort.export.decompositions import ITERATED

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("served")

MODULES: dict[int, dict[str, Callable[[Tensor], Any]]] = {
    4: {
        "adaptive means": nn.AdaptiveAvgPool2d(2),
        "adaptive means of windows that differ": nn.AdaptiveAvgPool2d(3),
        "the mean of all": nn.AdaptiveAvgPool2d(1),
        "adaptive maxima": nn.AdaptiveMaxPool2d(3, return_indices=True),
        "means": nn.AvgPool2d(3, ceil_mode=True, divisor_override=2),
        "maxima": nn.MaxPool2d(3, ceil_mode=True, return_indices=True),
        "shuffled pixels": nn.PixelShuffle(2),
        "reflected": nn.ReflectionPad2d(1),
        "replicated": nn.ReplicationPad2d(1),
        "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
        "bicubic": nn.Upsample(scale_factor=2, mode="bicubic"),
        "nearest": nn.Upsample(scale_factor=2),
        "antialiased": lambda x: F.interpolate(x, size=5, mode="bilinear", antialias=True),
        "normalized": nn.LocalResponseNorm(2),
        "by group": nn.GroupNorm(2, 4),
        "by instance": nn.InstanceNorm2d(4),
        "softmax": nn.Softmax2d(),
        "normalized over the batch": lambda x: F.batch_norm(x, None, None, training=True),
        "hardswish": nn.Hardswish(),
        "prelu": nn.PReLU(4),
        "gated": lambda x: F.glu(x, 1),
        "flipped": lambda x: x.flip(3),
        "unfolded": lambda x: F.unfold(x, 2),
        "rounded": lambda x: x.round(decimals=1).cumsum(1),
    },
    5: {
        "adaptive means": nn.AdaptiveAvgPool3d(2),
        "adaptive maxima": nn.AdaptiveMaxPool3d(2),
        "means": nn.AvgPool3d(2, ceil_mode=True),
        "maxima": nn.MaxPool3d(2, ceil_mode=True),
        "trilinear": nn.Upsample(scale_factor=2, mode="trilinear"),
    },
}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def strides(made: Any) -> list[tuple[int, ...]]:
    return [tensor.stride() for tensor in (made if isinstance(made, tuple) else (made,))]


def has_eagers_strides(module: Callable[[Tensor], Any], x: Tensor) -> bool:
    """Whether torch's fake tensors have: a graph is compiled for theirs. Of each release a few have not: in 2.12
    ReflectionPad2d, in 2.14 GroupNorm, in all of them `roll`."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = module(mode.from_tensor(x))
    return strides(fake) == strides(module(x))


@pytest.mark.parametrize("rank", FORMATS)
def test_the_memory_format_is_eagers(rank: int) -> None:
    """All operators in one graph, each of the same image."""
    shape = (2, 4, 7, 6) if rank == 4 else (2, 4, 4, 5, 6)
    image = torch.zeros(shape).to(memory_format=FORMATS[rank])
    modules = {name: module for name, module in MODULES[rank].items() if has_eagers_strides(module, image)}
    assert len(modules) >= len(MODULES[rank]) - 2, f"left: {list(modules)}"

    def program(compiled: Compile) -> Any:
        given = {"channels last": torch.randn(shape).to(memory_format=FORMATS[rank]), "contiguous": torch.randn(shape)}

        def every(x: Tensor) -> dict[str, Any]:
            return {name: module(x) for name, module in modules.items()}

        call = compiled(every)
        with torch.no_grad():
            return {kind: call(x) for kind, x in given.items()}

    check(program, tol=1e-4)


Makes = tuple[str, Callable[[Tensor], Any], tuple[int, ...]]
PERMUTED: list[Makes] = [
    ("a diagonal written", lambda x: x.diagonal_scatter(torch.ones(3, 2)), (2, 5, 3)),
    ("normalized over the batch", lambda x: F.batch_norm(x, None, None, training=True), (2, 5, 3)),
    ("normalized by what is known", lambda x: F.batch_norm(x, torch.zeros(5), torch.ones(5)), (2, 5, 3)),
    ("rolled", lambda x: x.roll((1, 2), (0, 1)), (2, 5, 3)),
    ("products of transposes", lambda x: x.mT @ x[..., :1], (2, 5, 3)),
    ("softmax of a transpose", lambda x: x.mT.softmax(1).cumsum(0), (2, 5, 3)),
]
IMAGES: list[Makes] = [
    ("shuffled into one channel", lambda x: F.pixel_shuffle(x, 2), (2, 4, 3, 5)),
    ("rolled", lambda x: x.roll(1, 3), (2, 4, 3, 5)),
    ("rolled back to where it was", lambda x: x.roll(x.shape[1], 1), (2, 4, 3, 5)),
    ("rolled as one row", lambda x: x.roll(1), (2, 4, 3, 5)),
    ("the mean of all", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 4, 3, 5)),
    ("normalized", lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), (2, 4, 3, 5)),
]


@pytest.mark.parametrize("training", [False, True], ids=["no_grad", "training"])
def test_strides_are_eagers_where_decompositions_or_fake_tensors_have_others(training: bool) -> None:
    given = [(f"permuted {name}", make, torch.randn(shape).movedim(0, -1).contiguous().movedim(-1, 0))
             for name, make, shape in PERMUTED]  # fmt: skip
    given += [(f"image {name}", make, torch.randn(shape).to(memory_format=torch.channels_last))
              for name, make, shape in IMAGES]  # fmt: skip
    functions = {name: make for name, make, _ in given}
    xs = {name: x.requires_grad_(training) for name, _, x in given}

    def every(xs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: function(xs[name]) for name, function in functions.items()}

    expected, made = every(xs), torch.compile(every, backend="rust_ort")(xs)
    torch.testing.assert_close(made, expected)
    assert {name: x.stride() for name, x in made.items()} == {name: x.stride() for name, x in expected.items()}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "permuted": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "spread": lambda x: x[:1, :, :1],
}


MORE = {aten.native_dropout_backward.default: {"scale": 2.0}, aten.div.Tensor_mode: {"rounding_mode": "floor"}}


def test_binary_operators_lay_out_as_their_kernels_do() -> None:
    """All operators in one graph, each of every pair of layouts."""
    x = torch.arange(24.0).reshape(2, 3, 4) % 5 + 1
    functions, given = {}, {}
    for operator, first, second in itertools.product(ITERATED, LAYOUTS, LAYOUTS):
        operands = [LAYOUTS[first](x / 7), LAYOUTS[second](x % 2)]
        if operator is aten.native_dropout_backward.default:
            operands[1] = operands[1].bool()
        name = f"{operator} of {first} and {second}"
        functions[name], given[name] = functools.partial(operator, **MORE.get(operator, {})), operands
    every = together(functions)
    torch._dynamo.reset()
    made, expected = torch.compile(every, backend="rust_ort")(given), every(given)
    torch.testing.assert_close(made, expected, equal_nan=True)
    assert {name: y.stride() for name, y in made.items()} == {name: y.stride() for name, y in expected.items()}


GRADIENTS = {
    **MODULES[4],
    "shuffled channels": lambda x: F.channel_shuffle(x, 2),
    "convolved": lambda x: F.conv2d(x, torch.ones(5, 4, 3, 3)),
    "convolved, transposed": lambda x: F.conv_transpose2d(x, torch.ones(4, 5, 3, 3)),
    "pooled by norm": lambda x: F.lp_pool2d(x, 2, 2),
    "unpooled": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "chosen": lambda x: torch.where(x > 0, x, x * 2),
    "deviations": lambda x: x.std((2, 3)),
    "largest": lambda x: x.amax(1),
    "twice": lambda x: torch.cat([x, x], 1),
    "logsigmoid": F.logsigmoid,
    "transposed": lambda x: x.mT.reshape(-1) * 2,
}


TANGENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one number": lambda random: torch.ones(()).expand(random.shape),
    "channels last": lambda random: random.to(memory_format=torch.channels_last) if random.dim() == 4 else random,
    "row-major": lambda random: random,
}


@pytest.mark.parametrize("channels_last", [True, False])
def test_gradients_are_laid_out_as_autograds(channels_last: bool) -> None:
    """Hooks see them, and what is above the graph. All operators in one graph, each of an image of its own."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    every = together(GRADIENTS)

    def gradients(backend: str) -> dict[str, Tensor]:
        torch._dynamo.reset()
        compiled, found = torch.compile(every, backend=backend, dynamic=False), {}
        for kind, tangent in TANGENTS.items():
            given = {name: (x.detach().requires_grad_(),) for name in GRADIENTS}
            outputs = [made[0] if isinstance(made, tuple) else made for made in compiled(given).values()]
            tangents = [
                tangent(torch.randn(made.shape, generator=torch.Generator().manual_seed(2))) for made in outputs
            ]
            leaves = [leaf for (leaf,) in given.values()]
            for name, gradient in zip(given, torch.autograd.grad(outputs, leaves, tangents), strict=True):
                found[f"{name}, tangents {kind}"] = gradient
        return found

    made, expected = gradients("rust_ort"), gradients("aot_eager")
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    assert {name: y.stride() for name, y in made.items()} == {name: y.stride() for name, y in expected.items()}


class Viewed(torch.autograd.Function):
    """Its gradient can only be made of one that lies as eager's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].t().view(-1).view(3, 5).t()


def test_a_function_above_the_graph_may_view_the_gradient() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch._dynamo.reset()
    torch.compile(lambda t: t.t().reshape(-1) * 2, backend="rust_ort")(Viewed.apply(x)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5, 3), 2.0))
