"""From a Dynamo graph to prepared parts: AOTAutograd, the plan of each AOT graph, and the models of its parts."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import gc
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort import torch_private
from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.errors import ClientError, DaemonFault, OptionError, RustOrtError
from rust_ort.export import hash as content
from rust_ort.export.aliases import DIRECTION, SHARES_MEMORY, hidden_outputs
from rust_ort.export.exporter import TORCHLIB_OPSET
from rust_ort.export.partition import EAGER_IS_RIGHT, EagerNode, lowest_precision, modules, operators
from rust_ort.export.plan import Plan, PlannedPart, make_plan
from rust_ort.export.provenance import described, input_sources, provenance_json, source_line
from rust_ort.link.daemon import find_onnxruntime
from rust_ort.link.specs import CustomOpLibrary, GraphSpec, OutputSpec, PartSpec
from rust_ort.observe import graph_info, session
from rust_ort.observe.graph_info import GraphInfo, GraphLog
from rust_ort.options import Options
from rust_ort.options.arguments import function_name, raised_at, shown
from rust_ort.options.table import described_options
from rust_ort.progress import progress, tick
from rust_ort.runtime import kept_plans
from rust_ort.runtime.compiled_graph import CompiledGraph, PartRunner
from rust_ort.torch_private import OpOverload, pytree

log = logging.getLogger("rust_ort")


@dataclass(kw_only=True)
class _Compilation:
    """One Dynamo graph on its way through AOTAutograd."""

    name: str
    options: Options
    sources: list[str]
    libraries: list[CustomOpLibrary]
    dynamo_text: str = ""
    joint_text: str = ""
    started: float = field(default_factory=time.perf_counter)
    collected: GraphLog
    made: dict[tuple[str, str], Callable[[list[Any]], Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Our time outside the AOT graphs, by phase; the first of them reports it."""

    def readable(self, gm: fx.GraphModule) -> str:
        with self.timed("texts"):
            return _readable(gm)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with _no_collection():
                yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def compile_dynamo_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, collected: GraphLog
) -> Callable[..., Any]:
    """The callable for a Dynamo graph; each of its AOT graphs is added to collected. Errors: RustOrtError."""
    from functorch.compile import min_cut_rematerialization_partition

    compilation = _Compilation(
        name=_compile_name(),
        options=options,
        sources=input_sources(gm),
        libraries=[CustomOpLibrary.at(path) for path in options.custom_op_libraries],
        collected=collected,
    )
    compilation.dynamo_text = compilation.readable(gm)

    def partition_fn(joint: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        compilation.joint_text = compilation.readable(joint)
        with _every_draw_kept(joint):
            return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)

    def table() -> dict[Any, Callable[..., Any]]:
        with compilation.timed("table"):
            whole = kept_plans.decomposition_table(Client.get(options), daemon_needed=_daemon_needed(options))
            return {operator: made for operator, made in whole.items() if operator not in options.custom_translations}

    compiler = torch_private.aot_autograd(
        fw_compiler=functools.partial(_compile_aot_graph, compilation, "forward"),
        bw_compiler=functools.partial(_compile_aot_graph, compilation, "backward"),
        inference_compiler=functools.partial(_compile_aot_graph, compilation, "inference"),
        decompositions=table,
        partition_fn=partition_fn,
        keep_inference_input_mutations=torch.is_grad_enabled() and any(map(_is_view_of_leaf, example_inputs)),
    )
    try:
        compiled: Callable[..., Any] = compiler(gm, example_inputs)
    except AssertionError as error:
        setting = next((node for node in gm.graph.nodes if _sets_an_input(node)), None)
        if setting is None:
            raise
        raise ClientError(
            f"{source_line(setting) or 'source unknown'}: the data of an input is set, which AOTAutograd refuses where "
            "graphs write into no input; write `.data.copy_(...)` in the place of `.data = ...`, or take the line out "
            "of what is compiled (torch.compiler.disable)",
            code="UNSUPPORTED",
            graph=compilation.name,
            node=setting.name,
        ) from error
    return compiled


