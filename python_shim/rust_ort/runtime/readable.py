"""A graph as code, as torch's `print_readable` has it. Graphs of ATen operators are printed here in a fraction of its
time, where a small graph shows that this torch prints as it does here; all others by torch."""

from __future__ import annotations

import builtins
import functools
import inspect
import keyword
import logging
import operator
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from rust_ort.torch_private import OpOverload, no_modes

log = logging.getLogger("rust_ort")

Abbreviations = Mapping[torch.dtype, str]

RESERVED = frozenset(
    {*keyword.kwlist, *vars(builtins), "inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree", "self"}
)
"""Names that torch gives to nothing else where it prints."""

PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of arguments that are printed as Python has them."""

VERBOSE = ("FX_GRAPH_SHOW_STRIDE", "FX_GRAPH_SHOW_DEVICE", "FX_GRAPH_SHOW_META")
"""Variables of the environment by which torch is asked for more."""

SHOWN_BESIDE = ("custom", "is_wrapped")
"""Keys of a node's meta of which torch prints more than is printed here, where they are true."""
SHOWN_IF_THERE = ("recompute", "ac_graph_id")
"""As well, where they are there."""

NO_SOURCE = "# No stacktrace found for following nodes"
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint8, torch.complex64,
)  # fmt: skip

_FRAME = re.compile(r"^File \"(.+)\", line (\d+), in (.+)$")


class _Unusual(Exception):
    """Something that only torch knows how to print."""


def readable(gm: fx.GraphModule) -> str:
    """The graph as code, with shapes, strides and devices: `gm.print_readable(include_stride=True, ...)`."""
    abbreviations = _abbreviations()
    if abbreviations is not None:
        try:
            return _printed(gm, abbreviations)
        except _Unusual:
            pass
        except Exception as error:  # a text is no reason to fail
            log.debug("a graph is printed by torch: %s", error)
    return _by_torch(gm)


def _by_torch(gm: fx.GraphModule) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


@functools.cache
def _abbreviations() -> Abbreviations | None:
    """What torch calls the dtypes; None where it prints a graph otherwise than is done here."""
    with no_modes():
        probe = _probe()
    by_torch = _by_torch(probe)
    dtypes = dict(zip(DTYPES, re.findall(r'of_\d+: "(\w+)\[', by_torch), strict=False))
    try:
        return dtypes if _printed(probe, dtypes) == by_torch else None
    except Exception as error:  # whatever another torch lacks or names otherwise
        log.debug("graphs are printed by torch: %s", error)
        return None


def _probe() -> fx.GraphModule:
    """A graph with some of everything that is printed here, and one placeholder of each dtype."""
    graph, aten = fx.Graph(), torch.ops.aten
    given = [graph.placeholder(f"of_{index}") for index in range(len(DTYPES))]
    for node, dtype in zip(given, DTYPES, strict=True):
        node.meta["val"] = torch.empty_strided((2, 3), (1, 2), dtype=dtype)
    first = graph.call_function(aten.add.Tensor, (given[0], 1.5), {"alpha": 2})
    second = graph.call_function(aten.split.Tensor, (first, 1))
    third = graph.call_function(operator.getitem, (second, 0))
    constant = graph.get_attr("constant")
    unused = graph.call_function(aten.full.default, ([2, 3], float("inf")), {"dtype": torch.int64, "pin_memory": None})
    fourth = graph.call_function(aten.cat.default, ([third, constant], 0))
    for node in (first, third, fourth):
        node.meta["val"] = torch.empty((), dtype=torch.float32)
    for node, line in ((first, 1), (second, 1), (third, 2), (unused, 2)):
        outer, inner = '  File "a.py", line 7, in g\n    f(x)', f'  File "b c.py", line {line}, in f\n    x + 1 '
        node.meta["stack_trace"] = f"{outer}\n{inner}\n"
    graph.output((fourth, None, (third,)))
    return fx.GraphModule({"constant": torch.empty(1)}, graph)


def _printed(gm: fx.GraphModule, abbreviations: Abbreviations) -> str:
    graph, codegen = gm.graph, _codegen(gm)
    nodes = list(graph.nodes)
    names = {node.name for node in nodes}
    if len(names) != len(nodes) or not RESERVED.isdisjoint(names) or any(map(os.environ.get, VERBOSE)):
        raise _Unusual
    dying = _dying(nodes)
    parameters, lines, said = list[str](), list[str](), None
    for node in nodes:
        if node.op == "placeholder":
            parameters.append(_parameter(node, abbreviations))
            continue
        if node.op == "output":
            lines.append(_returned(codegen, node))
            continue
        source = _source(node.meta)
        if source != said:
            said = source
            lines += ("", source)
        dead = dying.get(node, [])
        ended = f";  {' = '.join(dead)} = None" if dead else ""
        lines.append(f"{node.name}{_annotation(node, abbreviations)} = {_called(node)}{ended}")
    if lines and not lines[0]:
        del lines[0]
    head = codegen.gen_fn_def(parameters, "").split("\n")
    made = [*(f"    {line}" if line.strip() else "" for line in head), *(f"        {x}" if x else "" for x in lines)]
    return "\n".join([f"class {type(gm).__name__}(torch.nn.Module):", *made, ""])


