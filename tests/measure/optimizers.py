"""Which optimizers of ONNX Runtime change values: every model with all of them, with none, and without each.

Models are ONNX's own node tests, and what the programs of the corpus and random functions run, with their inputs.
Outputs are compared bit by bit, NaN alike: `x + 0` left out is a change, and so is another order of summation.
"""

from __future__ import annotations

import argparse
import functools
import platform
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper

import rust_ort
from measure.home import spare_torchs_own_measuring
from measure.random_graphs.check import compiled_differences, eagerly
from measure.random_graphs.corpus import Case, read
from measure.random_graphs.generate import generate

OPTIMIZERS = (
    "BiasDropoutFusion", "BiasGeluFusion", "BiasSoftmaxFusion", "CastChainElimination", "CastElimination",
    "CommonSubexpressionElimination", "ConstantFolding", "ConstantSharing", "ConvActivationFusion",
    "ConvAddActivationFusion", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion", "EliminateDropout",
    "EliminateIdentity", "EliminateSlice", "ExpandElimination", "FastGeluFusion", "FuseReluClip",
    "GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2", "GemmActivationFusion",
    "GemmSumFusion", "GemmTransposeFusion", "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion",
    "MatMulAddFusion", "MatMulScaleFusion", "MatMul_BatchNormalization_Fusion", "MatmulTransposeFusion",
    "NchwcTransformer", "NhwcTransformer", "NoopElimination", "NotWhereFusion", "Pad_Fusion",
    "PreShapeNodeElimination", "PropagateCastOps", "QuickGeluFusion", "ReshapeFusion", "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion", "TransposeOptimizer", "UnsqueezeElimination",
)  # fmt: skip
"""Of onnxruntime 1.31.1 without quantization: what `disable_specified_optimizers` knows."""

CORPUS = Path(__file__).parents[1] / "python" / "corpus.json"
DONE = {
    "ConvAddFusion": "off: two constants are added before the convolution's sum is",
    "ConvMulFusion": "off: the weight is multiplied, which may overflow",
    "DivMulFusion": "off: `(1/x)·y` is infinite where `y/x` is not",
    "MatMulScaleFusion": "off: `(x·s) @ w` becomes `(x @ w)·s`, which may overflow; a float64 factor becomes float32",
    "MatmulTransposeFusion": "off: `Transpose → MatMul(·, 1-D)` gives wrong values",
    "NoopElimination": "off: `x + 0` is 0.0 where x is -0.0",
    "NotWhereFusion": "on: the Where of floats that runs is an operator of ours, which it does not know",
}
"""What is done about optimizers that change more than the last digits: `src/runtime/ort/options.rs`."""
HARMLESS = {"rounding": "on: another order of the same sums"}
"""By what is changed, of all others."""
ROUNDING_STEPS = 16
"""Units in the last place of the largest element: what another order of summation may change."""
REFUSED = "the model is refused"

Arrays = list[np.ndarray[Any, Any]]
Given = tuple[str, bytes, dict[str, Any]]
"""What a model is named by, the model, its feeds."""


@dataclass
class Found:
    """Of one source of models. changes: {(optimizer, what it changes): what some of the models are named by}."""

    examined: int = 0
    changed: int = 0
    together: list[str] = field(default_factory=list)
    changes: defaultdict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))


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


def differ(first: Arrays | None, second: Arrays | None) -> str:
    """The largest difference in words; "" where there is none."""
    if first is None or second is None:
        return "" if first is second else REFUSED
    for one, other in zip(first, second, strict=True):
        if one.dtype == other.dtype and one.tobytes() == other.tobytes():
            continue
        if one.dtype == object and one.dtype == other.dtype and np.array_equal(one, other):
            continue  # strings: their bytes are addresses
        if one.dtype != other.dtype or one.shape != other.shape or one.dtype.kind != "f":
            return "other integers or shapes"
        with np.errstate(all="ignore"):
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
            same = (one == other) | (np.isnan(one) & np.isnan(other))
        if (np.isnan(one) != np.isnan(other)).any() or np.isinf(apart[~same]).any():
            return "NaN or infinity"
        largest = float(np.max(apart[~same], initial=0.0))
        if largest == 0.0 and (np.signbit(one) != np.signbit(other))[~np.isnan(one)].any():
            return "sign of zero"
        if largest > 0.0:
            scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            return "rounding" if largest <= ROUNDING_STEPS * np.finfo(one.dtype).eps * scale else "values"
    return ""


