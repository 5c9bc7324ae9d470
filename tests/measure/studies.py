"""`make studies`: docs/results/studies.md, its numbers and verdicts, and the pictures beside it.

Each section of the page is run by the program that it names, and what that prints takes the place of the section's
text block; the rest of the page is prose and stays. The Rust studies draw their numbers several times (`--draws`): a
finding reproduces where it does in every draw. Claims that no example makes have a row of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "studies.md"
RUST = ("gemm", "layernorm", "reduction")
PYTHON = ("broadcast", "generate")
NAMED = {
    "gemm": "onnx-diagnostic's plot_gemm_or_matmul",
    "layernorm": "onnx-diagnostic's plot_layer_norm_discrepancies",
    "reduction": "onnx-diagnostic's plot_parallelized_reduction",
}
OWN = "this study's own"
DRAWS = 5
BEGIN, END = "<!-- made by make studies -->\n", "<!-- /made -->\n"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A finding over the draws: of `n` that examined it, `yes` reproduce it. first: what it says of the first draw.
    own: no example has it."""

    claim: str
    yes: int
    n: int
    first: str
    own: bool = False

    @property
    def kind(self) -> str:
        if not self.n:
            return "not run"
        return "every" if self.yes == self.n else "some" if self.yes else "none"


def verdicts(draws: Sequence[Sequence[Mapping[str, Any]]]) -> list[Verdict]:
    """The findings of one study, in the order of the first run. draws: findings of each run, as `--json` gives them:
    each with draws in which it was examined and in which it holds, or, of one draw, with `holds` as "yes", "no", or
    another word where there is no verdict. Raises ValueError where runs have other ones."""
    claims = [[finding["claim"] for finding in draw] for draw in draws]
    if any(other != claims[0] for other in claims):
        raise ValueError("draws have other findings; what a finding says must not depend on the numbers")
    found = []
    for of_claim in zip(*draws, strict=True):
        yes = [finding.get("n_holds", int(finding["holds"] == "yes")) for finding in of_claim]
        n = [finding.get("n_draws", int(finding["holds"] in ("yes", "no"))) for finding in of_claim]
        first = of_claim[0]
        own = first.get("source") == OWN
        found.append(
            Verdict(
                claim=first["claim"],
                yes=sum(yes),
                n=sum(n),
                first=f"here: {first['here']}" if own else f"seed: {first['seed']}; here: {first['here']}",
                own=own,
            )
        )
    return found