def _codegen(gm: fx.GraphModule) -> Any:
    """What gives the function's head and its return."""
    codegen, common = gm.graph._codegen, type(fx.Graph()._codegen)
    if getattr(type(codegen), "_gen_python_code", None) is not getattr(common, "_gen_python_code", 0):
        raise _Unusual
    if codegen._body_transformer is not None or any(isinstance(child, fx.GraphModule) for child in gm.children()):
        raise _Unusual
    return codegen


def _returned(codegen: Any, node: fx.Node) -> str:
    if node.type is not None:
        raise _Unusual
    knows = "repr_fn" in inspect.signature(codegen.generate_output).parameters
    line: str = codegen.generate_output(node.args[0], **({"repr_fn": _argument} if knows else {}))
    if "\n" in line:
        raise _Unusual
    return line


def _dying(nodes: Sequence[fx.Node]) -> dict[fx.Node, list[str]]:
    """{node: the values that nothing reads after it}."""
    read, dying = set[fx.Node](), dict[fx.Node, list[str]]()
    for node in reversed(nodes):
        ended = []
        for source in node.all_input_nodes:
            if source not in read:
                read.add(source)
                ended.append(source.name)
        if not node.users:
            ended.append(node.name)
        if ended:
            dying[node] = ended
    return dying


def _parameter(node: fx.Node, abbreviations: Abbreviations) -> str:
    if node.target != node.name or node.args:  # it has another name inside, or a default
        raise _Unusual
    return f"{node.name}{_annotation(node, abbreviations)}"


def _source(meta: Mapping[str, Any]) -> str:
    if any(meta.get(key) for key in SHOWN_BESIDE) or any(meta.get(key) is not None for key in SHOWN_IF_THERE):
        raise _Unusual
    trace = meta.get("stack_trace")
    source = _summary(trace) if trace else NO_SOURCE
    if "# COUNTER" in source:  # torch takes its own such lines out
        raise _Unusual
    return source


@functools.lru_cache(maxsize=1024)
def _summary(trace: str) -> str:
    lines = trace.strip().split("\n")
    for index in range(len(lines) - 2, -1, -1):
        if found := _FRAME.match(lines[index].strip()):
            return f"# File: {found[1]}:{found[2]} in {found[3]}, code: {lines[index + 1].strip()}"
    return NO_SOURCE


def _annotation(node: fx.Node, abbreviations: Abbreviations) -> str:
    meta = node.meta
    if node.type is not None:
        raise _Unusual
    if "val" not in meta:
        if "tensor_meta" in meta or "example_value" in meta:
            raise _Unusual
        return ""
    value = meta["val"]
    if isinstance(value, torch.Tensor):
        if not _is_plain(type(value)) or value.layout is not torch.strided or value.dtype not in abbreviations:
            raise _Unusual
        return f': "{abbreviations[value.dtype]}{_sizes(value.shape)}{_sizes(value.stride())}{value.device}"'
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f': "Sym({value!r})"'
    return ""


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether torch names no class beside the tensor's sizes."""
    return kind is torch.Tensor or (kind.__name__ == "FakeTensor" and kind.__module__.startswith("torch."))


def _sizes(sizes: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _called(node: fx.Node) -> str:
    target = node.target
    if node.op == "get_attr" and isinstance(target, str) and all(map(str.isidentifier, target.split("."))):
        return f"self.{target}"
    if node.op != "call_function":
        raise _Unusual
    magic_methods = getattr(fx.graph, "magic_methods", {})
    if getattr(target, "__module__", "") == "_operator" and target.__name__ in magic_methods:  # type: ignore[union-attr]
        return str(magic_methods[target.__name__].format(*map(_argument, node.args)))  # type: ignore[union-attr]
    if not isinstance(target, OpOverload):
        raise _Unusual
    given = [*map(_argument, node.args), *(f"{name} = {_argument(value)}" for name, value in node.kwargs.items())]
    return f"torch.ops.{target}({', '.join(given)})"


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if type(value) in PLAIN:
        return repr(value)
    # Of fx's own immutable lists, which are lists; a named tuple is printed with its name.
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if type(value) is tuple:
        return f"({_argument(value[0])},)" if len(value) == 1 else f"({', '.join(map(_argument, value))})"
    raise _Unusual
