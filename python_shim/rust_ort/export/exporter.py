"""torch's own ONNX exporter: the only file that touches its private API."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import fx

from rust_ort.export import rules
from rust_ort.export.custom import root_message, told
from rust_ort.export.rules import How, Rule
from rust_ort.export.rules.nodes import holds
from rust_ort.export.rules.promotion import EXACT_IN_FLOAT32
from rust_ort.export.text import one_line
from rust_ort.export.translation_cache import TranslationCache
from rust_ort.options import LOWEST_OPSET
from rust_ort.progress import tick
from rust_ort.torch_private import SUPPORTED

TORCHLIB_OPSET = LOWEST_OPSET
SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor)
"""torch rounds a number beside half precision to it; elsewhere it takes it in float32."""
_PATCHING = threading.Lock()
_LEVELS = threading.Lock()
_SIGNATURES: dict[tuple[str, str, int], Any] = {}
"""Of ONNX operators, by domain, name and version."""


class ExporterMissing(RuntimeError):
    """The private exporter functions of torch this package needs are not there."""


class ConversionError(RuntimeError):
    """The exporter could not write a node. `whole`: all that it said, which names the node."""

    def __init__(self, message: str, whole: str) -> None:
        super().__init__(message)
        self.whole = whole


@functools.cache
def private() -> Any:
    """torch's exporter modules as one namespace. Loads onnxscript. Errors: ExporterMissing."""
    try:
        import torch.onnx._internal.exporter._building as _building
        from onnxscript.values import TracedOnnxFunction
        from torch._export.utils import _is_preservable_cia_op
        from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS
        from torch.onnx._internal.exporter import (
            _core,
            _decomp,
            _dispatching,
            _errors,
            _registration,
            _schemas,
            _tensors,
        )  # fmt: skip
        from torch.onnx._internal.fx.passes import type_promotion

        assert callable(_building._get_or_create_constant)
        assert callable(_building._determine_input_dtype)
        assert callable(_core._handle_call_function_node_with_lowering)
        assert callable(_core._set_node_metadata)
        assert callable(_core._translate_fx_graph)
        assert callable(type_promotion.get_type_promotion_rule)
        assert callable(type_promotion._TypePromotionInterpreter._maybe_promote_node)
        assert callable(_dispatching.dispatch)
        assert callable(_schemas.op_signature_from_function)
        assert isinstance(TracedOnnxFunction.function_ir, property)
    except (ImportError, AttributeError, AssertionError) as error:
        raise ExporterMissing(
            f"torch {torch.__version__} has no torch.onnx._internal.exporter._core._translate_fx_graph as used here "
            f"({type(error).__name__}: {error}); rust_ort is made for torch{SUPPORTED}, and needs the packages "
            f"onnx and onnxscript: pip install 'torch{SUPPORTED}' onnx onnxscript"
        ) from error

    class Exporter:
        building = _building
        core = _core
        decomp = _decomp
        dispatching = _dispatching
        errors = _errors
        promotion = type_promotion
        registration = _registration
        is_composite = staticmethod(_is_preservable_cia_op)
        preserved = PRESERVED_ATEN_CIA_OPS
        schemas = _schemas
        tensor = _tensors.SymbolicTensor
        traced_function = TracedOnnxFunction

    return Exporter


