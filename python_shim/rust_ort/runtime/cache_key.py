"""A plan's cache key beside its graph, and whether a later process may use the plan."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from rust_ort.call.client import Client
from rust_ort.errors import ClientError
from rust_ort.export.exporter import TORCHLIB_OPSET
from rust_ort.link.daemon import find_onnxruntime
from rust_ort.link.specs import CustomOpLibrary
from rust_ort.options import Options


def key_parts(options: Options, libraries: Sequence[CustomOpLibrary]) -> list[str]:
    """What else a plan depends on: it says which nodes the runtime refused, too."""
    runtime: tuple[Any, ...] = (options.providers, options.ort_optimization, sorted(options.session_options.items()))
    runtime += (options.disable_passes, *libraries)
    # Of one graph and other rules other models run: a dump has a folder for each.
    runtime += (sorted(options.precision_rules.items()), list(options.runtimes.items()))
    runtime += (f"daemon {Client.get(options).build()}",)
    with contextlib.suppress(ClientError):  # without a library no part is prepared, which says why
        runtime += (_identity(find_onnxruntime()),)
    transforms = [_function_text("transform", transform) for transform in options.transforms]
    custom = options.custom_translations.items()
    translations = [_function_text(f"translation of {operator}", function) for operator, function in custom]
    return [f"opset {opset(options)}", f"runtime {runtime}", *transforms, *sorted(translations)]


def _identity(path: str) -> tuple[str, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns


def opset(options: Options) -> int:
    """Of the models to export."""
    return options.opset or TORCHLIB_OPSET


def may_be_kept(options: Options) -> bool:
    """Whether a later process with the same graph wants the same plan."""
    return None not in map(_cache_key, [*options.transforms, *options.custom_translations.values()])


def _function_text(what: str, function: Callable[..., Any]) -> str:
    """A function without `cache_key` gets a text that is never met again."""
    key = _cache_key(function)
    return f"{what} {key}" if key is not None else f"{what} uncached {id(function)} {time.time_ns()}"


def _cache_key(function: Callable[..., Any]) -> object:
    key = getattr(function, "cache_key", None)
    return key() if callable(key) else key
