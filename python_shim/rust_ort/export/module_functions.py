"""Submodules as ONNX local functions: each call of a module is one node, and what it computes the function's body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count, dropwhile, takewhile
from typing import Any

from torch import fx

from rust_ort.errors import OptionError
from rust_ort.export.opset import bodies
from rust_ort.export.provenance import parameter_name
from rust_ort.export.translate import Translated

DOMAIN = "rust_ort.modules"
MOST_NAMED = 12
PATH, CLASS = "rust_ort.module", "rust_ort.class"
"""Keys of metadata: of a call the module's path, of a function the module's class."""
SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
"""torch.onnx.export's own: lists, as Python prints them, from the model to the node itself."""


@dataclass(frozen=True, kw_only=True)
class ModuleCall:
    """One call of a module. key: torch's own, another for each call. path: `decoder.attention`. class_name: with its
    module, `torch.nn.modules.linear.Linear`."""

    key: str
    path: str
    class_name: str

    @property
    def name(self) -> str:
        """Without its module and the function that it was made in: an identifier."""
        return self.class_name.rpartition(".")[2]

    @property
    def name_with_module(self) -> str:
        """`Linear` of torch, `modeling_llama.LlamaMLP` of another module."""
        module = self.class_name.removesuffix(f".{self.name}").partition(".<locals>")[0]
        return self.name if module.startswith("torch.nn.") else f"{module.rpartition('.')[2]}.{self.name}"

    def is_like(self, pattern: str) -> bool:
        """Whether a pattern names its path, its class or its class with the module."""
        return any(fnmatchcase(text, pattern) for text in (self.path, self.name, self.class_name))


Stack = tuple[ModuleCall, ...]
"""Calls of modules that an operator runs in, the outermost first; the model's own is none."""


def stacks(graph: fx.Graph, translated: Translated, patterns: Sequence[str] | None) -> dict[str, Stack]:
    """{ONNX node or value: where it is computed}, of calls that a pattern names; None: of all. Errors: OptionError of a
    pattern that names none."""
    every = {call for node in graph.nodes for call in _stack(node, None)}
    for pattern in patterns or ():
        if not any(call.is_like(pattern) for call in every):
            some = ", ".join(sorted({call.name for call in every} | {call.path for call in every})[:MOST_NAMED])
            raise OptionError(
                f"to_onnx export_modules_as_functions: no submodule called is like {pattern!r}; there are {some}"
            )
    known = {node.name: _stack(node, patterns) for node in graph.nodes if node.op == "call_function"}
    found = {onnx_node: known[name] for onnx_node, name in translated.onnx_nodes.items() if name in known}
    return found | {value: known[name] for name, value in translated.fx_values.items() if name in known}


def _stack(node: fx.Node, patterns: Sequence[str] | None) -> Stack:
    entries = (node.meta.get("nn_module_stack") or {}).items()
    calls = [
        ModuleCall(key=str(key), path=_path(path), class_name=f"{kind.__module__}.{kind.__qualname__}")
        for key, (path, kind) in entries if isinstance(kind, type) and _path(path)
    ]  # fmt: skip
    return tuple(call for call in calls if patterns is None or any(map(call.is_like, patterns)))


def _path(source: str) -> str:
    return parameter_name(re.sub(r"^L\['\w+'\]", "L['self']", source))


def outline(model: Any, where: Mapping[str, Stack], names: frozenset[str]) -> None:
    """Moves the nodes of each call into a function; calls that compute the same share one. names: of the initializers
    that functions take as inputs, parameters and buffers; others are constants of the function.

    A node that reads what lies between it and an earlier node of its call, as an optimizer may leave it, stays outside.
    """
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)  # each function has its own
    made = _Outlining(ir=ir, model=model, names=names)
    made.labels = _labels(list(model.graph), where)
    for call in {call for stack in made.labels.values() for call in stack}:
        made.classes.setdefault(call.name, set()).add(call.class_name)
    for depth in reversed(range(max(map(len, made.labels.values()), default=0))):
        made.outline(depth)
    read = {id(value) for node in model.graph for value in made.read(node)}
    for name, value in list(model.graph.initializers.items()):
        if id(value) not in read and name not in names and not value.is_graph_output():
            del model.graph.initializers[name]
    if made.functions:
        model.graph.opset_imports[DOMAIN] = 1
    for function in model.functions.values():
        if function.domain == DOMAIN:
            function.opset_imports.update(model.graph.opset_imports)


