"""Which nodes of an AOT graph run on ONNX Runtime, which stay in eager, and why."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort import torch_private
from rust_ort.export import aliases, arguments, exporter, fourier, kernels, rules
from rust_ort.export.copies import copied_graph, copied_node
from rust_ort.export.given_sizes import give_sizes
from rust_ort.export.grouping import grouped
from rust_ort.export.hash import attribute
from rust_ort.export.node_cache import NodeCache
from rust_ort.export.provenance import module_path, operator_name, source_line
from rust_ort.export.rules.nodes import argument, draws, tensors
from rust_ort.export.shapes import SIZE_OPERATORS, overlaps
from rust_ort.export.text import indented
from rust_ort.export.unwritten import leaves_unwritten
from rust_ort.torch_private import HigherOrderOperator, OpOverload, free_unbacked_symbols, pytree

SCHEMA_VERSION = 1
PART_PREFIX = "part_"

aten = torch.ops.aten

DRAWS_RANDOM_NUMBERS = "it draws random numbers; torch's generator is what manual_seed controls"
SIZE_AT_RUN_TIME = "a size is known only at run time"
SYMBOLIC_NUMBER = "a symbolic float or bool has no ONNX form here"
COMPLEX = "complex numbers have no ONNX form"
AS_PAIRS = "complex numbers as pairs of real ones, or back, or an output's view of them: it computes nothing"
SIZE_ALONE = "nothing of it is used but its size"
UNWRITTEN_OUTPUT = "memory that nobody wrote into, which ONNX Runtime does not read: it computes nothing"
CONSTANT = "rust_ort constant"
"""Key of a node's meta: the number that a constant of one element is."""

BETWEEN_PAIRS = "rust_ort complex view"
"""Key of a node's meta: it makes pairs of complex numbers or the other way round, or is on the way to an output."""

NO_PAIRS = "rust_ort no pairs"
"""Key of a node's meta: why complex numbers that it takes or gives are not written as pairs."""

MEMORY_READ = "an operator in eager sees the memory behind it"

SEVERAL_DEVICES = "its tensors are on several devices"

UNSORTED = "an order that eager's kernel alone has (sorted=False), by which random numbers meet rows"

COMPUTES_NOTHING = frozenset({aliases.SHARES_MEMORY, UNWRITTEN_OUTPUT, AS_PAIRS})
"""Reasons of nodes of which nothing is left for ONNX Runtime to compute."""

EAGER_IS_RIGHT = arguments.REASONS | {
    DRAWS_RANDOM_NUMBERS,
    MEMORY_READ,
    SIZE_ALONE,
    SEVERAL_DEVICES,
    UNSORTED,
    UNWRITTEN_OUTPUT,
}
"""Reasons for which eager is the right place; all others are something that ONNX lacks."""

BOOKKEEPING = SIZE_OPERATORS | {
    operator.getitem,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    aten._assert_async.msg,
    aten._assert_async.default,
    aten._assert_tensor_metadata.default,
}

STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)


def is_compute(node: fx.Node) -> bool:
    """Whether `node` computes a tensor: not unpacking, not arithmetic on sizes, not an assertion."""
    return node.op == "call_function" and node.target not in BOOKKEEPING and not _is_number(node)


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def operators(gm: fx.GraphModule) -> dict[str, str]:
    """{compute node: operator} in graph order."""
    return {node.name: operator_name(node) for node in gm.graph.nodes if is_compute(node)}


def modules(gm: fx.GraphModule) -> dict[str, str]:
    """{compute node: path of its module} of those whose module is known."""
    return {node.name: path for node in gm.graph.nodes if is_compute(node) and (path := module_path(node))}


