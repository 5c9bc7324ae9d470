"""How an argument lies in the memory that it is a view of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

Layout = Callable[[Sequence[int]], tuple[list[int], str]]
"""From the argument's shape: the shape of the memory, and the expression of the view, in which `@` is the memory."""


def plain(shape: Sequence[int]) -> tuple[list[int], str]:
    return list(shape), "@"


def drawn(rng: random.Random, rank: int, *, views: bool) -> Layout:
    """Row-major mostly; views: more often not, and views whose elements share memory, too."""
    if rank == 0 or rng.random() < (0.2 if views else 0.6):
        return plain
    choices: list[Layout] = [_stepped, _offset, _columns, _selected]
    if rank >= 2:
        choices += [_permuted(rng.sample(range(rank), rank)), _permuted([*range(rank - 2), rank - 1, rank - 2])]
    if rank == 4:
        choices += [_permuted([0, 2, 3, 1])] * 2
    if views:
        choices += [_expanded(rng.randrange(rank)), _scalar_expanded]
        if rank == 2:
            choices.append(_overlapping)
    return rng.choice(choices)


def of_same_memory(rng: random.Random, rank: int) -> str:
    """Another view of a memory of this rank."""
    choices = ["@", "@.detach()", "@.view(-1)", "@[None]"]
    if rank:
        choices += ["@[1:]", "@[:-1]", "@[..., ::2]", "@[0]", "@.flatten()[1:]", "@[::2]"]
    if rank >= 2:
        choices += ["@.mT", "@[:, 1:]", "@.transpose(0, -1)"]
    return rng.choice(choices)


def overlaps(value: Any) -> bool:
    """Whether elements of a tensor may share memory: what is written there is the last of them, whichever that is."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return False
    pairs = [(stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]
    reach = 0
    for stride, size in sorted(pairs):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _stepped(shape: Sequence[int]) -> tuple[list[int], str]:
    return [*shape[:-1], 2 * shape[-1]], "@[..., ::2]"


def _offset(shape: Sequence[int]) -> tuple[list[int], str]:
    return [shape[0] + 1, *shape[1:]], "@[1:]"


def _columns(shape: Sequence[int]) -> tuple[list[int], str]:
    return [*shape[:-1], shape[-1] + 2], "@[..., 1:-1]"


def _selected(shape: Sequence[int]) -> tuple[list[int], str]:
    return [2, *shape], "@[1]"


def _scalar_expanded(shape: Sequence[int]) -> tuple[list[int], str]:
    return [], f"@.expand({tuple(shape)})"


def _overlapping(shape: Sequence[int]) -> tuple[list[int], str]:
    return [shape[0] + shape[1]], f"@.as_strided({tuple(shape)}, (1, 1))"


def _permuted(order: Sequence[int]) -> Layout:
    def layout(shape: Sequence[int]) -> tuple[list[int], str]:
        back = tuple(list(order).index(k) for k in range(len(order)))
        return [shape[k] for k in order], f"@.permute{back}"

    return layout


def _expanded(dim: int) -> Layout:
    def layout(shape: Sequence[int]) -> tuple[list[int], str]:
        return [1 if k == dim else size for k, size in enumerate(shape)], f"@.expand({tuple(shape)})"

    return layout
