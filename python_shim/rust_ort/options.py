"""Every option in one table: its name, default, check and environment twin."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import NotAvailableYet, OptionError
from .operators import overload_of

ENV_PREFIX = "RUST_ORT_"

# torchlib's functions are written at the lowest; onnxruntime 1.31 implements up to the highest.
LOWEST_OPSET, HIGHEST_OPSET = 18, 26

# Names that onnxruntime itself registers, to tell a misspelt provider from one that is not supported here.
KNOWN_PROVIDERS = (
    "CPUExecutionProvider",
    "CUDAExecutionProvider",
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "ROCMExecutionProvider",
    "MIGraphXExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "XnnpackExecutionProvider",
    "QNNExecutionProvider",
    "ACLExecutionProvider",
    "ArmNNExecutionProvider",
    "CANNExecutionProvider",
    "VitisAIExecutionProvider",
    "WebGpuExecutionProvider",
)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Inside means |candidate - reference| <= atol + rtol * |reference| + scale * max|reference|."""

    atol: float = 0.0
    rtol: float = 0.0
    scale: float = 0.0
    equal_nan: bool = False

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
                raise OptionError(f"tolerance {name}: expected a finite number >= 0, got {value!r}")
        if not isinstance(self.equal_nan, bool):
            raise OptionError(f"tolerance equal_nan: expected True or False, got {self.equal_nan!r}")


def _bad(name: str, expected: str, value: object) -> OptionError:
    return OptionError(f"option {name}: expected {expected}, got {value!r}")


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}" if close else ""


def _later(name: str, value: object, instead: str) -> NotAvailableYet:
    return NotAvailableYet(f"option {name}={value!r} is not available yet; {instead}")


# --- checks: value as given -> value as kept -------------------------------------------------------------------------


def _choice(*choices: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            hint = _nearest(value, list(choices)) if isinstance(value, str) else ""
            raise OptionError(f"option {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}{hint}")
        return value

    return check


def _only(default: object, check: Callable[[str, Any], Any], instead: str) -> Callable[[str, Any], Any]:
    """A well-formed value other than the default is not available yet."""

    def checked(name: str, value: Any) -> Any:
        kept = check(name, value)
        if kept != default:
            raise _later(name, value, instead)
        return kept

    return checked


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad(name, "True or False", value)
    return value


def _count(low: int, high: int, *, none: bool) -> Callable[[str, Any], Any]:
    expected = f"an integer from {low} to {high}" + (" or None" if none else "")

    def check(name: str, value: Any) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _bad(name, expected, value)
        return value

    return check


def _path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise _bad(name, "a path or None", value)
    path = os.fspath(value)
    if not isinstance(path, str) or "\0" in path:
        raise _bad(name, "a path of text without NUL, or None", value)
    return path


def _providers(name: str, value: Any) -> tuple[tuple[str, dict[str, str]], ...] | None:
    if value is None:
        return None
    expected = 'a sequence of provider names or (name, {"option": value}) pairs, or None'
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple):
        raise _bad(name, expected, value)
    kept = []
    for entry in value:
        provider, options = (entry, {}) if isinstance(entry, str) else _pair(name, expected, entry)
        if provider not in KNOWN_PROVIDERS:
            hint = _nearest(provider, list(KNOWN_PROVIDERS))
            raise OptionError(f"option {name}: {provider!r} is no execution provider of onnxruntime{hint}")
        if provider != "CPUExecutionProvider":
            raise _later(name, value, 'use providers=["CPUExecutionProvider"] and tensors on the CPU')
        kept.append((provider, {str(key): str(option) for key, option in options.items()}))
    return tuple(kept)


def _pair(name: str, expected: str, entry: Any) -> tuple[str, Mapping[Any, Any]]:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        raise _bad(name, expected, entry)
    provider, options = entry
    if not isinstance(provider, str) or not isinstance(options, Mapping):
        raise _bad(name, expected, entry)
    return provider, options


