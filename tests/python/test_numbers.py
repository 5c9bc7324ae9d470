"""Numbers beside tensors: those of a program, those that are made of sizes, and those that come out of tensors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support import together
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

HALVES = (torch.float16, torch.bfloat16)


Operator = Callable[..., Tensor]


def beside(operators: Iterable[Operator], numbers: Iterable[float | Tensor]) -> dict[str, tuple[Operator, Any]]:
    """{name: (operator, number)} of all pairs."""
    return {f"{one.__name__}, {number}": (one, number) for one, number in itertools.product(operators, numbers)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_beside_half_precision_is_what_torch_takes(dtype: torch.dtype) -> None:
    """torch rounds it in sums and differences, and keeps it in products and quotients; tensors of rank 0, too."""
    operators = [torch.add, torch.sub, torch.rsub, torch.mul, torch.div]
    pairs = beside(operators, [1e-4, 1 / 3, 65537.0, torch.tensor(1 / 3), torch.tensor(0.1).double()])
    x = torch.linspace(-3, 3, 4001).to(dtype)
    every = together({name: operator for name, (operator, _) in pairs.items()})
    given = {name: (x, number) for name, (_, number) in pairs.items()}
    torch._dynamo.reset()
    compiled = torch.compile(every, backend="rust_ort", dynamic=False)
    torch.testing.assert_close(compiled(given), every(given), rtol=0, atol=0)


BEYOND_FLOAT32 = (1e-50, -1e-50, 1 + 1e-9, 16777217.0, 0.3)
KEEP_A_FLOAT64: list[Operator] = [
    torch.pow, torch.gt, torch.eq, functional.leaky_relu, torch.clamp, torch.logit,
    lambda x, number: torch.lerp(x, x * 3, number), lambda x, number: functional.threshold(x, number, 0.7), torch.fmod,
    lambda x, number: torch.addcmul(x, x, x, value=number), lambda x, number: x.masked_fill(x > 0.5, number),
]  # fmt: skip


def test_a_number_that_float32_does_not_hold_is_what_torch_takes() -> None:
    """torch computes a power in float64, and rounds what is no exponent first."""
    pairs = {
        f"{index}, {number}": (one, number) for index, one in enumerate(KEEP_A_FLOAT64) for number in BEYOND_FLOAT32
    }
    x = torch.tensor([0.1, 0.0, -0.0, 1e-8, 0.3, 1.0, 0.5, -2.5, 1e38, math.inf, -math.inf, math.nan, 1e-45])
    every = together({name: one for name, (one, _) in pairs.items()})
    given = {name: (x, number) for name, (_, number) in pairs.items()}
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made, expected = torch.compile(every, backend=backend, dynamic=False)(given), every(given)
    torch.testing.assert_close(made, expected, rtol=3e-7, atol=0, equal_nan=True)
    assert [graph.eager for graph in backend.graphs] == [[]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_float_that_becomes_an_integer_does_so_exactly(dtype: torch.dtype) -> None:
    number = 16777217.0
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.masked_fill(x > 1, number), lambda x: torch.fill(x, number), lambda x: torch.full_like(x, number),
        lambda x: x.index_fill(0, torch.tensor([1]), number), lambda x: functional.threshold(x, 2.5, number),
        lambda x: functional.threshold(x, number, 7), lambda x: functional.hardtanh(x, -number, number),
        lambda x: torch.addcmul(x, x, x, value=16777217), lambda x: x.new_full((2,), number),
        lambda x: torch.addmv(x, torch.eye(5, dtype=x.dtype), x, beta=number),
    ]  # fmt: skip

    def every(x: Tensor) -> list[Tensor]:
        return [function(x) for function in functions]

    x = torch.tensor([0, 1, 2, 16777219, 2147483647], dtype=dtype)
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = torch.compile(every, backend=backend, dynamic=False)(x)
    torch.testing.assert_close(made, every(x), rtol=0, atol=0)
    assert [graph.eager for graph in backend.graphs] == [[]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_beside_half_precision_and_a_factor(dtype: torch.dtype) -> None:
    functions: list[Callable[[Tensor], Tensor]] = [
        functools.partial(torch.add, other=3, alpha=alpha) for alpha in (0.1, 0.3, 1e-8)
    ]

    def every(x: Tensor) -> list[Tensor]:
        return [function(x) for function in functions]

    x = torch.cat([torch.linspace(-3, 3, 1018), torch.tensor([0.1, 0.3, -0.1, -0.3, 0.5, 0.0])]).to(dtype)
    torch._dynamo.reset()
    made = torch.compile(every, backend="rust_ort", dynamic=False)(x)
    torch.testing.assert_close(made, every(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_size_beside_half_precision_may_be_none_of_its_numbers(dtype: torch.dtype) -> None:
    """A mean over tokens: 70,001 is infinite in float16."""

    def mean(x: Tensor) -> list[Tensor]:
        total = x.float().sum().to(x.dtype)
        return [total / x.shape[0], x[:3] / x.shape[0], (x[:3] * 1e-4).to(x.dtype) * x.shape[0]]

    x = torch.full((70001,), 0.9).to(dtype)
    torch._dynamo.reset()
    made = torch.compile(mean, backend="rust_ort", dynamic=True)(x)
    torch.testing.assert_close(made, mean(x), rtol=0, atol=0)


@pytest.mark.parametrize("function", [
    functional.hardtanh, functional.relu6, functional.hardswish, functional.elu, functional.celu, functional.selu,
])  # fmt: skip
def test_the_gradient_at_nan_is_that_of_the_vectorized_kernel(function: Callable[[Tensor], Tensor]) -> None:
    """Of 64 elements none is at an end that torch's kernel does one after the other."""
    x = torch.full((64,), math.nan, requires_grad=True)
    torch._dynamo.reset()
    made, expected = (
        torch.autograd.grad(one(x).sum(), x) for one in (torch.compile(function, backend="rust_ort"), function)
    )
    torch.testing.assert_close(made, expected, equal_nan=True)


