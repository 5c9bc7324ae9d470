"""A wrong kernel planted in Llama is a mismatch in forward and in backward; without it everything matches."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import rust_ort
from rust_ort.studies import llama_models

pytestmark = pytest.mark.usefixtures("daemon")

planted: list[str] = []


def one_epsilon(proto: Any) -> None:
    """Llama's RMS norm adds 1e-6 to the variance: the first such constant of the model becomes 1e-3."""
    for node in proto.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value" and is_epsilon(attribute.t):
                attribute.t.CopyFrom(numpy_helper.from_array(np.full(tuple(attribute.t.dims), 1e-3, np.float32)))
                planted.append(node.name)
                return
    for tensor in proto.graph.initializer:
        if is_epsilon(tensor):
            tensor.CopyFrom(numpy_helper.from_array(np.full(tuple(tensor.dims), 1e-3, np.float32), tensor.name))
            planted.append(tensor.name)
            return


one_epsilon.cache_key = "one epsilon"  # type: ignore[attr-defined]


def is_epsilon(tensor: Any) -> bool:
    value = numpy_helper.to_array(tensor)
    return value.dtype == np.float32 and value.size == 1 and 0.9e-6 < value.item() < 1.1e-6


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_one_changed_epsilon_in_llama_is_found(attention: str) -> None:
    def report(**options: Any) -> rust_ort.Report:
        study = llama_models.build("decoder", llama_models.SIZES["small"], attention=attention)
        return rust_ort.compare(study.module, *study.inputs, options=options)

    right = report()
    assert right.ok, str(right)
    planted.clear()
    wrong = report(transforms=[one_epsilon])
    assert planted, "no epsilon was found to change"
    mismatches = {verdict.name for verdict in wrong.verdicts if verdict.kind == "mismatch"}
    assert any(name.startswith("output") for name in mismatches), str(wrong)
    assert any(name.startswith("grad of") for name in mismatches), str(wrong)
    assert not wrong.ok
