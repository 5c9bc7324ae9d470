"""Python programs in processes of their own that have torch already: forks of one that imported it.

`run` is subprocess.run for the command lines of this interpreter. A process begins with torch and all that the first
torch.compile imports of it, which is most of what a short program costs. It has none of rust_ort, unless asked, no
threads but OpenBLAS's (which is made for forks), and no kernel has run in it. What a process finds out at its start
(flags, and each variable of the environment that is not in LATE) is what its warm interpreter was started with: another
one is started for another value.

Not for a test whose claim is what a fresh process imports of torch, how long it takes, or how the loader finds torch's
own libraries.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TextIO

TORCH = (
    "torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.lowering", "torch.export._trace",
    "torch.fx.experimental.validator", "torch.distributed.tensor.experimental", "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.collect_tracepoints_pass", "torch._functorch._aot_autograd.subclass_codegen",
    "torch._inductor.compiler_bisector", "torch._dynamo.backends.inductor", "torch._dynamo.backends.cudagraphs",
    "torch._dynamo.backends.distributed",
)  # fmt: skip
"""With what they import in turn, all that the first torch.compile imports of torch."""
EXPORT = ("onnx", "onnx_ir", "onnxscript", "torch.onnx._internal.exporter._core")
"""What an export imports beside."""
LATE = re.compile(
    r"(RUST_ORT|FAKE|CUDA|PYTEST)_.*|PYTHONPATH|LD_LIBRARY_PATH|TORCHINDUCTOR_CACHE_DIR|HOME|PATH|PWD|OLDPWD|TMPDIR|COLUMNS|_"
)
"""Variables that nothing reads before a program does. LD_LIBRARY_PATH: programs of the program's see it; in the process
itself `libraries` take its place."""
PR_SET_PDEATHSIG = 1


class Warm:
    """A warm interpreter, which forks at each request."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.control = control
        self.process = process
        """The first one's, which ends with its socket and takes along what was forked of it."""

    @classmethod
    def start(cls, flags: Sequence[str], environment: Mapping[str, str]) -> Warm:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, *flags, __file__, str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        return cls(ours, process)

    def with_modules(self, modules: Sequence[str]) -> Warm:
        """One forked of it, which has imported these as well."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as order:
            order.write(json.dumps({"modules": list(modules)}).encode())
            self.send([order.fileno(), theirs.fileno()])
        return Warm(ours, self.process)

    def send(self, fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self.control, [b"r"], fds)
        except OSError as error:
            raise RuntimeError(f"the warm interpreter is lost: {error}") from error


_warm: dict[object, Warm] = {}
_lock = threading.Lock()


def _interpreter(flags: Sequence[str], environment: Mapping[str, str], modules: Sequence[str]) -> Warm:
    early = {name: value for name, value in environment.items() if not LATE.fullmatch(name)}
    key = (*flags, *sorted(early.items()))
    with _lock:
        if key not in _warm or _warm[key].process.poll() is not None:
            start = early | {name: environment[name] for name in ("HOME", "PATH", "TMPDIR") if name in environment}
            _warm[key] = Warm.start(flags, start)
        if not modules:
            return _warm[key]
        more = (key, *modules)
        if more not in _warm or _warm[more].process is not _warm[key].process:
            _warm[more] = _warm[key].with_modules(modules)
        return _warm[more]


def stop() -> None:
    """Ends those of this process."""
    with _lock:
        for warm in _warm.values():
            with contextlib.suppress(OSError), warm.control:
                warm.control.shutdown(socket.SHUT_RDWR)  # a fork of this process may have it, too
        for process in {warm.process for warm in _warm.values()}:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _warm.clear()


def _parted(command: Sequence[str | os.PathLike[str]]) -> tuple[list[str], list[str]]:
    """(flags, the program and its arguments) of a command line of this interpreter."""
    first, *rest = [os.fspath(word) for word in command]
    assert first == sys.executable, f"{first} is not this interpreter"
    flags = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m"):
        flags.append(rest.pop(0))
        if flags[-1] in ("-W", "-X"):
            flags.append(rest.pop(0))
    assert rest, "a program is missing"
    return flags, rest


class Process:
    """A program that runs: of subprocess.Popen what tests need. stdin, stdout: the text pipes that `start` makes."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        standard: tuple[int, int, int],
        *,
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        modules: Sequence[str],
        libraries: Sequence[str | os.PathLike[str]],
    ) -> None:
        flags, program = _parted(command)
        environment = dict(os.environ if env is None else env)
        warm = _interpreter(flags, environment, modules)
        ordered = {
            "program": program, "environment": environment, "cwd": os.fspath(cwd or os.getcwd()),
            "libraries": [os.fspath(path) for path in libraries],
        }  # fmt: skip
        self.args = [os.fspath(one) for one in command]
        self.stdin: TextIO | None = None
        self.stdout: TextIO | None = None
        self.returncode: int | None = None
        reading, writing = os.pipe()
        self._answer = os.fdopen(reading, "rb", buffering=0)
        with os.fdopen(writing, "wb", buffering=0), tempfile.TemporaryFile() as order:
            order.write(json.dumps(ordered).encode())
            order.flush()
            warm.send([order.fileno(), *standard, writing])
        try:
            self.pid = int(self._line(600.0))
        except subprocess.TimeoutExpired:
            raise RuntimeError("the warm interpreter does not answer") from None

    def _line(self, timeout: float) -> bytes:
        """The next of the answer: a process's id, then its exit code. Errors: TimeoutExpired; RuntimeError when the
        warm interpreter is lost."""
        deadline = time.monotonic() + timeout
        told = b""
        while not told.endswith(b"\n"):
            if not select.select([self._answer], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            more = self._answer.read(1)
            if not more:
                raise RuntimeError("the warm interpreter is lost")
            told += more
        return told

    def wait(self, timeout: float = 600.0) -> int:
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._answer.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: str = "", timeout: float = 600.0) -> tuple[str, None]:
        """What it writes until its end."""
        assert self.stdin is not None and self.stdout is not None
        with self.stdin, self.stdout, contextlib.suppress(BrokenPipeError):
            self.stdin.write(given)
            self.stdin.close()
            timer = threading.Timer(timeout, self.kill)
            timer.start()
            try:
                said = self.stdout.read()
            finally:
                timer.cancel()
        self.wait(timeout)
        return said, None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits, with its pipes closed."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.wait()


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    modules: Sequence[str] = (),
) -> Process:
    """subprocess.Popen of a command line of this interpreter, standard input and output text pipes."""
    theirs, write = os.pipe()
    read, out = os.pipe()
    try:
        process = Process(command, (theirs, out, 2), env=env, cwd=None, modules=modules, libraries=())
    finally:
        os.close(theirs)
        os.close(out)
    process.stdin, process.stdout = os.fdopen(write, "w"), os.fdopen(read)
    return process


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 600.0,
    check: bool = False,
    modules: Sequence[str] = (),
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> subprocess.CompletedProcess[str]:
    """subprocess.run of [sys.executable, flags…, script | -c text | -m module, arguments…], output captured as text,
    standard input empty. modules: which the process has imported already, beside torch's. libraries: what the dynamic
    loader would find by LD_LIBRARY_PATH, which it reads at a process's start only; each has its name as SONAME.
    Errors: as subprocess.run; RuntimeError when the warm interpreter is lost."""
    with open(os.devnull, "rb") as empty, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        standard = (empty.fileno(), out.fileno(), err.fileno())
        process = Process(command, standard, env=env, cwd=cwd, modules=modules, libraries=libraries)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30.0)
            raise subprocess.TimeoutExpired(process.args, timeout, _text(out), _text(err)) from None
        done = subprocess.CompletedProcess(process.args, process.wait(), _text(out), _text(err))
    if check:
        done.check_returncode()
    return done


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(control: socket.socket) -> list[int]:
    """Forks at each request, and tells how the forks end, until the other side is gone. Returns in the forks alone:
    their descriptors."""
    children: dict[int, tuple[int, int]] = {}  # pidfd: (id, pipe of the answer)
    while True:
        watched: list[Any] = [control, *children]
        for ready in select.select(watched, [], [])[0]:
            if ready is not control:
                process, answer = children.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(answer, f"{code}\n".encode())
                os.close(ready)
                os.close(answer)
                continue
            data, fds, _, _ = socket.recv_fds(control, 1, 5)
            if not data:
                for process, _ in children.values():
                    os.kill(process, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    while True:
                        os.wait()  # and warm ones that were forked of this one, whose other side is gone, too
                os._exit(0)
            process = os.fork()
            if not process:
                control.close()
                for one in (*children, *(answer for _, answer in children.values())):
                    os.close(one)
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                return fds
            *others, answer = fds
            if len(fds) == 5:
                with contextlib.suppress(BrokenPipeError):
                    os.write(answer, f"{process}\n".encode())
                pidfd = os.pidfd_open(process)
                children[pidfd] = (process, answer)
            else:
                others = fds
            for fd in others:
                os.close(fd)


def spare_torchs_own_measuring() -> None:
    """A sixth of the tests' time: pytest hangs its handlers on every logger, and torch traces each compilation for
    whoever listens to this one; and it flushes the processor's caches to time the guards of each graph. And with
    Python's own thresholds the collector of garbage takes a twelfth; torch collects after it compiles."""
    from torch._dynamo import guards

    logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign, assignment]
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    gc.set_threshold(50_000, 20, 100)