def summary(name: str, found: Sequence[Verdict], draws: int, source: str | None = None) -> str:
    """A row of the table. source: whose findings they are; the example's where nothing is said."""
    of = {kind: [verdict for verdict in found if verdict.kind == kind] for kind in ("every", "some", "none", "not run")}
    cells = [
        f"[{name}](#{name})",
        source or NAMED[name],
        f"{len(of['every'])} of {len(found)}",
        "; ".join(f"{verdict.claim}: {verdict.yes} of {draws}" for verdict in of["some"]) or "-",
        "; ".join(f"{verdict.claim} ({verdict.first})" for verdict in of["none"]) or "-",
        "; ".join(verdict.claim for verdict in of["not run"]) or "-",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(studies: Mapping[str, Sequence[Verdict]], setup: Mapping[str, Any], draws: int) -> str:
    """What stands at the head of the page: on what it was made, and the verdicts."""
    libtorch = f"libtorch {setup['libtorch']}" if setup["libtorch"] else f"libtorch not run: {setup['not_run']}"
    head = (
        f"Made on {machine()} with onnxruntime {setup['onnxruntime']}, {setup['provider']}; {libtorch}; "
        f"{setup['threads']} threads;\nthe default sizes, float32, float16, bfloat16; what is printed below is of seed "
        f"{setup['seed']}, the table of seeds 0 to {draws - 1}."
    )
    lines = [
        f"| study | example | hold in each of {draws} draws | in some | in none | not run |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in studies.items():
        lines.append(summary(name, [verdict for verdict in found if not verdict.own], draws))
        if own := [verdict for verdict in found if verdict.own]:
            lines.append(summary(name, own, draws, "claims of its own"))
    return "\n".join([head, "", *lines]) + "\n"


def machine() -> str:
    """The processor, without the machine's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in known.get("flags", "").split()]
    kind = [f"{key} {known[name]}" for key, name in (("family", "cpu family"), ("model", "model")) if name in known]
    n = len(os.sched_getaffinity(0))
    name = known.get("model name", "a processor that does not say its name")
    return f"{name} ({', '.join([*kind, *flags])}; {n} core{'s' if n > 1 else ''})"


def with_block(page: str, section: str, printed: str) -> str:
    """The page with another text block in a section. Raises ValueError where the section or its block is not there."""
    begin = re.search(rf"^## {re.escape(section)}$", page, re.MULTILINE)
    if begin is None:
        raise ValueError(f"no section {section} in the page")
    following = re.search(r"^## ", page[begin.end() :], re.MULTILINE)
    end = begin.end() + following.start() if following else len(page)
    block = re.search(r"^```text\n.*?^```$", page[begin.end() : end], re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"no text block in section {section}")
    at = begin.end()
    return f"{page[: at + block.start()]}```text\n{printed.rstrip()}\n```{page[at + block.end() :]}"


def with_table(page: str, made: str) -> str:
    """The page with another head. Raises ValueError where its marks are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN.strip()} … {END.strip()} in the page")
    return f"{before}{BEGIN}{made}{END}{after}"


def printed_by(command: Sequence[str], *, accepted: Sequence[int] = (0,)) -> str:
    """Its standard output. Raises SystemExit with what it says where it ends otherwise."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in accepted:
        sys.exit(f"{' '.join(command)}: exit code {ended.returncode}")
    return ended.stdout


def rust(program: Sequence[str], name: str, draws: int, svg: Path) -> tuple[str, list[Verdict], dict[str, Any]]:
    """(what the study prints, verdicts over the draws, what it ran on)."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "result.json"
        files = ["--svg", str(svg), "--result", str(written)]
        text = printed_by([*program, "study", name, "--draws", str(draws), *files])
        result = json.loads(written.read_text())["result"]
    return text, verdicts([result["findings"]]), result["setup"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.studies", description=__doc__)
    parser.add_argument("--program", default="rust-ort-torch", help="rust-ort-torch, or rust-ort: without libtorch")
    parser.add_argument("--only", default=",".join((*RUST, *PYTHON)), help="sections of the page")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--output", type=Path, default=PAGE, help="a page with these sections; pictures go beside it")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if options.draws < 1 or not set(names) <= {*RUST, *PYTHON}:
        parser.error(f"--draws from 1 on, --only of {', '.join((*RUST, *PYTHON))}")
    for name in names:  # or minutes would be for nothing
        with_block(options.output.read_text(), name, "")
    blocks: dict[str, str] = {}
    made: dict[str, list[Verdict]] = {}
    pictures: dict[str, bytes] = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        if name in PYTHON:
            command = [sys.executable, "-W", "ignore", "-m", f"rust_ort.studies.{name}"]
            blocks[name] = printed_by(command, accepted=(0, 1))
            continue
        with tempfile.TemporaryDirectory() as folder:
            svg = Path(folder) / f"study-{name}.svg"
            blocks[name], made[name], setup = rust([options.program], name, options.draws, svg)
            pictures |= {path.name: path.read_bytes() for path in svg.parent.iterdir()}
    if made and not setup["libtorch"] and options.output.resolve() == PAGE:
        sys.exit(f"{PAGE.name} stays: it is of both runtimes; libtorch not run: {setup['not_run']}")
    for name, content in pictures.items():
        (options.output.parent / name).write_bytes(content)
    page = options.output.read_text()
    for name, printed in blocks.items():
        page = with_block(page, name, printed)
    if set(RUST) <= set(made):
        page = with_table(page, table(made, setup, options.draws))
    elif made:
        print("the table stays: it is of all of " + ", ".join(RUST), file=sys.stderr)
    options.output.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
