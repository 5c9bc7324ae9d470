"""Nodes left to eager, as people read them: by reason, of many the first, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rust_ort.export.partition import EagerNode

SHOWN = 3
"""Nodes of one reason that are shown one by one, and places of more."""
SHOWN_OPERATORS = 8
SHOWN_REASONS = 5


def by_reason(nodes: Iterable[EagerNode]) -> dict[str, list[EagerNode]]:
    """{reason: its nodes}, in the order of the first of each."""
    found: dict[str, list[EagerNode]] = {}
    for node in nodes:
        found.setdefault(node.reason, []).append(node)
    return found


def logged(nodes: Sequence[EagerNode]) -> str:
    """One line: each reason once, behind its first nodes."""
    reasons = by_reason(nodes)
    told = [
        f"{_some([f'{node.name} ({node.op})' for node in alike], SHOWN)}: {reason}"
        for reason, alike in list(reasons.items())[:SHOWN_REASONS]
    ]
    more = sum(map(len, reasons.values())) - sum(map(len, list(reasons.values())[:SHOWN_REASONS]))
    return "; ".join([*told, f"and {more} more"] if more else told)


def explained(nodes: Sequence[EagerNode]) -> list[str]:
    """Lines on the nodes of a graph: up to SHOWN of one reason each by itself, with its source and what its bodies
    hold; of more how many of each operator, and the places in the source."""
    lines = []
    for reason, alike in by_reason(node for node in nodes if not node.inside).items():
        inside = {node.name: [other for other in nodes if other.inside == node.name] for node in alike}
        if len(alike) <= SHOWN or any(inside.values()):
            for node in alike:
                lines += _alone(node, inside[node.name])
            continue
        lines.append(f"{len(alike)} nodes: {reason}")
        operators = _counted(node.op for node in alike)
        lines.append(f"  {_some(operators, SHOWN_OPERATORS, 'operators')}")
        if places := _places(node.source for node in alike if node.source):
            lines.append(f"  {_some(places, SHOWN, 'places')}")
    return lines


def _alone(node: EagerNode, inside: Sequence[EagerNode]) -> list[str]:
    lines = [f"{node.name} ({node.op}): {node.reason}"]
    if node.source:
        lines.append(f"  {node.source}")
    if inside:
        lines.append(f"  its bodies hold {len(inside)} nodes: {', '.join(_counted(other.op for other in inside))}")
    return lines


def _places(sources: Iterable[str]) -> list[str]:
    """ "file:line" of each, without its function; of the file of the one before the line alone."""
    places, last = [], ""
    for source in dict.fromkeys(source.partition(" in ")[0] for source in sources):
        file, _, line = source.rpartition(":")
        places.append(f":{line}" if file == last else source)
        last = file
    return places


def _counted(names: Iterable[str]) -> list[str]:
    """Each name behind its count, the most frequent first."""
    return [f"{count} {name}" if count > 1 else name for name, count in Counter(names).most_common()]


def _some(told: Sequence[str], shown: int, of: str = "") -> str:
    more = f" and {len(told) - shown} more {of}".rstrip() if len(told) > shown else ""
    return ", ".join(told[:shown]) + more
