"""The drivers of `make matrix` and of the fresh install: which cells there are, how results are read and told."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))


def driver(name: str) -> Any:
    return sys.modules.get(name) or importlib.import_module(name)


def test_the_cells_span_what_is_declared() -> None:
    matrix = driver("matrix")
    declared = (ROOT / "python_shim/pyproject.toml").read_text()
    low, high = re.search(r'"torch>=([\d.]+),<([\d.]+)"', declared).groups()  # type: ignore[union-attr]
    assert matrix.TORCH[0].startswith(f"{low}.")
    last = int(matrix.TORCH[-1].split(".")[1])
    assert high == f"2.{last + 1}"
    made = matrix.cells()
    assert len(made) == len({cell.name for cell in made}) == 2 * len(matrix.TORCH) + 1
    runtimes = {cell.versions["onnxruntime"] for cell in made}
    assert runtimes == {driver("environments").tested()["onnxruntime"], driver("environments").lowest()["onnxruntime"]}


def test_every_dependency_is_at_its_lowest_once() -> None:
    (cell,) = (cell for cell in driver("matrix").cells() if cell.environment == "lowest")
    declared = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "python_shim/pyproject.toml").read_text(), re.M | re.S)
    assert declared is not None
    for name, version in re.findall(r'"([\w-]+)>=([\d.]+)', declared[1]):
        assert cell.versions[name].startswith(version)
    assert set(cell.versions) == set(driver("environments").SHOWN)


def test_the_slice_names_files() -> None:
    matrix = driver("matrix")
    assert all((ROOT / f"tests/python/test_{name}.py").exists() for name in matrix.SLICE)


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.python.test_a" name="fine"/>
<testcase classname="tests.python.test_a" name="wrong[1]">
<failure message="assert 1 == 2&#10; more">long</failure></testcase>
<testcase classname="tests.python.test_b" name="broken"><error message="no daemon"/></testcase>
<testcase classname="tests.python.test_b" name="left"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_each_failure_is_named(tmp_path: Path) -> None:
    environments = driver("environments")
    (tmp_path / "a.xml").write_text(JUNIT)
    made = environments.counts(tmp_path / "a.xml", 1, tmp_path / "a.log")
    assert str(made) == "1 passed, 2 failed, 1 skipped"
    assert made.failures == {"test_a::wrong[1]": "assert 1 == 2", "test_b::broken": "no daemon"}


def test_a_run_without_a_result_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("collecting\nSegmentation fault\n")
    made = driver("environments").counts(tmp_path / "a.xml", -11, tmp_path / "a.log")
    assert made.failed == 1 and made.passed == 0
    assert made.failures == {"the whole run": "exit code -11: Segmentation fault"}


def test_a_result_is_kept_as_soon_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, environments = driver("matrix"), driver("environments")
    monkeypatch.setattr(matrix, "STORE", tmp_path / "versions.json")
    monkeypatch.setattr(matrix, "REPORT", tmp_path / "versions.md")
    first, second = matrix.cells()[:2]
    wrong = environments.Counts(passed=5, failed=1, failures={"test_a::b": "assert x | y"})
    matrix.save(second, matrix.Result(versions=second.versions, main_job="matches", tests=wrong))
    matrix.save(first, matrix.Result(error="pip install: no\nsuch version"))
    known = matrix.load()
    assert list(known) == [first.name, second.name]
    assert not known[first.name]["green"] and not known[second.name]["green"]
    text = (tmp_path / "versions.md").read_text()
    assert f"- {second.name}: `test_a::b`: assert x \\| y" in text
    assert f"- {first.name}: not installed: pip install: no such version" in text
    assert text.count("not run yet") == len(matrix.cells()) - 2


def test_only_a_whole_run_without_failures_is_green() -> None:
    matrix, counts = driver("matrix"), driver("environments").Counts
    assert matrix.Result(main_job="matches", tests=counts(passed=1)).green
    assert not matrix.Result(main_job="matches", tests=counts()).green
    assert not matrix.Result(main_job="mismatch", tests=counts(passed=1)).green
    assert not matrix.Result(main_job="matches", tests=None).green
    assert not matrix.Result(main_job="matches", tests=counts(passed=1), error="pip").green


def test_the_report_is_of_the_results_and_of_todays_ranges() -> None:
    """After a change of the ranges: `make matrix`, or `make matrix ARGS=--report`, which runs none."""
    matrix = driver("matrix")
    assert matrix.REPORT.read_text() == matrix.report(matrix.load())


def test_what_was_installed_ahead_is_taken_once_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, done = driver("fresh"), list[str]()

    class Environment(fresh.Environment):  # type: ignore[misc]
        def make(self) -> None:
            done.append("is there" if self.folder.exists() else "made")
            self.folder.mkdir(parents=True, exist_ok=True)

        def install(self, *what: str, versions: Any = None) -> None:
            done.append(what[0])
            if broken:
                raise fresh.InstallFailed("the network is gone")

    def check(environment: Any, scratch: Path) -> Any:
        environment.install("./python_shim")
        return fresh.Counts(passed=1)

    def run(*words: str) -> list[str]:
        done.clear()
        folders = ["--folder", str(tmp_path / "venv"), "--counts", str(tmp_path / "counts")]
        monkeypatch.setattr(sys, "argv", ["fresh.py", *folders, *words])
        assert fresh.main() == 0
        return list(done)

    broken = False
    monkeypatch.setattr(fresh, "Environment", Environment)
    monkeypatch.setattr(fresh, "check", check)
    monkeypatch.setattr(fresh, "LOGS", tmp_path / "logs")
    made, torch = run("--ahead")
    assert made == "made" and torch.startswith("torch>=")
    assert run() == ["is there", "./python_shim"]
    assert run() == ["made", "./python_shim"], "it was taken"
    broken = True
    with pytest.raises(fresh.InstallFailed):
        run("--ahead")
    broken = False
    assert run() == ["made", "./python_shim"], "it was not whole"


def test_the_fresh_install_runs_every_program_of_readme_and_guide() -> None:
    fresh = driver("fresh")
    pages = [ROOT / "README.md", *(ROOT / "docs/guide").glob("*.md")]
    assert len(dict(fresh.programs())) == sum(page.read_text().count("```python\n") for page in pages) >= 7
    assert all((ROOT / "tests/python" / name).exists() for name in fresh.TESTS)
    pinned = dict(driver("environments").tested())
    assert fresh.other_than_tested(pinned) == []
    assert fresh.other_than_tested({**pinned, "torch": "9.9"}) == [f"torch 9.9 (tested with {pinned['torch']})"]
