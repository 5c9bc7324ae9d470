"""Which nodes are one part: no part reads what comes after it, and no cut has fewer."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from rust_ort.export.grouping import grouped


def drawn(seed: int) -> tuple[fx.GraphModule, set[fx.Node]]:
    """A random graph with tuples, dead ends and an output; those of its nodes that may be in parts."""
    draw = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder(f"x{i}") for i in range(draw.randint(1, 3))]
    runs = set()
    share = draw.choice((0.5, 0.8, 0.95, 1.0))
    for _ in range(draw.randint(1, 40)):
        node = graph.call_function(torch.add, tuple(draw.choices(values[-draw.choice((2, 6, 40)) :], k=2)))
        may_run = draw.random() < share
        taken = [node]
        if draw.random() < 0.2:
            taken = [graph.call_function(operator.getitem, (node, i)) for i in range(draw.randint(1, 3))]
            runs.update(one for one in taken if draw.random() < 0.8)  # what is said of these does not count
        if may_run:
            runs.add(node)
        values += taken
    graph.output(tuple(draw.choices(values, k=draw.randint(1, 4))))
    return fx.GraphModule(torch.nn.Module(), graph), runs


def most_alternations(graph: fx.Graph, in_part: set[fx.Node]) -> int:
    """Of all paths: how many stretches in parts, with eager between them, the one with the most has."""
    most: dict[fx.Node, int] = {}
    for node in graph.nodes:
        sources = node.all_input_nodes
        most[node] = max([most[source] + (node in in_part and source not in in_part) for source in sources], default=0)
    return max(most.values())


@pytest.mark.parametrize("seed", range(150))
def test_parts_are_few_and_none_reads_what_comes_after_it(seed: int) -> None:
    gm, runs = drawn(seed)
    parts = grouped(gm.graph, lambda node: "here" if node in runs else None)
    place = {node: at for at, part in enumerate(parts) for node in part}
    for node in gm.graph.nodes:
        if node.target is not operator.getitem:
            assert (node in place) == (node in runs)
        else:
            assert place.get(node) == place.get(node.args[0])
    order = [node for node in gm.graph.nodes if node in place]
    assert list(dict.fromkeys(place[node] for node in order)) == list(range(len(parts)))
    assert parts == [[node for node in order if place[node] == at] for at in range(len(parts))]
    assert len(parts) == most_alternations(gm.graph, set(place)), "as few as there can be"
    assert_no_circle(gm.graph, place)


@pytest.mark.parametrize("seed", range(150))
def test_a_part_is_in_one_place(seed: int) -> None:
    gm, runs = drawn(seed)
    draw = random.Random(seed)
    devices = {node: draw.choice(("cuda:0", "cuda:1", "cpu")) for node in gm.graph.nodes}
    parts = grouped(gm.graph, lambda node: devices[node] if node in runs else None)
    place = {node: at for at, part in enumerate(parts) for node in part}
    for node in gm.graph.nodes:
        if node.target is operator.getitem:
            assert place.get(node) == place.get(node.args[0])
        else:
            assert (node in place) == (node in runs)
    for part in parts:
        assert len({devices[node] for node in part if node.target is not operator.getitem}) == 1
    assert_no_circle(gm.graph, place)


def assert_no_circle(graph: fx.Graph, place: dict[fx.Node, int]) -> None:
    """Among the parts and the nodes in eager."""
    units = {node: f"part {place[node]}" if node in place else node.name for node in graph.nodes}
    read_by = {(units[source], units[node]) for node in graph.nodes for source in node.all_input_nodes}
    edges = {(source, reader) for source, reader in read_by if source != reader}
    while edges:
        read = {reader for _, reader in edges}
        left = {(source, reader) for source, reader in edges if source in read}
        assert left != edges, edges
        edges = left


@pytest.mark.parametrize("seed", range(60))
def test_no_more_parts_than_torchs_own_partitioner_has(seed: int) -> None:
    gm, runs = drawn(seed)
    taken = [node for node in gm.graph.nodes if node.target is operator.getitem]
    runs = runs.difference(taken) | {node for node in taken if node.args[0] in runs}
    support = create_op_support(lambda _, node: node in runs)
    of_torch = CapabilityBasedPartitioner(gm, support, allows_single_node_partition=True).propose_partitions()
    assert len(grouped(gm.graph, lambda node: "here" if node in runs else None)) <= len(of_torch)


def test_a_deep_graph_of_many_parts_is_cut_in_one_walk() -> None:
    asked: list[fx.Node] = []
    graph = fx.Graph()
    value = graph.placeholder("x")
    for at in range(20_000):
        value = graph.call_function(torch.add if at % 10 else torch.mul, (value, value))
    graph.output(value)

    def place(node: fx.Node) -> str | None:
        asked.append(node)
        return "here" if node.target is torch.add else None

    parts = grouped(graph, place)
    assert len(parts) == 2_000
    assert len(asked) == len(set(asked)) == len(graph.nodes), "each node is asked for once"