def _entries(name: str, value: Any) -> dict[str, str]:
    expected = 'a dict of session config entries, e.g. {"session.set_denormal_as_zero": "1"}'
    if not isinstance(value, Mapping):
        raise _bad(name, expected, value)
    kept = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, str | int | float):
            raise _bad(name, expected, value)
        kept[key] = str(int(entry)) if isinstance(entry, bool) else str(entry)
    return kept


def _translations(name: str, value: Any) -> dict[Any, Callable[..., Any]]:
    if not isinstance(value, Mapping):
        raise _bad(name, "a dict {torch operator: onnxscript function}", value)
    kept: dict[Any, Callable[..., Any]] = {}
    for key, function in value.items():
        operator = overload_of(name, key)
        if not callable(function):
            raise _bad(name, f"an onnxscript function for {operator}", function)
        if operator in kept:
            raise OptionError(f"option {name}: two functions for {operator}")
        kept[operator] = function
    return kept


def _libraries(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _bad(name, "a sequence of paths of shared libraries", value)
    kept = []
    for entry in value:
        path = _path(name, entry)
        if path is None:
            raise _bad(name, "a path", entry)
        kept.append(os.path.abspath(path))
        if not os.path.isfile(kept[-1]):
            raise OptionError(f"option {name}: {kept[-1]}: there is no such file; name the library of the operators")
    return tuple(kept)


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) and entry for entry in value):
        raise _bad(name, 'a sequence of patterns, e.g. ["aten.mm*", "*.self_attn.*"]', value)
    return tuple(value)


