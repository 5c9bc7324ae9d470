"""The judge of docs/results/coverage.md: whether a compiled operator's result is as good as eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""{dtype: (rtol, atol)} of torch.testing.assert_close. Every other dtype: equal."""


Exact = Callable[[], Sequence[Tensor]]
"""The value computed by eager in float64, then again from inputs that are off by a rounding; () where there is none."""


def difference(reference: Tensor, candidate: Tensor, exact: Exact = tuple) -> str:
    """Where `candidate` is not as good as `reference`, in words; "" when it is. NaN equals NaN, infinities themselves.

    Both: any shape, dtype and layout. Inside: within torch.testing's tolerance of reference; or no farther from the
    exact value than twice reference's farthest element plus one ulp, and no farther there than twice what is
    reference's own distance or a rounding of the inputs, plus one ulp. exact is asked only when an element is outside
    the tolerance.
    """
    if candidate.shape != reference.shape:
        return f"shape {tuple(candidate.shape)}, expected {tuple(reference.shape)}"
    if candidate.dtype is not reference.dtype:
        return f"{candidate.dtype}, expected {reference.dtype}"
    reference, candidate = _plain(reference), _plain(candidate)
    outside = ~_close(reference, candidate)
    if not bool(outside.any()):
        return ""
    values = [_plain(value) for value in exact()] if reference.dtype in TOLERANCES else []
    if values and all(value.shape == reference.shape for value in values):
        outside &= ~_as_near(reference, candidate, values[0], values[1:])
    return _sentence(reference, candidate, outside) if bool(outside.any()) else ""


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _close(reference: Tensor, candidate: Tensor) -> Tensor:
    if reference.dtype not in TOLERANCES:
        return candidate == reference
    rtol, atol = TOLERANCES[reference.dtype]
    return torch.isclose(_wide(candidate), _wide(reference), rtol=rtol, atol=atol, equal_nan=True)


def _as_near(reference: Tensor, candidate: Tensor, exact: Tensor, rounded: Sequence[Tensor]) -> Tensor:
    own = _finite(_distance(reference, exact))
    step = _ulp(_wide(exact).abs(), reference.dtype)
    unsure = functools.reduce(torch.maximum, [_finite(_distance(value, exact)) for value in rounded], own)
    return (_distance(candidate, exact) <= 2 * torch.minimum(unsure, own.max()) + step) & exact.isfinite()


def _finite(values: Tensor) -> Tensor:
    """Where eager overflowed, nothing is excused."""
    return torch.where(values.isfinite(), values, 0.0)


def _distance(tensor: Tensor, exact: Tensor) -> Tensor:
    wide, exact = _wide(tensor), _wide(exact)
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    return torch.where(same, 0.0, (wide - exact).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))


def _ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance of neighbours of `dtype` around each magnitude."""
    finfo = torch.finfo(dtype)
    step = torch.ldexp(torch.full_like(magnitude, finfo.eps), torch.frexp(magnitude).exponent - 1)
    return torch.where(magnitude < finfo.tiny, finfo.tiny * finfo.eps, step)


def _sentence(reference: Tensor, candidate: Tensor, outside: Tensor) -> str:
    wide_reference, wide_candidate = _wide(reference), _wide(candidate)
    error = torch.where(outside, (wide_candidate - wide_reference).abs().nan_to_num(nan=torch.inf), -1.0)
    flat = int(error.argmax())
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), reference.shape))
    got, expected = candidate.flatten()[flat].item(), reference.flatten()[flat].item()
    return f"{int(outside.sum())} of {reference.numel()} elements, worst at {where}: {got}, expected {expected}"
