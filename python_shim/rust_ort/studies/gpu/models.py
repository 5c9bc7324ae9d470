"""Llama on the device: the study of two exporters in each precision, pure half precision, and the main job."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import rust_ort
from rust_ort.studies import llama as two_exporters
from rust_ort.studies import llama_models
from rust_ort.studies import main_job as whole_job
from rust_ort.studies.gpu.calls import exact_products
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Record
from rust_ort.studies.main_job import MATCH, PARTS, worst_of

AUTOCAST = {"float32": None, "autocast to float16": "float16", "autocast to bfloat16": "bfloat16"}
PURE = (torch.float16, torch.bfloat16)
SIZE = "small"


def llama(record: Record, device: str) -> None:
    """A row for each part, precision, and forward or both."""
    exact_products()
    for backward in (1, 0):
        for precision, dtype in AUTOCAST.items():
            for part in PARTS:
                with record.row(f"{part}, {precision}, {_ways(backward)}") as numbers:
                    need_transformers()
                    exported(part, dtype, backward, device, numbers)
    for half in PURE:
        for part in PARTS:
            name = str(half).removeprefix("torch.")
            with record.row(f"{part}, all in {name}, {_ways(1)}") as numbers:
                need_transformers()
                pure(part, half, device, numbers)


def _ways(backward: int) -> str:
    return "forward and backward" if backward else "forward"


def need_transformers() -> None:
    """Errors: MissingHere."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingHere("transformers is not installed in this Python")


def exported(part: str, dtype: str | None, backward: int, device: str, numbers: dict[str, Any]) -> None:
    """One run of the study. Errors: CheckFailed where a row differs or nothing was compared."""
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
    if wrong or not compared:
        raise CheckFailed("; ".join(wrong) or "nothing was compared")


def pure(part: str, dtype: torch.dtype, device: str, numbers: dict[str, Any]) -> None:
    """Parameters and inputs of that dtype, against eager. Errors: CheckFailed."""
    study = llama_models.build(part, llama_models.SIZES[SIZE], attention="sdpa", device=device)
    report = rust_ort.compare(study.module.to(dtype), *(narrowed(value, dtype) for value in study.inputs))
    compared = [verdict for verdict in report.verdicts if verdict.kind in ("match", "mismatch")]
    numbers["tensors"] = len(compared)
    numbers["max|Δ|/max|r|"] = worst_of([verdict.max_rel_to_max for verdict in compared])
    if not report.ok:
        wrong = [verdict for verdict in [*report.verdicts, *report.missing] if verdict.kind != "match"]
        raise CheckFailed("; ".join(f"{verdict.name}: {verdict.reason or verdict.kind}" for verdict in wrong))


def narrowed(value: Tensor, dtype: torch.dtype) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def main_job(record: Record, device: str) -> None:
    """A row for the whole job."""
    with record.row("Llama's attention, decoder and model") as numbers:
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
