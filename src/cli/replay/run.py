"""Runs model.onnx beside this file on its data set with ONNX Runtime and compares; see README.md.

Exit code: 0 every output is inside tolerance of eager's, 1 one is not, 2 what it ran with is not here, 3 nothing of eager's
is there to compare with.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

OPTIMIZATION = "@OPTIMIZATION@"
SESSION_CONFIG = "@CONFIG@"
# Those before the CPU's, each with its options.
PROVIDERS = "@PROVIDERS@"
CUSTOM_OP_LIBRARIES = "@LIBRARIES@"
# Whether the expected outputs are eager's. What agrees with others is not right for that.
BY_EAGER = "@BY_EAGER@"
# Inside: |got - expected| <= atol + rtol * |expected| + scale * max|expected|, the maximum over finite elements below
# fill. Without scale this is numpy.allclose.
TOLERANCES = "@TOLERANCES@"

CPU = "CPUExecutionProvider"
LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "kernels": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,  # kernels of rust_ort are not here
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
HERE = Path(__file__).resolve().parent


def load(kind):
    """[(name, ONNX type, array)] of the data set's <kind>_<i>.pb, in order."""
    folder = HERE / "test_data_set_0"
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    protos = [onnx.load_tensor(str(path)) for path in paths]
    return [(proto.name, proto.data_type, np.array(numpy_helper.to_array(proto), order="C")) for proto in protos]


def fail(why):
    print(why, file=sys.stderr)
    sys.exit(2)


def session():
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[OPTIMIZATION]
    options.log_severity_level = 3
    for key, value in SESSION_CONFIG.items():
        options.add_session_config_entry(key, value)
    for library in CUSTOM_OP_LIBRARIES:
        options.register_custom_ops_library(library)
    providers = list(map(tuple, PROVIDERS))
    missing = {name for name, _ in providers}.difference(onnxruntime.get_available_providers())
    if missing:  # onnxruntime would warn, and run it on the CPU
        fail(f"onnxruntime {onnxruntime.__version__} has no {', '.join(missing)}: install the packages of README.md")
    made = onnxruntime.InferenceSession(str(HERE / "model.onnx"), options, providers=providers or [CPU])
    lost = {name for name, _ in providers}.difference(made.get_providers())
    if lost:
        fail(f"{', '.join(lost)} did not load: see above")
    return made


NOTHING = ctypes.c_char()


def pointer(array):
    # An array without elements may have no memory of its own; no element of it is read.
    return array.ctypes.data or ctypes.addressof(NOTHING)


def run(expected):
    """The outputs as arrays like the expected ones. Bound by address: numpy has no bfloat16 that onnxruntime takes."""
    made = session()
    binding = made.io_binding()
    inputs = load("input")  # a binding does not keep what it points to
    for (_, dtype, array), declared in zip(inputs, made.get_inputs(), strict=True):
        binding.bind_input(declared.name, "cpu", 0, dtype, list(array.shape), pointer(array))
    outputs = [np.empty_like(array) for _, _, array in expected]
    if not expected:
        for declared in made.get_outputs():
            binding.bind_output(declared.name, "cpu")
    for (name, dtype, array), output in zip(expected, outputs, strict=True):
        binding.bind_output(name, "cpu", 0, dtype, list(array.shape), pointer(output))
    made.run_with_iobinding(binding)
    del inputs
    return outputs


def wide(array):
    """In an exact arithmetic type: integers as Python's, which have no end."""
    if array.dtype.kind in "biu":
        return array.astype(object) if array.dtype.itemsize == 8 else array.astype(np.int64)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def outside(expected, got, *, atol, rtol, scale, fill, equal_nan):
    """(elements outside tolerance, largest distance)."""
    if expected.size == 0:
        return 0, 0.0
    reference, candidate = wide(expected), wide(got)
    if reference.dtype == object or reference.dtype == np.int64:
        distance = np.abs(candidate - reference)
        return int(np.count_nonzero(distance > atol + rtol * np.abs(reference))), float(distance.max())
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(reference)
        counted = size[np.isfinite(size) & (size < fill)]
        limit = atol + rtol * size + scale * (counted.max() if counted.size else 0.0)
        distance = np.abs(candidate - reference)
    distance = np.where(candidate == reference, 0.0, distance)
    distance = np.where(np.isnan(distance) | ~np.isfinite(reference) & (distance > 0), np.inf, distance)
    if equal_nan:
        distance = np.where(np.isnan(reference) & np.isnan(candidate), 0.0, distance)
    wrong = (distance > limit) | np.isinf(distance)
    return int(np.count_nonzero(wrong)), float(distance.max())


def told(distance):
    """As rust-ort prints it: 1.48e-2."""
    mantissa, exponent = f"{distance:.2e}".partition("e")[::2]
    return f"{mantissa}e{int(exponent)}" if distance and exponent else f"{distance:g}"


def main():
    expected = load("output")
    outputs = run(expected)
    if not expected:
        print("it ran; not compared: there are no expected outputs")
        return 3
    failed = False
    on = ", ".join(name for name, _ in PROVIDERS) or CPU
    print(f"onnxruntime {onnxruntime.__version__}, {on}, optimization {OPTIMIZATION}")
    print(f"{'name':32} {'type':24} {'outside':>16} {'max|d|':>10}  verdict")
    for (name, _, array), got in zip(expected, outputs, strict=True):
        count, largest = outside(array, got, **TOLERANCES[str(array.dtype)])
        failed = failed or count > 0
        kind = f"{array.dtype}{list(array.shape)}"
        verdict = "MISMATCH" if count else "match" if BY_EAGER else "not compared"
        print(f"{name:32} {kind:24} {f'{count}/{array.size}':>16} {told(largest):>10}  {verdict}")
    if not BY_EAGER:
        print("not compared with eager: the expected outputs are ONNX Runtime's own; see README.md")
    return 1 if failed else 0 if BY_EAGER else 3


if __name__ == "__main__":
    sys.exit(main())
