"""Checks of what users hand to compare, explain, dump and the backend: each error names argument, expected and got."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort._native import is_folder_name
from rust_ort.errors import ClientError, OptionError
from rust_ort.options.checks import FOLDER_NAME, is_text
from rust_ort.options.table import Options

MOST_SECONDS = 1e9
"""Of a budget: 30 years, which any clock can count."""

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def shown(value: object) -> str:
    """A value as an error quotes it: short, of tensors and modules only what they are."""
    if isinstance(value, Tensor):
        return f"a tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__} module"
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} of type {type(value).__name__}"


def _written(function: object) -> Any:
    """What a user wrote: the function behind a decorator or a partial, the __call__ of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    written = inspect.unwrap(function) if callable(function) else function
    return written if hasattr(written, "__qualname__") or not callable(written) else type(written).__call__


def function_name(function: object) -> str:
    """How a user knows a function: its name and where it is written."""
    written = _written(function)
    code = getattr(written, "__code__", None)
    name = getattr(written, "__qualname__", None) or repr(written)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def raised_at(error: BaseException, function: object) -> str:
    """`KeyError: 'foo' at file:line`, the line being the function's own that the error came through."""
    code = getattr(_written(function), "__code__", None)
    step, line = error.__traceback__, None
    while step is not None:
        if step.tb_frame.f_code is code:
            line = step.tb_lineno
        step = step.tb_next
    where = f" at {code.co_filename}:{line}" if code is not None and line is not None else ""
    return f"{type(error).__name__}: {error}{where}"


def checked_model(function: str, model: object, kwargs: Mapping[str, Any]) -> None:
    """A warning for what a model's **kwargs most likely swallows. Errors: ClientError for what cannot be called;
    OptionError for an option among the arguments of a model that takes none of its name."""
    if isinstance(model, type) or not callable(model):
        got = f"the class {model.__name__}; make one first" if isinstance(model, type) else shown(model)
        raise ClientError(f"{function} model: expected a module or a function, got {got}", code="BAD_ARGUMENT")
    named, takes_any = _parameters(model)
    goes_into = {entry.name: f"an option of the backend goes into options={{{entry.name!r}: ...}}"
                 for entry in dataclasses.fields(Options)}  # fmt: skip
    goes_into |= dict.fromkeys(
        ("args", "kwargs"), f"its arguments are given as they are: {function}(model, x, labels=y)"
    )
    for name in (name for name in kwargs if name in goes_into and name not in named):
        if not takes_any:
            said = f"{function} {name}=...: the model takes no argument of that name; {goes_into[name]}"
            raise OptionError(said)
        said = f"{function} {name}=...: the model's **kwargs takes it, and names no such argument; {goes_into[name]}"
        warnings.warn(said, stacklevel=_levels_up())


