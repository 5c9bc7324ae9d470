"""The decomposition table given to AOTAutograd, made so that what remains is right when torchlib translates it.

torch's ONNX-friendly table is the base; `rules` say where it differs and why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export import arguments, exporter, rules
from rust_ort.export.aliases import UNDECLARED_VIEWS
from rust_ort.export.rules import How
from rust_ort.export.shapes import Size, expression, fills_its_storage, hint, is_symbolic, row_major
from rust_ort.torch_private import (
    free_unbacked_symbols,
    outside_tracing,
    pytree,
    shares_memory,
    torchs_decompositions,
)

aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]

UNKNOWN_SIZES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""Tags of operators whose result, asked for twice, has two sizes."""

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format of images, by rank."""


def table(whole: frozenset[str] | None = None) -> Table:
    """{operator overload: decomposition}, made once a process.

    whole: `exporter.whole_operators()`. None asks for them, which loads the exporter and onnxscript.
    """
    return _table(exporter.whole_operators() if whole is None else whole, rules.masked())


@functools.cache
def _table(whole: frozenset[str], _: frozenset[str]) -> Table:
    table = _onnx_friendly(whole)
    for operator in _overloads(How.WHOLE):
        table.pop(operator, None)
    general = torchs_decompositions()
    for operator in _overloads(How.TORCHS_OWN):
        if operator in general:
            table[operator] = general[operator]
    for rule in rules.active(How.DECOMPOSED):
        assert rule.function is not None, f"{rule.operator}: a decomposition is a function"
        table.update(dict.fromkeys(rule.overloads, rule.function))
    for operator in ITERATED:
        table.setdefault(operator, _of_row_major(operator))
    return {operator: _as_declared(operator, function) for operator, function in table.items()}


def _as_declared(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, whose results are apart from its arguments in memory, as the operator's schema says, and have
    the layouts of the operator's own: users see both. None of what runs in eager, whole, whatever it comes apart to."""
    if getattr(operator, "is_view", False) or operator._schema.is_mutable:
        return function

    layout = LAYOUTS.get(operator, LAYOUTS.get(operator.overloadpacket, operator))

    @functools.wraps(function)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        if any(map(_known_at_run_time, given)) or arguments.is_of_numbers(operator, given):
            return NotImplemented
        if any(isinstance(value, torch.SymBool) for value in given):  # a guard, as torch's own kernels make of it
            args, kwargs = pytree.tree_map_only(torch.SymBool, bool, (args, kwargs))
        left = arguments.why_eager(operator, args, kwargs, whole=False)
        made = NotImplemented if left else function(*args, **kwargs)
        if made is NotImplemented:
            return made
        results, sequence = pytree.tree_flatten(made)
        if operator not in UNDECLARED_VIEWS:
            results = [_apart(result, given) for result in results]
        if not (UNKNOWN_SIZES & {*operator.tags} or all(map(_is_plain, (*results, *given)))):
            with outside_tracing():
                eager = pytree.tree_leaves(layout(*args, **kwargs))
            results = [*map(laid_out, results, eager), *results[len(eager) :]]
        return pytree.tree_unflatten(results, sequence)

    return keeping


def _of_row_major(operator: Any) -> Callable[..., Any]:
    """A decomposition into the operator itself, for what is wrong with its layout alone."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if all(map(_is_plain, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented
        return operator(*pytree.tree_map_only(Tensor, _row_major, args), **kwargs)

    return function


def _row_major(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _known_at_run_time(value: Any) -> bool:
    """Whether a number or size is: a decomposition might ask for it."""
    symbolic = isinstance(value, (torch.SymFloat, torch.SymBool)) or is_symbolic(value)
    return symbolic and bool(free_unbacked_symbols(value))


def _apart(made: Any, given: Sequence[Any]) -> Any:
    """A copy of a result that is a view of an argument."""
    if isinstance(made, Tensor) and any(shares_memory(made, other) for other in given):
        return made.clone()
    return made


def _is_plain(value: object) -> bool:
    """Whether it is no tensor, or one that is row-major and fills its storage."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return True
    return row_major(value, range(value.dim())) and fills_its_storage(value)


def laid_out(made: Any, eager: Any) -> Any:
    """`made` with the strides of `eager`, in a storage that it fills as eager's does, as far as its dimensions in some
    order are row-major."""
    if not isinstance(made, Tensor) or not isinstance(eager, Tensor) or not fills_its_storage(eager):
        return made
    order = _order(eager)
    if not _alike(made.shape, eager.shape) or not row_major(eager, order):
        return made
    if _alike(made.stride(), eager.stride()) and fills_its_storage(made):
        return made
    if order == sorted(order) or _format(eager) is not torch.contiguous_format:
        return made.clone(memory_format=_format(eager))
    laid_out = made.permute(order).clone(memory_format=torch.contiguous_format)
    return laid_out.permute([order.index(axis) for axis in range(len(order))])


