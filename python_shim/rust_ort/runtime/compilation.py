"""From a Dynamo graph to prepared parts: AOTAutograd, the plan of each AOT graph, and the models of its parts."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from rust_ort import torch_private
from rust_ort.call.client import Client
from rust_ort.errors import ClientError, DaemonFault, OptionError, RustOrtError
from rust_ort.export import graph_passes
from rust_ort.export import hash as content
from rust_ort.export.aliases import DIRECTION, hidden_outputs
from rust_ort.export.partition import (
    COMPUTES_NOTHING,
    EAGER_IS_RIGHT,
    EagerNode,
    lowest_precision,
    modules,
    operators,
)
from rust_ort.export.plan import Plan, make_plan
from rust_ort.export.provenance import input_sources, source_line
from rust_ort.export.text import one_line
from rust_ort.link.specs import CustomOpLibrary, GraphSpec
from rust_ort.observe import graph_info, limits, session, torch_trace, work
from rust_ort.observe.graph_info import GraphInfo, GraphLog
from rust_ort.observe.reasons import logged
from rust_ort.options import Options
from rust_ort.progress import progress
from rust_ort.runtime import kept_plans
from rust_ort.runtime.cache_key import key_parts, may_be_kept, opset
from rust_ort.runtime.compiled_graph import CompiledGraph, PartRunner
from rust_ort.runtime.dynamo_graph import Compilation, no_collection, reduce_all
from rust_ort.runtime.preparation import graph_spec, prepared_parts
from rust_ort.runtime.refusal import (
    is_of_plan,
    is_refusal,
    nodes_alike,
    raise_if_transforms_did_it,
    refused_in_trials,
    refused_node,
)
from rust_ort.torch_private import OpOverload

log = logging.getLogger("rust_ort")

Table = dict[Any, Callable[..., Any]]


def compile_dynamo_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, collected: GraphLog
) -> Callable[..., Any]:
    """The callable for a Dynamo graph; each of its AOT graphs is added to collected. Errors: RustOrtError."""
    from functorch.compile import min_cut_rematerialization_partition

    limits.watch()
    compilation = Compilation(
        name=_compile_name(),
        options=options,
        sources=input_sources(gm),
        libraries=[CustomOpLibrary.at(path) for path in options.custom_op_libraries],
        collected=collected,
    )
    compilation.dynamo_text = compilation.readable(gm)
    reduce_all(gm)

    def partition_fn(joint: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        compilation.joint_text = compilation.readable(joint)
        with _every_draw_kept(joint):
            return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)

    def table() -> Table:
        with compilation.timed("table"):
            whole = kept_plans.decomposition_table(Client.get(options), daemon_needed=_daemon_needed(options))
            return {operator: made for operator, made in whole.items() if operator not in options.custom_translations}

    compiler = torch_private.aot_autograd(
        fw_compiler=functools.partial(_compile_aot_graph, compilation, table, "forward"),
        bw_compiler=functools.partial(_compile_aot_graph, compilation, table, "backward"),
        inference_compiler=functools.partial(_compile_aot_graph, compilation, table, "inference"),
        decompositions=table,
        partition_fn=partition_fn,
    )
    try:
        with _lstms_that_train(gm, example_inputs), torch_private.printed_once():
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


@contextlib.contextmanager
def _lstms_that_train(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Inside, AOTAutograd takes LSTMs apart into steps where something is trained. Of one whose input needs no gradient
    it would take the CPU's fused layer for inference, which has no backward (torch 2.13, any backend)."""
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    trains = needs_grad and torch.is_grad_enabled()
    if not trains or not any(getattr(node.target, "__name__", "") == "lstm" for node in gm.graph.nodes):
        yield
        return
    with torch.backends.mkldnn.flags(enabled=False):
        yield


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


def _compile_aot_graph(
    compilation: Compilation, table: Callable[[], Table], direction: str, gm: fx.GraphModule, _: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    if compilation.options.freeze_parameters and direction != "inference":
        raise _trained(compilation.name)
    if direction == "forward":
        _keep_saved_tensors()
    # A first backward compiles outside Dynamo's lock, in several threads at once; FX's metadata is one a process.
    with torch_private.compile_lock(), no_collection(), torch_private.printed_once():
        with torch_private.autocast_off():
            graph_passes.rewrite(gm, table)
        return _compiled_once(compilation, direction, gm)


def _trained(name: str) -> OptionError:
    return OptionError(
        "option freeze_parameters=True: this graph has a backward, and parameters that are constants have no "
        "gradients; call it under torch.no_grad() or torch.inference_mode(), have nothing require a gradient "
        "(model.requires_grad_(False)), or leave the option out for training",
        graph=name,
    )


def _keep_saved_tensors() -> None:
    """No backward here writes into its saved tensors: none is donated, and backward(retain_graph=True) is allowed."""
    context = torch_private.tracing_context()
    metadata = context.fw_metadata if context is not None else None
    if metadata is not None and getattr(metadata, "bw_donated_idxs", None):
        metadata.bw_donated_idxs = []


def _compiled_once(compilation: Compilation, direction: str, gm: fx.GraphModule) -> Callable[[list[Any]], Any]:
    options = compilation.options
    name = f"{compilation.name}-{direction}"
    session.open_from_options(options)
    session.announce(options)
    start = time.perf_counter()
    seconds, compilation.seconds = compilation.seconds, {}
    outside = sum(seconds.values())
    gm.meta[DIRECTION] = direction
    hidden = sorted(hidden_outputs(gm.graph.output_node()))
    extra = [*key_parts(options, compilation.libraries), f"{direction} hidden {hidden}"]
    if options.runtimes or options.precision_rules:  # which of them fit depends on it
        extra.append(f"modules {sorted(modules(gm).items())}")
    graph_id = content.graph_hash(gm, extra=extra)
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


def _daemon_needed(options: Options) -> bool:
    """Whether a compilation without the daemon is an error."""
    return options.on_daemon_error == "error"


def _plan_and_prepare(
    compilation: Compilation, name: str, direction: str, gm: fx.GraphModule, graph_id: str, seconds: dict[str, float]
) -> CompiledGraph:
    options = compilation.options
    client = Client.get(options)
    kept = None
    if may_be_kept(options):
        kept = kept_plans.load(client, graph_id, gm, daemon_needed=_daemon_needed(options))
    refused: dict[str, str] = {}
    while True:
        # The same graph under another compile id is the same model, so a warm session serves it.
        model_name = f"graph_{graph_id[:16]}"
        with progress(f"{name}: writing ONNX", unit="nodes"):
            plan = kept or make_plan(
                gm, name=model_name, refused=refused, opset=opset(options), custom=options.custom_translations
            )
        for phase, spent in plan.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
        unsupported = _left_out(plan.cut.eager)
        if unsupported and options.on_unsupported == "error":
            raise _unsupported(name, unsupported) from _first_cause(plan)
        all_work, eager_work = work.of_graph(gm, {node.name for node in plan.cut.eager})
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
            work=all_work,
            eager_work=eager_work,
            compile_id=torch_private.compile_id(),
            options=options,
        )
        start = time.perf_counter()
        graph = graph_spec(compilation, info, plan)
        prepare = functools.partial(_runners, compilation, graph, plan, info)
        try:
            runners = prepare()
        except RustOrtError as error:
            if kept is not None and is_of_plan(error):
                log.warning("%s: the plan that was kept does not serve, it is exported again: %s", name, error)
                kept = None
                continue
            if not is_refusal(error):
                if isinstance(error, DaemonFault) and options.on_daemon_error == "eager":
                    info.unreachable = error
                    return CompiledGraph(
                        info=info, plan=plan, runners=None, options=options, graph=graph, prepare=prepare
                    )
                raise
            if options.transforms:
                raise_if_transforms_did_it(error, compilation, graph, plan)
            culprit = refused_node(error, plan)
            if culprit is None or culprit in refused:
                culprit = refused_in_trials(compilation, graph, plan)
            reason = f"ONNX Runtime refused {culprit}: {one_line(error.message)}"
            refused.update((node, reason) for node in nodes_alike(gm, culprit))
            continue
        finally:
            seconds["prepare"] = seconds.get("prepare", 0.0) + time.perf_counter() - start
        if kept is None:
            _keep(client, graph_id, plan, options)
        torch_trace.compiled(info, plan)
        return CompiledGraph(info=info, plan=plan, runners=runners, options=options, graph=graph, prepare=prepare)


def _runners(compilation: Compilation, graph: GraphSpec, plan: Plan, info: GraphInfo) -> list[PartRunner]:
    parts = prepared_parts(compilation, graph, plan)
    return [PartRunner(part, planned, info) for part, planned in zip(parts, plan.parts, strict=True)]


def _keep(client: Client, graph_id: str, plan: Plan, options: Options) -> None:
    if may_be_kept(options):
        kept_plans.save(client, graph_id, plan)
    elif plan.parts:
        kept_plans.count(client, graph_id)


def _left_out(eager: Sequence[EagerNode]) -> list[EagerNode]:
    """Nodes that ONNX Runtime might have computed: not views that share memory and memory that nobody wrote
    into, which compute nothing."""
    return [node for node in eager if node.reason not in COMPUTES_NOTHING]


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


def _log_eager(info: GraphInfo) -> None:
    """Once a graph. Where eager is right, as for random numbers, nothing is wrong; what ONNX cannot express is."""
    left = _left_out(info.eager)
    for level, nodes in (
        (logging.WARNING, [node for node in left if node.reason not in EAGER_IS_RIGHT]),
        (logging.INFO, [node for node in left if node.reason in EAGER_IS_RIGHT]),
    ):
        if nodes:
            count = f"{len(nodes)} of {info.compute_nodes} nodes"
            log.log(level, "%s: %s run in eager: %s", info.name, count, logged(nodes))
