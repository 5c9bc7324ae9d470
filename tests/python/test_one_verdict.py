"""One verdict of an output: of the call, on disk, and of every command that judges the dump."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")

DRAW = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(8, 4096, generator=DRAW), torch.randn(4096, 64, generator=DRAW)
HALF = torch.bfloat16


def rounding_alone(x: Tensor, weight: Tensor) -> Tensor:
    """Zero but for rounding."""
    return (x * 1.0001) @ weight - (x @ weight) * 1.0001


def enlarged(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(rounding_alone(x, weight) * 1000)


def beside_a_sine(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return enlarged(x, weight), x.sin()


def turned(x: Tensor, weight: Tensor) -> Tensor:
    """Rounding decides."""
    return torch.where(rounding_alone(x, weight) > 0, 1.0, -1.0) * 2


def halves_and_integers(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made = (x.to(HALF) @ weight.to(HALF)).softmax(-1)
    return made, made.float() * 3, (made * 100).long()


def half_sums(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    made = x.to(HALF) @ weight.to(HALF)
    centred = made - made.mean(-1, keepdim=True)
    return centred.sum(-1), centred.float().sum(-1) * 1000


def scaled(factor: float, operator: str) -> Callable[[Any], None]:
    """A transform: what the operator gives times a factor."""

    def transform(proto: Any) -> None:
        # Casts may stand before: of a value's type these graphs say nothing.
        dtypes = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
        dtypes |= {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
        for node in [node for node in proto.graph.node if node.op_type == operator]:
            value = node.output[0]
            node.output[0] = right = f"{value}_right"
            code = dtypes.get(value, TensorProto.FLOAT)
            proto.graph.initializer.append(helper.make_tensor(f"{value}_factor", code, [], [factor]))
            multiplied = helper.make_node("Mul", [right, f"{value}_factor"], [value], name=f"planted_{value}")
            proto.graph.node.append(multiplied)

    return transform


def one_more(proto: Any) -> None:
    """A transform: integers that were cast are larger by one."""
    for node in list(proto.graph.node):
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.INT64:
            value = node.output[0]
            node.output[0] = f"{value}_right"
            proto.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [], [1]))
            proto.graph.node.append(helper.make_node("Add", [f"{value}_right", "one"], [value], name="planted_add"))


class Attention(nn.Module):
    """The gradient of the key's bias is zero: it moves all scores of a query alike."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return scores.softmax(-1) @ self.value(x)


def seeded(make: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(3)
    return make(), (torch.randn(shape),)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared, its options, and kinds of verdicts among those of its graphs' outputs."""

    of: Callable[[], tuple[Callable[..., Any], tuple[Tensor, ...]]]
    kinds: frozenset[str]
    options: dict[str, Any] = field(default_factory=dict)
    autocast: torch.dtype | None = None


def of(function: Callable[..., Any]) -> Callable[[], tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    return lambda: (function, (X, WEIGHT))


def attention() -> tuple[nn.Module, tuple[Tensor]]:
    return seeded(Attention, 2, 6, 8)


def norms() -> tuple[nn.Module, tuple[Tensor]]:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8)), 16, 8)


def many_terms() -> tuple[nn.Module, tuple[Tensor]]:
    return seeded(lambda: nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 8)), 4096, 48)


def drawn(x: Tensor, weight: Tensor) -> Tensor:
    """Sums that are zero but for rounding, of what has no float64."""
    made = x.to(HALF) @ weight.to(HALF)
    made = made + torch.bernoulli(torch.full_like(made, 0.5))
    return (made - made.mean(-1, keepdim=True)).sum(-1)


