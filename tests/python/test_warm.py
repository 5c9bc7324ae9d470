"""A program runs in a warm process as it would in a fresh one."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm
from conftest import alive, wait_until

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, sys.path[0])",
    "an exit code": "import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)",
    "a message": "raise SystemExit('a message')",
    "os._exit": "import os; print('lost, it is not flushed'); os._exit(4)",
    "atexit": "import atexit; atexit.register(print, 'at the end'); print('first')",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "folder and input": "import os, sys; print(os.getcwd(), sys.stdin.read() == '', os.isatty(1), sys.stdout.encoding)",
    "C sees the environment": """
import ctypes, os
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"FAKE_ONE"), getenv(b"FAKE_TWO"), os.environ.get("FAKE_ONE"))
""",
    "a program's own program": """
import os, subprocess, sys
print(subprocess.run([sys.executable, "-c", "import os; print(os.environ['FAKE_ONE'])"], capture_output=True).stdout)
""",
    "annotations": "def f(x: int): pass\nprint(f.__annotations__)",
    "pickles of __main__": """
import pickle
class One:
    pass
print(type(pickle.loads(pickle.dumps(One()))) is One, One.__module__)
""",
    "numbers of torch": "import torch; torch.manual_seed(1); print(torch.randn(2), torch.get_num_threads())",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAMS[name], "one", "two"]
    environment = {name: value for name, value in os.environ.items() if name != "FAKE_TWO"} | {"FAKE_ONE": name}
    fresh = subprocess.run(
        command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    found = warm.run(command, env=environment, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (fresh.returncode, fresh.stdout)
    assert found.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_scripts_and_modules_are_found_as_in_a_fresh_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, beside; print(sys.argv[1:], __file__ == sys.argv[0], beside.NAME, __name__)")
    (tmp_path / "beside.py").write_text("NAME = __name__")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for program in ([str(script), "one"], ["-m", "script", "one"]):
        fresh = subprocess.run([sys.executable, *program], env=environment, cwd="/", capture_output=True, text=True)
        found = warm.run([sys.executable, *program], env=environment, cwd="/")
        assert (found.returncode, found.stdout, found.stderr) == (0, fresh.stdout, ""), fresh


LOADED = """
import os, sys
names = {name.split(".")[0] for name in sys.modules}
print(sorted(names & set("torch rust_ort onnx onnxscript onnxruntime measure transformers pytest numpy".split())))
print(len(os.listdir("/proc/self/task")), "torch._inductor.lowering" in sys.modules)
"""


def test_a_process_has_torch_and_nothing_of_the_package() -> None:
    said = warm.run([sys.executable, "-c", LOADED], check=True).stdout.splitlines()
    assert said[0] == "['numpy', 'torch']"
    assert said[1].startswith("1 True")
    more = warm.run([sys.executable, "-c", LOADED], check=True, modules=["onnx"]).stdout.splitlines()
    assert more[0] == "['numpy', 'onnx', 'torch']"


def test_the_first_compile_imports_little_more_of_torch() -> None:
    """Nothing with the version that development is pinned to."""
    program = """
import sys, torch
before = set(sys.modules)
x = torch.randn(3, 3, requires_grad=True)
torch.compile(lambda x: torch.relu(x @ x) + 1, backend="aot_eager")(x).sum().backward()
print(*sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
"""
    more = warm.run([sys.executable, "-c", program], check=True).stdout.split()
    assert len(more) < 20, more


def test_what_a_process_finds_at_its_start_is_its_own() -> None:
    program = "import os, sys; print(sys.warnoptions, os.environ.get('PYTHONHASHSEED'), hash('a'))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    fresh = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert fresh.startswith("['ignore'] 77 ")
    assert [warm.run(command, env=environment).stdout for _ in range(2)] == [fresh, fresh]
    assert "'ignore'" not in warm.run([sys.executable, "-c", program]).stdout


def test_one_that_takes_too_long_is_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        warm.run([sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(600)"], timeout=5)
    assert caught.value.stdout == "begun\n"
    assert time.monotonic() - begin < 300


def test_several_run_at_once(tmp_path: Path) -> None:
    """Each waits until all have begun."""
    program = """
import os, sys, time
os.mkdir(sys.argv[1] + "/" + sys.argv[2])
while len(os.listdir(sys.argv[1])) < 3:
    time.sleep(0.01)
print(sys.argv[2])
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with ThreadPoolExecutor(3) as pool:
        ended = pool.map(lambda name: warm.run([*command, name], timeout=120).stdout, "abc")
    assert list(ended) == ["a\n", "b\n", "c\n"]


def test_one_that_is_started_is_spoken_with_and_killed() -> None:
    program = "import sys; print('up', flush=True); print(sys.stdin.read()); print(len(sys.argv))"
    with warm.start([sys.executable, "-c", program, "one"]) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        assert Path(f"/proc/{process.pid}").exists()
        assert process.communicate("given") == ("given\n2\n", None)
        assert process.returncode == 0
    with warm.start([sys.executable, "-c", program]) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.kill()
        assert process.wait() == -9


def test_programs_end_with_whoever_has_started_them() -> None:
    """Be it killed: nothing of it is left."""
    program = """
import os, sys, warm
process = warm.start([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
process.stdout.readline()
(of_all,) = warm._warm.values()
print(process.pid, of_all.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    wait_until(lambda: not any(alive(pid) for pid in pids), "their end")
