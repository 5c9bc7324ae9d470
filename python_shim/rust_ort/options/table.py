"""Every option in one table: its name, default, check and environment twin."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rust_ort._native import THREADS
from rust_ort.errors import NotAvailableYet, OptionError
from rust_ort.options import checks, environment
from rust_ort.options.environment import ENV_PREFIX
from rust_ort.options.tolerance import Tolerance
from rust_ort.tables import NOISE_FACTOR, PASSES

# torchlib's functions are written at the lowest; onnxruntime 1.31 implements up to the highest.
LOWEST_OPSET, HIGHEST_OPSET = 18, 26


def _option(
    default: Any, check: Callable[[str, Any], Any], env: Callable[[str, str], Any], doc: str, *, factory: bool = False
) -> Any:
    metadata = {"check": check, "env": env, "doc": doc}
    if factory:
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a graph is exported, run, compared and dumped. `Options.table()` says what each option means.

    `Options.parse` takes what is left out from the environment, RUST_ORT_<NAME>. Errors: OptionError, NotAvailableYet.
    """

    providers: tuple[tuple[str, dict[str, str]], ...] | None = _option(
        None,
        checks.providers,
        environment.names,
        "execution providers: names or (name, {options}); CPUExecutionProvider and CUDAExecutionProvider are "
        "available; None: by the tensors' devices",
    )
    opset: int | None = _option(
        None,
        checks.count(LOWEST_OPSET, HIGHEST_OPSET, none=True),
        environment.integer,
        f"ONNX opset of the exported models, {LOWEST_OPSET} to {HIGHEST_OPSET}; None: {LOWEST_OPSET}",
    )
    ort_optimization: str = _option(
        "all",
        checks.choice("all", "extended", "basic", "kernels", "disable"),
        environment.plain,
        'level of ONNX Runtime\'s graph optimizer: "all", "extended", "basic", "kernels" (our kernels without an '
        'optimizer) or "disable"',
    )
    disable_passes: tuple[str, ...] = _option(
        (),
        checks.names_of(*PASSES),
        environment.names,
        'our rewrites to leave out; they run before the optimizer at "all" and "extended", the '
        "last one, for CUDA, at every level: " + ", ".join(f'"{name}"' for name in PASSES),
    )
    runtimes: dict[str, tuple[str, ...]] = _option(
        dict,
        checks.rules("ort", "torch-f64", "torch"),
        environment.rules,
        'runtime of each node: {"torch": patterns, "torch-f64": patterns}. A pattern (with * and ?) fits an operator, '
        "a node name, an FX name, a torch operator or a module path. Where several rules fit, the first of ort, "
        "torch-f64, torch decides; where none fits, ONNX Runtime. Needs the program rust-ort-torch",
        factory=True,
    )
    precision_rules: dict[str, tuple[str, ...]] = _option(
        dict,
        checks.rules("float32"),
        environment.rules,
        'half-precision values that are not rounded: {"float32": patterns}, as for runtimes. rust_ort.keep_in_float32 '
        "and rust-ort keep find them",
        factory=True,
    )
    session_options: dict[str, str] = _option(
        dict,
        checks.entries,
        environment.pairs,
        "session config entries of ONNX Runtime, which ignores keys that it does not know",
        factory=True,
    )
    custom_op_libraries: tuple[str, ...] = _option(
        (), checks.libraries, environment.names, "shared libraries of ONNX Runtime custom operators"
    )
    custom_translations: dict[Any, Any] = _option(
        dict,
        checks.translations,
        environment.translations,
        '{torch operator: onnxscript function}; an operator is an object or a name such as "mylib::op"',
        factory=True,
    )
    transforms: tuple[Callable[..., Any], ...] = _option(
        (),
        checks.callables,
        environment.functions,
        "functions ModelProto -> ModelProto or None, run on each exported model",
    )
    dump: str | None = _option(None, checks.run, environment.plain, "folder of the run to dump to; None: no dump")
    dump_calls: str = _option(
        "first",
        checks.choice("first", "all", "none"),
        environment.plain,
        'calls of each graph whose tensors are dumped: "first", "all" or "none"',
    )
    dump_values: bool = _option(
        False,
        checks.flag,
        environment.flag,
        'dump eager\'s value of every compared node; with compare="nodes"',
    )
    durable: bool = _option(
        False,
        checks.flag,
        environment.flag,
        "sync files, which takes time: a dump outlives a power cut once its call is answered",
    )
    compare: str = _option(
        "off",
        checks.choice("off", "outputs", "nodes"),
        environment.plain,
        'compare with eager: "off", "outputs" (of each graph) or "nodes" (every FX node)',
    )
    compare_every: int = _option(
        1,
        checks.count(1, 2**63 - 1, none=False),
        environment.integer,
        "compare one call of each graph in so many, the first among them",
    )
    compare_only: tuple[str, ...] = _option(
        (),
        checks.patterns,
        environment.names,
        "patterns of nodes to compare: FX name, operator or module path, with * and ?; (): all",
    )
    compare_stop: str = _option(
        "never",
        checks.choice("never", "first"),
        environment.plain,
        'stop comparing nodes in a call: "never", "first" (mismatch)',
    )
    compare_memory: int = _option(
        2 << 30,
        checks.count(1, 2**63 - 1, none=False),
        environment.integer,
        "bytes that the values of nodes may take at a time",
    )
    compare_float64: str = _option(
        "mismatches",
        checks.choice("mismatches", "all"),
        environment.plain,
        'what is also computed in float64: "mismatches" (nodes that differ) or "all" (each node alone and as it '
        "drifts, and the values of rust_ort.compare); float64 tells noise from results that are worse than eager's",
    )
    noise_factor: float = _option(
        NOISE_FACTOR,
        checks.factor,
        environment.real,
        "largest ratio of ONNX Runtime's distance from float64 to eager's that is still called noise",
    )
    tolerance: Tolerance | None = _option(
        None,
        checks.tolerance,
        environment.tolerance,
        "{atol, rtol, scale, equal_nan}; None: by dtype. A value outside a given tolerance is a mismatch, never noise",
    )
    on_unsupported: str = _option(
        "eager",
        checks.choice("eager", "error"),
        environment.plain,
        'nodes that ONNX cannot express: "eager" runs them in eager, "error" raises',
    )
    on_daemon_error: str = _option(
        "error",
        checks.choice("error", "eager"),
        environment.plain,
        'a call whose daemon or executor is lost: "error" raises, "eager" runs the call in eager',
    )
    share_parameters: bool | str = _option(
        "auto",
        checks.share_parameters,
        environment.flag_or_auto,
        'move parameters and buffers into shared memory, so that no call copies them: "auto" where they have memory of '
        "their own, True all (an error else), False none",
    )
    freeze_parameters: bool = _option(
        False,
        checks.flag,
        environment.flag,
        "for inference: parameters that a graph does not write are constants of its sessions, so that ONNX "
        "Runtime folds and packs them; a change that torch counts makes a session anew",
    )
    threads: int | None = _option(
        None,
        checks.count(1, THREADS, none=True),
        environment.integer,
        "threads of the executor's pool; None: as many as torch uses, shared among the machine's ranks",
    )
    socket: str | None = _option(
        None, checks.path, environment.plain, "path of the daemon's socket; None: in $XDG_RUNTIME_DIR or /tmp"
    )

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            kept = entry.metadata["check"](entry.name, getattr(self, entry.name))
            object.__setattr__(self, entry.name, kept)

    @staticmethod
    def table() -> list[tuple[str, object, str]]:
        """(name, default, what it means) of each option, in order."""
        rows = []
        for entry in dataclasses.fields(Options):
            factory = entry.default_factory
            default = entry.default if factory is dataclasses.MISSING else factory()
            rows.append((entry.name, default, str(entry.metadata["doc"])))
        return rows

    @staticmethod
    def parse(given: Mapping[str, Any] | None = None) -> Options:
        """Options from a mapping; what it leaves out comes from the environment, then the defaults.

        Errors: OptionError for an unknown name (with the nearest known one) or a bad value.
        """
        known = {entry.name: entry for entry in dataclasses.fields(Options)}
        given = dict(given or {})
        for name in given:
            if name not in known:
                raise OptionError(
                    f"unknown option {name!r}{checks.nearest(str(name), list(known))}. Known: {', '.join(known)}"
                )
        for name, entry in known.items():
            text = os.environ.get(ENV_PREFIX + name.upper())
            if name in given or not text:
                continue
            try:
                given[name] = entry.metadata["check"](name, entry.metadata["env"](name, text))
            except OptionError as error:
                raise OptionError(f"environment variable {ENV_PREFIX}{name.upper()}: {error}") from None
            except NotAvailableYet as error:
                raise NotAvailableYet(f"environment variable {ENV_PREFIX}{name.upper()}: {error}") from None
        return Options(**given)


def described_options(options: Options) -> dict[str, Any]:
    """Every option by name, as JSON tells it. Functions are told by their names."""
    return {entry.name: _plain(getattr(options, entry.name)) for entry in dataclasses.fields(options)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)
