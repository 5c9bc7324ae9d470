"""Where the tensors of a graph are, as its fake tensors say it: what computes the graph where the option `providers` is
None, and which tensors of a part are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from rust_ort.errors import ClientError
from rust_ort.export.plan import PlannedPart
from rust_ort.torch_private import pytree

COMPUTING = ("cpu", "cuda")
SHOWN = 4
"""Tensors that an error names of each device."""

Providers = tuple[tuple[str, dict[str, str]], ...]
"""(name, options) of each execution provider, as the option `providers` has them."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Which inputs and outputs of a part's model are on its graph's device. The others are on the CPU."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def device_of(gm: fx.GraphModule, *, graph: str = "") -> torch.device | None:
    """The CUDA device that the inputs and outputs of an AOT graph are on; None: the CPU.

    Beside CUDA tensors, the CPU may have numbers, tensors of rank 0, and what is only copied from it or to it.
    Errors: ClientError for tensors on several devices, or on one that nothing here computes on.
    """
    found: dict[torch.device, list[str]] = {}
    for name, value in _computed_with(gm):
        if value.dim() or not value.is_cpu:
            found.setdefault(value.device, []).append(f"{name} {list(value.shape)}")
    if len(found) > 1 or any(device.type not in COMPUTING for device in found):
        raise _refusal(found, graph)
    return next((device for device in found if device.type == "cuda"), None)


def places(part: PlannedPart, device: torch.device | None) -> Places:
    """Of a part whose graph is on this device."""
    values = {node.name: node.meta.get("val") for node in part.graph.module.graph.nodes}

    def there(name: str) -> bool:
        value = values[name]
        return isinstance(value, Tensor) and value.device == device

    return Places(inputs=tuple(map(there, part.translated.input_names)), outputs=tuple(map(there, part.tensor_outputs)))


def providers(device: torch.device | None) -> Providers:
    """What `providers=None` means for a graph on this device: (), ONNX Runtime's CPU provider alone, or CUDA's."""
    return () if device is None else (("CUDAExecutionProvider", {"device_id": str(device.index or 0)}),)


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
    wanted = next((str(device) for device in sorted(found, key=str) if device.type == "cuda"), "cpu")
    return ClientError(
        f"a graph is computed on one device, the CPU or one of CUDA, and its tensors are elsewhere: {where}; move them "
        f'to one device before the call, as by .to("{wanted}"); beside CUDA tensors only those of rank 0 may be on '
        "the CPU",
        code="UNSUPPORTED",
        graph=graph,
    )
