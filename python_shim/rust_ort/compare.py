"""Eager against the backend on one call of a model: outputs, loss, every gradient, buffers afterwards."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort._callable import make_callable
from rust_ort.backend import Backend, client_of
from rust_ort.graph_info import GraphInfo, NodeVerdict, called, half_tolerance
from rust_ort.options import Options
from rust_ort.reference import in_eager, rng_kept
from rust_ort.torch_private import pytree

Pair = tuple[str, Tensor | None, Tensor | None, str]


@dataclass(kw_only=True)
class Report:
    """Result of `rust_ort.compare`. `verdicts`: one a value compared, or not compared with the reason."""

    verdicts: list[Any] = field(default_factory=list)
    graphs: list[GraphInfo] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """At least one value matched, none is outside tolerance and none failed."""
        kinds = [verdict.kind for verdict in self.verdicts]
        return "match" in kinds and not {"mismatch", "failed"} & set(kinds)

    @property
    def nodes(self) -> list[tuple[str, NodeVerdict]]:
        """(graph, verdicts) of every FX node, under the option compare="nodes"."""
        return [(graph.name, node) for graph in self.graphs for _, node in graph.nodes]

    @property
    def first_wrong_node(self) -> tuple[str, NodeVerdict] | None:
        """(graph, node) of the first node whose own kernel differs from eager on eager's inputs, or failed."""
        return next(((graph, node) for graph, node in self.nodes if node.is_wrong), None)

    def to_json(self) -> str:
        return json.dumps(
            {
                "schema": 1,
                "ok": self.ok,
                "verdicts": [
                    {
                        "name": verdict.name,
                        "verdict": verdict.kind,
                        "reason": verdict.reason,
                        "max_abs": verdict.max_abs,
                        "max_rel_to_max": verdict.max_rel_to_max,
                        "outside": verdict.outside,
                    }
                    for verdict in self.verdicts
                ],
                "graphs": [
                    {
                        "name": graph.name,
                        "compute_nodes": graph.compute_nodes,
                        "eager": [{"node": node.name, "reason": node.reason} for node in graph.eager],
                    }
                    for graph in self.graphs
                ],
            },
            indent=1,
        )

    def __str__(self) -> str:
        width = max([len(verdict.name) for verdict in self.verdicts] + [4])
        lines = [f"{'name':<{width}}  {'verdict':<12}  {'max |c-r|':>9}  {'/max |r|':>9}  outside"]
        for verdict in self.verdicts:
            numbers = (
                f"{verdict.max_abs:>9.2e}  {verdict.max_rel_to_max:>9.2e}  {verdict.outside}"
                if verdict.kind in ("match", "mismatch")
                else str(verdict.reason)
            )
            lines.append(f"{verdict.name:<{width}}  {verdict.kind:<12}  {numbers}")
        nodes = sum(graph.compute_nodes for graph in self.graphs)
        eager = sum(len(graph.eager) for graph in self.graphs)
        counts = {kind: sum(v.kind == kind for v in self.verdicts) for kind in _KINDS}
        lines.append(
            ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            + f"; {len(self.graphs)} graphs, {nodes - eager} nodes on ONNX Runtime, {eager} in eager"
        )
        if self.nodes:
            kinds = Counter(node.local.kind for _, node in self.nodes)
            lines.append("nodes: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
        if self.first_wrong_node is not None:
            lines.append("first wrong node: {}: {}".format(*self.first_wrong_node))
        return "\n".join(lines)


_KINDS = ("match", "mismatch", "not_compared", "failed")


def compare(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    autocast: torch.dtype | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Report:
    """Runs `model(*args, **kwargs)` in eager and through the backend from the same state and compares the two.

    backward: also the gradients of every parameter and of inputs that require them. autocast: dtype of an autocast
    region around the forward. loss: scalar from the outputs; None takes the output's `loss`, else the sum of every
    floating output's mean with weights cos(i). options: of the backend; None with a model that rust_ort compiled
    already: that model's own. The reference runs with every compilation off, in all threads.

    Parameters, buffers, gradients, random state and training mode are afterwards as before; arguments are copied, so
    in-place changes stay inside.
    """
    backend = Backend(options)
    with kept_state(model):
        before = _detached_state(model)
        with in_eager():
            reference = _run(model, model, args, kwargs, backward=backward, autocast=autocast, loss=loss)
        _restore(model, before)
        graphs: list[GraphInfo] = []
        if options is None and _is_compiled(model):
            with called() as called_graphs:
                candidate = _run(model, model, args, kwargs, backward=backward, autocast=autocast, loss=loss)
            graphs = called_graphs()
            _restore(model, before)
        if not graphs:
            compiled = torch.compile(model, backend=backend)
            with called() as called_graphs:
                candidate = _run(compiled, model, args, kwargs, backward=backward, autocast=autocast, loss=loss)
            graphs = called_graphs()
    pairs = _pairs(reference, candidate, graphs)
    return Report(verdicts=_judged(pairs, backend.options, graphs), graphs=graphs)


def _is_compiled(model: Any) -> bool:
    """Whether `torch.compile` made it, or `model.compile()` was called."""
    return (
        isinstance(model, torch._dynamo.OptimizedModule)
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def _judged(pairs: Sequence[Pair], options: Options, graphs: Sequence[GraphInfo]) -> list[Any]:
    """Verdicts in the order of `pairs`. Where half precision took part, floats are judged by its steps."""
    client, tolerance = client_of(options), options.tolerance
    dtypes = {graph.lowest_precision for graph in graphs}
    half = next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)
    if tolerance is not None:
        return list(client.compare(list(pairs), tolerance))
    return judged_as_half(pairs, client, half)


def judged_as_half(pairs: Sequence[Pair], client: Any, half: torch.dtype | None) -> list[Any]:
    """Verdicts in the order of `pairs`; floats by the steps of `half`. None: all by their own dtype."""
    if half is None:
        return list(client.compare(list(pairs), None))
    wide = [pair[1] is not None and pair[1].dtype.is_floating_point for pair in pairs]
    floats = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if w], half_tolerance(half)))
    others = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if not w], None))
    return [next(floats if w else others) for w in wide]


