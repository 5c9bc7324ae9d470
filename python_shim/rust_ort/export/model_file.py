"""A translated forward as an ONNX model that a user keeps: names, initializers, its file."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rust_ort.errors import OptionError
from rust_ort.export import folding
from rust_ort.export.module_functions import Stack, name_modules, outline
from rust_ort.export.opset import bodies
from rust_ort.export.text import one_line
from rust_ort.export.translate import Translated

MOST_BYTES = (2 << 30) - (16 << 20)
"""Of tensors within one message: protobuf writes none of 2 GiB, and the graph takes some, too."""

MOST_CHECKED_BYTES = 256 << 20
"""Of a model whose types are inferred to check them, which copies it."""

ASSUMES = "rust_ort.assumes"
"""Key of the model's metadata: what holds of sizes in it, one a line."""


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """name: in the model. value: the translated model's name of it; None: nothing reads it. shape: numbers, names of
    dynamic sizes. tensor: what it is when it is an initializer."""

    name: str
    value: str | None
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    tensor: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ModelOutput:
    """name: in the model. value: position among the translated model's outputs, or the name of an input."""

    name: str
    value: int | str


def assembled(
    translated: Translated,
    inputs: Sequence[ModelInput],
    outputs: Sequence[ModelOutput],
    sizes: Mapping[str, str],
    assumptions: Sequence[str],
    *,
    optimized: bool,
    modules: Mapping[str, Stack],
    functions: Mapping[str, Stack] | None = None,
) -> Any:
    """The model as onnx_ir has it. sizes: {torch's symbol: name}. modules: {ONNX node or value: the calls of modules
    that compute it}, which its metadata tells; functions: those that become functions."""
    import onnx
    import onnx_ir as ir

    model = ir.from_proto(onnx.load_model_from_string(translated.model))
    given = {str(value.name): value for value in model.graph.inputs}  # the optimizer renames one that is an output
    if optimized:
        _optimize(model)
    graph = model.graph
    made = list(graph.outputs)
    graph.outputs.clear()
    _name_sizes(ir, graph, sizes)
    _give_way(ir, graph, {entry.name for entry in inputs} | {entry.name for entry in outputs})
    values = _named_inputs(ir, graph, given, inputs)
    if functions:
        graph.outputs.extend(made)
        outline(model, functions, frozenset(entry.name for entry in inputs))
        made = list(graph.outputs)
        graph.outputs.clear()
    if optimized:
        _fold(ir, graph, made, inputs, outputs)
    taken: set[int] = {id(value) for value in graph.inputs} | {id(value) for value in graph.initializers.values()}
    for output in outputs:
        value = values[output.value] if isinstance(output.value, str) else made[output.value]
        if id(value) in taken:  # an input as it is, or another output
            identity = ir.node("Identity", [value], name=f"node_{output.name}")
            graph.append(identity)
            identity.outputs[0].dtype, identity.outputs[0].shape = value.dtype, value.shape
            value = identity.outputs[0]
        value.name = output.name
        taken.add(id(value))
        graph.outputs.append(value)
    name_modules(model, modules)
    if assumptions:
        model.metadata_props[ASSUMES] = "\n".join(assumptions)
    return model


def _optimize(model: Any) -> None:
    """Folds constants, shares equal nodes, drops what does nothing; parameters are inputs yet, so they stay as they
    are, and calls of functions stay calls."""
    import onnx_ir.passes.common as common
    from onnxscript import optimizer, rewriter

    optimizer.optimize_ir(model, inline=False)
    rewriter.rewrite(model)
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
    ):
        step(model)
    for rewritten in folding.PASSES:
        rewritten(model.graph)
    common.RemoveUnusedNodesPass()(model)


def _fold(ir: Any, graph: Any, made: list[Any], inputs: Sequence[ModelInput], outputs: Sequence[ModelOutput]) -> None:
    """Folds what is of initializers alone. made: the graph's outputs, which it holds meanwhile."""
    parameters = {entry.name for entry in inputs if isinstance(entry.tensor, torch.nn.Parameter)}
    kept = {output.value for output in outputs if isinstance(output.value, str)}
    graph.outputs.extend(made)
    transposed = folding.fold(ir, graph, parameters, kept)
    folding.share_initializers(ir, graph, transposed | {entry.name for entry in inputs})
    made[:] = graph.outputs
    graph.outputs.clear()


