"""Linear maps along one dimension whose every output is few of the inputs, weighted: pooling, resizing, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.torch_private import no_modes

MOST_SUMMANDS = 8
"""More weighted inputs an output are gathered at once, fewer one after the other."""


@dataclass(frozen=True, kw_only=True)
class Taps:
    """rows[i]: (input, weight) of what output i is the sum of; an input may come twice. n_inputs: the inputs' number.

    Nothing is multiplied but what a row names: a NaN or infinity elsewhere stays elsewhere.
    """

    n_inputs: int
    rows: Sequence[Sequence[tuple[int, float]]]

    def transposed(self) -> Taps:
        """The map of gradients."""
        rows: list[list[tuple[int, float]]] = [[] for _ in range(self.n_inputs)]
        for output, row in enumerate(self.rows):
            for index, weight in row:
                rows[index].append((output, weight))
        return Taps(n_inputs=len(self.rows), rows=rows)

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        """Of `tensor`, [..., n_inputs, ...] with that at `axis`, computed in its dtype. axis: from 0."""
        longest = max((len(row) for row in self.rows), default=0)
        if longest == 0:
            return tensor.new_zeros([*tensor.shape[:axis], len(self.rows), *tensor.shape[axis + 1 :]])
        if any(len(row) < longest for row in self.rows):  # they take the rest of a zero behind the last input
            tensor = torch.constant_pad_nd(tensor, [0, 0] * (tensor.dim() - axis - 1) + [0, 1])
        rows = [[*row, *[(self.n_inputs, 1.0)] * (longest - len(row))] for row in self.rows]
        behind = [1] * (tensor.dim() - axis - 1)
        if longest > MOST_SUMMANDS:
            shape = [*tensor.shape[:axis], len(rows), longest, *tensor.shape[axis + 1 :]]
            gathered = _gather(tensor, axis, [index for row in rows for index, _ in row]).reshape(shape)
            return _weighted(gathered, [[weight for _, weight in row] for row in rows], behind).sum(axis + 1)
        total: Tensor | None = None
        for column in zip(*rows, strict=True):
            gathered = _gather(tensor, axis, [index for index, _ in column])
            summand = _weighted(gathered, [weight for _, weight in column], behind)
            total = summand if total is None else total + summand
        assert total is not None
        return total


def _gather(tensor: Tensor, axis: int, indices: list[int]) -> Tensor:
    if indices == list(range(tensor.shape[axis])):
        return tensor
    return torch.index_select(tensor, axis, constant(indices, torch.int64, tensor.device))


def _weighted(tensor: Tensor, weights: list[Any], behind: list[int]) -> Tensor:
    """weights: numbers, or lists of numbers of equal length."""
    flat = weights if isinstance(weights[0], float) else [weight for row in weights for weight in row]
    if all(weight == 1 for weight in flat):
        return tensor
    made = constant(weights, tensor.dtype, tensor.device)
    return tensor * made.reshape(*made.shape, *behind)


def applied(maps: Sequence[Taps], tensor: Tensor) -> Tensor:
    """The maps of the last dimensions, in the dtype of `tensor`; what makes it larger comes last."""
    first = tensor.dim() - len(maps)
    for i in sorted(range(len(maps)), key=lambda i: len(maps[i].rows) / max(maps[i].n_inputs, 1)):
        tensor = maps[i](tensor, first + i)
    return tensor


def constant(numbers: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant of the traced graph: torch.tensor would also trace how it makes it, which is not functional."""
    with no_modes():
        made = torch.tensor(numbers, dtype=dtype, device=device)
    lifted: Tensor = torch.ops.aten.lift_fresh_copy(made)
    return lifted
