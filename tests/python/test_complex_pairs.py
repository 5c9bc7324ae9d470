"""Complex numbers run on ONNX Runtime as pairs of real ones, and what users see of them is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort.export import fourier
from rust_ort.export.partition import AS_PAIRS, COMPLEX, COMPUTES_NOTHING

pytestmark = pytest.mark.usefixtures("client")

COMPLEX_DTYPES = [torch.complex64, torch.complex128]
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
GENERATOR = torch.Generator().manual_seed(3)


def drawn(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=GENERATOR)


def rotary(x: Tensor, frequencies: Tensor) -> Tensor:
    """As Llama's reference has it."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * frequencies).flatten(3)


def results(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs, and gradients of what is differentiable."""
    given = [tensor.clone().requires_grad_(not tensor.is_conj()) for tensor in inputs]
    made = function(*given)
    outputs = list(made) if isinstance(made, tuple) else [made]
    summed = [out for out in outputs if out.requires_grad]
    if not summed:
        return outputs
    weights = [torch.arange(out.numel(), dtype=out.real.dtype).cos().view(out.shape).to(out.dtype) for out in summed]
    gradients = torch.autograd.grad(summed, [t for t in given if t.requires_grad], weights, allow_unused=True)
    return [*(out.detach() for out in outputs), *(grad for grad in gradients if grad is not None)]


def check(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> list[Any]:
    """Results, dtypes, strides and conjugate bits are eager's. Returns the nodes left to eager that compute."""
    backend = rust_ort.backend()
    torch._dynamo.reset()
    candidate = results(torch.compile(function, backend=backend, **options), inputs)
    for ours, eagers in zip(candidate, results(function, inputs), strict=True):
        torch.testing.assert_close(ours, eagers, equal_nan=True, check_stride=True)
        assert ours.is_conj() == eagers.is_conj()
    return [node for graph in backend.graphs for node in graph.eager if node.reason not in COMPUTES_NOTHING]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_rotary_embeddings_run_whole(dtype: torch.dtype, dynamic: bool) -> None:
    x = torch.randn(2, 6, 3, 8, dtype=REAL[dtype], generator=GENERATOR)
    frequencies = torch.polar(torch.ones(6, 1, 4, dtype=x.dtype), torch.arange(24, dtype=x.dtype).view(6, 1, 4))
    assert check(rotary, x, frequencies, dynamic=dynamic) == []


CASES: dict[str, Callable[..., Any]] = {
    "sums": lambda z, w: (z + w, z - w.real, w.imag - z, torch.add(z, w, alpha=2), z + 1j, -z),
    "products": lambda z, w: (z * w, z * w.real, 2j * z, z.real * 1j, z / w, z / 2, 2 / w),
    "parts": lambda z, w: (z.abs() + w.abs(), z.conj() * w, torch.polar(w.abs(), z.real), z.real * w.imag),
    "totals": lambda z, w: (z.sum(), z.mean(1), (z * w).sum(0, keepdim=True), (z * 2).cumsum(0)),
    "shapes": lambda z, w: (
        (z * 2).t() * 1, (z * w).reshape(2, 6) + 1, (z * 2)[1:, ::2] * 1, (z * 2)[1] * w[0],
        (z * 1).unsqueeze(1).expand(3, 2, 4) * 2, (z * 1).flip(0) + 0, torch.roll(z * 2, 1, -1) * 1,
    ),
    "lists": lambda z, w: (
        torch.cat([z, z * 2], 1) * 1, torch.stack([z, w.conj()]) * 2, *(one * 2 for one in (z * 1).split(2, 1)),
    ),
    "choices": lambda z, w: (torch.where(z.real > 0, z, w), (z * w).masked_fill(z.real > 0, 2j), z * 1 == w),
    "dtypes": lambda z, w: (z.to(torch.complex128) * w.to(torch.complex128), (z * w).to(torch.complex64) + 0),
    "matrices": lambda z, w: (z @ w.t() * 1, torch.einsum("ij,kj->ik", z, w.conj()) * 1),
    "constants": lambda z, w: z * torch.tensor([1j, 2, 3, 4]) + torch.tensor(1j) * w,
    "exponentials": lambda z, w: (z.exp(), torch.exp(1j * w.real)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_operators_are_eagers(name: str, dtype: torch.dtype) -> None:
    assert check(CASES[name], drawn(3, 4, dtype=dtype), drawn(3, 4, dtype=dtype)) == []


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_zeros_infinities_and_no_numbers_are_eagers(dtype: torch.dtype) -> None:
    edges = [0.0, -0.0, 1.0, -2.0, torch.nan, torch.inf, -torch.inf]
    z = torch.tensor([complex(real, imaginary) for real in edges for imaginary in edges], dtype=dtype)
    rows, columns = z.expand(49, 49).contiguous(), z[:, None].expand(49, 49).contiguous()

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return a * b, a / b, a * 2, a / 2j, a.exp(), a.abs(), a == b

    assert check(function, rows, columns) == []


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_angles_run_on_onnxruntime(dtype: torch.dtype) -> None:
    assert check(lambda z: (z * 2).angle() * z.abs(), drawn(3, 4, dtype=dtype)) == []


@pytest.mark.parametrize("name", ["sums", "products", "shapes"])
def test_sizes_may_be_dynamic(name: str) -> None:
    assert check(CASES[name], drawn(3, 4), drawn(3, 4), dynamic=True) == []


def test_outputs_are_views_and_conjugates_as_eagers_are() -> None:
    def function(z: Tensor) -> tuple[Tensor, ...]:
        y = z * 2
        return y, y.conj(), y.t(), y.conj() * 3

    assert check(function, drawn(3, 4)) == []
    out = torch.compile(function, backend=rust_ort.backend())(drawn(3, 4))
    assert out[0].data_ptr() == out[1].data_ptr() == out[2].data_ptr()


def test_an_input_may_be_a_conjugate() -> None:
    assert check(lambda z: z * 2, drawn(3).conj()) == []
    backend = rust_ort.backend()
    compiled = torch.compile(lambda z: z * 2j, backend=backend)
    z = drawn(3)
    for given in (z, z.conj()):
        torch.testing.assert_close(compiled(given), given * 2j)


def test_a_piece_stays_whole_in_eager_where_an_operator_has_no_form() -> None:
    left = check(lambda z: ((z * 2).tan() + 1, z.real * 2), drawn(3))
    reasons = {node.reason for node in left}
    assert {node.op for node in left} >= {"aten.mul.Tensor", "aten.tan.default", "aten.add.Tensor"}
    assert any(reason.startswith(COMPLEX) and "aten.tan.default has no form of pairs" in reason for reason in reasons)


def test_what_makes_pairs_computes_nothing_and_is_no_error() -> None:
    backend = rust_ort.backend(on_unsupported="error")
    torch.compile(lambda z: z * 2j, backend=backend)(drawn(3))
    (graph,) = backend.graphs
    assert {node.reason for node in graph.eager} == {AS_PAIRS}
    assert {node.op for node in graph.eager} >= {"aten.view_as_real.default", "aten.view_as_complex.default"}


@pytest.mark.parametrize("size", [1, 2, 8, 15, 100])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_are_eagers(size: int, norm: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        half, whole = torch.fft.rfft(x * 1, norm=norm), torch.fft.fft(x * 2, norm=norm)
        return (
            torch.fft.irfft(half * 2j + half, n=size, norm=norm),
            torch.fft.ifft(whole * 2, norm=norm).imag,
            whole.abs(),
        )

    assert check(function, torch.randn(3, size, generator=GENERATOR)) == []


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_transforms_of_several_dimensions(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.fft.irfft2(torch.fft.rfft2(x * 1) * 2j, s=x.shape[-2:]),
            torch.fft.fftn(x * 1).real,
            torch.fft.fft(torch.fft.fft(x * 1, dim=-1), dim=-2).real,
        )

    assert check(function, torch.randn(3, 6, 9, generator=GENERATOR), dynamic=dynamic) == []


def test_float64_is_transformed_where_it_is_exact() -> None:
    assert check(lambda x: torch.fft.fft(x * 1).real, torch.randn(3, 16, dtype=torch.float64)) == []
    left = check(lambda x: torch.fft.fft(x * 1).real, torch.randn(3, 15, dtype=torch.float64))
    assert fourier.LESS_EXACT in {node.reason for node in left}
