"""What eager refuses is refused here, too, and what it does without elements is what it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

HALF, BYTE, FLOAT = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.uint8), torch.ones(2)
FIRST = torch.tensor([0])


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


@pytest.mark.parametrize(("function", "x"), [
    (lambda x: x // 300, BYTE), (lambda x: 300 // x, BYTE), (lambda x: torch.div(x, 300, rounding_mode="trunc"), BYTE),
    (lambda x: torch.div(x, 300, rounding_mode="floor"), BYTE), (lambda x: x // 1e39, FLOAT),
    (lambda x: x % 1e39, FLOAT),
    (lambda x: 1e6 // x, HALF), (lambda x: torch.xlogy(x, 1e39), FLOAT), (lambda x: torch.xlogy(1e39, x), FLOAT),
    (lambda x: torch.special.xlog1py(x, 1e39), FLOAT), (lambda x: torch.special.xlog1py(1e39, x), FLOAT),
    (lambda x: torch.nan_to_num(x, posinf=1e39), FLOAT),
    (lambda x: x + 1e6, HALF), (lambda x: x < 1e6, HALF), (lambda x: torch.where(x > 5, x, 1e6), HALF),
])  # fmt: skip
def test_a_number_that_overflows_is_taken_where_eager_takes_it(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    torch.testing.assert_close(compiled(function)(x), function(x), equal_nan=True)


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
    (lambda x, y: x.index_select(0, y.long()), (3, 3), (1, 1)),
])  # fmt: skip
def test_a_tensor_of_another_shape_is_refused(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], source: tuple[int, ...]
) -> None:
    x, y = torch.ones(shape), torch.ones(source)
    with pytest.raises((RuntimeError, IndexError)) as refused:
        function(x, y)
    with pytest.raises(refused.type):
        compiled(function)(x, y)


@pytest.mark.parametrize(("function", "shapes"), [
    (lambda x, y: x.index_add(0, FIRST, y), [(0, 1), (1, 1)]),
    (lambda x, y: x.index_add(0, FIRST, y), [(1, 0), (1, 0)]),
    (lambda x, y: x.index_put((FIRST,), y, accumulate=True), [(1, 0), (1, 0)]),
    (lambda x, y: x[FIRST, :, FIRST] + y, [(1, 0, 1), (1, 0)]), (lambda x, y: torch.pow(2, x) + y, [(1, 0), (1, 0)]),
    (lambda x, y: functional.nll_loss(x.log_softmax(1), FIRST, y, ignore_index=0), [(1, 0), (0,)]),
    (lambda x, y: torch.linalg.multi_dot([x, y, x]), [(3, 0), (0, 3)]),
    (lambda x, y: functional.smooth_l1_loss(x, y), [(3, 0), (3, 0)]),
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
