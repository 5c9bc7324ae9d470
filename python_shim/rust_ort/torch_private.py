"""The private names of torch that this package uses, each with what stands in for it where it is gone.

The only file that touches them, but for export/exporter.py, which has the private API of torch's ONNX exporter.
Where nothing public does the same, using the name raises a ClientError that says what is gone and from which torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from rust_ort.errors import ClientError

SUPPORTED = ">=2.11,<2.16"

INT64 = torch.iinfo(torch.int64)

USED: dict[str, str | None] = {
    "torch._C.DisableTorchFunction": "a torch function mode sees that a parameter is moved",
    "torch._C.DisableTorchFunctionSubclass": "a subclass's own __torch_function__ sees that it is sent",
    "torch._C._DisableAutocast": "torch.autocast(enabled=False) of each device",
    "torch._C._cuda_getCurrentRawStream": "torch.cuda.current_stream",
    "torch._C._dispatch_get_all_op_names": "no name is suggested for a misspelt operator",
    "torch._C._dispatch_has_kernel": "every overload counts as registered",
    "torch._C._dispatch_has_kernel_for_dispatch_key": None,
    "torch._C._dynamo.eval_frame._debug_get_cache_entry_list": "a recompile limit counts as met after a reset",
    "torch._C._dynamo.guards._reinterpret_tensor": "Tensor.set_",
    "torch._C._functorch.is_functorch_wrapped_tensor": "whether the tensor has a storage",
    "torch._C._is_alias_of": None,
    "torch._C._jit_get_all_schemas": None,
    "torch._C._set_grad_enabled": "torch.set_grad_enabled",
    "torch._C._storage_Use_Count": "no parameter counts as alone with its memory: all are copied in each call",
    "torch._decomp.decomposition_table": None,
    "torch._dynamo.OptimizedModule": "no module counts as compiled already, but by model.compile()",
    "torch._dynamo.backends.common.aot_autograd": None,
    "torch._dynamo.config": None,
    "torch._dynamo.convert_frame.compile_lock": "a lock of our own",
    "torch._dynamo.convert_frame.log": "nobody says which function met the recompile limit",
    "torch._dynamo.eval_frame._callback_from_stance": "in the reference, higher-order operators lift no closure",
    "torch._dynamo.exc.RestartAnalysis": "a trace that begins again counts as failed where errors are suppressed",
    "torch._dynamo.exc.ShortenTraceback": "torch wraps our errors in its BackendCompilerFailed",
    "torch._dynamo.exc.TorchDynamoException": "where a graph breaks, torch's own error comes through",
    "torch._dynamo.guards": "torch takes the time of every graph's guards",
    "torch._dynamo.mark_dynamic": None,
    "torch._dynamo.maybe_mark_dynamic": None,
    "torch._dynamo.reset_code_caches": "torch.compiler.reset",
    "torch._dynamo.utils.counters": None,
    "torch._foreach_copy_": "Tensor.copy_, one after the other",
    "torch._functorch.compile_utils": None,
    "torch._functorch.compile_utils.rand_ops": None,
    "torch._functorch.aot_autograd": None,
    "torch._functorch.config": None,
    "torch._guards.CompileContext": "every graph's name begins with 0_0",
    "torch._guards.TracingContext": None,
    "torch._guards.detect_fake_mode": "the fake_mode of the first value that has one",
    "torch._inductor.async_compile.AsyncCompile.pool": "once inductor has compiled, all are copied each call",
    "torch._inductor.inductor_prims": "what Dynamo writes of them in the place of `addcmul_` stays in eager",
    "torch._logging._internal.trace_log": "torch's structured trace has nothing of ours",
    "torch._logging.trace_structured": "torch's structured trace has nothing of ours",
    "torch._neg_view": None,
    "torch._ops.HigherOrderOperator": None,
    "torch._ops.OpOverload": "the type of torch.ops.aten.add.Tensor",
    "torch._ops.OpOverloadPacket": "the type of torch.ops.aten.add",
    "torch._ops.OperatorBase": None,
    "torch._subclasses.fake_tensor.FakeTensorMode": None,
    "torch._subclasses.fake_tensor.unset_fake_temporarily": None,
    "torch.autograd.forward_ad._current_level": "every call looks for tangents",
    "torch.autograd._profiler_enabled": "torch's profiler shows no range of ours",
    "torch.cuda._sleep": None,
    "torch.fx._lazy_graph_module._make_graph_module": "fx.GraphModule",
    "torch.fx._lazy_graph_module._use_lazy_graph_module": "every graph's code is made at once",
    "torch.fx.experimental._config": "an example of size 0 or 1 cannot stand for a dynamic size",
    "torch.fx.experimental.proxy_tensor": None,
    "torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing": None,
    "torch.fx.traceback.get_current_meta": None,
    "torch.fx.experimental.proxy_tensor.get_proxy_mode": None,
    "torch.fx.experimental.proxy_tensor.get_proxy_slot": None,
    "torch.fx.experimental.proxy_tensor.make_fx": None,
    "torch.fx.experimental.sym_node.SymNode": "symbolic sizes are printed as often as they are shown",
    "torch.fx.experimental.symbolic_shapes.ConstraintViolationError": "torch's own error comes through",
    "torch.fx.experimental.symbolic_shapes.free_unbacked_symbols": None,
    "torch.fx.experimental.symbolic_shapes.statically_known_true": None,
    "torch.fx.graph._BoxedCodeGen": "fx.Interpreter.boxed_run, slower",
    "torch.ops.aten.add.Tensor._schema": None,
    "torch.testing._internal.common_methods_invocations": None,
    "torch.utils._python_dispatch.TorchDispatchMode": None,
    "torch.utils._python_dispatch._disable_current_modes": None,
    "torch.utils._pytree": None,
    "torch.utils._sympy.printers.PythonPrinter": None,
    "torch.utils._sympy.value_ranges": None,
}
"""{name: what stands in for it}. None: nothing does, and using it is an error."""


def gone(path: str) -> ClientError:
    """The error for a name that the installed torch does not have."""
    return ClientError(
        f"torch {torch.__version__} has no {path}, which rust_ort needs; it is made for torch{SUPPORTED}: "
        f"pip install 'torch{SUPPORTED}', or a rust_ort made for this torch",
        code="TORCH_UNSUPPORTED",
    )


@functools.cache
def find(path: str) -> Any:
    """What the name stands for; its module is imported. Errors: ClientError where it is gone."""
    steps = path.split(".")
    found: Any = importlib.import_module(steps[0])
    for count, step in enumerate(steps[1:], 2):
        if not hasattr(found, step):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(steps[:count]))
        if not hasattr(found, step):
            raise gone(path)
        found = getattr(found, step)
    return found


def find_or(path: str, stand_in: Any) -> Any:
    """What the name stands for, or `stand_in` where it is gone."""
    try:
        return find(path)
    except ClientError:
        return stand_in


def set_over(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """What reinterpret does, by public functions alone."""
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, stride)


# A tensor over the same storage that autograd does not take for a view: a view made in no-grad mode may not be written
# in place by the user. The private function is what torch's own generated code uses, four times as fast as set_.
# From torch 2.15 on it takes tuples only: a torch.Size, which is a subclass, is refused.
reinterpret: Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...]], torch.Tensor] = find_or(
    "torch._C._dynamo.guards._reinterpret_tensor", set_over
)


def stream_number(ordinal: int) -> int:
    """What `raw_stream` gives, by public functions alone."""
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


raw_stream: Callable[[int], int] = find_or("torch._C._cuda_getCurrentRawStream", stream_number)
"""Number of the current stream of a CUDA device, without an object made of it."""

set_grad_enabled: Callable[[bool], Any] = find_or("torch._C._set_grad_enabled", torch.set_grad_enabled)


profiler_runs: Callable[[], bool] = find_or("torch.autograd._profiler_enabled", lambda: False)


def forward_mode() -> bool:
    """Whether tensors may have tangents now, inside `torch.autograd.forward_ad.dual_level()`."""
    level: int = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return level >= 0


def has_no_storage(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a wrapper, as of torch.func or of a batched backward, which have none; by public functions
    alone."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return True
    return False


is_functorch_wrapped: Callable[[torch.Tensor], bool] = find_or(
    "torch._C._functorch.is_functorch_wrapped_tensor", has_no_storage
)


_storage_use_count: Callable[[int], int] = find_or("torch._C._storage_Use_Count", lambda _: -1)


def storage_owners(storage: torch.UntypedStorage) -> int:
    """How many tensors, arrays and others have the storage, with the object given; -1 where torch does not say."""
    return _storage_use_count(storage._cdata)


def primitive(name: str) -> Any:
    """What torch.ops.prims has of that name, inductor's too; None where there is none."""
    find_or("torch._inductor.inductor_prims", None)
    return getattr(torch.ops.prims, name, None)