def _parameters(model: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """(names of arguments that the model takes, whether it takes any other). Who hands on whatever it is given, as a
    wrapper of another model, may take any name."""
    called: Any = getattr(model, "_orig_mod", model)
    while isinstance(called, functools.partial):
        called = called.func
    try:
        parameters = inspect.signature(called.forward if isinstance(called, nn.Module) else called).parameters
    except (TypeError, ValueError):
        return frozenset(entry.name for entry in dataclasses.fields(Options)), True
    kinds = {entry.kind for entry in parameters.values()}
    names = set(parameters)
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        names |= {"args", "kwargs", *(entry.name for entry in dataclasses.fields(Options))}
    named = frozenset(
        name for name in names if name not in parameters or parameters[name].kind is not inspect.Parameter.VAR_KEYWORD
    )
    return named, inspect.Parameter.VAR_KEYWORD in kinds


def _levels_up() -> int:
    """How many calls the user's code is above the one that warns."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("rust_ort"):
        frame, levels = frame.f_back, levels + 1
    return levels


def checked_flag(function: str, name: str, value: object) -> bool:
    """Errors: OptionError."""
    if not isinstance(value, bool):
        raise OptionError(f"{function} {name}: expected True or False, got {shown(value)}")
    return value


def checked_choice(function: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    """Errors: OptionError that names the nearest."""
    if not isinstance(value, str) or value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}" if close else ""
        raise OptionError(
            f"{function} {name}: expected one of {', '.join(map(repr, choices))}, got {shown(value)}{hint}"
        )
    return value


def checked_autocast(function: str, value: object) -> torch.dtype | None:
    """The dtype of an autocast region, also by its name. Errors: OptionError for one that autocast has not."""
    if value is None:
        return None
    dtype = AUTOCAST.get(value.removeprefix("torch."), value) if isinstance(value, str) else value
    if dtype not in AUTOCAST.values() or not isinstance(dtype, torch.dtype):
        raise OptionError(
            f"{function} autocast: expected torch.bfloat16, torch.float16, their names, or None for no autocast, got "
            f"{shown(value)}"
        )
    return dtype


def checked_loss(function: str, loss: object) -> None:
    """Errors: OptionError for what is no function of the outputs."""
    if loss is not None and not callable(loss):
        raise OptionError(
            f"{function} loss: expected a function from the model's outputs to a scalar tensor, or None, "
            f"got {shown(loss)}"
        )


def checked_options(what: str, options: object) -> Mapping[str, Any] | Options | None:
    """`options` when it is a form that options may have. Errors: OptionError."""
    if options is None or isinstance(options, Mapping | Options):
        return options
    raise OptionError(
        f"{what} options: expected a dict such as {{'compare': 'nodes'}}, rust_ort.Options or None, "
        f"got {shown(options)}"
    )


def parsed_options(what: str, options: object) -> Options:
    """Errors: OptionError, NotAvailableYet."""
    given = checked_options(what, options)
    return given if isinstance(given, Options) else Options.parse(given)


def checked_number(function: str, name: str, value: object, expected: str, *, most: float = math.inf) -> float | None:
    """`value` when it is a finite number from 0 to `most`, or None. expected: which, in words. Errors: OptionError."""
    if value is None:
        return None
    try:
        # As float32 of numpy is one, too; True is none.
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number <= most or math.isinf(number):
        raise OptionError(f"{function} {name}: expected {expected}, or None, got {shown(value)}")
    return number


def checked_budget(function: str, value: object) -> float | None:
    """Seconds. Errors: OptionError."""
    return checked_number(
        function, "budget", value, f"a number of seconds from 0 to {MOST_SECONDS:.0e}", most=MOST_SECONDS
    )


def checked_terms(function: str, tolerance: object) -> dict[str, float]:
    """Terms of a tolerance that are given. Errors: OptionError."""
    known = ("atol", "rtol", "scale")
    if tolerance is not None and not (isinstance(tolerance, Mapping) and set(tolerance) <= set(known)):
        raise OptionError(
            f"{function} tolerance: expected a dict of {', '.join(map(repr, known))}, or None, got {shown(tolerance)}"
        )
    terms = {
        name: checked_number(function, f"tolerance[{name!r}]", value, "a finite number that is at least 0")
        for name, value in (tolerance or {}).items()
    }
    return {name: term for name, term in terms.items() if term is not None}


def checked_name(function: str, name: str, value: object) -> str | None:
    """Errors: OptionError for what cannot be a value's name."""
    if value is None or (isinstance(value, str) and value and is_text(value)):
        return value
    raise OptionError(
        f"{function} {name}: expected a name without NUL and lone surrogates, or None, got {shown(value)}"
    )


def checked_no_dump(function: str, options: Options) -> None:
    """Errors: OptionError for the option `dump`, of what makes a dump of its own."""
    if options.dump is not None:
        raise OptionError(
            f"{function} options: expected no dump, as it makes its own, got dump={options.dump!r}; name the argument "
            "folder, and leave out the option and RUST_ORT_DUMP"
        )


def checked_run(run: object) -> str:
    """The name of a dump. Errors: OptionError."""
    if not isinstance(run, str) or not is_text(run) or not is_folder_name(run):
        raise OptionError(
            f"dump run: expected the name of a folder ({FOLDER_NAME}), got {shown(run)}; the folder above it is the "
            "argument folder"
        )
    return run


def checked_folder(function: str, name: str, folder: object) -> Path:
    """The path, absolute and without links, of a folder that is there or can come to be. Errors: OptionError."""
    given = os.fspath(folder) if isinstance(folder, str | os.PathLike) else None
    # Bytes of a path that are no UTF-8 are lone surrogates in Python.
    if not isinstance(given, str) or not given or not is_text(given):
        raise OptionError(f"{function} {name}: expected a path, got {shown(folder)}")
    path = Path(os.path.realpath(given))
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise OptionError(f"{function} {name} {str(path)!r}: expected a folder, but {existing} is none; name another")
    return path