def body_nodes(gm: fx.GraphModule, node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    """(`cond.true_graph_0.sin`, the FX node) of all that a higher-order operator's bodies hold, those inside other
    bodies too. node: of `gm`. Other operators have none."""
    for source in node.all_input_nodes:
        body = operator.attrgetter(str(source.target))(gm) if source.op == "get_attr" else None
        if not isinstance(body, fx.GraphModule):
            continue
        for inner in body.graph.nodes:
            yield f"{node.name}.{source.target}.{inner.name}", inner
            for name, deeper in body_nodes(body, inner):
                yield f"{node.name}.{source.target}.{name}", deeper


def lowest_precision(gm: fx.GraphModule) -> torch.dtype | None:
    """float16 or bfloat16 when a value of the graph or of a body has it, else None. What a difference to eager is
    measured by."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    found = {value.dtype for graph in graphs for node in graph.nodes for value in tensors(node.meta.get("val"))}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in found), None)


@dataclass(frozen=True, kw_only=True)
class EagerNode:
    """A compute node left to eager, and why. source, module: whose it is, "" where torch recorded none. inside: the
    node of the higher-order operator whose body holds it, "" of the graph's own nodes."""

    name: str
    op: str
    reason: str
    source: str
    module: str = ""
    inside: str = ""


@dataclass(kw_only=True)
class PartGraph:
    """One part: attribute `name` of the outer module, `module` the FX graph it stands for."""

    index: int
    name: str
    module: fx.GraphModule
    compute_nodes: list[str]


@dataclass(kw_only=True)
class Partition:
    """An AOT graph cut into parts and the nodes between them.

    `outer` runs the whole: its call_module nodes are the parts, everything else is eager. `module` is the graph as it
    was. compute_nodes = the nodes of all parts + eager, each exactly once, those in bodies left to eager among them.
    `reasons`: {node: why ONNX Runtime may not run it}, of every such node.
    """

    module: fx.GraphModule
    outer: fx.GraphModule
    parts: list[PartGraph]
    eager: list[EagerNode] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def compute_nodes(self) -> int:
        return sum(len(part.compute_nodes) for part in self.parts) + len(self.eager)

    def parts_json(self, options: Mapping[str, Any] | None = None) -> str:
        """Content of parts.json. options: those that the graph was compiled with."""
        return indented(
            {
                "schema": SCHEMA_VERSION,
                "options": dict(options or {}),
                "compute_nodes": self.compute_nodes,
                "eager_nodes": len(self.eager),
                "parts": [{"part": part.index, "nodes": part.compute_nodes} for part in self.parts],
                "eager": [
                    {
                        "node": node.name,
                        "op": node.op,
                        "reason": node.reason,
                        "source": node.source,
                        "module": node.module,
                        "inside": node.inside,
                    }
                    for node in self.eager
                ],
            }
        )


PURE_NAMESPACES = ("aten", "prims", "torchvision", "rust_ort")
"""Operators that do what their schemas say and no more: torch's own, those that torchvision's detectors call, ours."""


PURE_OPERATORS = frozenset({"transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"})
"""Operators of other libraries of which we know the same."""


def is_pure(operator: OpOverload) -> bool:
    """Whether it does what its schema says and no more."""
    return operator.namespace in PURE_NAMESPACES or operator._schema.name in PURE_OPERATORS


class Support:
    """Decides for each node. `refused`: {node: reason} of what could not be translated when it was tried."""

    def __init__(self, *, custom: Mapping[Any, object] | None = None, refused: Mapping[str, str] | None = None) -> None:
        self._custom = custom or {}
        self._refused = refused or {}
        self._known: dict[fx.Node, str | None] = {}
        self._alike = NodeCache()

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Leaves more nodes to eager, before any is asked for."""
        self._refused = {**self._refused, **reasons}

    def runs(self, node: fx.Node) -> bool:
        """Whether ONNX Runtime may run it; an input, a constant and the output are not run."""
        return node.op == "call_function" and self.reason(node) is None

    def reason(self, node: fx.Node) -> str | None:
        """None: ONNX Runtime may run it. Else why not."""
        if node not in self._known:
            self._known[node] = self._decide(node)
        return self._known[node]

    def _decide(self, node: fx.Node) -> str | None:
        if node.name in self._refused:
            return self._refused[node.name]
        if node.target is operator.getitem:
            source = node.args[0]
            if not isinstance(source, fx.Node) or source.op != "call_function":
                return "it unpacks a value that is not in the part"
            return self.reason(source)
        if isinstance(node.target, HigherOrderOperator):
            return f"higher-order operator {node.target} has no ONNX form"
        if node.meta.get(BETWEEN_PAIRS):
            return AS_PAIRS
        if NO_PAIRS in node.meta and any(map(_is_complex, _values_of(node))):
            return f"{COMPLEX}: {node.meta[NO_PAIRS]}"
        values = self._alike.once("values", node, lambda: self._values(node) or _given(node))
        return values or self._operator(node)

    def _operator(self, node: fx.Node) -> str | None:
        target = node.target
        if target in self._custom:
            return None
        if isinstance(target, OpOverload):
            if draws(node):
                return DRAWS_RANDOM_NUMBERS
            if target is aten.topk.default and not argument(node, "sorted") and _is_drawn_for(node.graph):
                return UNSORTED
            if leaves_unwritten(target) and not any(map(self.runs, node.users)):
                return UNWRITTEN_OUTPUT  # as an output of a part it would be compared: chance with zeros
            if target._schema.is_mutable:
                return "it writes to its input"
            if target.is_view and (any(map(self._reads_memory, node.users)) or self._is_spread_for_eager(node)):
                return MEMORY_READ
            if target in STRIDED and aliases.root_of(node).op == "placeholder":
                return MEMORY_READ
            why = fourier.why_eager(node) if target in fourier.OPERATORS else rules.why_eager(node)
            if why is not None:
                return why
        if target in BOOKKEEPING and not str(target).startswith("aten.sym_"):
            return "an assertion"
        return self._alike.once("form", node, lambda: exporter.why_untranslatable(node))

    def _reads_memory(self, user: fx.Node) -> bool:
        """Whether `user`, or what is made of it without a copy, is in eager and goes beyond the view it is given."""
        if user.target is operator.getitem:
            return any(map(self._reads_memory, user.users))
        if user.target in STRIDED or user.target in aliases.KEEP_LAYOUTS:
            return self.reason(user) is not None
        return getattr(user.target, "is_view", False) and self.reason(user) == MEMORY_READ

    def _is_spread_for_eager(self, node: fx.Node) -> bool:
        """Whether its elements share places, and eager's kernels, which lay out what they give by that, see it."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not overlaps(value):
            return False
        return any(user.op == "call_function" and self.reason(user) is not None for user in node.users)

    def _values(self, node: fx.Node) -> str | None:
        devices = set()
        for value in _values_of(node):
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                return SYMBOLIC_NUMBER
            if isinstance(value, torch.SymInt):
                if free_unbacked_symbols(value):
                    return SIZE_AT_RUN_TIME
            elif isinstance(value, torch.Tensor):
                problem = _tensor_problem(value)
                if problem is not None:
                    return problem
                if value.dim() or not value.is_cpu:  # eager takes a number of the CPU beside tensors of any device
                    devices.add(value.device)
            elif value is not None and not isinstance(value, (int, float, bool)):
                return f"a value of type {type(value).__name__} has no ONNX form"
        if len(devices) > 1:
            return SEVERAL_DEVICES
        if "val" not in node.meta:
            return "its result is not a tensor"
        return None


def _is_complex(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_drawn_for(graph: fx.Graph) -> bool:
    """Whether a node of the graph draws random numbers."""
    return any(isinstance(node.target, OpOverload) and draws(node) for node in graph.nodes)


def _values_of(node: fx.Node) -> Iterator[object]:
    for source in (node, *node.all_input_nodes):
        if source.op == "get_attr" and "val" not in source.meta:
            continue
        value = source.meta.get("val")
        if isinstance(value, (tuple, list)):
            if source is not node:
                continue  # the getitem nodes between are what is used
            if all(user.target is operator.getitem for user in node.users):
                read = {user.args[1] for user in node.users if user.users}
                value = [one for at, one in enumerate(value) if at in read]
        yield from pytree.tree_leaves(value)


def _given(node: fx.Node) -> str | None:
    """What its arguments say against ONNX Runtime."""
    if not isinstance(node.target, OpOverload):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    number = _number(node.args[-1]) if node.target in arguments.HELD else None
    why = arguments.why_eager(node.target, args, kwargs, number=number)
    if why in kernels.REASONS and str(node.meta.get("original_aten", node.target)) != str(node.target):
        return None  # the operator that it is made of did not refuse it
    return why


def _number(value: Any) -> int | float | bool | None:
    """Of a tensor of one element, where the program itself has it."""
    while isinstance(value, fx.Node) and value.target in (aten.lift_fresh_copy.default, aten.clone.default):
        value = value.args[0]
    if not isinstance(value, fx.Node):
        return None
    filled = value.args[1] if value.target is aten.full.default else None
    return filled if isinstance(filled, (int, float)) else value.meta.get(CONSTANT)


def _tensor_problem(value: torch.Tensor) -> str | None:
    if value.dtype.is_complex:
        return COMPLEX
    if value.dtype not in SUPPORTED_DTYPES:
        return f"{value.dtype} has no ONNX form here"
    if value.layout is not torch.strided or value.is_quantized:
        return f"a tensor of layout {value.layout} has no ONNX form"
    known = all(type(size) is int for size in (*value.shape, *value.stride()))
    if (not known or type(value.storage_offset()) is not int) and free_unbacked_symbols(value):
        return SIZE_AT_RUN_TIME
    return None


SUPPORTED_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    }
)  # fmt: skip