def threads_of_inductor() -> Collection[threading.Thread]:
    """That compile its kernels, and stay when they are done. Those that ended, in a fork's child all, are left out: a
    later thread may have their number."""
    if "torch._inductor.async_compile" not in sys.modules:
        return ()
    pool = find_or("torch._inductor.async_compile.AsyncCompile.pool", None)
    # Asked before anything was compiled, it would make the pool.
    made = pool is not None and pool.cache_info().currsize
    return tuple(thread for thread in pool()._threads if thread.is_alive()) if made else ()


def static_input_kind(value: object) -> str:
    """What Dynamo marked a module's parameter or buffer as when it compiled the module: "unguarded", or "guarded", by
    its address; "" for any other."""
    return str(getattr(value, "_dynamo_static_input_type", ""))


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """What foreach_copy does, by public functions alone."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


foreach_copy: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any] = find_or(
    "torch._foreach_copy_", copy_each
)


@contextlib.contextmanager
def autocast_disabled() -> Any:
    """What autocast_off gives, by public functions alone."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


autocast_off: Callable[[], contextlib.AbstractContextManager[Any]] = find_or(
    "torch._C._DisableAutocast", autocast_disabled
)
"""A context in which autocast changes nothing, whatever the caller has on."""

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OperatorBase as OperatorBase
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils import _pytree

    pytree = _pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes
else:
    HigherOrderOperator = find("torch._ops.HigherOrderOperator")
    OperatorBase = find("torch._ops.OperatorBase")
    OpOverload = find_or("torch._ops.OpOverload", type(torch.ops.aten.add.Tensor))
    OpOverloadPacket = find_or("torch._ops.OpOverloadPacket", type(torch.ops.aten.add))
    TorchDispatchMode = find("torch.utils._python_dispatch.TorchDispatchMode")
    _disable_current_modes = find("torch.utils._python_dispatch._disable_current_modes")
    pytree = find("torch.utils._pytree")

no_modes: Callable[[], contextlib.AbstractContextManager[Any]] = _disable_current_modes
"""A context without fake tensors and other dispatch modes."""


def torchs_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's own, {operator overload: function}."""
    table: dict[Any, Callable[..., Any]] = find("torch._decomp.decomposition_table")
    return table


_compile_lock = threading.RLock()


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """The lock under which Dynamo compiles."""
    lock: contextlib.AbstractContextManager[Any] = find_or("torch._dynamo.convert_frame.compile_lock", _compile_lock)
    return lock


def aot_autograd(**kwargs: Any) -> Callable[..., Any]:
    """A Dynamo backend that runs AOTAutograd with these compilers."""
    made: Callable[..., Any] = find("torch._dynamo.backends.common.aot_autograd")(**kwargs)
    return made


def lets_through() -> Any | None:
    """The base of the errors that Dynamo raises as they are; None: it wraps what a backend raises."""
    found: Any | None = find_or("torch._dynamo.exc.ShortenTraceback", None)
    return found


def is_optimized_module(model: object) -> bool:
    """Whether torch.compile made the module of another."""
    return isinstance(model, find_or("torch._dynamo.OptimizedModule", ()))


HAS_REGIONS = "isolate_recompiles" in inspect.signature(torch.compile).parameters
HAS_LIMITS = "recompile_limit" in inspect.signature(torch.compile).parameters
"""Whether compilations of this torch can be counted apart."""


def compiled_apart(
    model: Any, *, backend: Any, region: int | None, fullgraph: bool = False, dynamic: bool | None = None
) -> tuple[Any, int | None]:
    """(`torch.compile(model, backend=backend, …)` whose compilations count against the recompile limit of their own
    region alone, which is what torch allows a function in all, the region). region: one that was given before; None: a
    new one. A torch without regions has one for all: (the same, None)."""
    settings: dict[str, Any] = {"backend": backend, "fullgraph": fullgraph, "dynamic": dynamic}
    if not HAS_REGIONS:
        return torch.compile(model, **settings), None
    if HAS_LIMITS:
        settings["recompile_limit"] = find("torch._dynamo.config").accumulated_recompile_limit
    apart: Any = functools.partial(torch.compile, **settings, isolate_recompiles=True)
    context: Any = getattr(apart(torch.nn.Module()), "dynamo_ctx", None)
    if not hasattr(context, "_isolate_recompiles_id"):  # each is a region of its own
        return apart(model), None
    if region is not None:
        context._isolate_recompiles_id = region
    return context(model), context._isolate_recompiles_id


