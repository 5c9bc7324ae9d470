"""`make guide`: writes the sections of README and docs/guide that come from the program.

A section stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`:

| section | page | source |
|---|---|---|
| `options` | docs/guide/options.md | `Options.table()` |
| `commands` | docs/guide/commands.md | `rust-ort --help` and each command's |
| `output` | README.md | README's own program, run |

tests/python/test_readme.py holds that the pages have what the program says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rust_ort.options import Options

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs/guide"
WIDTH = "100"
"""Columns of a help text."""
SEEDED = "import runpy, sys, torch; torch.manual_seed(0); runpy.run_path(sys.argv[1], run_name='__main__')"
"""Runs a file with the same random numbers each time."""


def section(page: str, name: str) -> str:
    """Lines between the markers of a section. Errors: ValueError if the page does not have both once, in order."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"section {name!r}: expected {begin.strip()} and {end} once each")
    return page.split(begin)[1].split(end)[0]


def with_section(page: str, name: str, text: str) -> str:
    """The page with `text` as that section. Errors: as `section`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    section(page, name)
    before, after = page.split(begin)[0], page.split(end)[1]
    return f"{before}{begin}{text}{end}{after}"


def options() -> str:
    """The table of options."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, default, doc in Options.table():
        shown = repr(default).replace("'", '"')
        lines.append(f"| `{name}` | `{shown}` | {_cell(doc)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text in a table: pipes escaped, and stars, which would be emphasis."""
    return text.replace("|", "\\|").replace("*", "\\*")


def help_of(binary: str, *command: str) -> str:
    """`--help` of a command, in WIDTH columns whatever terminal runs this."""
    done = subprocess.run(
        [binary, *command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "COLUMNS": WIDTH},
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def commands_in(text: str) -> list[str]:
    """Names below `Commands:` in a help text, without `help`."""
    if "\nCommands:\n" not in text:
        return []
    listed = text.split("\nCommands:\n")[1].split("\n\n")[0]
    return [name for name in re.findall(r"^  ([a-z][a-z-]*)", listed, re.MULTILINE) if name != "help"]


def commands(binary: str) -> str:
    """Each command's help under its name, subcommands after their command."""
    lines: list[str] = []

    def add(*command: str) -> None:
        text = help_of(binary, *command)
        if command:
            lines.extend([f"{'#' * (1 + len(command))} rust-ort {' '.join(command)}", ""])
        lines.extend(["```text", text, "```", ""])
        for name in commands_in(text):
            add(*command, name)

    add()
    return "\n".join(lines)


def block(page: str, language: str = "python") -> str:
    """The first fenced block of that language."""
    found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise ValueError(f"no {language} block")
    return found[1]


def run(program: str) -> str:
    """Standard output of a Python program, run as a file in an empty folder. Errors: RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SEEDED, str(file)], cwd=folder, capture_output=True, text=True,
            timeout=600, check=False, env={**os.environ, "COLUMNS": "120"},
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) + "\n"


def output() -> str:
    """Printed by README's program."""
    return f"```text\n{run(block(README.read_text()))}```\n"


def shape(text: str) -> str:
    """A printed text without what changes from run to run: digits and the width of columns."""
    without = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", text)
    return re.sub(r"-#|#", "#", re.sub(r"[ \t]+", " ", without))


def sections(binary: str) -> list[tuple[Path, str, Callable[[], str]]]:
    """(page, section, what makes it) of each."""
    return [
        (GUIDE / "options.md", "options", options),
        (GUIDE / "commands.md", "commands", lambda: commands(binary)),
        (README, "output", output),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.guide", description=__doc__)
    parser.add_argument("--binary", default=os.environ.get("RUST_ORT_BINARY", ""), help="[default: RUST_ORT_BINARY]")
    parser.add_argument("--only", choices=["options", "commands", "output"], help="this section alone")
    arguments = parser.parse_args()
    for page, name, make in sections(arguments.binary):
        if arguments.only in (None, name):
            page.write_text(with_section(page.read_text(), name, make()))
            print(f"{page.relative_to(ROOT)}: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
