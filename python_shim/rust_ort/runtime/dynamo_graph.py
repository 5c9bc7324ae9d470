"""One Dynamo graph on its way through AOTAutograd."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort.link.specs import CustomOpLibrary
from rust_ort.observe.graph_info import GraphLog
from rust_ort.options import Options
from rust_ort.runtime.readable import readable

OVER_NO_DIMENSIONS = (torch.nansum, torch.nanmean, "nansum", "nanmean")
"""Functions and methods that reduce all dimensions where none is given, as their fake tensors do not."""


def reduce_all(gm: fx.GraphModule) -> None:
    """Writes None in the place of no dimensions, `x.nansum(())`: with that fake tensors have the result's shape."""
    changed = False
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method") or node.target not in OVER_NO_DIMENSIONS:
            continue
        if len(node.args) > 1 and node.args[1] in ((), []):
            node.update_arg(1, None)
            changed = True
        elif node.kwargs.get("dim") in ((), []):
            node.update_kwarg("dim", None)
            changed = True
    if changed:
        gm.recompile()


@dataclass(kw_only=True)
class Compilation:
    """One Dynamo graph on its way through AOTAutograd."""

    name: str
    options: Options
    sources: list[str]
    libraries: list[CustomOpLibrary]
    dynamo_text: str = ""
    joint_text: str = ""
    started: float = field(default_factory=time.perf_counter)
    collected: GraphLog
    made: dict[tuple[str, str], Callable[[list[Any]], Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Our time outside the AOT graphs, by phase; the first of them reports it."""

    def readable(self, gm: fx.GraphModule) -> str:
        with self.timed("texts"):
            return readable(gm)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with no_collection():
                yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Inside, Python's cycle collector is off: what is made here lives on, and each search of all torch's objects for
    garbage costs a tenth of a second or more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
