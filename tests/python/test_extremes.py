"""Values from the edges of a dtype: zeros with a sign, tails, what half precision rounds, sums that are long."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import together
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
NEAR_ZERO = torch.tensor([-0.0, 0.0, -0.3, 0.3, -1.0, 1.0, -2.5, math.inf, -math.inf])
TINY = torch.tensor([-1e-30, 1e-30, -1e-7, 1e-7, -1e-3, 1e-3, -0.5, 0.5])


def each_on_onnxruntime(function: Callable[..., Any], *calls: Sequence[Any]) -> list[Any]:
    """What the compiled function gives in each call, after a check that there is one graph and no node of it ran in
    eager."""
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    made = [compiled(*inputs) for inputs in calls]
    assert [graph.eager for graph in backend.graphs] == [[]]
    return made


def on_onnxruntime(function: Callable[..., Any], *inputs: Any) -> Any:
    return each_on_onnxruntime(function, inputs)[0]


def alike(
    functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor, **tolerance: float
) -> dict[str, tuple[Tensor, Tensor]]:
    """After a check that all of them give in one graph what eager gives: {name: (compiled, eager)}."""
    named = {f"{getattr(function, '__name__', '')} {index}": function for index, function in enumerate(functions)}
    every, given = together(named), dict.fromkeys(named, (x,))
    candidates, references = on_onnxruntime(every, given), every(given)
    torch.testing.assert_close(candidates, references, equal_nan=True, **tolerance)
    return {name: (candidates[name], references[name]) for name in named}


HAVE_A_ZERO: list[Callable[[Tensor], Tensor]] = [
    torch.trunc, torch.frac, torch.log1p, torch.expm1, functional.elu, functional.celu, functional.selu,
    lambda x: torch.where(x != 0, x, -0.0), lambda x: torch.where(x > 0, x, -x), lambda x: x.masked_fill(x > 0, -0.0),
    lambda x: (x * 0) + 0, lambda x: x - 0, lambda x: x.clamp(min=0), lambda x: x.clamp(max=0), torch.abs,
    lambda x: x.clamp(0, 1), lambda x: x.clamp(-1, 0), lambda x: x.clamp(-1, 1), functional.hardtanh,
    lambda x: functional.threshold(x, 0, -0.0), lambda x: x[:7].cumsum(0), lambda x: torch.heaviside(x, x), torch.relu,
    lambda x: torch.fmod(x, 1), lambda x: functional.pad(x, (1, 1), value=-0.0),
    lambda x: torch.full_like(x, -0.0) + x, lambda x: -0.0 // x, functional.relu6,
    lambda x: functional.leaky_relu(x, -0.3), lambda x: functional.leaky_relu(x, -0.0),
    lambda x: functional.celu(x, math.inf), lambda x: functional.elu(x, -1.0),
    lambda x: functional.prelu(x, torch.full((1,), -0.3, dtype=x.dtype)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_have_eagers_sign(dtype: torch.dtype) -> None:
    for name, (candidate, reference) in alike(HAVE_A_ZERO, NEAR_ZERO.to(dtype)).items():
        zeros = (candidate == 0) & (reference == 0)
        assert zeros.any() and torch.equal(candidate.signbit()[zeros], reference.signbit()[zeros]), name


HAVE_A_TAIL: list[Callable[[Tensor], Tensor]] = [
    torch.log1p, torch.expm1, functional.elu, functional.celu, lambda x: functional.celu(x, alpha=1e5),
    lambda x: functional.elu(x, alpha=1e5), functional.silu, torch.sigmoid, torch.tanh,
]  # fmt: skip


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 2e-6), (torch.float64, 1e-12), (torch.bfloat16, 8e-3)])
def test_small_results_are_right_to_their_last_digits(dtype: torch.dtype, rtol: float) -> None:
    x = torch.cat([TINY, torch.linspace(-30, 5, 71), torch.linspace(-0.99, 0.0, 9)]).to(dtype)
    alike(HAVE_A_TAIL, x, rtol=rtol, atol=0.0)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_erfc_has_a_tail(dtype: torch.dtype, rtol: float) -> None:
    x = torch.linspace(-5, 9, 57).to(dtype)
    candidate = on_onnxruntime(torch.erfc, x)
    torch.testing.assert_close(candidate, torch.erfc(x), rtol=rtol, atol=0.0)


ROUND_ONCE: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x + 1e-4) == x, lambda x: 1e5 / x, lambda x: (x * 65537.0).sin(), lambda x: x * 65536, lambda x: x / 1e5,
    lambda x: torch.lerp(x, -x, 0.3), lambda x: (x * 3 - x * 3.001) * 1000, lambda x: (x * x) - (x * x).float(),
    lambda x: torch.fmod(x, 0.3), lambda x: torch.addcmul(x, x, x, value=0.1), lambda x: (x + 2048 - 2048) / 3,
    lambda x: x > torch.tensor(0.3), lambda x: x == torch.tensor(0.3, dtype=torch.float64),
    lambda x: x < x.float().sum(), lambda x: x * torch.tensor(0.3), lambda x: torch.tensor(0.3) * x,
    lambda x: x * torch.tensor(257),
    lambda x: torch.tensor(1e5, dtype=torch.float64) * x, lambda x: torch.logit(x, 0.6), lambda x: 1.3 ** (x * 9),
    lambda x: torch.add(x, x * 80, alpha=0.1),
    torch.logit, lambda x: torch.logit(x, 0.01), lambda x: torch.xlogy(0.3, x.abs()), lambda x: torch.xlogy(x, x.abs()),
    lambda x: torch.xlogy(x, 3.3), lambda x: torch.special.xlog1py(x, x.abs()),
    lambda x: torch.div(x, torch.tensor(0.3, dtype=x.dtype), rounding_mode="trunc"),
    lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"), lambda x: torch.div(2.5, x, rounding_mode="trunc"),
    lambda x: torch.atan2((x * 3e4).to(torch.int32), x), lambda x: (x * 3e4).to(torch.int32) // x,
    lambda x: (x * 300) // x.flip(0), lambda x: 300.1 // x, lambda x: (x * 300) // torch.tensor(0.3, dtype=x.dtype),
    lambda x: torch.rsub(x, x * 80, alpha=0.1), lambda x: torch.rsub(x, 2, alpha=0.1),
    lambda x: x.index_add(0, torch.arange(2), x[:2] * 80, alpha=0.1),
    lambda x: torch.div(x, 0.3, rounding_mode="trunc"), lambda x: torch.log2(x.abs() + 2), lambda x: x == 2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_operator_rounds_to_half_precision_once(dtype: torch.dtype) -> None:
    alike(ROUND_ONCE, torch.linspace(-3, 3, 4096).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_translation_that_rounds_is_not_widened(dtype: torch.dtype) -> None:
    """What a user's own ONNX form casts down and up again stays rounded, on the CPU as everywhere."""
    from onnxscript import opset18 as op

    def rounded(self: Tensor) -> Tensor:
        down = op.Cast(self, to={torch.float16: 10, torch.bfloat16: 16}[dtype])
        return op.Sin(op.Cast(down, to=1))  # type: ignore[no-any-return]

    x = torch.linspace(0, 100, 1000)
    torch._dynamo.reset()
    backend = rust_ort.backend(custom_translations={"aten::sin": rounded})
    candidate = torch.compile(torch.sin, backend=backend, dynamic=False)(x)
    torch.testing.assert_close(candidate, torch.sin(x.to(dtype).float()))
    assert not torch.allclose(candidate, torch.sin(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 0.0, 1 / (x * -0.0)),
        lambda x: (x * -0.0, 1 / (x * 0.0)),
        lambda x: (torch.where(x > 0, 0.0, x), 1 / torch.where(x > 0, -0.0, x)),
        lambda x: (x.clamp(max=0.0), 1 / x.clamp(max=-0.0)),
        lambda x: (torch.full((2,), 0.0) + x[:2] * 0, 1 / torch.full((2,), -0.0)),
    ],
    ids=["mul", "mul_first", "where", "clamp", "full"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_two_zeros_of_a_graph_keep_their_signs(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    torch._dynamo.reset()
    for candidate, reference in zip(torch.compile(function, backend="rust_ort")(x), function(x), strict=True):
        assert torch.equal(candidate, reference) and torch.equal(candidate.signbit(), reference.signbit())


def test_a_long_running_sum_is_in_float64() -> None:
    x = torch.full((1_000_000,), 0.1)
    candidate = on_onnxruntime(lambda x: x.cumsum(0), x)
    torch.testing.assert_close(candidate, x.cumsum(0), rtol=0, atol=0)


def test_windows_are_eagers() -> None:
    windows = (torch.hann_window, torch.hamming_window, torch.blackman_window)
    named = {
        f"{window.__name__} of {length}{', periodic' if periodic else ''}": (window, length, periodic)
        for window, length, periodic in itertools.product(windows, (1, 2, 7), (True, False))
    }

    def function(x: Tensor) -> dict[str, Tensor]:
        return {name: x - window(length, periodic) for name, (window, length, periodic) in named.items()}

    candidates = torch.compile(function, backend="rust_ort", dynamic=False)(torch.ones(1))
    torch.testing.assert_close(candidates, function(torch.ones(1)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_a_range_of_integers_between_fractions(dtype: torch.dtype) -> None:
    ranges = [(-0.9, 2.1, 2.0), (2.1, -2.9, -1.0), (0.1, -7.9, -4.0), (0.1, 1.1, 1.0), (1.7, 9.3)]

    def function(x: Tensor) -> dict[str, Tensor]:
        return {f"{numbers}": torch.arange(*numbers, dtype=dtype) + x for numbers in ranges}

    x = torch.zeros(1, dtype=dtype)
    torch.testing.assert_close(on_onnxruntime(function, x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("function", [
    lambda x: math.nan**x, lambda x: torch.add(x, x, alpha=math.nan), lambda x: torch.rsub(x, x, alpha=math.nan),
    lambda x: torch.rsub(x, 2, alpha=math.nan), lambda x: x.index_add(0, torch.arange(2), x[:2], alpha=math.inf),
])  # fmt: skip
def test_a_number_that_is_none(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -2.0, 3.0], dtype=dtype)
    torch.testing.assert_close(on_onnxruntime(function, x), function(x), equal_nan=True)


def test_a_factor_of_integers_is_no_float() -> None:
    def function(x: Tensor) -> Tensor:
        return x.index_add(0, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), alpha=2**53 + 1)

    x = torch.zeros(2, dtype=torch.int64)
    torch.testing.assert_close(on_onnxruntime(function, x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("function", [
    lambda x: torch.rsub(x, 3, alpha=x.shape[0]), lambda x: torch.add(x, x, alpha=x.shape[0] / 3),
    lambda x: torch.index_add(x, 0, torch.arange(2), x[:2], alpha=x.shape[0]), lambda x: torch.pow(x.shape[0], x),
    lambda x: functional.pad(x[None], (x.shape[0] - 3, 2), mode="replicate")[0],
])  # fmt: skip
def test_a_number_that_is_a_size_is_not_fixed(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for size in (5, 7, 11):
        x = torch.linspace(-1, 1, size).to(dtype)
        # A factor that only the call knows is rounded with its product, not before: two steps.
        torch.testing.assert_close(compiled(x), function(x), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_grid_of_coordinates_that_lie_nowhere(mode: str, dtype: torch.dtype) -> None:
    def sampled(padding: str, align_corners: bool) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda image, grid: functional.grid_sample(
            image, grid, mode=mode, padding_mode=padding, align_corners=align_corners
        )

    far = torch.tensor([math.nan, math.inf, -math.inf, 1e5, -1e5, 0.3, -0.7, 1.0, -1.05])
    farther = torch.cat([far, torch.tensor([1e30, -1e30, 1e9])])
    grids = {  # the remainder of a reflection rounds away what such a number still knows
        padding: torch.stack(torch.meshgrid(places, places, indexing="ij"), -1)[None].to(dtype)
        for padding, places in (("zeros", farther), ("border", farther), ("reflection", far))
    }
    image = torch.linspace(-2, 3, 20, dtype=dtype).reshape(1, 1, 4, 5)
    infinite = torch.where(image > 2.5, math.inf, image)
    functions = {
        f"{padding}{', aligned' if align_corners else ''}": (sampled(padding, align_corners), grids[padding])
        for padding, align_corners in itertools.product(grids, (False, True))
    }
    every = together({name: function for name, (function, _) in functions.items()})
    given = [{name: (x, grid) for name, (_, grid) in functions.items()} for x in (image, infinite)]
    for candidates, each in zip(each_on_onnxruntime(every, *((each,) for each in given)), given, strict=True):
        torch.testing.assert_close(candidates, every(each), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_what_is_beside_a_diagonal_does_not_count() -> None:
    x = torch.full((4, 3), math.inf)
    x[0, 0], x[1, 1], x[2, 2] = -0.0, 2.0, 3.0
    made = on_onnxruntime(lambda x: torch.diagonal(x) * 1, x)
    assert isinstance(made, Tensor)
    torch.testing.assert_close(made, torch.tensor([0.0, 2.0, 3.0]))
    assert made[0].signbit()


@pytest.mark.parametrize("function", [torch.clamp_min, torch.clamp_max])
def test_a_bound_that_is_a_tensor_leaves_infinity(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    torch.testing.assert_close(
        on_onnxruntime(lambda x: function(x, torch.full((), 0.5)), x), function(x, torch.tensor(0.5)), equal_nan=True
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_gradients_of_a_grid_that_lies_nowhere(mode: str) -> None:
    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        image = torch.linspace(-2, 3, 20).reshape(1, 1, 4, 5).requires_grad_()
        far = torch.tensor([[0.3, -0.7], [math.nan, 0.1], [math.inf, 0.1], [1e30, 0.2], [-1e9, 0.4], [0.5, -math.inf]])
        grid = far[None, None].requires_grad_()
        return torch.autograd.grad(function(image, grid, mode=mode, align_corners=False).sum(), (image, grid))

    torch._dynamo.reset()
    candidates = gradients(torch.compile(functional.grid_sample, backend="rust_ort"))
    for candidate, reference in zip(candidates, gradients(functional.grid_sample), strict=True):
        torch.testing.assert_close(candidate, reference, equal_nan=True)


@pytest.mark.parametrize("function", [torch.sin, torch.cos, torch.sinc])
def test_sines_of_float64_are_right_to_their_last_digits(function: Callable[[Tensor], Tensor]) -> None:
    """Also near their zeros, where it is the remainder of a multiple of π."""
    multiples = torch.arange(-200_000, 200_001, 37, dtype=torch.float64) * (math.pi / 2)
    near = torch.cat([multiples, multiples + 1e-9, multiples.nextafter(multiples + 1), multiples * 1e5])
    x = torch.cat([near, torch.linspace(-30, 30, 10_001, dtype=torch.float64), torch.logspace(-300, 15, 4001).double()])
    if function is torch.sinc:
        x = x[x.abs() < 1000].round(decimals=1)
    made, eager = on_onnxruntime(function, x), function(x)
    torch.testing.assert_close(made, eager, rtol=2e-15, atol=0)
    zeros = torch.tensor([0.0, -0.0, math.inf, math.nan], dtype=torch.float64)
    made, eager = on_onnxruntime(function, zeros), function(zeros)
    torch.testing.assert_close(made, eager, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(torch.signbit(made[:2]), torch.signbit(eager[:2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2])
def test_where_a_stride_does_not_reach_an_infinite_kernel_is_nothing(dtype: torch.dtype, groups: int) -> None:
    """Zeros between the elements of a transposed convolution's input would be NaN there."""
    kernel = torch.tensor([math.inf, -0.5, math.nan, 1.0, -math.inf, 0.25], dtype=dtype).repeat(4 // groups)
    kernel = kernel.reshape(2, 2 // groups, 2, 3)
    image = torch.linspace(-2, 3, 2 * 2 * 5 * 6, dtype=dtype).reshape(2, 2, 5, 6)
    options = {"stride": 3, "padding": 1, "dilation": (2, 1), "groups": groups}

    def made(transposed: Callable[..., Tensor], plain: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        given = torch.ones(2, 2, 6, 7, dtype=dtype).requires_grad_()
        output = plain(given, kernel, **options)
        return transposed(image, kernel, output_padding=2, **options), torch.autograd.grad(output.sum(), given)[0]

    torch._dynamo.reset()
    functions = functional.conv_transpose2d, functional.conv2d
    compiled = (torch.compile(function, backend="rust_ort", fullgraph=True) for function in functions)
    for candidate, reference in zip(made(*compiled), made(*functions), strict=True):
        assert reference.isfinite().any() and not reference.isfinite().all()
        torch.testing.assert_close(candidate, reference, equal_nan=True)


def test_an_infinite_difference_is_one_coordinates() -> None:
    def gradient(function: Callable[..., Tensor]) -> Tensor:
        x, y = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[math.inf, 3.0]])
        return torch.autograd.grad(function(x, y, p=math.inf).sum(), x)[0]

    torch._dynamo.reset()
    candidate = gradient(torch.compile(torch.cdist, backend="rust_ort"))
    torch.testing.assert_close(candidate, gradient(torch.cdist), equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_soft_margin_loss_overflows_where_torchs_does(dtype: torch.dtype, reduction: str) -> None:
    def loss_and_gradient(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        x = torch.tensor([-100.0, -30.0, -5.0, 0.5, 3.0], dtype=dtype, requires_grad=True)
        made = function(x, torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0], dtype=dtype), reduction=reduction)
        return made.detach(), torch.autograd.grad(made.sum(), x)[0]

    torch._dynamo.reset()
    candidates = loss_and_gradient(torch.compile(functional.soft_margin_loss, backend="rust_ort"))
    for candidate, reference in zip(candidates, loss_and_gradient(functional.soft_margin_loss), strict=True):
        torch.testing.assert_close(candidate, reference, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_is_nan_beside_an_infinity(dtype: torch.dtype) -> None:
    x = torch.tensor([[math.inf, 1, math.nan], [0, math.nan, math.nan], [-math.inf, -math.inf, -math.inf]], dtype=dtype)
    for operator in (torch.logsumexp, torch.log_softmax, torch.softmax):
        made = on_onnxruntime(lambda x, operator=operator: operator(x, 1), x)
        torch.testing.assert_close(made, operator(x, 1), equal_nan=True)


def test_tanh_does_not_go_beyond_one() -> None:
    x = torch.linspace(-12, 12, 100_001)
    made = on_onnxruntime(torch.tanh, x)
    assert isinstance(made, Tensor) and made.abs().max() == 1
    torch.testing.assert_close(made, torch.tanh(x))


@pytest.mark.parametrize("function", [
    lambda x: torch.func.jvp(lambda t: t * 2.0, (x,), (torch.ones(2),))[1],
    lambda x: torch.func.hessian(lambda t: (t**3).sum())(x), lambda x: torch.func.jacfwd(lambda t: t**2 * 3 + 1)(x),
])  # fmt: skip
def test_tangents_of_numbers_are_left_out(function: Callable[[Tensor], Tensor]) -> None:
    """As zeros in memory they make NaN of infinities, and 0.0 of -0.0."""
    xs = [(torch.tensor([1.5, last]),) for last in (math.inf, 1e30, -0.3)]
    for made, (x,) in zip(each_on_onnxruntime(function, *xs), xs, strict=True):
        eager = function(x)
        torch.testing.assert_close(made, eager, equal_nan=True, msg=lambda text, x=x: f"{x}: {text}")
        assert torch.equal(torch.signbit(made), torch.signbit(eager)), x


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


BY_MINUS_ONE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[int, int], int]]] = {
    "x // y": (lambda x, y: x // y, lambda x, y: x // y),
    "x % y": (lambda x, y: x % y, lambda x, y: x % y),
    "fmod": (torch.fmod, lambda x, y: x - truncated(x, y) * y),
    "x // -1": (lambda x, y: x // -1, lambda x, y: -x),
    "trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), truncated),
    "x % -1": (lambda x, y: x % -1, lambda x, y: 0),
    "fmod by -1": (lambda x, y: torch.fmod(x, -1), lambda x, y: 0),
    "x // a tensor of rank 0": (lambda x, y: x // y[0], lambda x, y: -x),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_the_least_integer_by_minus_one(dtype: torch.dtype) -> None:
    """By Python's integers: some of torch's own kernels end the process there."""
    torch._dynamo.reset()
    least, largest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    xs = [least, 7, -7, 7, -7, 0, 5, largest, least, least]
    ys = [-1, -1, 2, -2, -2, -1, -3, -1, largest, 2]
    every = together({name: function for name, (function, _) in BY_MINUS_ONE.items()})
    compiled = torch.compile(every, backend=rust_ort.backend(on_unsupported="error"))
    made = compiled(dict.fromkeys(BY_MINUS_ONE, (torch.tensor(xs, dtype=dtype), torch.tensor(ys, dtype=dtype))))
    for name, (_, exact) in BY_MINUS_ONE.items():
        expected = [exact(x, y) for x, y in zip(xs, ys, strict=True)]
        assert made[name].tolist() == [least if number == -least else number for number in expected], name


@pytest.mark.parametrize("size", [16, 17])
def test_a_quotient_of_sizes_that_torch_makes_a_tensor_of(size: int) -> None:
    """Group norm's gradient multiplies by 1 / a product of sizes that are quotients rounded down."""
    x = torch.randn(3, 4, size, size + 2, generator=torch.Generator().manual_seed(0))

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        given = x.clone().requires_grad_()
        return torch.autograd.grad((function(given) * x[:, :, ::2, ::2]).sum(), given)[0]

    def function(x: Tensor) -> Tensor:
        return functional.group_norm(x[:, :, ::2, ::2], 2)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="rust_ort", dynamic=True, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(function))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_beside_a_quotient_of_sizes_a_graph_stays_whole(dtype: torch.dtype) -> None:
    """torch makes no tensor of such a number: it is one of rank 0 all the same, and nothing else is left to eager."""
    x = torch.arange(1, 34).to(dtype)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        number = x.shape[0] / 7
        first = (x * 2 / number + 1) * number
        return first - number, number - first, first > number, first.relu() ** number

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for given in (x, x[::2]):
        torch.testing.assert_close(compiled(given), function(given), equal_nan=True)
    for graph in backend.graphs:
        assert len(graph.parts) == 1
        assert {node.op for node in graph.eager} <= {"aten.scalar_tensor.default", "aten.full.default"}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_the_maximum_of_negative_infinities(spatial: int, training: bool) -> None:
    """ONNX Runtime's fast kernel begins with the lowest finite number."""
    x = torch.full((2, 1, *[5] * spatial), -math.inf)
    x.view(-1)[::11] = -1.0
    x.view(-1)[7] = torch.finfo(x.dtype).min
    x.view(-1)[-1] = math.nan
    pool = getattr(functional, f"max_pool{spatial}d")

    def function(x: Tensor) -> Tensor:
        return torch.cat([pool(x, *window).flatten() for window in ((2, 2, 0), (3, 1, 1), (5, 1, 0))])

    given = [x.clone().requires_grad_(training) for _ in range(2)]
    expected, candidate = function(given[0]), on_onnxruntime(function, given[1])
    torch.testing.assert_close(candidate, expected, rtol=0, atol=0, equal_nan=True)
    if training:
        tangent = torch.arange(1.0, 1 + expected.numel())
        gradients = [
            torch.autograd.grad(made, one, tangent)[0] for made, one in zip((expected, candidate), given, strict=True)
        ]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_where_the_maximum_of_negative_infinities_is(spatial: int) -> None:
    x = torch.full((2, 1, *[5] * spatial), -math.inf)
    x.view(-1)[::11] = -1.0
    pool = getattr(functional, f"max_pool{spatial}d")

    def function(x: Tensor) -> Tensor:
        places: Tensor = pool(x, 2, 2, return_indices=True)[1]
        return places

    torch.testing.assert_close(on_onnxruntime(function, x), function(x), rtol=0, atol=0)


def test_a_window_between_whose_taps_the_image_lies() -> None:
    x = torch.randn(2, 6, 1, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return functional.max_pool2d(x, (3, 2), (2, 1), (1, 1), dilation=(1, 2))

    torch._dynamo.reset()
    candidate, expected = torch.compile(function, backend="rust_ort")(x), function(x)
    torch.testing.assert_close(candidate, expected)
    made, gradient = (torch.autograd.grad(output.square().sum(), x)[0] for output in (candidate, expected))
    torch.testing.assert_close(made, gradient)


@pytest.mark.parametrize("weight", [torch.tensor(0.25), torch.tensor(0.25).double()])
def test_a_floating_weight_makes_lerp_of_integers_floats(weight: Tensor) -> None:
    x, end = torch.arange(5), torch.arange(5) * 7
    torch.testing.assert_close(on_onnxruntime(torch.lerp, x, end, weight), torch.lerp(x, end, weight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [0.0025, 0.1, 0.3])
def test_where_eps_cuts_a_logit_its_gradient_is_zero(eps: float, dtype: torch.dtype) -> None:
    """As the dtype has eps, and what it leaves of 1."""
    x = torch.linspace(0, 1, 4097).to(dtype).requires_grad_()
    candidate = torch.compile(lambda x: torch.logit(x, eps), backend="rust_ort", dynamic=False)
    made, expected = (torch.autograd.grad(each.sum(), x)[0] for each in (candidate(x), torch.logit(x, eps)))
    assert torch.equal(made == 0, expected == 0)
    torch.testing.assert_close(made, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)  # eager rounds each step


LARGE = 2.0**24
HALF = torch.linspace(-9, 9, 40).half()


@pytest.mark.parametrize(("function", "x"), [
    (lambda x: x.sum() * (x.shape[0] / 7), HALF), (lambda x: x.sum() / (x.shape[0] / 7), HALF),
    (lambda x: x[0] == x.shape[0] / 10, torch.tensor([0.3, 0, 0])),
    (lambda x: x == x.shape[0] / 3 * LARGE, torch.tensor([LARGE + 1, 0, 0])),
    (lambda x: x.sum() == x.shape[0] / 3 * LARGE, torch.tensor([16777217, 0, 0])),
    (lambda x: torch.add(x, x.shape[0] / 3, alpha=x.shape[0] ** 0.5), torch.ones(3)),
    (lambda x: x * torch.tensor(2049), torch.tensor(-2.25).half()),
    (lambda x: x * torch.tensor([2049]), HALF), (lambda x: x / torch.tensor([2049]), HALF),
    (lambda x: torch.lerp(x, x * 2, torch.tensor(0.3)), HALF),
])  # fmt: skip
def test_a_number_has_the_dtype_of_the_tensor_beside_it(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Of rank 0, too, and what comes of both."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="rust_ort", dynamic=True, fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


def test_a_logit_that_is_not_cut_has_no_gradient_beyond() -> None:
    x = torch.tensor([-0.1, 0.3, 1.1], requires_grad=True)
    compiled = torch.compile(lambda x: torch.logit(x, -1.0), backend="rust_ort")
    made, expected = (torch.autograd.grad(each.sum(), x)[0] for each in (compiled(x), torch.logit(x, -1.0)))
    torch.testing.assert_close(made, expected, equal_nan=True)


ANGLES = torch.tensor([
    math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, -1e-310, 1e-20, 0.5, -1.0, 1.0, 3.0, 1e15, 1e300, -1e300,
], dtype=torch.float64)  # fmt: skip


def test_angles_of_float64_are_exact_to_its_digits() -> None:
    y, x = torch.cartesian_prod(ANGLES, ANGLES).unbind(1)
    made = on_onnxruntime(lambda y, x: (torch.atan2(y, x), torch.atan(y)), y, x)
    for candidate, reference in zip(made, (torch.atan2(y, x), torch.atan(y)), strict=True):
        torch.testing.assert_close(candidate, reference, rtol=1e-15, atol=0.0, equal_nan=True)
        zeros = reference == 0
        assert zeros.any() and torch.equal(candidate.signbit()[zeros], reference.signbit()[zeros])


GAMMA: dict[str, Callable[[Tensor], Tensor]] = {
    "lgamma": torch.lgamma, "digamma": torch.digamma, "trigamma": lambda x: torch.polygamma(1, x),
}  # fmt: skip
ZEROS_AND_POLES = (1.0, 2.0, 1.4616321, 0.0, -0.504083, -1.0, -1.57349, -2.4570247, -3.0, 8.0)
"""Of lgamma and of digamma, and where a recurrence ends: what is near them shows each rounding."""


def gamma_arguments() -> Tensor:
    """float32: neighbours of `ZEROS_AND_POLES`, whole and half numbers, the smallest, the largest, and none."""
    ends = [torch.tensor(ZEROS_AND_POLES)]
    for towards in (-math.inf, math.inf):
        neighbours = torch.tensor(ZEROS_AND_POLES)
        for _ in range(4):
            neighbours = torch.nextafter(neighbours, torch.tensor(towards))
            ends.append(neighbours)
    edges = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45, -1e-45, 1e-20, 3.4e38, 2.0**23, 0.5 - 2.0**22])
    return torch.cat([*ends, edges, torch.arange(-40, 40) / 2, torch.logspace(-38, 38, 77), torch.linspace(-9, 9, 300)])


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_the_gamma_functions_are_right_to_two_ulp(name: str) -> None:
    """Beside float64: eager's float32 has no digit right beside a zero."""
    x = gamma_arguments()
    made, exact = on_onnxruntime(GAMMA[name], x), GAMMA[name](x.double()).float()
    spacing = torch.nextafter(exact.abs(), torch.tensor(math.inf)) - exact.abs()
    finite = exact.isfinite()
    assert ((made - exact).abs() <= 2 * spacing)[finite].all()
    assert torch.equal(made.nan_to_num(7.0)[~finite], exact.nan_to_num(7.0)[~finite])
    assert torch.equal(made.isfinite(), finite)
    eager = GAMMA[name](x)
    assert torch.equal(made.isnan(), eager.isnan()) and torch.equal(made.isinf(), eager.isinf())


def test_trigamma_is_eagers_beside_its_poles_too() -> None:
    """Eager multiplies by π in float32, and is finite there."""
    x = gamma_arguments()
    x = x[~(x < -(2.0**20))]
    torch.testing.assert_close(
        on_onnxruntime(GAMMA["trigamma"], x), GAMMA["trigamma"](x), rtol=1e-5, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_the_gamma_functions_of_every_dtype_are_eagers(dtype: torch.dtype, dynamic: bool) -> None:
    """And of what has no dimension."""
    x = torch.tensor(
        [math.nan, 0.5, 1.0, 2.0, 3.5, -0.5, -1.0, 40.0, -0.0] if dtype.is_floating_point else [0, 1, 2, 9]
    ).to(dtype)
    names = [name for name in GAMMA if dtype is not torch.bfloat16 or name != "trigamma"]
    functions = {f"{name} {rank}": GAMMA[name] for name in names for rank in (0, 1)}
    given = {f"{name} {rank}": (x if rank else x[1],) for name in names for rank in (0, 1)}
    if dtype is not torch.bool:  # which mvlgamma refuses
        functions["mvlgamma"], given["mvlgamma"] = multivariate, (x[3:4],)
    every = together(functions)
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = torch.compile(every, backend=backend, dynamic=dynamic)(given)
    torch.testing.assert_close(made, every(given), equal_nan=True)
    assert [graph.eager for graph in backend.graphs] == [[]]


def multivariate(x: Tensor) -> Tensor:
    return torch.mvlgamma(x, 2)


def test_heads_of_forecasting_models_run_on_onnxruntime() -> None:
    """Student's t and the negative binomial distribution: losses, and gradients of what parametrizes them."""
    generator = torch.Generator().manual_seed(0)
    raw, target = torch.randn(3, 4, 6, generator=generator), torch.arange(24.0).reshape(4, 6)

    def loss(raw: Tensor) -> Tensor:
        first, second, third = (functional.softplus(one) for one in raw.unbind(0))
        student = torch.distributions.StudentT(2 + first, third, second, validate_args=False)
        counts = torch.distributions.NegativeBinomial(first + 0.1, logits=third, validate_args=False)
        return -(student.log_prob(target) + counts.log_prob(target)).mean()

    def gradient(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        given = raw.clone().requires_grad_()
        made = function(given)
        return made.detach(), torch.autograd.grad(made, given)[0]

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    torch.testing.assert_close(gradient(torch.compile(loss, backend=backend)), gradient(loss))
    assert [graph.eager for graph in backend.graphs] == [[], []]
