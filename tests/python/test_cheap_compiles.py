"""What makes a compilation cheap gives what the plain way gives."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.sym_node import SymNode

from rust_ort import torch_private
from rust_ort.export import exporter
from rust_ort.export.copies import copied_graph
from rust_ort.export.hash import graph_hash
from rust_ort.export.node_cache import NodeCache
from rust_ort.export.opset import with_bodies
from rust_ort.export.text import indented
from rust_ort.runtime import readable

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> fx.GraphModule:
    made: fx.GraphModule = make_fx(function, tracing_mode=mode)(*inputs)
    made.graph.output_node().type = None
    return made


def of_everything(x: torch.Tensor, y: torch.Tensor) -> Any:
    first, second = x.split(1)
    values, order = torch.sort(y.double() * 1e-7 + float("inf"), dim=-1)
    z = torch.cat([first, second], -1).reshape(-1)[::2].to(torch.bfloat16)
    return values, order, None, z.sum(), x.new_zeros((2, 3), dtype=torch.bool) + torch.tensor([1.0, 2, 3])


GRAPHS = {
    "fake": lambda: traced(of_everything, torch.ones(2, 3), torch.ones(3)),
    "symbolic": lambda: traced(of_everything, torch.ones(2, 3), torch.ones(3), mode="symbolic"),
    "real": lambda: traced(of_everything, torch.ones(2, 3), torch.ones(3), mode="real"),
    "a size": lambda: traced(lambda x: (x.shape[0] * 2, x.view(-1) * x.shape[0]), torch.ones(2, 3), mode="symbolic"),
    "no inputs": lambda: traced(lambda: torch.ones(2)),
    "an output alone": lambda: traced(lambda x: x, torch.ones(2)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_printed_as_torch_prints_it(name: str) -> None:
    gm = GRAPHS[name]()
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f'  File "f.py", line {len(node.name) % 3}, in f\n    {node.name[:3]}()\n'
    abbreviations = readable._abbreviations()
    assert abbreviations is not None, "this torch prints otherwise: every graph is printed by it"
    by_torch = gm.print_readable(print_output=False, include_stride=True, include_device=True)
    assert readable._printed(gm, abbreviations) == by_torch == readable.readable(gm)


def test_a_symbolic_size_is_printed_once_and_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = GRAPHS["symbolic"]()
    kind: Any = SymNode
    own, printed = kind.str, []
    expected = readable.readable(gm)
    plainly = graph_hash(gm)
    monkeypatch.setattr(kind, "str", lambda number: printed.append(number.expr) or own(number))
    counted = kind.str
    with torch_private.printed_once():
        with torch_private.printed_once():
            assert readable.readable(gm) == expected
        assert graph_hash(gm) == plainly and readable.readable(gm) == expected
        assert len(printed) == len(set(printed)) > 0
    assert kind.str is counted, "torch's own is put back, by the last that leaves"


def test_a_number_is_not_printed_as_a_truth_that_is_equal_to_it() -> None:
    numbers = [SimpleNamespace(expr=1), SimpleNamespace(expr=True), SimpleNamespace(expr=1)]
    known = torch_private._remembering(lambda number: str(number.expr))
    assert [known(number) for number in numbers] == ["1", "True", "1"]
    torch_private._printed.clear()


def test_a_dynamic_compilation_prints_each_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = SymNode
    own, printed = kind.str, []

    def counted(number: Any) -> str:
        if torch_private._printers:  # Dynamo prints some before it asks the backend
            printed.append(number.expr)
        return str(own(number))

    monkeypatch.setattr(kind, "str", counted)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    compiled = torch.compile(layers, backend="rust_ort", dynamic=True)
    compiled(torch.rand(2, 3, 9, 9)).sum().backward()
    counts = collections.Counter(printed)
    assert counts and max(counts.values()) <= 2, "the backward is compiled apart, when it is first called"


def with_a_body() -> fx.GraphModule:
    body = fx.symbolic_trace(lambda x: x + 1)
    graph = fx.Graph()
    graph.output(graph.call_module("body", (graph.placeholder("x"),)))
    return fx.GraphModule({"body": body}, graph)


def commented() -> fx.GraphModule:
    gm = traced(torch.sin, torch.ones(2))
    gm.graph.output_node().args[0].meta["custom"] = {"why": "shown"}  # type: ignore[union-attr]
    return gm


@pytest.mark.parametrize("made", [with_a_body, commented, lambda: fx.symbolic_trace(lambda x: torch.sin(x).cos())])
def test_what_is_not_known_here_is_printed_by_torch(made: Callable[[], fx.GraphModule]) -> None:
    gm, abbreviations = made(), readable._abbreviations()
    assert abbreviations is not None
    with pytest.raises(readable._Unusual):
        readable._printed(gm, abbreviations)
    assert readable.readable(gm) == gm.print_readable(print_output=False, include_stride=True, include_device=True)


def test_a_torch_that_prints_otherwise_prints_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "_by_torch", lambda gm: "class Other:\n")
    readable._abbreviations.cache_clear()
    try:
        assert readable._abbreviations() is None
        assert readable.readable(GRAPHS["fake"]()) == "class Other:\n"
    finally:
        readable._abbreviations.cache_clear()


@pytest.mark.parametrize(
    "value",
    [
        {}, [], {"a": [], "b": {}, "c": [[], {}]}, "é\n\"\\\u2028", -3, 1.5, math.inf, True, None,
        {"x": [1, 2.5, None, False, {"y": ("z", [])}], "": {"\t": -0.0}}, {1: {"a": [1]}, None: 2}, [[1, [2, [3]]]],
    ],
)  # fmt: skip
def test_json_is_jsons_own(value: Any) -> None:
    assert indented(value) == json.dumps(value, indent=1)
    assert indented({"in": [value]}) == json.dumps({"in": [value]}, indent=1)


def test_a_copy_has_the_same_nodes_names_and_values() -> None:
    gm = GRAPHS["symbolic"]()
    renamed = next(node for node in gm.graph.nodes if node.op == "call_function")
    renamed.name = "sum"  # which fx gives to no node by itself
    copied = copied_graph(gm.graph)
    assert str(copied) == str(gm.graph)
    for old, new in zip(gm.graph.nodes, copied.nodes, strict=True):
        assert (new.name, new.op, new.target, new.type) == (old.name, old.op, old.target, old.type)
        assert new.meta == old.meta and new.meta is not old.meta
        assert [one.name for one in new.all_input_nodes] == [one.name for one in old.all_input_nodes]
        assert all(one.graph is copied for one in (*new.all_input_nodes, *new.users))
    copied.lint()


def asked(gm: fx.GraphModule, answer: str | None = None) -> list[str]:
    """The nodes that are asked about."""
    alike, names = NodeCache(), []

    def ask(node: fx.Node) -> str | None:
        names.append(node.name)
        return answer

    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert alike.once("a", node, lambda node=node: ask(node)) == answer  # type: ignore[misc]
    return names


def test_nodes_alike_are_asked_about_once() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 1, y + 1, x + 1.0, x + True, x.t() + 1, x.double() + 1, x * 0.0, x * -0.0, x[:1] + 1

    gm = traced(function, torch.ones(2, 2), torch.ones(2, 2))
    names = [node.name for node in gm.graph.nodes if node.op == "call_function"]
    assert names.index("add_1") == 1
    assert asked(gm) == [name for name in names if name != "add_1"]
    assert asked(gm, "no") == names, "what speaks against a node may name it"


def test_of_symbolic_sizes_each_is_asked_about() -> None:
    gm = traced(lambda x: (x + 1, x + 1), torch.ones(2, 2), mode="symbolic")
    assert [name for name in asked(gm) if name.startswith("add")] == ["add", "add_1"]


def test_the_nodes_of_bodies_come_as_onnx_ir_has_them() -> None:
    import onnx_ir as ir

    inner = ir.Graph([], [], nodes=[ir.node("A", []), ir.node("B", [])], opset_imports={"": 18})
    outer = ir.Graph([], [], nodes=[ir.node("C", []), ir.node("If", [], {"then": inner}), ir.node("D", [])])
    expected = [node.op_type for node in ir.traversal.RecursiveGraphIterator(outer)]
    assert [node.op_type for node in with_bodies(outer)] == expected == ["C", "If", "A", "B", "D"]


def test_dead_nodes_are_taken_out_of_a_graph_with_bodies() -> None:
    """A body reads what nothing else does; what only a dead node reads is dead too."""
    import onnx_ir as ir

    from rust_ort.export.translate import _drop_dead

    def value(name: str) -> Any:
        return ir.Value(name=name)

    x, read, dead, deader, out = (value(name) for name in ("x", "read", "dead", "deader", "out"))
    body = ir.Graph([], [], nodes=[ir.Node("", "Neg", [read], outputs=[value("inner")])])
    nodes = [
        ir.Node("", "Abs", [x], outputs=[read]),
        ir.Node("", "Abs", [x], outputs=[deader]),
        ir.Node("", "Abs", [deader], outputs=[dead]),
        ir.Node("", "If", [x], [ir.AttrGraph("then_branch", body)], outputs=[out]),
    ]
    graph = ir.Graph([x], [out], nodes=nodes)
    assert _drop_dead(ir, graph, set()) >= {"x", "read", "out"}
    assert [node.outputs[0].name for node in graph] == [
        "read",
        "deader",
        "out",
    ]  # a body: all that is still there reads
    body.remove(list(body))
    assert _drop_dead(ir, graph, set()) == {"x", "out"}
    assert [node.outputs[0].name for node in graph] == ["out"]


def test_the_registry_is_made_once() -> None:
    assert exporter.registry() is exporter.registry()