@contextlib.contextmanager
def _as_we_write(functions: TranslationCache) -> Iterator[None]:
    """Inside, a Python number is written as the node's kernel takes it, where the exporter would round it.

    Beside a tensor of half precision as float32 and cast: whoever computes the node in float32 leaves the cast out; but
    not in a sum, where torch rounds it. In a node of float64 as float64, also where no tensor says so. The signature of
    an ONNX operator is read from its schema once a process, not for every node (0.1 ms). No node gets metadata, which
    would not be kept. functions: those that are called inside.
    """
    import onnx_ir as ir

    building, core = private().building, private().core
    float64 = sums = False

    def constant(farm: dict[Any, Any], arg: Any, dtype: Any, opset: Any) -> Any:
        if not _has_negative_zero(arg):
            return of_equal(farm, arg, dtype, opset)
        # The farm takes it for 0.0, which it equals.
        key = (repr(arg), dtype, "with its signs")
        if key not in farm:
            farm[key] = of_equal({}, arg, dtype, opset)
        return farm[key]

    def of_equal(farm: dict[Any, Any], arg: Any, dtype: Any, opset: Any) -> Any:
        half = {ir.DataType.BFLOAT16: torch.bfloat16, ir.DataType.FLOAT16: torch.float16}.get(dtype)
        if half is None or sums or isinstance(arg, complex) or _fits(arg, half):
            return rounded(farm, arg, dtype, opset)
        key = (tuple(arg) if isinstance(arg, list) else arg, dtype, "as it is")
        if key not in farm:
            float32 = rounded(farm, arg, ir.DataType.FLOAT, opset)
            farm[key] = opset.Cast(float32, to=dtype)
            farm[key].dtype, farm[key].shape = dtype, float32.shape
        return farm[key]

    def lowered(model: Any, node: fx.Node, *args: Any, **kwargs: Any) -> None:
        nonlocal float64, sums
        sums = _rounds_numbers(node)
        float64 = holds(torch.float64, node, *node.all_input_nodes)
        functions.context = (sums, float64)
        tick()
        lower(model, node, *args, **kwargs)

    def input_dtype(param: Any, arg: Any, type_binding: Any) -> Any:
        found = guessed(param, arg, type_binding)
        unbound = param.type_constraint not in type_binding and len(param.type_constraint.allowed_types) > 1
        return ir.DataType.DOUBLE if float64 and unbound and isinstance(arg, float) else found

    def signature(cls: type, schema: Any) -> Any:
        key = (schema.domain, schema.name, schema.since_version)
        if key not in _SIGNATURES:
            _SIGNATURES[key] = read.__get__(None, cls)(schema)
        return _SIGNATURES[key]

    with _PATCHING:
        rounded, guessed = building._get_or_create_constant, building._determine_input_dtype
        lower, read = core._handle_call_function_node_with_lowering, ir.schemas.OpSignature.__dict__["from_op_schema"]
        described = core._set_node_metadata
        building._get_or_create_constant, building._determine_input_dtype = constant, input_dtype
        core._handle_call_function_node_with_lowering = lowered
        core._set_node_metadata = lambda *_: None
        ir.schemas.OpSignature.from_op_schema = classmethod(signature)
        try:
            yield
        finally:
            building._get_or_create_constant, building._determine_input_dtype = rounded, guessed
            core._handle_call_function_node_with_lowering, core._set_node_metadata = lower, described
            ir.schemas.OpSignature.from_op_schema = read


def _has_negative_zero(argument: Any) -> bool:
    numbers = argument if isinstance(argument, list | tuple) else [argument]
    return any(isinstance(number, float) and number == 0 and math.copysign(1, number) < 0 for number in numbers)


def _fits(number: Any, dtype: torch.dtype) -> bool:
    exact = torch.as_tensor(number, dtype=torch.float64)
    return torch.equal(exact.to(dtype).to(torch.float64), exact)


LIBRARY = "torchvision"
"""Of which torchlib has functions, that it registers only where the operators are there."""


TORCHS_NAMESPACES = frozenset({"aten", "prims", "operator"})
"""Their operators are all there from the start."""


def registry() -> Any:
    """torchlib's registry with the rules' ONNX forms, made once a process (0.3 to 0.7 s, most of it
    onnxscript's import)."""
    masked = rules.masked()
    # A library that is imported later registers its operators then.
    return _with(masked, LIBRARY in sys.modules, sum(len(rule.overloads) for rule in _of_libraries(masked)))


@functools.cache
def _of_libraries(_masked: frozenset[str]) -> list[Rule]:
    """The rules of operators that are not torch's own."""
    return [rule for rule in rules.active(How.TRANSLATED) if rule.operator.split(".")[0] not in TORCHS_NAMESPACES]


