"""compare="nodes" on a language model as its class makes it: every node judged, and what that costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import rust_ort
from rust_ort.studies.gpu import copies
from rust_ort.studies.gpu.calls import exact_products, named_in_eager
from rust_ort.studies.gpu.device import synchronize
from rust_ort.studies.gpu.models import need_transformers
from rust_ort.studies.gpu.record import CheckFailed, Numbers, Record
from rust_ort.studies.llama_models import Size, language_model

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": None}
SIZES = {
    "cuda": (
        Size(vocabulary=32_000, layers=2),
        Size(hidden=2048, heads=32, intermediate=5632, vocabulary=32_000, layers=4, sequence=2048),
    ),
    "cpu": (Size(hidden=64, heads=4, intermediate=96, vocabulary=128, layers=2, sequence=32),),
}
GOAL = 12.0
"""A step whose nodes are compared, by eager's."""
EAGER_STEPS, STEPS = 5, 2
LEAST_S = 5.0
"""With less time a model is not begun."""


def run(record: Record, device: str) -> None:
    """bfloat16 of each size first, then the others of the smallest."""
    exact_products()
    sizes = SIZES[device]
    for size, dtype in [*((size, "bfloat16") for size in sizes), (sizes[0], "float16"), (sizes[0], "float32")]:
        record.row(named(size, dtype), partial(compared, size, dtype, device), least_s=LEAST_S)


def named(size: Size, dtype: str) -> str:
    within = "float32" if DTYPES[dtype] is None else f"autocast to {dtype}"
    return f"causal LM {size.layers} x {size.hidden}, ({size.batch}, {size.sequence}), {within}"


def compared(size: Size, dtype: str, device: str, numbers: Numbers) -> None:
    """Errors: CheckFailed where a node differs or ran in eager; MissingHere."""
    need_transformers()
    torch.compiler.reset()
    model, tokens = language_model(size, device=device)
    backend = rust_ort.backend(compare="nodes")
    eager = partial(step, model, model, tokens, DTYPES[dtype], device)
    watched = partial(step, model, torch.compile(model, backend=backend), tokens, DTYPES[dtype], device)
    eager()
    numbers["eager ms"] = reference = timed(eager, EAGER_STEPS, device)
    numbers["first step, s"] = timed(watched, 1, device) / 1e3
    before = copies.counted_by_executors()
    numbers["nodes ms"] = mine = timed(watched, STEPS, device)
    after = copies.counted_by_executors()
    numbers["nodes / eager"] = mine / reference
    if device == "cuda":
        numbers[f"goal: at most {GOAL:g} x eager"] = "met" if mine <= GOAL * reference else "missed"
        moved = (sum(after.values()) - sum(before.values())) / STEPS / (1 << 20)
        numbers["executor's host MiB a step"] = moved if after else copies.NO_COUNTER
    last = max(number for graph in backend.graphs for number, _ in graph.nodes)
    rows = [node for graph in backend.graphs for number, node in graph.nodes if number == last]
    kinds = Counter(node.local.kind for node in rows)
    numbers["nodes"] = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in kinds.most_common())
    if reasons := Counter(node.local.reason for node in rows if node.local.kind == "not_compared"):
        numbers["not compared"] = "; ".join(reasons)
    if wrong := [node for node in rows if node.local.kind not in ("match", "not_compared")]:
        raise CheckFailed(f"{len(wrong)} of {len(rows)} nodes: {wrong[0]}")
    if eagers := named_in_eager(backend.graphs):
        raise CheckFailed(eagers)
    if not kinds["match"]:
        raise CheckFailed("nothing was compared")


def step(model: torch.nn.Module, call: Any, tokens: torch.Tensor, dtype: torch.dtype | None, device: str) -> None:
    """Forward and backward."""
    with torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext():
        loss = call(input_ids=tokens, labels=tokens).loss
    loss.backward()
    model.zero_grad()


def timed(call: Callable[[], None], n: int, device: str) -> float:
    """Median of so many calls, each waited for, in milliseconds."""
    spans = []
    for _ in range(n):
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        spans.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(spans)
