"""Where every value of a part comes from: ONNX value ↔ FX node ↔ source line ↔ module path ↔ parameter name."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from rust_ort.export.text import indented
from rust_ort.torch_private import OperatorBase

SCHEMA_VERSION = 1

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_WRAPPED = "L['fn']"
"""The model where torch wraps it in a function of its own: nn.Sequential and the other modules of torch."""

_STEP = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]|\.(\w+)|\['([^']+)'\]|\[(\d+)\]")


def operator_name(node: fx.Node) -> str:
    """`aten.mm.default`, `operator.getitem`; of a higher-order operator also what it wraps."""
    target = node.target
    if isinstance(target, (str, OperatorBase)):
        name = str(target)
    else:
        # The builtins of `operator` call their module `_operator`.
        module = (getattr(target, "__module__", None) or "builtins").removeprefix("_")
        name = f"{module}.{getattr(target, '__qualname__', None) or type(target).__qualname__}"
    wrapped = [str(arg) for arg in node.args if isinstance(arg, OperatorBase)]
    return name + (f"({', '.join(wrapped)})" if wrapped else "")


def source_line(node: fx.Node) -> str:
    """`file.py:12 in forward` of the user's line behind `node`, "" when torch recorded none."""
    return _last_line(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=1024)
def _last_line(trace: str) -> str:
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return ""
    last = frames[-1]
    return f"{last['file']}:{last['line']} in {last['function']}"


def computed_by(node: fx.Node) -> fx.Node:
    """The operator behind a value: of one of several results the one that gives them all, else the node itself."""
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, fx.Node)
    return source


def module_path(node: fx.Node) -> str:
    """`model.layers.0.mlp` of the innermost module behind `node`; of the forward node for a backward one."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return parameter_name(path.replace(_WRAPPED, "L['self']", 1) if path.startswith(_WRAPPED) else path)


@functools.lru_cache(maxsize=1024)
def parameter_name(source: str) -> str:
    """`layer.0.weight` from Dynamo's `L['self']._modules['layer']._modules['0']._parameters['weight']`."""
    head = re.match(r"L\['(\w+)'\]", source)
    if head is None:
        return source
    rest = source[head.end() :]
    steps = ["".join(groups) for groups in _STEP.findall(rest)]
    wrapped = head[0] == _WRAPPED and rest.startswith(("._modules", "._parameters", "._buffers"))
    return ".".join(steps) if wrapped or head[1] == "self" else ".".join([head[1], *steps])


_named: ContextVar[Mapping[int, str]] = ContextVar("named", default=MappingProxyType({}))


@contextlib.contextmanager
def named_as_in(model: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
    """Inside, `input_sources` has parameters and buffers under the names that the whole model has for them, not under
    those of the frame that Dynamo compiles, where two layers may have one. model: (name, tensor) of each."""
    tensors = {id(tensor): (name, tensor) for name, tensor in model}  # held: an address is not used again meanwhile
    token = _named.set({address: name for address, (name, _) in tensors.items()})
    try:
        yield
    finally:
        _named.reset(token)


def input_sources(dynamo: fx.GraphModule | None) -> list[str]:
    """Source of each placeholder of Dynamo's graph, in order: a parameter's name or the argument's."""
    nodes = [] if dynamo is None else dynamo.graph.find_nodes(op="placeholder")
    return [_source(node) for node in nodes]


def _source(placeholder: fx.Node) -> str:
    argument = placeholder.meta.get("grapharg")
    if argument is None:
        return placeholder.name
    known = _named.get()
    try:
        if known and id(argument.example) in known:
            return known[id(argument.example)]
        name = argument.source.name
        return parameter_name(name() if callable(name) else str(name))
    except (AttributeError, AssertionError, NotImplementedError):
        return placeholder.name


def described(desc: object, sources: Sequence[str]) -> dict[str, str]:
    """Role of an AOT input or output: {"role": "PlainAOTInput", "of": "layer.weight"}."""
    if desc is None:
        return {"role": "", "of": ""}
    return {"role": type(desc).__name__, "of": _of(desc, sources)}


def _of(desc: object, sources: Sequence[str]) -> str:
    for attribute in ("target",):
        if isinstance(getattr(desc, attribute, None), str):
            return str(getattr(desc, attribute))
    for attribute in ("grad_of", "output", "mutated_input", "base", "base_of"):
        inner = getattr(desc, attribute, None)
        if inner is not None:
            return _of(inner, sources)
    index = getattr(desc, "idx", None)
    if type(desc).__name__ == "PlainAOTInput" and isinstance(index, int) and index < len(sources):
        return sources[index]
    expression = getattr(desc, "expr", None)
    return str(expression()) if callable(expression) else ""


def value_description(value: object) -> dict[str, Any]:
    """dtype and shape of a fake value; symbolic sizes are -1 with their expression beside."""
    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [-1 if isinstance(size, torch.SymInt) else size for size in value.shape],
            "symbolic_shape": [str(size) for size in value.shape],
        }
    return {"dtype": "int64", "shape": [], "symbolic_shape": []}


def provenance_json(
    *,
    part: fx.GraphModule,
    tensor_outputs: Sequence[str],
    input_names: Sequence[str],
    output_names: Sequence[str],
    fx_values: Mapping[str, str],
    onnx_nodes: Mapping[str, str],
    descriptions: Mapping[str, Mapping[str, str]],
    custom_op_libraries: Sequence[str] = (),
    providers: Sequence[tuple[str, Mapping[str, str]]] = (),
    device: str | None = None,
) -> str:
    """Content of provenance.json of one part.

    `tensor_outputs`: FX names of the model's outputs `output_names`. `descriptions`: {FX name: role} of the AOT
    graph's ends. `custom_op_libraries`: paths of what the part runs with. `providers`: execution providers with
    their options; none: the CPU's. `device`: UUID of the GPU that it runs on, of which the options have the number
    alone: that is one process's. None: it runs on the CPU.
    """
    nodes = {node.name: node for node in part.graph.nodes}
    return indented(
        {
            "schema": SCHEMA_VERSION,
            "inputs": [
                {"name": name, **descriptions.get(name, {"role": "intermediate", "of": ""}),
                 **value_description(nodes[name].meta.get("val"))}
                for name in input_names
            ],
            "outputs": [
                {"name": name, "fx": fx_name, **descriptions.get(fx_name, {"role": "intermediate", "of": ""}),
                 **value_description(nodes[fx_name].meta.get("val"))}
                for name, fx_name in zip(output_names, tensor_outputs, strict=True)
            ],
            "values": {
                value: {
                    "fx": fx_name,
                    "op": operator_name(node),
                    "source": source_line(node),
                    "module": module_path(node),
                    "seq_nr": node.meta.get("seq_nr", -1),
                }
                for fx_name, value in fx_values.items()
                for node in [computed_by(nodes[fx_name])]
            },
            "nodes": dict(onnx_nodes),
            "custom_op_libraries": list(custom_op_libraries),
            "providers": [[name, dict(given)] for name, given in providers],
            "device": device,
        }
    )  # fmt: skip
