"""Libraries in the place of CUDA's: all that the provider calls of them gives success."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).with_name("runtime.c")
OWN = re.compile(r"\b(__cuda\w+|cu\w+)\(")
CALLED = re.compile(r" U (_*cu\w+)(?:@(\S+))?$", re.MULTILINE)
DRIVER = "libcuda.so.1"
CUDNN = "libcudnn.so.9"
"""The provider loads it by its name, and looks its functions up one by one."""


def build(provider: Path, folder: Path) -> None:
    """Puts them into a folder for LD_LIBRARY_PATH. provider: libonnxruntime_providers_cuda.so. Needs cc and
    binutils. Errors: CalledProcessError."""
    functions: dict[str, set[str]] = defaultdict(set)
    for name, library in CALLED.findall(_output("nm", "-D", "--undefined-only", str(provider))):
        functions[library or DRIVER].add(name)
    for library in re.findall(r"NEEDED.*\[(libcu\S+)\]", _output("readelf", "-dW", str(provider))):
        functions[library] |= set()
    functions[CUDNN] |= set(re.findall(r"^cudnn[A-Z]\w+$", _output("strings", "-n", "6", str(provider)), re.MULTILINE))
    for library, names in functions.items():
        _library(folder, library, names)


def _library(folder: Path, library: str, names: set[str]) -> None:
    own = SOURCE.read_text()
    others = sorted(names - set(OWN.findall(own)))
    source, versions = folder / f"{library}.c", folder / f"{library}.map"
    source.write_text(own + "".join(f"int {name}(void) {{ return 0; }}\n" for name in others))
    shown = f"global: {' '.join(f'{name};' for name in sorted(names))} " if names else ""
    versions.write_text(f"{library} {{ {shown}local: *; }};\n")
    _output(
        "cc", "-shared", "-fPIC", "-w", "-O1", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}",
        "-o", str(folder / library), str(source),
    )  # fmt: skip


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