def _is_view_of_leaf(given: object) -> bool:
    """Whether it is a view into a leaf that requires grad. Autograd refuses writes to it but under no_grad, and that is
    where graphs write into such inputs; AOTAutograd's own writes after the graph are not under no_grad."""
    return isinstance(given, torch.Tensor) and given._is_view() and given._base.requires_grad and given._base.is_leaf


def _sets_an_input(node: fx.Node) -> bool:
    """Whether a Dynamo node is `input.data = ...`: set_, since torch 2.14 aten.shallow_copy_data_."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.op != "placeholder":
        return False
    return not {"set_", "shallow_copy_data_"}.isdisjoint((node.target, getattr(node.target, "__name__", "")))


@contextlib.contextmanager
def _every_draw_kept(joint: fx.GraphModule) -> Iterator[None]:
    """Inside, AOTAutograd merges no two operators that draw random numbers; its own list of them is short (torch 2.13:
    `uniform`, `randn_like` and others lack)."""
    targets = {node.target for node in joint.graph.nodes if isinstance(node.target, OpOverload)}
    drawing = {target.overloadpacket for target in targets if torch.Tag.nondeterministic_seeded in target.tags}
    with torch_private.drawing_operators(drawing):
        yield


def _compile_name() -> str:
    """`0_0` of torch's compile id 0/0; `0_0_1` for the second graph of that id in this process."""
    compile_id = torch_private.compile_id()
    wanted = re.sub(r"[^0-9A-Za-z]+", "_", str(compile_id)).strip("_") if compile_id is not None else "0_0"
    return graph_info.unique_name(wanted)


def _readable(gm: fx.GraphModule) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


