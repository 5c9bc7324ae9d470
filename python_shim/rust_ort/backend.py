"""The torch.compile backend: Dynamo graph → AOTAutograd → plan → parts on ONNX Runtime, and the call of the result."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import operator
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from rust_ort import observe
from rust_ort._callable import make_callable
from rust_ort.errors import ClientError, DaemonFault, OptionError, RustOrtError
from rust_ort.export.partition import EagerNode
from rust_ort.options import Options, Tolerance

if TYPE_CHECKING:
    from rust_ort.client import Client, GraphSpec, Part
    from rust_ort.export.plan import Plan, PlannedPart

log = logging.getLogger("rust_ort")

KEPT_VERDICTS = 10_000
"""Of each graph; older ones are dropped."""


@dataclass(kw_only=True, eq=False)
class GraphInfo:
    """What is known about one compiled AOT graph. `verdicts`: (step, verdict) of observed calls, newest last.
    `seconds`: time by phase of the compilation."""

    name: str
    direction: str
    graph_id: str
    compute_nodes: int
    parts: list[list[str]]
    eager: list[EagerNode]
    seconds: dict[str, float]
    lowest_precision: torch.dtype | None = None
    verdicts: list[tuple[int, Any]] = field(default_factory=list)
    calls: int = 0
    daemon_fallbacks: int = 0

    def add_verdicts(self, step: int, verdicts: Sequence[Any]) -> None:
        self.verdicts.extend((step, verdict) for verdict in verdicts)
        del self.verdicts[:-KEPT_VERDICTS]
        for verdict in verdicts:
            if verdict.kind == "mismatch":
                log.warning("%s, call %d: %s differs from eager: %s", self.name, step, verdict.name, _sentence(verdict))


def _sentence(verdict: Any) -> str:
    return str(verdict.reason or f"max |candidate - reference| = {verdict.max_abs}")


_graphs: list[GraphInfo] = []
_names: set[str] = set()
_lock = threading.Lock()


def graphs() -> list[GraphInfo]:
    """Every AOT graph this process compiled, oldest first."""
    return list(_graphs)


def client_of(options: Options) -> Client:
    """The process's client for the daemon that `options` names."""
    from rust_ort.client import Client

    return Client.get(options)


class Backend:
    """A torch.compile backend with its options. Deep-copies as itself and pickles by its options."""

    def __init__(self, options: Mapping[str, Any] | Options | None = None) -> None:
        self._given = options if isinstance(options, Options) else dict(options or {})
        self.options = options if isinstance(options, Options) else Options.parse(options)
        self.__name__ = "rust_ort"
        self.graphs: list[GraphInfo] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        try:
            options = _merged(self._given, self.options, kwargs)
            return _compile_dynamo_graph(gm, example_inputs, options, self.graphs)
        except RustOrtError as error:
            raise _as_itself(error) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Backend, (self._given,))

    def __repr__(self) -> str:
        return f"rust_ort.backend({self._given!r})"


