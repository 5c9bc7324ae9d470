"""The audit of the Python environment tells what differs from the file of hashes."""

import json
from email.message import Message
from importlib import metadata
from typing import Any
from urllib.error import HTTPError

import pytest

from measure import audit


def listed(*files: tuple[str, str, bool]) -> dict[str, Any]:
    return {"files": [{"filename": name, "hashes": {"sha256": hash}, "yanked": yanked} for name, hash, yanked in files]}


def test_the_file_has_what_the_requirements_pin() -> None:
    known = audit.pinned(audit.FILE.read_text())
    requirements = audit.FILE.parents[2] / "python_shim" / "requirements-dev.txt"
    pins = [line.split("==") for line in requirements.read_text().splitlines() if "==" in line]
    for name, version in pins:
        assert known[audit.plain(name)].version == version, f"{name}: run make requirements"
    assert len(pins) > 15 and all(release.hashes for release in known.values())


def test_wheels_for_linux_are_taken_and_nothing_else() -> None:
    files = [
        ("a-1.0-py3-none-any.whl", "1", False),
        ("a-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", "2", False),
        ("a-1.0-cp311-cp311-macosx_11_0_arm64.whl", "3", False),
        ("a-1.0.tar.gz", "4", False),
        ("a-1.0.1-py3-none-any.whl", "5", False),
    ]
    release = audit.released("a", "1.0", listed(*files))
    assert release.hashes == ["1", "2"] and release.yanked == []
    assert audit.pinned(audit.text([release])) == {"a": release}


def test_other_versions_missing_hashes_and_strangers_are_told() -> None:
    known = {"a": audit.Release(name="a", version="1.0", hashes=["1"]), "b": audit.Release(name="b", version="2.0")}
    assert audit.compared({"a": "1.0", "b": "2.0"}, known) == ["b 2.0: no hash; run make requirements"]
    wrong = audit.compared({"a": "1.1", "c": "3"}, known)
    assert len(wrong) == 3 and all(any(name in line for line in wrong) for name in ("a:", "b:", "c 3:"))


def test_a_wheel_that_the_index_replaced_or_took_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = listed(("a-1.0-py3-none-any.whl", "2", "broken metadata"))
    monkeypatch.setattr(audit, "fetched", lambda url, accept: answer)
    wrong = audit.asked([audit.Release(name="a", version="1.0", hashes=["1"])])
    assert wrong == ["a 1.0: the index has no wheel of 1", "a 1.0: yanked: a-1.0-py3-none-any.whl: broken metadata"]


def test_vulnerabilities_are_told_where_the_index_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [audit.Release(name="a", version="1.0", hashes=["1"])]
    told = {"vulnerabilities": [{"id": "PYSEC-1", "summary": "reads too far"}, {"id": "PYSEC-2", "withdrawn": "then"}]}
    monkeypatch.setattr(audit, "fetched", lambda url, accept: json.loads(json.dumps(told)))
    assert audit.vulnerable(known) == ["a 1.0: PYSEC-1: reads too far"]

    def missing(url: str, accept: str) -> Any:
        raise HTTPError(url, 404, "not here", Message(), None)

    monkeypatch.setattr(audit, "fetched", missing)
    assert audit.vulnerable(known) is None


def test_names_are_written_as_the_index_writes_them() -> None:
    assert audit.plain("ml_dtypes") == "ml-dtypes" and audit.plain("Jinja2") == "jinja2"
    assert audit.installed()["torch"] == metadata.version("torch")