def _compile_aot_graph(
    compilation: _Compilation, direction: str, gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    if direction == "forward":
        _keep_saved_tensors()
    # A first backward compiles outside Dynamo's lock, in several threads at once; FX's metadata is one a process.
    with torch_private.compile_lock(), _no_collection():
        return _compiled_once(compilation, direction, gm)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Inside, Python's cycle collector is off: what is made here lives on, and each search of all torch's objects for
    garbage costs a tenth of a second or more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _keep_saved_tensors() -> None:
    """No backward here writes into its saved tensors: none is donated, and backward(retain_graph=True) is allowed."""
    context = torch_private.tracing_context()
    metadata = context.fw_metadata if context is not None else None
    if metadata is not None and getattr(metadata, "bw_donated_idxs", None):
        metadata.bw_donated_idxs = []


def _compiled_once(compilation: _Compilation, direction: str, gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    options = compilation.options
    name = f"{compilation.name}-{direction}"
    session.open_from_options(options)
    session.announce(options)
    start = time.perf_counter()
    seconds, compilation.seconds = compilation.seconds, {}
    outside = sum(seconds.values())
    gm.meta[DIRECTION] = direction
    hidden = sorted(hidden_outputs(gm.graph.output_node()))
    graph_id = content.graph_hash(gm, extra=[*_decisive(compilation), f"{direction} hidden {hidden}"])
    seconds["hash"] = time.perf_counter() - start
    made = compilation.made.get((direction, graph_id))
    if made is not None:  # by another thread, while this one waited for the lock
        return made
    session.must_show(graph_id, name)  # preparing it shows it
    with torch_private.autocast_off():
        compiled = _plan_and_prepare(compilation, name, direction, gm, graph_id, seconds)
    seconds["total"] = outside + time.perf_counter() - start
    graph_info.record(compiled.info)
    compilation.collected.add(compiled.info)
    _log_eager(compiled.info)

    def call(args: list[Any]) -> Any:
        return compiled(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    compilation.made[direction, graph_id] = call
    return call


def _decisive(compilation: _Compilation) -> list[str]:
    """What else a plan depends on: it says which nodes the runtime refused, too."""
    options = compilation.options
    runtime: tuple[Any, ...] = (options.providers, options.ort_optimization, sorted(options.session_options.items()))
    runtime += (*compilation.libraries,)
    runtime += (f"daemon {Client.get(options).build()}",)
    with contextlib.suppress(ClientError):  # without a library no part is prepared, which says why
        runtime += (_identity(find_onnxruntime()),)
    transforms = [_function_text("transform", transform) for transform in options.transforms]
    custom = options.custom_translations.items()
    translations = [_function_text(f"translation of {operator}", function) for operator, function in custom]
    return [f"opset {_opset(options)}", f"runtime {runtime}", *transforms, *sorted(translations)]


def _identity(path: str) -> tuple[str, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns


def _opset(options: Options) -> int:
    return options.opset or TORCHLIB_OPSET


def _daemon_needed(options: Options) -> bool:
    """Whether a compilation without the daemon is an error."""
    return options.on_daemon_error == "error"


def _may_be_kept(options: Options) -> bool:
    """Whether a later process with the same graph wants the same plan."""
    return None not in map(_cache_key, [*options.transforms, *options.custom_translations.values()])


def _function_text(what: str, function: Callable[..., Any]) -> str:
    """A function without `cache_key` gets a text that is never met again."""
    key = _cache_key(function)
    return f"{what} {key}" if key is not None else f"{what} uncached {id(function)} {time.time_ns()}"


def _cache_key(function: Callable[..., Any]) -> object:
    key = getattr(function, "cache_key", None)
    return key() if callable(key) else key


def _plan_and_prepare(
    compilation: _Compilation, name: str, direction: str, gm: fx.GraphModule, graph_id: str, seconds: dict[str, float]
) -> CompiledGraph:
    options = compilation.options
    client = Client.get(options)
    kept = None
    if _may_be_kept(options):
        kept = kept_plans.load(client, graph_id, gm, daemon_needed=_daemon_needed(options))
    refused: dict[str, str] = {}
    while True:
        # The same graph under another compile id is the same model, so a warm session serves it.
        model_name = f"graph_{graph_id[:16]}"
        with progress(f"{name}: writing ONNX", unit="nodes"):
            plan = kept or make_plan(
                gm, name=model_name, refused=refused, opset=_opset(options), custom=options.custom_translations
            )
        for phase, spent in plan.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
        unsupported = _left_out(plan.cut.eager)
        if unsupported and options.on_unsupported == "error":
            raise _unsupported(name, unsupported) from _first_cause(plan)
        info = GraphInfo(
            name=name,
            direction=direction,
            graph_id=graph_id,
            compute_nodes=plan.cut.compute_nodes,
            parts=[part.graph.compute_nodes for part in plan.parts],
            eager=plan.cut.eager,
            seconds=seconds,
            operators=operators(gm),
            modules=modules(gm) if options.compare == "nodes" else {},
            lowest_precision=lowest_precision(gm),
            options=options,
        )
        start = time.perf_counter()
        graph = _graph_spec(compilation, info, plan)
        prepare = functools.partial(_runners, compilation, graph, plan, info)
        try:
            runners = prepare()
        except RustOrtError as error:
            if kept is not None and isinstance(error, ClientError) and not isinstance(error, OptionError):
                log.warning("%s: the plan that was kept does not serve, it is exported again: %s", name, error)
                kept = None
                continue
            if not _is_refusal(error):
                if isinstance(error, DaemonFault) and options.on_daemon_error == "eager":
                    info.unreachable = error
                    return CompiledGraph(
                        info=info, plan=plan, runners=None, options=options, graph=graph, prepare=prepare
                    )
                raise
            if options.transforms:
                _raise_if_transforms_did_it(error, compilation, graph, plan)
            culprit = _refused_node(error, plan)
            if culprit is None or culprit in refused:
                culprit = _refused_in_trials(compilation, graph, plan)
            reason = f"ONNX Runtime refused {culprit}: {error.args[0]}"
            refused.update((node, reason) for node in _alike(gm, culprit))
            continue
        finally:
            seconds["prepare"] = seconds.get("prepare", 0.0) + time.perf_counter() - start
        if kept is None:
            _keep(client, graph_id, plan, options)
        return CompiledGraph(info=info, plan=plan, runners=runners, options=options, graph=graph, prepare=prepare)


def _runners(compilation: _Compilation, graph: GraphSpec, plan: Plan, info: GraphInfo) -> list[PartRunner]:
    parts = _prepared_parts(compilation, graph, plan)
    return [PartRunner(part, planned, info) for part, planned in zip(parts, plan.parts, strict=True)]


def _keep(client: Client, graph_id: str, plan: Plan, options: Options) -> None:
    if _may_be_kept(options):
        kept_plans.save(client, graph_id, plan)
    elif plan.parts:
        kept_plans.count(client, graph_id)


def _raise_if_transforms_did_it(error: RustOrtError, compilation: _Compilation, graph: GraphSpec, plan: Plan) -> None:
    """What ONNX cannot express runs in eager; what a transform broke is an error."""
    plain = dataclasses.replace(compilation, options=dataclasses.replace(compilation.options, transforms=()))
    try:
        _prepared_parts(plain, graph, plan)
    except RustOrtError:
        return
    names = ", ".join(map(function_name, compilation.options.transforms))
    raise ClientError(
        f"option transforms: the runtime refuses the model that {names} made, not the one given: {error.args[0]}",
        code="BAD_MODEL",
        graph=graph.name,
    ) from error


def _is_refusal(error: RustOrtError) -> bool:
    return error.code in ("BAD_MODEL", "ERROR_CODE_BAD_MODEL")


def _refused_node(error: RustOrtError, plan: Plan) -> str | None:
    """FX node behind an ONNX node that the runtime named when it refused a model."""
    for part in plan.parts:
        names = [error.node, *re.findall(r"[\w.:]+", str(error.args[0]))]
        for onnx_name in names:
            fx_name = part.translated.onnx_nodes.get(onnx_name, "")
            if fx_name in part.graph.compute_nodes:
                return fx_name
    return None


def _refused_in_trials(compilation: _Compilation, graph: GraphSpec, plan: Plan) -> str:
    """FX node without which, and without what follows it, the runtime takes the plan's parts; it named none itself."""
    nodes = [node for part in plan.parts for node in part.graph.compute_nodes]

    def refused(count: int) -> bool:
        left_out = dict.fromkeys(nodes[count:], "left out of a trial")
        options = compilation.options
        trial = make_plan(
            plan.cut.module, name=f"{graph.name}_trial", refused={**plan.cut.reasons, **left_out},
            opset=_opset(options), custom=options.custom_translations,
        )  # fmt: skip
        try:
            _prepared_parts(compilation, graph, trial)
        except RustOrtError as error:
            if not _is_refusal(error):
                raise
            return True
        return False

    return nodes[bisect.bisect_left(range(1, len(nodes)), True, key=refused)]


def _alike(gm: fx.GraphModule, name: str) -> list[str]:
    """Nodes that do what node `name` does with the same dtypes: the runtime would refuse them one by one."""

    def kind(node: fx.Node) -> tuple[Any, ...]:
        values = pytree.tree_leaves([source.meta.get("val") for source in (node, *node.all_input_nodes)])
        return (node.target, *(value.dtype for value in values if isinstance(value, torch.Tensor)))

    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    wanted = {kind(node) for node in nodes if node.name == name}
    return [node.name for node in nodes if kind(node) in wanted]


def _left_out(eager: Sequence[EagerNode]) -> list[EagerNode]:
    """Nodes that ONNX Runtime might have computed: not views that share memory, which compute nothing."""
    return [node for node in eager if node.reason != SHARES_MEMORY]


def _first_cause(plan: Plan) -> BaseException | None:
    """What a custom translation of the user's raised."""
    return next((plan.causes[node.name] for node in plan.cut.eager if node.name in plan.causes), None)


def _unsupported(name: str, eager: Sequence[EagerNode]) -> ClientError:
    def where(node: EagerNode) -> str:
        found = [node.source, node.module and f"module {node.module}"]
        return ", ".join(filter(None, found)) or "source unknown"

    lines = [f"{node.name} ({node.op}), {where(node)}: {node.reason}" for node in eager]
    return ClientError(
        f"{len(eager)} node(s) cannot run on ONNX Runtime and on_unsupported is 'error':\n  "
        + "\n  ".join(lines)
        + "\nUse on_unsupported='eager' to run them in eager, give their operators an ONNX form by "
        "custom_translations, or change the lines named",
        code="UNSUPPORTED",
        graph=name,
        node=eager[0].name,
    )


def _graph_spec(compilation: _Compilation, info: GraphInfo, plan: Plan) -> GraphSpec:
    return GraphSpec(
        graph_id=info.graph_id,
        name=info.name,
        direction=info.direction,
        dynamo_text=compilation.dynamo_text,
        joint_text=compilation.joint_text,
        fx_text=_readable(plan.cut.module),
        parts_json=plan.cut.parts_json(described_options(compilation.options)),
    )


def _prepared_parts(compilation: _Compilation, graph: GraphSpec, plan: Plan) -> list[Part]:
    parts = []
    with progress(f"{graph.name}: building sessions", unit="parts", total=len(plan.parts)):
        for planned in plan.parts:
            parts.append(_prepared_part(compilation, graph, plan, planned))
            tick()
    return parts


def _prepared_part(compilation: _Compilation, graph: GraphSpec, plan: Plan, planned: PlannedPart) -> Part:
    options = compilation.options
    translated = planned.translated
    layout = planned.layout

    def specs(inputs: Sequence[object]) -> list[OutputSpec]:
        return [OutputSpec(dtype=dtype, shape=shape, stride=stride) for dtype, shape, stride in layout.specs(inputs)]

    spec = PartSpec(
        graph=graph,
        part=planned.graph.index,
        model=_transformed(translated.model, options.transforms, graph.name),
        provenance_json=provenance_json(
            part=planned.graph.module,
            tensor_outputs=planned.tensor_outputs,
            input_names=translated.input_names,
            output_names=translated.output_names,
            fx_values={**translated.fx_values, **{name: name for name in translated.named_values}},
            onnx_nodes=translated.onnx_nodes,
            descriptions=_descriptions(plan.cut.module, compilation.sources),
            custom_op_libraries=options.custom_op_libraries,
        ),
        fx_values={node: translated.fx_values[node] for node in planned.graph.compute_nodes},
        named_values=translated.named_values,
        input_names=translated.input_names,
        output_names=translated.output_names,
        outputs=specs if layout.symbolic else specs(()),
        custom_op_libraries=compilation.libraries,
    )
    return Client.get(options).part(spec, options)


def _transformed(model: bytes, transforms: Sequence[Callable[..., Any]], graph: str) -> bytes:
    """The model after the option transforms. Errors: OptionError that names option, function and graph."""
    if not transforms:
        return model
    import onnx

    proto = onnx.load_model_from_string(model)
    for transform in transforms:
        name = function_name(transform)
        try:
            made = transform(proto)
        except Exception as error:  # whatever the user's function raises
            raised = raised_at(error, transform)
            raise OptionError(
                f"option transforms: {name} raised {raised}", code="BAD_TRANSFORM", graph=graph
            ) from error
        if made is not None and not isinstance(made, onnx.ModelProto):
            raise OptionError(
                f"option transforms: {name} returned {shown(made)}, expected a ModelProto, or None where it changed "
                "the one it was given",
                code="BAD_TRANSFORM",
                graph=graph,
            )
        proto = proto if made is None else made
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized


def _descriptions(gm: fx.GraphModule, sources: Sequence[str]) -> dict[str, dict[str, str]]:
    """{FX name: role} of the AOT graph's inputs and outputs."""
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
    """Once a graph. Where eager is right, as for random numbers, nothing is wrong; what ONNX cannot express is."""
    left = _left_out(info.eager)
    for level, nodes in (
        (logging.WARNING, [node for node in left if node.reason not in EAGER_IS_RIGHT]),
        (logging.INFO, [node for node in left if node.reason in EAGER_IS_RIGHT]),
    ):
        if nodes:
            reasons = "; ".join(f"{node.name} ({node.op}): {node.reason}" for node in nodes[:5])
            more = f"; and {len(nodes) - 5} more" if len(nodes) > 5 else ""
            count = f"{len(nodes)} of {info.compute_nodes} nodes"
            log.log(level, "%s: %s run in eager: %s%s", info.name, count, reasons, more)
