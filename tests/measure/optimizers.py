"""Which optimizers of ONNX Runtime change values: every model of ours with all of them, with none, and without each.

Models and inputs are those of random functions. Outputs are compared bit by bit, NaN alike: `x + 0` left out is a
change, and so is another order of summation.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper

import rust_ort
from measure.home import spare_torchs_own_measuring
from measure.random_graphs.check import compiled_differences
from measure.random_graphs.generate import generate
from rust_ort.onnx_tools.helpers import WRONG_OPTIMIZERS

OPTIMIZERS = (
    "BiasDropoutFusion", "BiasGeluFusion", "BiasSoftmaxFusion", "CastChainElimination", "CastElimination",
    "CommonSubexpressionElimination", "ConstantFolding", "ConstantSharing", "ConvActivationFusion", "ConvAddFusion",
    "ConvAddActivationFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion", "EliminateDropout", "EliminateIdentity",
    "EliminateSlice", "ExpandElimination", "FastGeluFusion", "FuseReluClip", "GatherSliceToSplitFusion",
    "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2", "GemmActivationFusion", "GemmSumFusion",
    "GemmTransposeFusion", "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion", "MatMulAddFusion",
    "MatMulScaleFusion", "MatmulBNFusion", "MatmulTransposeFusion", "NchwcTransformer", "NhwcTransformer",
    "NoopElimination", "NotWhereFusion", "PadFusion", "PreShapeNodeElimination", "PropagateCastOps", "QuickGeluFusion",
    "ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion",
    "TransposeOptimizer", "UnsqueezeElimination",
)  # fmt: skip
"""Of onnxruntime 1.31.1 without quantization: what `disable_specified_optimizers` knows."""

Arrays = list[np.ndarray[Any, Any]]


def outputs(model: bytes, feeds: dict[str, Any], *, without: Sequence[str] | None) -> Arrays | None:
    """Of the model with every optimizer but these; None: with none. The result is None where the runtime refuses it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if without is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(without))
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return [np.asarray(made) for made in session.run(None, feeds)]
    except Exception:  # whatever the runtime raises: not what is asked here
        return None


def differ(first: Arrays, second: Arrays) -> str:
    """The largest difference in words; "" where there is none."""
    for one, other in zip(first, second, strict=True):
        if one.tobytes() == other.tobytes():
            continue
        if one.shape != other.shape or one.dtype.kind not in "fV":
            return "other integers or shapes"
        with np.errstate(all="ignore"):
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        if (np.isnan(one) != np.isnan(other)).any() or np.isinf(apart).any():
            return "NaN or infinity"
        largest = float(np.nanmax(apart, initial=0.0))
        if largest == 0.0 and (np.signbit(one) != np.signbit(other))[~np.isnan(one)].any():
            return "sign of zero"
        if largest > 0.0:
            scale = float(np.nanmax(np.abs(other[np.isfinite(other)]), initial=0.0))
            return "rounding" if largest <= 16 * np.finfo(one.dtype).eps * scale else "values"
    return ""


def models(seeds: Sequence[int]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """What the random functions of these seeds run on the CPU, with the inputs of a call."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = generate(seed)
            try:
                with rust_ort.dump("optimizers", folder=folder):
                    compiled_differences(made.program.text(), made.expected, rust_ort.Backend())
            except Exception:
                continue
            for data in Path(folder).glob("**/test_data_set_*"):
                part = data.parent
                path = next(p for p in (part / "model.precision.onnx", part / "model.onnx") if p.exists())
                model = onnx.load(path)
                tensors = [onnx.load_tensor(data / f"input_{i}.pb") for i in range(len(model.graph.input))]
                if any(tensor.data_type == onnx.TensorProto.BFLOAT16 for tensor in tensors):
                    continue  # NumPy has none that onnxruntime takes
                names = [given.name for given in model.graph.input]
                feeds = dict(zip(names, map(numpy_helper.to_array, tensors), strict=True))
                yield model.SerializeToString(), feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--graphs", type=int, default=300, help="random functions")
    given = parser.parse_args()
    torch.set_num_threads(1)
    spare_torchs_own_measuring()
    found: Counter[tuple[str, str]] = Counter()
    examined = changed = 0
    for model, feeds in models(range(given.first, given.first + given.graphs)):
        plain = outputs(model, feeds, without=None)
        optimized = outputs(model, feeds, without=())
        if plain is None or optimized is None:
            continue
        examined += 1
        if not differ(optimized, plain):
            continue
        changed += 1
        for optimizer in OPTIMIZERS:
            without = outputs(model, feeds, without=[optimizer])
            if without is not None and (what := differ(optimized, without)):
                found[optimizer, what] += 1
    print(
        f"{examined} models of seeds {given.first} to {given.first + given.graphs - 1}: optimizing changes {changed}\n"
    )
    print("| optimizer | what it changes | models | here |\n|---|---|---|---|")
    for (optimizer, what), count in sorted(found.items()):
        print(f"| {optimizer} | {what} | {count} | {'off' if optimizer in WRONG_OPTIMIZERS else 'on'} |")


if __name__ == "__main__":
    main()
