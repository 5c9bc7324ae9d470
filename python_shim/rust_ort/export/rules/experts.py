"""Mixtures of experts: rows that lie group by group, each group multiplied by a matrix of its own.

transformers' operators are known by name: nothing of it is imported.
"""

from __future__ import annotations

from typing import Any

from rust_ort.export.rules.registry import ints, op, translated

NO_OFFSETS = "torchlib's _grouped_mm takes no offsets"
OF_TRANSFORMERS = "torchlib knows no operators of transformers"


@translated("transformers.grouped_mm_fallback.default", why=OF_TRANSFORMERS)
def grouped_rows(input: Any, weight: Any, offs: Any) -> Any:
    """[S, N] of input [S, K], weight [E, K, N]: of the rows of each group by its matrix; what is behind the last is 0.

    offs: [E], where each group ends.
    """
    rows, tail = _parts(input, offs, 0)
    made = [op.MatMul(group, matrix) for group, matrix in zip(rows, _matrices(weight, offs), strict=True)]
    return op.Concat(*made, _zeros(weight, tail, weight.shape[2]), axis=0)


@translated("transformers.grouped_mm_fallback_backward.default", why=OF_TRANSFORMERS)
def grouped_rows_backward(input: Any, weight: Any, offs: Any, grad_output: Any) -> Any:
    """The gradients of `grouped_rows`, a matrix of zeros for a group without rows."""
    rows, _ = _parts(input, offs, 0)
    gradients, tail = _parts(grad_output, offs, 0)
    matrices = _matrices(weight, offs)
    of_rows = [op.MatMul(group, _turned(matrix)) for group, matrix in zip(gradients, matrices, strict=True)]
    of_matrices = [op.MatMul(_turned(group), gradient) for group, gradient in zip(rows, gradients, strict=True)]
    return op.Concat(*of_rows, _zeros(weight, tail, weight.shape[1]), axis=0), _stacked(of_matrices)


@translated("aten._grouped_mm.default", why=NO_OFFSETS)
def grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: int | None = None) -> Any:
    """[S, N] of [S, K] and [E, K, N], as `grouped_rows`; [E, M, N] of [M, S] and [S, N], whose groups are added up; a
    batch of products without offsets. Errors: ValueError for groups of columns, and for a bias of groups."""
    ranks = len(self.shape), len(mat2.shape)
    if offs is None:
        made = op.MatMul(self, mat2)
        made = made if bias is None else op.Add(made, bias)
    elif bias is not None or ranks not in ((2, 3), (2, 2)):
        raise ValueError("groups of columns, and groups with a bias, have no form")
    elif ranks == (2, 3):
        made = grouped_rows(self, mat2, offs)
    else:
        columns, rows = _parts(self, offs, 1)[0], _parts(mat2, offs, 0)[0]
        made = _stacked([op.MatMul(left, right) for left, right in zip(columns, rows, strict=True)])
    return made if out_dtype in (None, -1, int(self.dtype)) else op.Cast(made, to=out_dtype)


def _n_groups(offs: Any) -> int:
    """Errors: ValueError where it is no number yet."""
    (count,) = offs.shape
    if not isinstance(count, int):
        raise ValueError("how many groups there are is not known")
    return count


def _parts(grouped: Any, offs: Any, axis: int) -> tuple[list[Any], Any]:
    """(each group, what is behind the last, both along the axis)."""
    size = op.Shape(grouped, start=axis, end=axis + 1)
    count = _n_groups(offs)
    ends = [*_split(op.Cast(offs, to=7), count), size]
    begins = [ints([0]), *ends]
    *groups, tail = (op.Slice(grouped, *both, ints([axis])) for both in zip(begins, ends, strict=False))
    return groups, tail


def _split(tensor: Any, count: int) -> list[Any]:
    return [*op.Split(tensor, axis=0, num_outputs=count)] if count > 1 else [tensor]


def _matrices(weight: Any, offs: Any) -> list[Any]:
    return [op.Squeeze(one, ints([0])) for one in _split(weight, _n_groups(offs))]


def _turned(matrix: Any) -> Any:
    return op.Transpose(matrix, perm=[1, 0])


def _stacked(matrices: list[Any]) -> Any:
    return op.Concat(*(op.Unsqueeze(matrix, ints([0])) for matrix in matrices), axis=0)


def _zeros(like: Any, rows: Any, width: int) -> Any:
    """As many as `rows` has."""
    shape = op.Concat(op.Shape(rows, start=0, end=1), ints([width]), axis=0)
    return op.Expand(op.CastLike(op.Constant(value_float=0.0), like), shape)
