"""What the studies do with ONNX models and their tensors: show, read, judge, run, optimize."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from rust_ort.call.client import Client
from rust_ort.link.specs import Policy, Verdict
from rust_ort.observe.digits import few
from rust_ort.observe.values import named_tensors
from rust_ort.observe.verdicts import Pair
from rust_ort.options import Options
from rust_ort.tables import VERDICT_KINDS, WRONG_OPTIMIZERS

Model: TypeAlias = onnx.ModelProto | str | os.PathLike[str]
Shape = tuple[int | str, ...]

WORDS = {kind: kind.title().replace("_", "") for kind in VERDICT_KINDS}


def inputs_from_onnx_model(model: Model, init: bool = False) -> list[tuple[str, str, int, Shape]]:
    """Inputs as ("INPUT", name, ONNX element type, shape); init: initializers too, as ("INIT", …).

    A dimension that is no number is its name, "?" when it has none.
    """
    graph = loaded(model).graph
    found = [("INPUT", entry.name, entry.type.tensor_type.elem_type, shape_of(entry)) for entry in graph.input]
    if init:
        found += [("INIT", entry.name, entry.data_type, tuple(entry.dims)) for entry in graph.initializer]
    return found


def results_to_string(results: Any, indent: str = "") -> str:
    """`torch.float32 (2, 1024, 512) [sum=595]`; of several tensors their count and a line each with its path."""
    if isinstance(results, Tensor):
        total = results.detach().double().sum().item()
        return f"{indent}{results.dtype} {tuple(results.shape)} [sum={total:1.3g}]"
    found = named_tensors(results)
    lines = [f"{indent}  {path}: {results_to_string(tensor)}" for path, tensor in found]
    return "\n".join([f"{indent}{len(found)} results", *lines])


def assert_all_close(reference: Any, candidate: Any, *, half: torch.dtype | None = None) -> list[Verdict]:
    """Verdicts of every tensor in two nested results of the same structure, when all match.

    half: the dtype in whose steps floats are judged, None for each tensor's own. Raises AssertionError that lists what
    differs, was not compared, or is on one side only. Source: docs/design/decisions/0002-tolerance.md.
    """
    left, right = dict(named_tensors(reference)), dict(named_tensors(candidate))
    pairs = [(name, left.get(name), right.get(name), "") for name in [*left, *(n for n in right if n not in left)]]
    verdicts = judge(pairs, half=half)
    wrong = [verdict_line(verdict) for verdict in verdicts if not verdict.is_pass]
    if wrong or not verdicts:
        raise AssertionError("\n".join(wrong) or "there is no tensor to compare")
    return verdicts


def judge(pairs: Sequence[Pair], *, half: torch.dtype | None = None) -> list[Verdict]:
    """The daemon's verdicts for (name, reference, candidate, why there is nothing to compare or ""). It reads memory of
    the host."""
    pairs = [(name, _on_host(reference), _on_host(candidate), why) for name, reference, candidate, why in pairs]
    return Client.get(Options.parse({})).compare(pairs, Policy(through=half))


def _on_host(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


def verdict_line(verdict: Verdict) -> str:
    """`Match output: max|Δ| 1.192e-7, max|Δ|/max|r| 3.021e-7`, or the reason where there are no numbers."""
    name = f" {verdict.name}" if verdict.name else ""
    numbers = f"max|Δ| {few(verdict.max_abs)}, max|Δ|/max|r| {few(verdict.max_rel_to_max)}"
    parts = [numbers] if verdict.is_measured else []
    return f"{WORDS[verdict.kind]}{name}: " + "; ".join(parts + ([verdict.reason] if verdict.reason else []))


# --- files -----------------------------------------------------------------------------------------------------------


def data_set(folder: Path, prefix: str) -> dict[str, Tensor]:
    """{name: tensor} of the files `<prefix>_<i>.pb` of a data set, in their order. prefix: input, output, actual.

    The files are read as they are: damage is what `rust-ort verify` tells."""
    files = sorted(folder.glob(f"{prefix}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    protos = [onnx.load_tensor(str(path)) for path in files]
    return {proto.name: tensor_of(proto) for proto in protos}


def tensor_of(proto: Any) -> Tensor:
    """A copy of a TensorProto."""
    array = np.array(numpy_helper.to_array(proto))
    if proto.data_type == onnx.TensorProto.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def provenance(model: Model) -> dict[str, Any]:
    """The provenance.json beside a dumped model, as it is: unverified. Empty when there is none."""
    if not isinstance(model, (str, os.PathLike)):
        return {}
    path = Path(model).with_name("provenance.json")
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def loaded(model: Model) -> Any:
    """The ModelProto."""
    return onnx.load(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model


def shape_of(entry: Any) -> Shape:
    """Shape of a ValueInfoProto; a dimension that is no number is its name, "?" when it has none."""
    dims = entry.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


# --- ONNX Runtime in this process ------------------------------------------------------------------------------------


class Refused(Exception):
    """ONNX Runtime cannot make a session of a model; the text is its own."""


def optimize_model(path: Path, output: Path, *, cuda: bool = False) -> tuple[int, int]:
    """Writes what ONNX Runtime's optimizer makes of `path`; (nodes before, nodes after). Errors: Refused."""
    _session(path, optimized=output, cuda=cuda)
    return node_count(path), node_count(output)


def node_count(model: Model) -> int:
    """Nodes of the model's main graph."""
    return len(loaded(model).graph.node)


def run_model(path: Path, feeds: Mapping[str, Tensor], *, cuda: bool = False) -> dict[str, Tensor]:
    """{output: tensor} of the model as it stands: a plain session without optimizer. Errors: Refused."""
    import onnxruntime

    session = _session(path, optimized=None, cuda=cuda)
    fed = {
        name: onnxruntime.OrtValue.from_dlpack(feeds[name].detach().cpu().contiguous())
        for name in (entry.name for entry in session.get_inputs())
    }
    names = [entry.name for entry in session.get_outputs()]
    results = session.run_with_ort_values(names, fed)
    return {name: torch.utils.dlpack.from_dlpack(value) for name, value in zip(names, results, strict=True)}


def _session(path: Path, *, optimized: Path | None, cuda: bool) -> Any:
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if optimized is None else levels.ORT_ENABLE_ALL
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    providers = ["CUDAExecutionProvider"] * cuda + ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=providers, disabled_optimizers=[*WRONG_OPTIMIZERS]
        )
    except Exception as error:  # onnxruntime has one class an error code, with no base of its own
        raise Refused(str(error).strip()) from error
