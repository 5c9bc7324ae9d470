"""The operators that read or write by index, and those that write into a clone."""

from __future__ import annotations

import torch

from measure.random_graphs.draw import Draw, NotFitting
from measure.random_graphs.operator import Operator, adding_to

FUNCTIONS: list[Operator] = []
function = adding_to(FUNCTIONS)

# --- index ---


@function("index", weight=2)
def index_select(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    return f"torch.index_select({x}, {dim}, {d.index([d.whole(0, 4)], d.size(x, dim))})"


@function("index", weight=2)
def gather(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    shape = [d.whole(1, size) if size else 0 for size in d.t(x).shape]
    shape[dim] = d.whole(1, 4)
    return f"torch.gather({x}, {dim}, {d.index(shape, d.size(x, dim))})"


@function("index")
def take(d: Draw) -> str:
    x = d.any(least=1)
    return f"torch.take({x}, {d.index(d.shape(most=2), d.t(x).numel(), negative=True)})"


@function("index")
def take_along_dim(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    shape = list(d.t(x).shape)
    shape[dim] = d.whole(1, 3)
    return f"torch.take_along_dim({x}, {d.index(shape, d.size(x, dim))}, {dim})"


@function("index", weight=2)
def advanced(d: Draw) -> str:
    x = d.any(least=1)
    first = d.index(d.shape(least=1, most=2), d.size(x, 0), negative=True)
    return f"{x}[{first}]"


@function("index", weight=2)
def advanced_of_two(d: Draw) -> str:
    x = d.any(least=2)
    rank, count = d.t(x).dim(), d.whole(1, 3)
    first, second = d.index([count], d.size(x, 0), negative=True), d.index([count], d.size(x, -1), negative=True)
    middle = ", :" * (rank - 2)
    return f"{x}[{first}{middle}, {second}]"


@function("index")
def advanced_and_slice(d: Draw) -> str:
    x = d.any(least=2)
    return f"{x}[1:, {d.index([2], d.size(x, 1))}]"


@function("index")
def embedding(d: Draw) -> str:
    x = d.f(2)
    padding = d.one_of("None", 0) if d.size(x, 0) else "None"
    return f"F.embedding({d.index(d.shape(most=2), d.size(x, 0))}, {x}, padding_idx={padding})"


def _scattering(d: Draw, *, repeated: bool) -> tuple[str, int, str, str]:
    """Target, dimension, index, source."""
    x = d.n(least=1)
    dim = d.dim(x)
    shape = [d.whole(1, size) if size else 0 for size in d.t(x).shape]
    if 0 in shape:
        raise NotFitting
    index = d.index(shape, d.size(x, dim)) if repeated else d.permutations(shape, dim % len(shape), d.size(x, dim))
    return x, dim, index, d.sized(shape, d.t(x).dtype)


@function("index", weight=2)
def scatter(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=False)
    return f"torch.scatter({x}, {dim}, {index}, {d.one_of(source, d.one_of(2, -1))})"


@function("index", weight=2)
def scatter_add(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=True)
    return f"torch.scatter_add({x}, {dim}, {index}, {source})"


@function("index")
def scatter_reduce(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=True)
    how = d.one_of("'sum'", "'amax'", "'amin'", "'prod'", "'mean'")
    return f"torch.scatter_reduce({x}, {dim}, {index}, {source}, {how}, include_self={d.flag()})"


def _rows(d: Draw, *, repeated: bool) -> tuple[str, int, str, list[int]]:
    """Target, dimension, 1-D index, shape of what goes there."""
    x = d.n(least=1)
    dim = d.dim(x)
    size = d.size(x, dim)
    count = d.whole(1, 3)
    index = d.index([count], size) if repeated else d.permutation(size, count)
    shape = list(d.t(x).shape)
    shape[dim] = count
    return x, dim, index, shape


@function("index", weight=2)
def index_add(d: Draw) -> str:
    x, dim, index, shape = _rows(d, repeated=True)
    return f"torch.index_add({x}, {dim}, {index}, {d.sized(shape, d.t(x).dtype)}, alpha={d.one_of(1, 2)})"


@function("index")
def index_copy(d: Draw) -> str:
    x, dim, index, shape = _rows(d, repeated=False)
    return f"torch.index_copy({x}, {dim}, {index}, {d.sized(shape, d.t(x).dtype)})"


@function("index")
def index_fill(d: Draw) -> str:
    x, dim, index, _ = _rows(d, repeated=False)
    return f"torch.index_fill({x}, {dim}, {index}, {d.one_of(2, -1)})"


@function("index", weight=2)
def index_put(d: Draw) -> str:
    accumulate = d.flag()
    x = d.n(least=1)
    count = d.whole(1, 3)
    index = d.index([count], d.size(x, 0)) if accumulate else d.permutation(d.size(x, 0), count)
    values = d.sized([count, *d.t(x).shape[1:]], d.t(x).dtype)
    return f"torch.index_put({x}, ({index},), {values}, accumulate={accumulate})"


@function("index")
def masked_scatter(d: Draw) -> str:
    x = d.n(least=1)
    mask = d.sized(d.t(x).shape, torch.bool)
    return f"torch.masked_scatter({x}, {mask}, {d.sized(d.t(x).shape, d.t(x).dtype)})"


@function("index")
def bucketize(d: Draw) -> str:
    return f"torch.bucketize({d.f()}, torch.tensor([-1.5, 0.25, 1.0]), right={d.flag()})"


@function("index")
def select_scatter(d: Draw) -> str:
    x = d.n(least=1)
    dim = d.dim(x)
    if d.size(x, dim) == 0:
        raise NotFitting
    shape = list(d.t(x).shape)
    del shape[dim]
    return f"torch.select_scatter({x}, {d.sized(shape, d.t(x).dtype)}, {dim}, {d.one_of(0, -1)})"


@function("index")
def slice_scatter(d: Draw) -> str:
    x = d.n(least=1)
    dim = d.dim(x)
    shape = list(d.t(x).shape)
    shape[dim] = len(range(1, shape[dim], 2))
    return f"torch.slice_scatter({x}, {d.sized(shape, d.t(x).dtype)}, {dim}, 1, None, 2)"


# --- written in place, into a clone ---


@function("in place", weight=2)
def add_in_place(d: Draw) -> list[str]:
    x = d.f()
    return [f"@ = {x}.clone()", f"@.{d.one_of('add_', 'mul_', 'sub_')}({d.other(x, same=True)})"]


@function("in place")
def scalar_in_place(d: Draw) -> list[str]:
    return [f"@ = {d.n()}.clone()", f"@.{d.one_of('add_', 'mul_', 'fill_', 'clamp_min_')}({d.one_of(2, -1, 3)})"]


@function("in place", weight=2)
def slice_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    kept = len(range(1, d.size(x, 0), 2))
    value = d.sized([kept, *d.t(x).shape[1:]], d.t(x).dtype) if d.flag() else d.one_of(2, -1)
    return [f"@ = {x}.clone()", f"@[1::2] = {value}"]


@function("in place")
def column_written(d: Draw) -> list[str]:
    x = d.n(least=2)
    return [f"@ = {x}.clone()", f"@[..., 0].{d.one_of('add_', 'mul_')}({d.one_of(2, 3)})"]


@function("in place")
def select_copied(d: Draw) -> list[str]:
    x = d.n(least=1)
    dim = d.dim(x)
    if d.size(x, dim) == 0:
        raise NotFitting
    shape = list(d.t(x).shape)
    del shape[dim]
    return [f"@ = {x}.clone()", f"@.select({dim}, {d.one_of(0, -1)}).copy_({d.sized(shape, d.dtype())})"]


@function("in place")
def masked_in_place(d: Draw) -> list[str]:
    x = d.n()
    return [f"@ = {x}.clone()", f"@.masked_fill_({d.sized(d.t(x).shape, torch.bool)}, {d.one_of(2, -1)})"]


@function("in place")
def mask_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    return [f"@ = {x}.clone()", f"@[{d.sized(d.t(x).shape, torch.bool)}] = {d.one_of(2, -1)}"]


@function("in place")
def index_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    return [f"@ = {x}.clone()", f"@[{d.permutation(d.size(x, 0), 1)}] = {d.one_of(2, -1)}"]


@function("in place")
def index_added_in_place(d: Draw) -> list[str]:
    x, dim, index, shape = _rows(d, repeated=True)
    return [f"@ = {x}.clone()", f"@.index_add_({dim}, {index}, {d.sized(shape, d.t(x).dtype)})"]


@function("in place")
def transposed_written(d: Draw) -> list[str]:
    x = d.f(2)
    return [f"@ = {x}.clone()", f"@.t().mul_({d.sized([d.size(x, 1), 1], d.t(x).dtype)})"]