def mark_dynamic(tensor: torch.Tensor, axis: int, bounds: tuple[int, int] | None) -> None:
    """Has Dynamo trace a size of `tensor` as a symbol, unless the program fixes it. bounds: of it; with them a program
    that does not fit is an error."""
    if bounds is None:
        find("torch._dynamo.maybe_mark_dynamic")(tensor, axis)
    else:
        find("torch._dynamo.mark_dynamic")(tensor, axis, min=bounds[0], max=bounds[1])


def small_sizes_as_any(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """Inside, a dynamic size that is 0 or 1 in the example is traced as any other, where wanted."""
    config: Any = find_or("torch.fx.experimental._config", None)
    if not wanted or not hasattr(config, "backed_size_oblivious"):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(backed_size_oblivious=True)
    return patched


def with_recurrent_layers() -> contextlib.AbstractContextManager[Any]:
    """Inside, Dynamo traces LSTM, GRU and RNN, where it would end the graph at each."""
    config: Any = find("torch._dynamo.config")
    if not hasattr(config, "allow_rnn"):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(allow_rnn=True)
    return patched


def without_logging() -> contextlib.AbstractContextManager[Any]:
    """Inside, Dynamo leaves out what is told a logger, where it would end the graph at each."""
    config: Any = find("torch._dynamo.config")
    if not hasattr(config, "ignore_logging_functions"):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(
        ignore_logging_functions={*config.ignore_logging_functions, *_logging_functions()}
    )
    return patched


LOGGED = re.compile("debug|info|warn|warning|error|exception|critical|fatal|log|isEnabledFor|[a-z]+_once")
"""Names of loggers' methods that tell something, libraries' own (`warning_once`) among them, or ask whether to."""


def _logging_functions() -> Iterator[Any]:
    """The functions of `logging` and of loggers' classes that tell something."""
    kinds: list[type] = [logging.Logger]
    for kind in kinds:  # grows
        below: list[type] = type.__subclasses__(kind)
        kinds += [other for other in below if other not in kinds]
    for place in (logging, *kinds):
        yield from (found for name, found in vars(place).items() if LOGGED.fullmatch(name) and callable(found))


TRACE_LOGGERS = ("torch._subclasses.fake_tensor", "torch._guards")
"""They log errors of a trace, each with its stack, that are raised as well."""


@contextlib.contextmanager
def errors_raised_alone() -> Iterator[None]:
    """Inside, an error of a trace is raised, and not logged beside."""

    def is_no_error(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    loggers = [logging.getLogger(name) for name in TRACE_LOGGERS]
    for logger in loggers:
        logger.addFilter(is_no_error)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_no_error)


def graph_break_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where it cannot make one graph of a program; () where it is gone."""
    found = find_or("torch._dynamo.exc.TorchDynamoException", None)
    return () if found is None else (found,)


def size_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where a size leaves its bounds; () where it is gone."""
    found = find_or("torch.fx.experimental.symbolic_shapes.ConstraintViolationError", None)
    return () if found is None else (found,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is known of the sizes of a traced graph. sources: {symbol: Dynamo's name of the size that it stands for}.
    guards: (sympy's expression of what holds, the user's line that asked for it or ""). ranges: (symbol, least, most or
    None)."""

    sources: dict[str, str]
    guards: list[tuple[Any, str]]
    ranges: list[tuple[Any, int, int | None]]


def sizes_of(values: Sequence[object]) -> Sizes:
    """Of the graph that has these fake values as inputs."""
    env = getattr(detect_fake_mode(values), "shape_env", None)
    sources, guards, ranges = {}, [], []
    for symbol, named in getattr(env, "var_to_sources", {}).items():
        name = named[0].name if named else ""
        sources[str(symbol)] = str(name() if callable(name) else name)
    for guard in getattr(env, "guards", ()):
        line = str(getattr(getattr(guard, "sloc", None), "maybe_user_loc", None) or "")
        guards.append((guard.expr, line))
    for symbol, known in getattr(env, "var_to_range", {}).items():
        least, most = (int(end) if end.is_Integer else None for end in (known.lower, known.upper))
        ranges.append((symbol, least or 0, most if most is not None and most < INT64.max - 1 else None))
    return Sizes(sources=sources, guards=guards, ranges=ranges)


def traced_tensor(values: Sequence[object], tensor: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """(what the compilation that is under way has in the place of a tensor, Dynamo's name of it); None: it has not met
    it. values: fake ones of that compilation."""
    context = find("torch._guards.TracingContext").try_get()
    mode: Any = detect_fake_mode(values)
    known: Any = getattr(context, "tensor_to_context", {}).get(tensor)
    if mode is None or known is None:
        return None
    name = getattr(getattr(known, "tensor_source", None), "name", "")
    return mode.from_tensor(tensor), str(name() if callable(name) else name)


def no_torch_function() -> contextlib.AbstractContextManager[Any]:
    """A context in which the __torch_function__ of no subclass is asked."""
    context: contextlib.AbstractContextManager[Any] = find_or(
        "torch._C.DisableTorchFunctionSubclass", contextlib.nullcontext
    )()
    return context


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, tensors are tensors, whatever modes the caller is in."""
    no_function: Any = find_or("torch._C.DisableTorchFunction", contextlib.nullcontext)
    with no_modes(), no_function(), torch.inference_mode(False), torch.no_grad():
        yield


TORCHS_COMPILES = ("torch._higher_order_ops.", "torch.nn.attention.flex_attention")
"""Modules whose functions compile what they are given, with the backend "eager", to run it in eager."""


@contextlib.contextmanager
def torchs_own_compiles() -> Iterator[None]:
    """Inside, the stance "force_eager" leaves on what torch compiles unasked: by that `torch.cond`, `map`, `scan` and
    their like lift what their bodies close over, in eager too.

    One thread enters at a time.
    """
    by_stance = find_or("torch._dynamo.eval_frame._callback_from_stance", None)
    if by_stance is None:
        yield
        return
    eval_frame = sys.modules["torch._dynamo.eval_frame"]

    def callback_of(callback: Any) -> Any:
        return callback if _is_torchs_own(callback, sys._getframe(1)) else by_stance(callback)

    setattr(eval_frame, by_stance.__name__, callback_of)
    try:
        yield
    finally:
        setattr(eval_frame, by_stance.__name__, by_stance)


def _is_torchs_own(callback: Any, frame: FrameType | None) -> bool:
    """Whether a higher-order operator calls what it compiled for eager; a user's function called there is not that."""
    if callback in (None, False):
        return False
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch._dynamo."):
        frame = frame.f_back
    if frame is None or not frame.f_globals.get("__name__", "").startswith(TORCHS_COMPILES):
        return False
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    backend = getattr(callback, "compiler_fn", callback)
    name = getattr(backend, "__qualname__", "")
    where = getattr(backend, "__module__", "")
    return where == "torch._dynamo.backends.debugging" and name.startswith(("eager", "make_eager_backend"))


def compile_counters() -> dict[str, Any]:
    """Dynamo's counters by kind; "graph_break" is {reason: count}."""
    counters: dict[str, Any] = find("torch._dynamo.utils.counters")
    return counters


_code_entries: Callable[[CodeType], Sequence[Any]] | None = find_or(
    "torch._C._dynamo.eval_frame._debug_get_cache_entry_list", None
)


def compiled_codes(code: CodeType) -> tuple[CodeType, ...]:
    """What Dynamo made of the code, as long as it knows; the code itself where torch does not say."""
    return (code,) if _code_entries is None else tuple(entry.code for entry in _code_entries(code))


class _LimitMet(logging.Filter):
    """Hears where Dynamo warns that a function met its recompile limit; lets every record through."""

    def __init__(self, note: Callable[[CodeType, str, int, Any], None]) -> None:
        super().__init__()
        self._note = note

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith("torch._dynamo hit config.") and record.args:
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame.f_code.co_name != "_compile":
                frame = frame.f_back
            known = {} if frame is None else frame.f_locals
            if isinstance(known.get("code"), CodeType):
                setting, limit, *_ = record.args
                self._note(known["code"], str(setting), int(str(limit)), _innermost(known.get("compiler_fn")))
        return True


def _innermost(backend: Any) -> Any:
    """The user's backend in what torch wraps around it."""
    while True:
        inner = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(backend, "compiler_fn", None)
        if inner is None:
            return backend
        backend = inner


def on_recompile_limit(note: Callable[[CodeType, str, int, Any], None]) -> None:
    """Has `note(code, setting of torch._dynamo.config, its value, backend)` called where Dynamo leaves a function to
    eager that was compiled as often as that allows."""
    logger: logging.Logger | None = find_or("torch._dynamo.convert_frame.log", None)
    if logger is not None:
        logger.addFilter(_LimitMet(note))


def suppresses_errors() -> bool:
    """Whether Dynamo leaves to eager what a backend fails to compile."""
    return bool(getattr(find("torch._dynamo.config"), "suppress_errors", False))


def is_restart(error: BaseException) -> bool:
    """Whether Dynamo traces the function again for it, which is no failure."""
    restart: Any = find_or("torch._dynamo.exc.RestartAnalysis", None)
    return restart is not None and isinstance(error, restart)


def reset_code_caches() -> None:
    """Forgets what was compiled, not how often."""
    find_or("torch._dynamo.reset_code_caches", torch.compiler.reset)()


def capturing_sizes(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """Inside, Dynamo captures sizes and numbers that data decides, or does not."""
    config: Any = find("torch._dynamo.config")
    patched: contextlib.AbstractContextManager[Any] = config.patch(
        capture_scalar_outputs=wanted, capture_dynamic_output_shape_ops=wanted
    )
    return patched


def spare_guard_timing() -> None:
    """torch flushes the processor's caches to time the guards of each graph: for tools that compile thousands."""
    guards: Any = find_or("torch._dynamo.guards", None)
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


@contextlib.contextmanager
def drawing_operators(more: Iterable[Any]) -> Any:
    """Inside, `more` are among the operator packets that AOTAutograd takes for random draws: it merges no two of
    them."""
    find("torch._functorch.compile_utils.rand_ops")
    utils: Any = find("torch._functorch.compile_utils")
    known = utils.rand_ops
    utils.rand_ops = [*known, *more]
    try:
        yield
    finally:
        utils.rand_ops = known


_printed: dict[tuple[type, Any], str] = {}
_printing = threading.Lock()
_printers = 0
"""How many compilations are inside `printed_once`."""
_prints: list[Any] = []
"""[SymNode, its own `str`, what stands in its place], while some are."""


@contextlib.contextmanager
def printed_once() -> Iterator[None]:
    """Inside, the expression of a symbolic size is printed once, and its text kept for the next time: the same few
    hundred stand in each of a graph's texts, torch's own among them, and printing them was a third of the time that a
    dynamic graph took to compile."""
    global _printers
    kind: Any = find_or("torch.fx.experimental.sym_node.SymNode", None)
    if not hasattr(kind, "str"):
        yield
        return
    with _printing:
        _printers += 1
        if _printers == 1:
            _prints[:] = kind, kind.str, _remembering(kind.str)
            kind.str = _prints[2]
    try:
        yield
    finally:
        with _printing:
            _printers = max(0, _printers - 1)  # 0: a child of a fork inside has put it back
            if _printers == 0:
                _print_as_before()


def _print_as_before() -> None:
    """Puts torch's own method back, unless somebody else has put another in the place of ours."""
    if _prints and _prints[0].str is _prints[2]:
        _prints[0].str = _prints[1]
    _prints.clear()
    _printed.clear()


def _after_fork_in_child() -> None:
    """The compilations of other threads end in the parent alone."""
    global _printers, _printing
    _printing, _printers = threading.Lock(), 0
    _print_as_before()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _remembering(prints: Callable[[Any], str]) -> Callable[[Any], str]:
    @functools.wraps(prints)
    def known(number: Any) -> str:
        expression = number.expr
        key = type(expression), expression  # 1 is equal to True
        text = _printed.get(key)
        if text is None:
            text = _printed[key] = prints(number)
        return text

    return known


def compile_id() -> object | None:
    """torch's id of the graph that is being compiled, such as 0/0; None outside a compilation."""
    context = find_or("torch._guards.CompileContext", None)
    found: object | None = context.current_compile_id() if context is not None else None
    return found


def traces() -> bool:
    """Whether torch writes its structured trace (TORCH_TRACE)."""
    return bool(getattr(find_or("torch._logging._internal.trace_log", None), "handlers", False))


def trace_artifact(name: str, encoding: str, payload: Callable[[], Any], compile_id: object | None) -> None:
    """Writes an artifact into torch's structured trace, if there is one. encoding: "string" or "json". compile_id: the
    graph's that it is about; while that is compiled torch knows it."""
    write = find_or("torch._logging.trace_structured", None)
    if write is not None:
        metadata = {"name": name, "encoding": encoding}
        write("artifact", metadata_fn=lambda: metadata, payload_fn=payload, compile_id=compile_id)


def tracing_context() -> Any | None:
    """What AOTAutograd knows of the graph that is being compiled; None outside a compilation."""
    return find("torch._guards.TracingContext").try_get()


def fake_mode() -> Any:
    """A new FakeTensorMode."""
    return find("torch._subclasses.fake_tensor.FakeTensorMode")()


def backward_at_once() -> contextlib.AbstractContextManager[Any]:
    """Inside, AOTAutograd compiles a backward with its forward, not when it is first called."""
    config: Any = find("torch._functorch.config")
    patched: contextlib.AbstractContextManager[Any] = config.patch(force_non_lazy_backward_lowering=True)
    return patched


@contextlib.contextmanager
def no_constants_of_traces() -> Iterator[None]:
    """Inside, a number that a program has in a tensor is traced as any other value: torch computes with it beside the
    trace, on its device, be there one or not."""
    module: Any = find("torch.fx.experimental.proxy_tensor")
    before = module.CONSTANT_NUMEL_LIMIT
    module.CONSTANT_NUMEL_LIMIT = -1
    try:
        yield
    finally:
        module.CONSTANT_NUMEL_LIMIT = before


def fake_mode_of(values: Iterable[object]) -> Any | None:
    """What detect_fake_mode says, by public names alone."""
    modes = (getattr(value, "fake_mode", None) for value in values)
    return next((mode for mode in modes if mode is not None), None)


def detect_fake_mode(values: Sequence[object]) -> Any | None:
    """The FakeTensorMode that the values, or the compilation they belong to, are of."""
    return find_or("torch._guards.detect_fake_mode", fake_mode_of)(values)


def outside_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """A context in which tensors are real, whatever is being traced."""
    context: contextlib.AbstractContextManager[Any] = find("torch._subclasses.fake_tensor.unset_fake_temporarily")()
    return context


def outside_tracing() -> contextlib.AbstractContextManager[Any]:
    """A context in which operators run, and no graph records them."""
    context: contextlib.AbstractContextManager[Any] = find(
        "torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing"
    )()
    return context


def may_be_recomputed() -> bool:
    """Whether what is traced now may be computed once more in the backward: it is checkpointed, or memory has a
    budget."""
    meta: dict[str, Any] = find("torch.fx.traceback.get_current_meta")()
    budget: float = getattr(find("torch._functorch.config"), "activation_memory_budget", 1.0)
    return "recompute" in meta or budget < 1.0


def bounds(number: torch.SymInt | torch.SymFloat) -> tuple[float, float]:
    """The least and the largest finite number that a size, or what is computed of sizes, is in a call that meets the
    guards; asks without adding one."""
    ranges = find("torch.utils._sympy.value_ranges")
    limit: float = INT64.max if isinstance(number, torch.SymInt) else sys.float_info.max
    sizes, known = ranges.ValueRanges(INT64.min, INT64.max), number.node.shape_env.var_to_range
    symbols = [symbol for symbol in number.node.expr.free_symbols if symbol in known]
    found = ranges.bound_sympy(
        number.node.expr, {symbol: known[symbol] & sizes if symbol.is_integer else known[symbol] for symbol in symbols}
    )
    least, largest = (int(end) if end.is_Integer else float(end) for end in (found.lower, found.upper))
    return max(least, -limit), min(largest, limit)


def keep_positive(size: torch.SymInt) -> bool:
    """Whether no call of the graph has 0 there. Where the guards leave it open and the call that is traced has not, one
    more guard says so, and a call that has makes another graph; unless torch takes no more."""
    env, hint = size.node.shape_env, size.node.hint
    with outside_tracing():
        if find("torch.fx.experimental.symbolic_shapes.statically_known_true")(size > 0):
            return True
        if not hint or env.frozen:
            return False
        return bool(size > 0)


def keep_equal(size: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Whether two sizes, equal in the call that is traced, are so in every call of the graph; as keep_positive."""
    symbolic = size if isinstance(size, torch.SymInt) else other
    if not isinstance(symbolic, torch.SymInt):
        return size == other
    if free_unbacked_symbols(size) or free_unbacked_symbols(other) or symbolic.node.shape_env.frozen:
        return False
    with outside_tracing():
        return bool(size == other)


def traced(
    function: Callable[..., Any], values: Sequence[Any], table: Mapping[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """What the function does with fake values, as a graph, each operator of the table decomposed. Its nodes have fake
    values, too."""
    make_fx, fake_mode = find("torch.fx.experimental.proxy_tensor.make_fx"), detect_fake_mode(values)
    with outside_tracing(), fake_mode or contextlib.nullcontext(), torch.no_grad():
        graph: fx.GraphModule = make_fx(function, decomposition_table=dict(table))(*values)
    return graph


def traced_node(tensor: torch.Tensor) -> fx.Node | None:
    """The node that a tensor is of in the graph that is being traced; None: of none, or nothing is traced."""
    mode = find("torch.fx.experimental.proxy_tensor.get_proxy_mode")()
    if mode is None:
        return None
    slot = find("torch.fx.experimental.proxy_tensor.get_proxy_slot")(tensor, mode.tracer, None)
    node: fx.Node | None = slot.proxy.node if slot is not None else None
    return node


def shares_memory(tensor: torch.Tensor, other: object) -> bool:
    """Whether `other` is a tensor of the same storage; fake ones have theirs."""
    same: Callable[..., bool] = find("torch._C._is_alias_of")
    return isinstance(other, torch.Tensor) and same(tensor, other)


def lazy_graph_modules() -> contextlib.AbstractContextManager[Any]:
    """Inside, a graph module's Python code is made when it is first run."""
    use: Callable[[bool], contextlib.AbstractContextManager[Any]] = find_or(
        "torch.fx._lazy_graph_module._use_lazy_graph_module", contextlib.nullcontext
    )
    return use(True)


def make_graph_module(*args: Any) -> fx.GraphModule:
    """fx.GraphModule(*args), lazy inside lazy_graph_modules."""
    made: fx.GraphModule = find_or("torch.fx._lazy_graph_module._make_graph_module", fx.GraphModule)(*args)
    return made


def interpreted(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """What boxed gives, by public functions alone."""
    return lambda args: fx.Interpreter(module).boxed_run(args)


def boxed(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """module(*args) as a call that empties the list of its arguments and lets go of each after its last use."""
    code = find_or("torch.fx.graph._BoxedCodeGen", None)
    if code is None:
        return interpreted(module)
    module.graph.set_codegen(code())
    module.recompile()
    # Not the bound method: a lazy module exchanges its forward when it is first run.
    return lambda args: module.forward(args)


def free_unbacked_symbols(value: object) -> Any:
    """The symbols in sizes of `value` that are known only at run time."""
    return find("torch.fx.experimental.symbolic_shapes.free_unbacked_symbols")(value)


def python_printer() -> Any:
    """The class that prints torch's size expressions as Python code."""
    return find("torch.utils._sympy.printers.PythonPrinter")


def is_composite(operator: OpOverload) -> bool:
    """Whether torch takes the operator apart before a graph is there."""
    has_kernel = find("torch._C._dispatch_has_kernel_for_dispatch_key")
    return bool(has_kernel(operator.name(), "CompositeImplicitAutograd"))


def is_registered(operator: OpOverload) -> bool:
    """Whether the dispatcher knows the overload; some are TorchScript's alone."""
    return bool(find_or("torch._C._dispatch_has_kernel", lambda _: True)(operator.name()))


def operator_names() -> list[str]:
    """Every registered name, "namespace::name.overload"."""
    return [str(name) for name in find_or("torch._C._dispatch_get_all_op_names", list)()]


def operator_schemas() -> list[Any]:
    """The schema of every registered operator."""
    return list(find("torch._C._jit_get_all_schemas")())


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view of -tensor: the same memory with the negative bit."""
    made: torch.Tensor = find("torch._neg_view")(tensor)
    return made


def method_invocations() -> Any:
    """torch's own samples of its operators: the module of OpInfo."""
    return find("torch.testing._internal.common_methods_invocations")


def gpu_sleep(cycles: int) -> None:
    """Keeps the current CUDA stream busy for so many cycles."""
    find("torch.cuda._sleep")(cycles)


def load_compiler() -> None:
    """Imports what a compilation imports of torch."""
    find("torch._dynamo.utils.counters")
    find("torch._functorch.aot_autograd")
