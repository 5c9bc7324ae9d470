"""A family compiled and compared node by node, with a fault planted or none."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import rust_ort
from measure.architectures import TABLE
from measure.planted.faults import Site, behind, plant, sites
from rust_ort.errors import RustOrtError

ROOT = Path(__file__).resolve().parents[3]
"""Of the repository, which messages name files under: what is published says nothing of where it lay."""

FAMILIES = ("llama", "gpt2", "bert", "t5", "whisper", "mixtral", "mamba", "vit", "convnext", "gemma2", "clip",
            "deberta-v2")  # fmt: skip
PRECISIONS: dict[str, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Autocast to this, or none."""
DEFAULT_PRECISIONS = ("float32", "bfloat16")

NODES = {"compare": "nodes"}


@dataclass(kw_only=True)
class Unplanted:
    """A run without a fault. values, nodes: how many came to which verdict; accused, values_wrong, failed: by name;
    reasons: why something was not compared. models: as they were given to the runtime; directions: of their
    graphs."""

    family: str
    precision: str
    seconds: float = 0.0
    values: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    values_wrong: list[str] = field(default_factory=list)
    accused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    models: list[Any] = field(default_factory=list, repr=False)
    directions: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.values_wrong or self.accused or self.failed) and all(self.reasons) and "match" in self.values


@dataclass(kw_only=True)
class Planted:
    """A run with a fault. wrong: values outside tolerance; named: the node named first, or ""; guilty: the nodes of
    which the changed one is a part; refused: why the runtime does not run the model."""

    family: str
    precision: str
    site: Site
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    named: str = ""
    accused: list[str] = field(default_factory=list)
    guilty: list[str] = field(default_factory=list)
    refused: str = ""

    @property
    def is_right(self) -> bool:
        """The node that was changed is named first, or one that holds the same ONNX node."""
        return self.named in self.guilty

    @property
    def verdict(self) -> str:
        if self.refused:
            return "refused"
        if self.named:
            return "named" if self.is_right else "named another"
        return "missed" if self.wrong else "no effect"


Ask = Callable[..., Any]
"""`rust_ort.compare`, or what takes the same and gives a Report."""


def compared(family: str, precision: str, transform: Any, ask: Ask) -> Any:
    """The report of one run: forward and backward, every node."""
    torch.compiler.reset()
    case = TABLE[family].build()
    options = {**NODES, "transforms": [transform]}
    return ask(case.module, **case.inputs, autocast=PRECISIONS[precision], options=options)


def unplanted(family: str, precision: str, ask: Ask = rust_ort.compare) -> Unplanted:
    """A run with nothing planted, and the models it made."""
    models: list[Any] = []

    def keep(proto: Any) -> None:
        copy = type(proto)()
        copy.CopyFrom(proto)
        models.append(copy)

    begin = time.perf_counter()
    report = compared(family, precision, keep, ask)
    nodes = [(f"{graph} {node.name}", node) for graph, node in report.nodes]
    open_reasons = [v.reason for v in [*report.verdicts, *(n.local for _, n in nodes)] if v.kind == "not_compared"]
    return Unplanted(
        family=family,
        precision=precision,
        seconds=time.perf_counter() - begin,
        values=dict(Counter(verdict.kind for verdict in report.verdicts)),
        nodes=dict(Counter(node.local.kind for _, node in nodes)),
        values_wrong=[v.name for v in report.verdicts if v.kind in ("mismatch", "failed")],
        accused=[name for name, node in nodes if node.is_wrong],
        failed=[name for name, node in nodes if node.is_failed],
        reasons=dict(Counter(open_reasons)),
        models=models,
        directions=[graph.direction for graph in report.graphs for _ in graph.parts],
    )


def planted(clean: Unplanted, site: Site, ask: Ask = rust_ort.compare) -> Planted:
    """A run with one fault. clean: the same without it."""
    made = Planted(family=clean.family, precision=clean.precision, site=site)
    count, changed = 0, frozenset[str]()

    def change(proto: Any) -> None:
        nonlocal count, changed
        if count == site.model:
            changed = plant(proto, site)
        count += 1

    begin = time.perf_counter()
    try:
        report = compared(clean.family, clean.precision, change, ask)
    except (RustOrtError, RuntimeError) as error:  # what the fault made of a graph that runs later, too
        return dataclasses.replace(
            made,
            refused=str(error).splitlines()[0].replace(f"{ROOT}/", ""),
            seconds=time.perf_counter() - begin,
        )
    parts = [(graph.name, index) for graph in report.graphs for index in range(len(graph.parts))]
    where = parts[site.model]
    names = frozenset(node.name for graph, node in report.nodes if (graph, node.part) == where)
    guilty = behind(clean.models[site.model], changed, names)
    accused = [f"{graph} {node.name}" for graph, node in report.nodes if node.is_wrong]
    return dataclasses.replace(
        made,
        seconds=time.perf_counter() - begin,
        wrong=[verdict.name for verdict in report.verdicts if verdict.kind in ("mismatch", "failed")],
        named=accused[0] if accused else "",
        accused=accused,
        guilty=sorted(f"{where[0]} {name}" for name in guilty),
    )


def drawn(clean: Unplanted, draw: Any, *, more: bool = False) -> Iterator[Site]:
    """Every site in an order that is drawn: kinds in turn, each in forward and backward. more: of more kinds."""
    groups: dict[tuple[str, str], list[Site]] = {}
    for index, proto in enumerate(clean.models):
        for site in sites(index, proto, more=more):
            groups.setdefault((site.kind, clean.directions[index]), []).append(site)
    order = sorted(groups)
    draw.shuffle(order)
    for group in groups.values():
        draw.shuffle(group)
    for round_ in itertools.count():
        left = [groups[key][round_] for key in order if round_ < len(groups[key])]
        if not left:
            return
        yield from left


def tried(family: str, precision: str, faults: int, seed: int) -> tuple[Unplanted, list[Planted]]:
    """The run with nothing planted, without its models, and those with a fault, of which `faults` are not refused. Each
    is printed."""
    logging.getLogger("rust_ort").setLevel(logging.ERROR)  # each fault would be logged
    clean = unplanted(family, precision)
    told = clean.values, clean.nodes, clean.values_wrong, clean.accused, clean.failed
    print(f"{family} {precision}:", *told, flush=True)
    rows: list[Planted] = []
    for site in drawn(clean, random.Random(seed)):
        if sum(not row.refused for row in rows) >= faults:
            break
        rows.append(planted(clean, site))
        print(f"{family} {precision} {site.kind} at {site.node}: {rows[-1].verdict} {rows[-1].named}", flush=True)
    return dataclasses.replace(clean, models=[]), rows
