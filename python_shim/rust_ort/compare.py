"""Eager against the backend on one call of a model: outputs, loss, every gradient, buffers afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort import arguments
from rust_ort._callable import make_callable
from rust_ort.backend import Backend, client_of
from rust_ort.errors import ClientError, RustOrtError
from rust_ort.graph_info import GraphInfo, called, fits, half_tolerance
from rust_ort.options import Options
from rust_ort.reference import in_eager, rng_kept
from rust_ort.report import Report
from rust_ort.torch_private import compile_counters, is_optimized_module, pytree
from rust_ort.transport.specs import Verdict, not_compared

__all__ = ["Report", "compare"]

Pair = tuple[str, Tensor | None, Tensor | None, str]
"""(name, reference, candidate, why there is nothing to compare or "")."""

ONE_SIDED = "a value comes from one side alone: "


def compare(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    autocast: torch.dtype | str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Report:
    """Runs `model(*args, **kwargs)` in eager and through the backend from the same state and compares the two.

    model: a module or a function of tensors, of any dtype and shape; what it returns may be nested.
    backward: also the gradients of every parameter and of inputs that require them.
    autocast: dtype of an autocast region around the forward, torch.bfloat16 or torch.float16 or its name.
    loss: a scalar tensor from the outputs; None takes the output's `loss`, else the sum of every floating output's mean
    with weights cos(i).
    options: of the backend, see `rust_ort.Options`; {"compare": "nodes"} names the node to blame; None with a model
    that rust_ort compiled already: that model's own. The reference runs with every compilation off, in all threads.

    Returns a Report: print it, or `report.check()`. Values are named "output", "loss", "grad of <parameter>",
    "grad of input[i]", "buffer <name>", and "input[i] afterwards" where the two left it different.

    Parameters, buffers, gradients, random state and training mode are afterwards as before; arguments are copied, so
    in-place changes stay inside. Of a function, what it closes over is not: it runs twice.

    Errors: OptionError for an argument or option; ClientError for a model that cannot be called, a loss that fails, a
    transform that fails; DaemonFault. What the model raises comes through, with a note that says on which side.
    """
    arguments.checked_model("compare", model, kwargs)
    arguments.checked_flag("compare", "backward", backward)
    arguments.checked_loss("compare", loss)
    dtype = arguments.checked_autocast("compare", autocast)
    backend = Backend(arguments.checked_options("compare", options))

    def run(side: str, call: Callable[..., Any]) -> dict[str, Tensor | None]:
        return _run(side, call, model, args, kwargs, backward=backward, autocast=dtype, loss=loss)

    breaks = graph_breaks()
    with kept_state(model):
        before = _detached_state(model)
        with in_eager():
            reference = run("eager", model)
        _restore(model, before)
        graphs: list[GraphInfo] = []
        if options is None and _is_compiled(model):
            with called() as called_graphs:
                candidate = run("the compiled model", model)
            graphs = called_graphs()
            _restore(model, before)
        if not graphs:
            with called() as called_graphs:
                candidate = run("the backend", torch.compile(model, backend=backend))
            graphs = called_graphs()
    # A model that rust_ort compiled already is judged by what it was compiled with.
    used = next((graph.options for graph in graphs if graph.options is not None), backend.options)
    pairs = _pairs(reference, candidate, graphs, graph_breaks() - breaks)
    verdicts = _judged(pairs, used, graphs)
    if not verdicts:
        verdicts = [not_compared("output", "the model gave no tensor, neither as output nor as gradient or buffer")]
    return Report(verdicts=verdicts, graphs=graphs, missing=missing(used, graphs))


def graph_breaks() -> Counter[str]:
    """Why Dynamo left code to eager in this process, counted: what broke a graph, or kept it from being made."""
    counters = compile_counters()
    return Counter(counters["graph_break"]) | Counter(counters["unimplemented"])


def missing(options: Options, graphs: Sequence[GraphInfo]) -> list[Verdict]:
    """A verdict for each pattern of compare_only by which no node was compared."""
    if options.compare_only and options.compare != "nodes":
        why = f"no node is compared under compare={options.compare!r}; use compare='nodes'"
        return [not_compared("option compare_only", why)]
    found = []
    nodes = [node for graph in graphs for _, node in graph.nodes]
    for pattern in options.compare_only:
        fitting = [node for node in nodes if fits([pattern], (node.name, node.op, node.module))]
        if not fitting:
            found.append(not_compared(f"compare_only {pattern!r}", _no_node(pattern, graphs)))
        elif all(node.local.kind == "not_compared" for node in fitting):
            why = f"{fitting[0].name}: {fitting[0].local.reason}"
            found.append(not_compared(f"compare_only {pattern!r}", why))
    return found


def _no_node(pattern: str, graphs: Sequence[GraphInfo]) -> str:
    names = [name for graph in graphs for named in (graph.operators, graph.modules) for pair in named.items()
             for name in pair if name]  # fmt: skip
    known = list(dict.fromkeys(names))
    close = difflib.get_close_matches(pattern.strip("*?"), known, n=3, cutoff=0.4)
    operators = list(dict.fromkeys(operator for graph in graphs for operator in graph.operators.values()))
    hint = f"the nearest: {', '.join(close)}" if close else f"the operators: {', '.join(operators[:10]) or 'none'}"
    return f"no node matched {pattern!r}; {hint}"


def _is_compiled(model: Any) -> bool:
    """Whether `torch.compile` made it, or `model.compile()` was called."""
    return (
        is_optimized_module(model)
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def _judged(pairs: Sequence[Pair], options: Options, graphs: Sequence[GraphInfo]) -> list[Any]:
    """Verdicts in the order of `pairs`. Where half precision took part, floats are judged by its steps.

    What the other side lacks has failed: it is not a value that nobody could compare.
    """
    client, tolerance = client_of(options), options.tolerance
    dtypes = {graph.lowest_precision for graph in graphs}
    half = next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)
    if tolerance is not None:
        verdicts = list(client.compare(list(pairs), tolerance))
    else:
        verdicts = judged_as_half(pairs, client, half)
    return [
        dataclasses.replace(verdict, kind="failed") if why.startswith(ONE_SIDED) else verdict
        for (_, _, _, why), verdict in zip(pairs, verdicts, strict=True)
    ]


def judged_as_half(pairs: Sequence[Pair], client: Any, half: torch.dtype | None) -> list[Any]:
    """Verdicts in the order of `pairs`; floats by the steps of `half`. None: all by their own dtype."""
    if half is None:
        return list(client.compare(list(pairs), None))
    wide = [pair[1] is not None and pair[1].dtype.is_floating_point for pair in pairs]
    floats = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if w], half_tolerance(half)))
    others = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if not w], None))
    return [next(floats if w else others) for w in wide]


def _run(
    side: str, call: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, backward: bool,
    autocast: torch.dtype | None, loss: Callable[[Any], Tensor] | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """{name: value} of one run: outputs, loss, gradients, buffers and changed arguments."""
    args, kwargs = copied(args), copied(dict(kwargs))
    values: dict[str, Tensor | None] = {}
    device = next((leaf.device.type for leaf in _tensors(args, kwargs)), "cpu")
    with rng_kept(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if backward else torch.no_grad())
        with noted(side), torch.autocast(device, dtype=autocast) if autocast is not None else contextlib.nullcontext():
            outputs = call(*args, **kwargs)
        values |= {f"output{path}": _kept(leaf) for path, leaf in named_tensors(outputs)}
        if backward or loss is not None:
            total = scalar_loss(outputs, loss, side=side, backward=backward)
            if total is not None:
                values["loss"] = _kept(total)
            if backward and total is not None:
                with noted(f"{side}, in the backward"):
                    total.backward()
    if backward:
        values |= {f"grad of {name}": _kept(p.grad) for name, p in _named(model, "parameters") if p.requires_grad}
        for name, leaf in _inputs(args, kwargs):
            if leaf.requires_grad:
                values[f"grad of {name}"] = _kept(leaf.grad)
    values |= {f"buffer {name}": _kept(buffer) for name, buffer in _named(model, "buffers")}
    values |= {f"{name} afterwards": _kept(leaf) for name, leaf in _inputs(args, kwargs)}
    return values


@contextlib.contextmanager
def noted(side: str) -> Iterator[None]:
    """What is raised inside says on which side of the comparison it was."""
    try:
        yield
    except RustOrtError:  # not the model's
        raise
    except Exception as error:
        error.add_note(f"rust_ort.compare: raised by the model in {side}")
        raise


def _inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """(name, tensor) of every tensor among the arguments: input[0], input.mask."""
    return [(f"input{path}", leaf) for value in (args, kwargs) for path, leaf in named_tensors(value)]


def scalar_loss(
    outputs: Any, loss: Callable[[Any], Tensor] | None, *, side: str = "eager", backward: bool = True
) -> Tensor | None:
    """`loss` of the outputs, else their own, else a weighted mean of all; None when none needs a gradient.

    Errors: ClientError when `loss` raises, or gives no scalar tensor that a backward can begin at.
    """
    if loss is not None:
        return _given_loss(outputs, loss, side, backward=backward)
    own = getattr(outputs, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1:
        return own
    parts = [_weighted_mean(leaf) for _, leaf in named_tensors(outputs) if leaf.requires_grad and leaf.numel() > 0]
    return torch.stack(parts).sum() if parts else None


def _given_loss(outputs: Any, loss: Callable[[Any], Tensor], side: str, *, backward: bool) -> Tensor:
    name = arguments.function_name(loss)
    given = ", ".join(f"{path or 'it'} {leaf.dtype}{list(leaf.shape)}" for path, leaf in named_tensors(outputs)[:5])
    about = f"called with the outputs of {side}, a {type(outputs).__name__} ({given or 'no tensor'})"
    try:
        total = loss(outputs)
    except Exception as error:  # whatever the user's function raises
        raised = arguments.raised_at(error, loss)
        raise ClientError(f"argument loss: {name} raised {raised}; it was {about}", code="BAD_LOSS") from error
    if not isinstance(total, Tensor) or total.numel() != 1:
        got = arguments.shown(total)
        raise ClientError(f"argument loss: {name} gave {got}, expected a scalar tensor; {about}", code="BAD_LOSS")
    if backward and not total.requires_grad:
        raise ClientError(
            f"argument loss: {name} gave a tensor that requires no gradient, so no backward can begin at it; "
            "do not detach it, give an input or parameter that requires one, or pass backward=False",
            code="BAD_LOSS",
        )
    return total


def _weighted_mean(output: Tensor) -> Tensor:
    """Mean with weights cos(i). Of equal weights or squares the gradient through a normalization is zero: noise."""
    output = _plain(output)
    weights = torch.arange(output.numel(), dtype=torch.float32, device=output.device).cos().reshape(output.shape)
    return (output.float() * weights).mean()


def _pairs(
    reference: Mapping[str, Tensor | None], candidate: Mapping[str, Tensor | None], graphs: Sequence[GraphInfo],
    breaks: Counter[str],
) -> list[Pair]:  # fmt: skip
    """What to judge. Where nothing ran on ONNX Runtime, eager would be compared with eager: that is no comparison."""
    ran = {graph.direction for graph in graphs if graph.parts}
    idle = ""
    if not ran:
        reasons = "; ".join(sorted({node.reason for graph in graphs for node in graph.eager}))
        idle = f"ran in eager: {reasons}" if reasons else why_nothing(breaks)
    pairs: list[Pair] = []
    for name in [*reference, *(name for name in candidate if name not in reference)]:
        left, right = reference.get(name), candidate.get(name)
        why = idle
        if not why and left is None and right is None:
            why = "both are None"
        if name.endswith("afterwards") and left is not None and right is not None and _same(left, right):
            continue
        if why or (left is not None and right is not None):
            pairs.append((name, left, right, why))
        else:
            pairs.append((name, left, right, ONE_SIDED + ("eager" if right is None else "the backend")))
    return pairs


def why_nothing(breaks: Mapping[str, int]) -> str:
    """Why the backend was given no graph. breaks: as of `graph_breaks`."""
    reasons = "; ".join(dict.fromkeys(reason.splitlines()[0] for reason in breaks if reason))
    return f"no graph was compiled: {reasons or 'torch.compile found nothing to compute on tensors'}"


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether both have equal elements, NaN where NaN is."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(((left == right) | ((left != left) & (right != right))).all())


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
        strided = leaf.layout is torch.strided
        copy = leaf.detach().clone(memory_format=torch.preserve_format) if strided else leaf.detach().clone()
        return copy.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(clone, value)


def _tensors(*values: Any) -> Iterator[Tensor]:
    for value in values:
        yield from (leaf for _, leaf in named_tensors(value))


def _named(model: Any, kind: str) -> list[tuple[str, Tensor]]:
    return list(getattr(model, f"named_{kind}")()) if isinstance(model, nn.Module) else []


def _kept(value: Tensor | None) -> Tensor | None:
    """A copy that can be judged."""
    return None if value is None else _plain(value.detach()).clone()


def _plain(value: Tensor) -> Tensor:
    """A strided tensor with the elements of any: a jagged one's values, a sparse one dense."""
    if value.layout is torch.strided:
        return value
    return value.values() if value.layout is torch.jagged else value.to_dense()


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
