"""What the Python tests of a run gave, and where the run's seconds went: build/times.json, and the slowest files.

Seconds of a file are those of its tests in all workers together, with what their fixtures took. A step of `make test`.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N_SHOWN = 10


@dataclass(kw_only=True)
class File:
    """A file of tests."""

    file: str
    tests: int = 0
    seconds: float = 0.0


def steps_in(text: str) -> list[dict[str, object]]:
    """[{stage, seconds}] of lines `name<tab>seconds`, in their order."""
    rows = (line.rpartition("\t") for line in text.splitlines())
    return [{"stage": name, "seconds": int(seconds)} for name, _, seconds in rows]


def files_in(cases: Iterable[ET.Element]) -> list[File]:
    """The slowest first."""
    files: dict[str, File] = defaultdict(lambda: File(file=""))
    for case in cases:
        name = case.get("classname", "").replace(".", "/") + ".py"
        files[name].file = name
        files[name].tests += 1
        files[name].seconds += float(case.get("time", 0))
    for one in files.values():
        one.seconds = round(one.seconds, 1)
    return sorted(files.values(), key=lambda one: (-one.seconds, one.file))


def counts(cases: list[ET.Element]) -> list[str]:
    """Lines that tell how many passed, and which failed and why."""
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = [(case, what) for case in cases for what in (*case.findall("failure"), *case.findall("error"))]
    passed = len(cases) - skipped - len({case for case, _ in failed})
    return [
        f"Python: {passed} passed, {len(failed)} failed, {skipped} skipped",
        *(
            f"    FAILED {case.get('classname')}::{case.get('name')}: {what.get('message', '')[:300]}"
            for case, what in failed
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junit", type=Path, default=ROOT / "build/python-tests.xml", help="what pytest wrote")
    parser.add_argument("--steps", type=Path, required=True, help="lines of a stage's name, a tab, its seconds")
    parser.add_argument("--seconds", type=int, required=True, help="of the whole run")
    parser.add_argument("--output", type=Path, default=ROOT / "build/times.json")
    arguments = parser.parse_args()
    there = arguments.junit.exists() and arguments.junit.stat().st_size
    cases = [*ET.parse(arguments.junit).getroot().iter("testcase")] if there else []
    files = files_in(cases)
    told = {
        "seconds": arguments.seconds,
        "stages": steps_in(arguments.steps.read_text()),
        "files": [asdict(one) for one in files],
    }
    arguments.output.write_text(json.dumps(told, indent=1) + "\n")
    if not cases:
        print("Python: no result (see above)")
        return 1
    print("\n".join(counts(cases)))
    print(f"Slowest files, seconds of all workers together (every stage and file: {arguments.output}):")
    for one in files[:N_SHOWN]:
        print(f"    {one.seconds:6.1f} s  {one.tests:3d} tests  {one.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
