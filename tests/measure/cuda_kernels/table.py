"""What was found, as docs/results/cuda-kernels.md and .json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.cuda_kernels.cases import FLOATS, NOT_ASKED, Case

STATES = {
    "kernel": "a kernel on CUDA",
    "body": "no kernel; the operators that ONNX defines it by have them",
    "cpu": "the CPU's kernel, the tensors copied there and back",
    "none": "no kernel: ONNX Runtime refuses the model",
    "not in ONNX": "ONNX does not give the operator this type",
}
LOWEST = 18
"""The exporter's lowest opset."""

Operators = dict[str, dict[str, dict[str, dict[str, str]]]]
"""{operator: {opset from which it is so: {type: {element: state}}}}"""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What was asked, and with which schemas."""

    onnxruntime: str
    onnx: str
    opset: int


def operators(found: Mapping[Case, str], opset: int) -> Operators:
    """Versions beyond the library's last opset are left out."""
    made: Operators = {}
    for case, state in found.items():
        if case.since <= opset:
            types = made.setdefault(case.operator, {}).setdefault(str(case.since), {})
            types.setdefault(case.type_name, {})[case.element] = state
    return made


def in_force(versions: Mapping[str, dict[str, dict[str, str]]], opset: int) -> dict[str, dict[str, str]]:
    """{type: {element: state}} of an operator at an opset; {} where it is none yet."""
    since = [int(since) for since in versions if int(since) <= opset]
    return versions[str(max(since))] if since else {}


def state(types: Mapping[str, Mapping[str, str]], element: str) -> str:
    """The worst of the types that may be float."""
    order = [*STATES]
    states = [told.get(element, "not in ONNX") for told in types.values() if "float" in told]
    return max(states, key=order.index, default="")


def counts(made: Operators, opset: int, element: str) -> Counter[str]:
    """{state: how many operators}, of those that take float."""
    states = (state(in_force(versions, opset), element) for versions in made.values())
    return Counter(filter(None, states))


HEAD = """\
# Which operators have kernels on CUDA

Made by `PYTHONPATH=tests python -m measure.cuda_kernels --wheel FOLDER`, without a GPU: the CUDA provider of
onnxruntime-gpu {versions.onnxruntime} is loaded over libraries that stand in for CUDA's, and makes a session of
each operator with each element type: it looks its kernels up, and says which it does not find. Operators are those
of onnx {versions.onnx}, in every version up to opset {versions.opset}, the library's last. Each type of an operator
is asked about by itself, the others alike where they may be. cuda-kernels.json has all of them.

Not asked: {not_asked}.

Of operators that take float, so many have, at the worst of their types:
"""
HALVES = """
## Without a kernel of half precision

Where float has one at least on the CPU. In a session on CUDA the pass `missing-kernels`
(`src/onnx/precision/kernels/`) does these otherwise: a Pad with constants is Concats, a ConstantOfShape an Expand; all
others compute in float32, and each result is rounded. Operators of sequences are left: nothing rounds a sequence.
"""
OTHERS = """
## Everything else

Element types without a kernel at opset {opset}, though ONNX gives the operator the type:
"""


def text(made: Operators, versions: Versions) -> str:
    """Markdown."""
    opsets = (LOWEST, versions.opset)
    lines = [HEAD.format(versions=versions, not_asked=", ".join(sorted(NOT_ASKED)))]
    lines += _head("", [f"{element}, opset {opset}" for opset in opsets for element in FLOATS])
    counted = [counts(made, opset, element) for opset in opsets for element in FLOATS]
    lines += [_row(what, [str(count[name]) for count in counted]) for name, what in STATES.items()]
    three = ("bfloat16", "float16", "float")
    lines += [HALVES, *_head("operator", [f"{element}, opset {opset}" for opset in opsets for element in three])]
    for operator, of in made.items():
        told = [[state(in_force(of, opset), element) for element in three] for opset in opsets]
        if any(is_lacking(half, full) for *halves, full in told for half in halves):
            lines.append(_row(operator, [cell or "-" for cells in told for cell in cells]))
    lines += [OTHERS.format(opset=LOWEST), *_head("operator", ["type", "on the CPU", "refused"])]
    for operator, of in made.items():
        for name, types in in_force(of, LOWEST).items():
            rest = [element for element in types if element not in three[:2]]
            on_cpu, none = (", ".join(e for e in rest if types[e] == wanted) for wanted in ("cpu", "none"))
            if on_cpu or none:
                lines.append(_row(operator, [name, on_cpu, none]))
    return "\n".join(lines) + "\n"


def _head(first: str, others: Sequence[str]) -> list[str]:
    return [_row(first, others), "|---|" + "---|" * len(others)]


def _row(first: str, others: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(others)} |"


def is_lacking(half: str, full: str) -> bool:
    """Whether half precision has no kernel on CUDA, and float32 one at least on the CPU. Both: of STATES, or ""."""
    return half not in ("kernel", "body") and full in ("kernel", "body", "cpu")


def write(output: Path, made: Operators, versions: Versions) -> None:
    output.write_text(text(made, versions))
    data = {
        "onnxruntime": versions.onnxruntime, "onnx": versions.onnx, "opset": versions.opset,
        "operators": made,
    }  # fmt: skip
    output.with_suffix(".json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
