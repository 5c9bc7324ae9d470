"""What an executor is asked for: how many threads its pool has, whether they spin, whether it has libtorch."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch

from rust_ort._native import THREADS
from rust_ort.memory import process
from rust_ort.options import Options

LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Where launchers of several processes on one machine say how many these are: torchrun, Open MPI, MPICH."""


def threads(options: Options) -> int:
    """Threads of the executor's pool: as asked for, else `default_threads`."""
    return options.threads or default_threads()


@functools.cache
def default_threads() -> int:
    """As many as torch uses (OMP_NUM_THREADS, torch.set_num_threads), at most `cores`. Of a process once: an executor's
    pool keeps its size."""
    return min(torch.get_num_threads(), cores(), THREADS)


def cores() -> int:
    """Those that this process may use, or this rank's share of them where its launcher bound it to none; at least 1."""
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or 1) else max(1, usable // _local_ranks())


def _local_ranks() -> int:
    told = (os.environ.get(name, "") for name in LOCAL_RANKS)
    return next((int(text) for text in told if text.isdecimal() and int(text)), 1)


def libtorch(options: Options) -> str:
    """The folder of this process's libtorch, where a rule of `runtimes` gives nodes to it; "" where none does."""
    asked = any(patterns for runtime, patterns in options.runtimes.items() if runtime != "ort")
    return os.path.join(os.path.abspath(torch.__path__[0]), "lib") if asked else ""


def cuda_folders(library: str) -> list[str]:
    """Where the libraries are that an onnxruntime library with a provider for CUDA computes with: CUDA's of torch's
    wheels, and torch's own, whose kernels attention has there; none for a library without one."""
    if not Path(library).with_name("libonnxruntime_providers_cuda.so").exists():
        return []
    torchs = Path(os.path.abspath(torch.__path__[0]))
    wheels = sorted(folder for folder in (torchs.parent / "nvidia").glob("*/lib") if any(folder.glob("lib*.so*")))
    own = [torchs / "lib"] if (torchs / "lib/libtorch_cuda.so").exists() else []
    return [str(folder) for folder in [*wheels, *own]]


def allow_spinning(options: Options) -> bool:
    """Whether the pool's threads spin between operators; off unless asked for: spinning starves torch's own threads."""
    return options.session_options.get("session.intra_op.allow_spinning", "0") == "1"


process.after_fork_in_child.append(default_threads.cache_clear)
