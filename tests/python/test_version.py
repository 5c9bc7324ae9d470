"""One version, Cargo.toml's, wherever one is told; and a daemon of another one."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rust_ort
from rust_ort.link import connection
from rust_ort.observe.session import run_json

ROOT = Path(__file__).parents[2]
DECLARED: str = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def test_whoever_tells_a_version_tells_that_of_cargo_toml(daemon: Any, run_cli: Any) -> None:
    assert rust_ort.__version__ == DECLARED
    assert run_cli("--version").stdout.split() == ["rust-ort", DECLARED]
    assert json.loads(run_json())["versions"]["rust_ort"] == DECLARED
    daemon.client().connection()
    status = json.loads(run_cli("status", "--json").stdout)
    assert status["daemon"]["version"] == DECLARED
    assert {client["shim_version"] for client in status["clients"]} == {DECLARED}


def test_no_source_of_the_package_has_a_version_of_its_own() -> None:
    found = [path for path in (ROOT / "python_shim").rglob("*.py") if f'"{DECLARED}"' in path.read_text()]
    assert not found


def test_a_daemon_of_another_version_is_named_once(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.client().connection()
    with caplog.at_level(logging.WARNING, logger="rust_ort"):
        daemon.client().connection()
        assert not caplog.records, "versions are equal"
        monkeypatch.setattr(connection, "__version__", "7.7.7")
        for _ in range(2):
            daemon.client().close()
            daemon.client().connection()
    assert len(caplog.records) == 1
    said = caplog.records[0].getMessage()
    assert "7.7.7" in said and DECLARED in said and "rust-ort stop" in said
