"""Outputs that share memory, with each other, with an input or among their own elements, as views in eager do. ONNX
knows values, not memory, so what ties them together stays in torch, where it moves no data."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from rust_ort.export.shapes import SIZE_OPERATORS, fills_its_storage, is_symbolic, overlaps
from rust_ort.torch_private import OpOverload, pytree

aten = torch.ops.aten

SHARES_MEMORY = "an output's view of memory shared with another output, an input or itself: it computes nothing"

DIRECTION = "rust_ort direction"
"""Key of a graph module's meta: "forward", "backward" or "inference"."""

COPY = "rust_ort view of an output"
"""Key of a node's meta: it is made here, for the output alone; the node that it repeats is counted."""


UNDECLARED_VIEWS = frozenset(
    {
        aten._unsafe_view.default,
        aten.unsafe_chunk.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)
"""Operators whose results are views of their first argument, though their schemas declare them apart from it."""


KEEP_LAYOUTS = (aten.copy.default, aten.select_scatter.default, aten.slice_scatter.default)
"""Operators whose result has the strides and the offset of their first argument."""


def hidden_outputs(output: fx.Node) -> frozenset[int]:
    """Positions of the outputs of which no user sees whose memory they share: saved for backward, and gradients."""
    return _described(output, ("SavedForBackwards", "GradAOTOutput"))


def saved_outputs(output: fx.Node) -> frozenset[int]:
    """Positions of the outputs that no user sees at all. Hooks and functions above the graph see gradients."""
    return _described(output, ("SavedForBackwards",))


def _described(output: fx.Node, kinds: tuple[str, ...]) -> frozenset[int]:
    descs = output.meta.get("desc") or ()
    return frozenset(
        index
        for index, desc in enumerate(pytree.tree_leaves(descs, is_leaf=lambda x: x is None))
        if type(desc).__name__.startswith(kinds)
    )


def base_of(node: fx.Node) -> fx.Node | None:
    """Whose memory `node` gives another view of; None when its memory is its own."""
    target = node.target
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if target is operator.getitem:
        return node.args[0] if base_of(node.args[0]) is not None else None
    if isinstance(target, OpOverload) and (target.is_view or target in UNDECLARED_VIEWS):
        return node.args[0]
    return None


def root_of(node: fx.Node) -> fx.Node:
    """The node or input whose memory `node` is a view of, through views of views; itself when it is no view."""
    while (base := base_of(node)) is not None:
        node = base
    return node


def keep_shared(gm: fx.GraphModule, graph: fx.Graph) -> dict[str, str]:
    """{node: why it stays in eager} of `graph`, a copy of gm's that is changed: the views between an output and the
    memory it shares. One that something else reads as well may go to ONNX Runtime for that; the output gets its own."""
    output = graph.output_node()
    _save_outputs_themselves(output)
    sizes = any(_has_symbols(node.meta.get("val")) for node in graph.nodes if node.op == "placeholder")
    shared = _sharing(output, inputs_too=sizes or gm.meta.get(DIRECTION) == "forward")
    chains = {node for member in shared for node in _chain(member)}
    elsewhere: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        readers = [user for user in node.users if user.target not in SIZE_OPERATORS]
        if node in chains and any(user in elsewhere or user not in {*chains, output} for user in readers):
            elsewhere.add(node)
    own: dict[fx.Node, fx.Node] = {}
    for node in [node for node in graph.nodes if node in elsewhere]:
        with graph.inserting_after(node):
            own[node] = graph.node_copy(node, lambda source: own.get(source, source))
        own[node].name = f"{node.name}_of_output"
        own[node].meta = {**node.meta, COPY: True}
    moved = chains - elsewhere
    for reader in (*moved, output):
        reader.args = fx.map_arg(reader.args, lambda source: own.get(source, source))
    return {node.name: SHARES_MEMORY for node in (*moved, *own.values())}


def _save_outputs_themselves(output: fx.Node) -> None:
    """What is saved for backward of an output is that output, not a copy: a write to it is one that autograd sees."""
    hidden, saved = hidden_outputs(output), saved_outputs(output)
    returned: Any = output.args[0]
    seen = {node for index, node in enumerate(returned) if index not in hidden}
    made = list(returned)
    for index in saved:
        node = made[index]
        while isinstance(node, fx.Node) and node.target is aten.detach.default:
            node = node.args[0]
        if node in seen:
            made[index] = node
    output.args = (type(returned)(made),)


def end_views(graph: fx.Graph) -> None:
    """Makes what an operator's decomposition ends in, an output that is a view of a value in `graph`, a tensor of its
    own for autograd, which forbids to write to a view that a custom function made."""
    output = graph.output_node()
    for node in {*output.all_input_nodes}:
        whose = node.meta.get("original_aten")
        if not isinstance(whose, OpOverload) or whose.is_view or root_of(node).op != "call_function":
            continue
        if base_of(node) is not None:
            with graph.inserting_before(output):
                ended = graph.call_function(as_no_view, (node,))
            ended.meta["val"] = node.meta.get("val")
            output.replace_input_with(node, ended)


def as_no_view(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, of the same memory, that autograd knows as no view."""
    made: torch.Tensor = aten._unsafe_view.default(tensor, tensor.shape)
    return made


def _sharing(output: fx.Node, *, inputs_too: bool) -> list[fx.Node]:
    """Outputs that must be views of the very memory of another output, of an input, or of a value they are spread from.

    What is a view of an input AOTAutograd makes anew from that input and the graph's output's own place in its storage;
    it does without the latter where no size is symbolic. In a forward graph it leaves some to the graph altogether.
    """
    hidden = hidden_outputs(output)
    descs = pytree.tree_leaves(output.meta.get("desc") or (), is_leaf=lambda x: x is None)
    groups: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    layouts = set()
    for index, node in enumerate(pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)):
        if not isinstance(node, fx.Node) or index in hidden or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if node not in groups[root_of(node)]:
            groups[root_of(node)].append(node)
        if index < len(descs) and type(descs[index]).__name__ == "MetadataMutationAOTOutput":
            layouts.add(node)
    found = []
    for root, members in groups.items():
        if root.op == "call_function":
            found += [member for member in members if member is not root and (len(members) > 1 or _shows(member))]
        else:
            found += [
                member for member in members
                if member is not root and (inputs_too or member in layouts or _is_undeclared(member))
            ]  # fmt: skip
    return found


def _shows(view: fx.Node) -> bool:
    """Whether a user can tell `view` from memory of its own. Fake tensors do not know what keeps a layout."""
    kept = root_of(view).target in KEEP_LAYOUTS
    return kept or overlaps(view.meta["val"]) or not fills_its_storage(view.meta["val"])


def _is_undeclared(view: fx.Node) -> bool:
    """Whether AOTAutograd takes `view`, of an input, for a tensor of its own."""
    return any(node.target in UNDECLARED_VIEWS for node in _chain(view))


def _has_symbols(value: object) -> bool:
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and is_symbolic(value))


def _chain(node: fx.Node) -> Iterator[fx.Node]:
    """The views from `node` to the memory it shares."""
    while (base := base_of(node)) is not None:
        yield node
        node = base
