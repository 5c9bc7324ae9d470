"""x * y of two vectors of dynamic size, either of which may have one element: what torch.export assumes of the sizes,
what torch.compile guards in front of each graph of rust_ort, and which of the four cases one ONNX model serves.

Exit code: 0 one model of x * y serves all four, 1 none does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, fx, nn

import rust_ort
from rust_ort import torch_private
from rust_ort.errors import RustOrtError
from rust_ort.runtime.assumptions import assumptions
from rust_ort.studies.main_job import aligned

CASES = {"(1,) (1,)": (1, 1), "(1,) (p,)": (1, 5), "(q,) (1,)": (4, 1), "(p,) (p,)": (5, 5)}
"""{case: sizes of x and y}, as onnx-diagnostic's plot_broadcast_export_issue has them."""

AUTO = torch.export.Dim.AUTO


class Product(nn.Module):
    """x * y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Mean(nn.Module):
    """The mean of x * y, which asks for the product's size."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        product = x * y
        return product.sum() / product.shape[0]


MODELS: dict[str, Callable[[], nn.Module]] = {"x * y": Product, "(x * y).sum() / (x * y).shape[0]": Mean}


@dataclass(kw_only=True)
class Exported:
    """What torch.export made of an example: shapes, or its error's first line."""

    model: str
    example: str
    plain: str
    oblivious: str


@dataclass(kw_only=True)
class Compiled:
    """One call of a compiled function. graph: the number of the one that served it. inputs: its symbolic shapes.
    guards: on sizes, beside a number's own. right: whether the result is eager's."""

    case: str
    graph: int
    is_new: bool
    inputs: str
    guards: list[str]
    right: bool


@dataclass(kw_only=True)
class Served:
    """One ONNX model. declared: its inputs and output. cases: {case: "right", "wrong" or what the runtime raised}."""

    model: str
    example: str
    declared: str
    assumes: list[str] = field(default_factory=list)
    cases: dict[str, str] = field(default_factory=dict)


def arguments_of(case: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(size, generator=generator) + 0.5 for size in CASES[case])
    return x, y


def exported(model: str, example: str) -> Exported:
    return Exported(
        model=model, example=example, plain=_export(model, example, False), oblivious=_export(model, example, True)
    )


