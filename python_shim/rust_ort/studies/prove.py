"""A Llama decoder layer dumped with eager's value of every node, then `rust-ort prove`: faults planted in its forward
and backward graphs, and how many `sbs` and `blame` find, in float32, autocast bfloat16 and autocast float16.

Exit code: 0 all are found and nobody is blamed where nothing is planted, 1 not, 2 an error, 3 no fault counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import rust_ort
from rust_ort.link.daemon import find_binary
from rust_ort.link.program import environment
from rust_ort.studies import llama_models

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.prove", description=__doc__)
    parser.add_argument("--size", default="small", choices=sorted(llama_models.SIZES))
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="of " + ", ".join(PRECISIONS))
    parser.add_argument("--faults", type=int, default=16, help="in each graph, that take an output out of tolerance")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("dumps"), help="where the dumps go")
    asked = parser.parse_args(arguments)
    codes = []
    for precision in asked.precisions.split(","):
        run = dumped(precision, size=asked.size, folder=asked.folder)
        print(f"{precision}:", flush=True)
        codes.append(proved(run, faults=asked.faults, seed=asked.seed))
        print(flush=True)
    return max(codes, default=3)


def dumped(precision: str, *, size: str, folder: Path) -> Path:
    """The run that holds the decoder's forward and backward. Errors: those of `rust_ort.compare`."""
    study = llama_models.build("decoder", llama_models.SIZES[size], attention="eager")
    options = {"compare": "nodes", "dump_values": True}
    with rust_ort.dump(f"prove-{precision}", folder=folder, clean=True) as run:
        rust_ort.compare(study.module, *study.inputs, autocast=PRECISIONS[precision], options=options)
    return run


def proved(run: Path, *, faults: int, seed: int) -> int:
    """Its exit code."""
    command = [find_binary(), "prove", str(run), f"--faults={faults}", f"--seed={seed}"]
    return subprocess.run(command, env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
