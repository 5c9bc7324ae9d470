"""Checks of single options: from a value as given to the value as kept, or an OptionError with what was expected."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from rust_ort._native import NAME_BYTES, PATTERNS, is_folder_name
from rust_ort.errors import NotAvailableYet, OptionError
from rust_ort.options.operators import overload_of
from rust_ort.options.tolerance import Tolerance

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


SERVED_PROVIDERS = ("CPUExecutionProvider", "CUDAExecutionProvider")


def bad(name: str, expected: str, value: object) -> OptionError:
    return OptionError(f"option {name}: expected {expected}, got {value!r}")


def is_text(value: object) -> bool:
    """Whether it is a text that other processes can be given: no half of a surrogate pair, no NUL."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in value)


FOLDER_NAME = 'letters, digits, "_-.=+ ", beginning with none of ". ", at most 200 bytes'
"""What a run may be named."""


def nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}" if close else ""


def _later(name: str, value: object, instead: str) -> NotAvailableYet:
    return NotAvailableYet(f"option {name}={value!r} is not available yet; {instead}")


def choice(*choices: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            hint = nearest(value, list(choices)) if isinstance(value, str) else ""
            raise OptionError(f"option {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}{hint}")
        return value

    return check


def names_of(*known: str) -> Callable[[str, Any], Any]:
    """Any of these names, sorted and once each: their order decides nothing."""
    expected = f"a sequence of names, of {', '.join(map(repr, known))}"

    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(entry, str) for entry in value):
            raise bad(name, expected, value)
        for entry in value:
            if entry not in known:
                raise OptionError(f"option {name}: expected {expected}, got {entry!r}{nearest(entry, list(known))}")
        return tuple(sorted(set(value)))

    return check


def factor(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
        raise bad(name, "a finite number from 1", value)
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad(name, "True or False", value)
    return value


def share_parameters(name: str, value: Any) -> bool | str:
    if value == "auto" and isinstance(value, str):
        return value
    if not isinstance(value, bool):
        raise bad(name, '"auto", True or False', value)
    return value


def count(low: int, high: int, *, none: bool) -> Callable[[str, Any], Any]:
    expected = f"an integer from {low} to {high}" + (" or None" if none else "")

    def check(name: str, value: Any) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad(name, expected, value)
        return value

    return check


def path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise bad(name, "a path or None", value)
    path = os.fspath(value)
    if not isinstance(path, str) or "\0" in path:
        raise bad(name, "a path of text without NUL, or None", value)
    return path


def run(name: str, value: Any) -> str | None:
    """The path of a run's folder, which the daemon makes."""
    given = path(name, value)
    last = os.path.basename(os.path.abspath(given)) if given is not None else "run"
    if not is_text(last) or not is_folder_name(last):
        raise bad(name, f"a path whose last name has {FOLDER_NAME}", value)
    return given


def providers(name: str, value: Any) -> tuple[tuple[str, dict[str, str]], ...] | None:
    if value is None:
        return None
    expected = 'a sequence of provider names or (name, {"option": value}) pairs, or None'
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple):
        raise bad(name, expected, value)
    kept = []
    for entry in value:
        provider, options = (entry, {}) if isinstance(entry, str) else _pair(name, expected, entry)
        if provider not in KNOWN_PROVIDERS:
            hint = nearest(provider, list(KNOWN_PROVIDERS))
            raise OptionError(f"option {name}: {provider!r} is no execution provider of onnxruntime{hint}")
        if provider not in SERVED_PROVIDERS:
            raise _later(name, value, "leave it out: the CPU or CUDA, by where the tensors are")
        kept.append((provider, {str(key): str(option) for key, option in options.items()}))
    return tuple(kept)


def _pair(name: str, expected: str, entry: Any) -> tuple[str, Mapping[Any, Any]]:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        raise bad(name, expected, entry)
    provider, options = entry
    if not isinstance(provider, str) or not isinstance(options, Mapping):
        raise bad(name, expected, entry)
    return provider, options


def entries(name: str, value: Any) -> dict[str, str]:
    expected = 'a dict of session config entries, e.g. {"session.set_denormal_as_zero": "1"}'
    if not isinstance(value, Mapping):
        raise bad(name, expected, value)
    kept = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, str | int | float):
            raise bad(name, expected, value)
        kept[key] = str(int(entry)) if isinstance(entry, bool) else str(entry)
    return kept


def translations(name: str, value: Any) -> dict[Any, Callable[..., Any]]:
    if not isinstance(value, Mapping):
        raise bad(name, "a dict {torch operator: onnxscript function}", value)
    kept: dict[Any, Callable[..., Any]] = {}
    for key, function in value.items():
        operator = overload_of(name, key)
        if not callable(function):
            raise bad(name, f"an onnxscript function for {operator}", function)
        if operator in kept:
            raise OptionError(f"option {name}: two functions for {operator}")
        kept[operator] = function
    return kept


def libraries(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise bad(name, "a sequence of paths of shared libraries", value)
    kept = []
    for entry in value:
        given = path(name, entry)
        if given is None:
            raise bad(name, "a path", entry)
        kept.append(os.path.abspath(given))
        if not os.path.isfile(kept[-1]):
            raise OptionError(f"option {name}: {kept[-1]}: there is no such file; name the library of the operators")
    return tuple(kept)


def patterns(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) and entry for entry in value):
        raise bad(name, 'a sequence of patterns, e.g. ["aten.mm*", "*.self_attn.*"]', value)
    if other := [entry for entry in value if not is_text(entry)]:
        raise bad(name, "patterns without NUL and lone surrogates", other[0])
    return tuple(value)


def rules(*known: str) -> Callable[[str, Any], Any]:
    """{one of these: patterns}, in the order of `known`: torch takes a dict in another order for the same options, and
    what it compiled with the one for what the other asks for."""

    def check(name: str, value: Any) -> dict[str, tuple[str, ...]]:
        if not isinstance(value, Mapping):
            raise bad(name, f'a dict of patterns, e.g. {{"{known[0]}": ["*.norm*"]}}', value)
        for key in value:
            if key not in known:
                hint = nearest(str(key), list(known))
                raise OptionError(f"option {name}: expected {', '.join(map(repr, known))} as keys, got {key!r}{hint}")
        kept = {key: patterns(f"{name}[{key!r}]", value[key]) for key in known if key in value}
        for key, asked in kept.items():
            if len(asked) > PATTERNS:
                raise OptionError(f"option {name}[{key!r}]: expected at most {PATTERNS} patterns, got {len(asked)}")
            if long := [pattern for pattern in asked if len(pattern.encode()) > NAME_BYTES]:
                raise bad(f"{name}[{key!r}]", f"patterns of at most {NAME_BYTES} bytes", long[0])
        return kept

    return check


def callables(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    if not isinstance(value, list | tuple) or not all(callable(entry) for entry in value):
        raise bad(name, "a sequence of functions ModelProto -> ModelProto or None", value)
    return tuple(value)


def tolerance(name: str, value: Any) -> Tolerance | None:
    if value is None or isinstance(value, Tolerance):
        return value
    known = [entry.name for entry in dataclasses.fields(Tolerance)]
    if not isinstance(value, Mapping):
        raise bad(name, f"None or a dict with {', '.join(known)}", value)
    for key in value:
        if key not in known:
            raise OptionError(f"option {name}: unknown entry {key!r}{nearest(str(key), known)}")
    return Tolerance(**value)
