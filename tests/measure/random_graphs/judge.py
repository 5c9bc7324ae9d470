"""Who is right where a candidate differs from eager, and in what: float64 has the third opinion about roundings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from measure.random_graphs.observe import Layout, Seen

EAGER_DISTANCES = 2.0
"""A candidate is right within so many of eager's own distances from float64, and one unit in the last place."""
TOLERANCES = {
    torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}  # fmt: skip
"""{dtype: (rtol, atol)} of torch.testing.assert_close. Every other dtype: equal."""
KINDS = (
    "error", "no error", "results", "dtype", "shape", "nan", "values", "sign of zero", "memory", "aliasing", "strides",
    "offset", "requires_grad",
)  # fmt: skip
"""What a difference is in. error: an exception where eager has none; no error: none where eager has one. results:
another number of outputs or gradients, or another kind of thing. memory: what was written to an argument. aliasing: who
shares memory. offset: in the storage."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is wrong. name: of the result, with its call. why: for people."""

    name: str
    kind: str
    why: str


def differences(
    expected: Sequence[Seen], candidate: Sequence[Seen], wide: Callable[[int], Seen], *, exact: bool = False
) -> tuple[list[Difference], int]:
    """What of `candidate` is wrong, and how many results were outside the tolerance but no further from float64 than
    eager is. wide: gives what a call does in float64, asked only where it is needed; exact: roundings are no excuse."""
    found: list[Difference] = []
    settled = 0
    for call, (one, other) in enumerate(zip(expected, candidate, strict=True)):
        wrong, near = _of_call(one, other, functools.partial(wide, call), exact=exact)
        found += [Difference(name=f"call {call}: {d.name}", kind=d.kind, why=d.why) for d in wrong]
        settled += near
    return found, settled


def _of_call(one: Seen, other: Seen, wide: Callable[[], Seen], *, exact: bool) -> tuple[list[Difference], int]:
    if one.error is not None and other.error is not None:
        return [], 0
    if one.error is not None or other.error is not None:
        kind = "no error" if one.error is not None else "error"
        where, told = one.error or other.error or ("", "")
        return [Difference(name=where, kind=kind, why=told)], 0
    found, settled = [], 0
    for name in sorted(set(one.values) | set(other.values)):
        if name not in one.values or name not in other.values:
            why = "missing" if name in one.values else "not expected"
            found.append(Difference(name=name, kind="results", why=why))
            continue
        reference, candidate = one.values[name], other.values[name]
        third = functools.partial(_named, wide, name)
        kind, near = _values(reference, candidate, third, exact=exact and not name.startswith("gradient"))
        if kind == "sign of zero" and name in one.unsure:
            kind = kind if bool((_other_zeros(reference, candidate) & ~one.unsure[name]).any()) else ""
        settled += near
        if kind:
            where = "memory" if kind == "values" and name[0] in "bx" else kind
            why = _sentence(reference, candidate, zeros=kind == "sign of zero")
            found.append(Difference(name=name, kind=where, why=why))
    if not any(d.kind in ("results", "shape", "dtype") for d in found):
        found += _layouts(one.layouts, other.layouts)
        if one.groups != other.groups:
            why = f"expected {one.groups}, got {other.groups}"
            found.append(Difference(name="outputs", kind="aliasing", why=why))
    return found, settled


def _named(wide: Callable[[], Seen], name: str) -> Any:
    return wide().values.get(name)


def _layouts(one: dict[str, Layout], other: dict[str, Layout]) -> list[Difference]:
    found = []
    for name, layout in one.items():
        for kind, field in (("strides", "strides"), ("offset", "offset"), ("requires_grad", "requires_grad")):
            expected, got = getattr(layout, field), getattr(other[name], field)
            if expected != got:
                found.append(Difference(name=name, kind=kind, why=f"expected {expected}, got {got}"))
    return found


def _values(reference: Any, candidate: Any, wide: Callable[[], Any], *, exact: bool) -> tuple[str, int]:
    """(what the two differ in, "" for nothing; 1 where float64 settled it)."""
    if not isinstance(reference, torch.Tensor) or not isinstance(candidate, torch.Tensor):
        alike = type(reference) is type(candidate) and (reference == candidate or reference != reference)
        return ("" if alike else "results"), 0
    if reference.dtype != candidate.dtype:
        return "dtype", 0
    if reference.shape != candidate.shape:
        return "shape", 0
    if bool(_close(reference, candidate, exact=exact).all()):
        return ("sign of zero", 0) if _is_wrong_zero(reference, candidate, wide) else ("", 0)
    if not torch.equal(reference.isnan(), candidate.isnan()):
        return "nan", 0
    third = wide()
    if isinstance(third, torch.Tensor) and _as_near(reference, candidate, third) and not exact:
        return "", 1
    return "values", 0


def _close(reference: torch.Tensor, candidate: torch.Tensor, *, exact: bool) -> torch.Tensor:
    if exact or reference.dtype not in TOLERANCES:
        return (reference == candidate) | ((reference != reference) & (candidate != candidate))
    rtol, atol = TOLERANCES[reference.dtype]
    return torch.isclose(candidate.double(), reference.double(), rtol=rtol, atol=atol, equal_nan=True)


def _other_zeros(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    return (reference == 0) & (candidate == 0) & (reference.signbit() != candidate.signbit())


def _is_wrong_zero(reference: torch.Tensor, candidate: torch.Tensor, wide: Callable[[], Any]) -> bool:
    """Whether a zero has another sign, about which eager is of one mind with float64."""
    if not reference.is_floating_point():
        return False
    apart = _other_zeros(reference, candidate)
    if not bool(apart.any()):
        return False
    third = wide()
    if not isinstance(third, torch.Tensor) or third.shape != reference.shape:
        return True
    return bool((apart & (third.signbit() == reference.signbit())).any())


def _as_near(reference: torch.Tensor, candidate: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether the candidate's largest distance from float64 is at most twice eager's and a unit in the last place."""
    if not reference.is_floating_point() or wide.shape != reference.shape:
        return False
    finite = reference.isfinite()
    rest = reference[~finite], candidate[~finite]
    if not torch.equal(finite, candidate.isfinite()) or not bool(_close(*rest, exact=True).all()):
        return False
    third = wide.double()[finite]
    if not third.numel() or not bool(third.isfinite().all()):
        return False
    own = (reference[finite].double() - third).abs().max()
    other = (candidate[finite].double() - third).abs().max()
    ulp = torch.finfo(reference.dtype).eps * third.abs().max()
    return bool(other <= EAGER_DISTANCES * own + ulp)


def _sentence(reference: Any, candidate: Any, *, zeros: bool) -> str:
    if not isinstance(reference, torch.Tensor) or not isinstance(candidate, torch.Tensor):
        return f"expected {_kind(reference)}, got {_kind(candidate)}"
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        return f"expected {_kind(reference)}, got {_kind(candidate)}"
    same = (reference == candidate) | (reference.isnan() & candidate.isnan())
    if zeros:
        same = (reference != 0) | (reference.signbit() == candidate.signbit())
    apart = (reference.double() - candidate.double()).abs().nan_to_num(torch.inf, torch.inf)
    apart = torch.where(same, torch.full_like(apart, -1.0), apart)
    worst = int(apart.flatten().argmax())
    place = tuple(int(k) for k in torch.unravel_index(torch.tensor(worst), reference.shape)) if reference.dim() else ()
    return (
        f"{_kind(reference)}: {int((~same).sum())} of {same.numel()} differ, most at {place}: "
        f"expected {reference.flatten()[worst].item()}, got {candidate.flatten()[worst].item()}"
    )


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