def partition(gm: fx.GraphModule, support: Support) -> Partition:
    """Cuts `gm`; `gm` is left as it is and becomes the result's `module`."""
    with torch_private.lazy_graph_modules():  # the Python code of most modules made here is never run
        return _partition(gm, support)


def _partition(gm: fx.GraphModule, support: Support) -> Partition:
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    give_constants_values(gm)
    graph = copied_graph(gm.graph)
    support.refuse(aliases.keep_shared(gm, graph))
    outer = torch_private.make_graph_module(gm, graph)
    computing = [node for node in outer.graph.nodes if node.op == "call_function"]
    reasons = {node.name: reason for node in computing if (reason := support.reason(node)) is not None}
    effects = [node for node in computing if node.name in reasons and has_effect(node)]
    _chain(effects)
    devices = _devices(outer.graph)
    parted = grouped(outer.graph, lambda node: devices[node] if support.runs(node) else None)
    proposed = [dict.fromkeys(nodes) for nodes in parted]
    chosen = [nodes for nodes in proposed if any(map(is_compute, nodes)) and _gives_a_tensor(nodes)]
    in_part = {node for nodes in chosen for node in nodes}
    left = [
        node for node in outer.graph.nodes
        if is_compute(node) and node not in in_part and aliases.COPY not in node.meta
    ]  # fmt: skip
    eager = [found for node in left for found in _left_to_eager(gm, node, support.reason(node) or SIZE_ALONE)]
    names = [[node.name for node in nodes if is_compute(node)] for nodes in chosen]
    if len(chosen) == 1 and _ends_the_graph(chosen[0]):
        _fuse_last(outer, list(chosen[0]))
    else:
        fuse_by_partitions(outer, chosen, prefix=PART_PREFIX, always_return_tuple=True)
    _unchain(outer.graph, {node.name for node in effects[1:]})
    aliases.end_views(outer.graph)
    for call in [node for node in outer.graph.nodes if node.op == "call_module"]:
        give_sizes(outer, getattr(outer, call.target), call)
    outer.recompile()
    parts = [
        PartGraph(index=index, name=f"{PART_PREFIX}{index}", module=getattr(outer, f"{PART_PREFIX}{index}"),
                  compute_nodes=names[index])
        for index in range(len(chosen))
    ]  # fmt: skip
    return Partition(module=gm, outer=outer, parts=parts, eager=eager, reasons=reasons)


