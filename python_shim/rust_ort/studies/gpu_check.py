"""What this machine can do with a GPU: what is there, then steps, each in a process of its own, and a table of them.

Works offline, with a binary, a native module and an onnxruntime library built elsewhere. Needs torch (2.11 or later) of
the machine, and for some steps transformers. Exit code: 0 everything asked works, 1 a step failed, 2 something is
missing. --device cpu rehearses on the CPU all that a CPU can run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rust_ort.studies.gpu.runner import Task

PACKAGE = Path(__file__).resolve().parents[1]
WORKS, MISSING = 0, 2
MIN_TORCH = (2, 11)
SECONDS = 60
IPC_SECONDS = 15
PROBE_BYTES = 4 << 20
SLEEP_CYCLES = 400_000_000
PAUSE_MS = 300
MEASURED = 300_000


class Missing(Exception):
    """Something is not there; the text says what and what to do."""


class ProbeFailed(Exception):
    """The probe ran and gave a wrong answer."""


# --- what is there ---------------------------------------------------------------------------------------------------


def nvidia_smi() -> str:
    """Name, memory and driver of each GPU, or why there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "not found: no NVIDIA driver is installed"
    fields = "name,memory.total,driver_version,compute_cap"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    text = (done.stdout or done.stderr).strip()
    return text if done.returncode == 0 else f"exit code {done.returncode}: {text}"


def torch_facts() -> dict[str, str]:
    """Version, CUDA build, and whether torch sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return {"torch": "not found"}
    import torch

    facts = {"torch": torch.__version__, "torch CUDA build": str(torch.version.cuda)}
    try:
        n = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(n))
        facts["torch sees"] = f"{n} GPU" + (f": {names}" if names else "")
    except RuntimeError as error:
        facts["torch sees"] = f"error: {error}"
    return facts


def onnxruntime_library(folder: Path | None) -> Path:
    """libonnxruntime.so in `folder`, or in the onnxruntime wheel. Raises Missing."""
    if folder is None:
        spec = importlib.util.find_spec("onnxruntime")
        if spec is None or spec.origin is None:
            raise Missing(
                "no onnxruntime: give the folder of onnxruntime-gpu's libraries: make gpu-check ORT_GPU_LIB=..."
            )
        folder = Path(spec.origin).parent / "capi"
    found = sorted(folder.glob("libonnxruntime.so*"))
    if not found:
        raise Missing(f"no libonnxruntime.so* in {folder}: unpack onnxruntime-gpu's wheel and name its capi folder")
    return found[0]


def native_module(package: Path) -> Path:
    """The native module beside the sources of `package`, which is not imported. Raises Missing."""
    module = package / "_native.abi3.so"
    if not module.exists():
        raise Missing(f"the native module, not found at {module}: make build, or copy the one that was built with the "
                      "binary (target/release/lib_native.so) there under this name")  # fmt: skip
    try:
        ctypes.CDLL(str(module))
    except OSError as error:
        raise Missing(f"a native module that loads here: {error}") from error
    return module


def cuda_provider(library: Path) -> str:
    """Whether the CUDA provider's library lies beside, and whether it loads."""
    provider = library.parent / "libonnxruntime_providers_cuda.so"
    if not provider.exists():
        return f"not found beside {library.name}: this is a CPU build"
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(provider), mode=os.RTLD_LAZY)
    except OSError as error:
        # It is made to be loaded by onnxruntime, which resolves Provider_GetHost; any other reason is a real one.
        if "Provider_GetHost" not in str(error):
            return f"{provider.name} does not load: {error}"
    return f"{provider.name} found"


def library_version(library: Path) -> str:
    """onnxruntime's own version, read from the file: OrtGetApiBase()->GetVersionString()."""
    try:
        handle = ctypes.CDLL(str(library))
        handle.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p * 2)
        base = handle.OrtGetApiBase().contents
        text = ctypes.CFUNCTYPE(ctypes.c_char_p)(base[1])()
    except (OSError, AttributeError, ValueError) as error:
        return f"does not load: {error}"
    return str(text.decode())


# --- CUDA IPC probe --------------------------------------------------------------------------------------------------


