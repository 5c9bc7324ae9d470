"""What a command of the program `rust-ort` says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from rust_ort.errors import ClientError, DaemonFault
from rust_ort.link.daemon import find_binary, find_onnxruntime
from rust_ort.link.pool import cuda_folders

__all__ = ["environment", "printed_by", "said_by"]


def environment() -> dict[str, str]:
    """What the program finds the runtime by, and CUDA's libraries where the runtime has a provider for it."""
    library = find_onnxruntime()
    folders = [*cuda_folders(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    found = {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}
    return {**os.environ, "RUST_ORT_ONNXRUNTIME": library, **found}


def said_by(command: str, arguments: Sequence[str], *, also: Sequence[int] = ()) -> Any:
    """What `rust-ort <command> … --json` prints. also: exit codes with which it answers, beside 0, 1 and 3. Errors: as
    `printed_by`."""
    return json.loads(printed_by(command, ["--json", *arguments], also=also))


def printed_by(command: str, arguments: Sequence[str], *, also: Sequence[int] = ()) -> str:
    """What `rust-ort <command> …` prints. A program of its own: a kernel that crashes costs the answer alone. also: as
    `said_by`.

    Errors: ClientError for what it refuses, and for a damaged dump; DaemonFault when it fails.
    """
    line = [find_binary(), command, *arguments]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode in (0, 1, 3, *also) and done.stdout:
        return done.stdout
    said = done.stderr.strip().removeprefix("rust-ort: ")
    if done.returncode in (2, 3, 4):
        raise ClientError(f"{command}: {said}", code="BAD_ARGUMENT")
    raise DaemonFault(f"`{' '.join(line)}` ended with {done.returncode}: {said or 'no message'}", code="INTERNAL")