@pytest.mark.parametrize("alpha", [True, 2, 0, 0.5])
def test_bools_are_added_to_with_a_factor(alpha: float) -> None:
    def function(x: Tensor) -> Tensor:
        return x.index_add(0, torch.tensor([0, 1]), x[2:], alpha=alpha)

    x = torch.tensor([False, False, True, False])
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="rust_ort")(x), function(x))


def test_large_half_precision_is_summed_as_integers() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.long().sum(), x.sum(dtype=torch.int64)

    x = torch.tensor([1, 2**60], dtype=torch.bfloat16)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="rust_ort")(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_before_half_precision_is_what_torch_takes(dtype: torch.dtype, dynamic: bool) -> None:
    """torch rounds it, to infinity too, whatever the operator is."""
    numbers = [1e-4, 1 / 3, 2**24 + 1, 100003.7, torch.tensor(1 / 3), torch.tensor(0.1).double()]
    pairs = beside([torch.add, torch.sub, torch.mul, torch.div, torch.pow], numbers)
    x = torch.linspace(-3, 3, 4001).to(dtype)
    every = together({name: operator for name, (operator, _) in pairs.items()})
    given = {name: (number, x) for name, (_, number) in pairs.items()}
    torch._dynamo.reset()
    compiled = torch.compile(every, backend="rust_ort", dynamic=dynamic)
    torch.testing.assert_close(compiled(given), every(given), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_beside_numbers_that_only_the_call_knows(dtype: torch.dtype) -> None:
    """torch makes tensors of them when the graph is traced already; none is rounded to half precision."""
    x = torch.randn(33, generator=torch.Generator().manual_seed(0)).to(dtype)

    def function(x: Tensor, number: float) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return (
            x * math.pi,
            x * number,
            x - number * 3,
            x / number,
            x / (number + n),
            x * ((-n // 2) * number),
            x * (n / number),
            torch.logaddexp(x, x * number),
            x > number,
        )

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="rust_ort", dynamic=True, fullgraph=True)
    for number in (0.7, -2.3):
        for made, expected in zip(compiled(x, number), function(x, number), strict=True):
            torch.testing.assert_close(made, expected, rtol=torch.finfo(dtype).eps / 2, atol=1e-7)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [
    lambda x, number: x ** (number / 3), lambda x, number: x / (number / x.shape[0]), lambda x, number: x > number / 3,
    lambda x, number: x * (x.shape[0] / 7 > 2), lambda x, number: torch.tensor([1.0, 2.0, 3.0]) * (x.shape[0] / 7),
])  # fmt: skip
def test_numbers_out_of_tensors_and_of_sizes(function: Callable[..., Tensor], dynamic: bool) -> None:
    x, scalar = torch.rand(7), torch.tensor(2.3)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(
            lambda x, y: function(x, y.item()), backend="rust_ort", dynamic=dynamic, fullgraph=True
        )
        torch.testing.assert_close(compiled(x, scalar), function(x, scalar.item()))


TAKE_TWO_NUMBERS: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "floor_divide")},
    "trunc": functools.partial(torch.div, rounding_mode="trunc"),
    "floor": functools.partial(torch.div, rounding_mode="floor"),
    "scaled": functools.partial(torch.add, alpha=2),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_two_numbers_are_a_tensor_of_rank_0(dynamic: bool) -> None:
    """Numbers of the program, sizes, and either beside a tensor of rank 0."""

    def function(x: Tensor, seven: Tensor) -> dict[str, Tensor]:
        n, m = x.shape
        pairs = [(16, 3), (-7, 2), (7.5, 2.0), (7, 2.5), (n, 3), (-7, n), (n, m), (n, 2.5), (seven, 2), (2.5, seven)]
        given = [*pairs, (n, seven), (seven.float(), n), (seven.half(), n)]
        return {
            f"{name} {index}": operator(*pair)
            for name, operator in TAKE_TWO_NUMBERS.items()
            for index, pair in enumerate(given)
        }

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)
    for shape in ((4, 3), (9, 5)) if dynamic else ((4, 3),):
        given = torch.ones(shape), torch.tensor(7)
        torch.testing.assert_close(compiled(*given), function(*given), rtol=0, atol=0)
    assert [graph.eager for graph in backend.graphs] == [[]]


