"""What the generator reaches: operators, dtypes, static or dynamic, view or contiguous, classes of values."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from measure.random_graphs import samples
from measure.random_graphs.check import Outcome
from measure.random_graphs.table import operators
from measure.random_graphs.values import CLASSES, DTYPES

Cell = tuple[str, bool, bool, str]
"""dtype, dynamic, view, class of values."""
NAMES = tuple(str(dtype).removeprefix("torch.") for dtype in DTYPES)


@dataclass(kw_only=True)
class Reach:
    """cells: of each operator, how many statements fell in each."""

    cells: dict[str, Counter[Cell]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, outcome: Outcome) -> None:
        dynamic, values = bool(outcome.features.get("dynamic")), str(outcome.features.get("values", "plain"))
        for operator, dtype, view in outcome.reached:
            self.cells[operator][dtype, dynamic, view, values] += 1

    def markdown(self) -> list[str]:
        """A table over all operators, and the holes: operators that no function had, and dtypes that one never had."""
        names = sorted({operator.name for family in operators().values() for operator in family})
        counts: Counter[tuple[str, str]] = Counter()
        for name in names:
            for dtype, dynamic, view, values in self.cells.get(name, ()):
                for column in ("dynamic" if dynamic else "static", "view" if view else "contiguous", values):
                    counts[dtype, column] += 1
        columns = ("static", "dynamic", "contiguous", "view", *CLASSES)
        reached = {(name, *cell) for name, cells in self.cells.items() for cell in cells}
        lines = [
            f"{len(names)} operators. A cell is an operator, the dtype of its first operand, whether sizes are static, "
            "whether an operand is a view that is not row-major, and the class of values. Cells reached: "
            f"{len(reached)}, {len(reached) / max(1, len(names)):.0f} an operator of {len(NAMES) * 4 * len(CLASSES)}. "
            "In a row, cells with this dtype.",
            "",
            f"| dtype | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for dtype in NAMES:
            lines.append(f"| {dtype} | {' | '.join(str(counts[dtype, column]) for column in columns)} |")
        leaves = {operator.name for operator in samples.leaves()}
        met = f"Beside the table, {len(leaves)} operators of OpInfo are drawn with its samples, and "
        lines += ["", met + f"{len(leaves & set(self.cells))} of them came up."]
        return [*lines, "", *self._holes(names)]

    def _holes(self, names: list[str]) -> list[str]:
        """Operators by what they never had."""
        never = [name for name in names if name not in self.cells]
        lines = ["Holes:", "", f"- never drawn: {_listed(never)}"]
        for what, position, wanted in (("static", 1, False), ("dynamic", 1, True), ("a view", 2, True)):
            lacking = [n for n in names if n in self.cells and not any(c[position] == wanted for c in self.cells[n])]
            lines.append(f"- never {what}: {_listed(lacking)}")
        by_dtypes: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name in names:
            if name in self.cells:
                had = {cell[0] for cell in self.cells[name]}
                by_dtypes[tuple(dtype for dtype in NAMES if dtype not in had)].append(name)
        for missing, found in sorted(by_dtypes.items(), key=lambda pair: (len(pair[0]), pair[0])):
            if missing:
                lines.append(f"- no {', '.join(missing)}: {_listed(found)}")
        return lines


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|") or "none"