CASES = {
    "noise": Case(of=of(enlarged), kinds=frozenset({"noise"})),
    "a tie": Case(of=of(turned), kinds=frozenset({"tie"})),
    "noise beside a wrong node": Case(
        of=of(beside_a_sine), kinds=frozenset({"mismatch"}), options={"transforms": [scaled(3.0, "Sin")]}
    ),
    "half precision": Case(of=of(halves_and_integers), kinds=frozenset({"match"})),
    "integers beside half precision": Case(
        of=of(halves_and_integers), kinds=frozenset({"match", "mismatch"}), options={"transforms": [one_more]}
    ),
    "sums of half precision": Case(of=of(half_sums), kinds=frozenset({"match"})),
    "sums of half precision that were drawn": Case(of=of(drawn), kinds=frozenset({"match"})),
    "a tolerance": Case(
        of=of(halves_and_integers), kinds=frozenset({"match"}),
        options={"tolerance": {"atol": 2.0}, "transforms": [one_more]},
    ),
    "a factor": Case(of=of(enlarged), kinds=frozenset({"noise"}), options={"noise_factor": 3.0}),
    "a factor that nothing needed": Case(
        of=of(halves_and_integers), kinds=frozenset({"match"}), options={"noise_factor": 3.0}
    ),
    "gradients that are zero": Case(of=attention, kinds=frozenset({"match"})),
    "gradients that are zero in half precision": Case(of=attention, kinds=frozenset({"match"}), autocast=HALF),
    "norms": Case(of=norms, kinds=frozenset({"match"})),
    "norms in half precision": Case(of=norms, kinds=frozenset({"match"}), autocast=HALF),
    "many terms in half precision": Case(of=many_terms, kinds=frozenset({"match"}), autocast=HALF),
    "many terms in half precision that are wrong": Case(
        of=many_terms, kinds=frozenset({"match", "mismatch"}), autocast=HALF,
        options={"transforms": [scaled(-1.0, "Erf")]},
    ),
}  # fmt: skip

Kinds = dict[tuple[str, str], str]
"""{(graph, output): kind}."""


def said(*arguments: str | Path) -> Any:
    """The JSON that a command prints."""
    command = [os.environ["RUST_ORT_BINARY"], *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return json.loads(done.stdout)


def judged(command: str, run: Path) -> Kinds:
    """What a command says that judges a dump's outputs."""
    return {
        (Path(entry["path"]).parts[-3], verdict["name"]): verdict["verdict"]["kind"]
        for entry in said(command, run)["data_sets"]
        for verdict in entry["verdicts"]
    }


@pytest.mark.parametrize("mode", ["outputs", "nodes"])
@pytest.mark.parametrize("case", CASES)
def test_a_verdict_is_the_same_in_the_call_on_disk_and_of_each_command(case: str, mode: str, tmp_path: Path) -> None:
    options, autocast = CASES[case].options, CASES[case].autocast
    model, inputs = CASES[case].of()
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(model, *inputs, autocast=autocast, options={"compare": mode, **options})
    told = {(graph.name, verdict.name): verdict.kind for graph in report.graphs for _, verdict in graph.verdicts}
    assert set(told.values()) == CASES[case].kinds, report
    written: Kinds = {}
    for path in (tmp_path / "run").glob("*/part_*/comparison_*.json"):
        comparison = json.loads(path.read_text())
        written |= {(path.parts[-3], verdict["name"]): verdict["verdict"]["kind"] for verdict in comparison["verdicts"]}
        assert comparison["policy"]["noise_factor"] == options.get("noise_factor", 1.5)
    commands = {command: judged(command, tmp_path / "run") for command in ("compare", "replay")}
    assert {"disk": written, **commands} == dict.fromkeys(["disk", "compare", "replay"], told)


def in_half(x: Tensor, weight: Tensor) -> Tensor:
    return (x.to(HALF) @ weight.to(HALF)).float() * 3


def test_a_call_in_half_precision_that_was_not_compared_is_judged_by_it(tmp_path: Path) -> None:
    with rust_ort.dump("run", folder=tmp_path):
        torch.compile(in_half, backend="rust_ort")(X, WEIGHT)
    (entry,) = said("replay", tmp_path / "run")["data_sets"]
    (actual,) = (actual["verdict"] for actual in entry["actuals"])
    assert (actual["metrics"]["dtype"], actual["metrics"]["tolerance"]["rtol"]) == ("F32", 4 * 2**-7), actual
