"""Values kept in float32: rules of precision, and the search for the fewest of them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.errors import ClientError, OptionError
from rust_ort.keep import _infinite
from rust_ort.link.daemon import find_binary, find_onnxruntime

pytestmark = pytest.mark.usefixtures("daemon")


class Gated(nn.Module):
    """A gate whose product overflows float16 in its first channel, and a projection that makes it ordinary again."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 4, bias=False)
        with torch.no_grad():
            for linear in (self.gate, self.up):
                linear.weight[0] = 60.0
            self.down.weight[:, 0] = 1e-4

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.relu(self.gate(x)) * self.up(x))
        return hidden


@pytest.fixture
def gated() -> tuple[Gated, Tensor]:
    torch.manual_seed(0)
    return Gated(), torch.rand(3, 8) + 0.5


def exact(model: nn.Module, x: Tensor) -> Tensor:
    return Gated.forward(_like(model, torch.float64), x.double())  # type: ignore[arg-type]


def _like(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    made = Gated().to(dtype)
    made.load_state_dict({name: value.to(dtype) for name, value in model.state_dict().items()})
    return made


@pytest.mark.parametrize("rule", ["mul", "*aten.mul*"])
def test_a_kept_value_does_not_overflow(gated: tuple[Gated, Tensor], rule: str) -> None:
    model, x = gated[0].half(), gated[1].half()
    with torch.no_grad():
        plain = torch.compile(model, backend=rust_ort.backend())(x)
        kept = torch.compile(model, backend=rust_ort.backend(precision_rules={"float32": [rule]}))(x)
    assert not plain.isfinite().any() and kept.dtype == torch.float16
    torch.testing.assert_close(kept.double(), exact(model, x), rtol=5e-3, atol=5e-3)


def test_the_model_that_ran_is_dumped(gated: tuple[Gated, Tensor], tmp_path: Path) -> None:
    model, x = gated[0].half(), gated[1].half()
    with torch.no_grad(), rust_ort.dump("kept", folder=tmp_path):
        torch.compile(model, backend=rust_ort.backend(precision_rules={"float32": ("mul",)}))(x)
    (path,) = tmp_path.glob("kept/*/part_0/model.precision.onnx")
    graph = onnx.load(path).graph
    product = next(node for node in graph.node if node.op_type == "Mul")
    readers = [node.op_type for node in graph.node if product.output[0] in node.input]
    assert readers and "Cast" not in readers


def test_found_rules_are_checked_and_bring_outputs_and_gradients_near(gated: tuple[Gated, Tensor]) -> None:
    model, x = gated[0].half(), gated[1].half()
    model.down.weight.requires_grad_(False)  # else its input is saved for the backward
    kept = rust_ort.keep_in_float32(model, x)
    assert kept.verified and kept.complete and not kept.beyond, kept.text
    assert "mul" in kept.rules["float32"], kept.text
    assert kept.culprits[0]["pattern"] == "mul" and kept.culprits[0]["n_infinite"] > 0
    assert any(not output["before"]["within"] for output in kept.outputs)
    assert all(output["after"]["within"] for output in kept.outputs)
    with torch.no_grad():
        compiled = torch.compile(model, backend=rust_ort.backend(precision_rules=kept.rules))(x)
    torch.testing.assert_close(compiled.double(), exact(model, x), rtol=5e-3, atol=5e-3)
    assert kept.after is not None and "precision_rules" in kept.text
    shown = kept._repr_html_()
    assert "<td>mul</td>" in shown and "precision_rules=" in shown and "with the rules" in shown
    names = {verdict.name for verdict in kept.after.verdicts}
    assert names >= {"output", "grad of gate.weight", "grad of up.weight"}


def test_what_overflows_where_the_backward_needs_it_is_said_to_be_beyond(gated: tuple[Gated, Tensor]) -> None:
    model, x = gated[0].half(), gated[1].half()
    kept = rust_ort.keep_in_float32(model, x)
    assert "mul" in kept.rules["float32"] and [name for _, name in kept.beyond] == ["mul"], kept.text
    assert "beyond reach: mul" in kept.text and "beyond any rule: mul" in kept._repr_html_()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rule_of_autocast_and_of_modules(gated: tuple[Gated, Tensor], dtype: str) -> None:
    model, x = gated
    found = rust_ort.keep_in_float32(model, x, autocast=dtype, times=1.1, by="module", backward=False)
    assert found.verified and found.complete, found.text
    (answer,) = found.answers
    assert {culprit["pattern"] for culprit in answer["culprits"]} == {"gate", "up", "down", "relu", "mul"}
    assert set(found.rules["float32"]) & {"gate", "up"} and answer["reference"] == "float64"
    (output,) = found.outputs
    assert output["before"]["times"] is None or output["before"]["times"] > 1.1
    assert output["everything"]["times"] <= output["after"]["times"] <= 1.1


def test_nothing_is_kept_where_nothing_need_be() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4).bfloat16(), torch.randn(2, 8).bfloat16()
    kept = rust_ort.keep_in_float32(model, x)
    assert (kept.rules, kept.verified, kept.after) == ({}, True, None)
    assert {answer["found"]["kind"] for answer in kept.answers} == {"within"}


