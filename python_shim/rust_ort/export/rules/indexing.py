"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.aliases import KEEP_LAYOUTS, base_of
from rust_ort.export.rules.nodes import argument, dtype
from rust_ort.export.rules.promotion import Number, as_half, as_held
from rust_ort.export.rules.registry import decomposed, in_eager, ints, op, translated, whole
from rust_ort.export.rules.sizes import known, least, steps
from rust_ort.export.shapes import fills_its_storage, hint, overlaps
from rust_ort.torch_private import torchs_decompositions

aten = torch.ops.aten

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)


def _written(self: Tensor, src: Tensor, stride: Sequence[int], offset: int) -> Any:
    """`self` with `src` at these strides of its elements in their order."""
    positions = aten.full([1] * src.dim(), offset, dtype=torch.int64, device=self.device)
    for axis, (length, step) in enumerate(zip(src.shape, stride, strict=True)):
        line = torch.arange(length, device=self.device) * step
        positions = positions + line.reshape([length if other == axis else 1 for other in range(src.dim())])
    flat = aten.scatter.src(self.reshape(-1), 0, positions.reshape(-1), src.reshape(-1))
    return flat.reshape(self.shape)


def _static(*tensors: Tensor) -> bool:
    return all(isinstance(size, int) and size > 0 for tensor in tensors for size in tensor.shape)


@decomposed("aten.diagonal_scatter.default", why="decomposed to prims.copy_to, which is not functional")
def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """By the places of elements where the sizes are known, else by rows and columns that are compared."""
    if not _static(self, src):
        return _along_diagonal(self, src, offset, dim1, dim2)
    strides = steps(self.shape)
    rows, columns = strides[dim1], strides[dim2]
    others = [stride for axis, stride in enumerate(strides) if axis not in (dim1 % self.dim(), dim2 % self.dim())]
    return _written(self, src, [*others, rows + columns], offset * columns if offset >= 0 else -offset * rows)


def _along_diagonal(self: Tensor, src: Tensor, offset: int, dim1: int, dim2: int) -> Any:
    """`diagonal_scatter` of sizes that may change, as long as there is a diagonal."""
    if least(src.shape[-1]) < 1:
        return NotImplemented
    matrices = self.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(size, device=self.device) for size in matrices.shape[-2:])
    of_rows = (rows + min(offset, 0)).clamp(0, src.shape[-1] - 1)
    written = src.index_select(-1, of_rows).unsqueeze(-1)
    is_written = columns - rows.unsqueeze(1) == offset
    return torch.where(is_written, written, matrices).movedim((-2, -1), (dim1, dim2))


@translated(
    "aten.diagonal.default",
    "aten.diagonal_copy.default",
    why="torchlib adds up each row times a row of the identity: NaN beside an infinity, and -0.0 is 0.0",
    silent=True,
)
def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """By a Gather of the matrices as rows."""
    rank = len(self.shape)
    matrix = [dim1 % rank, dim2 % rank]
    others = [axis for axis in range(rank) if axis not in matrix]
    sizes = op.Shape(self)
    n_rows, n_columns = (op.Gather(sizes, ints(axis)) for axis in matrix)
    rows = op.Reshape(
        op.Transpose(self, perm=[*others, *matrix]),
        op.Concat(op.Gather(sizes, ints(others)), ints([-1]), axis=0) if others else ints([-1]),
    )
    zero, one = ints(0), ints(1)
    above, below = ints(max(offset, 0)), ints(max(-offset, 0))
    length = op.Max(op.Min(op.Sub(n_rows, below), op.Sub(n_columns, above)), zero)
    start = op.Add(above, op.Mul(below, n_columns))
    places = op.Add(op.Mul(op.Range(zero, length, one), op.Add(n_columns, one)), start)
    return op.Gather(rows, places, axis=-1)


def _keeps_a_layout(node: fx.Node) -> bool:
    """Whether its result, which has the layout of `self`, has elements at one place, or is shown and lies in a larger
    storage."""
    source = node
    while source.target in KEEP_LAYOUTS:
        source = argument(source, "self")
    self = source.meta["val"]
    return overlaps(self) or (not fills_its_storage(self) and _is_shown(node))