@functools.cache
def _with(_masked: frozenset[str], _has_library: bool, _n_of_libraries: int) -> Any:
    """The rules of other kinds change nothing in it."""
    exporter = private()
    with _quiet(), _signatures_on_demand():
        made = exporter.registration.ONNXRegistry.from_torchlib(opset_version=TORCHLIB_OPSET)
    for rule in rules.active(How.TRANSLATED):
        for target in rule.overloads:
            made.register_op(target, rule.function)
    return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, the exporter does not warn of torchvision's operators where it is not installed, nor of the empty lists
    that torchlib writes. The loggers are its user's too: they come out as they went in."""
    loggers = [logging.getLogger(name) for name in (private().registration.__name__, "onnx_ir._convenience")]
    with _LEVELS:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _signatures_on_demand() -> Iterator[None]:
    """Inside, registered functions get no signature: the exporter makes it when it first writes one of them, and most
    are never written (0.4 s). Nor is their source parsed for the domain they are in (0.3 s)."""
    registration, traced = private().registration, private().traced_function
    described, parsed = registration.OnnxDecompMeta, traced.function_ir
    if "skip_signature_inference" not in described.__dataclass_fields__:
        yield
        return
    with _PATCHING:
        registration.OnnxDecompMeta = functools.partial(described, skip_signature_inference=True)
        traced.function_ir = property(lambda function: types.SimpleNamespace(domain=function.opset.domain))
        try:
            yield
        finally:
            registration.OnnxDecompMeta, traced.function_ir = described, parsed


def whole_operators() -> frozenset[str]:
    """Names, such as "aten.mm.default", of the operators that torch decomposes in general, but not for ONNX: torchlib
    translates them, or they are composite and come apart by themselves.

    What torch.onnx's own table leaves out or has otherwise, asked of each operator: making that table takes 0.1 s.
    """
    return _whole_operators(registry())


@functools.cache
def _whole_operators(known: Any) -> frozenset[str]:
    exporter = private()
    implemented = set(exporter.decomp.get_onnx_implemented_overloads(known))
    core = torch._decomp._core_aten_decompositions_post_autograd()
    general = torch._decomp.decomposition_table

    def comes_apart(operator: Any) -> bool:
        if not hasattr(operator, "_schema"):
            return True
        if operator in core or operator in exporter.preserved or not exporter.is_composite(operator):
            return False
        in_python = operator.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd)
        return general[operator] is not in_python

    return frozenset(str(operator) for operator in general if operator in implemented or comes_apart(operator))


def why_untranslatable(node: fx.Node) -> str | None:
    """None when torchlib has a function for `node`, else the reason. Errors: ExporterMissing."""
    exporter, registered = private(), registry()
    try:
        function, _ = exporter.dispatching.dispatch(node, registered)
    except Exception as error:
        # A target the registry cannot look up is simply not registered. Whatever torch raises becomes the node's
        # reason: it is logged with the node, and raised under on_unsupported="error".
        return f"{without_form(node.target)} ({type(error).__name__}: {one_line(str(error))})"
    return None if function is not None else without_form(node.target)


def without_form(operator: object) -> str:
    """The reason of an operator that nobody wrote for ONNX."""
    return f"torchlib has no function for {operator}; the option custom_translations takes one"


def write(source: fx.Graph, model: Any, graph: Any, custom: dict[Any, Callable[..., Any]] | None) -> dict[str, Any]:
    """Writes `source` into `graph` of `model`, both onnx_ir's, and returns {FX name: ONNX value or values}.

    custom: ONNX forms of operators, which win over the registry's. Errors: ConversionError.
    """
    from onnxscript import evaluator

    known = _with_custom(registry(), custom)  # made before, as what follows holds the lock it takes
    functions = TranslationCache(known, but_for=custom or {}, recorder=evaluator.default, tensor=private().tensor)
    try:
        with _quiet(), _as_we_write(functions):
            values: dict[str, Any] = private().core._translate_fx_graph(
                source, model, graph_like=graph, owned_graphs={}, lower="at_conversion", registry=functions
            )
    except private().errors.ConversionError as error:
        raise ConversionError(root_message(error), str(error)) from error
    return values


