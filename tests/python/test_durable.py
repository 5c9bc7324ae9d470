"""A durable dump and a power cut: what was never synced may be lost or torn, and nothing that reads as whole is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from conftest import Daemon, held, wait_until
from test_client import add, executor_pid

import rust_ort

LAST = ("manifest.json", "files.json")
"""What says that a folder is whole."""


class Disk:
    """What a power cut could lose below a folder, from a log of what was asked of the file system."""

    def __init__(self, below: Path) -> None:
        self.below = str(below)
        self.inodes: dict[str, str] = {}
        self.dirty: set[str] = set()
        self.unsynced: dict[str, set[str]] = defaultdict(set)
        """Folder -> names in it that came since it was synced."""
        self.n_last = 0

    def lost(self, folder: str) -> list[str]:
        """Names in a folder that a power cut may lose, or leave torn."""
        here = [path for path in self.inodes if os.path.dirname(path) == folder and ".tmp-" not in path]
        torn = {os.path.basename(path) for path in here if self.inodes[path] in self.dirty}
        return sorted(torn | {name for name in self.unsynced[folder] if ".tmp-" not in name})

    def all_lost(self) -> list[str]:
        folders = {os.path.dirname(path) for path in self.inodes} | set(self.unsynced)
        return [f"{folder}/{name}" for folder in sorted(folders) for name in self.lost(folder)]

    def play(self, log: str) -> list[str]:
        """Files that say that their folder is whole where a power cut then could have lost some of it."""
        early = []
        for line in log.splitlines():
            what, first, second = line.split("\t")
            if what != "folder" and not (first.startswith(self.below) or second.startswith(self.below)):
                continue
            if what == "create":
                self.inodes[second] = first
                self._came(second)
            elif what == "write":
                self.dirty.add(first)
            elif what == "sync":
                self.dirty.discard(first)
            elif what == "folder":
                self.unsynced[second].clear()
            elif what == "mkdir":
                self._came(first)
            elif what == "unlink":
                self.inodes.pop(first, None)
                self.unsynced[os.path.dirname(first)].discard(os.path.basename(first))
            else:
                inode = self.inodes.pop(first) if what == "rename" else self.inodes[first]
                folder = os.path.dirname(second)
                if os.path.basename(second) in LAST:
                    self.n_last += 1
                    torn = [second] if inode in self.dirty else []
                    early += torn + [f"{second} before {name}" for name in self.lost(folder) if name not in LAST]
                self.inodes[second] = inode
                self._came(second)
        return early

    def _came(self, path: str) -> None:
        self.unsynced[os.path.dirname(path)].add(os.path.basename(path))


@pytest.fixture
def log(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the daemon, which is not there yet, asks of the file system."""
    source, library, log = Path(__file__).with_name("power_cut.c"), tmp_path / "libpower_cut.so", tmp_path / "log"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("POWER_CUT_LOG", str(log))
    return log


@pytest.mark.parametrize("durable", [True, False])
def test_what_a_durable_dump_has_told_of_outlives_a_power_cut(log: Path, tmp_path: Path, durable: bool) -> None:
    double = torch.compile(lambda x: x * 2, backend="rust_ort", options={"compare": "outputs"})
    folder = tmp_path / "dumps"
    with rust_ort.dump("run", folder=folder, calls="all", durable=durable) as path:
        for n in (1.0, 2.0):
            double(torch.full((50_000,), n))
            answered = Disk(folder)
            answered.play(log.read_text())
            if durable:
                assert answered.all_lost() == [], "the call was answered"
    disk = Disk(folder)
    early = disk.play(log.read_text())
    assert disk.n_last >= 4
    assert json.loads((path / "run.json").read_text())["durable"] is durable
    if durable:
        assert early == []
    else:
        assert early, "the checker sees nothing"


def test_a_durable_dump_syncs_folders_that_another_made(log: Path, tmp_path: Path) -> None:
    double = torch.compile(lambda x: x * 2, backend="rust_ort", options={"compare": "outputs"})
    folder = tmp_path / "dumps"
    with rust_ort.dump("run", folder=folder, calls="all", durable=False):
        double(torch.ones(5))
    with rust_ort.dump("run", folder=folder, calls="all", durable=True) as path:
        double(torch.ones(5))
        disk = Disk(tmp_path)
        disk.play(log.read_text())
    (part,) = path.glob("*/part_0")
    chain = [tmp_path, folder, path, part.parent]
    below = ["dumps", "run", part.parent.name, "part_0"]
    assert [name for at, name in zip(chain, below, strict=True) if name in disk.unsynced[str(at)]] == []


def test_a_reproduction_outlives_a_power_cut_unasked(
    log: Path,
    daemon: Daemon,
    hold: Path,
) -> None:
    run = add(daemon)
    run([torch.ones(10), torch.ones(10)])
    hold.touch()
    pid = executor_pid(daemon)

    def kill() -> None:
        wait_until(lambda: held(hold), "the call in the executor")
        os.kill(pid, signal.SIGABRT)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(rust_ort.ExecutorLost) as lost:
        run([torch.ones(10), torch.ones(10)])
    thread.join()
    hold.unlink()
    assert lost.value.dump
    quarantine = Disk(Path(lost.value.dump).parent)
    assert (quarantine.play(log.read_text()), quarantine.all_lost(), quarantine.n_last >= 2) == ([], [], True)
