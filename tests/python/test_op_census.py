"""The census of operators: docs/results/op-census.json still holds by the rules, and in models that really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon

from measure import op_census, op_census_report
from measure.architectures import TABLE
from measure.op_census_core import judge, overload
from measure.op_census_exceptions import CATEGORIES, MISSING, category
from measure.op_census_runs import Graph, Run
from rust_ort.export import rules
from rust_ort.export.partition import COMPLEX, DRAWS_RANDOM_NUMBERS, SIZE_AT_RUN_TIME

aten = torch.ops.aten
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "results" / "op-census.json").read_text()
)  # fmt: skip
KNOWN_MISSING: frozenset[str] = frozenset()
"""Operators of models that run in eager without a named exception. It may only shrink."""


def missing(where: list[str]) -> list[str]:
    return [place for place in where if place.startswith(f"eager ({MISSING})")]


def test_no_model_meets_an_operator_that_is_missing() -> None:
    found = {operator for operator, met in RECORDED["operators"].items() if missing(met["where"])}
    assert found == KNOWN_MISSING


def test_every_architecture_that_ran_is_recorded_and_right() -> None:
    assert set(RECORDED["architectures"]) == set(TABLE)
    wrong = [
        f"{name} {run}"
        for name, runs in RECORDED["architectures"].items()
        for run, what in runs.items()
        if not what["right"]
    ]
    assert not wrong


def test_what_models_reach_is_still_translated() -> None:
    """An operator of this table that the rules now leave to eager."""
    pytest.importorskip("transformers.integrations.moe")  # it registers some of them
    lost = {
        operator: judge(overload(operator))
        for operator, met in RECORDED["operators"].items()
        if op_census_report.ON_ORT in met["where"] and not judge(overload(operator)).runs
    }
    assert not lost


def test_no_operator_of_core_aten_runs_in_eager_that_did_not() -> None:
    now = op_census_report.core()
    assert set(now) == set(RECORDED["core"])
    in_eager = {*CATEGORIES, MISSING}
    assert not [operator for operator, how in now.items() if how in in_eager and how != RECORDED["core"][operator]]
    assert MISSING not in now.values()


@pytest.mark.parametrize(
    ("operator", "runs", "how"),
    [
        (aten.mm.default, True, "translated by torchlib"),
        (aten.amax.default, True, "translated by our ONNX form"),
        (aten.native_dropout.default, False, "random numbers"),
        (aten.nonzero.default, False, "size known only at run time"),
        (aten._fft_c2r.default, False, "FFT"),
        (aten.linalg_inv_ex.default, False, "linalg"),
        (aten.sym_size.int, True, "arithmetic on sizes"),
        (aten.baddbmm.default, True, "decomposed by torch"),
        (aten.special_erfcx.default, False, MISSING),
    ],
)
def test_an_operator_is_judged_by_the_rules_alone(operator: Any, runs: bool, how: str) -> None:
    verdict = judge(operator)
    assert (verdict.runs, verdict.how) == (runs, how)


def test_a_masked_rule_changes_the_verdict() -> None:
    assert judge(aten._scaled_dot_product_flash_attention_for_cpu_backward.default).runs
    with rules.without("aten._scaled_dot_product_flash_attention_for_cpu_backward.default"):
        verdict = judge(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
    assert (verdict.runs, verdict.how) == (False, MISSING)


@pytest.mark.parametrize(
    ("operator", "reason", "expected"),
    [
        ("aten.rand.default", DRAWS_RANDOM_NUMBERS, "random numbers"),
        ("run_and_save_rng_state(aten.rand.default)", "has no ONNX form", "random numbers"),
        ("aten.nonzero.default", SIZE_AT_RUN_TIME, "size known only at run time"),
        ("aten.mul.Tensor", COMPLEX, "complex"),
        ("aten._linalg_svd.default", "torchlib has no function for", "linalg"),
        ("aten._fft_r2c.default", "torchlib has no function for", "FFT"),
        ("aten.mm.default", "a tensor of layout torch.sparse_coo has no ONNX form", "sparse"),
        ("somebodys.operator.default", "torchlib has no function for", "custom operator"),
        ("aten.max.dim", "ONNX Runtime's ArgMax and ArgMin pass NaN over", MISSING),
        ("prims.as_strided_scatter.default", "torchlib has no function for", MISSING),
        ("cond", "higher-order operator cond has no ONNX form", MISSING),
    ],
)
def test_only_named_exceptions_are_none_missing(operator: str, reason: str, expected: str) -> None:
    assert category(operator, reason) == expected


def test_an_operator_in_both_places_is_listed_with_both() -> None:
    graphs = [
        Graph(name="0", direction="inference", parts=1, on_ort={"aten.max.dim": 1}, eager={}),
        Graph(name="1", direction="backward", parts=0, on_ort={}, eager={"aten.max.dim": {"a reason": 2}}),
    ]
    runs = [Run(architecture="bert", attention="eager", mode="train", graphs=graphs)]
    recorded = op_census_report.record(runs)
    assert recorded["operators"]["aten.max.dim"] == {
        "models": ["bert"],
        "forward": True,
        "backward": True,
        "where": ["onnxruntime", "eager (missing): a reason"],
    }
    numbers = recorded["architectures"]["bert"]["eager/train"]
    assert (numbers["onnxruntime"], numbers["eager"]) == (1, 2)
    assert json.loads(op_census_report.json_text(runs)) == recorded
    assert "| `aten.max.dim` | missing | a reason | forward and backward | bert |" in op_census_report.markdown(runs)


def test_each_attention_implementation_is_trained_and_evaluated_in_turn() -> None:
    assert op_census.wanted("bert") != op_census.wanted("roberta")
    for name in ("bert", "roberta"):
        assert {attention for attention, _ in op_census.wanted(name)} == {"eager", "sdpa"}
        assert [mode for _, mode in op_census.wanted(name)] == ["train", "frozen"]
    assert len(op_census.wanted("bert", everything=True)) == 6


def test_a_process_that_dies_costs_its_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, attention: str, mode: str) -> Run:
        if mode == "frozen":
            raise SystemExit("planted")
        return Run(architecture=name, attention=attention, mode=mode)

    monkeypatch.setattr(op_census, "run", run)
    first, second, other, _ = op_census.census(["bert", "mpt"], everything=False, workers=2)
    assert (first.error, second.mode, other.error) == ("", "frozen", "")
    assert "exit code 1" in second.error


@pytest.mark.parametrize(
    ("name", "attention", "mode"),
    [("llama", "sdpa", "frozen"), ("distilbert", "eager", "train"), ("resnet_basic", "eager", "train")],
)
def test_a_model_reaches_only_what_is_recorded(daemon: Daemon, name: str, attention: str, mode: str) -> None:
    made = op_census.run(name, attention, mode)
    assert not made.error and not made.mismatches and made.compared > 0
    assert made.nodes_on_ort > 0
    for operator, met in op_census_report.reached([made]).items():
        assert operator in RECORDED["operators"], f"{operator} is new: make op-census"
        assert not missing(met.where)
        assert met.on_ort <= (op_census_report.ON_ORT in RECORDED["operators"][operator]["where"])
