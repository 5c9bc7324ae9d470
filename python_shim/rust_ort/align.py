"""Two ONNX models run on the same feeds, their values beside each other in the order of execution."""

from __future__ import annotations

import numbers
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rust_ort._callable import make_callable
from rust_ort.errors import ClientError
from rust_ort.link.program import said_by
from rust_ort.memory.layout import ONNX_CODE
from rust_ort.options.arguments import checked_terms, shown

__all__ = ["Alignment", "align"]

Model: TypeAlias = Any
"""An `onnx.ModelProto`, or the path of a .onnx file or of a folder with a model.onnx in it."""

Feeds: TypeAlias = Any
"""{input: tensor or NumPy array}, or a path as `rust-ort align --feeds` takes it."""


_FEEDS = ("feeds1", "feeds2")


@dataclass(frozen=True, kw_only=True, repr=False)
class Alignment:
    """What `rust_ort.align` found; printed, the rows that tell most. rows: each {"row", "symbol", "first", "second",
    "distance", "max_abs", "max_rel_to_max", "verdict", "reason", "transposed", "counterparts"}, as `rust-ort align
    --json` prints them; a side is None or {"kind", "dtype", "shape", "signature", "op_type", "name", "of"}, of: what it
    is by the provenance of a dump's part; transposed: the axes with which the two are equal, else None; counterparts:
    rows of the values that the verdict is about, where they stand elsewhere, else None; numbers that are not finite are
    "inf" and "nan", which `float` reads. summary: rows and verdicts counted. outputs: {"all", "matched", "mismatch",
    "empty", "alone", "of_two_types", "of_nan", "in_order", "worst"}, worst: a row's number. models: of each its path
    ("model1" for a ModelProto), feeds, notes on how they were matched, and where it ended ("error", else None). text:
    every row for people. brief: what the command prints."""

    rows: list[dict[str, Any]]
    summary: dict[str, int]
    outputs: dict[str, Any]
    models: list[dict[str, Any]]
    feeds: str
    text: str
    brief: str

    @property
    def differing(self) -> list[dict[str, Any]]:
        """Rows that are not `=`, or whose value is outside tolerance of its counterpart, in the order of execution."""
        return [row for row in self.rows if row["symbol"] != "=" or row["verdict"] == "mismatch"]

    @property
    def errors(self) -> list[str]:
        """Why a model did not run to its end; empty where both did."""
        return [model["trace"]["error"] for model in self.models if model["trace"]["error"] is not None]

    def __str__(self) -> str:
        return self.brief

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={number}" for name, number in self.summary.items() if number)
        matched, outputs = self.outputs["matched"], self.outputs["all"]
        failed = f", {len(self.errors)} models did not run to their end" if self.errors else ""
        return f"<Alignment: {counts}; {matched} of {outputs} outputs match{failed}>"


