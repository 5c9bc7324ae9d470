"""The zoo's judge tells right from wrong, its runner bounds each model, and its report leaves nothing out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from measure.zoo import report
from measure.zoo.__main__ import Results, Runner, wanted
from measure.zoo.judge import leaves, wrong
from measure.zoo.model import Call, Subject, default_loss
from measure.zoo.run import Judge
from measure.zoo.side import Side
from measure.zoo.timed import timed

EXACT = torch.linspace(-3.0, 3.0, 1000, dtype=torch.float64)
EAGER = (EXACT * (1 + 1e-6 * torch.cos(1e3 * EXACT))).float()
"""What eager's rounding made of it."""


def judged(candidate: Any, *, eager: Any = EAGER, float64: Any = EXACT) -> list[str]:
    return wrong({"output": eager}, {"output": candidate}, {} if float64 is None else {"output": float64})


@pytest.mark.parametrize(
    "candidate",
    [EAGER, EXACT.float(), (EXACT * (1 + 2e-6 * torch.sin(1e3 * EXACT))).float(), (EXACT * (1 + 9e-6)).float()],
    ids=["eager's own", "closer than eager", "as far as eager", "within what is always allowed"],
)
def test_what_is_as_right_as_eager_is_right(candidate: torch.Tensor) -> None:
    assert judged(candidate) == []


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ((EXACT * (1 + 3e-5)).float(), "from float64"),
        (EXACT, "torch.float64 [1000], not torch.float32 [1000]"),
        (EAGER[:999], "[999], not"),
        (torch.where(EXACT > 2.9, torch.nan, EXACT).float(), "NaN or infinite elsewhere"),
        (torch.where(EXACT > 2.9, torch.inf, EXACT).float(), "NaN or infinite elsewhere"),
        (torch.zeros_like(EAGER), "from float64"),
        (-EAGER, "from float64"),
    ],
    ids=["off", "dtype", "shape", "NaN", "infinite", "zeros", "sign"],
)
def test_what_is_not_is_wrong(candidate: torch.Tensor, said: str) -> None:
    (fault,) = judged(candidate)
    assert said in fault, fault


def test_one_of_a_thousand_numbers_is_enough() -> None:
    candidate = EAGER.clone()
    candidate[7] *= 1.1
    assert judged(candidate)


def test_without_float64_eager_is_what_is_right() -> None:
    assert judged((EXACT * (1 + 5e-5)).float(), float64=None) == []
    assert "from eager" in judged((EXACT * (1 + 5e-4)).float(), float64=None)[0]


def test_a_float64_run_that_drew_other_numbers_is_not_believed() -> None:
    other = EXACT.flip(0)
    assert judged(EAGER, float64=other) == []
    assert "from eager" in judged(other.float(), float64=other)[0]


def test_gradients_that_are_zero_but_for_rounding_are_right() -> None:
    eager, candidate = (torch.randn(64) * 1e-8 for _ in range(2))
    assert judged(candidate, eager=eager, float64=torch.zeros(64, dtype=torch.float64)) == []


def test_a_value_that_rounding_takes_further_than_eager_shows_is_right() -> None:
    lucky, candidate = EXACT.float(), (EXACT * (1 + 3e-5)).float()
    moved = [{"output": (EXACT * (1 + by)).float()} for by in (2e-6, -1.5e-5)]
    given = ({"output": lucky}, {"output": candidate}, {"output": EXACT})
    assert wrong(*given) and not wrong(*given, moved)
    assert wrong({"output": lucky}, {"output": (EXACT * 1.001).float()}, {"output": EXACT}, moved)


class ByOneDnn(torch.nn.Module):
    """A layer that oneDNN gets wrong by a third; compiled, it is what `factor` makes of it."""

    def __init__(self, factor: float | None = None) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.factor or (4.0 if torch.backends.mkldnn.enabled else 3.0))


@pytest.mark.parametrize(("factor", "status"), [(3.0, "pass"), (4.0, "pass"), (5.0, "fail_accuracy")])
def test_a_value_as_right_as_torchs_own_kernels_is_right_and_told(factor: float, status: str) -> None:
    subject = Subject(module=ByOneDnn(), evaluated=Call(args=(EAGER,)), trained=None)
    judge = Judge(
        subject=subject, train=False, reference={"output": EAGER * 4}, float64={"output": EXACT * 3}
    )  # fmt: skip
    seen = judge.judged(Side(subject, lambda _: ByOneDnn(factor), train=False))
    assert seen["status"] == status
    assert [*seen.get("eager_wrong", {})] == (["output"] if factor == 3.0 else [])
    table = "\n".join(report.eager_wrong({"Model": {"eval": {"status": status, "rust_ort": seen}}}))
    assert ("| Model | eval | output: " in table) == (factor == 3.0)


def test_integers_booleans_and_numbers_are_equal_or_wrong() -> None:
    whole = torch.arange(6)
    assert judged(whole, eager=whole, float64=None) == []
    assert "1 of 6 differ" in judged(whole.clone().index_fill_(0, torch.tensor([3]), 9), eager=whole, float64=None)[0]
    assert judged(3, eager=3, float64=None) == [] and judged(4, eager=3, float64=None)
    assert judged(float("nan"), eager=float("nan"), float64=None) == []


