"""Llama on the device: the study of two exporters in each precision, pure half precision, and the main job."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

import rust_ort
from rust_ort.studies import llama as two_exporters
from rust_ort.studies import llama_models
from rust_ort.studies import main_job as whole_job
from rust_ort.studies.gpu.calls import exact_products, named_in_eager
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Numbers, Record
from rust_ort.studies.main_job import MATCH, PARTS, worst_of

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SIZE = "small"
LEAST_S = 4.0
"""With less time a run of the study is not begun."""


def llama(precision: str, record: Record, device: str) -> None:
    """A row for each part, of a rehearsal for attention alone: under autocast, forward and backward; all in half
    precision; then forward alone."""
    exact_products()
    parts = PARTS if device == "cuda" else PARTS[:1]
    dtype = precision if precision in HALVES else None
    within = f"autocast to {precision}" if dtype else precision
    for part in parts:
        record.row(f"{part}, {within}, {_ways(1)}", partial(exported, part, dtype, 1, device), least_s=LEAST_S)
    for part in parts if dtype else ():
        record.row(f"{part}, all in {precision}, {_ways(1)}", partial(pure, part, HALVES[precision], device))
    for part in parts:
        record.row(f"{part}, {within}, {_ways(0)}", partial(exported, part, dtype, 0, device), least_s=LEAST_S)


def _ways(backward: int) -> str:
    return "forward and backward" if backward else "forward"


def need_transformers() -> None:
    """Errors: MissingHere."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingHere("transformers is not installed in this Python")


def exported(part: str, dtype: str | None, backward: int, device: str, numbers: Numbers) -> None:
    """One run of the study. Errors: CheckFailed where a row differs, nothing was compared, or eager ran a node;
    MissingHere."""
    need_transformers()
    before = rust_ort.graphs()
    with tempfile.TemporaryDirectory(prefix="rust-ort-llama.") as folder:
        words = ["--part", part, "--backward", str(backward), "--cuda", str(int(device == "cuda")), "--size", SIZE]
        words += ["--mixed", "1", "--dtype", dtype] if dtype else []
        rows = list(two_exporters.run(two_exporters.parse([*words, "--folder", folder])))
    verdicts = [verdict for row in rows for verdict in row.verdicts]
    compared = [verdict for verdict in verdicts if verdict.kind in ("match", "mismatch")]
    numbers["tensors"] = len(compared)
    numbers["max|Δ|/max|r|"] = worst_of([verdict.max_rel_to_max for verdict in compared])
    left_out = [row for row in rows if row.left_out and not row.stand_in]
    if left_out:
        numbers["left out"] = "; ".join(row.what for row in left_out)
    wrong = [f"{row.what}: {row.worst}" for row in rows if row.verdicts and row.code != MATCH]
    wrong += [f"{row.what}: {row.left_out}" for row in left_out if "alone vs compiled" in row.what]
    wrong += filter(None, [named_in_eager([graph for graph in rust_ort.graphs() if graph not in before])])
    if wrong or not compared:
        raise CheckFailed("; ".join(wrong) or "nothing was compared")


def pure(part: str, dtype: torch.dtype, device: str, numbers: Numbers) -> None:
    """Parameters and inputs of that dtype, against eager. Errors: CheckFailed; MissingHere."""
    need_transformers()
    study = llama_models.build(part, llama_models.SIZES[SIZE], attention="sdpa", device=device)
    report = rust_ort.compare(study.module.to(dtype), *(narrowed(value, dtype) for value in study.inputs))
    compared = [verdict for verdict in report.verdicts if verdict.kind in ("match", "mismatch")]
    numbers["tensors"] = len(compared)
    numbers["max|Δ|/max|r|"] = worst_of([verdict.max_rel_to_max for verdict in compared])
    if not report.ok:
        wrong = [verdict for verdict in [*report.verdicts, *report.missing] if verdict.kind != "match"]
        raise CheckFailed("; ".join(f"{verdict.name}: {verdict.reason or verdict.kind}" for verdict in wrong))
    if named := named_in_eager(report.graphs):
        raise CheckFailed(named)


def narrowed(value: Tensor, dtype: torch.dtype) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def main_job(record: Record, device: str) -> None:
    """A row for the whole job."""
    record.row("Llama's attention, decoder and model", partial(whole, device))


def whole(device: str, numbers: Numbers) -> None:
    """Errors: CheckFailed with all that is wrong; MissingHere."""
    need_transformers()
    with tempfile.TemporaryDirectory(prefix="rust-ort-job.") as folder:
        code, text = captured(whole_job.main, ["--device", device, "--size", SIZE, "--folder", folder])
    print(text)
    share = next((line for line in text.splitlines() if line.startswith("Nodes run")), None)
    if share:
        numbers["nodes"] = share.partition(": ")[2]
    if code:
        wrong = [line.removeprefix("WRONG: ") for line in text.splitlines() if line.startswith("WRONG: ")]
        raise CheckFailed("; ".join(wrong) or f"exit code {code}; the log says how far it went")


def captured(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> tuple[int, str]:
    """(exit code, what it printed)."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(argv)
    return code, said.getvalue()
