"""Every operator that is not left to torch's decompositions and torchlib, and why: one family a file, one rule a place.

A rule is one line or one decorated function; tests/python/rule_cases.py has a case for each. Importing this loads
neither torch.onnx nor onnxscript. `PYTHONPATH=tests python -m measure.rules` prints them as a table.
"""

import importlib

from rust_ort.export.rules.registry import RULES, How, Rule, active, masked, why_eager, without

FAMILIES = (
    "activation", "attention", "comparison", "convolution", "creation", "distance", "division", "embedding", "experts",
    "fourier", "gamma", "indexing", "joining", "layers", "linear", "lists", "loss", "normalization", "pointwise",
    "pooling", "random", "reduction", "resize", "sampling", "scattering", "segments", "slicing", "strided", "summation",
)  # fmt: skip
for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")

__all__ = ["FAMILIES", "RULES", "How", "Rule", "active", "masked", "why_eager", "without"]
