"""What the rules of `runtimes` made of the graphs that were compiled with them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rust_ort.options import Options

log = logging.getLogger("rust_ort")


@dataclass(kw_only=True)
class Division:
    """ONNX nodes of a graph's parts, constants not counted. nodes: {runtime: count}; rules: {rule: nodes that it
    decided over}; segments: sessions, of all parts. All empty without rules."""

    nodes: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    segments: int = 0

    @staticmethod
    def of(prepared: Iterable[Any], options: Options) -> Division:
        """Of the Prepared messages of a graph's parts."""
        if not options.runtimes:
            return Division()
        nodes: Counter[str] = Counter()
        rules: Counter[str] = Counter(dict.fromkeys(options.runtimes, 0))
        segments = 0
        for message in prepared:
            nodes.update({entry.runtime: entry.nodes for entry in message.runtime_nodes})
            rules.update(dict(zip(options.runtimes, message.rule_nodes, strict=True)))
            segments += message.segments
        return Division(nodes=dict(nodes), rules=dict(rules), segments=segments)

    def __str__(self) -> str:
        on = ", ".join(f"{count} on {runtime}" for runtime, count in self.nodes.items())
        return f"ONNX nodes: {on or 'none'}, in {self.segments} segments"


def total(divisions: Iterable[Division]) -> Division:
    """All of them together."""
    nodes: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    segments = 0
    for division in divisions:
        nodes.update(division.nodes)
        rules.update(division.rules)
        segments += division.segments
    return Division(nodes=dict(nodes), rules=dict(rules), segments=segments)


def rule_lines(division: Division) -> list[str]:
    """A line a rule."""
    counted = division.rules.items()
    return [f"  rule {rule!r}: {count or 'NO'} node{'s' if count != 1 else ''}" for rule, count in counted]


_Key = tuple[tuple[str, tuple[str, ...]], ...]
_taken: dict[_Key, Counter[str]] = {}
_warned: set[_Key] = set()
_lock = threading.Lock()


def _key(rules: Mapping[str, tuple[str, ...]]) -> _Key:
    return tuple(rules.items())


def note(division: Division, options: Options) -> None:
    """A graph was compiled."""
    with _lock:
        _taken.setdefault(_key(options.runtimes), Counter()).update(division.rules)


def warn_of_idle(options: Options) -> None:
    """A graph is called again: all graphs of the first step are compiled. Warns once of rules that decided over nothing
    in all of them."""
    key = _key(options.runtimes)
    with _lock:
        if not key or key in _warned or key not in _taken:
            return
        _warned.add(key)
        taken = _taken[key]
        left = [(rule, patterns) for rule, patterns in key if not taken[rule]]
    for rule, patterns in left:
        log.warning(
            "runtimes: the rule %r: %s decides over no node of any graph so far; a pattern (* and ?) is of an "
            "operator, a node's name, or an FX node's name, operator or module path; what several rules fit is the "
            "first's of ort, torch-f64, torch",
            rule,
            ", ".join(map(repr, patterns)) or "no pattern",
        )