def _alike(sizes: Sequence[Size], others: Sequence[Size]) -> bool:
    return [*map(expression, sizes)] == [*map(expression, others)]


def _format(tensor: Tensor) -> torch.memory_format:
    """What torch's kernels suggest: channels last of an image whose dimensions lie so in memory, else row-major."""
    if tensor.dim() not in LAST:
        return torch.contiguous_format
    last, order = [0, *range(2, tensor.dim()), 1], _order(tensor)
    long = [axis for axis in order if hint(tensor.shape[axis]) != 1]
    shown = long != sorted(long)  # else a dimension of one element tells the two apart
    is_last = long == [axis for axis in last if axis in long] if shown else order == last
    return LAST[tensor.dim()] if is_last else torch.contiguous_format


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the one that is farthest apart in memory first, as the sizes seen while tracing have it."""

    def key(axis: int) -> tuple[int, bool]:
        stride, size = hint(tensor.stride(axis)), hint(tensor.shape[axis])
        return -stride, size == 1

    return sorted(range(tensor.dim()), key=key)


def _as_suggested(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(self, memory_format=_format(self))


def _unfolded(self: Tensor, *rest: Any, **_: Any) -> Any:
    return aten.im2col(_row_major(self), *rest)


def _like_its_input(grad_output: Tensor, self: Tensor, *_: Any, **__: Any) -> Tensor:
    """A gradient."""
    return _as_suggested(self)


def _row_major_gradient(grad_output: Tensor, self: Tensor, *_: Any, **__: Any) -> Tensor:
    return _row_major_like(self)


def _rolled(self: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    """Along one dimension by all of it, eager's kernel copies row by row."""
    is_copied = len(dims) == 1 and not hint(shifts[0]) % (hint(self.shape[dims[0]]) or 1)
    return _row_major_like(self) if is_copied or not dims else _as_suggested(self)


def _as_cloned(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(self)


def _row_major_like(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


def _of_a_power(base: Any, exponent: Tensor) -> Tensor:
    return _row_major_like(exponent)


def _iterated(first: Tensor, second: Tensor, *_: Any, **__: Any) -> Any:
    return aten.add.Tensor(first, second)


ITERATED = (
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.heaviside.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.logit_backward.default,
    aten.native_dropout_backward.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)
"""Operators whose kernels lay their result out as all binary ones do, and whose fake tensors do not."""

LAYOUTS: dict[Any, Callable[..., Any]] = {
    aten.index_fill: _as_cloned,
    aten.isin.Tensor_Tensor: _row_major_like,
    aten.roll: _rolled,
    aten.im2col: _unfolded,
    aten.native_channel_shuffle: _as_suggested,
    aten.channel_shuffle: _as_suggested,
    aten.glu_backward: _row_major_gradient,
    **dict.fromkeys(
        (
            aten.reflection_pad1d_backward,
            aten.reflection_pad2d_backward,
            aten.reflection_pad3d_backward,
            aten.replication_pad1d_backward,
            aten.replication_pad2d_backward,
            aten.replication_pad3d_backward,
        ),
        _like_its_input,
    ),
    aten.pow.Scalar: _of_a_power,
    aten.log_sigmoid_forward: _row_major_like,
    aten.native_batch_norm: _as_suggested,
    aten._native_batch_norm_legit: _as_suggested,
    aten._native_batch_norm_legit_functional: _as_suggested,
    aten._native_batch_norm_legit_no_training: _as_suggested,
    aten._batch_norm_with_update: _as_suggested,
    aten._batch_norm_with_update_functional: _as_suggested,
    **dict.fromkeys(ITERATED, _iterated),
}
"""What has the layout of the first result of an operator, or of one overload, where torch's fake tensors are wrong."""


def _overloads(how: How) -> list[Any]:
    return [overload for rule in rules.active(how) for overload in rule.overloads]


def _onnx_friendly(whole: frozenset[str]) -> Table:
    """torch.onnx's create_onnx_friendly_decomposition_table, less the composite operators, which it lists slowly and
    which come apart without it."""
    return {
        operator: decomposition
        for operator, decomposition in torchs_decompositions().items()
        if str(operator) not in whole
    }