def test_a_gradient_that_is_zero_but_for_rounding_keeps_nothing() -> None:
    """What is added to all scores of a softmax changes nothing: its gradient is 0, and holds nothing but rounding."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return (torch.softmax(x + self.bias, -1) * target).sum()

    torch.manual_seed(0)
    kept = rust_ort.keep_in_float32(Scores().bfloat16(), torch.randn(4, 16).bfloat16(), torch.randn(4, 16).bfloat16())
    (bias,) = (output for output in kept.outputs if output["role"].endswith(" bias"))
    assert bias["before"]["verdict"]["metrics"]["max_terms"] > 0.1 and bias["before"]["within"], kept.text
    assert (kept.rules, kept.verified) == ({}, True), kept.text


def test_what_is_wrong_is_said(gated: tuple[Gated, Tensor]) -> None:
    model, x = gated
    with pytest.raises(ClientError, match="nothing of it is rounded to half precision"):
        rust_ort.keep_in_float32(model, x)
    with pytest.raises(OptionError, match="tolerance or times"):
        rust_ort.keep_in_float32(model, x, tolerance={"rtol": 1.0}, times=2.0)
    with pytest.raises(OptionError, match=r"expected a dict of .atol., .rtol., .scale."):
        rust_ort.keep_in_float32(model, x, tolerance={"relative": 1.0})
    with pytest.raises(OptionError, match="leave them out"):
        rust_ort.keep_in_float32(model, x, options={"precision_rules": {"float32": ["mul"]}})
    with pytest.raises(OptionError, match="by"):
        rust_ort.keep_in_float32(model, x, by="layer")


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUST_ORT_ONNXRUNTIME": find_onnxruntime(), "COLUMNS": "300"}
    command = [find_binary(), "keep", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_term_that_is_asked_for_leaves_the_others_those_of_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4).bfloat16(), torch.randn(2, 8).bfloat16()
    kept = rust_ort.keep_in_float32(model, x, backward=False, folder=tmp_path)
    assert kept.folder is not None
    tolerances = []
    for arguments in ((), ("--rtol", "0.03125")):
        (answer,) = json.loads(run_cli(kept.folder, "--json", *arguments).stdout)["answers"]
        (output,) = answer["outputs"]
        tolerances.append(output["before"]["verdict"]["metrics"]["tolerance"])
    assert tolerances[0] == tolerances[1] and tolerances[0]["rtol"] == 0.03125, tolerances


def test_the_command_tells_the_same_by_its_exit_code(gated: tuple[Gated, Tensor], tmp_path: Path) -> None:
    model, x = gated[0].half(), gated[1].half()
    kept = rust_ort.keep_in_float32(model, x, backward=False, folder=tmp_path)
    assert kept.folder is not None
    said = run_cli(kept.folder)
    assert said.returncode == 0, said.stderr
    assert 'precision_rules={"float32": ("mul",)}' in said.stdout
    answer: dict[str, Any] = json.loads(run_cli(kept.folder, "--json").stdout)
    assert answer["rules"] == {"float32": ["mul"]} and answer["verified"]
    impossible = run_cli(kept.folder, "--atol=0", "--rtol=0", "--scale=0")
    assert impossible.returncode == 1 and "whatever is kept" in impossible.stdout
    assert run_cli(kept.folder, "--budget=0").returncode == 3
    assert run_cli(kept.folder, "--times=-1").returncode == 2
    assert run_cli(kept.folder, "--provider", "CUDAExecutionProvider").returncode == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rules", [("mul_1",), ("mul", "mul_1"), ("*",)], ids=str)
def test_rules_at_what_attention_reads_leave_its_gradients_as_near(dtype: torch.dtype, rules: tuple[str, ...]) -> None:
    """The backward gets queries and keys that are rounded, and the sums of their softmax: sums of other ones would take
    its gradients further from float64, not nearer."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query * 1.0009765625 * 3.01, key * 1.3, value)

    torch.manual_seed(0)
    given = [(torch.randn(1, 4, 64, 16) * 1.5).to(dtype) for _ in range(3)]
    weight = torch.randn(1, 4, 64, 16).to(dtype) + 1

    def gradients(function: Any, to: torch.dtype) -> list[Tensor]:
        inputs = [tensor.to(to).clone().requires_grad_() for tensor in given]
        (function(*inputs) * weight.to(to)).sum().backward()
        return [tensor.grad.double() for tensor in inputs]  # type: ignore[union-attr]

    def errors(found: list[Tensor]) -> list[float]:
        return [float((one - other).norm() / other.norm()) for one, other in zip(found, near, strict=True)]

    near = gradients(attend, torch.float64)
    plain = errors(gradients(torch.compile(attend, backend=rust_ort.backend()), dtype))
    torch.compiler.reset()
    kept = errors(gradients(torch.compile(attend, backend=rust_ort.backend(precision_rules={"float32": rules})), dtype))
    assert all(one <= 1.1 * other for one, other in zip(kept, plain, strict=True)), (kept, plain)