def _is_shown(node: fx.Node) -> bool:
    """Whether its layout is that of an output: as it is, by a view, or by another operator that keeps it."""
    return any(
        user.op == "output"
        or ((base_of(user) is node or (user.target in KEEP_LAYOUTS and user.args[0] is node)) and _is_shown(user))
        for user in node.users
    )


in_eager(
    *(str(operator) for operator in KEEP_LAYOUTS),
    why="the result has the layout of a tensor that is not dense",
    upstream="torch",
    when=_keeps_a_layout,
)


in_eager(
    "aten.nonzero.default",
    why="NonZero gives a scalar's place a dimension",
    upstream="onnxruntime",
    silent=False,
    when=lambda node: not argument(node, "self").meta["val"].shape,
)


@decomposed(
    "aten.take.default", why="an index of rank 0 is taken for a number that is known when tracing", upstream="torch"
)
def take(self: Tensor, index: Tensor) -> Any:
    """By one index of the flat tensor, negative ones too."""
    return aten.index.Tensor(self.reshape(-1), [index])


@decomposed("aten.masked_scatter.default", why="torchlib's ScatterND takes no rank 0: it fails when it runs")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Of rank 0, as of one element."""
    if self.dim() or mask.dim():
        return NotImplemented
    return aten.masked_scatter.default(self.reshape(1), mask.reshape(1), source).reshape(())


@decomposed("aten.masked_scatter_backward.default", why="the gradient has no ONNX form")
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Any:
    """Element i of the source went where i elements of the mask were before: the others go to a place beyond."""
    length = math.prod(sizes)
    if not isinstance(length, int):
        return NotImplemented
    chosen = mask.expand(grad.shape).reshape(-1)
    places = torch.where(chosen, torch.cumsum(chosen, 0) - 1, length)
    zeros = aten.full([length + 1], 0, dtype=grad.dtype, device=grad.device)
    return aten.scatter.src(zeros, 0, places, grad.reshape(-1))[:length].reshape(sizes)


BELOW = -(2**62)
"""Added to a negative index, no range has it; what refuses it names it, and who reads that takes this away again."""
NEVER_NEGATIVE = frozenset({"ArgMax", "ArgMin", "Range"})
NEGATIVE = "ONNX counts negative indices from the end, torch refuses them"


def in_range(index: Any) -> Any:
    """The index as int64, of which ONNX Runtime refuses what torch refuses: for the functions of `translated`."""
    from onnxscript import ir

    long = index if index.dtype == ir.DataType.INT64 else op.Cast(index, to=ir.DataType.INT64)
    made = index.producer()
    if made is not None and made.op_type in NEVER_NEGATIVE:
        return long
    zero, below = (op.Constant(value=ir.tensor(value, dtype=ir.DataType.INT64)) for value in (0, BELOW))
    return op.Where(op.Less(long, zero), op.Add(long, below), long)


def refusing(index: Tensor) -> Tensor:
    """As `in_range`, for decompositions into what counts from the end."""
    long = index.to(torch.int64)
    return torch.where(long < 0, long + BELOW, long)


def _rows(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Any:
        if operator is aten.index_copy.default and index.dtype is not torch.int64:
            return NotImplemented
        own: Any = torchs_decompositions()[operator]
        alpha = bool(alpha) if self.dtype is torch.bool else alpha
        plain = isinstance(alpha, int) and alpha == 1
        factor = {} if plain else {"alpha": as_half(alpha, self.dtype)}
        rows = source.reshape(1) if source.dim() == 0 and self.dim() > 0 else source
        return own(self, dim, refusing(index.reshape(-1)), rows, **factor)

    return function


def _is_not_long(node: fx.Node) -> bool:
    return dtype(node, "index") is not torch.int64


in_eager("aten.index_copy", "aten.index_fill", why="torch refuses an index that is not int64", when=_is_not_long)

for _name in ("index_add", "index_copy"):
    decomposed(f"aten.{_name}.default", why=NEGATIVE, silent=True)(_rows(getattr(aten, _name).default))


def _fill(self: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Any:
    """index_put, which counts from the end, as torch's index_fill does."""
    if self.dim() == 0 or index.dtype is not torch.int64:
        return NotImplemented
    filled = (
        value.to(self.dtype)
        if isinstance(value, Tensor)
        else aten.full([], as_held(value, self.dtype), dtype=self.dtype, device=self.device)
    )
    before: list[Tensor | None] = [None] * (dim % self.dim())
    return aten.index_put.default(self, [*before, index.reshape(-1)], filled)


