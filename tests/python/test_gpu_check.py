"""The steps of `make gpu-check`, rehearsed on the CPU: their rows, their ends, their table."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, wait_until

from measure.bench import on_device, variant
from rust_ort.backend import GraphInfo
from rust_ort.export.partition import EagerNode
from rust_ort.studies import gpu_check
from rust_ort.studies.gpu import (
    calls,
    cases,
    copies,
    culprits,
    libraries,
    memory,
    models,
    nodes,
    numerics,
    page,
    runner,
    speed,
)
from rust_ort.studies.gpu import record as record_module
from rust_ort.studies.gpu.record import (
    FAILED,
    LEFT_OUT,
    MISSING,
    WORKS,
    CheckFailed,
    MissingHere,
    Numbers,
    Read,
    Record,
    Row,
    read,
    worst,
)
from rust_ort.studies.gpu.runner import Result, Task
from rust_ort.studies.gpu.steps import STEPS

ROOT = Path(__file__).resolve().parents[2]

# --- rows ------------------------------------------------------------------------------------------------------------


def test_an_exception_is_the_verdict_of_its_row_and_the_next_row_is_tried(tmp_path: Path) -> None:
    record = Record(tmp_path / "rows")
    for what, error in (("a", None), ("b", CheckFailed("far off")), ("c", MissingHere("a GPU")), ("d", ValueError(7))):

        def fill(numbers: Numbers, error: Exception | None = error) -> None:
            numbers["n"] = 1
            if error is not None:
                raise error

        record.row(what, fill)
    record.end()
    found = read(tmp_path / "rows")
    assert [(row.what, row.verdict, row.why, row.numbers) for row in found.rows] == [
        ("a", WORKS, "", {"n": 1}),
        ("b", FAILED, "far off", {"n": 1}),
        ("c", MISSING, "a GPU", {"n": 1}),
        ("d", FAILED, "ValueError: 7", {"n": 1}),
    ]
    assert (found.begun, found.ended) == ("", True)


def test_a_record_that_was_cut_short_tells_what_had_begun(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    Record(path).add(Row(what="a"))
    with path.open("a") as file:
        file.write('{"begins": "b"}\n{"what": "b", "verd')
    assert read(path) == Read(rows=[Row(what="a")], begun="b")
    assert read(tmp_path / "none") == Read()


def test_rows_without_time_are_left_out_and_those_of_an_earlier_run_are_not_tried(tmp_path: Path) -> None:
    path, tried = tmp_path / "rows", list[str]()
    record_module.write(path, [Row(what="known", verdict=FAILED, why="then")])
    record = Record(path, time.monotonic() + 30)
    for what, least_s in (("known", 2.0), ("short", 2.0), ("long", 3600.0)):
        record.row(what, lambda numbers, what=what: tried.append(what), least_s=least_s)  # type: ignore[misc]
    assert tried == ["short"]
    assert [(row.what, row.verdict) for row in read(path).rows] == [
        ("known", FAILED),
        ("short", WORKS),
        ("long", LEFT_OUT),
    ]
    assert re.fullmatch(r"(29|30) s were left of the step's share", read(path).rows[2].why)


@pytest.mark.parametrize(
    ("verdicts", "expected", "code"),
    [
        ([WORKS, WORKS], WORKS, 0),
        ([WORKS, MISSING, LEFT_OUT], MISSING, 2),
        ([WORKS, LEFT_OUT], LEFT_OUT, 2),
        ([MISSING, FAILED, WORKS], FAILED, 1),
        ([], FAILED, 1),
    ],
)
def test_the_worst_row_decides_and_nothing_tried_has_failed(verdicts: list[str], expected: str, code: int) -> None:
    assert worst(verdicts) == expected
    results = [Result(name="a", title="", verdict=verdict) for verdict in verdicts]
    assert page.exit_code(results) == code


# --- the processes of steps ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def a_step_begins_with_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEAST_S", 0.5)


def task(tmp_path: Path, body: str) -> Task:
    """A task that runs `body`, with the path of its record in `record`."""
    program = tmp_path / "task.py"
    program.write_text(f"import json, os, subprocess, sys, time\nrecord = open(sys.argv[1], 'a', 1)\n{body}\n")
    return Task(name="t", title="a task", seconds=60, command=[sys.executable, str(program)])


def run(tmp_path: Path, body: str, *, limit_s: float = 60, known: Result | None = None) -> Result:
    until = time.monotonic() + limit_s
    return runner.run_one(task(tmp_path, body), dict(os.environ), until=until, log=tmp_path / "log", known=known)


def test_a_task_that_hangs_is_ended_with_all_it_started_and_its_rows_are_kept(tmp_path: Path) -> None:
    body = """
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
left = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
left.stdout.readline()
record.write(json.dumps({"what": "pid", "numbers": {"pid": left.pid}}) + chr(10) + '{"begins": "the second"}' + chr(10))
time.sleep(600)
"""
    began = time.monotonic()
    result = run(tmp_path, body, limit_s=3)
    assert time.monotonic() - began < 60
    assert (result.verdict, result.why) == (FAILED, "ended by its limit after 3 s at: the second")
    assert [row.what for row in result.rows] == ["pid"]
    stat = Path(f"/proc/{result.rows[0].numbers['pid']}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z", "its child's end")


@pytest.mark.parametrize(
    ("body", "verdict", "why"),
    [
        ("""record.write('{"what": "a"}' + chr(10))""", WORKS, ""),
        ("""record.write('{"what": "a"}' + chr(10)); sys.exit("no more")""", FAILED, "exit code 1: no more"),
        ("os.kill(os.getpid(), 9)", FAILED, "SIGKILL"),
        ("pass", FAILED, "it tried nothing"),
    ],
)
def test_how_a_task_ends_is_told(tmp_path: Path, body: str, verdict: str, why: str) -> None:
    result = run(tmp_path, body)
    assert (result.verdict, result.why) == (verdict, why)


def test_each_task_has_a_daemon_of_its_own_and_no_option_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUST_ORT_THREADS", "7")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/user")
    around = runner.environment("/bin/rust-ort", Path("/lib/onnx.so"), [Path("/a"), Path("/b")])
    assert "RUST_ORT_THREADS" not in around
    assert around["LD_LIBRARY_PATH"] == "/a:/b:/of/the/user"
    assert (around["RUST_ORT_BINARY"], around["RUST_ORT_ONNXRUNTIME"]) == ("/bin/rust-ort", "/lib/onnx.so")
    with runner.home(around) as (one, first), runner.home(around) as (_, second):
        assert first["RUST_ORT_SOCKET"] == str(one / "v1.sock") != second["RUST_ORT_SOCKET"]
        assert one.stat().st_mode & 0o777 == 0o700
        assert first[runner.MARK] != second[runner.MARK]


def test_a_step_that_is_ended_says_where_it_is_and_is_no_crash(tmp_path: Path) -> None:
    body = """
