"""What torch.compile itself changes is told from what the backend changes."""

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import rust_ort
from rust_ort.observe.peer import TORCHS_OWN, VARIES

pytestmark = pytest.mark.usefixtures("daemon")


def as_sigmoid(proto: Any) -> None:
    next(node for node in proto.graph.node if node.op_type == "Tanh").op_type = "Sigmoid"


as_sigmoid.cache_key = "test_peer"  # type: ignore[attr-defined]


class DrawnByNumPy(nn.Module):
    """Dynamo has torch draw what NumPy draws in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.other = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.from_numpy(np.random.rand(*x.shape)).to(x.dtype)
        hidden = self.linear(x)
        return hidden * mask, torch.tanh(self.other(hidden))


def test_what_torch_compile_changes_is_called_its_own() -> None:
    report = rust_ort.compare(DrawnByNumPy(), torch.randn(4, 8))
    kinds = {verdict.name: (verdict.kind, verdict.is_torchs_own) for verdict in report.verdicts}
    assert kinds["output[0]"] == ("mismatch", True), report
    assert kinds["output[1]"] == ("match", False), report
    assert kinds["grad of linear.weight"] == ("mismatch", True), report
    assert not report.ok
    assert report.is_torchs_own
    assert TORCHS_OWN in str(report)


def test_blame_says_that_it_is_torch_s_own() -> None:
    blamed = rust_ort.blame(DrawnByNumPy(), torch.randn(4, 8))
    assert blamed.culprit is None
    assert TORCHS_OWN in blamed.text


def test_a_wrong_kernel_is_never_torch_s_own() -> None:
    report = rust_ort.compare(DrawnByNumPy(), torch.randn(4, 8), options={"transforms": [as_sigmoid]}, backward=False)
    told = {verdict.name: verdict for verdict in report.verdicts}
    assert told["output[1]"].kind == "mismatch"
    assert not any(verdict.is_torchs_own for verdict in report.verdicts), report
    assert report.first_wrong_node is not None
    assert not report.is_torchs_own


def test_a_wrong_output_beside_what_is_torch_s_own_is_not_excused() -> None:
    """Outputs alone are compared: no node is known to be wrong."""

    options = {"transforms": [as_sigmoid], "compare": "outputs", "tolerance": {"rtol": 1e-5, "atol": 1e-5}}
    report = rust_ort.compare(DrawnByNumPy(), torch.randn(4, 8), options=options, backward=False)
    told = {verdict.name: verdict for verdict in report.verdicts}
    assert told["output[0]"].is_torchs_own, report
    assert told["output[1]"].kind == "mismatch"
    assert not told["output[1]"].is_torchs_own, report
    assert not report.is_torchs_own


def test_a_fault_beside_what_is_inside_tolerance_is_not_torch_s_own() -> None:
    """aot_eager is 2.5e-5 from eager, which is inside; the planted fault adds as much."""

    def model(x: Tensor) -> Tensor:
        return torch.tanh(x) * (1 + 2.5e-5 if torch.compiler.is_compiling() else 1.0)

    def enlarged(proto: Any) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "Mul")
        factor = numpy_helper.from_array(np.array(1 + 2.5e-5, dtype=np.float32), "factor")
        proto.graph.initializer.append(factor)
        proto.graph.node.append(helper.make_node("Mul", ["before", "factor"], [node.output[0]]))
        node.output[0] = "before"

    report = rust_ort.compare(model, torch.rand(64) + 1, options={"tolerance": {"rtol": 4e-5}})
    assert report.ok, report
    options = {"tolerance": {"rtol": 4e-5}, "transforms": [enlarged]}
    report = rust_ort.compare(model, torch.rand(64) + 1, options=options)
    assert not report.ok and not report.is_torchs_own, report
    assert [verdict.kind for verdict in report.verdicts if verdict.name == "output"] == ["mismatch"]


def test_what_eager_gives_otherwise_in_its_first_call_is_not_compared() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[str, float] = {}

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            factor = self.cache.setdefault("factor", 1.0)
            self.cache["factor"] = 2.0
            return x * factor, x + 1

    report = rust_ort.compare(Filled(), torch.randn(4))
    told = {verdict.name: (verdict.kind, verdict.reason) for verdict in report.verdicts}
    assert told["output[0]"] == ("not_compared", VARIES), report
    assert told["output[1]"][0] == "match"
