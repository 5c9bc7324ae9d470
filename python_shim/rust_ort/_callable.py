"""Modules that can be called, deep-copied and pickled: `rust_ort`, `rust_ort.compare`, `rust_ort.dump`, …

`rust_ort.compare` names a submodule and a function; import order decides which a plain package would give. A module
that calls its function is both.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


class CallableModule(types.ModuleType):
    """A module with `_called`, the function that calling it calls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_called"](*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__dict__["_called"])

    def __deepcopy__(self, memo: dict[int, Any]) -> CallableModule:
        return self

    def __copy__(self) -> CallableModule:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (importlib.import_module, (self.__name__,))


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Calling module `name` calls `function` from now on. A submodule's help is the function's."""
    module = sys.modules[name]
    if "." in name:
        module.__doc__ = function.__doc__
    module.__class__ = CallableModule
    module.__dict__["_called"] = function