import threading
from rust_ort.studies.gpu import __main__ as step
import signal
signal.signal(signal.SIGTERM, step.say_where)
record.write('{"begins": "a wait"}' + chr(10))
def waits_here():
    while True:
        time.sleep(0.1)
waits_here()
"""
    result = run(tmp_path, body, limit_s=12)
    assert (result.verdict, result.why) == (FAILED, "ended by its limit after 12 s at: a wait")
    log = (tmp_path / "log").read_text()
    assert "ended by its limit here:" in log
    assert "in waits_here" in log


def test_a_step_that_has_looked_at_all_its_rows_is_done_however_long_its_process_takes(tmp_path: Path) -> None:
    body = """record.write('{"what": "a"}' + chr(10) + '{"ends": true}' + chr(10)); time.sleep(600)"""
    result = run(tmp_path, body, limit_s=3)
    assert (result.verdict, result.why, result.whole) == (WORKS, "", True)


def test_a_later_run_tries_what_an_earlier_one_did_not_come_to(tmp_path: Path) -> None:
    rows = [Row(what="a"), Row(what="b", verdict=FAILED, why="no"), Row(what="c", verdict=LEFT_OUT, why="0 s")]
    earlier = Result(name="t", title="a task", verdict=FAILED, seconds=100, rows=rows)
    assert not earlier.whole
    body = """
