"""Calls on a CUDA device, over a stand-in for CUDA's driver: the way of the tensors. device_calls.py is what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import warm

from rust_ort.link import pool

ROOT = Path(__file__).resolve().parents[2]
OF_THE_CLIENT = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What the process of the calls loads itself. The executor, a program of its own, finds all by LD_LIBRARY_PATH."""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's libcuda.so.1 and libnvrtc.so.13."""
    folder = built(tmp_path_factory.mktemp("driver"), "libcuda.so.1", "fake_libcuda.c")
    return built(folder, "libnvrtc.so.13", "fake_libnvrtc.c")


@pytest.fixture(scope="session")
def no_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's libcuda.so.1 alone."""
    return built(tmp_path_factory.mktemp("no-compiler"), "libcuda.so.1", "fake_libcuda.c")


@pytest.fixture(scope="session")
def management(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's libnvidia-ml.so.1."""
    return built(tmp_path_factory.mktemp("management"), "libnvidia-ml.so.1", "fake_libnvidia_ml.c")


def built(folder: Path, library: str, source: str, *options: str) -> Path:
    fixture = ROOT / "tests/fixtures" / source
    named = ["-o", str(folder / library), f"-Wl,-soname,{library}"]
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", *options, *named, str(fixture)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def calls(driver: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs a function of device_calls.py with a daemon of its own."""

    def run(name: str, *arguments: str, **environment: str) -> str:
        home = tmp_path / "home"
        (home / "cuda").mkdir(parents=True)
        home.chmod(0o700)
        own = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "LD_LIBRARY_PATH": str(driver),
            "FAKE_CUDA_FOLDER": str(home / "cuda"),
            "RUST_ORT_TEST_CUDA_ON_HOST": "1",
            "RUST_ORT_SOCKET": str(home / "v1.sock"),
            "RUST_ORT_STATE_DIR": str(home / "state"),
            **environment,
        }
        everything = {**os.environ, **own}
        folders = map(Path, everything["LD_LIBRARY_PATH"].split(os.pathsep))
        stand_ins = [folder / library for folder in folders for library in OF_THE_CLIENT if (folder / library).exists()]
        program = [sys.executable, str(Path(__file__).parent / "device_calls.py"), name, *arguments]
        try:
            done = warm.run(program, env=everything, timeout=120, modules=warm.EXPORT, libraries=stand_ins)
        finally:
            binary = everything["RUST_ORT_BINARY"]
            subprocess.run([binary, "stop", "--force"], env=everything, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert done.stdout.strip().endswith(f"{name.split(',')[-1]}: done")
        return done.stdout

    return run


TOGETHER = (
    "shared_and_never_copied",
    "nodes_are_placed",
    "half_precision_without_kernels",
    "scalars_of_the_host",
    "strided_and_misaligned_inputs",
    "a_call_within_a_call",
    "outputs_without_elements",
    "allocations_come_and_go",
    "two_devices_in_one_call",
    "dumped_with_all_options",
    "freed_before_another_executor_is_there",
    "observed_on_the_device",
    "dumped_on_the_device",
    "references_that_are_the_outputs",
    "options_of_the_device",
    "killed_executor",
)
"""In one process, one after the other."""


def test_tensors_on_a_device(calls: Callable[..., str]) -> None:
    said = calls(",".join(TOGETHER))
    assert [line for line in said.splitlines() if line.endswith(": done")] == [f"{name}: done" for name in TOGETHER]


@pytest.mark.parametrize(("kind", "advice"), [("expandable", "expandable_segments"), ("pool", "cudaMallocAsync")])
def test_memory_that_cannot_be_shared_is_refused_with_what_to_change(
    kind: str, advice: str, calls: Callable[..., str]
) -> None:
    calls("memory_that_cannot_be_shared", advice, FAKE_CUDA_KIND=kind)


def test_the_executor_waits_for_what_is_queued_before(calls: Callable[..., str]) -> None:
    calls("order_of_streams", FAKE_CUDA_LAZY="30")


BY_EVENTS = {"RUST_ORT_TEST_ORDER_BY_EVENTS": "1"}


@pytest.mark.parametrize("environment", [{}, BY_EVENTS | {"FAKE_CUDA_DEAD": "pending"}], ids=["numbers", "events"])
def test_a_stream_that_waits_for_a_dead_executor_comes_to_rest(
    environment: dict[str, str], calls: Callable[..., str]
) -> None:
    calls("killed_with_work_on_its_stream", FAKE_CUDA_LAZY="700", **environment)


def test_a_call_is_part_of_the_stream_before_the_executor_reads_it(calls: Callable[..., str]) -> None:
    calls("handed_over_before_it_is_read")


@pytest.mark.parametrize("environment", [{}, {"CUDA_LAUNCH_BLOCKING": "1"}], ids=["handed over", "waited for"])
def test_an_error_of_a_call_that_was_handed_over_is_raised_by_the_next_use(
    environment: dict[str, str], calls: Callable[..., str]
) -> None:
    calls("late_errors", **environment)


@pytest.mark.parametrize("environment", [{}, BY_EVENTS], ids=["numbers", "events"])
def test_streams_of_several_threads_keep_their_order(environment: dict[str, str], calls: Callable[..., str]) -> None:
    calls("two_threads_two_streams", FAKE_CUDA_LAZY="2", **environment)


def test_a_fork_leaves_what_was_handed_over_to_the_parent(calls: Callable[..., str]) -> None:
    calls("forked_with_a_call_handed_over")


def test_an_executor_waits_for_no_stream_of_a_dead_client(calls: Callable[..., str]) -> None:
    calls("executor_of_a_dead_client_goes_on", FAKE_CUDA_LAZY="1")


@pytest.mark.parametrize(("environment", "why"), [
    ({"FAKE_CUDA_VALUES": "0"}, "lacks stream memory operations"),
    ({"FAKE_CUDA_VALUES": "lost"}, "does not see the number that it wrote"),
    ({"FAKE_CUDA_FAIL": "cuMemHostRegister"}, "cuMemHostRegister failed with 719"),
    (BY_EVENTS, "RUST_ORT_TEST_ORDER_BY_EVENTS is set"),
])  # fmt: skip
def test_events_order_calls_where_numbers_cannot(
    environment: dict[str, str], why: str, calls: Callable[..., str]
) -> None:
    calls("ordered_by_events", why, **environment)


def test_events_order_calls_where_the_driver_is_old(calls: Callable[..., str], tmp_path: Path) -> None:
    built(tmp_path, "libcuda.so.1", "fake_libcuda.c", "-DOLD")
    calls("ordered_by_events", "cuStreamWriteValue32_v2", LD_LIBRARY_PATH=str(tmp_path))


LOST: dict[str, str] = {}
"""The context is, and with it the executor."""
GOES_ON = {"FAKE_CUDA_CODE": "2"}


@pytest.mark.parametrize(("side", "function", "environment"), [
    ("client", "cuStreamWriteValue32:1", GOES_ON), ("client", "cuStreamWriteValue32:5", GOES_ON),
    ("client", "cuStreamWaitValue32:1", LOST), ("client", "cuStreamWaitValue32:5", LOST),
    ("client", "cuMemHostGetDevicePointer:2", GOES_ON),
    ("executor", "cuStreamWriteValue32:2", LOST), ("executor", "cuStreamWriteValue32:5", GOES_ON),
    ("executor", "cuStreamWaitValue32:2", GOES_ON), ("executor", "cuStreamWaitValue32:5", LOST),
    ("executor", "cuStreamWaitValue32:5", GOES_ON), ("executor", "cuMemHostRegister:1", LOST),
    ("executor", "cuMemHostGetDevicePointer:3", GOES_ON),
])  # fmt: skip
def test_each_call_of_the_driver_that_fails_leaves_no_stream_waiting(
    side: str, function: str, environment: dict[str, str], calls: Callable[..., str], tmp_path: Path
) -> None:
    once = {"FAKE_CUDA_FAIL": function, "FAKE_CUDA_ONCE": str(tmp_path / "failed")}
    calls("each_failure_of_the_order", side, function, **once, **environment)


def test_regions_are_kernels_that_are_compiled_once(calls: Callable[..., str]) -> None:
    calls("regions_on_the_device")


def test_a_training_step_of_regions_is_eagers(calls: Callable[..., str]) -> None:
    calls("regions_of_a_training_step")


def test_without_a_compiler_sessions_have_no_regions(calls: Callable[..., str], no_compiler: Path) -> None:
    calls("regions_without_a_compiler", LD_LIBRARY_PATH=str(no_compiler))


@pytest.mark.parametrize("function", ["nvrtcCompileProgram", "cuModuleLoadData", "cuModuleGetFunction"])
def test_a_region_that_cannot_be_compiled_is_none(function: str, calls: Callable[..., str]) -> None:
    calls("regions_without_a_compiler", FAKE_CUDA_FAIL=function)


@pytest.mark.parametrize(
    "name", ["nodes_on_the_device", "nodes_stay_on_the_device", "a_wrong_kernel_on_the_device_is_named"]
)
def test_nodes_of_a_part_on_a_device(name: str, calls: Callable[..., str]) -> None:
    calls(name)


def test_nodes_are_compared_without_a_compiler_too(calls: Callable[..., str], no_compiler: Path) -> None:
    """On the host, then: the verdicts are the same."""
    calls("nodes_on_the_device", LD_LIBRARY_PATH=str(no_compiler))


def test_without_a_compiler_observed_calls_are_judged_on_the_host(calls: Callable[..., str], no_compiler: Path) -> None:
    calls("observed_without_a_compiler", LD_LIBRARY_PATH=str(no_compiler))


def test_a_dumped_call_whose_executor_dies_leaves_its_inputs(calls: Callable[..., str], tmp_path: Path) -> None:
    calls("killed_while_observed", RUST_ORT_TEST_HOLD=str(tmp_path / "hold"))


@pytest.mark.parametrize(
    ("function", "environment"),
    [
        ("cuModuleLoadData", {}),
        ("cuDeviceGetAttribute", {}),
        ("cuLaunchKernel", {}),
        ("cuModuleGetFunction", {"FAKE_CUDA_CODE": "2"}),
        ("cuLaunchKernel:1", {"FAKE_CUDA_CODE": "2"}),
        ("cuLaunchKernel:2", {"FAKE_CUDA_CODE": "2", "FAKE_CUDA_LAZY": "20"}),
        ("cuLaunchKernel:2", {"FAKE_CUDA_CODE": "2"}),
    ],
)
def test_each_call_of_the_driver_that_fails_while_observed_is_no_wrong_verdict(
    function: str, environment: dict[str, str], calls: Callable[..., str]
) -> None:
    calls("each_failure_while_observed", function, FAKE_CUDA_FAIL=function, **environment)


def test_an_executor_that_lives_finishes_what_a_lost_connection_waits_for(calls: Callable[..., str]) -> None:
    calls("closed_with_work_on_its_stream", FAKE_CUDA_LAZY="700", FAKE_CUDA_DEAD="pending")


def asked_with_cudas_compiler(tmp_path: Path, ask: dict[str, object]) -> dict[str, Any]:
    """What the probe answers with NVRTC of torch's wheels, and the stand-in for the driver."""
    found = [path.parent for path in (Path(torch.__file__).parents[1] / "nvidia").glob("*/lib/libnvrtc.so.*")]
    if not found:
        pytest.skip("no NVRTC: torch here is without CUDA")
    built(tmp_path, "libcuda.so.1", "fake_libcuda.c")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([str(tmp_path), str(found[0])]),
        "FAKE_CUDA_FOLDER": str(tmp_path),
    }
    done = subprocess.run(
        [os.environ["RUST_ORT_BINARY"], "cuda-probe"], input=json.dumps(ask) + "\n", env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_cudas_own_compiler_takes_the_kernels(tmp_path: Path) -> None:
    """It makes machine code of them, which the stand-in for the driver then cannot load."""
    ask = {"op": "measure", "device": 0, "dtype": "F32", "reference": "0000803f", "candidate": "00000040"}
    answer = asked_with_cudas_compiler(tmp_path, ask)
    assert answer["error"].startswith("cuModuleLoadData failed with 1 (CUDA_ERROR_INVALID_VALUE)"), answer


def test_cudas_own_compiler_takes_the_kernels_of_regions(tmp_path: Path) -> None:
    """As above, of each region that the probe has."""
    answer = asked_with_cudas_compiler(tmp_path, {"op": "regions", "device": 0})
    assert len(answer["regions"]) >= 10
    for region in answer["regions"]:
        assert region["error"].startswith("cuModuleLoadData failed with 1 (CUDA_ERROR_INVALID_VALUE)"), region


@pytest.mark.parametrize(
    "environment", [{}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {"FAKE_CUDA_LAZY": "5"}, {"FAKE_CUDA_VALUES": "0"}]
)
def test_a_graph_on_several_devices_runs_each_part_on_its_own(
    environment: dict[str, str], calls: Callable[..., str]
) -> None:
    calls("several_devices", **environment)


@pytest.fixture(scope="session")
def libtorch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's libtorch_cuda.so."""
    return built(tmp_path_factory.mktemp("libtorch"), "libtorch_cuda.so", "fake_libtorch.c")


def with_libtorch(driver: Path, libtorch: Path, journal: Path | None = None) -> dict[str, str]:
    library = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    told = {} if journal is None else {"FAKE_LIBTORCH_JOURNAL": str(journal)}
    return {"LD_LIBRARY_PATH": f"{driver}:{libtorch}", "FAKE_LIBTORCH_CPU": str(library), **told}


def test_attention_runs_by_the_kernel_that_eager_has(
    driver: Path, libtorch: Path, tmp_path: Path, calls: Callable[..., str]
) -> None:
    calls("attention_by_libtorch", **with_libtorch(driver, libtorch, tmp_path / "journal"))


def test_attention_without_libtorch_is_told_once(driver: Path, calls: Callable[..., str]) -> None:
    calls("attention_without_libtorch", "libtorch_cuda.so: cannot open shared object file")


def test_a_libtorch_that_is_not_known_is_told_once(driver: Path, libtorch: Path, calls: Callable[..., str]) -> None:
    environment = with_libtorch(driver, libtorch) | {"FAKE_LIBTORCH_VERSION": "2.16"}
    calls("attention_without_libtorch", "libtorch 2.16.0 is not known here, 2.11 to 2.15 are", **environment)


def test_an_executor_with_cudas_provider_looks_for_torchs_library_last(tmp_path: Path) -> None:
    library = tmp_path / "libonnxruntime.so.1"
    assert pool.cuda_folders(str(library)) == []
    (tmp_path / "libonnxruntime_providers_cuda.so").touch()
    folder = Path(torch.__file__).parent / "lib"
    found = pool.cuda_folders(str(library))
    assert found[-1:] == [str(folder)] * (folder / "libtorch_cuda.so").exists()
    assert all(Path(one).match("nvidia/*/lib") for one in found[:-1])


def test_torchs_own_library_has_all_that_is_called(driver: Path, calls: Callable[..., str]) -> None:
    folder = Path(torch.__file__).parent / "lib"
    if not (folder / "libtorch_cuda.so").exists():
        pytest.skip("torch here is without CUDA")
    calls("attention_by_torchs_own_library", LD_LIBRARY_PATH=f"{driver}:{folder}")


def test_what_libtorch_says_is_in_the_error(
    driver: Path, libtorch: Path, tmp_path: Path, calls: Callable[..., str]
) -> None:
    environment = with_libtorch(driver, libtorch, tmp_path / "journal")
    calls("attention_that_fails", **environment, FAKE_LIBTORCH_FAIL=str(tmp_path / "fail"))


def with_both(driver: Path, management: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{driver}:{management}"}


@pytest.mark.parametrize(("environment", "said"), [
    ({}, ("1.0 MiB", "3.0 MiB", "")),
    ({"FAKE_NVML_OTHERS": "1073741824:8589934592"}, ("1.0 MiB", "3.0 MiB", ", pid 1073741824 8.0 GiB")),
    ({"FAKE_NVML_UNAVAILABLE": "1"}, ("an unknown amount", "an unknown amount", "")),
])  # fmt: skip
def test_want_of_memory_names_those_who_hold_it(
    environment: dict[str, str], said: tuple[str, ...], driver: Path, management: Path, calls: Callable[..., str]
) -> None:
    calls("who_holds_memory", *said, **with_both(driver, management), **environment)


@pytest.mark.parametrize(("environment", "why"), [
    (None, "NVIDIA's management library: libnvidia-ml.so.1: "),
    ({"FAKE_NVML_FAIL": "nvmlInit"}, "nvmlInit failed with 999: Unknown Error"),
    ({"FAKE_NVML_HIDES": "1"}, "no process is told"),
])  # fmt: skip
def test_what_nobody_tells_is_unknown(
    environment: dict[str, str] | None, why: str, driver: Path, management: Path, calls: Callable[..., str]
) -> None:
    libraries = {} if environment is None else with_both(driver, management)
    calls("nobody_tells_who_holds_memory", why, **libraries, **(environment or {}))


def test_memory_of_devices_is_in_status_and_given_back_sooner(
    driver: Path, management: Path, calls: Callable[..., str]
) -> None:
    calls("device_memory_in_status", **with_both(driver, management), RUST_ORT_IDLE_DEVICE_TIMEOUT_S="2")


def test_calls_that_come_again_become_cuda_graphs(calls: Callable[..., str]) -> None:
    calls("calls_become_cuda_graphs", RUST_ORT_LOG="debug")


@pytest.mark.parametrize(("how", "ended"), [("1", "1"), ("invalid", "0")])
def test_a_capture_that_fails_is_ended_and_costs_its_call_the_graph(
    how: str, ended: str, calls: Callable[..., str]
) -> None:
    calls("a_call_that_cannot_be_captured", ended, FAKE_CUDA_CAPTURING=how, RUST_ORT_LOG="debug")
