"""Who is right where a candidate differs from eager: the same function in float64 has the third opinion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from measure.random_graphs.program import Results

EAGER_DISTANCES = 2.0
"""A candidate is right within so many of eager's own distances from float64, and one unit in the last place."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One result that is wrong. why: for people."""

    name: str
    why: str


def differences(expected: Results, candidate: Results, wide: Callable[[], Results]) -> tuple[list[Difference], int]:
    """What of `candidate` is wrong, and how many results were outside the tolerance but no further from float64 than
    eager is. wide: gives the results in float64; called only where they are needed."""
    wrong = [
        Difference(name=name, why="missing" if name in expected else "not expected")
        for name in sorted(set(expected) ^ set(candidate))
    ]
    settled = 0
    for name in expected:
        if name not in candidate:
            continue
        why = _outside(expected[name], candidate[name])
        if not why:
            continue
        if why != "kind" and _as_near(expected[name], candidate[name], wide()[name]):
            settled += 1
            continue
        wrong.append(Difference(name=name, why=_sentence(expected[name], candidate[name])))
    return wrong, settled


def _outside(reference: torch.Tensor, candidate: torch.Tensor) -> str:
    """ "kind": another dtype or shape; "values": outside torch.testing's tolerance of the dtype; "": neither."""
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        return "kind"
    try:
        torch.testing.assert_close(candidate, reference, equal_nan=True, check_stride=False)
    except AssertionError:
        return "values"
    return ""


def _as_near(reference: torch.Tensor, candidate: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether the candidate's largest distance from float64 is at most twice eager's and a unit in the last place."""
    if not reference.is_floating_point() or wide.shape != reference.shape:
        return False
    finite = reference.isfinite()
    if not torch.equal(finite, candidate.isfinite()) or _outside(reference[~finite], candidate[~finite]):
        return False
    third = wide.double()[finite]
    if not third.numel() or not bool(third.isfinite().all()):
        return False
    own = (reference[finite].double() - third).abs().max()
    other = (candidate[finite].double() - third).abs().max()
    ulp = torch.finfo(reference.dtype).eps * third.abs().max()
    return bool(other <= EAGER_DISTANCES * own + ulp)


def _sentence(reference: torch.Tensor, candidate: torch.Tensor) -> str:
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        return f"expected {_kind(reference)}, got {_kind(candidate)}"
    same = (reference == candidate) | (reference.isnan() & candidate.isnan())
    apart = (reference.double() - candidate.double()).abs().nan_to_num(torch.inf, torch.inf)
    apart = torch.where(same, torch.zeros_like(apart), apart)
    worst = int(apart.flatten().argmax())
    place = tuple(int(k) for k in torch.unravel_index(torch.tensor(worst), reference.shape)) if reference.dim() else ()
    return (
        f"{_kind(reference)}: {int((~same).sum())} of {same.numel()} differ, most at {place}: "
        f"expected {reference.flatten()[worst].item()}, got {candidate.flatten()[worst].item()}"
    )


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