def test_a_value_that_one_side_alone_has_is_wrong() -> None:
    assert "only eager" in wrong({"a": 1}, {}, {})[0] and "only the backend" in wrong({}, {"a": 1}, {})[0]


def test_leaves_are_looked_for_in_whatever_a_model_gives() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers = [{"keys": torch.ones(2)}]

    given = {"logits": torch.ones(3), "past": Cache(), "none": None, "pair": (1, torch.ones(1))}
    assert [name for name, _ in leaves(given)] == [
        "output.logits", "output.past.layers[0].keys", "output.pair[0]", "output.pair[1]",
    ]  # fmt: skip


def test_the_loss_is_the_models_or_is_made_of_what_it_gives() -> None:
    x = torch.ones(4, requires_grad=True)
    assert default_loss({"loss_a": x.sum(), "loss_b": x.sum()}).item() == 8.0
    assert default_loss((x, [2 * x])).item() == 5.0


PROGRAM = """
import json, sys, time
model, *tasks = sys.argv[1:]
for task in tasks:
    if model == "hangs" and task == "b": time.sleep(600)
    if model == "dies" and task == "b": sys.exit(7)
    if model == "grows" and task == "b":
        kept = bytearray(64 << 20); time.sleep(600)
    print(json.dumps({"model": model, "task": task, "status": "pass"}), flush=True)
"""


@pytest.mark.parametrize(
    ("model", "status", "why"),
    [("well", "pass", None), ("hangs", "timeout", "within 2 s"), ("dies", "fail_to_run", "exit code 7")],
)
def test_a_model_that_hangs_or_dies_costs_its_task_alone(
    model: str, status: str, why: str | None, tmp_path: Path
) -> None:
    results = Results.read(tmp_path / "zoo.json")
    Runner(os.environ, results, (sys.executable, "-c", PROGRAM), limit_s=2.0).run(model, ["a", "b", "c"])
    found = json.loads((tmp_path / "zoo.json").read_text())[model]
    assert [found[task]["status"] for task in "abc"] == ["pass", status, "pass"]
    assert why is None or why in found["b"]["why"]


def test_a_model_that_takes_too_much_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("measure.zoo.__main__.MEMORY_MIB", 48)
    results = Results.read(None)
    Runner(os.environ, results, (sys.executable, "-c", PROGRAM), limit_s=60.0).run("grows", ["a", "b"])
    assert results.found["grows"]["b"]["status"] == "OOM"


def test_every_third_model_has_the_rare_tasks() -> None:
    given = wanted("abcd", ["*"], ["eval", "float16", "train"], ["train"])
    assert given == {"a": ["eval", "float16", "train"], "b": ["eval"], "c": ["eval"], "d": ["eval", "float16", "train"]}
    assert [*wanted("abcd", ["b*", "c"], ["eval"], [])] == ["b", "c"]


def seen(status: str, peer: str = "pass") -> dict[str, Any]:
    ours = {
        "status": status, "nodes": 10, "on_onnxruntime": 9, "work": 100.0, "eager_work": 25.0,
        "left": [["aten.x.default", "why", 1]], "graphs": 1, "breaks": 0,
    }  # fmt: skip
    why = "" if status == "pass" else "|what|"
    return {"status": status, "why": why, "rust_ort": ours, "aot_eager": {"status": peer}}


def clocked(call: float, again: float = 2.0) -> dict[str, Any]:
    sides = {"rust_ort": (call, 8.0), "warm": (call, again), "aot_eager": (0.1, 2.0)}
    made = {name: {"status": "pass", "first": 9.0, "call": one, "compile": two} for name, (one, two) in sides.items()}
    return {"status": "pass", "why": "", **made, "eager": {"call": 0.05}, "load": 1.0}


def test_a_models_times_are_told_for_each_side() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    call = Call(args=(torch.ones(2, 4),))
    found = timed(Subject(module=module, evaluated=call, trained=call), train=True, peer="aot_eager")
    assert found["status"] == "pass", found
    assert min(found[side]["compile"] for side in ("rust_ort", "warm", "aot_eager")) > 0.01, found
    assert found["eager"]["call"] > 0


def test_the_report_names_each_fault_and_each_that_is_slow() -> None:
    found = {
        "good": {"eval": seen("pass"), "eval time": clocked(0.04)},
        "bad": {"eval": seen("fail_accuracy"), "eval time": clocked(0.1)},
        "theirs": {"eval": seen("fail_to_run", peer="fail_to_run")}, "tool": {"blame": {"status": "fault", "why": "x"}},
    }  # fmt: skip
    assert {(model, task) for model, task, _ in report.faults(found)} == {
        ("bad", "eval"), ("theirs", "eval"), ("tool", "blame"),
    }  # fmt: skip
    assert report.is_wrong(found)
    assert not report.is_wrong({name: found[name] for name in ("good", "theirs")})
    assert report.is_wrong({"tool": found["tool"]})
    assert report.slow(found) == [
        ("bad", "eval time", "2.0 times eager's 50.0 ms"),
        ("bad", "eval time", "compiles 4.0 times as long as aot_eager's 2.0 s"),
        ("good", "eval time", "compiles 4.0 times as long as aot_eager's 2.0 s"),
    ]
    totals = report.totals(found)
    assert "| eval | 3 | 1 | 1 fail_accuracy, 1 fail_to_run | 1 |" in totals, totals
    assert json.loads(report.as_json(found)) == found
