"""Is what a backend gives as right as what eager gives? Judged without this project's own comparison, as PyTorch's
benchmarks judge: by the distance of both from float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

TIMES = 3.0
"""How much further from float64 than eager's a right value may be, by root mean square; of few numbers FEW_TIMES."""
FEW, FEW_TIMES = 10, 10.0
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""What is always allowed: of the value's root mean square, and by itself (a gradient that is zero but for rounding)."""
WITHOUT_FLOAT64 = 10.0
"""By how much the two are larger where float64 is not known."""
MOVED = 16
"""Runs of eager that tell how far rounding takes a value, where one is further from float64 than eager's: a rectifier
that it turns, in one run of ten, takes a gradient further than all else."""
UNLIKE = 0.05
"""Of its root mean square eager may be away from float64; beyond it the float64 run computed something else, as where
other random numbers were drawn."""

Values = Mapping[str, Any]
"""{name: tensor or number}."""


def leaves(value: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """(path, tensor or number) of whatever a model gives; what is None, and a module, has none."""
    if isinstance(value, Tensor | bool | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from leaves(one, f"{name}[{at}]")
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type) and not callable(value):
        for key, one in vars(value).items():  # a cache, a distribution
            yield from leaves(one, f"{name}.{key}")


def wrong(eager: Values, candidate: Values, float64: Values, moved: Sequence[Values] = ()) -> list[str]:
    """As `faults`, a text each."""
    return [f"{name}: {why}" for name, why in faults(eager, candidate, float64, moved).items()]


def faults(eager: Values, candidate: Values, float64: Values, moved: Sequence[Values] = ()) -> dict[str, str]:
    """{name: what is wrong} of a candidate's values; {} where they are right. float64: of the values that a float64 run
    has; {} without one. moved: of eager's runs from parameters that were moved by a rounding: eager may be lucky."""
    found = {}
    for name in [*eager, *(name for name in candidate if name not in eager)]:
        if name not in candidate or name not in eager:
            found[name] = f"only {'eager' if name in eager else 'the backend'} has it"
            continue
        why = _wrong(eager[name], candidate[name], float64.get(name), [one.get(name) for one in moved])
        if why:
            found[name] = why
    return found


def _wrong(eager: Any, candidate: Any, float64: Any, moved: Sequence[Any]) -> str:
    if not isinstance(eager, Tensor) or not isinstance(candidate, Tensor):
        return "" if eager == candidate or (eager != eager and candidate != candidate) else f"{candidate}, not {eager}"
    if eager.dtype != candidate.dtype or eager.shape != candidate.shape:
        return f"{candidate.dtype} {[*candidate.shape]}, not {eager.dtype} {[*eager.shape]}"
    if eager.layout != torch.strided or not (eager.is_floating_point() or eager.is_complex()):
        differ = int((eager.to_dense() != candidate.to_dense()).sum()) if eager.numel() else 0
        return f"{differ} of {eager.numel()} differ" if differ else ""
    if not eager.numel():
        return ""
    reference, given = _real(eager), _real(candidate)
    finite = reference.isfinite()
    if not torch.equal(finite, given.isfinite()) or not torch.equal(
        reference[~finite].nan_to_num(), given[~finite].nan_to_num()
    ):
        return "NaN or infinite elsewhere"
    reference, given = reference[finite], given[finite]
    if not reference.numel():
        return ""
    exact = _real(float64)[finite] if isinstance(float64, Tensor) and float64.shape == eager.shape else reference
    scale, eagers = _rms(exact), _rms(reference - exact)
    known = exact is not reference and bool(exact.isfinite().all()) and eagers <= UNLIKE * scale + ABSOLUTE
    if not known:
        exact, scale, eagers = reference, _rms(reference), 0.0
    for one in moved:
        if isinstance(one, Tensor) and one.shape == eager.shape:
            eagers = max(eagers, _rms(_real(one)[finite].nan_to_num() - exact))
    allowed = (RELATIVE * scale + ABSOLUTE) * (1.0 if known else WITHOUT_FLOAT64)
    allowed += (TIMES if reference.numel() > FEW else FEW_TIMES) * eagers
    error = _rms(given - exact)
    from_what = "float64" if known else "eager"
    return "" if error <= allowed else f"{error:.2e} from {from_what}, of {scale:.2e}; allowed {allowed:.2e}"


def _real(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.detach().double()


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())
