"""OpInfo's own samples as statements: the operators of torch, with the arguments that torch tests them with."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from measure.random_graphs.draw import Draw, NotFitting
from measure.random_graphs.operator import Operator
from measure.random_graphs.program import NAMESPACE, literal
from measure.random_graphs.values import DTYPES

FAMILY = "sample"
MAX_SAMPLE_ELEMENTS = 120
CHANCE = ("empty", "rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "exponential", "cauchy",
          "geometric", "rrelu", "fractional_max_pool", "item", "to_sparse", "resize_")  # fmt: skip
"""Parts of names of operators that draw numbers, leave memory unwritten, or give no tensor."""

CHANGED_SHARE = 0.3
"""Of the samples: how many are changed."""
CHANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda value: value.reshape(-1)[0] if value.numel() else value,
    lambda value: value[..., :1] if value.dim() else value,
    lambda value: value[:1] if value.dim() else value,
    lambda value: value[..., :0] if value.dim() else value,
    lambda value: value[:0] if value.dim() else value,
)
"""A tensor of other sizes: of rank 0, of one or no element in the last or the first dimension."""
UNCHANGED = ("pdist", "embedding_bag", "chunk_cat", "segment_reduce", "lu_", "ormqr", "householder")
"""Parts of names of operators whose eager kernels read beyond such tensors: the process ends."""


@functools.cache
def leaves() -> list[Operator]:
    """Operators that torch's namespace has under OpInfo's name."""
    from measure.coverage_item import op_infos

    made = []
    for name, info in op_infos().items():
        path = _path(info)
        if path and not info.variant_test_name and not any(part in name for part in CHANCE):
            make = functools.partial(_call, name, path)
            made.append(Operator(name=f"sample of {path}", family=FAMILY, make=make))
    return made


def _path(info: Any) -> str:
    """How a program calls it, "" where it cannot by that name."""
    name = str(info.name)
    path = name.replace("nn.functional.", "F.") if name.startswith("nn.functional.") else f"torch.{name}"
    found: Any = NAMESPACE[path.partition(".")[0]]
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return path if found is not None and found is info.op else ""


def _call(name: str, path: str, draw: Draw) -> str:
    from measure.coverage_item import op_infos

    info = op_infos()[name]
    wanted = [dtype for dtype in draw.dtypes if dtype in info.dtypes]
    known = [dtype for dtype in DTYPES if dtype in info.dtypes]
    if not known:
        raise NotFitting
    samples = _samples(name, draw.rng.choice(wanted or known))
    if not samples:
        raise NotFitting
    sample = draw.rng.choice(samples)
    changed = draw.rng.random() < CHANGED_SHARE and not any(part in name for part in UNCHANGED)
    change = draw.rng.choice(CHANGES) if changed else None
    rest = change if draw.rng.random() < 0.5 else None
    given = [_text(sample.input, draw, change), *(_text(value, draw, rest) for value in sample.args)]
    given += [f"{key}={_text(value, draw, rest)}" for key, value in sample.kwargs.items()]
    return f"{path}({', '.join(given)})"


@functools.lru_cache(maxsize=1024)
def _samples(name: str, dtype: torch.dtype) -> list[Any]:
    """Those of a sample's count, the same in every process."""
    from measure.coverage_item import op_infos, samples_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [sample for _, sample in samples_of(op_infos()[name], dtype, count=16, requires_grad=False)]
        except Exception:  # OpInfo makes none of this dtype
            return []


def _text(value: Any, draw: Draw, change: Callable[[torch.Tensor], torch.Tensor] | None) -> str:
    """A value of a sample as source; its tensors, changed, become arguments of the function."""
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized
        if not plain or value.dtype not in DTYPES or value.numel() > MAX_SAMPLE_ELEMENTS:
            raise NotFitting
        value = value.detach().resolve_conj()
        value = value if change is None else change(value).clone()
        return draw.given(literal(value), value.dtype, value.dim())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        parts = ", ".join(_text(each, draw, change) for each in value)
        return f"[{parts}]" if isinstance(value, list) else f"({parts}{',' if len(value) == 1 else ''})"
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, torch.dtype):
        return repr(value)
    raise NotFitting
