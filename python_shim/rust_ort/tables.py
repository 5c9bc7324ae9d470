"""Tables that the program has, for all of the package: each is said once, in Rust."""

from __future__ import annotations

from rust_ort import _native

NOISE_FACTOR: float = _native.NOISE_FACTOR
"""How much further from float64 than eager a candidate may be and be called noise, unless told otherwise."""

ROUNDINGS: float = _native.ROUNDINGS
"""Roundings of Σ|terms| that an opinion in float64 grants a sum."""

PASSES = tuple(_native.passes())
"""Passes over a model, in the order in which they run."""

VERDICT_KINDS = dict(_native.verdict_kinds())
"""{kind of verdict: whether it is a pass}, in the order in which counts are told."""

ADDING_OPERATORS = frozenset(_native.adding_operators())
"""ONNX operators that add up what they are given, or move it."""

WRONG_OPTIMIZERS = tuple(_native.wrong_optimizers())
"""Graph optimizers of onnxruntime 1.31.1 that give wrong values (docs/design/known-wrong-upstream.md)."""
