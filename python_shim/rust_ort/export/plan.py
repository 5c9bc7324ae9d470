"""One AOT graph made ready to run: its parts as ONNX models, and how a call's values reach them and come back."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from rust_ort import progress, torch_private
from rust_ort.export import exporter, partition, translate
from rust_ort.export.aliases import saved_outputs
from rust_ort.export.custom import custom_error
from rust_ort.export.shapes import Binder, UnboundSymbol, compile_expression, expression, is_symbolic, overlaps, plain
from rust_ort.export.text import one_line


class Translation(Protocol):
    """What `translate.translate` makes of a part whose outputs are all tensors; it need not look at the part."""

    def __call__(self, part: Callable[[], fx.GraphModule], *, keep_inputs: frozenset[str]) -> translate.Translated: ...


@dataclass(kw_only=True)
class OutputLayout:
    """dtype, shape and stride of the tensors a part returns; `specs(inputs)` for symbolic sizes."""

    specs: Callable[[Sequence[object]], list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None]]]
    symbolic: bool


@dataclass(kw_only=True)
class PlannedPart:
    """A part's model and its calling convention.

    `pick`: positions of the model's inputs among the part's arguments. `results`: for each value the part returns,
    the index of the model's output, or a function of the part's arguments for a size.
    """

    graph: partition.PartGraph
    translated: translate.Translated
    pick: list[int]
    tensor_outputs: list[str]
    results: list[int | Callable[[Sequence[object]], int]]
    layout: OutputLayout


@dataclass(kw_only=True)
class Plan:
    """An AOT graph, cut and translated. Times in seconds. `causes`: {FX node: what its custom translation raised}."""

    cut: partition.Partition
    parts: list[PlannedPart]
    causes: dict[str, BaseException] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def make_plan(
    gm: fx.GraphModule, *, name: str, refused: Mapping[str, str] | None = None, opset: int = exporter.TORCHLIB_OPSET,
    custom: Mapping[Any, Any] | None = None,
) -> Plan:  # fmt: skip
    """Cuts and translates `gm`. A node that turns out untranslatable goes to eager with the reason, and the graph is
    cut again. `refused`: {FX node: reason} known before."""
    refused = dict(refused or {})
    seconds = {"partition": 0.0, "export": 0.0}
    causes: dict[str, BaseException] = {}
    while True:
        start = time.perf_counter()
        cut = partition.partition(gm, partition.Support(custom=custom, refused=refused))
        seconds["partition"] += time.perf_counter() - start
        start = time.perf_counter()
        known = set(refused)
        parts = []
        progress.begin(sum(len(graph.compute_nodes) for graph in cut.parts))
        for graph in cut.parts:
            try:
                with torch_private.lazy_graph_modules():  # the Python code of what is translated is never run
                    parts.append(plan_part(cut, graph, _translating(f"{name}_{graph.name}", opset, custom)))
            except translate.TranslationError as error:
                culprits = [name for name in error.node_names if name in graph.compute_nodes] or graph.compute_nodes
                given = custom_error(error)
                whose = " (option custom_translations)" if given is not None else ""
                refused.update((node, f"its translation{whose} failed: {one_line(str(error))}") for node in culprits)
                if given is not None and given.__cause__ is not None:
                    causes.update(dict.fromkeys(culprits, given.__cause__))
            except Unbound as error:
                refused[error.node] = str(error)
        seconds["export"] += time.perf_counter() - start
        if set(refused) == known:
            return Plan(cut=cut, parts=parts, causes=causes, seconds=seconds)


def _translating(name: str, opset: int, custom: Mapping[Any, Any] | None) -> Translation:
    def translation(part: Callable[[], fx.GraphModule], *, keep_inputs: frozenset[str]) -> translate.Translated:
        return translate.translate(
            part(), name=name, opset=opset, custom_translations=dict(custom or {}), keep_inputs=keep_inputs
        )

    return translation


class Unbound(ValueError):
    """A size of FX node `node` depends on a symbol that no input of its part determines."""

    def __init__(self, node: str, cause: UnboundSymbol) -> None:
        super().__init__(str(cause))
        self.node = node


def plan_part(cut: partition.Partition, graph: partition.PartGraph, translation: Translation) -> PlannedPart:
    """The calling convention of a part's model. Raises TranslationError, Unbound."""
    module = graph.module
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    returned = _returned(module)
    values = [node.meta.get("val") for node in placeholders]
    binder = Binder(values)
    tensors = [node for node in returned if not isinstance(node.meta.get("val"), torch.SymInt)]
    places = {node: place for place, node in reversed([*enumerate(tensors)])}
    results: list[int | Callable[[Sequence[object]], int]] = []
    for node in returned:
        value = node.meta.get("val")
        try:
            results.append(compile_expression(binder.code(value)) if isinstance(value, torch.SymInt) else places[node])
        except UnboundSymbol as error:
            raise Unbound(_computing(node), error) from error
    symbolic = any(is_symbolic(node.meta.get("val")) for node in tensors)
    sizes = frozenset(node.name for node in placeholders if symbolic and isinstance(node.meta["val"], torch.SymInt))
    only_tensors = functools.partial(_returning, module, tensors)
    translated = translation(only_tensors, keep_inputs=sizes)
    strides = _strides(cut, graph, returned)
    try:
        layout = _layout(placeholders, translated.input_names, tensors, strides)
    except UnboundSymbol:
        everything = frozenset(node.name for node in placeholders)
        translated = translation(only_tensors, keep_inputs=everything)
        try:
            layout = _layout(placeholders, translated.input_names, tensors, strides)
        except UnboundSymbol as error:
            raise Unbound(_computing(tensors[0]), error) from error
    position = {node.name: index for index, node in enumerate(placeholders)}
    return PlannedPart(
        graph=graph,
        translated=translated,
        pick=[position[input_name] for input_name in translated.input_names],
        tensor_outputs=[node.name for node in tensors],
        results=results,
        layout=layout,
    )