def rust_ort(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | Options | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(model, backend="rust_ort")`.

    gm, example_inputs: what Dynamo hands over. options: names of `rust_ort.Options`. Errors: OptionError;
    ClientError under on_unsupported="error"; DaemonFault when no daemon answers.
    """
    try:
        made = Backend(options)
    except RustOrtError as error:
        raise _as_itself(error) from error
    return made(gm, example_inputs, mode=mode)


def _as_itself(error: RustOrtError) -> RustOrtError:
    """`error` in a form that Dynamo lets through instead of wrapping it in BackendCompilerFailed."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    through = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    raised: RustOrtError = through.__new__(through, *error.args)  # __init__ wants Dynamo's arguments
    raised.__dict__.update(error.__dict__)
    raised.first_useful_frame = None  # type: ignore[attr-defined]
    raised.frame_exec_strategy = None  # type: ignore[attr-defined]
    return raised


def _merged(given: Mapping[str, Any] | Options, parsed: Options, kwargs: Mapping[str, Any]) -> Options:
    unknown = sorted(set(kwargs) - {"options", "mode"})
    if unknown:
        raise OptionError(f"unknown argument {unknown[0]!r}; options go into torch.compile(options={{...}})")
    if kwargs.get("mode") not in (None, "default"):
        raise OptionError(f"mode={kwargs['mode']!r}: rust_ort has no modes; use options={{...}}")
    more = kwargs.get("options")
    if more is None:
        return parsed
    if isinstance(more, Options):
        return more
    if isinstance(given, Options):
        given = {name: getattr(given, name) for name in given.__dataclass_fields__}
    return Options.parse({**given, **more})


# --- compile ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Compilation:
    """One Dynamo graph on its way through AOTAutograd."""

    name: str
    options: Options
    sources: list[str]
    dynamo_text: str
    joint_text: str = ""
    started: float = field(default_factory=time.perf_counter)
    collected: list[GraphInfo]
    made: dict[tuple[str, str], Callable[[list[Any]], Any]] = field(default_factory=dict)


def _compile_dynamo_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, collected: list[GraphInfo]
) -> Callable[..., Any]:
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    from rust_ort.export import decompositions
    from rust_ort.export.provenance import input_sources

    compilation = _Compilation(
        name=_compile_name(),
        options=options,
        sources=input_sources(gm),
        dynamo_text=_readable(gm),
        collected=collected,
    )

    def partition_fn(joint: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        compilation.joint_text = _readable(joint)
        return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)

    compiler = aot_autograd(
        fw_compiler=functools.partial(_compile_aot_graph, compilation, "forward"),
        bw_compiler=functools.partial(_compile_aot_graph, compilation, "backward"),
        inference_compiler=functools.partial(_compile_aot_graph, compilation, "inference"),
        decompositions=decompositions.table,
        partition_fn=partition_fn,
    )
    compiled: Callable[..., Any] = compiler(gm, example_inputs)
    return compiled


def _compile_name() -> str:
    """`0_0` of torch's compile id 0/0; `0_0_1` for the second graph of that id in this process."""
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    wanted = re.sub(r"[^0-9A-Za-z]+", "_", str(compile_id)).strip("_") if compile_id is not None else "0_0"
    with _lock:
        name, count = wanted, 0
        while name in _names:
            count += 1
            name = f"{wanted}_{count}"
        _names.add(name)
    return name


def _readable(gm: fx.GraphModule) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


def _compile_aot_graph(
    compilation: _Compilation, direction: str, gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    from torch._dynamo.convert_frame import compile_lock

    if direction == "forward":
        _keep_saved_tensors()
    # A first backward compiles outside Dynamo's lock, in several threads at once; FX's metadata is one a process.
    with compile_lock:
        return _compiled_once(compilation, direction, gm)


def _keep_saved_tensors() -> None:
    """No backward here writes into its saved tensors: none is donated, and backward(retain_graph=True) is allowed."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if getattr(metadata, "bw_donated_idxs", None):
        metadata.bw_donated_idxs = []  # type: ignore[union-attr]


def _compiled_once(compilation: _Compilation, direction: str, gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    from rust_ort.export import hash as content
    from rust_ort.export.decompositions import TABLE_VERSION
    from rust_ort.export.translate import TORCHLIB_OPSET

    options = compilation.options
    name = f"{compilation.name}-{direction}"
    observe.open_from_options(options)
    observe.announce(options)
    seconds = {}
    start = time.perf_counter()
    extra = [f"opset {TORCHLIB_OPSET}", f"table {TABLE_VERSION}", *map(_cache_key, options.transforms)]
    graph_id = content.graph_hash(gm, extra=extra)
    seconds["hash"] = time.perf_counter() - start
    made = compilation.made.get((direction, graph_id))
    if made is not None:  # by another thread, while this one waited for the lock
        return made
    observe.must_show(graph_id, name)  # preparing it shows it
    with torch._C._DisableAutocast():
        compiled = _plan_and_prepare(compilation, name, direction, gm, graph_id, seconds)
    seconds["total"] = time.perf_counter() - start
    with _lock:
        _graphs.append(compiled.info)
        compilation.collected.append(compiled.info)
    _log_eager(compiled.info)

    def call(args: list[Any]) -> Any:
        return compiled(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    compilation.made[direction, graph_id] = call
    return call


def _cache_key(transform: Callable[..., Any]) -> str:
    """`cache_key` of a transform; one without gets a key that is never met again."""
    key = getattr(transform, "cache_key", None)
    key = key() if callable(key) else key
    return f"transform {key}" if key is not None else f"transform uncached {id(transform)} {time.time_ns()}"


def _plan_and_prepare(
    compilation: _Compilation, name: str, direction: str, gm: fx.GraphModule, graph_id: str, seconds: dict[str, float]
) -> CompiledGraph:
    from rust_ort.export.partition import lowest_precision
    from rust_ort.export.plan import make_plan

    options = compilation.options
    refused: dict[str, str] = {}
    while True:
        plan = make_plan(gm, name=name, refused=refused, opset=options.opset or 18, custom=options.custom_translations)
        for phase, spent in plan.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
        if plan.cut.eager and options.on_unsupported == "error":
            raise _unsupported(name, plan.cut.eager)
        info = GraphInfo(
            name=name,
            direction=direction,
            graph_id=graph_id,
            compute_nodes=plan.cut.compute_nodes,
            parts=[part.graph.compute_nodes for part in plan.parts],
            eager=plan.cut.eager,
            seconds=seconds,
            lowest_precision=lowest_precision(gm),
        )
        start = time.perf_counter()
        graph = _graph_spec(compilation, info, plan)
        try:
            parts = [_prepare(compilation, graph, plan, part) for part in plan.parts]
        except RustOrtError as error:
            culprit = _refused_node(error, plan)
            if culprit is None or culprit in refused:
                if isinstance(error, DaemonFault) and options.on_daemon_error == "eager":
                    return CompiledGraph(info=info, plan=plan, runners=None, options=options, graph=graph)
                raise
            if options.transforms:
                _raise_if_transforms_did_it(error, compilation, graph, plan)
            reason = f"ONNX Runtime refused {culprit}: {error.args[0]}"
            refused.update((node, reason) for node in _alike(gm, culprit))
            continue
        finally:
            seconds["prepare"] = seconds.get("prepare", 0.0) + time.perf_counter() - start
        runners = [PartRunner(part, planned, info) for part, planned in zip(parts, plan.parts, strict=True)]
        return CompiledGraph(info=info, plan=plan, runners=runners, options=options, graph=graph)


def _raise_if_transforms_did_it(error: RustOrtError, compilation: _Compilation, graph: GraphSpec, plan: Plan) -> None:
    """What ONNX cannot express runs in eager; what a transform broke is an error."""
    plain = dataclasses.replace(compilation, options=dataclasses.replace(compilation.options, transforms=()))
    try:
        for part in plan.parts:
            _prepare(plain, graph, plan, part)
    except RustOrtError:
        return
    raise ClientError(
        f"the runtime refuses the model that option transforms made, not the one they were given: {error.args[0]}",
        code="BAD_MODEL",
        graph=graph.name,
    ) from error


def _refused_node(error: RustOrtError, plan: Plan) -> str | None:
    """FX node behind an ONNX node that the runtime named when it refused a model."""
    if error.code not in ("BAD_MODEL", "ERROR_CODE_BAD_MODEL"):
        return None
    for part in plan.parts:
        names = [error.node, *re.findall(r"[\w.:]+", str(error.args[0]))]
        for onnx_name in names:
            fx_name = part.translated.onnx_nodes.get(onnx_name, "")
            if fx_name in part.graph.compute_nodes:
                return fx_name
    return None


def _alike(gm: fx.GraphModule, name: str) -> list[str]:
    """Nodes that do what node `name` does with the same dtypes: the runtime would refuse them one by one."""

    def kind(node: fx.Node) -> tuple[Any, ...]:
        values = pytree.tree_leaves([source.meta.get("val") for source in (node, *node.all_input_nodes)])
        return (node.target, *(value.dtype for value in values if isinstance(value, torch.Tensor)))

    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    wanted = {kind(node) for node in nodes if node.name == name}
    return [node.name for node in nodes if kind(node) in wanted]


def half_tolerance(dtype: torch.dtype | None) -> Tolerance | None:
    """Tolerance of float32 values that were computed through `dtype`; None: by each tensor's own dtype."""
    if dtype is None:
        return None
    steps = 4 * torch.finfo(dtype).eps
    return Tolerance(atol=6e-8, rtol=steps, scale=steps)


def _unsupported(name: str, eager: Sequence[EagerNode]) -> ClientError:
    lines = [f"{node.name} ({node.op}), {node.source or 'source unknown'}: {node.reason}" for node in eager]
    return ClientError(
        f"{len(eager)} node(s) cannot run on ONNX Runtime and on_unsupported is 'error':\n  "
        + "\n  ".join(lines)
        + "\nUse on_unsupported='eager' to run them in eager, or change the lines named",
        code="UNSUPPORTED",
        graph=name,
        node=eager[0].name,
    )


def _graph_spec(compilation: _Compilation, info: GraphInfo, plan: Plan) -> GraphSpec:
    from rust_ort.client import GraphSpec

    return GraphSpec(
        graph_id=info.graph_id,
        name=info.name,
        direction=info.direction,
        dynamo_text=compilation.dynamo_text,
        joint_text=compilation.joint_text,
        fx_text=_readable(plan.cut.module),
        parts_json=plan.cut.parts_json(),
        compute_nodes=info.compute_nodes,
        eager_nodes=len(info.eager),
    )


def _prepare(compilation: _Compilation, graph: GraphSpec, plan: Plan, planned: PlannedPart) -> Part:
    from rust_ort.client import OutputSpec, PartSpec
    from rust_ort.export.provenance import provenance_json

    options = compilation.options
    translated = planned.translated
    layout = planned.layout

    def specs(inputs: Sequence[object]) -> list[OutputSpec]:
        return [OutputSpec(dtype=dtype, shape=shape, stride=stride) for dtype, shape, stride in layout.specs(inputs)]

    spec = PartSpec(
        graph=graph,
        part=planned.graph.index,
        model=_transformed(translated.model, options.transforms),
        provenance_json=provenance_json(
            part=planned.graph.module,
            tensor_outputs=planned.tensor_outputs,
            input_names=translated.input_names,
            output_names=translated.output_names,
            fx_values=translated.fx_values,
            onnx_nodes=translated.onnx_nodes,
            descriptions=_descriptions(plan.cut.module, compilation.sources),
        ),
        fx_values={node: translated.fx_values[node] for node in planned.graph.compute_nodes},
        input_names=translated.input_names,
        output_names=translated.output_names,
        outputs=specs if layout.symbolic else specs(()),
    )
    return client_of(options).part(spec, options)


def _transformed(model: bytes, transforms: Sequence[Callable[..., Any]]) -> bytes:
    if not transforms:
        return model
    import onnx

    proto = onnx.load_model_from_string(model)
    for transform in transforms:
        made = transform(proto)
        if made is not None and not isinstance(made, onnx.ModelProto):
            raise OptionError(f"option transforms: {transform!r} returned {made!r}, expected a ModelProto or None")
        proto = proto if made is None else made
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized


def _descriptions(gm: fx.GraphModule, sources: Sequence[str]) -> dict[str, dict[str, str]]:
    """{FX name: role} of the AOT graph's inputs and outputs."""
    from rust_ort.export.provenance import described

    found = {}
    output = gm.graph.output_node()
    descs = pytree.tree_leaves(output.meta.get("desc") or (), is_leaf=lambda x: x is None)
    for node, desc in zip(pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None), descs, strict=False):
        if isinstance(node, fx.Node):
            found[node.name] = described(desc, sources)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            found[node.name] = described(node.meta.get("desc"), sources)
    return found


def _log_eager(info: GraphInfo) -> None:
    if info.eager:
        reasons = "; ".join(f"{node.name} ({node.op}): {node.reason}" for node in info.eager[:5])
        more = f"; and {len(info.eager) - 5} more" if len(info.eager) > 5 else ""
        log.warning(
            "%s: %d of %d nodes run in eager: %s%s", info.name, len(info.eager), info.compute_nodes, reasons, more
        )


# --- call ------------------------------------------------------------------------------------------------------------


_observed = threading.local()


class PartRunner:
    """A part inside the outer graph: takes the part's arguments, returns its values."""

    def __init__(self, part: Part, planned: PlannedPart, info: GraphInfo) -> None:
        self.part = part
        self.index = planned.graph.index
        self.outputs = planned.tensor_outputs
        self._pick = planned.pick
        self._results = planned.results
        self._info = info
        self._eager_nodes = len(info.eager) if planned.graph.index == 0 else 0

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        inputs = [args[position] for position in self._pick]
        observation = getattr(_observed, "now", None)
        if observation is None:
            tensors = self.part(inputs, eager_nodes=self._eager_nodes)
        else:
            tensors = self.observe(inputs, observation)
        return tuple(tensors[result] if isinstance(result, int) else result(args) for result in self._results)

    def observe(self, inputs: list[Any], observation: _Observation) -> list[torch.Tensor]:
        references: list[torch.Tensor] | None = None
        if observation.references is not None:
            references = [observation.references[name] for name in self.outputs]
        tensors, verdicts, _ = self.part.observed(
            inputs,
            step=observation.step,
            dump=observation.dump,
            references=references,
            tolerance=observation.tolerance or half_tolerance(self._info.lowest_precision),
            eager_nodes=self._eager_nodes,
        )
        if references is not None and observation.tolerance is None and self._info.lowest_precision is not None:
            verdicts = self._exact_where_exact(references, tensors, verdicts, observation)
        self._info.add_verdicts(observation.step, verdicts)
        return tensors

    def _exact_where_exact(
        self, references: list[torch.Tensor], candidates: list[torch.Tensor], verdicts: Sequence[Any],
        observation: _Observation,
    ) -> list[Any]:  # fmt: skip
        """The wider tolerance of half precision is not for integers and bools: these are judged again."""
        pairs = [
            (verdict.name, reference, candidate, "")
            for verdict, reference, candidate in zip(verdicts, references, candidates, strict=True)
            if not reference.dtype.is_floating_point
        ]
        if not pairs:
            return list(verdicts)
        exact = {verdict.name: verdict for verdict in observation.client.compare(pairs, None)}
        return [exact.get(verdict.name, verdict) for verdict in verdicts]


@dataclass(kw_only=True)
class _Observation:
    step: int
    dump: bool
    references: dict[str, Any] | None
    tolerance: Tolerance | None
    client: Client


class CompiledGraph:
    """A compiled AOT graph. Called with a list of its inputs (boxed: the list is emptied); returns its outputs."""

    def __init__(
        self, *, info: GraphInfo, plan: Plan, runners: list[PartRunner] | None, options: Options, graph: GraphSpec
    ) -> None:
        from rust_ort.export.plan import restrides

        self.info = info
        self._options = options
        self._graph = graph
        self._module = plan.cut.module
        self._runners = runners
        self._compare = options.compare != "off"
        self._restride_all = restrides(plan.cut.module)
        self._restride = restrides(plan.cut.outer)
        self._fast = _fast_path(plan, runners) if runners is not None else None
        self._outer = _linked(plan, runners) if runners is not None else None
        self._keep_inputs = options.on_daemon_error == "eager"
        self._warned = False
        self._steps = itertools.count()

    def __call__(self, args: list[Any]) -> Any:
        info = self.info
        step = next(self._steps)
        info.calls += 1
        if observe.current() is not None and observe.must_show(info.graph_id, info.name):
            self._show()
        if not self._compare and not observe.dump_wanted(info.graph_id, info.name):
            if self._fast is not None and not self._keep_inputs:
                return self._fast(args)
            return self._guarded(args, None)
        return self._observed_call(args, step)

    def _show(self) -> None:
        """Hands graph and models to a dump that was opened after they were compiled."""
        observe.announce(self._options)
        if not self._runners:
            client_of(self._options).register(self._graph)
        for runner in self._runners or ():
            runner.part.prepare(again=True)

    def _observed_call(self, args: list[Any], step: int) -> Any:
        references = None
        if self._compare:
            references = self._references(list(args), step)
        with observe.data_set(self.info.graph_id, self.info.name) as data_set:
            observation = _Observation(
                step=step if data_set is None else data_set,
                dump=data_set is not None,
                references=references,
                tolerance=self._options.tolerance,
                client=client_of(self._options),
            )
            return self._guarded(args, observation)

    def _references(self, args: list[Any], step: int) -> dict[str, Any] | None:
        from rust_ort.reference import run_reference

        if not self._runners:
            self.info.add_verdicts(step, [_ran_in_eager(self.info)])
            return None
        if self._restride_all is not None:
            self._restride_all(args)
        names = {name for runner in self._runners for name in runner.outputs}
        return run_reference(self._module, args, capture=names)[1]

    def _guarded(self, args: list[Any], observation: _Observation | None) -> Any:
        """Runs the outer graph; on a lost daemon runs it in eager if the options say so."""
        kept = list(args) if self._keep_inputs else None
        try:
            return self._run(args, observation)
        except DaemonFault as fault:
            if kept is None:
                raise
            return self._in_eager(kept, fault)

    def _run(self, args: list[Any], observation: _Observation | None) -> Any:
        if self._outer is None or not self._runners:
            client = client_of(self._options)
            if self._runners is None:
                raise DaemonFault("no daemon could be reached when this graph was compiled", graph=self.info.name)
            if self.info.eager:
                client.report_eager(self._graph, len(self.info.eager))
        if self._restride is not None and self.info.eager:
            self._restride(args)
        _observed.now, before = observation, getattr(_observed, "now", None)
        inputs = list(args)
        args.clear()
        try:
            with torch._C._DisableAutocast():
                assert self._outer is not None
                return self._outer(*inputs)
        finally:
            _observed.now = before

    def _in_eager(self, args: list[Any], fault: DaemonFault) -> Any:
        self.info.daemon_fallbacks += 1
        if not self._warned:
            self._warned = True
            log.warning("%s runs in eager because on_daemon_error is 'eager': %s", self.info.name, fault)
        with torch._C._DisableAutocast():
            if self._restride_all is not None:
                self._restride_all(args)
            return self._module(*args)


def _ran_in_eager(info: GraphInfo) -> Any:
    from rust_ort.client import Verdict

    reasons = "; ".join(sorted({node.reason for node in info.eager})) or "it computes nothing"
    return Verdict(
        name=info.name,
        kind="not_compared",
        reason=f"ran in eager: {reasons}",
        metrics=None,
        max_abs=0.0,
        max_rel_to_max=0.0,
        outside=0,
    )


def _linked(plan: Plan, runners: Sequence[PartRunner]) -> Callable[..., Any]:
    """The outer module's forward with each part replaced by its runner."""
    outer = plan.cut.outer
    for planned, runner in zip(plan.parts, runners, strict=True):
        delattr(outer, planned.graph.name)
        object.__setattr__(outer, planned.graph.name, runner)
    outer.recompile()
    forward: Callable[..., Any] = outer.forward
    return forward


def _fast_path(plan: Plan, runners: Sequence[PartRunner]) -> Callable[[list[Any]], Any] | None:
    """The whole graph as one call of its only part, None when it is more than that."""
    from rust_ort.export.hash import attribute

    nodes = list(plan.cut.outer.graph.nodes)
    calls = [node for node in nodes if node.op == "call_module"]
    if len(runners) != 1 or len(calls) != 1:
        return None
    placeholders = [node for node in nodes if node.op == "placeholder"]
    constants = [node for node in nodes if node.op == "get_attr"]
    unpacks = {node: node.args[1] for node in calls[0].users}
    if len(placeholders) + len(constants) + len(unpacks) + 2 != len(nodes):
        return None
    planned, part = plan.parts[0], runners[0].part
    if not all(isinstance(result, int) for result in planned.results):
        return None
    position = {node: index for index, node in enumerate([*placeholders, *constants])}
    try:
        pick = _getter([position[calls[0].args[index]] for index in planned.pick])
    except KeyError:
        return None
    values = [attribute(plan.cut.outer, str(node.target)) for node in constants]
    assemble = _assembler(plan.cut.outer.graph.output_node(), unpacks, planned.results, position)
    if assemble is None:
        return None

    def fast(args: list[Any]) -> Any:
        if values:
            args = [*args, *values]
        return assemble(part(pick(args)), args)

    return fast


def _getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 1:
        only = positions[0]
        return lambda values: (values[only],)
    if not positions:
        return lambda values: ()
    return operator.itemgetter(*positions)


def _assembler(
    output: fx.Node, unpacks: Mapping[fx.Node, Any], results: Sequence[Any], position: Mapping[fx.Node, int]
) -> Callable[[list[Any], Sequence[Any]], Any] | None:
    """How the graph's outputs come from the part's outputs and the inputs: Python code made once."""
    pieces = []
    returned = output.args[0]
    if not isinstance(returned, (list, tuple)):
        return None
    for item in returned:
        if isinstance(item, fx.Node) and item in unpacks:
            pieces.append(f"o[{results[unpacks[item]]}]")
        elif isinstance(item, fx.Node):
            if item not in position:
                return None
            pieces.append(f"a[{position[item]}]")
        elif item is None or isinstance(item, (bool, int, float)):
            pieces.append(repr(item))
        else:
            return None
    if pieces == [f"o[{index}]" for index in range(len(results))]:
        return lambda outputs, args: outputs
    function: Callable[[list[Any], Sequence[Any]], Any] = eval(f"lambda o, a: [{', '.join(pieces)}]", {})
    return function


def backend(**options: Any) -> Backend:
    """A backend object with these options: `torch.compile(model, backend=rust_ort.backend(compare="outputs"))`."""
    return Backend(options)


make_callable(__name__, backend)
