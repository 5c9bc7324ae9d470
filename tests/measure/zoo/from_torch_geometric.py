"""Models of torch-geometric: a class for each node of a random graph, and the energy of molecules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from measure.zoo.images import entropy
from measure.zoo.model import Call, Model, Subject, adam
from measure.zoo.sources import made_by

NODES, EDGES, FEATURES, HIDDEN, CLASSES, RELATIONS = 1000, 5000, 64, 64, 8, 4


def _edges() -> Tensor:
    """(2, edges): from where, to where."""
    return torch.randint(0, NODES, (2, EDGES))


def _nodes(module: nn.Module, edges: Tensor, *more: Tensor) -> Subject:
    call = Call(args=(torch.randn(NODES, FEATURES), edges, *more))
    labels = torch.randint(0, CLASSES, (NODES,))
    return Subject(module=module, evaluated=call, trained=call, loss=entropy(labels), optimizer=adam)


def _geometric(name: str, build: Callable[[Any], Subject], room: str = "models") -> Model:
    """build: of the class."""
    source = f"torch_geometric.nn.{room}.{name}"
    return Model(
        name=name, package="torch-geometric", source=source, smaller="",
        build=lambda: build(made_by(source)),
    )  # fmt: skip


def _stack(**options: Any) -> Callable[[Any], Subject]:
    """Three layers, as the package stacks them."""
    return lambda made: _nodes(made(FEATURES, HIDDEN, 3, CLASSES, **options), _edges())


def _counted(made: Any) -> Subject:
    """PNA scales by how many nodes have each number of edges."""
    edges = _edges()
    degrees = torch.bincount(torch.bincount(edges[1], minlength=NODES))
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    module = made(FEATURES, HIDDEN, 2, CLASSES, aggregators=aggregators, scalers=scalers, deg=degrees)
    return _nodes(module, edges)


class TwoLayers(nn.Module):
    """Two convolutions with an activation between them, as tutorials of the package write a network."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        hidden: Tensor = self.first(x, *edges).relu()
        given: Tensor = self.second(hidden, *edges)
        return given


def _attention(made: Any) -> Subject:
    return _nodes(TwoLayers(made(FEATURES, HIDDEN // 4, heads=4), made(HIDDEN, CLASSES)), _edges())


def _relations(made: Any) -> Subject:
    """Edges are of several kinds."""
    module = TwoLayers(made(FEATURES, HIDDEN, RELATIONS), made(HIDDEN, CLASSES, RELATIONS))
    return _nodes(module, _edges(), torch.randint(0, RELATIONS, (EDGES,)))


def _near(positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms of one molecule within 10 angstroms, and their distances: what the package needs torch-cluster for."""
    distances = torch.cdist(positions, positions)
    different = ~torch.eye(len(positions), dtype=torch.bool)
    edges = ((distances < 10) & (batch[:, None] == batch) & different).nonzero().t()
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)


def _molecules(made: Any) -> Subject:
    """Atomic numbers, positions in angstroms, and which molecule each atom is of."""
    count, atoms = 8, 18
    positions = torch.randn(count * atoms, 3) * 3
    call = Call(args=(torch.randint(1, 10, (count * atoms,)), positions, torch.arange(count).repeat_interleave(atoms)))
    return Subject(module=made(interaction_graph=_near), evaluated=call, trained=call, optimizer=adam)


MODELS = [
    _geometric("EdgeCNN", _stack()),
    _geometric("GAT", _stack(heads=4)),
    _geometric("GCN", _stack()),
    _geometric("GIN", _stack()),
    _geometric("GraphSAGE", _stack()),
    _geometric("PNA", _counted),
    _geometric("RGCNConv", _relations, "conv"),
    _geometric("SchNet", _molecules),
    _geometric("TransformerConv", _attention, "conv"),
]