def _export(model: str, example: str, oblivious: bool) -> str:
    try:
        with torch_private.small_sizes_as_any(oblivious):
            program = torch.export.export(MODELS[model](), arguments_of(example), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    except Exception as error:  # the study shows what torch raises
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    values = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    made: Any = program.graph.output_node().args[0]
    return f"{', '.join(map(_shape, values))} -> {_shape(made[0].meta['val'])}"


def _shape(value: Tensor) -> str:
    return f"({', '.join(map(str, value.shape))})"


def compiled(model: str) -> list[Compiled]:
    """Each case in turn by one function compiled with dynamic=True."""
    backend = rust_ort.backend()
    graphs: list[tuple[str, list[str]]] = []
    called: list[int] = []

    def watching(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made = backend(gm, inputs)
        values = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
        shapes = ", ".join(_shape(value) for value in values if isinstance(value, Tensor))
        number = len(graphs)
        graphs.append((shapes, list(assumptions(values, {}).lines())))

        def run(*arguments: Any) -> Any:
            called.append(number)
            return made(*arguments)

        return run

    torch.compiler.reset()
    eager = MODELS[model]()
    function = torch.compile(eager, backend=watching, dynamic=True, fullgraph=True)
    rows = []
    for case in CASES:
        arguments = arguments_of(case)
        before = len(graphs)
        with torch.no_grad():
            right = torch.allclose(function(*arguments), eager(*arguments))
        shapes, guards = graphs[called[-1]]
        rows.append(
            Compiled(
                case=case, graph=called[-1], is_new=len(graphs) > before, inputs=shapes, guards=guards, right=right
            )
        )
    return rows


def served(model: str, example: str) -> Served:
    """The ONNX model of one example, run on every case by plain ONNX Runtime."""
    try:
        proto = rust_ort.to_onnx(MODELS[model](), *arguments_of(example), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    except RustOrtError as error:
        return Served(model=model, example=example, declared=str(error).splitlines()[0])
    found = {entry.key: entry.value for entry in proto.metadata_props}
    row = Served(
        model=model,
        example=example,
        declared=_declared(proto),
        assumes=found.get("rust_ort.assumes", "").splitlines(),
    )
    for case in CASES:
        row.cases[case] = _run(proto, MODELS[model](), arguments_of(case))
    return row


def _declared(proto: onnx.ModelProto) -> str:
    def shape(entry: Any) -> str:
        sizes = entry.type.tensor_type.shape.dim
        return f"({', '.join(size.dim_param or str(size.dim_value) for size in sizes)})"

    return f"{', '.join(map(shape, proto.graph.input))} -> {shape(proto.graph.output[0])}"


def _run(proto: onnx.ModelProto, model: nn.Module, arguments: tuple[Tensor, Tensor]) -> str:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # a wrong declaration is told in the table
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    feeds = {name: tensor.numpy() for name, tensor in zip(("x", "y"), arguments, strict=True)}
    try:
        (got,) = session.run(None, feeds)
    except Exception as error:  # whatever the runtime raises: the study shows it
        return "refused" if "INVALID_ARGUMENT" in str(error) else "fails"
    expected = model(*arguments).numpy()
    return "right" if got.shape == expected.shape and np.allclose(got, expected) else "wrong"


@dataclass(kw_only=True)
class Study:
    exported: list[Exported]
    compiled: dict[str, list[Compiled]]
    served: list[Served]

    @property
    def code(self) -> int:
        whole = [row for row in self.served if row.model == "x * y" and set(row.cases.values()) == {"right"}]
        return 0 if whole else 1


def run() -> Study:
    return Study(
        exported=[exported("x * y", example) for example in CASES],
        compiled={model: compiled(model) for model in MODELS},
        served=[served(model, example) for model in MODELS for example in CASES],
    )


def text(study: Study) -> str:
    """The three tables."""
    cells = [("example", "torch.export, Dim.AUTO: x, y -> output", "the same, backed_size_oblivious")]
    cells += [(made.example, made.plain, made.oblivious) for made in study.exported]
    parts = ["x * y, what torch.export assumes", aligned(cells)]
    for model, calls_of in study.compiled.items():
        calls = [("call", "graph", "its inputs", "guards on sizes", "result")]
        calls += [
            (call.case, f"{call.graph}{' (new)' if call.is_new else ''}", call.inputs, "; ".join(call.guards) or "none",
             "right" if call.right else "wrong")
            for call in calls_of
        ]  # fmt: skip
        parts += [f"\n{model}, torch.compile(backend=rust_ort, dynamic=True)", aligned(calls)]
    for model in MODELS:
        models: list[tuple[str, ...]] = [("example", "declared", *CASES, "assumes")]
        for row in study.served:
            if row.model == model:
                results = [row.cases.get(case, "-") for case in CASES]
                models.append((row.example, row.declared, *results, "; ".join(row.assumes) or "nothing"))
        parts += [f"\n{model}, rust_ort.to_onnx with Dim.AUTO, run by ONNX Runtime on each case", aligned(models)]
    whole = [row for row in study.served if set(row.cases.values()) == {"right"}]
    parts.append("\nmodels that serve all four cases: " + ("; ".join(f"{row.model} of {row.example}" for row in whole)
                                                           or "none"))  # fmt: skip
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study and prints it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.broadcast", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the tables as JSON")
    arguments = parser.parse_args(argv)
    study = run()
    print(json.dumps(dataclasses.asdict(study), indent=1) if arguments.json else text(study))
    return study.code


if __name__ == "__main__":
    sys.exit(main())