for _name in ("int_Scalar", "int_Tensor"):
    decomposed(
        f"aten.index_fill.{_name}", why="decomposed to index_copy, which refuses negative indices", upstream="torch"
    )(_fill)


@translated("aten.gather.default", why=NEGATIVE, silent=True)
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Of a tensor of rank 0, itself."""
    if len(self.shape) == 0 or len(index.shape) == 0:
        return op.Reshape(op.Gather(flat(self), in_range(flat(index)), axis=0), op.Shape(index))
    line = line_of(index, self, dim)
    if line is not None:
        return op.Gather(self, in_range(flat(line)), axis=0)
    return op.GatherElements(self, in_range(index), axis=dim)


def line_of(index: Any, self: Any, dim: int) -> Any:
    """What an index of the first dimension is spread from, [n, 1, ...], where it names whole slices of `self`: graph
    networks write one for each element. None of others."""
    made, sizes = index.producer(), list(index.shape)
    if dim % len(sizes) or made is None or made.op_type != "Expand" or len(sizes) < 2:
        return None
    line = made.inputs[0]
    is_line = line.shape is not None and len(line.shape) == len(sizes) and line.shape[0] == sizes[0]
    rest = sizes[1:]
    if not is_line or not known(rest) or rest != list(self.shape[1:]) or any(size != 1 for size in line.shape[1:]):
        return None
    return line


@translated("aten.index_select.default", why=NEGATIVE, silent=True)
def index_select(self: Any, dim: int, index: Any) -> Any:
    """An index of rank 0 is one of a single element."""
    rows = in_range(index) if len(index.shape) == 1 else in_range(flat(index))
    if len(self.shape) == 0:
        return op.Reshape(op.Gather(flat(self), rows, axis=0), ints([]))
    return op.Gather(self, rows, axis=dim)


@translated("aten.embedding.default", why=NEGATIVE, silent=True)
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """Rows of the matrix."""
    return op.Gather(weight, in_range(indices), axis=0)


def flat(value: Any) -> Any:
    """Of rank 1: for the functions of `translated`."""
    made = op.Reshape(value, ints([-1]))
    made.dtype = value.dtype
    return made


def of_rank_1(value: Any) -> Any:
    """A value of rank 0 as one of a single element, others as they are."""
    return flat(value) if len(value.shape) == 0 else value


def _index(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
        long = long_indices(indices)
        return NotImplemented if long is None else operator(self, long)

    return function


for _name in ("index", "_unsafe_index"):
    decomposed(f"aten.{_name}.Tensor", why="ONNX's indices are int64", upstream="onnxruntime")(
        _index(getattr(aten, _name).Tensor)
    )


@decomposed("aten.squeeze.dim", why="refused where the dimension is not 1", upstream="torchlib")
def squeeze(self: Tensor, dim: int) -> Any:
    """Unchanged where the dimension is not 1: what was traced holds for no other call."""
    size = self.shape[dim] if self.dim() else 1
    seen = size if isinstance(size, int) else hint(size) or 1
    return aten.alias.default(self) if seen != 1 else NotImplemented


@decomposed(
    "aten.bucketize.Tensor",
    why="of rank 0 it is decomposed to a value read while compiling, and without boundaries to floats",
    upstream="torch",
    silent=True,
)
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """torch's own, of rank 1."""
    own = torchs_decompositions()[aten.bucketize.Tensor]
    found = own(self.reshape(-1), boundaries, out_int32=out_int32, right=right).reshape(self.shape)
    return found.to(torch.int32 if out_int32 else torch.int64)


in_eager(
    "aten.repeat_interleave.Tensor",
    why="torchlib knows no `output_size`, which torch checks",
    when=lambda node: argument(node, "output_size") is not None,
)


def long_indices(indices: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """The indices as int64; None when they are."""
    if not any(index is not None and index.dtype in (torch.int32, torch.int16, torch.int8) for index in indices):
        return None
    return [index.to(torch.int64) if index is not None and index.dtype.is_signed else index for index in indices]
