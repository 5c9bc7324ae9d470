"""What is logged and at which level, how far long work is, and that other libraries' loggers stay as they were."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
import torch
import warm
from support import FakeClient
from torch import Tensor, nn

from rust_ort import progress as progress_module
from rust_ort.export import plan as plan_module
from rust_ort.progress import begin, progress, tick

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "rust_ort"]


def test_dropout_in_eager_is_no_warning(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), backend="rust_ort")
    with caplog.at_level("INFO", logger="rust_ort"):
        model(X).sum().backward()
        model(X).sum().backward()
    ((level, text),) = logged(caplog)
    assert level == "INFO" and "1 of 6 nodes run in eager: bernoulli" in text


def test_what_onnx_lacks_is_a_warning_beside_what_is_right_in_eager(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.linalg.inv(x @ x.T + torch.eye(2)) + torch.rand_like(x)[:, :2]

    with caplog.at_level("INFO", logger="rust_ort"):
        torch.compile(model, backend="rust_ort")(X)
    (warned, warning), (told, information) = logged(caplog)
    assert warned == "WARNING" and "linalg_inv" in warning and "random" not in warning
    assert told == "INFO" and "it draws random numbers" in information and "linalg_inv" not in information


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress_module, "EVERY_S", 0.01)
    with caplog.at_level("INFO", logger="rust_ort"):
        with progress("0_0-forward: writing ONNX", unit="nodes"):
            begin(5)
            tick()
            tick()
            _wait_for(lambda: any("2 of 5" in text for _, text in logged(caplog)))
        told = len(caplog.records)
        time.sleep(0.05)
    assert logged(caplog)[-1][1].startswith("0_0-forward: writing ONNX: 2 of 5 nodes after 0 s")
    assert len(caplog.records) == told, "it goes on after the work has ended"


def test_short_work_says_nothing_and_work_nobody_listens_to_starts_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rust_ort"), progress("short", unit="nodes", total=1):
        tick()
    assert logged(caplog) == []
    before = threading.active_count()
    with caplog.at_level("WARNING", logger="rust_ort"), progress("unheard", unit="nodes"):
        assert threading.active_count() == before


@pytest.mark.usefixtures("daemon")
def test_export_sessions_and_comparison_each_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[int, int]] = {}

    class Seen(progress_module.Progress):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name in ("done", "total") and "done" in self.__dict__:
                seen[self.what.partition(": ")[2]] = (self.done, self.total)

    monkeypatch.setattr(progress_module, "Progress", Seen)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        torch.compile(model, backend="rust_ort", options={"compare": "nodes"})(X)
    assert {what for what in seen} == {"writing ONNX", "building sessions", "comparing with eager"}
    assert all(0 < done <= total for done, total in seen.values()), seen


LOGGERS = """
import logging, warnings
import onnxscript, onnx_ir, torch, torch.onnx
import torch.onnx._internal.exporter._registration, torch.onnx._internal.exporter._core
import onnx_ir._convenience, onnxruntime

# What torch.compile changes by itself, whatever the backend.
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
torch.compile(model, backend="aot_eager")(torch.ones(2, 4))
torch._dynamo.reset()

chosen = logging.getLogger("torch.onnx._internal.exporter._registration")
chosen.setLevel(logging.DEBUG)
handler = logging.StreamHandler()
chosen.addHandler(handler)

def known():
    there = logging.root.manager.loggerDict.values()
    loggers = [logging.getLogger(), *(entry for entry in there if isinstance(entry, logging.Logger))]
    def filters_of(entry):  # but for the one that hears of Dynamo's recompile limit, and lets every record through
        return [one for one in entry.filters if type(one).__name__ != "_LimitMet"]
    return {
        entry.name: (entry.level, list(entry.handlers), entry.propagate, entry.disabled, filters_of(entry))
        for entry in loggers if not entry.name.startswith("rust_ort")
    }

before, filters = known(), list(warnings.filters)
import rust_ort
report = rust_ort.compare(model, torch.ones(2, 4), options={"compare": "nodes"}).check()
after = known()
changed = {name: (state, after[name]) for name, state in before.items() if after[name] != state}
assert not changed, changed
assert list(warnings.filters) == filters, set(warnings.filters) ^ set(filters)
assert chosen.level == logging.DEBUG and chosen.handlers == [handler]
print("unchanged")
"""


@pytest.mark.usefixtures("daemon")
def test_other_libraries_loggers_and_the_warnings_filters_stay_as_they_were() -> None:
    ended = warm.run([sys.executable, "-c", LOGGERS], timeout=300)
    assert ended.returncode == 0 and ended.stdout.endswith("unchanged\n"), ended.stderr[-3000:]


def _wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited 60 s"
        time.sleep(0.005)


def test_a_cut_that_begins_anew_counts_anew(client: FakeClient) -> None:
    begun: list[int] = []
    original = progress_module.begin

    def counted(total: int) -> None:
        begun.append(total)
        original(total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module.progress, "begin", counted)
        torch.compile(lambda x: x.relu() + 1, backend="rust_ort")(X)
    assert begun == [2]
