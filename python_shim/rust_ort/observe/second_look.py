"""What is outside tolerance is looked at once more before it is called wrong: what it adds up, and its float64."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from rust_ort.export.partition import may_do_more
from rust_ort.link.specs import Spread, Verdict
from rust_ort.observe.reference import generators, rng_kept, run_reference, set_generators
from rust_ort.observe.spread import spreads
from rust_ort.observe.sums import Sums
from rust_ort.observe.wide import in_wide

log = logging.getLogger("rust_ort")

LOOKS_INSIDE_SECONDS = 4.0
"""What eager may take of a call whose nodes are compared, too, because an output differs and nothing tells why: nodes
take some 15 times as long."""
LEAST_SECONDS = 60.0
TIMES_EAGER = 50.0
"""How long the run in float64 may take: so many times as long as eager, and LEAST_SECONDS at least."""

Known = Mapping[str, Tensor | None]
Look = Callable[[Collection[str], Known, Known], Iterable[Verdict]]
"""(names, terms by name, float64 by name) -> verdicts on these values."""


def looked_at_again(
    verdicts: Sequence[Verdict], look: Look, terms: Callable[[], Known], float64: Callable[[], Known] | None, *,
    half: bool,
) -> list[Verdict]:  # fmt: skip
    """The verdicts, those outside tolerance judged again: by what they add up, then by float64. Each is computed only
    where a mismatch is left. float64: None where a node is known to be wrong, so that nothing is put down to noise.

    half: values went through half precision. There each of many terms is rounded, which by their sum explains a value
    of the wrong sign: float64 comes first, and what adds up counts only where that is not known."""
    known: list[Known] = [{}, {}]
    order = [(1, float64), (0, terms)] if half else [(0, terms), (1, float64)]
    for place, find in order:
        if find is None:
            break
        wrong = [verdict.name for verdict in verdicts if verdict.kind == "mismatch"]
        if half and place == 0:
            wrong = [name for name in wrong if known[1].get(name) is None]
        if not wrong:
            break
        known[place] = find()
        wrong = [name for name in wrong if known[place].get(name) is not None]
        judged = {verdict.name: verdict for verdict in look(wrong, *known)} if wrong else {}
        verdicts = [judged.get(verdict.name, verdict) for verdict in verdicts]
    return list(verdicts)


class SecondLook:
    """A call of an AOT graph whose values may be looked at again. inputs: those of the call, before it ran; names: FX
    names of what may be asked for; seconds: what its run in eager took."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], names: Collection[str], seconds: float) -> None:
        self._module, self._inputs, self._names, self.seconds = module, inputs, names, seconds
        self._drawn = generators()
        self._versions = list(map(_version, inputs))
        self._float64: dict[str, Tensor | None] = {}

    def float64(self, references: Mapping[str, Any]) -> Known:
        """{FX name: the same computation in float64}, of values whose float64 is known; computed once for each.
        references: what eager gave, of the part that asks. Nothing where the graph holds what may not run twice, such
        as a collective that other ranks would have to join, or where the call has written into its inputs since."""
        asked = {name: value for name, value in references.items() if name not in self._float64}
        if asked:
            runs_once = any(may_do_more(self._module, node) for node in self._module.graph.nodes)
            found: Known = {}
            if not runs_once and self._versions == list(map(_version, self._inputs)):
                found = in_wide(self._run, expected=asked, seconds=seconds_for(self.seconds))
            self._float64 |= {name: found.get(name) for name in asked}
        return self._float64

    def spreads(self, wrong: Mapping[str, Verdict], references: Mapping[str, Any]) -> dict[str, Spread]:
        """{FX name: how far rounding moves it}, of these where that is known. wrong: {FX name: its verdict}."""
        known = self.float64(references)
        return spreads(wrong, self._run, known, seconds=seconds_for(self.seconds))

    def _run(self) -> dict[str, Any]:
        with rng_kept():
            set_generators(self._drawn)
            return run_reference(self._module, self._inputs, capture=self._names)[1]


def _version(value: Any) -> int | None:
    """How often a tensor was written into; None of what does not count."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def seconds_for(eager: float) -> float:
    """How long float64 may take of what took so many seconds in eager."""
    return max(LEAST_SECONDS, TIMES_EAGER * eager)


def terms_of(run: Callable[[], Mapping[str, Any]]) -> Known:
    """{name: Σ|terms| of each element}, of the values of an eager run that are sums; {} where it cannot be told."""
    try:
        with Sums() as sums:
            return {name: sums.of(value) for name, value in run().items()}
    except Exception as error:  # what runs in eager need not run under a dispatch mode
        log.debug("what the model's sums add up is not known: %s", error)
        return {}
