"""Who is to blame, what to keep in float32, and what the command line says of the dumps: a language model as its class
makes it, on the device."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rust_ort
from rust_ort.link.daemon import find_binary
from rust_ort.studies.gpu.calls import exact_products
from rust_ort.studies.gpu.models import need_transformers
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Numbers, Record, short
from rust_ort.studies.llama_models import Size, language_model

SIZES = {
    "cuda": Size(hidden=512, heads=8, intermediate=2000, vocabulary=4000, layers=2, sequence=128),
    "cpu": Size(hidden=64, heads=4, intermediate=96, vocabulary=128, layers=1, sequence=32),
}
DTYPE = torch.bfloat16
COMMANDS = ("sbs", "blame")
COMMAND_S = 120
PLANTED = torch.ops.aten.rsqrt.default


def run(record: Record, device: str) -> None:
    """The model under autocast to bfloat16, forward and backward."""
    exact_products()
    with tempfile.TemporaryDirectory(prefix="rust-ort-blame.") as folder:
        dumped = Path(folder) / "clean"
        record.row("blame of what is right", partial(nobody, dumped, device))
        record.row("rust-ort replay of its dump", partial(replayed, dumped / "blame"))
        for command in COMMANDS:
            record.row(f"rust-ort {command} of its dump", partial(by_command_line, command, dumped / "blame"))
        record.row("blame of a planted fault", partial(somebody, Path(folder) / "planted", device))
        record.row("keep_in_float32", partial(kept, device))


def blamed(folder: Path, device: str, options: dict[str, Any], numbers: Numbers) -> rust_ort.Blame:
    """Errors: CheckFailed where it was not examined whole."""
    need_transformers()
    torch.compiler.reset()
    model, tokens = language_model(SIZES[device], device=device)
    found = rust_ort.blame(
        model, input_ids=tokens, labels=tokens, autocast=DTYPE, folder=folder, budget=COMMAND_S, options=options
    )
    numbers |= {"parts": len(found.answers), "values dumped": len([*folder.glob("**/values_*/*.pb")])}
    if not found.complete:
        raise CheckFailed(f"not all was examined: {found.text}")
    return found


def nobody(folder: Path, device: str, numbers: Numbers) -> None:
    """Errors: CheckFailed where somebody is blamed, or values differ; MissingHere."""
    found = blamed(folder, device, {}, numbers)
    numbers["nodes examined"] = len(found.nodes)
    if found.culprit is not None:
        raise CheckFailed(f"{found.culprit} is blamed, and nothing is wrong")
    if not found.report.ok:
        raise CheckFailed(short(str(found.report)))


def somebody(folder: Path, device: str, numbers: Numbers) -> None:
    """A translation that is wrong by 5 % is found. Errors: CheckFailed; MissingHere."""
    found = blamed(folder, device, {"custom_translations": {PLANTED: wrong_rsqrt}}, numbers)
    numbers["blamed"] = str(found.culprit)
    if found.culprit is None or "rsqrt" not in str(found.culprit.get("name")):
        raise CheckFailed(f"{found.culprit} is blamed; {PLANTED} is wrong")


def wrong_rsqrt(self: Any) -> Any:
    """1.05 / √x in ONNX."""
    from onnxscript import opset18 as op

    return op.Div(op.CastLike(1.05, self), op.Sqrt(self))


def by_command_line(command: str, run: Path, numbers: Numbers) -> None:
    """The last line that it says. Errors: CheckFailed where its exit code is not 0; MissingHere without a dump."""
    code, text = said(run, [command])
    lines = text.strip().splitlines()
    numbers["said"] = short(lines[-1]) if lines else "nothing"
    if code:
        raise CheckFailed(f"exit code {code}; the log has all that it said")


def replayed(run: Path, numbers: Numbers) -> None:
    """What the dumped parts give now is what they gave then. Against eager they are judged, too, each output by its own
    dtype: what drifts in half precision may be beyond that. Errors: CheckFailed; MissingHere without a dump."""
    code, text = said(run, ["replay", "--json"])
    if code not in (0, 1):
        raise CheckFailed(f"exit code {code}; the log has all that it said")
    told = json.loads(text)
    then = [actual for data_set in told["data_sets"] for actual in data_set["actuals"]]
    numbers["same bits as then"] = f"{sum(actual['same_bits'] for actual in then)} of {len(then)} outputs"
    numbers["against eager"] = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in told["summary"].items() if n)
    wrong = [actual["verdict"]["name"] for actual in then if actual["verdict"]["verdict"]["kind"] != "match"]
    if wrong or not then or told["summary"]["failed"]:
        raise CheckFailed(f"differs from what it gave then: {', '.join(wrong) or 'nothing was compared'}")


def said(run: Path, words: Sequence[str]) -> tuple[int, str]:
    """(exit code, what rust-ort prints) of a command for a run. Errors: MissingHere without one."""
    if not run.is_dir():
        raise MissingHere("there is no dump: see the row of blame")
    done = subprocess.run(
        [find_binary(), *words, str(run)], capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    print(*words, done.stdout, done.stderr, flush=True)
    return done.returncode, done.stdout


def kept(device: str, numbers: Numbers) -> None:
    """Errors: CheckFailed where the search did not end; MissingHere."""
    need_transformers()
    torch.compiler.reset()
    model, tokens = language_model(SIZES[device], device=device)
    found = rust_ort.keep_in_float32(model, input_ids=tokens, labels=tokens, autocast=DTYPE, budget=COMMAND_S / 2)
    numbers |= {"outputs": len(found.outputs), "rules": sum(map(len, found.rules.values())), "verified": found.verified}
    if not found.outputs:
        raise CheckFailed("no output of a graph was examined")
    if not found.complete:
        raise CheckFailed(f"the search did not end: {found.text}")