def promote(source: fx.GraphModule) -> None:
    """Writes type promotion into the graph as casts. Whatever an operator raises for fake tensors comes through."""
    _promotion()(source)
    for node in source.graph.find_nodes(op="call_function", target=torch.ops.aten.scalar_tensor.default):
        dtype = node.kwargs.get("dtype")
        if dtype in (torch.float16, torch.bfloat16) and all(map(_rounds_numbers, node.users)):
            node.args = (torch.tensor(node.args[0], dtype=torch.float64).to(dtype).item(),)


def _rounds_numbers(node: fx.Node) -> bool:
    return node.target in SUMS and not node.kwargs


@functools.cache
def _promotion() -> Callable[[fx.GraphModule], None]:
    """The exporter's pass, but that it runs a node with fake tensors only where it changed it: the others' values are
    known, and running them all takes as long as writing them. Nor does it look at one like one that it left as it was.
    """
    promotion = private().promotion

    class Promotion(promotion._TypePromotionInterpreter):  # type: ignore[misc,name-defined]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.left = set[Any]()

        def run_node(self, n: fx.Node) -> Any:
            if n.op == "placeholder" and "val" in n.meta:
                return n.meta["val"]  # it is what the pass gives for it
            if n.op != "call_function" or "val" not in n.meta:
                return super().run_node(n)
            rule = promotion.get_type_promotion_rule(n, self.type_promotion_table)
            if rule is None:
                return n.meta["val"]
            kind = _promoted_by(n)
            if kind in self.left:
                return n.meta["val"]
            with self._set_current_node(n):
                written = self._numbers_as_float32(n, rule)
                before = (n.target, n.args, n.kwargs)
                self._maybe_promote_node(n, rule)
            if (n.target, n.args, n.kwargs) != before:
                return fx.Interpreter.run_node(self, n)
            if not written:
                self.left.add(kind)
            return n.meta["val"]

        def _numbers_as_float32(self, n: fx.Node, rule: Any) -> bool:
            """Writes integers that are promoted to float32 as floats, which the exporter takes as they are: the pass
            would make each a node, and run what reads it twice. Whether the node had integers."""
            if not any(type(value) is int for value in (*n.args, *n.kwargs.values())):
                return False
            promoted = rule.preview_type_promotion(*self.fetch_args_kwargs_from_env(n))
            args, kwargs = promoted.args_dtypes, promoted.kwargs_dtypes
            n.args = tuple(_as_float32(value, args.get(index)) for index, value in enumerate(n.args))
            n.kwargs = {name: _as_float32(value, kwargs.get(name)) for name, value in n.kwargs.items()}
            return True

    table = promotion.TypePromotionTable()

    def run(source: fx.GraphModule) -> None:
        made = promotion.InsertTypePromotion(source, table)
        made.interpreter = Promotion(source, table)
        made.run()

    return run


def _as_float32(value: Any, dtype: torch.dtype | None) -> Any:
    """An integer that is promoted to float32, which has it, as a float."""
    return float(value) if dtype is torch.float32 and type(value) is int and abs(value) <= EXACT_IN_FLOAT32 else value


def _promoted_by(node: fx.Node) -> Hashable:
    """What type promotion goes by: dtypes and ranks of tensors, and all else that is given."""
    given = tuple(map(_promoted_by_one, node.args))
    return node.target, given, tuple((name, _promoted_by_one(value)) for name, value in node.kwargs.items())


def _promoted_by_one(argument: Any) -> Hashable:
    if isinstance(argument, (list, tuple)):
        return type(argument), tuple(map(_promoted_by_one, argument))
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    return type(value), None if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _with_custom(registry: Any, custom: dict[Any, Callable[..., Any]] | None) -> Any:
    if not custom:
        return registry
    extended = copy.copy(registry)
    # `register_op` writes into the lists: they are the registry's of every compilation.
    extended.functions = {target: list(known) for target, known in registry.functions.items()}
    for target, function in custom.items():
        extended.register_op(target, told(target, function, private().schemas))
    return extended
