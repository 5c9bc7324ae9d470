"""AOT graphs of a module as rust_ort compiles them, exported by torch.onnx.export too: the same graph through both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, fx

from rust_ort import torch_private
from rust_ort.export import decompositions
from rust_ort.studies import torch_export


@dataclass(frozen=True, kw_only=True)
class Traced:
    """An AOT graph and the inputs of its call."""

    graph: fx.GraphModule
    inputs: tuple[Tensor, ...]


@dataclass(kw_only=True)
class Tracing:
    """A torch.compile backend that keeps each AOT graph with its first call, and runs it in eager.

    Decompositions and partitioner are those of rust_ort's backend, so that nodes have the names of its graphs."""

    found: dict[str, Traced] = field(default_factory=dict)
    """{"forward" | "backward" | "inference": the last one of a direction}"""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        from functorch.compile import min_cut_rematerialization_partition

        compilers = {
            f"{prefix}_compiler": self._keeping(direction)
            for prefix, direction in (("fw", "forward"), ("bw", "backward"), ("inference", "inference"))
        }
        compiler = torch_private.aot_autograd(
            **compilers, decompositions=decompositions.table(), partition_fn=min_cut_rematerialization_partition
        )
        compiled: Callable[..., Any] = compiler(gm, example_inputs)
        return compiled

    def _keeping(self, direction: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            def run(inputs: list[Any]) -> Any:
                self.found[direction] = Traced(graph=graph, inputs=tuple(inputs))
                return graph(*inputs)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph


def export(traced: Traced, path: Path, *, outputs: Sequence[str], opset: int) -> list[str]:
    """Writes what torch.onnx.export makes of the graph with the nodes of these names as its outputs, and the graph as
    text beside it. Returns the names that are no node of the graph: nothing is written where there are any."""
    nodes = {node.name: node for node in traced.graph.graph.nodes}
    missing = [name for name in outputs if name not in nodes]
    if missing:
        return missing
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(traced.graph.graph, copied)
    graph.output(tuple(copied[nodes[name]] for name in outputs))
    graph.eliminate_dead_code()
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    module = fx.GraphModule(traced.graph, graph)
    path.with_suffix(".txt").write_text(f"{module.graph}\n")
    torch_export.export(module, traced.inputs, path, input_names=names, opset=opset)
    _name_outputs(path, outputs)
    return []


def _name_outputs(path: Path, names: Sequence[str]) -> None:
    """Gives the model's outputs these names. The exporter, given them, leaves another value its name where that is one
    of them (torch 2.13), and the model has two values of one name."""
    import onnx_ir as ir

    model = ir.load(path)
    graph = model.graph
    results = [value for node in ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    for value in (*graph.initializers.values(), *results):
        if value.name in names:
            value.name = f"{value.name}__exported"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name
    ir.save(model, path)
