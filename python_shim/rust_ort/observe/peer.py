"""Whether torch.compile itself changes a value: torch's aot_eager runs the same capture without ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rust_ort.link.specs import Verdict
from rust_ort.observe.sides import Run, Runs, paired
from rust_ort.observe.verdicts import Pair
from rust_ort.torch_private import compiled_apart

VARIES = "eager itself gives another value, outside tolerance, when it runs once more"

log = logging.getLogger("rust_ort")

Compared = Callable[[list[Pair]], Iterable[Verdict]]
"""Verdicts on pairs of (reference, candidate)."""

PEER = "aot_eager"
TORCHS_OWN = (
    "torch.compile itself differs from eager here: its backend aot_eager, which runs no ONNX, gives what this backend "
    "gives"
)


def torchs_own(
    names: Iterable[str], reference: Run, candidate: Run, runs: Runs, compared: Compared
) -> frozenset[str]:  # fmt: skip
    """Those of `names` that aot_eager gives as the candidate does and not as eager does; none where the model does not
    run with aot_eager."""
    try:
        peer = runs.other(PEER, compiled_apart(runs.model, backend=PEER, region=None)[0])
    except Exception as error:
        log.info("the model does not run with %s, so that it is not known what torch.compile changes: %s", PEER, error)
        return frozenset()
    return alike(names, peer, candidate, compared) - alike(names, reference, peer, compared)


def alike(names: Iterable[str], reference: Run, candidate: Run, compared: Compared) -> frozenset[str]:
    """Those of `names` of which both runs have the same, nothing to compare, or what is inside tolerance."""
    entries = {name: paired(name, reference, candidate) for name in names}
    same = {name for name, entry in entries.items() if entry is None}
    same |= {name for name, entry in entries.items() if isinstance(entry, Verdict) and entry.kind == "not_compared"}
    measured = compared([entry for entry in entries.values() if isinstance(entry, tuple)])
    return frozenset(same | {verdict.name for verdict in measured if verdict.is_pass})
