"""Where the seconds of a run of the tests went."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import times

RUN = """<testsuites><testsuite>
<testcase classname="tests.python.test_a" name="one" time="1.5"/>
<testcase classname="tests.python.test_b" name="two" time="4.25"><skipped message="no"/></testcase>
<testcase classname="tests.python.test_a" name="three" time="2.0"><failure message="why">where</failure></testcase>
</testsuite></testsuites>"""


def run(folder: Path, junit: str | None, monkeypatch: pytest.MonkeyPatch) -> int:
    (folder / "steps").write_text("Rust tests\t380\nruff\t0\n")
    if junit is not None:
        (folder / "junit").write_text(junit)
    given = {"junit": folder / "junit", "steps": folder / "steps", "seconds": 900, "output": folder / "times.json"}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["times.py", *words])
    return times.main()


def test_stages_and_files_are_told_the_slowest_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, RUN, monkeypatch) == 0
    assert json.loads((tmp_path / "times.json").read_text()) == {
        "seconds": 900,
        "stages": [{"stage": "Rust tests", "seconds": 380}, {"stage": "ruff", "seconds": 0}],
        "files": [
            {"file": "tests/python/test_b.py", "tests": 1, "seconds": 4.2},
            {"file": "tests/python/test_a.py", "tests": 2, "seconds": 3.5},
        ],
    }
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["Python: 1 passed, 1 failed, 1 skipped", "    FAILED tests.python.test_a::three: why"]
    assert [line.split()[-1] for line in said[3:]] == ["tests/python/test_b.py", "tests/python/test_a.py"]


def test_a_run_without_a_result_is_a_failure_and_its_stages_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, None, monkeypatch) == 1
    assert capsys.readouterr().out == "Python: no result (see above)\n"
    assert len(json.loads((tmp_path / "times.json").read_text())["stages"]) == 2