def name_modules(model: Any, where: Mapping[str, Stack]) -> None:
    """Writes into the metadata of nodes in which modules they are, as torch's exporter does: what draws or profiles a
    model reads it there. Calls of functions have their own."""
    labels = _labels(list(model.graph), where)
    for node in model.graph:
        calls = labels[id(node)]
        if calls and PATH not in node.metadata_props:
            node.metadata_props[SCOPES] = repr(["", *(call.path for call in calls), node.name or node.op_type])
            node.metadata_props[CLASSES] = repr(["", *(call.class_name for call in calls), node.op_type])


def _labels(nodes: Sequence[Any], where: Mapping[str, Stack]) -> dict[int, Stack]:
    """{id of a node: its calls}: what is known of it or of a value it gives, else what those that read it have in
    common."""
    labels: dict[int, Stack] = {}
    for node in reversed(nodes):
        named = [node.name, *(value.name for value in node.outputs)]
        known = next((where[name] for name in named if name in where), None)
        readers = [labels[id(user)] for value in node.outputs for user in value.consumers() if id(user) in labels]
        is_returned = any(value.is_graph_output() for value in node.outputs)
        labels[id(node)] = known if known is not None else () if is_returned else _common(readers)
    return labels


def _common(found: Sequence[Stack]) -> Stack:
    together = zip(*found, strict=False)
    return tuple(calls[0] for calls in takewhile(lambda calls: len({*calls}) == 1, together))


