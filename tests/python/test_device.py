"""Calls on a CUDA device, over a stand-in for CUDA's driver: the way of the tensors. device_calls.py is what runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests/fixtures/fake_libcuda.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(folder / "libcuda.so.1"), str(source)]
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
            "LD_LIBRARY_PATH": str(driver),
            "FAKE_CUDA_FOLDER": str(home / "cuda"),
            "RUST_ORT_TEST_CUDA_ON_HOST": "1",
            "RUST_ORT_SOCKET": str(home / "v1.sock"),
            "RUST_ORT_STATE_DIR": str(home / "state"),
            **environment,
        }
        everything = {**os.environ, **own}
        program = [sys.executable, str(Path(__file__).parent / "device_calls.py"), name, *arguments]
        try:
            done = subprocess.run(program, env=everything, capture_output=True, text=True, timeout=120, check=False)
        finally:
            binary = everything["RUST_ORT_BINARY"]
            subprocess.run([binary, "stop", "--force"], env=everything, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert done.stdout.strip().endswith(f"{name.split(',')[-1]}: done")
        return done.stdout

    return run


TOGETHER = (
    "shared_and_never_copied",
    "scalars_of_the_host",
    "strided_and_misaligned_inputs",
    "outputs_without_elements",
    "allocations_come_and_go",
    "two_devices_in_one_call",
    "freed_before_another_executor_is_there",
    "observed_through_the_host",
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