def align(
    model1: Model,
    model2: Model,
    *,
    feeds: Feeds | tuple[Feeds, Feeds] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    tolerance: Mapping[str, float] | None = None,
    providers: Sequence[str] = (),
    custom_op_libraries: tuple[str | os.PathLike[str], ...] = (),
) -> Alignment:
    """Runs two ONNX models on the same feeds, every value an output and nothing optimized, and aligns the two lists:
    inputs and outputs by name, then content, then type, the rest by edit distance over kind, dtype, shape, four letters
    of the content and operator. A value whose row has another beside it is judged against its counterpart, wherever it
    is.

    model1, model2: reference and candidate, see `Model`. feeds: for both models, or a pair; matched to inputs by name
    (of a dump's part also by what its provenance calls them), else by dtype and shape, in their order (the notes of
    `Alignment.models` say which); by default made up from the inputs' types and shapes. sizes: {named dimension:
    number} and seed: of feeds that are made up. tolerance: {"atol", "rtol", "scale"} of values, by default that of each
    dtype. providers: names, the preferred one first, by default the CPU's. custom_op_libraries: paths; nothing that a
    model names is loaded.

    Returns an Alignment: print it. A model that ends in an error is aligned up to there.

    Errors: ClientError for a model, a feed or an argument that does not fit; DaemonFault when the program fails.
    """
    terms = checked_terms("align", tolerance)
    pair = feeds if isinstance(feeds, tuple) else (feeds,)
    if len(pair) not in (1, 2):
        raise ClientError(f"align feeds: expected one or a pair, got {len(pair)}", code="BAD_ARGUMENT")
    if feeds is not None and sizes:
        raise ClientError("align: expected feeds or sizes, got both", code="BAD_ARGUMENT")
    asked = [f"--{name}={value}" for name, value in terms.items() if value is not None]
    asked += [f"--size={name}={_count('sizes', name, number)}" for name, number in (sizes or {}).items()]
    asked += [f"--provider={name}" for name in providers]
    asked += [f"--custom-op-library={os.fspath(path)}" for path in custom_op_libraries]
    asked += [f"--seed={_count('seed', None, seed)}"] if feeds is None else []
    with tempfile.TemporaryDirectory(prefix="rust-ort-align-") as made:
        folder = Path(made)
        places = {made + "/" + name: name.removesuffix(".onnx") for name in ("model1.onnx", "model2.onnx", *_FEEDS)}
        if feeds is not None:
            asked += [f"--feeds={_fed(given, folder / name)}" for name, given in zip(_FEEDS, pair, strict=False)]
        paths = [_path(model, folder / f"model{at}.onnx") for at, model in enumerate((model1, model2), 1)]
        said = said_by("align", [*asked, "--", *paths], also=(2,))
    renamed = {name: _renamed(said[name], places) for name in ("models", "feeds", "text", "brief")}
    return Alignment(rows=said["rows"], summary=said["summary"], outputs=said["outputs"], **renamed)


def _renamed(value: Any, places: Mapping[str, str]) -> Any:
    """Without the places of files that are gone."""
    if isinstance(value, dict):
        return {key: _renamed(inner, places) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, places) for inner in value]
    if isinstance(value, str) and "rust-ort-align-" in value:
        for place, name in places.items():
            value = value.replace(place, name)
    return value


def _count(argument: str, key: object, given: object) -> int:
    """Errors: ClientError for what is no integer of 0 or more that 64 bits hold."""
    if isinstance(given, numbers.Integral) and not isinstance(given, bool) and 0 <= int(given) < 1 << 64:
        return int(given)
    where = argument if key is None else f"{argument}[{key!r}]"
    raise ClientError(f"align {where}: expected an integer of 0 or more, got {shown(given)}", code="BAD_ARGUMENT")


def _path(model: Model, place: Path) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if not hasattr(model, "SerializeToString"):
        raise ClientError(f"align: expected a ModelProto or a path, got {shown(model)}", code="BAD_ARGUMENT")
    place.write_bytes(model.SerializeToString())
    return os.fspath(place)


def _fed(feeds: Feeds, place: Path) -> str:
    """A data set of ONNX's own test layout."""
    import onnx

    if isinstance(feeds, str | os.PathLike):
        return os.fspath(feeds)
    if not isinstance(feeds, Mapping):
        raise ClientError(f"align feeds: expected {{input: tensor}} or a path, got {shown(feeds)}", code="BAD_ARGUMENT")
    place.mkdir()
    for at, (name, value) in enumerate(feeds.items()):
        tensor = _tensor(name, value)
        proto = onnx.TensorProto(name=name, dims=tensor.shape, data_type=ONNX_CODE[tensor.dtype])
        proto.raw_data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        (place / f"input_{at}.pb").write_bytes(proto.SerializeToString())
    return os.fspath(place)


def _tensor(name: str, value: Any) -> Tensor:
    steps = getattr(value, "strides", None) or ()
    try:  # torch has no negative strides
        value = value.copy() if any(step < 0 for step in steps) else value
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ClientError(f"align feeds[{name!r}]: {error}", code="BAD_ARGUMENT") from error
    if tensor.dtype not in ONNX_CODE:
        raise ClientError(f"align feeds[{name!r}]: dtype {tensor.dtype} does not exist in ONNX", code="BAD_ARGUMENT")
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


make_callable(__name__, align)