def _devices(graph: fx.Graph) -> dict[fx.Node, str]:
    """Where each node is computed: on which CUDA device or the CPU, in a graph of several CUDA devices; else "here". A
    number is computed where what it is made of is."""
    found: dict[fx.Node, torch.device | None] = {}
    for node in graph.nodes:
        if _is_number(node):
            found[node] = next((found[source] for source in node.all_input_nodes if found[source] is not None), None)
        else:  # what it reads, too: a number may go from a device to the CPU
            values = (value for value in _values_of(node) if isinstance(value, torch.Tensor) and value.is_cuda)
            found[node] = next((value.device for value in values), None)
    several = len({found[node] for node in graph.nodes if node.op == "call_function"} - {None}) > 1
    return {node: str(device or "cpu") if several else "here" for node, device in found.items()}


def _gives_a_tensor(nodes: Collection[fx.Node]) -> bool:
    """Whether others use more of them than sizes."""
    return any(not _is_number(node) and any(user not in nodes for user in node.users) for node in nodes)


def _left_to_eager(gm: fx.GraphModule, node: fx.Node, reason: str) -> Iterator[EagerNode]:
    """The node, and what its bodies hold."""
    yield _eager_node(node, name=node.name, reason=reason)
    why = f"in a body of {operator_name(node)}: {reason}"
    for name, inner in body_nodes(gm, node):
        if is_compute(inner):
            yield _eager_node(inner, name=name, reason=why, inside=node.name)


