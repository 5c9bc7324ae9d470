"""What the daemon is told of graphs, parts and dumps, and the verdicts it gives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rust_ort.errors import ClientError
from rust_ort.link import wire
from rust_ort.memory.layout import ONNX_CODE
from rust_ort.options import Options, Tolerance
from rust_ort.tables import NOISE_FACTOR, VERDICT_KINDS

CUDA = "CUDAExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """An output's tensor. stride: None for row-major, else the strides that eager gives. device: number of the CUDA
    device that it lies on; None: the host."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    device: int | None = None


@dataclass(kw_only=True)
class GraphSpec:
    """One AOT graph, as RegisterGraph sends it. direction: "forward", "backward" or "inference"."""

    graph_id: str
    name: str
    direction: str
    dynamo_text: str = ""
    joint_text: str = ""
    fx_text: str = ""
    parts_json: str = ""
    watched: object = field(default=None, init=False, repr=False, compare=False)
    """By whoever tells the daemon when it is gone."""


@dataclass(frozen=True, kw_only=True)
class CustomOpLibrary:
    """A shared library of custom operators, as it was when a graph was compiled for it."""

    path: str
    len_bytes: int
    modified_ns: int

    @staticmethod
    def at(path: str) -> CustomOpLibrary:
        """Errors: ClientError when it cannot be looked at."""
        try:
            found = os.stat(path)
        except OSError as error:
            raise ClientError(f"custom operator library {path}: {error.strerror}", code="BAD_OPTION") from error
        return CustomOpLibrary(path=path, len_bytes=found.st_size, modified_ns=found.st_mtime_ns)


@dataclass(kw_only=True)
class PartSpec:
    """One model of a graph, as PreparePart sends it, and the tensors it gives.

    outputs: one spec an output, or a function of the inputs of a call (SymInts are plain ints) that returns them.
    may_freeze: positions of the inputs that are constants of the session where they are parameters or buffers.
    device: number of the CUDA device that it runs on; None: the host. beside_cuda: whether values of its graph are
    on one, whoever computes them.
    """

    graph: GraphSpec
    part: int
    model: bytes
    provenance_json: str = "{}"
    fx_values: dict[str, str] = field(default_factory=dict)
    named_values: list[str] = field(default_factory=list)
    input_names: list[str]
    output_names: list[str]
    outputs: list[OutputSpec] | Callable[[Sequence[object]], list[OutputSpec]]
    custom_op_libraries: list[CustomOpLibrary] = field(default_factory=list)
    may_freeze: list[int] = field(default_factory=list)
    device: int | None = None
    beside_cuda: bool = False


def providers(
    options: Options, device: int | None, *, beside_cuda: bool = False
) -> tuple[tuple[str, dict[str, str]], ...]:
    """Execution providers of a part on this CUDA device (None: the host), each with the options asked for: those that
    were asked for, else the device's; none: the CPU's. What sessions have beside them, the daemon adds. beside_cuda:
    other parts of its graph run on CUDA, so that what is on the host was left there, and CUDA is not asked to fetch
    it."""
    asked = options.providers or ((CUDA, {}),) * (device is not None)
    if beside_cuda and device is None:
        asked = tuple(one for one in asked if one[0] != CUDA)
    return asked


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a comparison found. kind: "match", "noise", "tie", "open_order", "mismatch", "not_compared" or "failed".
    noise: how far both are from float64, where that is known; its kind is "noise", "candidate_worse",
    "reference_worse" or "ill_conditioned".
    is_torchs_own: torch.compile itself differs from eager here, as its backend aot_eager shows."""

    name: str
    kind: str
    reason: str
    metrics: dict[str, Any] | None
    max_abs: float
    max_rel_to_max: float
    outside: int
    noise: dict[str, Any] | None = None
    is_torchs_own: bool = False

    @property
    def is_pass(self) -> bool:
        """The candidate is as right as eager: inside tolerance, or outside it by no more than float64 explains, by a
        choice between equals, or by an order that is open."""
        return VERDICT_KINDS[self.kind]

    @property
    def is_worse(self) -> bool:
        """The candidate is known to be further from float64 than eager, by more than noise."""
        return self.noise is not None and self.noise["kind"] == "candidate_worse"

    @property
    def is_measured(self) -> bool:
        """There was a pair."""
        return self.is_pass or self.kind == "mismatch"


def not_compared(name: str, reason: str) -> Verdict:
    """The verdict where there is nothing to compare."""
    return Verdict(
        name=name, kind="not_compared", reason=reason, metrics=None, max_abs=0.0, max_rel_to_max=0.0, outside=0
    )


@dataclass(frozen=True, kw_only=True)
class DumpSpec:
    """An open dump, as it is opened again after a loss."""

    folder: str
    run: str
    calls: str
    run_json: str


def verdicts_from(comparison: Any) -> list[Verdict]:
    """The verdicts of a Comparison message."""
    return [verdict_from(entry) for entry in comparison.verdicts]


def verdict_from(entry: Any) -> Verdict:
    """The verdict of a TensorVerdict message."""
    return Verdict(
        name=entry.name,
        kind=wire.VERDICT_KINDS.get(entry.verdict, "failed"),
        reason=entry.reason,
        metrics=json.loads(entry.metrics_json) if entry.metrics_json else None,
        max_abs=entry.max_abs,
        max_rel_to_max=entry.max_rel_to_max,
        outside=entry.outside,
        noise=json.loads(entry.noise_json) if entry.noise_json else None,
    )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far rounding moves a value: errors against float64 with every operation off by up to one step."""

    largest: float
    rms: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """By what values are judged. given: the tolerance that was asked for; None: by each tensor's dtype. through: the
    half-precision type that floats were computed through, whatever their own. noise_factor: how much further from
    float64 than eager a candidate may be and be called noise."""

    given: Tolerance | None = None
    through: torch.dtype | None = None
    noise_factor: float = NOISE_FACTOR

    @property
    def is_half(self) -> bool:
        """Whether floats went through half precision: then what sums add up explains nothing where float64 is known."""
        return self.through is not None

    def set(self, message: Any) -> None:
        """Fills `tolerance` and `through` of a message, and `noise` where it has one."""
        if self.given is not None:
            message.tolerance.SetInParent()
            for name in ("atol", "rtol", "scale", "equal_nan"):
                setattr(message.tolerance, name, getattr(self.given, name))
        if self.through is not None:
            message.through = ONNX_CODE[self.through]
        if "noise" in message.DESCRIPTOR.fields_by_name:
            message.noise.factor = self.noise_factor


BY_DTYPE = Policy()