def _callables(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    if not isinstance(value, list | tuple) or not all(callable(entry) for entry in value):
        raise _bad(name, "a sequence of functions ModelProto -> ModelProto or None", value)
    return tuple(value)


def _tolerance(name: str, value: Any) -> Tolerance | None:
    if value is None or isinstance(value, Tolerance):
        return value
    known = [entry.name for entry in dataclasses.fields(Tolerance)]
    if not isinstance(value, Mapping):
        raise _bad(name, f"None or a dict with {', '.join(known)}", value)
    for key in value:
        if key not in known:
            raise OptionError(f"option {name}: unknown entry {key!r}{_nearest(str(key), known)}")
    return Tolerance(**value)


# --- environment: text -> value as given -----------------------------------------------------------------------------


def _env_text(name: str, text: str) -> Any:
    return text


def _env_flag(name: str, text: str) -> Any:
    flags = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in flags:
        raise _bad(name, "1 or 0", text)
    return flags[text.lower()]


def _env_int(name: str, text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        raise _bad(name, "an integer", text) from None


def _env_list(name: str, text: str) -> Any:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _env_pairs(name: str, text: str) -> Any:
    """JSON, or key=value,key=value."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise _bad(name, f"JSON ({error})", text) from None
    pairs = {}
    for entry in _env_list(name, text):
        key, equals, value = entry.partition("=")
        if not equals:
            raise _bad(name, "key=value,key=value", text)
        pairs[key.strip()] = value.strip()
    return pairs


def _env_tolerance(name: str, text: str) -> Any:
    kept: dict[str, Any] = {}
    for key, value in _env_pairs(name, text).items():
        if key == "equal_nan":
            kept[key] = value if isinstance(value, bool) else _env_flag(name, value)
            continue
        try:
            kept[key] = float(value)
        except (TypeError, ValueError):
            raise _bad(name, "numbers, e.g. atol=1e-5,rtol=1e-3", text) from None
    return kept


def _env_functions(name: str, text: str) -> Any:
    """module:function,module:function"""
    return [_imported(name, entry) for entry in _env_list(name, text)]


def _env_translations(name: str, text: str) -> Any:
    """operator=module:function,operator=module:function"""
    return {operator: _imported(name, str(entry)) for operator, entry in _env_pairs(name, text).items()}


def _imported(name: str, text: str) -> Any:
    module, colon, attribute = text.partition(":")
    try:
        if not colon:
            raise AttributeError("no colon")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _bad(name, f"module:function ({error})", text) from None


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
        None, _providers, _env_list, "execution providers, names or (name, {options}); None: from the tensors' devices"
    )
    opset: int | None = _option(
        None,
        _count(LOWEST_OPSET, HIGHEST_OPSET, none=True),
        _env_int,
        f"ONNX opset of the exported models, {LOWEST_OPSET} to {HIGHEST_OPSET}; None: {LOWEST_OPSET}",
    )
    ort_optimization: str = _option(
        "all", _choice("all", "extended", "basic", "disable"), _env_text, "level of ONNX Runtime's graph optimizer"
    )
    session_options: dict[str, str] = _option(
        dict, _entries, _env_pairs, "session config entries of ONNX Runtime", factory=True
    )
    custom_op_libraries: tuple[str, ...] = _option(
        (), _libraries, _env_list, "shared libraries of ONNX Runtime custom operators"
    )
    custom_translations: dict[Any, Any] = _option(
        dict, _translations, _env_translations, "{torch operator: onnxscript function}", factory=True
    )
    transforms: tuple[Callable[..., Any], ...] = _option(
        (), _callables, _env_functions, "functions ModelProto -> ModelProto or None, run on each exported model"
    )
    dump: str | None = _option(None, _path, _env_text, "folder of the run to dump to; None: no dump")
    dump_calls: str = _option(
        "first", _choice("first", "all", "none"), _env_text, "calls of each graph to dump with their tensors"
    )
    compare: str = _option(
        "off",
        _choice("off", "outputs", "nodes"),
        _env_text,
        'compare with eager: "off", "outputs" (of each graph) or "nodes" (every FX node)',
    )
    compare_every: int = _option(
        1, _count(1, 2**63 - 1, none=False), _env_int, "compare one call of each graph in so many, the first among them"
    )
    compare_only: tuple[str, ...] = _option(
        (),
        _patterns,
        _env_list,
        "patterns of nodes to compare: FX name, operator or module path, with * and ?; (): all",
    )
    compare_stop: str = _option(
        "never", _choice("never", "first"), _env_text, 'stop comparing nodes in a call: "never", "first" (mismatch)'
    )
    compare_memory: int = _option(
        2 << 30, _count(1, 2**63 - 1, none=False), _env_int, "bytes that the values of nodes may take at a time"
    )
    tolerance: Tolerance | None = _option(
        None, _tolerance, _env_tolerance, "{atol, rtol, scale, equal_nan}; None: by dtype"
    )
    on_unsupported: str = _option(
        "eager", _choice("eager", "error"), _env_text, "what becomes of nodes that ONNX cannot express"
    )
    on_daemon_error: str = _option(
        "error", _choice("error", "eager"), _env_text, "what becomes of a call whose daemon or executor is lost"
    )
    share_parameters: bool = _option(
        False,
        _only(False, _flag, "parameters are copied in each call"),
        _env_flag,
        "keep parameters in shared memory (not available yet)",
    )
    freeze_parameters: bool = _option(
        False,
        _only(False, _flag, "parameters are inputs of the model"),
        _env_flag,
        "parameters as constants, for inference (not available yet)",
    )
    threads: int | None = _option(
        None, _count(1, 4096, none=True), _env_int, "threads of the executor's pool; None: one a usable core"
    )
    socket: str | None = _option(
        None, _path, _env_text, "path of the daemon's socket; None: in $XDG_RUNTIME_DIR or /tmp"
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
                    f"unknown option {name!r}{_nearest(str(name), list(known))}. Known: {', '.join(known)}"
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


def _only_not(refused: str, value: str, name: str) -> str:
    if value == refused:
        raise _later(name, value, 'use "outputs"')
    return value
