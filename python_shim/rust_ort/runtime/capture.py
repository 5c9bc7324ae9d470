"""The forward of a model as one AOT graph, the graph that the backend compiles without gradients. Needs no daemon."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort import torch_private
from rust_ort.errors import ClientError, OptionError
from rust_ort.export import decompositions, graph_passes
from rust_ort.export.provenance import input_sources, parameter_name
from rust_ort.runtime.dynamic_shapes import DynamicSize
from rust_ort.runtime.dynamo_graph import no_collection, reduce_all

_FAILS_IN_EAGER = "may result in an error when running in eager"
"""What Dynamo says where the program raises, or an operator refuses what it is given."""
_USER_CODE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


@dataclass(kw_only=True)
class Captured:
    """A model's forward. graph: the AOT graph. inputs, sources: what Dynamo's graph was given, and what it calls it;
    an input of the AOT graph is `PlainAOTInput(idx)` of them. Behind them, tensors of which only sizes are asked, which
    Dynamo gives as numbers. outputs: what Dynamo's graph gave, `PlainAOTOutput(idx)` being the AOT graph's. result:
    what the model returned."""

    graph: fx.GraphModule
    inputs: list[Any] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    result: Any = None


@dataclass(frozen=True)
class SizedInput:
    """In the place of AOTAutograd's descriptor of an input: of a tensor that Dynamo's graph is not given, `idx` among
    the inputs of Captured."""

    idx: int


@dataclass(frozen=True, kw_only=True)
class _Sized:
    """A tensor with dynamic sizes. fake: what it was traced as; source: Dynamo's name of it."""

    tensor: torch.Tensor
    fake: torch.Tensor
    source: str


class _Capturing:
    """A torch.compile backend that keeps the graph it is given, and runs it in eager. tensors: with dynamic sizes."""

    def __init__(
        self, custom: Mapping[Any, Any], tensors: Sequence[torch.Tensor], check: Callable[[Captured], None]
    ) -> None:
        self._custom, self._tensors, self._check = custom, tensors, check
        self.captured: Captured | None = None
        self.failed: BaseException | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        try:
            self.captured = Captured(graph=self._aot_graph(gm, example_inputs), sources=input_sources(gm))
            sized = list(self._sized(example_inputs))
        except Exception as error:  # Dynamo would wrap it; whoever asked for the graph raises it
            self.failed = error

        def run(*inputs: Any) -> Any:
            if self.captured is None:
                raise _NotCaptured
            self.captured.inputs = list(inputs)
            _add_inputs(self.captured, sized)
            self._check(self.captured)
            self.captured.outputs = list(outputs := gm(*inputs))
            return outputs

        return run

    def _sized(self, values: Sequence[Any]) -> Iterator[_Sized]:
        """Those that the program has asked something of. values: the inputs as traced."""
        for tensor in self._tensors:
            if known := torch_private.traced_tensor(values, tensor):
                yield _Sized(tensor=tensor, fake=known[0], source=parameter_name(known[1]))

    def _aot_graph(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
        found: list[fx.GraphModule] = []
        reduce_all(gm)

        def table() -> dict[Any, Callable[..., Any]]:
            whole = decompositions.table()
            return {operator: made for operator, made in whole.items() if operator not in self._custom}

        def keep(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            with torch_private.compile_lock(), no_collection(), torch_private.autocast_off():
                graph_passes.rewrite(graph, table)
            found.append(graph)
            return graph.forward

        compiler = torch_private.aot_autograd(
            fw_compiler=keep, bw_compiler=keep, inference_compiler=keep, decompositions=table
        )
        with torch_private.printed_once():
            compiler(gm, example_inputs)
        return found[0]


def _add_inputs(captured: Captured, sized: Sequence[_Sized]) -> None:
    """Gives the AOT graph the tensors of which Dynamo's graph has sizes alone."""
    graph = captured.graph.graph
    given = set(map(id, captured.inputs))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for one in sized:
        if id(one.tensor) in given or not any(isinstance(size, torch.SymInt) for size in one.fake.shape):
            continue
        with graph.inserting_before(first):
            node = graph.placeholder(f"sized_{len(captured.inputs)}")
        node.meta = {"val": one.fake, "desc": SizedInput(len(captured.inputs))}
        captured.inputs.append(one.tensor)
        captured.sources.append(one.source)


class _NotCaptured(Exception):
    """The graph could not be made: `failed` of the backend says why."""


def capture(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: Sequence[DynamicSize],
    custom: Mapping[Any, Any],
    check: Callable[[Captured], None],
) -> Captured:
    """The forward of `model(*args, **kwargs)` without gradients, which runs once, in eager.

    sizes: those that are dynamic, of tensors among the arguments, which are marked. custom: operators that are not
    taken apart. check: called before the graph runs; what it raises comes through. Errors: ClientError where the graph
    breaks; OptionError where a size leaves its bounds; whatever the model raises.
    """
    backend = _Capturing(custom, list({id(size.tensor): size.tensor for size in sizes}.values()), check)
    for size in sizes:
        torch_private.mark_dynamic(size.tensor, size.axis, size.bounds)
    compiled, _ = torch_private.compiled_apart(model, backend=backend, region=None, fullgraph=True, dynamic=False)
    with torch.no_grad(), _without_choices(), _whole():
        try:
            with _named_breaks():
                result = compiled(*args, **kwargs)
        except _NotCaptured:
            assert backend.failed is not None, "it is raised where this is set"
            raise backend.failed from None
        except ClientError as error:
            if _FAILS_IN_EAGER in str(error):
                model(*args, **kwargs)
            raise
    captured, backend.captured = backend.captured, None  # Dynamo keeps the backend
    if captured is None or not captured.outputs:
        raise ClientError(
            "to_onnx: no graph was captured: the model computes nothing of tensors, or nothing compiles here "
            "(torch.compiler.disable, torch.compiler.set_stance)",
            code="NO_GRAPH",
        )
    captured.result = result
    return captured


@contextlib.contextmanager
def _without_choices() -> Iterator[None]:
    """Inside, eager does not choose among libraries for a convolution: by its batch, which would be bounded by 16, and
    the bound says nothing of the model."""
    with torch.backends.nnpack.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False):
        yield


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Inside, the graph does not end where it need not, and errors of a trace are not logged beside."""
    with contextlib.ExitStack() as settings:
        settings.enter_context(torch_private.errors_raised_alone())
        settings.enter_context(torch_private.with_recurrent_layers())
        settings.enter_context(torch_private.without_logging())
        yield


@contextlib.contextmanager
def _named_breaks() -> Iterator[None]:
    """Dynamo's errors say where in the user's code the graph ends."""
    try:
        yield
    except torch_private.size_errors() as error:
        raise OptionError(f"to_onnx dynamic_shapes: {error}", code="FIXED_SIZE") from error
    except torch_private.graph_break_errors() as error:
        said, _, code = str(error).partition("from user code:")
        frames = list(_USER_CODE.finditer(code))
        where = f" at {frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}" if frames else ""
        raise ClientError(f"to_onnx: the graph breaks{where}: {said.strip()}", code="GRAPH_BREAK") from error
