"""The soak of tests/measure/soak tells what is planted: a soak that finds nothing must have looked."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from measure import trust
from measure.soak import check, growth, processes
from measure.soak.events import Log, read

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "dump_2"
PYTHONPATH = os.environ.get("PYTHONPATH", "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose files are whole."""
    made = Path(shutil.copytree(GOLDEN, tmp_path / "dumps")) / "example"
    shutil.rmtree(made / "0_0-forward" / "part_0" / "test_data_set_2")
    return made


def told(run: Path, said: str) -> list[dict[str, object]]:
    return [{"kind": "calls", "right": 7, "lost": 0}, {"kind": "dump", "path": str(run), "told": said, "lost": 0}]


def test_a_whole_dump_is_counted_and_nothing_is_wrong(run: Path) -> None:
    found = check.client(told(run, "whole"), run.parent, dict(os.environ))
    assert found.wrong == []
    assert found.counts == {"calls right": 7, "dumps told whole": 1}


def test_a_data_set_that_was_not_finished_is_a_lost_call_s_or_of_a_dump_that_was_not_told_whole(run: Path) -> None:
    part = run / "0_0-forward" / "part_0"
    shutil.copytree(GOLDEN / "example" / "0_0-forward" / "part_0" / "test_data_set_2", part / "test_data_set_2")

    def wrong(told: check.Told | None) -> list[str]:
        return check.dump(run, told, dict(os.environ)).wrong

    assert wrong(check.Told(said="DaemonLost: gone", lost=0)) == wrong(None) == []
    assert wrong(check.Told(said="whole", lost=1)) == []
    (line,) = wrong(check.Told(said="whole", lost=0))
    assert "test_data_set_2" in line


@pytest.mark.parametrize("said", ["whole", "DaemonLost: gone"])
def test_a_flipped_bit_is_wrong_whatever_was_told(run: Path, said: str) -> None:
    tensor = run / "0_0-forward" / "part_0" / "test_data_set_0" / "actual_0.pb"
    content = bytearray(tensor.read_bytes())
    content[-1] ^= 1
    tensor.write_bytes(content)
    wrong = check.client(told(run, said), run.parent, dict(os.environ)).wrong
    assert wrong and all("actual_0.pb" in line for line in wrong)


def test_a_dump_that_was_told_whole_and_is_not_there_is_wrong(tmp_path: Path) -> None:
    (wrong,) = check.client(told(tmp_path / "run", "whole"), tmp_path, dict(os.environ)).wrong
    assert "told whole, and there is none" in wrong


def test_what_a_client_found_wrong_is_wrong(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.write("wrong", error="ArithmeticError('a value is not eager's')", trace="…")
    log.write("lost", error="DaemonLost")
    found = check.client(read(tmp_path / "log.jsonl"), tmp_path, dict(os.environ))
    assert len(found.wrong) == 1 and found.counts == {"calls lost, DaemonLost": 1}


@pytest.mark.parametrize(("mib_a_second", "descriptors_a_second"), [(0.1, 0.0), (0.0, 0.1)])
def test_a_daemon_that_grows_is_told(mib_a_second: float, descriptors_a_second: float) -> None:
    times = [5.0 * n for n in range(400)]
    life = growth.Life(
        pid=1,
        memory=[(t, 50 + t * mib_a_second + t % 3) for t in times],
        descriptors=[(t, 20 + t * descriptors_a_second + t % 2) for t in times],
    )
    flat = growth.Life(pid=2, memory=[(t, 50 + t % 3) for t in times], descriptors=[(t, 20 + t % 2) for t in times])
    assert life.grows() and not flat.grows()
    short = growth.Life(pid=3, memory=life.memory[:20], descriptors=life.descriptors[:20])
    assert not short.grows()


def test_processes_are_found_by_the_mark_alone() -> None:
    mark = f"RUST_ORT_SOAK=test.{os.getpid()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(command, env={**os.environ, name: value}, stdin=subprocess.PIPE)
    try:
        assert [found.pid for found in processes.marked(mark)] == [process.pid]
        assert list(processes.marked(mark + "0")) == []
    finally:
        assert processes.signalled(process.pid, signal.SIGKILL) == process.pid
        process.communicate()
    assert processes.signalled(process.pid, signal.SIGKILL) == 0


def test_each_of_both_writes_its_own_rows(tmp_path: Path) -> None:
    page = tmp_path / "trust.md"
    row = {"inputs": 1000, "accepted": 10, "seconds": 5.0, "slowest_ms": 1, "most_kib": 7, "findings": []}
    trust.update(page, "fuzz", {"frames": row})
    soak = {
        "seconds": 600, "seed": 1, "daemons": 3, "longest_life_s": 400, "mib_an_hour": 0.5, "descriptors_an_hour": 0.0,
        "events": {"kill daemon": 2}, "counts": {"calls right": 9}, "skipped": {"full disk": "not allowed"},
        "wrong": [],
    }  # fmt: skip
    trust.update(page, "soak", soak)
    trust.update(page, "fuzz", {"models": {**row, "findings": ["a panic"]}})
    text = page.read_text()
    for line in ("| frames | 1,000 | 10 |", "- models: a panic", "| kill daemon | 2 |", "| full disk | skipped: not"):
        assert line in text
    assert set(json.loads(page.with_suffix(".json").read_text())["fuzz"]) == {"frames", "models"}


def test_the_page_in_docs_is_what_its_counts_and_texts_make() -> None:
    page = ROOT / "docs" / "results" / "trust.md"
    assert page.read_text() == trust.page(json.loads(page.with_suffix(".json").read_text()))


def test_a_minute_of_chaos_loses_nothing(tmp_path: Path) -> None:
    """The slice of `make soak` that every run of the tests has; it ends what it started."""
    command = [sys.executable, "-m", "measure.soak", "--minutes", "1", "--clients", "2", "--every", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, [PYTHONPATH])])}
    output = tmp_path / "trust.md"
    shutil.copy(ROOT / "docs" / "results" / "trust.md", output)
    shutil.copy(ROOT / "docs" / "results" / "trust.json", output.with_suffix(".json"))
    command += ["--folder", str(tmp_path / "soak"), "--output", str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(output.with_suffix(".json").read_text())["soak"]
    assert told["wrong"] == [] and told["counts"]["calls right"] > 100, told
    assert sum(told["events"].values()) >= 3, told
