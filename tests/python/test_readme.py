"""README and guide say what the program does: options, commands, code, output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rust_ort
from measure import guide
from rust_ort.errors import NotAvailableYet, OptionError
from rust_ort.options import Options

ROOT = Path(__file__).resolve().parents[2]
README = guide.README.read_text()
GUIDE = sorted(guide.GUIDE.glob("*.md"))
PAGES = [guide.README, *GUIDE]
OPTIONS = (guide.GUIDE / "options.md").read_text()
COMMANDS = (guide.GUIDE / "commands.md").read_text()

# {option: (a value that works, a value of a later version)}; None where there is none.
SAMPLES: dict[str, tuple[object, object]] = {
    "providers": (["CUDAExecutionProvider"], ["TensorrtExecutionProvider"]),
    "opset": (26, None),
    "ort_optimization": ("disable", None),
    "disable_passes": (["output-copies"], None),
    "runtimes": ({"torch": ["*"]}, None),
    "precision_rules": ({"float32": ["*.norm*"]}, None),
    "session_options": ({"session.set_denormal_as_zero": "1"}, None),
    "custom_op_libraries": (["/bin/sh"], None),
    "custom_translations": ({"aten::relu": len}, None),
    "transforms": ([len], None),
    "dump": ("dumps/a", None),
    "dump_calls": ("all", None),
    "dump_values": (True, None),
    "durable": (True, None),
    "compare": ("nodes", None),
    "compare_every": (2, None),
    "compare_only": (["aten.mm*"], None),
    "compare_stop": ("first", None),
    "compare_memory": (1 << 20, None),
    "compare_float64": ("all", None),
    "noise_factor": (2.0, None),
    "tolerance": ({"atol": 1e-3}, None),
    "on_unsupported": ("error", None),
    "on_daemon_error": ("eager", None),
    "share_parameters": (True, None),
    "freeze_parameters": (True, None),
    "threads": (2, None),
    "socket": ("/tmp/a/v1.sock", None),
}


@pytest.fixture
def binary() -> str:
    path = os.environ.get("RUST_ORT_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("RUST_ORT_BINARY names no binary; make test sets it")
    return path


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_options_page_is_of_the_table() -> None:
    """After a change of an option: `make guide`."""
    assert guide.section(OPTIONS, "options") == guide.options()


def test_every_option_has_a_sample() -> None:
    assert list(SAMPLES) == [name for name, *_ in Options.table()]


@pytest.mark.parametrize("name", SAMPLES)
def test_an_option_takes_what_it_should_and_tells_of_what_comes_later(name: str) -> None:
    works, later = SAMPLES[name]
    if works is not None:
        Options.parse({name: works})
    if later is not None:
        with pytest.raises(NotAvailableYet, match="not available yet"):
            Options.parse({name: later})


@pytest.mark.parametrize("name", [name for name, default, _ in Options.table() if isinstance(default, str)])
def test_the_table_names_every_choice_of_an_option(name: str) -> None:
    (doc,) = [doc for known, _, doc in Options.table() if known == name]
    with pytest.raises(OptionError) as error:
        Options.parse({name: "none of them"})
    choices = re.findall(r"'([^']+)'", str(error.value).split(", got")[0])
    if name != "share_parameters":
        assert len(choices) > 1
    assert [choice for choice in choices if f'"{choice}"' not in doc] == []


def test_the_commands_page_is_what_the_program_prints(binary: str) -> None:
    """After a change of a command: `make guide`."""
    assert guide.section(COMMANDS, "commands") == guide.commands(binary)


def test_the_commands_page_says_when_to_use_each(binary: str) -> None:
    to_do = COMMANDS.split("## Exit codes")[0]
    named = re.findall(r"`([a-z]+)`", "\n".join(line.split("|")[2] for line in to_do.splitlines() if "| `" in line))
    assert sorted(named) == sorted(guide.commands_in(guide.help_of(binary)))


def test_commands_in_readme_and_guide_are_there(binary: str) -> None:
    there = {*guide.commands_in(guide.help_of(binary)), "executor"}
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)rust-ort ([a-z]+)", page.read_text(), re.MULTILINE))
        assert named <= there, page.name


def test_readme_shows_what_its_program_prints() -> None:
    """In its shape: numbers are of another draw. After a change: `make guide`."""
    shown, printed = guide.section(README, "output"), guide.output()
    assert "to blame: node gelu (exporter" in printed
    assert guide.shape(shown) == guide.shape(printed)


def test_readme_names_its_program_in_eight_lines() -> None:
    assert len([line for line in guide.block(README).splitlines() if line]) == 8


def test_every_make_target_that_readme_and_guide_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page.name
    assert {"demo", "test"} <= set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))


def test_ci_runs_exactly_the_readmes_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1] == "set -euo pipefail"
    assert lines[-1] == "make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_valid_and_names_what_exists(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    for block in blocks:
        check = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F821", "-"]
        found = subprocess.run(check, input=block, text=True, capture_output=True)
        assert found.returncode == 0, f"{page.name}, a program that does not run alone:\n{block}{found.stdout}"
    assert set(re.findall(r"\brust_ort\.([a-zA-Z_]\w*)", "\n".join(blocks))) <= set(rust_ort.__all__)


def test_the_guide_shows_what_the_package_is_for() -> None:
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", "\n".join(page.read_text() for page in PAGES), re.DOTALL))
    assert set(re.findall(r"\brust_ort\.([a-zA-Z_]\w*)", blocks)) == {
        "backend",
        "blame",
        "compare",
        "dump",
        "explain",
        "keep_in_float32",
        "report",
        "shutdown",
        "status",
        "to_onnx",
    }


PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_its_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)", page.read_text())
    links = [(target, heading) for target, heading in links if "." in target or "/" in target or heading]
    for target, heading in links:
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            assert heading in headings(file), f"{target}#{heading}"


def headings(file: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_page_of_the_guide_is_on_the_map() -> None:
    mapped = (ROOT / "docs/README.md").read_text()
    pages = [
        page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts and page.name != "README.md"
    ]
    assert [page.name for page in pages if f"]({page.relative_to(ROOT / 'docs')})" not in mapped] == []


def test_every_file_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = [name for name in re.findall(r"`([\w./-]+)`", text) if "/" in name or name.endswith((".md", ".rs", ".py"))]
    assert len(named) > 30
    made = ("build/",)  # by a run
    assert [name for name in named if not name.startswith(made) and not (ROOT / name).exists()] == []