def _eager_node(node: fx.Node, *, name: str, reason: str, inside: str = "") -> EagerNode:
    return EagerNode(
        name=name,
        op=operator_name(node),
        reason=reason,
        source=source_line(node),
        module=module_path(node),
        inside=inside,
    )


def _ends_the_graph(nodes: Collection[fx.Node]) -> bool:
    """Whether nothing but the graph's output reads what these nodes give to others."""
    return all(user in nodes or user.op == "output" for node in nodes for user in node.users)


def _fuse_last(outer: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """What fuse_by_partitions makes of a graph's one partition, which ends it, without its sorting and checks: a third
    of the time that a graph costs whose model is known."""
    inside, part, copies = set(nodes), fx.Graph(), dict[fx.Node, fx.Node]()
    given = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
    for source in given:
        copies[source] = part.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in nodes:
        copies[node] = copied_node(part, node, copies.__getitem__)
    wanted = [node for node in nodes if any(user not in inside for user in node.users)]
    part.output(tuple(copies[node] for node in wanted))
    outer.add_submodule(f"{PART_PREFIX}0", torch_private.make_graph_module(outer, part, f"{PART_PREFIX}0"))
    with outer.graph.inserting_before(outer.graph.output_node()):
        call = outer.graph.call_module(f"{PART_PREFIX}0", tuple(given))
        call.meta["val"] = tuple(node.meta.get("val") for node in wanted)
        results = {node: outer.graph.call_function(operator.getitem, (call, i)) for i, node in enumerate(wanted)}
    for node, result in results.items():
        result.meta = dict(node.meta)
    output = outer.graph.output_node()  # the only one to read them: exchanging them one by one goes over all each time
    output.args = fx.map_arg(output.args, lambda node: results.get(node, node))
    for node in reversed(nodes):
        outer.graph.erase_node(node)


def may_do_more(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an operator is nobody's that keeps to its schema, or its bodies hold one, or it calls one
    (auto_functionalized, with_effects): a second run may be one too many. node: of `gm`."""
    held = itertools.chain([node], (inner for _, inner in body_nodes(gm, node)))
    return any(_is_strangers(operator) for one in held for operator in (one.target, *one.args))


def _is_strangers(operator: object) -> bool:
    """An operator that may do more than its schema says."""
    return isinstance(operator, OpOverload) and not is_pure(operator)


def has_effect(node: fx.Node) -> bool:
    """Whether the place of `node` among the others like it counts: it draws random numbers, writes into a tensor, or
    may do what its schema does not say (a collective that other ranks wait for, a custom operator that counts)."""
    if _is_strangers(node.target):
        return True
    if isinstance(node.target, OpOverload):
        return draws(node) or node.target._schema.is_mutable
    return isinstance(node.target, HigherOrderOperator)


def _chain(nodes: Sequence[fx.Node]) -> None:
    """Makes each node read the one before: cutting a graph sorts it anew, and by its inputs alone."""
    for earlier, later in itertools.pairwise(nodes):
        later.args = (*later.args, earlier)


def _unchain(graph: fx.Graph, chained: Collection[str]) -> None:
    for node in graph.nodes:
        if node.name in chained:
            node.args = node.args[:-1]


def give_constants_values(gm: fx.GraphModule) -> None:
    """get_attr nodes of tensors carry no fake value; the exporter and the hash want one."""
    fake_mode = torch_private.detect_fake_mode(
        [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    )
    for node in gm.graph.nodes:
        if node.op != "get_attr" or not isinstance(constant := attribute(gm, str(node.target)), torch.Tensor):
            continue
        if constant.numel() == 1 and type(constant) is torch.Tensor and constant.is_cpu:
            with torch_private.no_modes():
                node.meta[CONSTANT] = constant.item()
        if "val" not in node.meta:
            node.meta["val"] = fake_mode.from_tensor(constant) if fake_mode is not None else constant
