"""The decomposition table given to AOTAutograd, made so that what remains is right when torchlib translates it.

torch's ONNX-friendly table is the base; `rules` say where it differs and why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export import exporter, rules
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
    return {operator: _as_declared(operator, function) for operator, function in table.items()}


def _as_declared(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, whose results are apart from its arguments in memory, as the operator's schema says, and have
    the layouts of the operator's own: users see both. Where sizes are known only at run time, none."""
    if getattr(operator, "is_view", False) or operator._schema.is_mutable:
        return function

    layout = LAYOUTS.get(operator, LAYOUTS.get(operator.overloadpacket, operator))

    @functools.wraps(function)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        made = NotImplemented if any(map(_known_at_run_time, given)) else function(*args, **kwargs)
        if made is NotImplemented:
            return made
        results, sequence = pytree.tree_flatten(made)
        if operator not in UNDECLARED_VIEWS:
            results = [_apart(result, given) for result in results]
        if not (UNKNOWN_SIZES & {*operator.tags} or all(map(_is_plain, (*results, *given)))):
            with outside_tracing():
                eager = pytree.tree_leaves(layout(*args, **kwargs))
            results = [*map(_laid_out, results, eager), *results[len(eager) :]]
        return pytree.tree_unflatten(results, sequence)

    return keeping


def _known_at_run_time(value: Any) -> bool:
    """Whether a size is: what reads such a tensor runs in eager, and a decomposition might ask for the size."""
    return is_symbolic(value) and bool(free_unbacked_symbols(value))


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


def _laid_out(made: Any, eager: Any) -> Any:
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
    if tensor.dim() in LAST and _order(tensor) == [0, *range(2, tensor.dim()), 1]:
        return LAST[tensor.dim()]
    return torch.contiguous_format


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the one that is farthest apart in memory first, as the sizes seen while tracing have it."""

    def key(axis: int) -> tuple[int, bool]:
        stride, size = hint(tensor.stride(axis)), hint(tensor.shape[axis])
        return -stride, size == 1

    return sorted(range(tensor.dim()), key=key)


def _as_suggested(self: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(self, memory_format=_format(self))


def _rolled(self: Tensor, shifts: Any, dims: Sequence[int] = ()) -> Tensor:
    return _as_suggested(self) if dims else _row_major_like(self)


def _row_major_like(self: Tensor) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


def _of_a_power(base: Any, exponent: Tensor) -> Tensor:
    return _row_major_like(exponent)


LAYOUTS: dict[Any, Callable[..., Any]] = {
    aten.roll: _rolled,
    aten.pow.Scalar: _of_a_power,
    aten.log_sigmoid_forward: _row_major_like,
    aten.native_batch_norm: _as_suggested,
    aten._native_batch_norm_legit: _as_suggested,
    aten._native_batch_norm_legit_functional: _as_suggested,
    aten._native_batch_norm_legit_no_training: _as_suggested,
    aten._batch_norm_with_update: _as_suggested,
    aten._batch_norm_with_update_functional: _as_suggested,
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
