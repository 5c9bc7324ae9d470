"""docs/results/trust.md and trust.json: what `make fuzz` and `make soak` ran, and what they found.

Each replaces its own rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measure.soak.growth import LEAST_LIFE_S

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"

INTRODUCTION = """\
# Trust

What nobody sent on purpose, and what nobody wished for: how much of it was tried, and what became of it. The promises
are in [SECURITY.md](../../SECURITY.md). Made by `make fuzz` and `make soak`, each its own rows; `make test` runs five
seconds of each fuzz target, every input that once found something, and a minute of the soak."""

VERIFIED = """\
## Who verifies

Every command of `rust-ort` that reads a dump holds what it reads against hashes and seals
([decision 11](../design/decisions/0011-somebody-elses-dump.md)). Python's `rust_ort.onnx_tools`, which reads any ONNX
file, and whatever else reads one verify nothing: run `rust-ort verify` first on a dump that comes from elsewhere."""

FUZZ = """\
## Fuzzing

A target is a function of bytes in `tests/fuzz/`, called on mutations of real inputs, structured ones too: fields of
messages change and the lengths around them still hold. An input that gets a kind of answer that was not seen before is
mutated further. No input may make anything panic, hang or die, take a second of processor time, or more memory than
the target allows for its length. Beside that must hold:"""

HOLDS = {
    "frames": "what is read is written, read and written to the same bytes; decoding takes no more memory than was "
    "told from the bytes before",
    "dumps": "a file with another content is told by `verify`, and no data set that needs it is judged; without seals, "
    "as older versions wrote, it is read or refused",
    "models": "a model that is read is written and read as it was; every pass, cut and print ends; decoding takes no "
    "more memory than was told before",
    "plans": "no plan but the one that was kept is handed out, and what is damaged goes; no library is known that was "
    "not loaded",
    "records": "the executor that serves the lane lives, answers and does not grow; results of another lane are right, "
    "while a third is written over",
}

SOAK = """\
## Soak

Clients of several kinds train small models, call eager beside every call, and dump, with several options, in processes
of their own: alone, two ranks, one on a small disk, one in a namespace of pids. At random times executors, daemons and
clients are killed (`kill -9`) or stopped and continued, the small disk is filled, the socket is removed, and
`rust-ort stop --force` is run; daemons are left alone at the end, and those that live for half an hour must not
grow. Also listed as wrong would be: a value that is not eager's, an error that is neither DaemonLost nor
ExecutorLost, a dump that was told whole and is not, a dump that is damaged or torn, a process or shared memory that is
left."""

SUPPLY = """\
## Supply chain

`make audit` holds the crates against `deny.toml` (licences, sources, advisories; versions that are there twice are
told) and the pinned Python environment against the hashes and the vulnerabilities that the package index tells. What
cannot be asked is said to be skipped. One advisory is ignored: bincode is unmaintained
([decision 14](../design/decisions/0014-bincode.md))."""


def update(output: Path, section: str, content: Any) -> None:
    """Replaces a section, "soak" or one of "fuzz" by its target's name, and writes page and JSON anew."""
    path = output.with_suffix(".json")
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if section == "fuzz":
        known["fuzz"] = {**known.get("fuzz", {}), **content}
    else:
        known[section] = content
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    output.write_text(page(known))


def page(known: dict[str, Any]) -> str:
    """The page of what is known of both."""
    holds = "\n".join(f"- {name}: {what}" for name, what in HOLDS.items())
    pieces = [INTRODUCTION, VERIFIED, FUZZ, holds, fuzz_table(known.get("fuzz", {}))]
    pieces += [SOAK, soak_table(known["soak"])] if "soak" in known else []
    pieces += [before_table(known["soaks_before"])] if known.get("soaks_before") else []
    return "\n\n".join([*pieces, SUPPLY]) + "\n"


def fuzz_table(rows: dict[str, dict[str, Any]]) -> str:
    """A line a target; kept: inputs of the corpus that once found something."""
    lines = [
        "| target | inputs | accepted | seconds | slowest, ms | most memory, KiB | kept | found now |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items()):
        kept = len(list((CORPUS / name).glob("found_*")))
        counts = f"{row['inputs']:,} | {row['accepted']:,} | {row['seconds']:,.0f} | {row['slowest_ms']}"
        lines.append(f"| {name} | {counts} | {row['most_kib']:,} | {kept} | {len(row['findings'])} |")
    found = [f"- {name}: {finding}" for name, row in sorted(rows.items()) for finding in row["findings"]]
    return "\n".join([*lines, *(["", *found] if found else [])])


def soak_table(told: dict[str, Any]) -> str:
    """Events and counts of one run of the soak."""
    lines = [
        f"{told['seconds'] / 60:.0f} minutes, seed {told['seed']}; {told['daemons']} daemons. {_growth(told)}",
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {event} | {n:,} |" for event, n in told["events"].items()),
        *(f"| {what} | skipped: {why} |" for what, why in told["skipped"].items()),
        "",
        "| what came of it | |",
        "|---|---|",
        *(f"| {what} | {n:,} |" for what, n in told["counts"].items()),
        f"| wrong | {len(told['wrong'])} |",
        *(["", *(f"- {wrong.splitlines()[0]}" for wrong in told["wrong"])] if told["wrong"] else []),
    ]
    return "\n".join(lines)


def before_table(runs: list[dict[str, Any]]) -> str:
    """A line for each run of before whose findings are mended. became: what became of them."""
    lines = [
        "Runs of before, by versions that had what they found:",
        "",
        "| minutes | seed | calls right | events | wrong | what became of it |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        counts = f"{run['minutes']} | {run['seed']} | {run['calls right']:,} | {run['events']} | {run['wrong']}"
        lines.append(f"| {counts} | {run['became']} |")
    return "\n".join(lines)


def _growth(told: dict[str, Any]) -> str:
    life = f"The one that lived longest, {told['longest_life_s']} s,"
    if told["longest_life_s"] < LEAST_LIFE_S:
        return f"{life} did not live long enough to tell whether it grows ({LEAST_LIFE_S:.0f} s)."
    return f"{life} grew by {told['mib_an_hour']} MiB and {told['descriptors_an_hour']} descriptors an hour."