def test_an_operator_of_numbers_alone_is_a_size() -> None:
    """torch knows its result, also where the operator comes apart for tensors: transformers' Longformer divides sizes
    so. Where it did not, AOTAutograd refused the graph, and Dynamo traced it again, shorter."""

    def halved(x: Tensor) -> tuple[Tensor, ...]:
        rows = torch.div(x.size(1), 4, rounding_mode="trunc")
        numbers = (torch.true_divide(x.size(1), 3), torch.add(2, 3), rows - 1)
        return (x.view(x.size(0), rows, 4, x.size(2)) * 2, x * torch.mul(2.5, 3), *numbers)

    torch._dynamo.reset()
    counters["aot_autograd"].clear()
    backend, x = rust_ort.backend(), torch.randn(2, 16, 8)
    torch.testing.assert_close(torch.compile(halved, backend=backend)(x), halved(x), rtol=0, atol=0)
    assert counters["aot_autograd"] == {"total": 1, "ok": 1}
    (graph,) = backend.graphs
    assert not graph.eager and graph.onnxruntime_nodes


def test_a_size_beside_a_tensor() -> None:
    operators = {
        **{name: getattr(torch, f"bitwise_{name}") for name in ("and", "or", "xor", "left_shift", "right_shift")},
        "remainder": torch.remainder,
    }

    def function(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        n = x.shape[0]
        first = {f"{name} of a size": operator(n, x) for name, operator in operators.items()}
        second = {f"{name} by a size": operator(x, n) for name, operator in operators.items()}
        return {**first, **second, "power": y**n, "half": y.half() + n, "difference": y.half() - n}

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for n in (4, 9):
        given = torch.arange(1, n + 1), torch.linspace(-2, 2, n)
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-6, atol=0)
    assert [graph.eager for graph in backend.graphs] == [[]]


def test_a_quotient_of_rank_0_in_half_precision() -> None:
    x, divisor = torch.tensor(-33.78).half(), torch.tensor(70000)
    torch._dynamo.reset()
    compiled = torch.compile(torch.div, backend="rust_ort", dynamic=False)
    torch.testing.assert_close(compiled(x, divisor), torch.div(x, divisor), rtol=0, atol=0)


@pytest.mark.parametrize(
    "exponent", [torch.tensor(2.3007), torch.tensor(2.3007).double(), torch.tensor(3), torch.ones(1)]
)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_a_power_by_a_tensor_of_one_element(dtype: torch.dtype, exponent: Tensor) -> None:
    """It becomes what the result is before the power is taken."""
    x = (torch.rand(64, generator=torch.Generator().manual_seed(0)) * 300).to(dtype)
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(torch.pow, backend=backend, dynamic=False)
    torch.testing.assert_close(compiled(x, exponent), torch.pow(x, exponent), rtol=1e-6, atol=0)
    assert not any(graph.eager for graph in backend.graphs)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