class Probe:
    """The Rust side: one command a line, one answer a line."""

    def __init__(self, binary: str) -> None:
        from rust_ort.studies.gpu.libraries import wheel_folders

        folders = [*map(str, wheel_folders()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.process = subprocess.Popen(
            [binary, "cuda-probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)},
        )  # fmt: skip

    def ask(self, **command: object) -> dict[str, Any]:
        """The answer. Raises ProbeFailed with the Rust side's error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it answered and ended: the answer says why
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ProbeFailed(f"{command['op']}: the Rust process ended with {self.process.wait(SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise ProbeFailed(f"{command['op']}: {answer['error']}")
        return answer

    def end(self) -> None:
        """Ends the Rust process, whatever it is at."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def pattern(seed: int, n: int, device: str) -> Any:
    """Byte i = (31 i + seed) mod 251, as the Rust side makes it."""
    import torch

    return ((torch.arange(n, device=device, dtype=torch.int64) * 31 + seed) % 251).to(torch.uint8)


def storage_of(tensor: Any) -> tuple[int, bytes, int]:
    """(device, memory handle, offset in bytes into the block) of a CUDA tensor. Raises ProbeFailed without a handle."""
    device, handle, _size, offset, *_ = tensor.untyped_storage()._share_cuda_()
    if handle is None:
        raise ProbeFailed("torch gave no handle for an empty storage")
    return int(device), bytes(handle), int(offset) + tensor.storage_offset() * tensor.element_size()


def ipc_probe(binary: str) -> list[str]:
    """A torch tensor read and written by a Rust process, each stream waiting for the other's. Returns what was seen."""
    import torch

    # A second tensor from the same allocator makes the first's offset in its block one that is not 0.
    padding = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    tensor = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device="cuda")
    device, handle, offset = storage_of(tensor)
    ready = torch.cuda.Event(interprocess=True)
    done = torch.cuda.Event(interprocess=True)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    ready.record(stream)  # an event that was never recorded counts as done, and may not exist yet
    done.record(stream)
    seen = []
    probe = Probe(binary)
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        opened = probe.ask(
            op="open", device=f"GPU-{uuid}", memory=handle.hex(), offset=offset, len_bytes=PROBE_BYTES,
            ready=ready.ipc_handle().hex(), done=done.ipc_handle().hex(),
        )  # fmt: skip
        seen.append(f"opened on {opened['device']}, offset {offset}: driver of CUDA {opened['driver_version']}")
        seen.append(_rust_reads(probe, tensor, stream, ready))
        seen.append(_rust_writes(probe, tensor, stream, ready, done))
        probe.ask(op="close")
        if not torch.equal(tensor, pattern(9, PROBE_BYTES, "cuda")) or padding.any():
            raise ProbeFailed("after closing, the tensor or its neighbour has changed")
        seen.append("closed; the tensor lives on, its neighbour is untouched")
        seen.append(_rust_measures(probe, f"GPU-{uuid}"))
    finally:
        probe.end()
    return seen


def _rust_reads(probe: Probe, tensor: Any, stream: Any, ready: Any) -> str:
    import torch

    from rust_ort import torch_private

    source = pattern(5, PROBE_BYTES, "cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch_private.gpu_sleep(SLEEP_CYCLES)  # without order between the streams, Rust would read the zeros
        tensor.copy_(source)
        ready.record(stream)
    early = not ready.query()
    answer = probe.ask(op="read", seed=5)
    if answer["wrong_bytes"]:
        raise ProbeFailed(
            f"read: {answer['wrong_bytes']} of {answer['len_bytes']} bytes wrong: {answer['first_wrong']}"
        )
    return f"read by Rust, all {answer['len_bytes']} bytes right; asked before the data was there: {early}"


def _rust_writes(probe: Probe, tensor: Any, stream: Any, ready: Any, done: Any) -> str:
    import torch

    expected = pattern(9, PROBE_BYTES, "cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        ready.record(stream)
    probe.ask(op="write", seed=9, delay_ms=PAUSE_MS)
    early = not done.query()
    with torch.cuda.stream(stream):
        stream.wait_event(done)
        copy = tensor.clone()
        wrong = int((copy != expected).sum().item())
    if wrong:
        raise ProbeFailed(f"write: {wrong} of {PROBE_BYTES} bytes wrong on torch's side")
    return f"written by Rust, all {PROBE_BYTES} bytes right; torch's stream waited for it: {early}"


def _rust_measures(probe: Probe, device: str) -> str:
    """The device finds the metrics that the host finds, but for sums, which are added up in another order."""
    import torch

    made = torch.Generator().manual_seed(5)
    dtypes = {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F64": torch.float64,
        "I64": torch.int64,
    }
    for name, dtype in dtypes.items():
        reference = (100 * torch.randn(MEASURED, generator=made)).to(dtype)
        candidate = reference + (torch.rand(MEASURED, generator=made) > 0.9).to(dtype)
        pair = {"reference": reference, "candidate": candidate}
        hexadecimal = {side: tensor.view(torch.uint8).numpy().tobytes().hex() for side, tensor in pair.items()}
        answer = probe.ask(op="measure", device=device, dtype=name, **hexadecimal)
        found, expected = (answer[side][0]["verdict"]["metrics"] for side in ("device", "host"))
        for sums in (found, found["max_diff"], expected, expected["max_diff"]):
            for key in ("mean_abs", "rmse", "cosine", "sum"):
                sums[key] = float(f"{float(sums[key]):.9e}") if key in sums else None
        if found != expected:
            raise ProbeFailed(f"metrics of {name}: the device finds {found}, the host {expected}")
    return f"metrics of {MEASURED} elements of {', '.join(dtypes)} are the host's"


# --- the whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the steps need. folders: of the libraries that the CUDA provider needs. facts: what the page tells of the
    machine, without its name and its paths."""

    binary: str
    library: Path
    folders: Sequence[Path]
    facts: dict[str, str]


def look(arguments: argparse.Namespace) -> Machine:
    """Print what is there. Raises Missing with every missing thing."""
    missing: list[str] = []
    gpus = nvidia_smi()
    say("nvidia-smi", gpus)
    facts = torch_facts()
    for name, value in facts.items():
        say(name, value)
    known = {"GPU": gpus if arguments.device == "cuda" else "none: a rehearsal on the CPU", "CPU": cpu(), **facts}
    known["python"] = platform.python_version()
    if facts["torch"] == "not found":
        missing.append(f"torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or later with CUDA; name a Python that has it: PYTHON=...")
    elif tuple(int(part) for part in facts["torch"].split(".")[:2]) < MIN_TORCH:
        missing.append(f"torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or later; found {facts['torch']}")
    elif arguments.device == "cpu":
        pass
    elif facts["torch CUDA build"] == "None":
        missing.append("a CUDA build of torch; this one is for the CPU only")
    elif facts["torch sees"].startswith(("0 GPU", "error")):
        missing.append("a GPU that torch can use (see nvidia-smi and torch above)")
    library = None
    try:
        library = onnxruntime_library(arguments.onnxruntime)
        known["onnxruntime"] = library_version(library)
        say("onnxruntime", f"{known['onnxruntime']} ({library})")
        say("CUDA provider", cuda_provider(library))
    except Missing as error:
        missing.append(str(error))
    try:
        say("native module", str(native_module(PACKAGE)))
    except Missing as error:
        missing.append(str(error))
    say("rust-ort", arguments.binary)
    if not os.access(arguments.binary, os.X_OK):
        missing.append(f"the rust-ort binary, not found at {arguments.binary}: make build, or name one: BIN=...")
    folders: list[Path] = []
    if not missing and library is not None and arguments.device == "cuda":
        folders, lacking = provider_libraries(library, facts["torch CUDA build"], known)
        missing += lacking
    if missing or library is None:
        raise Missing("\n".join(f"missing: {line}" for line in missing))
    return Machine(binary=arguments.binary, library=library, folders=folders, facts=known)


def provider_libraries(library: Path, torch_cuda: str, facts: dict[str, str]) -> tuple[list[Path], list[str]]:
    """(folders that the executor needs on LD_LIBRARY_PATH, what of the provider's libraries is nowhere); printed, and
    the CUDA versions told in `facts`."""
    from rust_ort.studies.gpu import libraries

    provider = library.parent / "libonnxruntime_providers_cuda.so"
    if not provider.exists():
        return [], [f"{provider.name} beside {library.name}: unpack onnxruntime-gpu's wheel and name its capi folder"]
    names = libraries.needed(provider)
    found = libraries.where(names, [library.parent, *libraries.wheel_folders()])
    folders = list(dict.fromkeys(folder for folder in found.values() if folder is not None))
    major = libraries.cuda_major(names)
    facts["CUDA of the provider"] = f"{major}, torch's {torch_cuda}"
    say("CUDA versions", f"the provider's {major}, torch's {torch_cuda}")
    for folder in folders:
        say("libraries", f"{folder}: {', '.join(name for name, at in found.items() if at == folder)}")
    return folders, [f"{name}, which {provider.name} needs" for name in names if name not in found]


def cpu() -> str:
    """Its model and how many cores this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{len(os.sched_getaffinity(0))} cores, {model or platform.machine()}"


def say(name: str, text: str) -> None:
    lines = text.splitlines() or [""]
    print(f"{name + ':':18} {lines[0]}")
    for line in lines[1:]:
        print(f"{'':18} {line}")


def probe(binary: str, record: Path) -> None:
    """The step `ipc`, in its own process: what was seen, as rows."""
    from rust_ort.studies.gpu.record import Record

    def fill(numbers: dict[str, Any]) -> None:
        for line in ipc_probe(binary):
            name, _, seen = line.partition(": ")
            numbers[name] = seen or "yes"

    made = Record(record)
    made.row("tensors shared by CUDA IPC", fill)
    made.end()


def steps(machine: Machine, device: str) -> list[Task]:
    """Those there are on the device, in their order: the main job first."""
    from rust_ort.studies.gpu.runner import Task
    from rust_ort.studies.gpu.steps import STEPS

    itself = [sys.executable, os.path.abspath(__file__), "--binary", machine.binary]
    ipc = Task(name="ipc", title="a Rust process reads and writes a torch tensor by CUDA IPC", seconds=IPC_SECONDS,
               command=[*itself, "--probe"])  # fmt: skip
    of = [sys.executable, "-m", "rust_ort.studies.gpu"]
    first, *others = [
        Task(name=s.name, title=s.title, seconds=s.seconds[device == "cpu"], alone=s.alone,
             command=[*of, s.name, device])
        for s in STEPS
    ]  # fmt: skip
    return [first, *([] if device == "cpu" else [ipc]), *others]


def chosen(tasks: Sequence[Task], names: Sequence[str] | None) -> list[Task]:
    """Those named; all for None. Raises Missing for a name that is none of them."""
    unknown = set(names or ()) - {task.name for task in tasks}
    if unknown:
        raise Missing(
            f"--only: no step {', '.join(sorted(unknown))} here; there are {', '.join(t.name for t in tasks)}"
        )
    return [task for task in tasks if names is None or task.name in names]


def run(machine: Machine, arguments: argparse.Namespace) -> int:
    """Run the steps, print what came of them, write the page. Returns the exit code."""
    from rust_ort.studies.gpu import page, runner
    from rust_ort.studies.gpu.record import line_of

    every = steps(machine, arguments.device)
    tasks = chosen(every, arguments.only)
    output = arguments.output or arguments.logs / "gpu.json"
    results: dict[str, runner.Result] = {}
    if arguments.resume:
        try:
            earlier = page.known(output.with_suffix(".json"), machine.facts)
        except ValueError as error:
            raise Missing(f"--resume: {error}; leave it out, or name another --output") from error
        results = {result.name: result for result in earlier}
    known = {name: result.kept(retry=arguments.retry) for name, result in results.items()}
    around = runner.environment(machine.binary, machine.library, machine.folders)
    seconds = arguments.minutes * 60 - (time.monotonic() - arguments.begin)
    for result in runner.run_all(tasks, around, seconds=seconds, logs=arguments.logs, known=known):
        verdict = f"{result.verdict}{f': {result.why}' if result.why else ''} ({result.seconds:.0f} s)"
        say(result.name, "\n".join([verdict, *map(line_of, result.rows)]))
        results[result.name] = result
        page.write(output, [results[task.name] for task in every if task.name in results], machine.facts)
    done = [results[task.name] for task in tasks]
    print(f"\n{page.text(done)}\n\nlogs of the steps: {arguments.logs}; results: {output.with_suffix('.json')}")
    return page.exit_code(done)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--binary", default="target/release/rust-ort", help="rust-ort, possibly built elsewhere")
    parser.add_argument("--onnxruntime", type=Path, help="folder that holds onnxruntime-gpu's libonnxruntime.so")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--only", type=lambda text: text.split(","), help="steps, with commas between them")
    parser.add_argument(
        "--minutes", type=float, help="for everything; rows that had no time say so (default 8; of a rehearsal 4)"
    )
    parser.add_argument("--resume", action="store_true", help="try what the last run with this output did not come to")
    parser.add_argument("--retry", action="store_true", help="with --resume: and what failed")
    parser.add_argument("--output", type=Path, help="markdown file for the table; JSON goes beside it")
    parser.add_argument("--logs", type=Path, default="build/gpu-check", help="folder for what the steps print")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.begin = time.monotonic()
    arguments.minutes = arguments.minutes or (4.0 if arguments.device == "cpu" else 8.0)
    if arguments.retry and not arguments.resume:
        parser.error("--retry is for --resume")
    arguments.binary = os.path.abspath(arguments.binary)
    arguments.logs = arguments.logs.absolute()
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Look, then run the steps. Returns the exit code."""
    arguments = parse(argv)
    if arguments.probe:
        probe(arguments.binary, Path(arguments.probe[0]))
        return WORKS
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started is ended before
    try:
        return run(look(arguments), arguments)
    except Missing as error:
        print(error, file=sys.stderr)
        return MISSING


if __name__ == "__main__":
    sys.exit(main())