def node_tests() -> Iterator[Given]:
    """ONNX's own, of operators that draw no random numbers."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = list(collect_testcases(None))
    draws = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
    for case in cases:
        if draws.isdisjoint(node.op_type for node in case.model.graph.node):
            names = [given.name for given in case.model.graph.input]
            for given, _ in case.data_sets:
                yield case.name, case.model.SerializeToString(), dict(zip(names, given, strict=False))


def corpus() -> Iterator[Given]:
    """What the programs of the corpus run."""
    for case in read(CORPUS):
        yield from _models(case.name, functools.partial(_kept, case))


def random_functions(seeds: Sequence[int]) -> Iterator[Given]:
    """What the random functions of these seeds run."""
    for seed in seeds:
        yield from _models(f"seed {seed}", functools.partial(_generated, seed))


def _kept(case: Case) -> tuple[Any, Any]:
    return case.text, eagerly(case.text)


def _generated(seed: int) -> tuple[Any, Any]:
    made = generate(seed)
    return made.program.text(), made.expected


def _models(name: str, program: Callable[[], tuple[Any, Any]]) -> Iterator[Given]:
    """What a program runs on the CPU, with the inputs of the first call of each graph."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            text, expected = program()
            with rust_ort.dump("optimizers", folder=folder):
                compiled_differences(text, expected, rust_ort.Backend())
        except Exception:  # the program's own, such as an index out of range: what it ran until then is dumped
            pass
        for data in sorted(Path(folder).glob("**/test_data_set_*")):
            part = data.parent
            path = next((p for p in (part / "model.precision.onnx", part / "model.onnx") if p.exists()), None)
            if path is None:
                continue
            model = onnx.load(path)
            try:
                tensors = [onnx.load_tensor(data / f"input_{i}.pb") for i in range(len(model.graph.input))]
            except FileNotFoundError:
                continue
            if any(tensor.data_type == onnx.TensorProto.BFLOAT16 for tensor in tensors):
                continue  # NumPy has none that onnxruntime takes
            names = [given.name for given in model.graph.input]
            feeds = dict(zip(names, map(numpy_helper.to_array, tensors), strict=True))
            yield name, model.SerializeToString(), feeds


def examine(models: Iterator[Given]) -> Found:
    """Each model with and without, and for those that optimizing changes, without each optimizer."""
    found = Found()
    for name, model, feeds in models:
        plain = outputs(model, feeds, without=None)
        if plain is None:
            continue
        optimized = outputs(model, feeds, without=())
        found.examined += 1
        if not differ(optimized, plain):
            continue
        found.changed += 1
        alone = [(optimizer, differ(optimized, outputs(model, feeds, without=[optimizer]))) for optimizer in OPTIMIZERS]
        for optimizer, what in alone:
            if what:
                found.changes[optimizer, what].append(name)
        if not any(what for _, what in alone):
            found.together.append(f"{name} ({differ(optimized, plain)})")
    return found


def page(found: dict[str, Found], *, about: str) -> str:
    """A row an optimizer and kind of change, a column a source."""
    lines = [
        "# Optimizers of ONNX Runtime that change values",
        "",
        f"Made by `PYTHONPATH=tests python -m measure.optimizers --output docs/results/optimizers.md`: {about}.",
        "Each model runs with all optimizers and with none; where an output differs in a bit, once more without each.",
        "",
        f"- python: {platform.python_version()}",
        f"- onnxruntime: {onnxruntime.__version__}",
        f"- onnx: {onnx.__version__}",
        "",
        *(f"- {name}: {one.examined} models, optimizing changes {one.changed}" for name, one in found.items()),
        *(f"- by no optimizer alone: {what}" for one in found.values() for what in one.together),
        "",
        f"| optimizer | what it changes | {' | '.join(found)} | such as | what is done |",
        f"|---|---|{'---|' * len(found)}---|---|",
    ]
    for optimizer, what in sorted({key for one in found.values() for key in one.changes}):
        named = [name for one in found.values() for name in one.changes.get((optimizer, what), ())]
        counts = " | ".join(str(len(one.changes.get((optimizer, what), ()))) for one in found.values())
        lines.append(f"| {optimizer} | {what} | {counts} | {named[0]} | {done(optimizer, what)} |")
    met = {optimizer for one in found.values() for optimizer, _ in one.changes}
    lines += ["", "Not met in these models, but by a test of `tests/python/test_rules.py`:", ""]
    lines += [f"- {optimizer}: {what}" for optimizer, what in DONE.items() if optimizer not in met]
    return "\n".join([*lines, ""])


def done(optimizer: str, what: str) -> str:
    """About a change of values; "" where nothing is."""
    return DONE.get(optimizer, HARMLESS.get(what, ""))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, prints the page. Returns the exit code: 1 where nothing is done about a change."""
    parser = argparse.ArgumentParser(prog="python -m measure.optimizers", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed of random functions")
    parser.add_argument("--graphs", type=int, default=300, help="random functions")
    parser.add_argument("--output", type=Path, help="markdown file")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    spare_torchs_own_measuring()
    sources = {
        "node tests": node_tests(),
        "corpus": corpus(),
        "random functions": random_functions(range(given.first, given.first + given.graphs)),
    }
    found = {name: examine(models) for name, models in sources.items()}
    last = given.first + given.graphs - 1
    about = f"ONNX's node tests, the corpus, random functions of seeds {given.first} to {last}"
    text = page(found, about=about)
    print(text)
    if given.output:
        given.output.write_text(text)
    return int(any(not done(optimizer, what) for one in found.values() for optimizer, what in one.changes))


if __name__ == "__main__":
    sys.exit(main())
