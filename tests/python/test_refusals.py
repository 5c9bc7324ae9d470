"""What eager refuses is refused here, too, and what it does without elements is what it does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import together
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

HALF, BYTE, FLOAT = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.uint8), torch.ones(2)
FIRST = torch.tensor([0])
TWENTY = torch.arange(20.0)


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    torch._dynamo.reset()
    made: Callable[..., object] = torch.compile(function, backend=rust_ort.Backend(), dynamic=False)
    return made


@pytest.mark.parametrize(("function", "x"), [
    (lambda x: torch.full_like(x, 1e6), HALF), (lambda x: torch.full((2,), 1e6, dtype=x.dtype), HALF),
    (lambda x: x.new_full((2,), 1e6), HALF), (lambda x: torch.scalar_tensor(300, dtype=x.dtype) + x, BYTE),
    (lambda x: torch.linspace(0, 1e6, 3, dtype=x.dtype), HALF), (lambda x: x.masked_fill(x > 0, 1e6), HALF),
    (lambda x: x.clone().fill_(1e6), HALF), (lambda x: x.scatter(0, FIRST, 1e6), HALF),
    (lambda x: x.index_fill(0, FIRST, 1e6), HALF), (lambda x: functional.pad(x, (1, 1), value=1e6), HALF),
    (lambda x: x.clamp(-1e6, 1e6), HALF), (lambda x: functional.threshold(x, 2.0, 1e6), HALF),
    (lambda x: torch.add(x, x, alpha=1e6), HALF), (lambda x: torch.full_like(x, 300), BYTE),
    (lambda x: x.masked_fill(x > 0, 300), BYTE), (lambda x: x.clamp(-5, 300), BYTE),
    (lambda x: torch.add(x, x, alpha=300), BYTE), (lambda x: functional.hardtanh(x, -1e40, 1e40), FLOAT),
    (lambda x: torch.full_like(x, 3e38), torch.ones(0, dtype=torch.float16)),
])  # fmt: skip
def test_a_number_that_overflows_is_refused(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        function(x)
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(function)(x)


TAKE_WHAT_OVERFLOWS: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
    (lambda x: x // 300, BYTE), (lambda x: 300 // x, BYTE), (lambda x: torch.div(x, 300, rounding_mode="trunc"), BYTE),
    (lambda x: torch.div(x, 300, rounding_mode="floor"), BYTE), (lambda x: x // 1e39, FLOAT),
    (lambda x: x % 1e39, FLOAT),
    (lambda x: 1e6 // x, HALF), (lambda x: torch.xlogy(x, 1e39), FLOAT), (lambda x: torch.xlogy(1e39, x), FLOAT),
    (lambda x: torch.special.xlog1py(x, 1e39), FLOAT), (lambda x: torch.special.xlog1py(1e39, x), FLOAT),
    (lambda x: torch.nan_to_num(x, posinf=1e39), FLOAT),
    (lambda x: x + 1e6, HALF), (lambda x: x < 1e6, HALF), (lambda x: torch.where(x > 5, x, 1e6), HALF),
]  # fmt: skip


def test_a_number_that_overflows_is_taken_where_eager_takes_it() -> None:
    named = {f"function {number}": each for number, each in enumerate(TAKE_WHAT_OVERFLOWS)}
    every = together({name: function for name, (function, _) in named.items()})
    given = {name: (x,) for name, (_, x) in named.items()}
    torch.testing.assert_close(compiled(every)(given), every(given), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.int32, torch.float32])
@pytest.mark.parametrize("function", [
    lambda x, n: x.masked_fill(x > 0, n), lambda x, n: x.clamp(max=n), lambda x, n: torch.full((3,), n, dtype=x.dtype),
    lambda x, n: torch.add(x, x, alpha=n), lambda x, n: x.index_fill(0, FIRST, n), lambda x, n: torch.full_like(x, n),
    lambda x, n: x.new_full((2,), n), lambda x, n: functional.pad(x, (1, 1), value=n), lambda x, n: x + n,
    lambda x, n: torch.where(x > 0, x, n), lambda x, n: functional.threshold(x, 2, n),
])  # fmt: skip
def test_a_number_that_may_overflow_is_eagers(function: Callable[[Tensor, int], Tensor], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    made = torch.compile(function, backend=rust_ort.Backend(), dynamic=True)
    x = torch.tensor([1, 2, 0, 3]).to(dtype)
    for number in (5, 70000, 2**40, -3):
        try:
            eager = function(x, number)
        except RuntimeError as refused:
            with pytest.raises(type(refused), match="without overflow"):
                made(x, number)
        else:
            torch.testing.assert_close(made(x, number), eager, rtol=0, atol=0)


@pytest.mark.parametrize("function", [
    lambda x, n: functional.elu(x, n / 7), lambda x, n: x.clamp(max=n / 3), lambda x, n: torch.add(x, x, alpha=n / 3),
    lambda x, n: x.half().clamp(max=n), lambda x, n: x.masked_fill(x > 0, n), lambda x, n: torch.full_like(x, n),
])  # fmt: skip
def test_asking_guards_on_no_number(function: Callable[[Tensor, int], Tensor]) -> None:
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = torch.compile(function, backend=backend, dynamic=True)
    for number in (4, 6, 9, 11):
        torch.testing.assert_close(made(torch.ones(5), number), function(torch.ones(5), number))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("function", [
    lambda x, n: functional.elu(x, n * 1e38), lambda x, n: torch.addcmul(x, x, x, value=n * 1e38),
    lambda x, n: torch.celu(x, n * 1e38),
])  # fmt: skip
def test_a_number_computed_of_a_size_may_overflow(function: Callable[[Tensor, int], Tensor]) -> None:
    torch._dynamo.reset()
    made = torch.compile(function, backend=rust_ort.Backend(), dynamic=True)
    for number in (4, 5):
        with pytest.raises(RuntimeError, match="without overflow"):
            made(torch.ones(3), number)


def test_the_range_that_a_size_was_given_is_known() -> None:
    def function(x: Tensor) -> Tensor:
        return x.half().masked_fill(x > 0, x.shape[0])

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    x = torch.randn(5, 2)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=512)
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
    assert not backend.graphs[0].eager


BOOLS = torch.tensor([True, False])
ASKED_ALIKE: dict[str, list[Callable[[Tensor], Any]]] = {
    "clamp": [lambda x: x.clamp(False, True), lambda x: x.clamp(0, 2), lambda x: x.clamp(0.5)],
    "add": [lambda x: torch.add(x, x, alpha=2), lambda x: torch.add(x, x, alpha=True)],
    "div": [
        lambda x: torch.div(x, x, rounding_mode="trunc"),
        lambda x: torch.div(x, BOOLS | True, rounding_mode=None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ASKED_ALIKE)
def test_what_is_known_of_a_kernel_is_of_its_arguments(name: str, backwards: bool) -> None:
    """Whichever was asked first."""
    for function in ASKED_ALIKE[name][:: -1 if backwards else 1]:
        try:
            eager = function(BOOLS)
        except RuntimeError as refused:
            with pytest.raises(type(refused)):
                compiled(function)(BOOLS)
        else:
            torch.testing.assert_close(compiled(function)(BOOLS), eager, equal_nan=True)


def test_asking_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*freedom.*")
        made = compiled(lambda x: torch.var(x, correction=10))(TWENTY)
    torch.testing.assert_close(made, torch.var(TWENTY, correction=10))


def test_what_trusts_its_lengths_is_not_asked() -> None:
    """With smaller tensors it would read beyond them."""
    log_probs = torch.randn(2000, 64, 5).log_softmax(2)
    targets = torch.randint(1, 5, (64, 100))
    lengths = [[2000] * 64, [100] * 64]
    losses, alpha = torch.ops.aten._ctc_loss(log_probs, targets, *lengths)

    def function(grad: Tensor) -> Tensor:
        return torch.ops.aten._ctc_loss_backward(grad, log_probs, targets, *lengths, losses, alpha, 0) * 2

    torch.testing.assert_close(compiled(function)(torch.ones(64)), function(torch.ones(64)))


@pytest.mark.parametrize(("function", "dtype"), [
    (lambda x: torch.celu(x), torch.int32),
    (lambda x: functional.huber_loss(x, x + 1), torch.int64), (lambda x: functional.tanhshrink(x), torch.bool),
    (lambda x: torch.lerp(x, x, 0.5), torch.int32), (lambda x: functional.smooth_l1_loss(x, x), torch.int32),
])  # fmt: skip
def test_a_dtype_without_a_kernel_is_refused(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.ones(3).to(dtype)
    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(RuntimeError):
        compiled(function)(x)


@pytest.mark.parametrize(("function", "shape", "source"), [
    (lambda x, y: x.select_scatter(y, 0, 0), (3, 2), (1,)), (lambda x, y: x.slice_scatter(y, 0, 0, 2), (3, 2), (2,)),
    (lambda x, y: x.slice_scatter(y, 2, 0, 2), (3, 1, 3, 1), (3, 1, 1, 1)),
    (lambda x, y: x.diagonal_scatter(y), (3, 3), (1,)), (lambda x, y: x.index_add(0, FIRST, y), (3, 3), (1, 1)),
    (lambda x, y: x.put(torch.tensor([0, 1]), y), (3, 3), (1,)),
    (lambda x, y: x.index_add(0, FIRST, y), (), (1,)), (lambda x, y: x.index_add(0, FIRST[0], y), (5,), ()),
    (lambda x, y: x.index_select(0, y.long()), (3, 3), (1, 1)), (lambda x, y: torch.logsumexp(x, []) + y, (3,), ()),
    (functional.soft_margin_loss, (3, 1), (1, 4)),
    (lambda x, y: x.index_put((y > 2,), y[:1]), (3, 1), (1,)), (lambda x, y: x.index_put((y > 0,), y), (3, 1), (1,)),
    (lambda x, y: torch.ops.aten._softmax_backward_data(y, x, 0, torch.float32), (3, 3), ()),
])  # fmt: skip
def test_a_tensor_of_another_shape_is_refused(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], source: tuple[int, ...]
) -> None:
    x, y = torch.ones(shape), torch.ones(source)
    with pytest.raises((RuntimeError, IndexError)) as refused:
        function(x, y)
    with pytest.raises(refused.type):
        compiled(function)(x, y)


@pytest.mark.parametrize(("function", "inputs"), [
    (functional.binary_cross_entropy, ([0.5], [3.0])), (functional.binary_cross_entropy, ([1.0000001], [1.0])),
    (functional.binary_cross_entropy, ([math.nan], [1.0])),
    (lambda x, y: x.repeat_interleave(y.long(), output_size=3), ([0.0, 1.0, 2.0], [1.0, 2.0, 1.0])),
    (lambda x, y: x.repeat_interleave(y.long(), output_size=5), ([0.0, 1.0, 2.0], [1.0, 2.0, 1.0])),
])  # fmt: skip
@pytest.mark.parametrize("training", [False, True])
def test_a_value_that_eager_refuses_is_refused(
    function: Callable[[Tensor, Tensor], Tensor], inputs: tuple[list[float], list[float]], training: bool
) -> None:
    x, y = map(torch.tensor, inputs)
    x.requires_grad_(training)
    with pytest.raises(RuntimeError) as refused:
        function(x, y)
    with pytest.raises(RuntimeError) as ours:
        compiled(function)(x, y)
    assert str(ours.value) == str(refused.value)


@pytest.mark.parametrize(("function", "shapes"), [
    (lambda x, y: x.index_add(0, FIRST, y), [(0, 1), (1, 1)]),
    (lambda x, y: x.index_add(0, FIRST, y), [(1, 0), (1, 0)]),
    (lambda x, y: x.index_put((FIRST,), y, accumulate=True), [(1, 0), (1, 0)]),
    (lambda x, y: x[FIRST, :, FIRST] + y, [(1, 0, 1), (1, 0)]), (lambda x, y: torch.pow(2, x) + y, [(1, 0), (1, 0)]),
    (lambda x, y: functional.nll_loss(x.log_softmax(1), FIRST, y, ignore_index=0), [(1, 0), (0,)]),
    (lambda x, y: torch.linalg.multi_dot([x, y, x]), [(3, 0), (0, 3)]),
    (lambda x, y: functional.smooth_l1_loss(x, y), [(3, 0), (3, 0)]), (functional.soft_margin_loss, [(0, 3), (0, 3)]),
])  # fmt: skip
def test_without_elements_it_is_eagers(
    function: Callable[[Tensor, Tensor], Tensor], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.ones(shape) for shape in shapes]
    torch.testing.assert_close(compiled(function)(*inputs), function(*inputs), equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tensor_of_which_the_size_alone_is_used_is_not_computed(dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return x[1:].reshape(x[1:].shape)

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    x = torch.randn(5, 2)
    made = torch.compile(function, backend=backend, dynamic=dynamic)(x)
    torch.testing.assert_close(made, function(x), rtol=0, atol=0)
    assert made.storage_offset() == 2 and made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


ROWS, IMAGE = TWENTY.reshape(4, 5).cos(), TWENTY.reshape(1, 1, 4, 5).cos()


@pytest.mark.parametrize("function", [
    lambda x: functional.smooth_l1_loss(x, -x, beta=-1.0), lambda x: functional.celu(x, alpha=0.0),
    lambda x: torch.heaviside(x, x.double()),
    lambda x: functional.linear(x, x.half()), lambda x: functional.batch_norm(x, ROWS[0].double(), ROWS[1].double()),
    lambda x: functional.conv_transpose2d(IMAGE, IMAGE, output_padding=1),
    lambda x: functional.conv_transpose2d(IMAGE, IMAGE, stride=2, output_padding=(1, 2)),
    lambda x: torch.mvlgamma(x + 2, 0),
    lambda x: functional.group_norm(x, 1, ROWS[0].double(), ROWS[0].double()),
    lambda x: functional.group_norm(x, 1, ROWS[0], ROWS[0].half()),
    lambda x: functional.pad(x, (3, -7)), lambda x: functional.pad(x, (0, 0, -6, 3)),
    lambda x: x.half().masked_fill(x > 0, torch.tensor(-1e5)),
    lambda x: x.int().masked_fill(x > 0, torch.tensor(2**40)),
])  # fmt: skip
def test_what_kernels_refuse_and_decompositions_take(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError) as eagers:
        function(ROWS)
    with pytest.raises(RuntimeError) as ours:
        compiled(function)(ROWS)
    assert str(ours.value).splitlines()[0] == str(eagers.value).splitlines()[0]


TAKEN: list[Callable[[Tensor], Tensor]] = [
    lambda x: functional.smooth_l1_loss(x, -x, beta=0.0), lambda x: functional.celu(x, alpha=-1.0),
    lambda x: functional.pad(x, (3, -5, -2, -2)),
    lambda x: x.half().masked_fill(x > 0, torch.tensor(-math.inf)),
    lambda x: x.half().masked_fill(x > 0, torch.tensor(-1e4)),
    lambda x: x.int().masked_fill(x > 0, torch.tensor(7)),
    lambda x: functional.pad(TWENTY.reshape(1, 20), (-3, -3)), lambda x: functional.pad(IMAGE, (-2, -2, 3, 0)),
    lambda x: functional.conv_transpose2d(IMAGE, IMAGE, stride=2, output_padding=1),
    lambda x: functional.conv_transpose2d(IMAGE, IMAGE, dilation=2, output_padding=1),
    lambda x: functional.group_norm(x.half(), 1, ROWS[0], ROWS[0]),
    lambda x: functional.group_norm(x, 1, None, ROWS[0]),
]  # fmt: skip


def test_what_kernels_take() -> None:
    named = {f"function {number}": function for number, function in enumerate(TAKEN)}
    every, given = together(named), dict.fromkeys(named, (ROWS,))
    known = len(rust_ort.graphs())
    torch.testing.assert_close(compiled(every)(given), every(given))
    assert [graph.eager for graph in rust_ort.graphs()[known:]] == [[]]


def test_a_loss_of_two_dtypes_has_eagers() -> None:
    """Fake tensors promote them; what reads such a loss in the graph is refused."""

    def loss(x: Tensor) -> Tensor:
        return functional.huber_loss(x, x.double() + 1)

    torch.testing.assert_close(compiled(loss)(ROWS), loss(ROWS))
    with pytest.raises(rust_ort.ClientError, match="float64"):
        compiled(lambda x: loss(x) * 2)(ROWS)


def test_the_gradient_of_padding_runs_on_onnx_runtime() -> None:
    known = len(rust_ort.graphs())
    x = TWENTY.reshape(1, 1, 4, 5).clone().requires_grad_()
    compiled(lambda x: functional.pad(x, (3, 3, 3, 3)).square())(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    assert [graph.direction for graph in rust_ort.graphs()[known:] if not graph.eager] == ["forward", "backward"]


def test_an_operator_that_trusts_its_sizes_is_not_asked() -> None:
    """Asked with smaller weights it would write beyond its memory."""
    model, x = torch.nn.LSTM(20, 64).eval(), torch.randn(5, 2, 20)
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        torch.testing.assert_close(compiled(model)(x)[0], model(x)[0])


THREE, ZEROS = torch.tensor([1, 2, 3]), torch.tensor([1, 0, 2])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("function", [
    lambda x, y: x // y, lambda x, y: x % y, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: 7 // y, lambda x, y: 7 % y,
])  # fmt: skip
def test_an_integer_divided_by_zero(function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    x, y = THREE.to(dtype), ZEROS.to(dtype)
    made = compiled(function)
    for good in (x, x + 1):
        torch.testing.assert_close(made(x, good), function(x, good))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(x, y)
        with pytest.raises(rust_ort.BadOperand, match="ZeroDivisionError: an integer is divided") as caught:
            made(x, y)
        assert isinstance(caught.value, RuntimeError) and caught.value.node


@pytest.mark.parametrize("function", [torch.remainder, torch.fmod, torch.floor_divide])
def test_nothing_is_divided_by_zero(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    for x, y in [(THREE[:0], ZEROS[1:2]), (THREE[:0].reshape(0, 1), ZEROS)]:
        assert compiled(function)(x, y).shape == function(x, y).shape


@pytest.mark.parametrize("function", [
    lambda x, mask, values: x.masked_scatter(mask, values), lambda x, mask, values: x.index_put((mask,), values),
])  # fmt: skip
def test_fewer_values_than_places(function: Callable[..., Tensor]) -> None:
    x, mask = torch.zeros(4), torch.tensor([True, False, True, True])
    made = compiled(function)
    torch.testing.assert_close(made(x, mask, FLOAT.new_ones(3)), function(x, mask, FLOAT.new_ones(3)))
    for short in (2, 0):
        with pytest.raises((RuntimeError, IndexError)):
            function(x, mask, FLOAT.new_ones(short))
        with pytest.raises(RuntimeError):
            made(x, mask, FLOAT.new_ones(short))


@pytest.mark.parametrize("function", [lambda x, n: torch.add(x, x, alpha=n), lambda x, n: x.clone().sub_(1, alpha=n)])
def test_a_factor_that_only_the_call_knows_is_refused_beside_integers(
    function: Callable[[Tensor, float], Tensor],
) -> None:
    x = torch.arange(5)
    torch._dynamo.reset()
    dynamic = torch.compile(function, backend="rust_ort", dynamic=True)
    for each in (function, dynamic):
        with pytest.raises(RuntimeError, match="argument alpha must not be a floating point number"):
            each(x, 0.7)


@pytest.mark.parametrize("function", [
    lambda x, value: x.masked_fill(x > 0, value), lambda x, value: x.index_fill(0, torch.tensor([0]), value),
])  # fmt: skip
@pytest.mark.parametrize(("dtype", "value"), [
    (torch.uint8, torch.tensor(300)), (torch.uint8, torch.tensor(-1.0)), (torch.int64, torch.tensor(math.nan)),
    (torch.float16, torch.tensor(1e6)), (torch.float16, torch.tensor(70000)),
])  # fmt: skip
def test_a_tensor_of_rank_0_that_its_dtype_does_not_hold_is_refused(
    function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, value: Tensor
) -> None:
    x = torch.tensor([1, 0, 2]).to(dtype)
    for each in (function, compiled(function)):
        with pytest.raises(RuntimeError, match="without overflow"):
            each(x, value)
    one = torch.ones((), dtype=value.dtype)
    torch.testing.assert_close(compiled(function)(x, one), function(x, one))


def test_masks_whose_sizes_part_in_a_later_call() -> None:
    """The size of a mask is that of what it chooses from in each call of a graph, not in the first alone."""

    def function(x: Tensor, mask: Tensor) -> Tensor:
        x = x.clone()
        x[mask[1:]] = 0
        return x

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = torch.compile(function, backend=backend, dynamic=True)
    for rows, length in ((7, 8), (9, 10), (5, 6)):
        x, mask = torch.ones(rows, 3), torch.arange(length) % 2 == 0
        torch.testing.assert_close(made(x, mask), function(x, mask))
    assert len(backend.graphs) == 1 and not backend.graphs[0].eager
    with pytest.raises(IndexError, match="mask"):
        made(torch.ones(7, 3), torch.ones(9, dtype=torch.bool))


def test_padding_that_takes_too_much_in_a_later_call() -> None:
    def function(x: Tensor) -> Tensor:
        return functional.pad(x, (3, -7))

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = torch.compile(function, backend=backend, dynamic=True)
    for size in (8, 9, 7):
        torch.testing.assert_close(made(torch.ones(2, size)), function(torch.ones(2, size)))
    assert len(backend.graphs) == 1 and not backend.graphs[0].eager
    with pytest.raises(RuntimeError, match="narrow"):
        made(torch.ones(2, 5))
