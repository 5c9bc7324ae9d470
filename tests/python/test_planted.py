"""A wrong kernel planted in Llama is a mismatch in forward and in backward; without it everything matches. A slice of
`make planted`: in two families, nothing planted accuses nobody, and what is planted is named first."""

import functools
import random
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import rust_ort
from measure.blame import table as blame_table
from measure.blame.run import Blamed
from measure.planted import run, table
from measure.planted.faults import Site
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


@functools.cache
def clean(family: str, precision: str) -> run.Unplanted:
    return run.unplanted(family, precision)


@pytest.mark.parametrize(
    ("family", "precision", "kind"),
    [("gpt2", "bfloat16", "x 1.03"), ("gpt2", "bfloat16", "lost summand"), ("convnext", "float32", "through float16")],
)
def test_what_is_planted_is_named_and_nobody_else(family: str, precision: str, kind: str) -> None:
    """Also that nothing planted accuses nobody."""
    without = clean(family, precision)
    assert without.ok, without
    site = next(site for site in run.drawn(without, random.Random(0)) if site.kind == kind)
    row = run.planted(without, site)
    assert row.verdict == "named" and set(row.accused) <= set(row.guilty), row
    text = table.text([without], [row], seed=0)
    assert f"| {kind} | 1 | 0 | 0 | 0 | 0 |" in text and "1 runs, 0 accuse" in text


@pytest.mark.parametrize(
    ("culprit", "wrong", "listed"),
    [
        ("g mul", ["output"], False),
        ("g add", ["output"], True),
        ("", ["output"], True),
        ("g mul", [], False),  # within tolerance, and rightly named
        ("g add", [], True),
        ("", [], False),
    ],
)
def test_the_table_of_blame_lists_what_is_not_rightly_named(culprit: str, wrong: list[str], listed: bool) -> None:
    site = Site(kind="x 1.03", model=0, node="n", op="Mul")
    row = Blamed(family="f", precision="p", site=site, direction="forward", wrong=wrong, culprit=culprit,
                 guilty=["g mul"])  # fmt: skip
    assert ("Not named:" in blame_table.text([], [row], seed=0, float64=False)) == listed
