"""Where the tensors of a graph are, as its fake tensors say it: the device that computes it, and which tensors of a
part are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from rust_ort.errors import ClientError
from rust_ort.export.plan import PlannedPart
from rust_ort.torch_private import pytree

SHOWN = 4
"""Tensors that an error names of each device."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Which inputs and outputs of a part's model are on its graph's device. The others are on the CPU."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def device_of(gm: fx.GraphModule, *, graph: str = "") -> torch.device | None:
    """The CUDA device that inputs and outputs of an AOT graph are on; None: there is none.

    Others may be on the CPU: a part has them from there, and brings them there. Errors: ClientError for several CUDA
    devices.
    """
    found: dict[torch.device, list[str]] = {}
    for name, value in _computed_with(gm):
        if value.is_cuda:
            found.setdefault(value.device, []).append(f"{name} {list(value.shape)}")
    if len(found) > 1:
        raise _refusal(found, graph)
    return next(iter(found), None)


def places(part: PlannedPart, device: torch.device | None) -> Places:
    """Of a part whose graph is on this device."""
    values = {node.name: node.meta.get("val") for node in part.graph.module.graph.nodes}

    def there(name: str) -> bool:
        value = values[name]
        return isinstance(value, Tensor) and value.device == device

    return Places(inputs=tuple(map(there, part.translated.input_names)), outputs=tuple(map(there, part.tensor_outputs)))


def _computed_with(gm: fx.GraphModule) -> Iterator[tuple[str, Tensor]]:
    """The inputs and outputs by name, but for those that are only copied between devices, or handed through."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, Tensor) and not all(user.op == "output" or _moves(user) for user in node.users):
            yield f"input {node.name}", value
    for node in dict.fromkeys(pytree.tree_leaves(gm.graph.output_node().args)):
        if isinstance(node, fx.Node) and node.op != "placeholder" and not _moves(node):
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                yield f"output {node.name}", value


def _moves(node: fx.Node) -> bool:
    """Whether it is a copy to another device."""
    if node.target is not torch.ops.aten._to_copy.default:
        return False
    (source,) = node.all_input_nodes
    return bool(node.meta["val"].device != source.meta["val"].device)


def _refusal(found: Mapping[torch.device, list[str]], graph: str) -> ClientError:
    def of(names: list[str]) -> str:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    where = "; ".join(f"on {device}: {of(names)}" for device, names in sorted(found.items(), key=str))
    return ClientError(
        f"a graph is computed on one CUDA device, and its tensors are on several: {where}; move them to one before the "
        "call, or break the graph between them (torch._dynamo.graph_break())",
        code="UNSUPPORTED",
        graph=graph,
    )
