"""What may run in eager for good, by name; everything else there is missing."""

from __future__ import annotations

import re

from rust_ort.export.aliases import SHARES_MEMORY
from rust_ort.export.arguments import NO_ELEMENTS
from rust_ort.export.partition import (
    AS_PAIRS,
    COMPLEX,
    DRAWS_RANDOM_NUMBERS,
    SIZE_AT_RUN_TIME,
    UNSORTED,
    UNWRITTEN_OUTPUT,
)

MISSING = "missing"
CATEGORIES = {
    "random numbers": "drawn by the kernels that torch.manual_seed controls",
    "size known only at run time": "ONNX Runtime could run it, but nothing could say how much memory it needs",
    "complex": "ONNX has no complex numbers",
    "complex views": "views between complex numbers and pairs of real ones: they compute nothing",
    "shared memory": "a view that an output is: it computes nothing",
    "nothing written": "memory that nobody wrote into: it computes nothing",
    "no elements": "it reads a tensor without any: it computes nothing",
    "linalg": "ONNX has no factorizations, solvers or eigenvalues",
    "FFT": "complex numbers, or a real transform of them",
    "sparse": "ONNX has no sparse tensors as torch has them",
    "custom operator": "of the model's own library, unknown to torch",
}
"""{category of exception: why it is one}."""

_BY_REASON = {
    DRAWS_RANDOM_NUMBERS: "random numbers",
    UNSORTED: "random numbers",
    SIZE_AT_RUN_TIME: "size known only at run time",
    COMPLEX: "complex",
    SHARES_MEMORY: "shared memory",
    AS_PAIRS: "complex views",
    NO_ELEMENTS: "no elements",
    UNWRITTEN_OUTPUT: "nothing written",
}
_BY_NAME = {
    "linalg": r"aten\.(_?linalg_\w+|cholesky\w*|_cholesky\w*|triangular_solve|lu_\w+|_lu_\w+|geqrf|ormqr|orgqr|lobpcg"
    r"|svd|_trilinear_solve)\.",
    "FFT": r"(aten|rust_ort)\._?fft_\w+\.",
    "sparse": r"aten\._?(sparse_\w+|to_sparse\w*|coalesce\w*|indices|values|to_dense)\.",
    "complex": r"aten\.(complex|polar|view_as_complex|view_as_real|_conj|conj_physical|real|imag)\.",
}
_OF_TORCH = ("aten", "prims", "prim", "torchvision", "rust_ort", "c10d", "_c10d_functional", "higher_order")


def category(operator: str, reason: str) -> str:
    """The category of exception of an operator left to eager for `reason`, or "missing"."""
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if reason.startswith(COMPLEX):
        return "complex"
    if reason.startswith("a tensor of layout"):
        return "sparse"
    if re.match(r"(graphsafe_)?run_(and_save|with)_rng_state\(", operator):
        return "random numbers"
    if "." in operator and operator.split(".")[0] not in _OF_TORCH and "(" not in operator:
        return "custom operator"
    return next((name for name, pattern in _BY_NAME.items() if re.match(pattern, operator)), MISSING)