def _computing(node: fx.Node) -> str:
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.name


def _returned(module: fx.GraphModule) -> list[fx.Node]:
    outputs = module.graph.output_node().args[0]
    return [outputs] if isinstance(outputs, fx.Node) else list(outputs)  # type: ignore[arg-type]


def _returning(module: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """`module` without outputs but these: sizes are computed in Python, not fetched."""
    if len(outputs) == len(_returned(module)):
        return module
    copied = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    copied.graph_copy(module.graph, mapping)
    for old, new in mapping.items():
        new.name = old.name
    copied.output(tuple(mapping[node] for node in outputs))
    return torch_private.make_graph_module(module, copied)


def _layout(
    placeholders: Sequence[fx.Node], input_names: Sequence[str], tensors: Sequence[fx.Node],
    strides: Mapping[str, Sequence[int | torch.SymInt]],
) -> OutputLayout:  # fmt: skip
    by_name = {node.name: node.meta.get("val") for node in placeholders}
    if not any(is_symbolic(node.meta.get("val")) for node in tensors):
        fixed = [
            (
                node.meta["val"].dtype,
                tuple(plain(size) for size in node.meta["val"].shape),
                tuple(plain(step) for step in strides[node.name]) if node.name in strides else None,
            )
            for node in tensors
        ]
        return OutputLayout(specs=lambda _: fixed, symbolic=False)
    binder = Binder([by_name[name] for name in input_names])
    rows = [
        f"({node.meta['val'].dtype}, {binder.codes(node.meta['val'].shape)}, "
        f"{binder.codes(strides[node.name]) if node.name in strides else None})"
        for node in tensors
    ]
    return OutputLayout(specs=compile_expression(f"[{', '.join(rows)}]"), symbolic=True)


def _strides(
    cut: partition.Partition, graph: partition.PartGraph, returned: Sequence[fx.Node]
) -> dict[str, tuple[int | torch.SymInt, ...]]:
    """Eager's strides where someone could see them and they are not contiguous.

    Seen are outputs of the graph and what an eager node reads. Not: values saved for backward (restrided before an
    eager node reads them). Overlapping strides, as `expand` makes, cannot be written to and become contiguous.
    """
    outer_call = next(node for node in cut.outer.graph.nodes if node.op == "call_module" and node.target == graph.name)
    hidden = saved_outputs(cut.outer.graph.output_node())
    found: dict[str, tuple[int | torch.SymInt, ...]] = {}
    for unpack in outer_call.users:
        node = returned[unpack.args[1]]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or _is_contiguous(value) or overlaps(value):
            continue
        if any(_sees_strides(user, unpack, hidden) for user in unpack.users):
            found[node.name] = tuple(value.stride())
    return found


def _sees_strides(user: fx.Node, value: fx.Node, hidden: frozenset[int]) -> bool:
    if user.op != "output":
        return user.op != "call_module"
    return any(item is value and index not in hidden for index, item in enumerate(user.args[0]))  # type: ignore[arg-type]


def _is_contiguous(value: torch.Tensor) -> bool:
    """Among symbolic sizes, torch's fake tensors are wrong about the stride of one that is 1."""
    expected: int | torch.SymInt = 1
    symbolic = is_symbolic(value)
    for size, step in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if symbolic and expression(size) == 1:
            continue
        if expression(step) != expression(expected):
            return False
        expected = expected * size
    return True


def restrides(gm: fx.GraphModule) -> Callable[[list[object]], None] | None:
    """A function that gives a call's tensors the strides the graph was traced with, in place in the list.

    gm: the graph or its outer module; only inputs that a node of it reads (a part does not count) are looked at.
    Values saved for backward come back contiguous whatever eager would have made; eager nodes may view them.
    """
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in nodes]
    binder = Binder(values)
    rows = []
    for index, value in enumerate(values):
        read = any(user.op == "call_function" for user in nodes[index].users)
        if read and isinstance(value, torch.Tensor) and value.layout is torch.strided and not overlaps(value):
            try:
                rows.append(f"({index}, {binder.codes(value.stride())})")
            except UnboundSymbol:
                continue
    if not rows:
        return None
    expected = compile_expression(f"[{', '.join(rows)}]")

    def apply(inputs: list[object]) -> None:
        for index, stride in expected(inputs):
            tensor = inputs[index]
            if isinstance(tensor, torch.Tensor) and tensor.stride() != stride and tensor.numel() > 1:
                laid_out = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
                inputs[index] = laid_out.copy_(tensor.detach())

    return apply