def read_json(fd: int) -> dict[str, Any]:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        found: dict[str, Any] = json.load(file)
        return found


def begin(order: dict[str, Any], files: Sequence[int]) -> None:
    """Makes the process what its environment, folder and standard files would have made it."""
    for standard, fd in enumerate(files):
        os.dup2(fd, standard)
        os.close(fd)
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    for name in set(os.environ) - set(order["environment"]):
        del os.environ[name]
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = own + [path for path in sys.path[1:] if path not in before]
    importlib.invalidate_caches()
    for library in order["libraries"]:
        ctypes.CDLL(library)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    modules: list[str] = [*TORCH]
    while True:
        for module in modules:
            with contextlib.suppress(Exception):  # names differ from release to release; a program imports its own
                importlib.import_module(module)
        spare_torchs_own_measuring()
        gc.collect()
        gc.freeze()
        fds = serve(control)
        order = read_json(fds[0])
        if "modules" not in order:
            break
        modules = order["modules"]
        control = socket.socket(fileno=fds[1])
    os.close(fds[4])
    begin(order, fds[1:4])
    run_program(order["program"])


def run_program(program: list[str]) -> None:
    """As Python's own start does it; how it ends is how this process does."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module  # this one lives on by main's frame
    first, *rest = program
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    if first == "-c":
        text, sys.argv = rest[0], ["-c", *rest[1:]]
        sys.path.insert(0, "")
        code = compile(text, "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(first).resolve().parent))
        module.__dict__["__file__"] = first
        code = compile(Path(first).read_bytes(), first, "exec", dont_inherit=True)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
