"""What the backend does with a model: graphs, breaks, nodes on ONNX Runtime, nodes left to eager and why, time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rust_ort._callable import make_callable
from rust_ort.backend import Backend, compiled_apart
from rust_ort.export.partition import EagerNode
from rust_ort.observe import failures, limits, work
from rust_ort.observe.graph_info import GraphInfo, called, in_order
from rust_ort.observe.graph_lines import graph_lines, time_line
from rust_ort.observe.reference import one_at_a_time
from rust_ort.observe.report import html_lines, html_table
from rust_ort.observe.rules import rule_lines, total
from rust_ort.observe.sides import scalar_loss
from rust_ort.observe.state import Copies, kept_state
from rust_ort.observe.verdicts import break_lines, graph_breaks, why_nothing
from rust_ort.options import Options, arguments

__all__ = ["Explanation", "explain"]


@dataclass(kw_only=True)
class Explanation:
    """Result of `rust_ort.explain`. `breaks`: {reason: count}. `seconds`: time by phase. `limits`: {function that met
    Dynamo's recompile limit, here or where the model was called: its calls here that ran in eager}. `not_compiled`: why
    graphs run in eager that failed to compile, where Dynamo suppresses errors."""

    graphs: list[GraphInfo]
    breaks: dict[str, int]
    seconds: dict[str, float]
    limits: dict[str, int] = field(default_factory=dict)
    not_compiled: list[str] = field(default_factory=list)

    @property
    def nodes_on_onnxruntime(self) -> int:
        return sum(graph.onnxruntime_nodes for graph in self.graphs)

    @property
    def eager(self) -> list[EagerNode]:
        """Nodes left to eager, of all graphs."""
        return [node for graph in self.graphs for node in graph.eager]

    def _repr_html_(self) -> str:
        """For notebooks: the graphs, the nodes left to eager and why, breaks and times."""
        graphs = [
            (g.name, g.compute_nodes, g.onnxruntime_nodes, len(g.parts), f"{g.eager_nodes}{work.in_eager([g])}")
            for g in self.graphs
        ]
        made = html_table(("graph", "nodes", "on ONNX Runtime", "parts", "in eager"), graphs)
        if self.eager:
            eager = [(node.name, node.op, node.reason, node.module, node.source) for node in self.eager]
            made += html_table(("in eager", "operator", "why", "module", "source"), eager)
        placed = [f"{graph.name}: {graph.placement}" for graph in self.graphs if graph.placement]
        fallen = [f"{graph.name}: {graph.fallen_back}" for graph in self.graphs if graph.fallen_back]
        return made + html_lines(
            [
                self._count(),
                *placed,
                *fallen,
                *break_lines(self.breaks),
                *self._limits(),
                *self.not_compiled,
                time_line(self.seconds),
            ]
        )

    def _count(self) -> str:
        count = f"{len(self.graphs)} graphs, {sum(self.breaks.values())} graph breaks"
        return count if self.graphs else f"{count}; {why_nothing(self.breaks)}"

    def _limits(self) -> list[str]:
        met = "met Dynamo's recompile limit (torch._dynamo.config.recompile_limit)"
        return [
            f"{name}: {met}: "
            + (f"{count} of its calls here ran in eager" if count else "calls that no graph fits run in eager")
            for name, count in self.limits.items()
        ]

    def __str__(self) -> str:
        lines = [self._count()]
        for graph in self.graphs:
            lines += [f"  {line}" for line in graph_lines(graph)]
        division = total(graph.division for graph in self.graphs)
        lines += rule_lines(division)
        lines += [f"  {line}" for line in (*break_lines(self.breaks), *self._limits(), *self.not_compiled)]
        return "\n".join([*lines, time_line(self.seconds)])


class _Explaining(Backend):
    """Equal to its like alone: what is explained again was compiled by an explanation, which counted its breaks."""


def explain(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles and runs `model(*args, **kwargs)`, and tells its graphs, breaks, nodes on ONNX Runtime, nodes left to
    eager and why, and the time of each phase.

        print(rust_ort.explain(model, input_ids, labels=labels))

    model: a module or a function of tensors. args, kwargs: of the model, as in a call of it.
    backward: also the backward of the loss (see `rust_ort.compare`).
    options: of the backend, see `rust_ort.Options`.

    Returns an Explanation: print it. The model runs twice, the second time for the time of a call, and its state is
    restored.

    Errors: OptionError for an argument or option; ClientError; DaemonFault; what the model raises.
    """
    arguments.checked_model("explain", model, kwargs)
    arguments.checked_flag("explain", "backward", backward)
    backend = _Explaining(arguments.checked_options("explain", options))
    compiled = compiled_apart(model, backend)

    def step() -> float:
        copied_args, copied_kwargs = Copies(model).of((args, kwargs))
        start = time.perf_counter()
        with torch.enable_grad() if backward else torch.no_grad():
            outputs = compiled(*copied_args, **copied_kwargs)
            loss = scalar_loss(outputs, None) if backward else None
            if loss is not None:
                loss.backward()
        return time.perf_counter() - start

    with (
        one_at_a_time(), kept_state(model) as state, called() as called_graphs, limits.counted() as in_eager,
        failures.heard() as not_compiled,
    ):  # fmt: skip
        breaks = graph_breaks()
        first = step()
        state.restore()
        second = step()
        found = graph_breaks() - breaks
    graphs = called_graphs()
    if backend.graphs:
        backend.graphs[0].breaks = dict(found)
    else:  # compiled when it was explained before
        found = sum((Counter(graph.breaks) for graph in graphs), found)
    seconds: dict[str, float] = {}
    for graph in backend.graphs:
        for phase, spent in graph.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    ours = seconds.pop("total", 0.0)
    seconds = {
        "Dynamo and AOTAutograd": max(first - second - ours, 0.0),
        **seconds,
        "first call": first,
        "a call": second,
    }
    known = dict.fromkeys(limits.met_by(model), 0) | {one.name: count for one, count in in_eager().items()}
    return Explanation(
        graphs=in_order(graphs), breaks=dict(found), seconds=seconds, limits=known, not_compiled=not_compiled()
    )


make_callable(__name__, explain)
