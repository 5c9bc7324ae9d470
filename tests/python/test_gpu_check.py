"""The steps of `make gpu-check`, rehearsed on the CPU: their rows, their ends, their table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, wait_until

from measure.bench import on_device
from measure.bench.timing import Timing
from rust_ort.backend import GraphInfo
from rust_ort.export.partition import EagerNode
from rust_ort.studies import gpu_check
from rust_ort.studies.gpu import calls, cases, copies, libraries, memory, models, numerics, page, runner, speed
from rust_ort.studies.gpu.record import FAILED, MISSING, WORKS, CheckFailed, MissingHere, Record, Row, read, worst
from rust_ort.studies.gpu.runner import Result, Task
from rust_ort.studies.gpu.steps import STEPS

ROOT = Path(__file__).resolve().parents[2]

# --- rows ------------------------------------------------------------------------------------------------------------


def test_an_exception_is_the_verdict_of_its_row_and_the_next_row_is_tried(tmp_path: Path) -> None:
    record = Record(tmp_path / "rows")
    for what, error in (("a", None), ("b", CheckFailed("far off")), ("c", MissingHere("a GPU")), ("d", ValueError(7))):
        with record.row(what) as numbers:
            numbers["n"] = 1
            if error is not None:
                raise error
    rows, begun = read(tmp_path / "rows")
    assert [(row.what, row.verdict, row.why, row.numbers) for row in rows] == [
        ("a", WORKS, "", {"n": 1}),
        ("b", FAILED, "far off", {"n": 1}),
        ("c", MISSING, "a GPU", {"n": 1}),
        ("d", FAILED, "ValueError: 7", {"n": 1}),
    ]
    assert begun == ""


def test_a_record_that_was_cut_short_tells_what_had_begun(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    Record(path).add(Row(what="a"))
    with path.open("a") as file:
        file.write('{"begins": "b"}\n{"what": "b", "verd')
    assert read(path) == ([Row(what="a")], "b")
    assert read(tmp_path / "none") == ([], "")


@pytest.mark.parametrize(
    ("verdicts", "expected", "code"),
    [
        ([WORKS, WORKS], WORKS, 0),
        ([WORKS, MISSING], MISSING, 2),
        ([MISSING, FAILED, WORKS], FAILED, 1),
        ([], FAILED, 1),
    ],
)
def test_the_worst_row_decides_and_nothing_tried_has_failed(verdicts: list[str], expected: str, code: int) -> None:
    assert worst(verdicts) == expected
    results = [Result(name="a", title="", verdict=verdict) for verdict in verdicts]
    assert page.exit_code(results) == code


# --- the processes of steps ------------------------------------------------------------------------------------------


def task(tmp_path: Path, body: str) -> Task:
    """A task that runs `body`, with the path of its record in `record`."""
    program = tmp_path / "task.py"
    program.write_text(f"import json, os, subprocess, sys, time\nrecord = open(sys.argv[1], 'a', 1)\n{body}\n")
    return Task(name="t", title="a task", limit_s=60, command=[sys.executable, str(program)])


def run(tmp_path: Path, body: str, *, limit_s: float = 60) -> Result:
    return runner.run_one(task(tmp_path, body), dict(os.environ), limit_s=limit_s, log=tmp_path / "log")


def test_a_task_that_hangs_is_ended_with_all_it_started_and_its_rows_are_kept(tmp_path: Path) -> None:
    body = """
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
left = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
left.stdout.readline()
record.write(json.dumps({"what": "pid", "numbers": {"pid": left.pid}}) + chr(10) + '{"begins": "the second"}' + chr(10))
time.sleep(600)
"""
    began = time.monotonic()
    result = run(tmp_path, body, limit_s=5)
    assert time.monotonic() - began < 60
    assert (result.verdict, result.why) == (FAILED, "ended after 5 s at: the second")
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


def test_what_has_no_time_left_is_left_out_and_says_so(tmp_path: Path) -> None:
    tasks = [task(tmp_path, """record.write('{"what": "a"}' + chr(10))""")] * 2
    found = list(runner.run_all(tasks, dict(os.environ), seconds=5, logs=tmp_path / "logs"))
    assert [result.verdict for result in found] == [MISSING, MISSING]
    assert "left out: 0 s were left of 0.0833 minutes" in found[1].why
    assert page.exit_code(found) == 2


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
        ([graph(eager=[SVD])], (1, 0), "svd (aten.svd) ran in eager"),
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


def timed(us: dict[str, float]) -> Callable[[list[str]], list[Timing]]:
    """Measures as the bench does; a variant without a time cannot be measured."""

    def measure(variants: list[str]) -> list[Timing]:
        return [
            Timing(case="c", variant=v, us=us[v], p10_us=0, p90_us=0, rounds=1, calls_per_round=1) for v in variants
        ]

    return measure


def test_a_variant_that_fails_is_left_out_and_the_others_are_measured() -> None:
    job: Any = ("c", ("eager", "inductor", "rust_ort"), timed({"eager": 2.0, "rust_ort": 3.0}))
    told = on_device.measured(job, {"in-process ONNX Runtime": "of another case"})
    assert told == {
        "case": "c",
        "us": {"eager": 2.0, "rust_ort": 3.0},
        "left_out": {"inductor": "KeyError: 'inductor'"},
    }
    row = speed.row_of(json.dumps(told))
    assert (row.what, row.verdict) == ("c", WORKS)
    assert row.numbers == {"eager µs": 2.0, "rust_ort µs": 3.0, "ours / eager": 1.5,
                           "inductor not measured": "KeyError: 'inductor'"}  # fmt: skip


def test_our_own_failure_fails_the_row() -> None:
    row = speed.row_of(json.dumps({"case": "c", "us": {"eager": 2.0}, "left_out": {"rust_ort": "ClientError: no"}}))
    assert (row.verdict, row.why, row.numbers) == (FAILED, "ClientError: no", {"eager µs": 2.0})


@pytest.mark.usefixtures("daemon")
def test_small_calls_are_timed_on_the_device_they_are_for() -> None:
    name, _, measure = on_device.jobs("cpu", rounds=1)[0]
    found = measure(("eager", "rust_ort"))
    assert name == "Add of 10"
    assert [timing.variant for timing in found] == ["eager", "rust_ort"]


# --- the whole -------------------------------------------------------------------------------------------------------


def machine() -> gpu_check.Machine:
    return gpu_check.Machine(binary="/bin/rust-ort", library=Path("/lib"), folders=(), facts={})


def test_only_names_steps_that_there_are() -> None:
    every = [task.name for task in gpu_check.chosen(machine(), "cuda", None)]
    assert every == ["ipc", *(step.name for step in STEPS)]
    assert [task.name for task in gpu_check.chosen(machine(), "cpu", ["study", "calls"])] == ["calls", "study"]
    with pytest.raises(gpu_check.Missing, match="no step ipc, nothing on cpu; there are calls, memory"):
        gpu_check.chosen(machine(), "cpu", ["nothing", "ipc"])


def test_a_rehearsal_of_a_step_ends_in_a_table_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gpu.md"
    words = ["--device", "cpu", "--only", "study", "--output", str(output), "--logs", str(tmp_path / "logs")]
    assert gpu_check.main(["--binary", os.environ["RUST_ORT_BINARY"], *words]) == 2
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


def test_what_the_repository_says_of_a_gpu_is_what_was_measured_or_that_nothing_was() -> None:
    kept = ROOT / "docs" / "gpu.json"
    text = (ROOT / "docs" / "gpu.md").read_text()
    if not kept.exists():
        assert text == page.before(gpu_check.chosen(machine(), "cuda", None))
        return
    told = json.loads(kept.read_text())
    results = [Result(**{**step, "rows": [Row(**row) for row in step["rows"]]}) for step in told["steps"]]
    assert text == page.markdown(results, told["facts"])
