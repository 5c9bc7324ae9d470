"""Timings of curves → docs/results/bench-sequence.svg, bench-layers.svg, bench-clients.svg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure.bench import curves
from measure.bench.table import by_case
from measure.bench.timing import Timing

Line = list[tuple[int, float]]
COLORS = {"eager": "tab:gray", "inductor": "tab:orange", "rust_ort": "tab:blue"}
AXES = {
    "sequence": ("length of the sequence", "time / eager's"),
    "layers": ("layers", "time / eager's"),
    "clients": ("clients", "calls a second"),
}
"""{curve: (label of x, label of y)}."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """lines: {variant: its points, by x}."""

    title: str
    lines: dict[str, Line] = field(default_factory=dict)


def panels(timings: Sequence[Timing]) -> dict[str, list[Panel]]:
    """{curve: its panels} of those of the timings that are points of curves."""
    found: dict[str, dict[str, Panel]] = {}
    for case, row in by_case(timings).items():
        if (point := curves.parsed(case)) is None or "eager" not in row:
            continue
        curve, x, title = point
        panel = found.setdefault(curve, {}).setdefault(title, Panel(title=title))
        for variant, timing in row.items():
            # Throughput grows with clients; over sizes, times of several orders would hide what lies between variants.
            y = 1e6 / timing.us if curve == "clients" else timing.us / row["eager"].us
            panel.lines.setdefault(variant, []).append((x, y))
    return {curve: list(of.values()) for curve, of in found.items()}


def draw(timings: Sequence[Timing], folder: Path) -> list[str]:
    """Writes a file for each curve. Returns their names."""
    names = []
    for curve, of in panels(timings).items():
        names.append(f"bench-{curve}.svg")
        _figure(curve, of, folder / names[-1])
    return names


def _figure(curve: str, of: Sequence[Panel], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    x_label, y_label = AXES[curve]
    # The same numbers give the same file: no date, and ids that are not random.
    with matplotlib.rc_context({"svg.hashsalt": curve, "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.5 * len(of), 3.4), layout="constrained")
        all_axes: Any = figure.subplots(1, len(of), squeeze=False)[0]
        for axes, panel in zip(all_axes, of, strict=True):
            for variant, line in panel.lines.items():
                axes.plot(*zip(*line, strict=True), marker="o", label=variant, color=COLORS.get(variant))
            axes.set_xscale("log", base=2)
            xs = sorted({x for line in panel.lines.values() for x, _ in line})
            axes.set_xticks(xs, [str(x) for x in xs])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(bottom=0)
            axes.set(title=panel.title, xlabel=x_label, ylabel=y_label)
            axes.grid(alpha=0.3)
            axes.legend()
        figure.savefig(path, metadata={"Date": None})