known = [json.loads(line)["what"] for line in open(sys.argv[1])]
record.write("".join('{"what": "' + what + '"}' + chr(10) for what in "abc" if what not in known))
"""
    (once,) = run_all(tmp_path, body, earlier.kept(retry=False))
    assert [(row.what, row.verdict) for row in once.rows] == [("a", WORKS), ("b", FAILED), ("c", WORKS)]
    assert once.whole
    assert once.seconds >= 100
    assert list(run_all(tmp_path, "sys.exit(1)", once.kept(retry=False))) == [once], "nothing is left to be tried"
    (again,) = run_all(tmp_path, body, once.kept(retry=True))
    assert [(row.what, row.verdict) for row in again.rows] == [("a", WORKS), ("c", WORKS), ("b", WORKS)]


def run_all(tmp_path: Path, body: str, known: Result) -> Iterator[Result]:
    return runner.run_all(
        [task(tmp_path, body)], dict(os.environ), seconds=100, logs=tmp_path / "logs", known={known.name: known}
    )


def test_what_has_no_time_left_is_left_out_and_says_so(tmp_path: Path) -> None:
    tasks = [task(tmp_path, """record.write('{"what": "a"}' + chr(10))""")] * 2
    found = list(runner.run_all(tasks, dict(os.environ), seconds=5, logs=tmp_path / "logs"))
    assert [result.verdict for result in found] == [LEFT_OUT, LEFT_OUT]
    assert found[1].why == "left out: 0 s were its share of the time"
    assert page.exit_code(found) == 2


def named(name: str, seconds: float, *, alone: bool = False) -> Task:
    return Task(name=name, title="", seconds=seconds, alone=alone, command=[])


def test_time_is_shared_by_what_each_step_needs() -> None:
    tasks = [named("a", 30), named("b", 10), named("c", 40), named("d", 60, alone=True), named("e", 20, alone=True)]
    assert [[task.name for task in group] for group in runner.groups(tasks)] == [["a", "b", "c"], ["d", "e"]]
    assert runner.cost(tasks[:3]) == 40, "two at a time, and the longest"
    assert runner.cost(tasks[3:]) == 80
    until = time.monotonic() + 1200
    clock = runner.Clock(tasks, until)

    def share(task: Task) -> float:
        return round(clock.take(task) - time.monotonic(), 0)

    assert share(tasks[0]) == 300, "30 of 120 that all together take"
    assert share(tasks[1]) == 100
    assert share(tasks[2]) == 400
    assert share(tasks[3]) == 900, "what the others left: nothing has passed"
    assert share(tasks[4]) == 1200


def test_steps_in_which_nothing_is_timed_run_beside_each_other(tmp_path: Path) -> None:
    meets = tmp_path / "meets.py"
    meets.write_text(
        "import pathlib, sys, time\n"
        "mine, other, record = map(pathlib.Path, sys.argv[1:4])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        'record.write_text(\'{"what": "met"}\\n\')\n'
    )
    command = [sys.executable, str(meets)]
    tasks = [
        Task(name="a", title="", seconds=10, command=[*command, str(tmp_path / "a"), str(tmp_path / "b")]),
        Task(name="b", title="", seconds=10, command=[*command, str(tmp_path / "b"), str(tmp_path / "a")]),
    ]
    found = list(runner.run_all(tasks, dict(os.environ), seconds=100, logs=tmp_path / "logs"))
    assert {(result.name, result.verdict) for result in found} == {("a", WORKS), ("b", WORKS)}


# --- libraries -------------------------------------------------------------------------------------------------------


def linked(folder: Path, name: str, *needs: Path) -> Path:
    """A shared library that needs others."""
    library = folder / name
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "/dev/null",
        "-x",
        "none",
        f"-Wl,-soname,{name}",
        "-Wl,--no-as-needed",
    ]
    subprocess.run([*command, "-o", str(library), *map(str, needs)], check=True)
    return library


def test_the_providers_libraries_are_read_from_its_file_and_found_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "lib"
    wheel.mkdir()
    here, gone = linked(wheel, "libcudart.so.13"), linked(wheel, "libcublasof_tests.so.13")
    library = linked(tmp_path, "libonnxruntime.so")
    assert gpu_check.provider_libraries(library, "13.0", {}) == (
        [],
        ["libonnxruntime_providers_cuda.so beside libonnxruntime.so: unpack onnxruntime-gpu's wheel and name its capi "
         "folder"],
    )  # fmt: skip
    provider = linked(tmp_path, "libonnxruntime_providers_cuda.so", here, gone)
    gone.unlink()
    here.rename(tmp_path / here.name)
    assert libraries.needed(provider)[:2] == ["libcudart.so.13", "libcublasof_tests.so.13"]
    facts: dict[str, str] = {}
    folders, lacking = gpu_check.provider_libraries(library, "13.0", facts)
    assert tmp_path in folders
    assert lacking == ["libcublasof_tests.so.13, which libonnxruntime_providers_cuda.so needs"]
    assert facts == {"CUDA of the provider": "13, torch's 13.0"}
    assert "libcudart.so.13" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(20), b"\x7fELF\x02\x01" + bytes(200)])
def test_what_is_no_shared_library_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "library"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="library is "):
        libraries.needed(path)


@pytest.mark.parametrize(
    ("names", "major"),
    [
        (["libc.so.6", "libcublas.so.12", "libcudart.so.13"], 13),
        (["libcublasLt.so.12.3.1"], 12),
        (["libcudnn.so.9", "libcudart_static.so.11"], None),
    ],
)
def test_the_cuda_version_is_that_of_the_runtime(names: list[str], major: int | None) -> None:
    assert libraries.cuda_major(names) == major


# --- calls -----------------------------------------------------------------------------------------------------------


def case_named(name: str) -> cases.Case:
    return next(case for case in cases.all_cases() if case.name == name)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    "name", ["MLP, float32", "MLP, autocast to bfloat16", "a scalar on the CPU", "an empty batch", "two threads"]
)
def test_a_case_agrees_with_eager_and_its_nodes_are_counted(name: str) -> None:
    numbers: dict[str, Any] = {}
    calls.check(case_named(name), "cpu", numbers)
    assert numbers["error"] < 0.01
    assert re.fullmatch(r"[1-9]\d* on ONNX Runtime(, \d+ in eager)?", numbers["nodes"])
    assert ("in eager" in numbers["nodes"]) is (name == "an empty batch")


def test_cases_have_names_of_their_own_and_cover_what_they_are_for() -> None:
    names = [case.name for case in cases.all_cases()]
    assert len(set(names)) == len(names)
    assert {case.name for case in cases.all_cases() if case.cuda_only} == {"another stream"}
    for dtype in ("float32", "float16", "bfloat16"):
        assert {f"MLP, {dtype}", f"attention, {dtype}", f"convolutions, {dtype}"} <= set(names)


@pytest.mark.parametrize("case", [case for case in cases.all_cases() if not case.cuda_only], ids=lambda case: case.name)
def test_both_sides_of_a_case_begin_with_the_same_numbers(case: cases.Case) -> None:
    one, other = case.build("cpu"), case.build("cpu")
    first, second = one.drive(one.target), other.drive(other.target)
    assert len(first) == len(second) > 0
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("candidate", "precision", "passes"),
    [
        (1 + 2e-6, torch.float32, True),
        (1 + 1e-4, torch.float32, False),
        (1 + 1e-3, torch.float16, True),
        (1 + 1e-2, torch.float16, False),
        (1 + 1e-2, torch.bfloat16, True),
        (float("nan"), torch.bfloat16, False),
    ],
)
def test_a_result_is_judged_by_its_precision(candidate: float, precision: torch.dtype, passes: bool) -> None:
    pair = [torch.ones(3)], [torch.full((3,), candidate)]
    if passes:
        calls.judge(*pair, precision)
    else:
        with pytest.raises(CheckFailed, match="tensor 0 of 1 differs from eager"):
            calls.judge(*pair, precision)


SVD = EagerNode(name="svd", op="aten.svd", reason="no ONNX form", module="", source="")


def graph(**given: Any) -> GraphInfo:
    fields = {"name": "0_0-forward", "direction": "forward", "graph_id": "a", "compute_nodes": 2, "parts": [["a", "b"]]}
    return GraphInfo(**{**fields, "eager": [], "seconds": {}, **given})


@pytest.mark.parametrize(
    ("graphs", "counted", "why"),
    [
        ([graph()], (2, 0), None),
        ([graph()], (2, 1), "2 nodes on ONNX Runtime and 1 in eager"),
        ([graph()], (0, 0), "0 nodes on ONNX Runtime"),
        ([], (2, 0), "no graph was compiled"),
        ([graph(eager=[SVD])], (1, 0), "1 x aten.svd ran in eager: no ONNX form"),
        ([graph(daemon_fallbacks=1, fault="it died")], (2, 0), "it died"),
    ],
)
def test_a_node_in_eager_is_never_silent(graphs: list[GraphInfo], counted: tuple[int, int], why: str | None) -> None:
    if why is None:
        calls.all_on_onnxruntime(graphs, *counted)
        return
    with pytest.raises(CheckFailed) as raised:
        calls.all_on_onnxruntime(graphs, *counted)
    assert why in str(raised.value)


def test_copies_between_host_and_device_are_told_from_those_on_the_device() -> None:
    def event(name: str, n: int) -> dict[str, Any]:
        return {"name": name, "args": {"bytes": n}}

    events = [
        event("Memcpy HtoD (Pageable -> Device)", 12), event("Memcpy DtoD (Device -> Device)", 99),
        event("Memcpy DtoH (Device -> Pinned)", 40), {"name": "cudaMemcpyAsync", "args": {}}, {"ph": "M"},
    ]  # fmt: skip
    assert copies.host_copies(events) == [12, 40]


@pytest.mark.parametrize(
    ("counters", "found"),
    [
        ({"runs": 3}, {}),
        ({"runs": 3, "host_bytes": 5}, {"host_bytes": 5}),
        ({"bytes_through_host": 0}, {"bytes_through_host": 0}),
    ],
)
def test_a_counter_that_is_not_there_is_not_zero(
    counters: dict[str, int], found: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies.rust_ort, "status", lambda: {"counters": counters})
    assert copies.counted_by_executors() == found


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STEPS", 12)
    monkeypatch.setattr(memory, "READINGS", (4, 8, 12))


@pytest.mark.usefixtures("daemon", "few_steps")
@pytest.mark.parametrize(("growth", "grows"), [((0, 0, 0), False), ((0, 9, 9), False), ((0, 0, 17 << 20), True)])
def test_memory_that_grows_after_the_second_hundred_steps_is_told(
    growth: tuple[int, int, int], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(growth)
    monkeypatch.setattr(memory, "used_bytes", lambda _device: next(readings))
    numbers: dict[str, Any] = {}
    if grows:
        with pytest.raises(CheckFailed, match=f"{17 << 20} bytes more after 12 steps than after 8"):
            memory.training("cpu", numbers)
    else:
        memory.training("cpu", numbers)
    assert numbers["loss"] == pytest.approx(numbers["eager's"], rel=1e-4)


@pytest.mark.usefixtures("daemon")
def test_a_client_killed_in_mid_call_leaves_nothing_and_the_daemon_serves(daemon: Daemon) -> None:
    numbers: dict[str, Any] = {}
    served = memory.Served("cpu")
    memory.killed_client(served, "cpu", numbers)
    assert numbers["seconds until returned"] <= memory.RETURNED_S
    served.check()


@pytest.mark.usefixtures("daemon")
def test_an_executor_killed_in_mid_call_is_told_and_the_next_call_works() -> None:
    numbers: dict[str, Any] = {}
    memory.killed_executor("cpu", numbers)
    assert set(numbers) == {"seconds until at rest", "work was pending", "told"}
    assert numbers["seconds until at rest"] <= memory.REST_S


def says(rested_s: float, *, pending: bool, told: str) -> str:
    said = {"seconds until at rest": rested_s, "work was pending": pending, "told": told}
    return f"print('killing', flush=True); print({json.dumps(said)!r})"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (says(0.1, pending=False, told="so"), "this shows nothing"),
        (says(7.0, pending=True, told="so"), "not at rest within 5 s"),
        (says(0.1, pending=True, told="no"), "nothing said"),
        ("print('killing', flush=True); import sys; sys.exit('no more')", "the client ended with 1"),
        ("print('killing', flush=True); import time; time.sleep(600)", "6 s after its executor was killed the client"),
        ("print('what')", "did not come to its calls"),
    ],
    ids=["was done", "late", "not told", "fails", "waits", "never calls"],
)
def test_an_executor_whose_end_shows_nothing_or_keeps_the_stream_fails(
    body: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def client(device: str, way: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True) as process:
            yield process

    monkeypatch.setattr(memory, "client", client)
    monkeypatch.setattr(memory, "CALLS_S", 1.0)
    with pytest.raises(CheckFailed, match=why):
        memory.killed_executor("cuda", {})


# --- Llama, studies, the bench ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("way", ["autocast", "pure"])
def test_llama_is_judged_in_half_precision(way: str) -> None:
    numbers: dict[str, Any] = {}
    if way == "pure":
        models.pure("attention", torch.bfloat16, "cpu", numbers)
    else:
        models.exported("attention", "bfloat16", 0, "cpu", numbers)
    assert numbers["tensors"] >= 3
    assert 0 <= numbers["max|Δ|/max|r|"] < 0.05


@pytest.mark.usefixtures("daemon")
def test_findings_of_a_study_are_counted_and_one_without_its_runtime_is_missing() -> None:
    numbers: dict[str, Any] = {}
    numerics.findings("gemm", ("--rows", "16", "--size", "16"), "cpu", numbers)
    assert numbers["yes"] > 0
    with pytest.raises(MissingHere, match="CUDAExecutionProvider"):
        numerics.findings("gemm", ("--rows", "16", "--size", "16"), "cuda", numbers)


@pytest.mark.usefixtures("daemon")
def test_every_node_of_a_language_model_is_judged_and_its_time_told() -> None:
    numbers: dict[str, Any] = {}
    nodes.compared(nodes.SIZES["cpu"][0], "bfloat16", "cpu", numbers)
    assert re.fullmatch(r"\d{3} match", numbers["nodes"])
    assert numbers["nodes / eager"] == numbers["nodes ms"] / numbers["eager ms"] > 1


@pytest.mark.usefixtures("daemon")
def test_nobody_is_blamed_for_what_is_right_and_a_planted_fault_is(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {}
    culprits.nobody(tmp_path / "clean", "cpu", numbers)
    assert numbers["parts"] == 2
    assert numbers["values dumped"] > 100
    culprits.replayed(tmp_path / "clean" / "blame", numbers)
    assert re.fullmatch(r"(\d+) of \1 outputs", numbers["same bits as then"])
    for command in culprits.COMMANDS:
        culprits.by_command_line(command, tmp_path / "clean" / "blame", said := {})
        assert said["said"] != "nothing"
    culprits.somebody(tmp_path / "planted", "cpu", numbers)
    assert "rsqrt" in numbers["blamed"]
    with pytest.raises(CheckFailed, match="exit code 1"):
        culprits.by_command_line("blame", tmp_path / "planted" / "blame", {})
    with pytest.raises(MissingHere, match="no dump"):
        culprits.by_command_line("sbs", tmp_path / "none", {})


# --- the bench -------------------------------------------------------------------------------------------------------


def case_of(*variants: str) -> on_device.Case:
    return on_device.Case(
        name="Add of 10", variants=variants, ways=("call",), rounds=2, calls=3, goals={"call": ("eager", 1.2)}
    )


@pytest.mark.usefixtures("daemon")
def test_variants_are_timed_in_processes_of_their_own_and_one_that_fails_is_left_out() -> None:
    numbers: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        fleet = on_device.Fleet(case_of("eager", "no such variant", "rust_ort"), "cpu", stack)
        fleet.timed("call", numbers)
    assert re.fullmatch(r"[\d.e+]+ / [\d.e+]+ / [\d.e+]+", numbers["rust_ort, µs host / queued / synced"])
    assert numbers["ours / eager"] > 0
    assert "KeyError" in numbers["no such variant not measured"]
    assert re.fullmatch(r"eager \S+, rust_ort \S+", numbers["first call, s"])


@pytest.mark.parametrize(
    ("ours", "why"),
    [("fails", "rust_ort: ClientError: no"), ("differs", r"rust_ort gives \[\[2.0\]"), ("works", None)],
)
def test_our_own_failure_fails_the_row_and_so_does_another_result(
    ours: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begins(self: Any, _case: object, name: str, *_: object) -> None:
        self.name, self.fault = name, ""

    def answers(self: Any, do: str, **asked: Any) -> dict[str, Any]:
        if self.name == "rust_ort" and ours == "fails":
            self.fault = "ClientError: no"
            raise on_device.VariantFailed(self.fault)
        value = [2.0 if self.name == "rust_ort" and ours == "differs" else 1.0]
        return {"host": 1.0, "queued": 2.0, "synced": 3.0} if do == "round" else {"s": 1.0, "result": value}

    monkeypatch.setattr(on_device.Variant, "__init__", begins)
    monkeypatch.setattr(on_device.Variant, "ask", answers)
    monkeypatch.setattr(on_device.Variant, "end", lambda self: None)
    numbers: dict[str, Any] = {}
    expected = contextlib.nullcontext() if why is None else pytest.raises(CheckFailed, match=why)
    with contextlib.ExitStack() as stack, expected:
        on_device.Fleet(case_of("eager", "rust_ort"), "cpu", stack).timed("call", numbers)
    assert numbers["eager, µs host / queued / synced"] == "1 / 2 / 3"


@pytest.mark.parametrize(
    ("found", "expected", "passes"),
    [
        ([[1.0, 0.001]], [[1.005, 0.0]], True),
        ([[1.0, 0.0]], [[1.05, 0.0]], False),
        ([[float("nan")]], [[float("nan")]], False),
    ],
)
def test_results_are_near_by_the_largest_element(found: Any, expected: Any, passes: bool) -> None:
    assert on_device.close(found, expected, 1e-2) is passes


@pytest.mark.usefixtures("daemon")
def test_a_models_step_and_forward_are_called_as_they_are_timed() -> None:
    made = variant.model(on_device.TINY, "bf16", "rust_ort", "cpu")
    eager = variant.model(on_device.TINY, "bf16", "eager", "cpu")
    ours = [float(made[way]()) for way in ("forward", "step", "step", "forward")]
    theirs = [float(eager[way]()) for way in ("forward", "step", "step", "forward")]
    assert ours == pytest.approx(theirs, rel=1e-2)
    assert theirs[0] != theirs[-1], "a step changes the parameters"


def test_a_bench_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed, "TESTS", tmp_path)
    speed.run(Record(tmp_path / "rows"), "cpu")
    assert [row.verdict for row in read(tmp_path / "rows").rows] == [MISSING]


# --- the whole -------------------------------------------------------------------------------------------------------


def machine() -> gpu_check.Machine:
    return gpu_check.Machine(binary="/bin/rust-ort", library=Path("/lib"), folders=(), facts={})


def test_the_main_job_is_first_and_only_names_steps_that_there_are() -> None:
    every = [task.name for task in gpu_check.steps(machine(), "cuda")]
    first, *others = [step.name for step in STEPS]
    assert every == [first, "ipc", *others]
    assert first == "main-job"
    rehearsed = gpu_check.steps(machine(), "cpu")
    assert [task.name for task in gpu_check.chosen(rehearsed, ["study", "calls"])] == ["calls", "study"]
    with pytest.raises(gpu_check.Missing, match="no step ipc, nothing here; there are main-job, calls"):
        gpu_check.chosen(rehearsed, ["nothing", "ipc"])


def test_a_rehearsal_of_a_step_ends_in_a_table_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gpu.md"
    words = ["--device", "cpu", "--only", "study", "--output", str(output), "--logs", str(tmp_path / "logs")]
    words += ["--binary", os.environ["RUST_ORT_BINARY"]]
    assert gpu_check.main(words) == 2
    assert "gemm: works" in (tmp_path / "logs" / "study.log").read_text()
    (step,) = json.loads(output.with_suffix(".json").read_text())["steps"]
    assert {row["what"]: row["verdict"] for row in step["rows"]} == {
        "gemm": WORKS,
        "layernorm": MISSING,
        "reduction": WORKS,
    }
    assert "| study | `rust-ort study` on the CUDA provider | missing | 2 of 3 |" in output.read_text()
    assert str(tmp_path) not in output.read_text()
    assert "2 of 3" in capsys.readouterr().out
    log = (tmp_path / "logs" / "study.log").read_text()
    assert gpu_check.main([*words, "--resume"]) == 2
    assert (tmp_path / "logs" / "study.log").read_text() == log, "nothing was left to be tried"
    told = json.loads(output.with_suffix(".json").read_text())
    told["facts"]["torch"] = "1.0"
    output.with_suffix(".json").write_text(json.dumps(told))
    assert gpu_check.main([*words, "--resume"]) == 2
    assert "is of torch '1.0', and here is" in capsys.readouterr().err


def test_what_the_repository_says_of_a_gpu_is_what_was_measured_or_that_nothing_was() -> None:
    kept = ROOT / "docs" / "results" / "gpu.json"
    text = (ROOT / "docs" / "results" / "gpu.md").read_text()
    if not kept.exists():
        assert text == page.before(gpu_check.steps(machine(), "cuda"))
        return
    told = json.loads(kept.read_text())
    assert text == page.markdown(page.results_in(told), told["facts"])
