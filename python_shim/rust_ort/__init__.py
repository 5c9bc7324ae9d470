"""rust_ort: a torch.compile backend that runs forward and backward graphs on ONNX Runtime behind a Rust daemon.

Compile:
    torch.compile(model, backend="rust_ort")                    no import needed
    torch.compile(model, backend=rust_ort)                      the module itself is a backend
    torch.compile(model, backend=rust_ort.backend(threads=2))   with options, see help(rust_ort.Options)

Ask:
    rust_ort.compare(model, *args, **kwargs)   a Report: eager against the backend, outputs, loss, every gradient
    report.check()                             raises NumericMismatch where the two differ
    rust_ort.blame(model, *args, **kwargs)     a Blame: which node, kernel or optimizer makes them differ, or nobody
    rust_ort.keep_in_float32(model, *args)     a Kept: which values to keep in float32, for precision_rules
    rust_ort.align(model1, model2, feeds=...)  an Alignment: values of two ONNX models beside each other, in their order
    rust_ort.explain(model, *args, **kwargs)   an Explanation: graphs, nodes left to eager and why, time by phase
    rust_ort.to_onnx(model, *args, path=None)  the forward as one onnx.ModelProto, which any runtime runs
    with rust_ort.dump("run"): ...             everything compiled or run inside is written to dumps/run
    rust_ort.report("dumps/run")               a Page: what a dump tells as one HTML file, to look at and to send
    rust_ort.graphs()                          what this process compiled
    rust_ort.status(), rust_ort.shutdown()     the daemon, and the end of this process's connections

Errors are RustOrtError: ClientError (correct the call; OptionError, BadIndex, BadOperand, NotAvailableYet),
DaemonFault (see the log; DaemonLost, ExecutorLost, OutOfMemory) and NumericMismatch. Logged on the logger "rust_ort".
Importing loads neither torch.onnx nor onnxscript.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rust_ort import _built as _built
from rust_ort._callable import make_callable
from rust_ort._version import __version__
from rust_ort.backend import Backend, GraphInfo, graphs, rust_ort
from rust_ort.errors import (
    BadIndex,
    BadOperand,
    ClientError,
    DaemonFault,
    DaemonLost,
    ExecutorLost,
    NotAvailableYet,
    NumericMismatch,
    OptionError,
    OutOfMemory,
    RustOrtError,
)
from rust_ort.options import Options

if TYPE_CHECKING:
    from rust_ort.align import Alignment
    from rust_ort.align import align as align
    from rust_ort.backend import backend as backend
    from rust_ort.blame import Blame
    from rust_ort.blame import blame as blame
    from rust_ort.compare import compare as compare
    from rust_ort.dump import dump as dump
    from rust_ort.explain import Explanation
    from rust_ort.explain import explain as explain
    from rust_ort.keep import Kept, keep_in_float32
    from rust_ort.observe.report import Report
    from rust_ort.report import Page
    from rust_ort.report import report as report
    from rust_ort.service import shutdown as shutdown
    from rust_ort.service import status as status
    from rust_ort.to_onnx import to_onnx as to_onnx

__all__ = [
    "Alignment",
    "Backend",
    "BadIndex",
    "BadOperand",
    "Blame",
    "ClientError",
    "DaemonFault",
    "DaemonLost",
    "ExecutorLost",
    "Explanation",
    "GraphInfo",
    "Kept",
    "NotAvailableYet",
    "NumericMismatch",
    "OptionError",
    "Options",
    "OutOfMemory",
    "Page",
    "Report",
    "RustOrtError",
    "__version__",
    "align",
    "backend",
    "blame",
    "compare",
    "dump",
    "explain",
    "graphs",
    "keep_in_float32",
    "report",
    "shutdown",
    "status",
    "to_onnx",
]

_LAZY = {
    "Alignment": "align",
    "Blame": "blame",
    "Page": "report",
    "Report": "observe.report",
    "Explanation": "explain",
    "Kept": "keep",
    "keep_in_float32": "keep",
    "shutdown": "service",
    "status": "service",
}


def __getattr__(name: str) -> Any:
    if name in ("align", "backend", "blame", "compare", "dump", "explain", "report", "to_onnx"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


make_callable(__name__, rust_ort)
