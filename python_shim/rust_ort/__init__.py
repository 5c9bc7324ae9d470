"""rust_ort: a torch.compile backend that runs forward and backward graphs on ONNX Runtime behind a Rust daemon.

The module itself is a backend: `torch.compile(model, backend=rust_ort)`. Importing it loads neither torch.onnx nor
onnxscript.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rust_ort._callable import make_callable
from rust_ort._version import __version__
from rust_ort.backend import Backend, GraphInfo, graphs, rust_ort
from rust_ort.errors import (
    ClientError,
    DaemonFault,
    DaemonLost,
    ExecutorLost,
    NotAvailableYet,
    NumericMismatch,
    OptionError,
    RustOrtError,
)
from rust_ort.options import Options

if TYPE_CHECKING:
    from rust_ort.backend import backend as backend
    from rust_ort.compare import Report
    from rust_ort.compare import compare as compare
    from rust_ort.dump import dump as dump
    from rust_ort.explain import Explanation
    from rust_ort.explain import explain as explain

__all__ = [
    "Backend",
    "ClientError",
    "DaemonFault",
    "DaemonLost",
    "ExecutorLost",
    "Explanation",
    "GraphInfo",
    "NotAvailableYet",
    "NumericMismatch",
    "OptionError",
    "Options",
    "Report",
    "RustOrtError",
    "__version__",
    "backend",
    "compare",
    "dump",
    "explain",
    "graphs",
]

_LAZY = {"Report": "compare", "Explanation": "explain"}


def __getattr__(name: str) -> Any:
    if name in ("backend", "compare", "dump", "explain"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__, rust_ort)
