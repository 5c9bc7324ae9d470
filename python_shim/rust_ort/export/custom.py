"""Translations that the user gives: their failures name the user's function and line."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any


class CustomError(RuntimeError):
    """A custom translation that does not do its work."""


def told(target: Any, function: Callable[..., Any], schemas: Any) -> Callable[..., Any]:
    """`function`, whose failures say that it is the user's and where in it. schemas: torch's exporter's."""
    import onnx_ir as ir

    written = getattr(function, "function", function)  # what onnxscript.script was given
    name = getattr(written, "__qualname__", repr(written))
    n_results = len(target._schema.returns)
    _complete_signature(function, schemas)

    @functools.wraps(written)
    def translation(*args: Any, **kwargs: Any) -> Any:
        try:
            results = function(*args, **kwargs)
        except Exception as error:  # whatever the user's function raises
            raise CustomError(f"custom translation {name}, {_where(error, written)}: {root_message(error)}") from error
        n_given = len(results) if isinstance(results, (list, tuple)) else 1
        if n_given != n_results:
            raise CustomError(f"custom translation {name} returned {n_given} value(s), {target} returns {n_results}")
        for result in results if isinstance(results, (list, tuple)) else [results]:
            if not isinstance(result, ir.Value):
                raise CustomError(f"custom translation {name} returned {result!r}, expected an ONNX value")
        return results

    return translation


def _complete_signature(function: Any, schemas: Any) -> None:
    """Without an annotation of what it returns, the exporter takes a script for one that returns nothing."""
    import onnx_ir as ir

    body = getattr(function, "function_ir", None)
    if body is None or function.traceable:
        return
    signature = schemas.op_signature_from_function(
        function, body.domain, function.name, since_version=function.opset.version
    )
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


def root_message(error: BaseException) -> str:
    """What was wrong in the first place."""
    while error.__cause__ is not None and not isinstance(error, CustomError):
        error = error.__cause__
    return str(error) if isinstance(error, CustomError) else f"{type(error).__name__}: {error}"


def custom_error(error: BaseException) -> CustomError | None:
    """The failure of a custom translation behind `error`, where there is one; what it raised keeps no frames."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, CustomError):
        behind = behind.__cause__
    if behind is not None and behind.__cause__ is not None:
        behind.__cause__.with_traceback(None)
    return behind