@pytest.mark.parametrize("function", [
    lambda x, t: x ** (t.item() / 4), lambda x, t: x ** (1 / t.item()), lambda x, t: x ** (x.shape[0] / 12 * t.item()),
])  # fmt: skip
def test_roots_by_a_number_that_only_the_call_knows(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Eager's kernel takes a root where the exponent is 0.5 or -0.5: of -inf and -0.0 another number than a power."""
    x = torch.tensor([-math.inf, -0.0, 2.0]).to(dtype)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="rust_ort")
        for number in (6, 2, -2):
            made, expected = compiled(x, torch.tensor(number)), function(x, torch.tensor(number))
            torch.testing.assert_close(made, expected, equal_nan=True)
            real = ~expected.isnan()
            assert torch.equal(made.signbit()[real], expected.signbit()[real])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("function", [
    lambda x: x.clamp(0.0, x.shape[0] / 4), lambda x: x.clamp(-x.shape[0] / 4, x.shape[0] / 4),
    lambda x: functional.hardtanh(x, -1.0, x.shape[0] / 4), lambda x: functional.leaky_relu(x, x.shape[0] / 40),
    lambda x: torch.copysign(x, x.shape[0] / 4), lambda x: torch.copysign(x, -x.shape[0] / 4),
    lambda x: x.abs() ** (x.shape[0] / 4), lambda x: x > x.shape[0] / 4,
])  # fmt: skip
def test_a_number_made_of_sizes_fixes_none(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for size in (5, 7, 9, 4):
        x = torch.linspace(-3, 3, size).to(dtype)
        torch.testing.assert_close(compiled(x), function(x), rtol=2e-3 if dtype is torch.float16 else 1e-6, atol=0)
    assert len(backend.graphs) == 1


def test_a_number_compared_with_half_precision_fixes_no_graph() -> None:
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(torch.gt, backend=backend, dynamic=True, fullgraph=True)
    x = torch.linspace(-3, 3, 7).half()
    for number in (0.3, 0.7, x[1].item()):
        torch.testing.assert_close(compiled(x, number), torch.gt(x, number))
    assert len(backend.graphs) == 1


def test_lerp_goes_from_the_nearer_end() -> None:
    start, end = torch.tensor([1.0, -0.0, 3.0, -5.0]), torch.tensor([-0.0, -0.0, 7.0, 8.0])
    given: dict[str, tuple[Any, ...]] = {}
    for weight in (0.0, 0.3, 0.5, 1.0, -2.0, 7.0):
        given[f"{weight}"] = start, end, weight
        given[f"a tensor of {weight}"] = start, end, torch.full_like(start, weight)
    every = together(dict.fromkeys(given, torch.lerp))
    torch._dynamo.reset()
    made, expected = torch.compile(every, backend="rust_ort")(given), every(given)
    torch.testing.assert_close(made, expected)
    for name, one in made.items():
        assert torch.equal(one.signbit(), expected[name].signbit()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_a_product_of_which_nothing_is_taken(dtype: torch.dtype) -> None:
    """Eager's kernels leave it out, NaN in it too; not those of half precision."""
    products: dict[str, Callable[..., Tensor]] = {
        "addmm": lambda x, w, b: torch.addmm(w, x, w, alpha=0, beta=b),
        "addmm to a row": lambda x, w, b: torch.addmm(w[0], x, w, alpha=0, beta=b),
        "addmm to NaN": lambda x, w, b: torch.addmm(x, x, w, alpha=0, beta=b),
        "addmv": lambda x, w, b: torch.addmv(w[0], x, w[0], alpha=0, beta=b),
        "addbmm": lambda x, w, b: torch.addbmm(w, x[None], w[None], alpha=0, beta=b),
        "baddbmm": lambda x, w, b: torch.baddbmm(w[None], x[None], w[None], alpha=0, beta=b),
    }
    x, w = torch.full((2, 2), math.nan, dtype=dtype), torch.eye(2, dtype=dtype)
    pairs = {f"{name}, beta {beta}": (function, beta) for name, function in products.items() for beta in (0, 1, 2)}
    every = together({name: function for name, (function, _) in pairs.items()})
    given = {name: (x, w, beta) for name, (_, beta) in pairs.items()}
    torch._dynamo.reset()
    compiled = torch.compile(every, backend="rust_ort", dynamic=False)
    torch.testing.assert_close(compiled(given), every(given), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES, torch.int32, torch.int64])
def test_what_a_product_is_not_added_to_is_not_read(dtype: torch.dtype) -> None:
    """Of floats it is NaN; integers have factors as well."""
    sums: dict[str, Callable[..., Tensor]] = {
        "addmm": lambda c, x, w, **factors: torch.addmm(c, x, w, **factors),
        "addmm to a row": lambda c, x, w, **factors: torch.addmm(c[0], x, w, **factors),
        "addmv": lambda c, x, w, **factors: torch.addmv(c[0], x, w[0], **factors),
        "addmv to a number": lambda c, x, w, **factors: torch.addmv(c[0, 0], x, w[0], **factors),
        "addr": lambda c, x, w, **factors: torch.addr(c, x[0], w[0], **factors),
        "addbmm": lambda c, x, w, **factors: torch.addbmm(c, x[None], w[None], **factors),
        "baddbmm": lambda c, x, w, **factors: torch.baddbmm(c[None], x[None], w[None], **factors),
    }
    fill, betas = (math.nan, (0,)) if dtype.is_floating_point else (7, (0, 1, 2))
    factors = [{"beta": beta, "alpha": alpha} for beta in betas for alpha in (0, 1, 3)]
    c, x = torch.full((2, 2), fill, dtype=dtype), torch.arange(4).reshape(2, 2).to(dtype)

    def every(c: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {f"{name}, {given}": one(c, x, x + 1, **given) for name, one in sums.items() for given in factors}

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(every, backend=backend, dynamic=False)
    torch.testing.assert_close(compiled(c, x), every(c, x), rtol=0, atol=0)
    assert [graph.eager for graph in backend.graphs] == [[]]


@pytest.mark.parametrize("function", [
    lambda x, w: (x * 1e-20) @ w, lambda x, w: x @ (w * 1e-20), lambda x, w: ((x * 1e20) @ w) * 1e-30,
    lambda x, w: (x / 1e20) @ w, lambda x, w: (x.mT * 1e-20) @ w, lambda x, w: torch.bmm(x[None] * 1e-20, w[None]),
])  # fmt: skip
def test_a_factor_stays_where_the_program_has_it(function: Callable[..., Tensor]) -> None:
    """After the product it would come too late, or too early."""
    x, w = torch.full((2, 2), 1e25), torch.full((2, 2), 1e25)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="rust_ort")(x, w), function(x, w))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_the_bucket_of_a_number_of_rank_0(dtype: torch.dtype, right: bool) -> None:
    def function(x: Tensor, boundaries: Tensor) -> Tensor:
        return torch.bucketize(x, boundaries, right=right) + 1

    x, boundaries = torch.tensor(3, dtype=dtype), torch.tensor([1, 3, 3, 7], dtype=dtype)
    torch._dynamo.reset()
    made = torch.compile(function, backend="rust_ort", dynamic=False)(x, boundaries)
    torch.testing.assert_close(made, function(x, boundaries))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_takes_its_windows_from_arguments(transposed: bool) -> None:
    """As symbols they are guarded to be the numbers they are: each has a graph of its own, of any size of images."""
    convolution = functional.conv_transpose2d if transposed else functional.conv2d
    # Small, so that all is exact. The sizes of a parameter are no symbols: of more symbols torch reasons for minutes.
    weight = torch.nn.Parameter(torch.randint(-2, 3, (4, 2, 5, 4)).float())

    def function(x: Tensor, weight: Tensor, stride: int, padding: int, dilation: int, groups: int) -> Tensor:
        return convolution(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)

    made = rust_ort.Backend()
    compiled = torch.compile(function, backend=made, dynamic=True)
    for size in (17, 16):
        image = torch.randint(-2, 3, (7, 4, size, 15)).float().requires_grad_()
        for windows in ((2, 0, 2, 2), (3, 0, 2, 2), (2, 0, 3, 2)):
            expected, got = (f(image, weight, *windows) for f in (function, compiled))
            torch.testing.assert_close(got, expected)
            inputs = (image, weight)
            torch.testing.assert_close(
                torch.autograd.grad(got.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs)
            )
    forward = [graph for graph in made.graphs if graph.direction == "forward"]
    assert [graph.calls for graph in forward] == [2, 2, 2] and not [node for graph in forward for node in graph.eager]
