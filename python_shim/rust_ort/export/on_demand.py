"""torchlib's functions, each read when it is first used: a model needs a tenth of them, and reading all takes as long
as writing a small model."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Make = Callable[[Any, Callable[..., Any]], Any]
"""Of an opset and a Python function, the function of onnxscript."""

TORCHLIB = "onnxscript.function_libs.torch_lib.ops"


@contextlib.contextmanager
def functions_on_demand() -> Iterator[None]:
    """Inside, what torchlib registers when it is imported is no more than named. All else of a function, its signature
    and, where it is a script, its nodes, is made when it is first asked for, and is what onnxscript makes. While they
    are registered, a function's `function_ir` has no more than its domain. Nothing changes where torchlib was imported
    before."""
    import onnxscript

    values, script = onnxscript.values, onnxscript.script
    traced = values.TracedOnnxFunction
    if TORCHLIB in sys.modules:
        yield
        return
    registering = [True]
    written: dict[str, tuple[int, int]] = {}

    def make_script(opset: Any, function: Callable[..., Any]) -> Any:
        path = function.__code__.co_filename
        if path in written and _written(path) != written[path]:
            raise RuntimeError(
                f"{path} was changed while this process runs; start it anew to export {function.__name__}"
            )
        return script(opset=opset)(function)

    trace_later = _later(traced, traced, registering)
    script_later = _later(onnxscript.OnnxFunction, make_script, registering)

    def of_script(opset: Any = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Any]:
        if opset is None or kwargs:
            made: Callable[[Callable[..., Any]], Any] = script(opset, **kwargs)
            return made

        def later(function: Callable[..., Any]) -> Any:
            path = function.__code__.co_filename
            if path not in written:
                written[path] = _written(path)
            return script_later(opset, function)

        return later

    try:
        values.TracedOnnxFunction, onnxscript.script = trace_later, of_script
        yield
    finally:
        values.TracedOnnxFunction, onnxscript.script = traced, script
        registering.clear()


def _written(path: str) -> tuple[int, int]:
    """What tells that a file is as it was: a script is read from it, by the lines that it had when it was imported."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


def _later(base: Any, make: Make, registering: list[bool]) -> Any:
    """A subclass of a class of functions, whose objects are filled when more than their names is asked for."""

    class Later(base):  # type: ignore[misc]
        def __init__(self, opset: Any, function: Callable[..., Any]) -> None:
            self.__dict__.update(_opset=opset, _name=function.__name__)
            functools.update_wrapper(self, function)

        def __getattr__(self, name: str) -> Any:
            if name == "function_ir" and registering:
                return types.SimpleNamespace(domain=self._opset.domain)
            known = self.__dict__
            if "_opset" not in known or "_is_read" in known or (name.startswith("__") and name.endswith("__")):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            for key, value in vars(make(known["_opset"], known["__wrapped__"])).items():
                known.setdefault(key, value)
            known["_is_read"] = True
            return getattr(self, name)

    Later.__name__, Later.__qualname__ = base.__name__, base.__qualname__
    return Later