def _values(ir: Any, graph: Any) -> Iterator[Any]:
    """Every value of the graph and of the graphs inside its nodes, inputs but not initializers of it first."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        yield from node.outputs
        for body in bodies(node):
            yield from body.inputs
            yield from body.initializers.values()


def _give_way(ir: Any, graph: Any, wanted: set[str]) -> None:
    """Renames values that have a name which the user's own are to have."""
    values = list(_values(ir, graph))
    known = {str(value.name) for value in values} | wanted
    for value in values:
        if value.name not in wanted:
            continue
        number, name = 0, str(value.name)
        while (fresh := f"{name}__{number}") in known:
            number += 1
        known.add(fresh)
        value.name = fresh


def _named_inputs(ir: Any, graph: Any, given: Mapping[str, Any], inputs: Sequence[ModelInput]) -> dict[str, Any]:
    """{name: the value}; the graph has these inputs and initializers, in their order. given: the translated model's."""
    from onnx_ir import tensor_adapters

    graph.inputs.clear()
    values = {}
    for entry in inputs:
        value = given.get(entry.value or "") or ir.Value(name=entry.name)
        value.name = entry.name
        value.dtype = tensor_adapters.from_torch_dtype(entry.dtype)
        value.shape = ir.Shape(entry.shape)
        values[entry.name] = value
        if entry.tensor is None:
            graph.inputs.append(value)
            continue
        whole = entry.tensor.detach().cpu().contiguous()
        value.const_value = tensor_adapters.TorchTensor(whole, name=entry.name)
        graph.register_initializer(value)
    return values


def _name_sizes(ir: Any, graph: Any, sizes: Mapping[str, str]) -> None:
    """Writes the user's names in the place of torch's symbols."""

    def named(size: Any) -> Any:
        text = getattr(size, "value", size)
        if not isinstance(text, str):
            return size
        return re.sub(r"\bs\d+\b", lambda symbol: sizes.get(symbol[0], symbol[0]), text)

    for value in _values(ir, graph):
        if value.shape is not None and any(not isinstance(size, int) for size in value.shape):
            value.shape = ir.Shape([named(size) for size in value.shape])


def saved(model: Any, path: Path | None) -> Any:
    """The ModelProto, checked by onnx.checker, and written to `path`: with its tensors in a file beside it where one
    message cannot hold them. Errors: OptionError where it cannot and there is no path; OSError."""
    import onnx
    import onnx_ir as ir

    n_bytes = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if n_bytes > MOST_BYTES:
        if path is None:
            raise OptionError(
                f"to_onnx path: the tensors of the model take {n_bytes} bytes, and one ONNX file holds {MOST_BYTES}; "
                "name a path, and they are written into a file beside it"
            )
        return _saved_with_data(ir, onnx, model, path)
    proto = ir.to_proto(model)
    _check(onnx, proto)
    if path is not None:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            written = Path(folder) / path.name
            written.write_bytes(proto.SerializeToString(deterministic=True))
            os.replace(written, path)
    return proto


def _check(onnx: Any, proto: Any) -> None:
    """Warns where an operator is given a type that ONNX does not have for it, as torch does: no runtime takes that.
    Errors: onnx.checker's, of what is wrong otherwise."""
    is_small = proto.ByteSize() <= MOST_CHECKED_BYTES
    try:
        onnx.checker.check_model(proto, full_check=is_small)
    except Exception as error:
        if not is_small:
            raise
        onnx.checker.check_model(proto)  # without types
        warnings.warn(f"to_onnx: by onnx's checker no runtime takes this model: {one_line(str(error))}", stacklevel=4)


def _saved_with_data(ir: Any, onnx: Any, model: Any, path: Path) -> Any:
    data = f"{path.name}.data"
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder) / path.name
        ir.save(model, written, external_data=data)
        onnx.checker.check_model(str(written))
        os.replace(written.parent / data, path.parent / data)
        os.replace(written, path)
    return onnx.load(str(path), load_external_data=False)
