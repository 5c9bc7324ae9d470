"""The judge of docs/coverage.md: whether a compiled operator's result is as good as eager's."""

from __future__ import annotations

from collections.abc import Callable

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


def difference(reference: Tensor, candidate: Tensor, exact: Callable[[], Tensor | None] = lambda: None) -> str:
    """Where `candidate` is not as good as `reference`, in words; "" when it is. NaN equals NaN, infinities themselves.

    Both: any shape, dtype and layout. Inside: within torch.testing's tolerance of reference, or no farther from `exact`
    than twice reference's own distance plus one ulp, where a tensor's distance is its farthest element's, absolutely
    and relatively. exact: the same value computed by eager in float64, None where there is none; asked for only when an
    element is outside the tolerance.
    """
    if candidate.shape != reference.shape:
        return f"shape {tuple(candidate.shape)}, expected {tuple(reference.shape)}"
    if candidate.dtype is not reference.dtype:
        return f"{candidate.dtype}, expected {reference.dtype}"
    reference, candidate = _plain(reference), _plain(candidate)
    outside = ~_close(reference, candidate)
    if not bool(outside.any()):
        return ""
    precise = exact() if reference.dtype in TOLERANCES else None
    if precise is not None and precise.shape == reference.shape:
        outside &= ~_as_near(reference, candidate, _plain(precise))
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


def _as_near(reference: Tensor, candidate: Tensor, exact: Tensor) -> Tensor:
    """Which elements are as near to exact as twice reference's farthest, by the difference and by the quotient."""
    own, distance = _distance(reference, exact), _distance(candidate, exact)
    magnitude = _wide(exact).abs()
    step = _ulp(magnitude, reference.dtype)
    near = distance <= 2 * _largest(own) + step
    near &= distance / magnitude <= 2 * _largest(own / magnitude) + step / magnitude
    return torch.where(magnitude == 0, distance <= 2 * own + step, near) & magnitude.isfinite()


def _largest(values: Tensor) -> Tensor:
    """Of the finite ones: where eager overflowed, nothing is excused."""
    return torch.where(values.isfinite(), values, 0.0).max()


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