def _run(
    call: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, backward: bool,
    autocast: torch.dtype | None, loss: Callable[[Any], Tensor] | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """{name: value} of one run: outputs, loss, gradients, buffers and changed arguments."""
    args, kwargs = copied(args), copied(dict(kwargs))
    values: dict[str, Tensor | None] = {}
    device = next((leaf.device.type for leaf in _tensors(args, kwargs)), "cpu")
    with rng_kept(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if backward else torch.no_grad())
        with torch.autocast(device, dtype=autocast) if autocast is not None else contextlib.nullcontext():
            outputs = call(*args, **kwargs)
        values |= {f"output{path}": _kept(leaf) for path, leaf in named_tensors(outputs)}
        if backward:
            total = scalar_loss(outputs, loss)
            if total is not None:
                values["loss"] = _kept(total)
                total.backward()
    if backward:
        values |= {f"grad of {name}": _kept(p.grad) for name, p in _named(model, "parameters") if p.requires_grad}
        for path, leaf in named_tensors((args, kwargs)):
            if leaf.requires_grad:
                values[f"grad of input{path}"] = _kept(leaf.grad)
    values |= {f"buffer {name}": _kept(buffer) for name, buffer in _named(model, "buffers")}
    values |= {f"input{path} afterwards": _kept(leaf) for path, leaf in named_tensors((args, kwargs))}
    return values


def scalar_loss(outputs: Any, loss: Callable[[Any], Tensor] | None) -> Tensor | None:
    """`loss` of the outputs, else their own, else a weighted mean of all; None when none needs a gradient."""
    if loss is not None:
        return loss(outputs)
    own = getattr(outputs, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1:
        return own
    parts = [_weighted_mean(leaf) for _, leaf in named_tensors(outputs) if leaf.requires_grad and leaf.numel() > 0]
    return torch.stack(parts).sum() if parts else None


def _weighted_mean(output: Tensor) -> Tensor:
    """Mean with weights cos(i). Of equal weights or squares the gradient through a normalization is zero: noise."""
    weights = torch.arange(output.numel(), dtype=torch.float32, device=output.device).cos().reshape(output.shape)
    return (output.float() * weights).mean()


def _pairs(
    reference: Mapping[str, Tensor | None], candidate: Mapping[str, Tensor | None], graphs: Sequence[GraphInfo]
) -> list[Pair]:
    """What to judge. Where nothing ran on ONNX Runtime, eager would be compared with eager: that is no comparison."""
    ran = {graph.direction for graph in graphs if graph.parts}
    idle = ""
    if not ran:
        reasons = "; ".join(sorted({node.reason for graph in graphs for node in graph.eager}))
        idle = f"ran in eager: {reasons}" if reasons else "no graph was compiled"
    pairs: list[Pair] = []
    for name in [*reference, *(name for name in candidate if name not in reference)]:
        left, right = reference.get(name), candidate.get(name)
        why = idle
        if not why and left is None and right is None:
            why = "both are None"
        elif not why and (left is None or right is None):
            why = ""
        if name.endswith("afterwards") and left is not None and right is not None and torch.equal(left, right):
            continue
        if why or (left is not None and right is not None):
            pairs.append((name, left, right, why))
        else:
            pairs.append((name, left, right, f"only the {'reference' if right is None else 'candidate'} has a value"))
    return pairs


def named_tensors(value: Any) -> list[tuple[str, Tensor]]:
    """(path, tensor) of every tensor in nested containers and dataclasses such as transformers' ModelOutput."""
    found: list[tuple[str, Tensor]] = []
    _walk(value, "", found)
    return found


def _walk(value: Any, path: str, found: list[tuple[str, Tensor]]) -> None:
    if isinstance(value, Tensor):
        found.append((path, value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _walk(item, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]", found)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", found)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for name in value.__dataclass_fields__:
            _walk(getattr(value, name), f"{path}.{name}", found)
    else:
        leaves, spec = pytree.tree_flatten(value)
        if not spec.is_leaf():
            for index, item in enumerate(leaves):
                _walk(item, f"{path}[{index}]", found)


def copied(value: Any) -> Any:
    """Arguments with their tensors cloned; other objects as they are."""

    def clone(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter):
            return leaf
        copy = leaf.detach().clone(memory_format=torch.preserve_format)
        return copy.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(clone, value)


def _tensors(*values: Any) -> Iterator[Tensor]:
    for value in values:
        yield from (leaf for _, leaf in named_tensors(value))


def _named(model: Any, kind: str) -> list[tuple[str, Tensor]]:
    return list(getattr(model, f"named_{kind}")()) if isinstance(model, nn.Module) else []


def _kept(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().clone()


def _detached_state(model: Any) -> dict[str, Tensor]:
    return {
        f"{kind} {name}": value.detach().clone()
        for kind in ("parameters", "buffers") for name, value in _named(model, kind)
    }  # fmt: skip


def _restore(model: Any, state: Mapping[str, Tensor]) -> None:
    """Parameters and buffers as in `state`, gradients None."""
    with torch.no_grad():
        for kind in ("parameters", "buffers"):
            for name, value in _named(model, kind):
                saved = state.get(f"{kind} {name}")
                if saved is not None:
                    value.copy_(saved)
    for _, parameter in _named(model, "parameters"):
        parameter.grad = None


@contextlib.contextmanager
def kept_state(model: Any) -> Iterator[None]:
    """Restores parameters, buffers, gradients, training mode and random state; gradients are None inside."""
    state = _detached_state(model)
    grads = {name: parameter.grad for name, parameter in _named(model, "parameters")}
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    for _, parameter in _named(model, "parameters"):
        parameter.grad = None
    try:
        with rng_kept():
            yield
    finally:
        _restore(model, state)
        for name, parameter in _named(model, "parameters"):
            parameter.grad = grads.get(name)
        for module, training in modes.items():
            module.training = training


make_callable(__name__, compare)
