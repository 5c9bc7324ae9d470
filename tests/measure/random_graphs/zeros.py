"""Which zero a sum or an extreme is: kernels begin with 0.0 or with the first product, add in orders of their own, and
take the first or the second of equals, by eights one and alone the other."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from measure.random_graphs.observe import Seen, function_of, observe
from measure.random_graphs.program import Text
from rust_ort.torch_private import TorchDispatchMode, pytree

SUMS = frozenset(
    (  # noqa: SIM905
        "sum nansum mean nanmean cumsum mm bmm addmm addbmm baddbmm addmv mv dot vdot addr trace "
        "convolution mkldnn_convolution mkl_linear convolution_backward "
        "avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "native_batch_norm native_batch_norm_backward _batch_norm_with_update batch_norm_backward "
        "var std var_mean std_mean norm linalg_vector_norm logsumexp logcumsumexp "
        "_softmax_backward_data _log_softmax_backward_data nll_loss_forward nll_loss2d_forward "
        "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
        "index_put index_put_ _index_put_impl_ embedding_dense_backward _embedding_bag _embedding_bag_backward "
        "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d "
        "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    ).split()
)
"""Names of ATen's operators that add up, of whatever length."""


EXTREMES = frozenset(("minimum", "maximum", "clamp", "clamp_min", "clamp_max"))
"""Names of ATen's operators that choose among operands, zeros of both signs too."""

WHOLE_EXTREMES = frozenset(
    (  # noqa: SIM905
        "amax amin aminmax max min cummax cummin max_pool2d_with_indices max_pool3d_with_indices "
        "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d"
    ).split()
)
"""Names of those that choose among elements of their first operand."""


class ZerosOfSums(TorchDispatchMode):
    """Every zero that such an operator gives is this one; of extremes, where operands are zeros of both signs."""

    def __init__(self, zero: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._zero = zero

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in SUMS | EXTREMES | WHOLE_EXTREMES:
            with self:  # in inference mode, composite operators come whole
                made = func.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        made = func(*args, **(kwargs or {}))
        if name in EXTREMES and made.is_floating_point():
            made.masked_fill_((made == 0) & _both_zeros((*args, *(kwargs or {}).values())), self._zero)
        if name in SUMS or (name in WHOLE_EXTREMES and len({*args[0][args[0] == 0].signbit().tolist()}) == 2):
            for tensor in pytree.tree_leaves(made):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    tensor.masked_fill_(tensor == 0, self._zero)
        return made


def _both_zeros(operands: Sequence[Any]) -> Any:
    """Where operands, tensors and numbers, are zeros of both signs."""
    numbers = [torch.as_tensor(operand) for operand in operands if operand is not None]
    positive, negative = (
        functools.reduce(torch.logical_or, [(number == 0) & (number.signbit() == sign) for number in numbers])
        for sign in (False, True)
    )
    return positive & negative


def of_any_sum(text: Text, expected: Sequence[Seen]) -> list[Seen]:
    """What eager does in each call, and which zeros have their sign from a sum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_unsure(text, call, seen) for call, seen in enumerate(expected)]


def _unsure(text: Text, call: int, seen: Seen) -> Seen:
    function = function_of(text)
    either = []
    for zero in (0.0, -0.0):
        with ZerosOfSums(zero):
            either.append(observe(text, function, call))
    unsure = {}
    for name, value in seen.values.items():
        signs = [_signs(observed.values.get(name)) for observed in either]
        if all(sign is not None and sign.shape == value.shape for sign in signs):
            unsure[name] = signs[0] != signs[1]
    return dataclasses.replace(seen, unsure=unsure)


def _signs(value: Any) -> Any:
    return value.signbit() if isinstance(value, torch.Tensor) else None
