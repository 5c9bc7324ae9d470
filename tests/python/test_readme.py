"""The README says what the program does: options, commands, code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import rust_ort
from rust_ort.errors import NotAvailableYet
from rust_ort.options import Options

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

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


def table(heading: str) -> list[list[str]]:
    """Rows of the first table below `heading`, without its head."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_options_table_names_every_option_in_order_with_its_default() -> None:
    shown = [(name.strip("`"), default.strip("`").replace('"', "'")) for name, default, *_ in table("Options")]
    assert shown == [(name, repr(default)) for name, default, _ in Options.table()]


@pytest.mark.parametrize("row", table("Options"), ids=lambda row: row[0].strip("`"))
def test_option_is_available_as_the_table_says(row: list[str]) -> None:
    name, available = row[0].strip("`"), row[3]
    works, later = SAMPLES[name]
    words = {(True, False): "yes", (True, True): "partly", (False, True): "not available yet"}
    assert available.startswith(words[works is not None, later is not None])
    if works is not None:
        Options.parse({name: works})
    if later is not None:
        with pytest.raises(NotAvailableYet, match="not available yet"):
            Options.parse({name: later})


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_ci_runs_exactly_the_readmes_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1] == "set -euo pipefail"
    assert lines[-1] == "make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_python_block_is_valid_and_names_what_exists() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        compile(block, "README.md", "exec")
    names = set(re.findall(r"\brust_ort\.([a-zA-Z_]\w*)", "\n".join(blocks)))
    assert names == {
        "backend",
        "blame",
        "compare",
        "dump",
        "explain",
        "keep_in_float32",
        "shutdown",
        "status",
        "to_onnx",
    }
    assert names <= set(rust_ort.__all__)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("row", table("Command line"), ids=lambda row: row[0].replace("`", ""))
def test_command_is_there_as_the_table_says(row: list[str]) -> None:
    binary = os.environ.get("RUST_ORT_BINARY", "")
    if not os.access(binary, os.X_OK):
        pytest.skip("RUST_ORT_BINARY names no binary; make test sets it")
    for command in re.findall(r"`(?:rust-ort )?(\w+)`", row[0]):
        done = subprocess.run([binary, command, "--help"], capture_output=True, timeout=60, check=False)
        assert (done.returncode == 0) == (row[2] == "yes"), f"rust-ort {command} --help: {done.stderr.decode()}"