def test_a_graph_that_ran_with_other_rules_before_is_dumped_as_it_ran(tmp_path: Path) -> None:
    def square(x: Tensor) -> Tensor:
        return (x * x) / 1000

    x = torch.full((8,), 300.0).half()
    for name, rules in (("plain", {}), ("kept", {"float32": ("mul",)}), ("again", {})):
        torch.compiler.reset()
        with rust_ort.dump(name, folder=tmp_path) as run:
            made = torch.compile(square, backend=rust_ort.backend(precision_rules=rules))(x)
        assert bool(made.isfinite().all()) == bool(rules)
        (path,) = Path(run).glob("*/part_0/model.precision.onnx")
        rounds = any("mul/unrounded" in output for node in onnx.load(path).graph.node for output in node.output)
        assert rounds == (not rules), name


def test_what_cannot_be_judged_is_not_called_right(tmp_path: Path) -> None:
    linear, x = nn.Linear(64, 8).half(), torch.randn(16, 64).half()
    kept = rust_ort.keep_in_float32(lambda x: linear(x).argmax(-1), x, backward=False, folder=tmp_path)
    assert [answer["found"]["kind"] for answer in kept.answers] == ["unjudged"]
    assert kept.answers[0]["notes"] == ["no output is a float: nothing is judged"]
    assert run_cli(tmp_path).returncode == 3
    (provenance,) = tmp_path.glob("*/*/part_0/provenance.json")
    provenance.with_name("files.json").unlink()  # it tells what provenance.json should hold
    provenance.write_text('{"values": [1]}')
    done = run_cli(tmp_path)
    assert done.returncode == 2 and f"{provenance}: it tells of the values in another form" in done.stderr
    provenance.unlink()
    done = run_cli(tmp_path)
    assert done.returncode == 2 and "provenance.json tells of no value" in done.stderr


def test_what_the_budget_did_not_reach_is_not_verified() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 4)).half()
    kept = rust_ort.keep_in_float32(model, torch.randn(2, 8).half(), times=1.01, budget=0.0)
    assert {answer["found"]["kind"] for answer in kept.answers} & {"unknown"}
    assert (kept.verified, kept.complete) == (False, False)


def test_numbers_that_were_rounded_on_export_are_told_of() -> None:
    """1e-8 is 0 in float16: the part gives NaN in float64, too, where the model does not."""
    x = torch.randn(4, 8).half()
    x[0] = 0
    kept = rust_ort.keep_in_float32(lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-8), x, backward=False)
    assert any("8 elements are infinite or NaN without any rounding, too" in note for note in kept.answers[0]["notes"])


