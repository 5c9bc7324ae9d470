"""`make fuzz`: the targets of tests/fuzz for as long as one likes; counts into docs/results/trust.md."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from measure import trust

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("frames", "dumps", "models", "plans", "records")
SECONDS = 300


def run(target: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Runs one target to its end. Returns its row; None where no row came, of one input or of a build that failed."""
    folder: Path = options.folder
    report = folder / f"{target}.json"
    report.unlink(missing_ok=True)
    asked = {"FOLDER": folder, "SEED": options.seed, "INPUT": options.input and options.input.resolve()}
    asked |= {"ITERATIONS": options.iterations, "SECONDS": options.seconds}
    environment = dict(os.environ)
    environment |= {f"RUST_ORT_FUZZ_{name}": str(value) for name, value in asked.items() if value is not None}
    profile = ["--release"] if options.profile == "release" else []
    command = ["cargo", "test", *profile, "--locked", "--test", "fuzz", target, "--", "--exact", "--nocapture"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    options.codes.append(min(abs(done.returncode), 1))
    if report.exists():
        row: dict[str, Any] = json.loads(report.read_text())
        return row
    current = folder / target / "current"
    if options.input is None and current.exists():
        died_of(current, target, done.returncode)
    return None


def died_of(current: Path, target: str, code: int) -> None:
    """Keeps the input that a process was reading when it died, and says how to run it again."""
    kept = current.read_bytes()
    content = kept[4 : 4 + int.from_bytes(kept[:4], "little")]
    path = current.with_name(sha256(content).hexdigest()[:16])
    path.write_bytes(content)
    again = shlex.quote(f"--target {target} --input {path}")
    print(f"{target}: the process ended with {code} while it read {path}\n  again: make fuzz ARGS={again}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.fuzz", description=__doc__)
    parser.add_argument("--target", default=",".join(TARGETS), help="one or several of " + ", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, help=f"of each target; {SECONDS} where no --iterations are given")
    parser.add_argument("--iterations", type=int, help="of each target")
    parser.add_argument("--seed", type=int, default=1, help="decides the mutations")
    parser.add_argument("--input", type=Path, help="run this one input alone")
    parser.add_argument("--profile", choices=("release", "dev"), default="release", help="dev checks for overflow")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="of what is found")
    parser.add_argument("--output", type=Path, help="docs/results/trust.md, with .json beside it")
    options = parser.parse_args(arguments)
    if options.seconds is None and options.iterations is None:
        options.seconds = SECONDS
    options.codes = []
    targets = options.target.split(",")
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"--target {', '.join(sorted(unknown))}: expected {', '.join(TARGETS)}")
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = {target: run(target, options) for target in targets}
    found = {target: row for target, row in rows.items() if row is not None}
    if options.output is not None:
        trust.update(options.output, "fuzz", found)
    print(trust.fuzz_table(found))
    if options.input is not None:
        return int(max(options.codes))
    return 0 if len(found) == len(rows) and not any(row["findings"] for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
