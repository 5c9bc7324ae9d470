"""Whether torch.compile itself changes a value: torch's aot_eager runs the same capture without ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rust_ort.link.specs import Verdict
from rust_ort.observe.sides import Run, Runs, paired
from rust_ort.observe.verdicts import Pair
from rust_ort.torch_private import compiled_apart

log = logging.getLogger("rust_ort")

PEER = "aot_eager"
TORCHS_OWN = (
    "torch.compile itself differs from eager here: its backend aot_eager, which runs no ONNX, gives what this backend "
    "gives"
)


def torchs_own(
    names: Iterable[str], candidate: Run, runs: Runs, compared: Callable[[list[Pair]], Iterable[Verdict]]
) -> frozenset[str]:
    """Those of `names` that aot_eager gives as the candidate does; none where the model does not run with aot_eager.
    compared: verdicts on pairs of (aot_eager, candidate)."""
    try:
        peer = runs.other(PEER, compiled_apart(runs.model, backend=PEER, region=None)[0])
    except Exception as error:  # whatever a model raises that keeps count of its calls; the verdicts stand
        log.info("the model does not run with %s, so that it is not known what torch.compile changes: %s", PEER, error)
        return frozenset()
    entries = {name: paired(name, peer, candidate) for name in names}
    same = {name for name, entry in entries.items() if entry is None}
    measured = compared([entry for entry in entries.values() if isinstance(entry, tuple)])
    return frozenset(same | {verdict.name for verdict in measured if verdict.is_pass})
