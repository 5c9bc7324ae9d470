"""`make audit`, for Python: the pinned environment against what the package index tells of it today.

tests/requirements/environment.txt holds every distribution of the environment with the hashes of its wheels for Linux,
in the form that `pip install --require-hashes --no-deps -r` takes; `--write` makes it (`make requirements`)."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "requirements" / "environment.txt"
INDEX = "https://pypi.org/simple"
OURS = frozenset({"rust-ort", "pip", "setuptools"})
"""Not pinned: this project, and what `python -m venv` brings."""
TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class Release:
    """A version of a distribution. hashes: sha256 of its wheels; yanked: files that the index took back."""

    name: str
    version: str
    hashes: list[str] = field(default_factory=list)
    yanked: list[str] = field(default_factory=list)


def plain(name: str) -> str:
    """A distribution's name, as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """{name: version} of this environment, without what is not pinned."""
    found = {plain(made.metadata["Name"]): made.version for made in metadata.distributions()}
    return {name: version for name, version in sorted(found.items()) if name not in OURS}


def fetched(url: str, accept: str) -> Any:
    """JSON. Errors: urllib.error.URLError."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def released(name: str, version: str, listed: dict[str, Any]) -> Release:
    """What an index's list of a distribution's files tells of a version's wheels for Linux."""
    release = Release(name=name, version=version)
    for file in listed["files"]:
        filename = file["filename"]
        pieces = filename.removesuffix(".whl").split("-")
        if not filename.endswith(".whl") or pieces[1] != version or not for_linux(pieces[-1]):
            continue
        release.hashes.append(file["hashes"]["sha256"])
        if file.get("yanked"):
            release.yanked.append(f"{filename}: {file['yanked']}")
    release.hashes.sort()
    return release


def for_linux(platform: str) -> bool:
    """Whether a wheel of this platform tag may be installed on Linux with glibc, x86-64 or aarch64."""
    return platform == "any" or ("linux" in platform and platform.endswith(("x86_64", "aarch64")))


def text(releases: Iterable[Release]) -> str:
    """The file's content."""
    head = (
        "# Made by `make requirements`: the environment of requirements-dev.txt, whole, and the hashes of its wheels.\n"
    )
    entries = (
        " \\\n    ".join([f"{release.name}=={release.version}", *(f"--hash=sha256:{it}" for it in release.hashes)])
        + "\n"
        for release in releases
    )
    return head + "".join(entries)


def pinned(content: str) -> dict[str, Release]:
    """{name: release} of the file's content."""
    releases: dict[str, Release] = {}
    for word in content.replace("\\\n", " ").split():
        if "==" in word:
            name, _, version = word.partition("==")
            releases[name] = Release(name=name, version=version)
            last = name
        elif word.startswith("--hash=sha256:"):
            releases[last].hashes.append(word.partition(":")[2])
    return releases


def compared(environment: dict[str, str], known: dict[str, Release]) -> list[str]:
    """Where environment and file differ, in words."""
    wrong = [f"{name} {version}: not in {FILE.name}; run make requirements" for name, version in environment.items()
             if name not in known]  # fmt: skip
    for name, release in known.items():
        if name not in environment:
            wrong.append(f"{name}: in {FILE.name} and not installed; run make setup, or make requirements")
        elif environment[name] != release.version:
            wrong.append(f"{name}: {FILE.name} has {release.version}, {environment[name]} is installed; run make setup")
        elif not release.hashes:
            wrong.append(f"{name} {release.version}: no hash; run make requirements")
    return wrong


def asked(known: Iterable[Release]) -> list[str]:
    """What the index tells otherwise: hashes that it does not have, files that it took back. Errors: URLError."""
    wrong = []
    for release in known:
        now = at_index(release.name, release.version)
        if gone := set(release.hashes) - set(now.hashes):
            wrong.append(f"{release.name} {release.version}: the index has no wheel of {', '.join(sorted(gone))}")
        wrong += [f"{release.name} {release.version}: yanked: {why}" for why in now.yanked]
    return wrong


def at_index(name: str, version: str) -> Release:
    """What the package index tells of a version. Errors: URLError."""
    index = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/")
    return released(name, version, fetched(f"{index}/{name}/", "application/vnd.pypi.simple.v1+json"))


def vulnerable(known: Sequence[Release]) -> list[str] | None:
    """What the index knows against versions; None where it does not serve that."""
    root = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/").removesuffix("/simple")
    found: list[str] = []
    for release in known:
        try:
            told = fetched(f"{root}/pypi/{release.name}/{release.version}/json", "application/json")
        except urllib.error.HTTPError:
            return None
        found += [
            f"{release.name} {release.version}: {it['id']}: {it.get('summary') or it.get('details', '')[:200]}"
            for it in told.get("vulnerabilities", [])
            if not it.get("withdrawn")
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.audit", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"make {FILE.name} of this environment")
    options = parser.parse_args(arguments)
    environment = installed()
    if options.write:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text(at_index(*pair) for pair in environment.items()))
        print(f"{FILE}: {len(environment)} distributions")
        return 0
    known = pinned(FILE.read_text())
    wrong = compared(environment, known)
    try:
        wrong += asked(known.values())
        vulnerabilities = vulnerable(list(known.values()))
        wrong += vulnerabilities or []
        if vulnerabilities is None:
            print("vulnerabilities: skipped, this package index does not tell them")
    except urllib.error.URLError as error:
        print(f"package index: skipped, it does not answer ({error.reason})")
    print("\n".join([*wrong, f"{len(known)} distributions, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
