"""GraphNet's samples as models of the zoo, from a copy of its repository that the caller names: none of it is here.

A sample is a folder with a graph's code, and shape, dtype, mean and deviation of each of its inputs; weights are drawn
from these. Source: PaddlePaddle/GraphNet, arXiv 2510.24035. A sample's code is run as it is.
"""

from __future__ import annotations

import functools
import linecache
import os
import random
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from measure.zoo.model import SEED, Call, Model, Subject, sgd

PREFIX = "graphnet/"
FOLDER = "ZOO_GRAPHNET"
"""Environment variable with the copy's path."""
LEAST = 10
"""Samples of each source, if it has so many."""


def names(folder: Path, count: int) -> list[str]:
    """Models' names of `count` graphs, drawn by SEED: a share of each source by its size, and LEAST at least."""
    sources: dict[str, list[str]] = {}
    for code in sorted((folder / "samples").rglob("model.py")):
        path = code.parent.relative_to(folder / "samples")
        sources.setdefault(path.parts[0], []).append(f"{PREFIX}{path}")
    if not sources:
        raise SystemExit(f"{folder}: no samples/*/**/model.py; give a copy of GraphNet's repository")
    draws, total = random.Random(SEED), sum(map(len, sources.values()))
    chosen = []
    for source in sorted(sources):
        of = sources[source]
        chosen += draws.sample(of, min(len(of), max(LEAST, round(count * len(of) / total))))
    draws.shuffle(chosen)  # so that a part of them is a sample, too
    return chosen[:count]


def model(name: str) -> Model:
    """Of a name that `names` gave, in the copy that the environment names."""
    return Model(
        name=name, package="GraphNet", source=name.removeprefix(PREFIX), smaller="",
        build=functools.partial(_build, Path(os.environ[FOLDER]) / "samples" / name.removeprefix(PREFIX)),
    )  # fmt: skip


class _Sample(nn.Module):
    """A graph whose parameters are parameters of this, and whose buffers are its buffers."""

    def __init__(self, graph: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.own: dict[str, str] = {}
        for at, (name, tensor) in enumerate(tensors.items()):
            is_trained = "_parameters_" in name and tensor.is_floating_point()
            if is_trained or "_buffers_" in name:
                self.own[name] = f"own_{at}"
                if is_trained:
                    self.register_parameter(f"own_{at}", nn.Parameter(tensor))
                else:
                    self.register_buffer(f"own_{at}", tensor)

    def forward(self, **inputs: Any) -> Any:
        return self.graph(**inputs, **{name: getattr(self, own) for name, own in self.own.items()})


def _build(folder: Path) -> Subject:
    graph = _module(folder / "model.py").GraphModule()
    tensors = {
        made.name: _drawn(made) for file in ("input_meta.py", "weight_meta.py") for made in _metas(folder / file)
    }
    sample = _Sample(graph, tensors)
    inputs = {name: tensor for name, tensor in tensors.items() if name not in sample.own}
    trained = Call(kwargs=inputs) if [*sample.parameters()] else None
    return Subject(module=sample, evaluated=Call(kwargs=inputs), trained=trained, optimizer=sgd)


def _module(path: Path) -> Any:
    """The file as a module, on the CPU whatever device it was captured on. Dynamo looks modules up by their names."""
    made = types.ModuleType(f"graphnet_{path.stem}")
    made.__file__ = str(path)
    sys.modules[made.__name__] = made
    text = path.read_text().replace('device(type="cuda", index=0)', 'device(type="cpu")')
    linecache.cache[made.__file__] = (len(text), None, text.splitlines(keepends=True), made.__file__)
    exec(compile(text, made.__file__, "exec"), made.__dict__)
    return made


def _metas(path: Path) -> Iterator[Any]:
    if path.exists():
        yield from (one for one in vars(_module(path)).values() if isinstance(one, type) and hasattr(one, "name"))


def _drawn(meta: Any) -> Tensor:
    """The values that it has; else whole numbers in its bounds, or normal ones of its mean and deviation."""
    dtype: torch.dtype = getattr(torch, meta.dtype.removeprefix("torch."))
    shape = [int(size) for size in meta.shape]
    least, most = getattr(meta, "min_val", None), getattr(meta, "max_val", None)
    if getattr(meta, "data", None) is not None:
        return torch.tensor(meta.data, dtype=dtype).reshape(shape)
    if dtype is torch.bool:
        return torch.randn(shape) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        low = int(least) if least is not None else 0
        return torch.randint(low, int(most) + 1 if most is not None else low + 2, shape, dtype=dtype)
    mean, deviation = getattr(meta, "mean", None) or 0.0, getattr(meta, "std", None)
    drawn = torch.randn(shape) * (0.1 if deviation is None else float(deviation)) + float(mean)
    if least is not None or most is not None:
        drawn = drawn.clamp(least, most)
    return drawn.to(dtype)