@dataclass(kw_only=True)
class _Outlining:
    """labels: {id of a node of the model's graph: its calls}. functions: {what a body is: the function that has it}.
    classes: {short name: the classes that have it}. names_taken: of functions; a number may make another class'.
    calls: {path: how many there are already}."""

    ir: Any
    model: Any
    names: frozenset[str]
    labels: dict[int, Stack] = field(default_factory=dict)
    functions: dict[Any, str] = field(default_factory=dict)
    classes: dict[str, set[str]] = field(default_factory=dict)
    names_taken: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)

    def outline(self, depth: int) -> None:
        """Makes functions of the calls at a depth; there are no deeper ones."""
        found: dict[Stack, list[Any]] = {}
        for node in self.model.graph:
            if len(stack := self.labels[id(node)]) > depth:
                found.setdefault(stack, []).append(node)
        for stack, nodes in found.items():
            members, behind = self._convex(nodes)
            for node in nodes:
                self.labels[id(node)] = stack[:depth]
            self._into_function([node for node in nodes if id(node) in members], stack)
            if behind:
                self.model.graph.sort()

    def _convex(self, nodes: Sequence[Any]) -> tuple[set[int], set[int]]:
        """Nodes of a call, but for those that read what is computed outside of it from what it computed, and the others
        up to its last one that read something of it."""
        wanted, members, behind = set(map(id, nodes)), set[int](), set[int]()
        for node in dropwhile(lambda node: node is not nodes[0], self.model.graph):
            sources = {id(producer) for value in self.read(node) if (producer := value.producer()) is not None}
            if not sources & behind and id(node) in wanted:
                members.add(id(node))
            elif sources & (behind | members):
                behind.add(id(node))
            if node is nodes[-1]:
                break
        return members, behind

    def read(self, node: Any) -> Iterator[Any]:
        """Values that a node reads, in graphs inside it, too."""
        yield from (value for value in node.inputs if value is not None)
        for body in bodies(node):
            for inner in body:
                yield from self.read(inner)
            yield from body.outputs

    def _into_function(self, nodes: Sequence[Any], stack: Stack) -> None:
        """Puts a call in the place of nodes, which are a function's body."""
        graph, call = self.model.graph, stack[-1]
        own = {id(value) for node in nodes for value in _made(node)}
        read = {id(value): value for node in nodes for value in self.read(node) if id(value) not in own}
        given = [value for value in read.values() if not value.is_initializer() or value.name in self.names]
        given.sort(key=lambda value: value.is_initializer())
        inside = set(map(id, nodes))
        results = [value for node in nodes for value in node.outputs if self._is_read_outside(value, inside)]
        name = self._function(self.ir.convenience.extract(graph, given, results), call)
        self.calls[call.path] += 1  # twice in one body, names of nodes would be one after inlining
        made = self.ir.node(
            name, given, domain=DOMAIN, num_outputs=len(results), name=f"{call.path}_call_{self.calls[call.path]}"
        )
        made.metadata_props[PATH] = call.path
        graph.insert_after(nodes[-1], made)
        for value, in_its_place in zip(results, made.outputs, strict=True):
            in_its_place.type, in_its_place.shape, in_its_place.name = value.type, value.shape, value.name
        self.ir.convenience.replace_all_uses_with(results, made.outputs, replace_graph_outputs=True)
        graph.remove(nodes, safe=True)
        self.labels[id(made)] = stack[:-1]

    def _is_read_outside(self, value: Any, inside: set[int]) -> bool:
        return value.is_graph_output() or any(id(self._outermost(user)) not in inside for user in value.consumers())

    def _outermost(self, node: Any) -> Any:
        """The node of the model's graph that a node is in."""
        while node.graph is not self.model.graph:
            node = node.graph.parent_node
        return node

    def _function(self, body: Any, call: ModuleCall) -> str:
        """The name of a function with this body, which it has from now on."""
        self._name_inputs(body, call)
        self._own_constants(body)
        for value in (*body.inputs, *(value for node in body for value in _made(node))):
            value.type = value.shape = None  # another call may have others
        key = (call.class_name, *_what_it_is(self.ir, body))
        if key not in self.functions:
            short = call.name if len(self.classes[call.name]) == 1 else call.name_with_module
            names = (short if number == 1 else f"{short}_{number}" for number in count(1))
            name = self.functions[key] = next(name for name in names if name not in self.names_taken)
            self.names_taken.add(name)
            function = self.ir.Function(DOMAIN, name, graph=body, attributes=[])
            function.metadata_props[CLASS] = call.class_name
            self.model.functions[function.identifier()] = function
        return self.functions[key]

    def _name_inputs(self, body: Any, call: ModuleCall) -> None:
        """`weight` of what is `layers.0.weight` outside."""
        taken = {str(value.name) for node in body for value in _made(node)}
        taken |= {str(value.name) for value in body.inputs}
        for value in body.inputs:  # a name that another input has yet stays that one's
            short = str(value.name).removeprefix(f"{call.path}.")
            if short not in taken:
                value.name = short
                taken.add(short)

    def _own_constants(self, body: Any) -> None:
        given = set(map(id, body.inputs))
        for name, value in list(body.initializers.items()):
            del body.initializers[name]
            if id(value) in given:
                value.const_value = None
                continue
            constant = self.ir.node("Constant", [], attributes={"value": value.const_value})
            of = constant.outputs[0]
            of.type, of.shape = value.type, value.shape
            body.insert_before(body[0], constant)
            value.replace_all_uses_with(of)
            of.name = name


def _made(node: Any) -> Iterator[Any]:
    yield from node.outputs
    for body in bodies(node):
        yield from body.inputs
        yield from body.initializers.values()
        for inner in body:
            yield from _made(inner)


def _what_it_is(ir: Any, body: Any) -> tuple[Hashable, ...]:
    """All of a function's body but its names and the order of its constants."""
    known: dict[int, Hashable] = {id(value): index for index, value in enumerate(body.inputs)}
    nodes: list[Hashable] = []
    for node in body:
        attributes = tuple(sorted((name, _serialized(ir, of)) for name, of in node.attributes.items()))
        if node.op_type == "Constant":
            known[id(node.outputs[0])] = attributes
            continue
        read = tuple(None if value is None else known[id(value)] for value in node.inputs)
        known |= {id(value): (len(nodes), index) for index, value in enumerate(node.outputs)}
        nodes.append((node.domain, node.op_type, read, len(node.outputs), attributes))
    return len(body.inputs), tuple(nodes), tuple(known[id(value)] for value in body.outputs)


def _serialized(ir: Any, attribute: Any) -> bytes:
    proto = ir.serde.serialize_attribute(attribute)
    proto.t.ClearField("name")
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized
