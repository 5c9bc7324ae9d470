"""FX graph to ONNX model. The only file that touches torch.onnx's private API.

The AOT graph is walked once, never traced again: FX names stay ONNX value names and parameters stay inputs.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rust_ort.export import rules
from rust_ort.export.opset import OpsetError, keep_versions, raise_nodes
from rust_ort.export.rules import How
from rust_ort.options import LOWEST_OPSET

MODEL_IR_VERSION = 10
TORCHLIB_OPSET = LOWEST_OPSET
_FX_NAME = "rust_ort.fx_name"
PROMOTED_SUFFIX = "__promoted"
_PATCHING = threading.Lock()


class ExporterMissing(RuntimeError):
    """The private exporter functions of torch this package needs are not there."""


class TranslationError(RuntimeError):
    """One FX node could not be written as ONNX. `node_name` is its FX name, "" when unknown."""

    def __init__(self, message: str, node_name: str) -> None:
        super().__init__(message)
        self.node_name = node_name


@dataclass(frozen=True, kw_only=True)
class Translated:
    """One part as ONNX.

    `input_names`: the model's inputs, a subset of the part's placeholders in their order. `output_names[i]`: value
    that holds output node i of the part. `fx_values`: {FX compute node: value its ONNX nodes produce}. `onnx_nodes`:
    {ONNX node name: FX node name}. `named_values`: every value, inputs excluded, that carries an FX node's name.
    """

    model: bytes
    input_names: list[str]
    output_names: list[str]
    fx_values: dict[str, str]
    onnx_nodes: dict[str, str]
    named_values: list[str]


@functools.cache
def _exporter() -> Any:
    """torch's exporter modules as one namespace. Loads onnxscript."""
    try:
        import torch.onnx._internal.exporter._building as _building
        from torch.onnx._internal.exporter import (
            _core,
            _decomp,
            _dispatching,
            _errors,
            _fx_passes,
            _registration,
            _schemas,
        )  # fmt: skip

        assert callable(_building._get_or_create_constant)
        assert callable(_core._translate_fx_graph)
        assert callable(_fx_passes.insert_type_promotion_nodes)
        assert callable(_dispatching.dispatch)
        assert callable(_schemas.op_signature_from_function)
    except (ImportError, AttributeError, AssertionError) as error:
        raise ExporterMissing(
            f"torch {torch.__version__} has no torch.onnx._internal.exporter._core._translate_fx_graph as used here "
            f"({type(error).__name__}: {error}); rust_ort is made for torch 2.11 to 2.15, and needs the packages "
            "onnx and onnxscript: pip install 'torch>=2.11,<2.16' onnx onnxscript"
        ) from error

    class Exporter:
        building = _building
        core = _core
        decomp = _decomp
        dispatching = _dispatching
        errors = _errors
        passes = _fx_passes
        registration = _registration
        schemas = _schemas

    return Exporter


@contextlib.contextmanager
def _unrounded_constants() -> Iterator[None]:
    """Inside, a Python number beside a bfloat16 tensor is written as float32 and cast.

    torch's kernels take such a number in float32, and the exporter would round it to 8 bits. Whoever computes the node
    in float32 leaves the cast out.
    """
    import onnx_ir as ir

    building = _exporter().building

    def constant(farm: dict[Any, Any], arg: Any, dtype: Any, opset: Any) -> Any:
        if dtype != ir.DataType.BFLOAT16 or isinstance(arg, complex) or _fits_bfloat16(arg):
            return rounded(farm, arg, dtype, opset)
        key = (tuple(arg) if isinstance(arg, list) else arg, dtype)
        if key not in farm:
            float32 = rounded(farm, arg, ir.DataType.FLOAT, opset)
            farm[key] = opset.Cast(float32, to=dtype)
            farm[key].dtype, farm[key].shape = dtype, float32.shape
        return farm[key]

    with _PATCHING:
        rounded = building._get_or_create_constant
        building._get_or_create_constant = constant
        try:
            yield
        finally:
            building._get_or_create_constant = rounded


def _fits_bfloat16(number: Any) -> bool:
    exact = torch.as_tensor(number, dtype=torch.float64)
    return torch.equal(exact.to(torch.bfloat16).to(torch.float64), exact)


def registry() -> Any:
    """torchlib's registry with the rules' ONNX forms, made once a process (0.4 to 1.1 s)."""
    return _registry(rules.masked())


@functools.cache
def _registry(_: frozenset[str]) -> Any:
    exporter = _exporter()
    logger = logging.getLogger(exporter.registration.__name__)
    logger.setLevel(logging.ERROR)  # it warns of torchvision's operators where torchvision is not installed
    made = exporter.registration.ONNXRegistry.from_torchlib(opset_version=TORCHLIB_OPSET)
    for rule in rules.active(How.TRANSLATED):
        for target in rule.overloads:
            made.register_op(target, rule.function)
    return made


def whole_operators() -> frozenset[str]:
    """Names, such as "aten.mm.default", of the operators that torch decomposes in general, but not for ONNX: torchlib
    translates them, or they are composite and come apart by themselves."""
    decomp = _exporter().decomp
    table = decomp.create_onnx_friendly_decomposition_table(set(decomp.get_onnx_implemented_overloads(registry())))
    general = torch._decomp.decomposition_table
    return frozenset(str(operator) for operator in general if table.get(operator) is not general[operator])


def why_untranslatable(node: fx.Node) -> str | None:
    """None when torchlib has a function for `node`, else the reason. Errors: ExporterMissing."""
    exporter, registered = _exporter(), registry()
    try:
        function, message = exporter.dispatching.dispatch(node, registered)
    except Exception as error:
        # A target the registry cannot look up is simply not registered. Whatever torch raises becomes the node's
        # reason: it is logged with the node, and raised under on_unsupported="error".
        return f"torchlib has no function for it ({type(error).__name__}: {error})"
    return None if function is not None else f"torchlib has no function for it ({message})"


def translate(
    part: fx.GraphModule,
    *,
    name: str,
    opset: int = TORCHLIB_OPSET,
    custom_translations: dict[Any, Callable[..., Any]] | None = None,
    keep_inputs: frozenset[str] = frozenset(),
) -> Translated:
    """Writes `part` as ONNX; `part` is left as it is.

    part: placeholders, call_function nodes and one output node holding a tuple of nodes; every value has
    `meta["val"]`. Inputs that nothing uses are pruned but for `keep_inputs`. Raises TranslationError.
    """
    import onnx_ir as ir

    exporter = _exporter()
    source = fx.GraphModule(part, copy.deepcopy(part.graph))
    for node in source.graph.nodes:  # the exporter would write these into every ONNX node; provenance.json has them
        node.meta["nn_module_stack"] = {}
        node.meta.pop("stack_trace", None)
    exporter.passes.insert_type_promotion_nodes(source)
    _keep_names_of_promoted(part.graph, source.graph)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": TORCHLIB_OPSET}, name=name)
    model = ir.Model(graph, ir_version=MODEL_IR_VERSION, producer_name="rust_ort")
    try:
        with _unrounded_constants():
            values = exporter.core._translate_fx_graph(
                source.graph, model, graph_like=graph, owned_graphs={}, lower="at_conversion",
                registry=_with_custom(registry(), custom_translations),
            )  # fmt: skip
    except exporter.errors.ConversionError as error:
        raise TranslationError(_root_message(error), _failing_node(source.graph, str(error))) from error

    placeholders = [node.name for node in source.graph.nodes if node.op == "placeholder"]
    for value, placeholder in zip(graph.inputs, placeholders, strict=True):
        value.name = placeholder
    produced = _own_names(ir, graph, values, source.graph)
    wanted = [node.name for node in _output_nodes(source.graph)]
    graph.outputs.clear()
    graph.outputs.extend(produced[output] for output in wanted)
    _inline_functions(ir, model)
    used = _drop_dead(ir, graph, {str(value.name) for value in produced.values()})
    _raise_opset(graph, opset)
    onnx_nodes = _strip_metadata(model)
    _import_opsets(model, opset)
    kept = [value for value in graph.inputs if value.name in used or value.name in keep_inputs]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    computed = {node.name for node in part.graph.nodes if node.op == "call_function"}
    return Translated(
        model=ir.serde.serialize_model(model).SerializeToString(deterministic=True),
        input_names=[str(value.name) for value in kept],
        output_names=[str(produced[output].name) for output in wanted],
        fx_values={fx_name: str(value.name) for fx_name, value in produced.items() if fx_name in computed},
        onnx_nodes=onnx_nodes,
        named_values=[fx_name for fx_name, value in produced.items() if fx_name in computed and value.name == fx_name],
    )


def _keep_names_of_promoted(graph: fx.Graph, promoted: fx.Graph) -> None:
    """Where type promotion widened a node and cast its result back, the name goes to what has the node's own dtype."""
    dtypes = {node.name: getattr(node.meta.get("val"), "dtype", None) for node in graph.nodes}
    for cast in promoted.nodes:
        (wide, *others) = cast.all_input_nodes or (None,)
        if cast.name in dtypes or others or wide is None or wide.name not in dtypes:
            continue
        name, own = wide.name, dtypes[wide.name]
        if getattr(wide.meta.get("val"), "dtype", None) != own and getattr(cast.meta.get("val"), "dtype", None) == own:
            wide.meta["fx_name"] = cast.meta["fx_name"] = name
            wide.name, cast.name = name + PROMOTED_SUFFIX, name


def _own_names(ir: Any, graph: Any, values: dict[str, Any], source: fx.Graph) -> dict[str, Any]:
    """{FX name: the ONNX value of that name}.

    torchlib functions that do nothing return their input (or a constant another node made), and the exporter renames
    it, graph inputs too. The first FX node keeps such a value and its name; each later one gets an Identity.
    """
    owner: dict[int, str] = {id(value): str(value.name) for value in graph.inputs}
    produced: dict[str, Any] = {}
    for node in source.nodes:
        if node.op == "output" or node.name not in values:
            continue
        value = values[node.name]
        if isinstance(value, Sequence):  # several outputs: getitem nodes name them; any one stands for the node
            first = next((item for item in value if item is not None and item.producer() is not None), None)
            if first is not None:
                produced[node.name] = first
            continue
        first_owner = owner.setdefault(id(value), node.name)
        if first_owner == node.name or node.op == "placeholder":
            value.name = node.name
            produced[node.name] = value
            continue
        value.name = first_owner
        identity = ir.node("Identity", [value], name=f"node_{node.name}")
        identity.outputs[0].name = node.name
        identity.outputs[0].dtype = value.dtype
        identity.outputs[0].shape = value.shape
        identity.metadata_props["pkg.torch.onnx.fx_node"] = node.name
        identity.meta["node"] = node
        graph.append(identity)
        produced[node.name] = identity.outputs[0]
    return produced


def _output_nodes(graph: fx.Graph) -> list[fx.Node]:
    outputs = graph.output_node().args[0]
    return [outputs] if isinstance(outputs, fx.Node) else list(outputs)  # type: ignore[arg-type]


def _inline_functions(ir: Any, model: Any) -> None:
    """torchlib's local functions become plain nodes: any runtime and any tool reads the model then."""
    if not model.functions:
        return
    from onnx_ir.passes.common import InlinePass

    keep_versions(model)

    for node in model.graph:
        if node.op_identifier() in model.functions and node.meta.get("node") is not None:
            node.metadata_props[_FX_NAME] = node.meta["node"].name  # the pass hands it to the nodes of the body
    before = {id(value): value.name for value in model.graph.outputs}
    try:
        InlinePass()(model)
    except (ValueError, ir.passes.PassError) as error:  # functions of a custom translation that do not fit together
        raise TranslationError(f"its functions cannot be put in place: {error}", "") from error
    for value in model.graph.outputs:
        value.name = before.get(id(value), value.name)
    model.functions.clear()


def _drop_dead(ir: Any, graph: Any, fx_names: set[str]) -> set[str]:
    """Removes helper constants nothing uses, keeps every FX value. Returns the names of used values."""
    used = {str(value.name) for value in graph.outputs}
    for node in reversed(list(graph)):
        names = {str(value.name) for value in node.outputs}
        if not names & used and not names & fx_names:
            graph.remove(node, safe=False)
            continue
        used |= {str(value.name) for value in node.inputs if value is not None}
        for inner in ir.traversal.RecursiveGraphIterator(graph) if _has_subgraph(node) else ():
            used |= {str(value.name) for value in inner.inputs if value is not None}
    for initializer in [name for name in graph.initializers if name not in used]:
        del graph.initializers[initializer]
    return used


def _has_subgraph(node: Any) -> bool:
    return any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values())


def _raise_opset(graph: Any, opset: int) -> None:
    try:
        raise_nodes(graph, opset)
    except OpsetError as error:
        raise TranslationError(str(error), _fx_name(error.node) or "") from error


def _fx_name(node: Any) -> str | None:
    """FX node that an ONNX node of the graph was written for."""
    fx_node = node.meta.get("node")
    name = fx_node.name if fx_node is not None else node.metadata_props.get(_FX_NAME)
    return None if name is None else str(name)


def _strip_metadata(model: Any) -> dict[str, str]:
    """{ONNX node: FX node}; the metadata itself, 96 % of the proto, goes."""
    onnx_nodes: dict[str, str] = {}
    names: set[str] = set()
    for index, node in enumerate(model.graph):
        if not node.name or node.name in names:  # a renamed value renamed its producer too
            node.name = f"{node.name or 'node'}_n{index}"
        names.add(node.name)
        fx_name = _fx_name(node)
        if fx_name is not None:
            onnx_nodes[node.name] = fx_name
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in model.graph.inputs:
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    return onnx_nodes


def _import_opsets(model: Any, opset: int) -> None:
    import onnx_ir as ir

    model.graph.opset_imports[""] = opset
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain:
            model.graph.opset_imports.setdefault(node.domain, node.version or 1)


def _with_custom(registry: Any, custom: dict[Any, Callable[..., Any]] | None) -> Any:
    if not custom:
        return registry
    extended = copy.copy(registry)
    extended.functions = dict(registry.functions)
    for target, function in custom.items():
        extended.register_op(target, _told(target, function))
    return extended


class _CustomError(RuntimeError):
    """A custom translation that does not do its work."""


def _told(target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose failures say that it is the user's and where in it."""
    import onnx_ir as ir

    written = getattr(function, "function", function)  # what onnxscript.script was given
    name = getattr(written, "__qualname__", repr(written))
    n_results = len(target._schema.returns)
    _complete_signature(function)

    @functools.wraps(written)
    def translation(*args: Any, **kwargs: Any) -> Any:
        try:
            results = function(*args, **kwargs)
        except Exception as error:  # whatever the user's function raises
            raise _CustomError(
                f"custom translation {name}, {_where(error, written)}: {_root_message(error)}"
            ) from error
        n_given = len(results) if isinstance(results, (list, tuple)) else 1
        if n_given != n_results:
            raise _CustomError(f"custom translation {name} returned {n_given} value(s), {target} returns {n_results}")
        for result in results if isinstance(results, (list, tuple)) else [results]:
            if not isinstance(result, ir.Value):
                raise _CustomError(f"custom translation {name} returned {result!r}, expected an ONNX value")
        return results

    return translation


def _complete_signature(function: Any) -> None:
    """Without an annotation of what it returns, the exporter takes a script for one that returns nothing."""
    import onnx_ir as ir

    body = getattr(function, "function_ir", None)
    if body is None or function.traceable:
        return
    describe = _exporter().schemas.op_signature_from_function
    signature = describe(function, body.domain, function.name, since_version=function.opset.version)
    for index in range(len(signature.outputs), len(body.outputs)):
        anything = ir.schemas.TypeConstraintParam.any_value(f"TReturn{index}")
        signature.outputs.append(
            ir.schemas.Parameter(name=anything.name, type_constraint=anything, required=True, variadic=False)
        )
    function._pt_onnx_signature = signature


def _where(error: BaseException, function: Any) -> str:
    """Line of the function that the error came through; where the function begins when it only came to be called."""
    code = getattr(function, "__code__", None)
    frames = [*traceback.walk_tb(error.__traceback__)]
    lines = [line for frame, line in frames if code is not None and frame.f_code is code]
    if code is None:
        return "source unknown"
    return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"


def _failing_node(graph: fx.Graph, message: str) -> str:
    return next((node.name for node in graph.nodes if str(node.format_node()) in message), "")


def _root_message(error: BaseException) -> str:
    while error.__cause__ is not None and not isinstance(error, _CustomError):
        error = error.__cause__
    return str(error) if isinstance(error, _CustomError) else f"{type(error).__name__}: {error}"


__all__ = ["ExporterMissing", "Translated", "TranslationError", "translate", "why_untranslatable"]
