"""Models as their class makes them, under every tool: nothing raises, nobody is accused, nothing is said two ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from measure import front_door

pytestmark = pytest.mark.usefixtures("daemon")

OPEN: dict[str, dict[str, tuple[str, ...]]] = {}
"""{family: {precision: tools of which something is known to be wrong}}. What is mended has to leave it. That a tool
does not answer, or blames somebody, is never open."""


@pytest.mark.parametrize("family", front_door.FAMILIES)
def test_a_model_as_its_class_makes_it_meets_every_tool(family: str, tmp_path: Path) -> None:
    examinations = front_door.examine(front_door.FAMILIES[family], tmp_path)
    known = {(precision, tool) for precision, tools in OPEN.get(family, {}).items() for tool in tools}
    faults = [fault for seen in examinations for fault in seen.faults]
    new = [str(fault) for fault in faults if fault.is_grave or (fault.precision, fault.tool) not in known]
    assert not new, "\n".join(new)
    gone = known - {(fault.precision, fault.tool) for fault in faults}
    assert not gone, f"no longer wrong, so no longer open: {sorted(gone)}"
    for seen in examinations:
        assert seen.n_values > 10 and seen.n_nodes > 100, seen


def test_what_turns_the_cache_off_says_what_runs_with_it() -> None:
    """Users have it on: a test runs with it, too, as "as it is", or the file names this guard."""
    root = Path(__file__).parents[2]
    off = re.compile(r"""use_cache\W+False""")
    files = [path for folder in ("tests", "python_shim") for path in (root / folder).rglob("*.py")]
    found = {path: text for path in files if off.search(text := path.read_text())}
    assert len(found) > 3
    silent = [path.name for path, text in found.items() if "as it is" not in text and "front_door" not in text]
    assert not silent, silent
