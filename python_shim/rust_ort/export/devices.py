"""Where the tensors of a part are, as its fake tensors say it: the device that computes it, and which are there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx

from rust_ort.export.plan import PlannedPart


@dataclass(frozen=True, kw_only=True)
class Places:
    """device: number of the CUDA device that computes a part; None: the host. inputs, outputs: which of its model's are
    there. The others are on the CPU: the part takes them from there, and brings them there."""

    device: int | None
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def on_cuda(module: fx.GraphModule) -> bool:
    """Whether a value of the graph is on CUDA, whoever computes it."""
    values = (node.meta.get("val") for node in module.graph.nodes)
    return any(isinstance(value, Tensor) and value.is_cuda for value in values)


def places(part: PlannedPart) -> Places:
    """Of the part's inputs and outputs; those on CUDA are on one device (`partition`)."""
    values = {node.name: node.meta.get("val") for node in part.graph.module.graph.nodes}

    def devices(names: list[str]) -> list[int | None]:
        found = (values[name] for name in names)
        return [value.get_device() if isinstance(value, Tensor) and value.is_cuda else None for value in found]

    inputs, outputs = devices(part.translated.input_names), devices(part.tensor_outputs)
    found = {number for number in (*inputs, *outputs) if number is not None}
    assert len(found) <= 1, f"a part on several CUDA devices: {found}"

    def there(numbers: list[int | None]) -> tuple[bool, ...]:
        return tuple(number is not None for number in numbers)

    return Places(device=next(iter(found), None), inputs=there(inputs), outputs=there(outputs))