def test_what_came_in_infinite_is_told_apart_by_compilation() -> None:
    def answer(graph: str, *, came_in: tuple[str, ...] = (), beyond: tuple[str, ...] = ()) -> dict[str, Any]:
        return {"graph": graph, "infinite_inputs": list(came_in), "beyond": list(beyond)}

    answers = [
        answer("0_9-forward", beyond=("view",)),
        answer("0_9-backward", came_in=("view", "mul")),
        answer("0_10-forward"),
        answer("0_10-backward", came_in=("view",)),
    ]
    # The view of the second compilation is another value than what nothing helps in the first.
    expected = {(0, "backward", "mul"), (1, "backward", "view")}
    assert _infinite(answers) == expected
    again = [{**one, "graph": one["graph"].replace("0_9", "0_11").replace("0_10", "0_12")} for one in answers]
    assert _infinite(again) == expected


def test_rules_can_be_pasted(tmp_path: Path) -> None:
    x = torch.full((8,), 300.0).half()
    kept = rust_ort.keep_in_float32(lambda x: (x * x) / 1000, x, backward=False)
    printed = re.search(r"precision_rules=(.*)", str(kept))
    assert printed is not None and ast.literal_eval(printed[1]) == kept.rules


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"times": "abc"}, r"times: expected a finite number that is at least 0, or None, got 'abc' of type str"),
        ({"times": float("nan")}, r"times: .*got nan"),
        ({"times": -1}, r"times: .*got -1"),
        ({"times": True}, r"times: .*got True"),
        ({"times": 10**400}, r"times: .*of type int"),
        ({"budget": float("inf")}, r"budget: expected a number of seconds from 0 to 1e\+09, or None, got inf"),
        ({"budget": [1]}, r"budget: .*got \[1\] of type list"),
        ({"tolerance": 0.5}, r"tolerance: expected a dict of 'atol', 'rtol', 'scale', or None, got 0.5"),
        ({"tolerance": 0}, r"tolerance: .*got 0"),
        ({"tolerance": {"atoll": 1}}, r"tolerance: .*got \{'atoll': 1\}"),
        ({"tolerance": {"rtol": "x"}}, r"tolerance\['rtol'\]: expected a finite number that is at least 0"),
        ({"tolerance": {"atol": 1}, "times": 2}, r"expected tolerance or times, got both"),
        ({"folder": ""}, r"folder: expected a path, got ''"),
        ({"folder": "a\0b"}, r"folder: expected a path"),
        ({"folder": "\ud800"}, r"folder: expected a path"),
        ({"options": {"dump": "runs/x"}}, r"expected no dump, as it makes its own, got dump='runs/x'"),
        ({"options": {"compare_only": ["\udc80"]}}, r"compare_only: expected patterns without NUL and lone surrogates"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_are_checked_before_anything_runs(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        rust_ort.keep_in_float32(lambda x: pytest.fail("it ran"), torch.ones(2).half(), **given)


def test_a_folder_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = rust_ort.keep_in_float32(
        lambda x: (x * x) / 1000, torch.full((8,), 300.0).half(), backward=False, folder="-x", times=np.float32(2)
    )
    assert kept.folder == tmp_path.resolve() / "-x" / "keep" and kept.folder.is_dir()


def test_a_gradient_that_is_zero_but_for_rounding_is_near_by_its_terms_where_no_kernel_is_float64() -> None:
    """A bias before a batch norm, behind a convolution, which ONNX Runtime computes in float32 at most."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 36, 4))
    kept = rust_ort.keep_in_float32(model, torch.randn(4, 3, 8, 8), autocast="bfloat16")
    backward = next(answer for answer in kept.answers if answer["graph"].endswith("backward"))
    assert backward["reference"] == "float32" and backward["outputs"], kept
    assert any(note.startswith("errors are measured from float32: the runtime has no float64 kernel of Conv")
               for note in backward["notes"]), backward["notes"]  # fmt: skip
    bias = next(output for output in backward["outputs"] if output["role"].endswith(" 2.bias"))
    assert bias["before"]["within"] and not backward["beyond"], kept
