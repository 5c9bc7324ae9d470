"""Embeddings, which are rows of a matrix: their gradients, and bags, which are their sums in groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, in_eager
from rust_ort.torch_private import torchs_decompositions

aten = torch.ops.aten


@decomposed(
    "aten.embedding_dense_backward.default",
    why="torch's decomposition is 25 nodes, most of them to leave out indices that are no rows",
    upstream="torch",
)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """To every row of the matrix; what is no row's, as -1 is, is left out. torch's where the gradient is divided by how
    often a row is read."""
    if scale_grad_by_freq or grad.dim() != indices.dim() + 1 or num_weights == 0:
        return torchs_decompositions()[aten.embedding_dense_backward.default](
            grad, indices, num_weights, padding_idx, scale_grad_by_freq
        )
    index, rows = indices.reshape(-1, 1).long(), widened(grad).reshape(-1, grad.shape[-1])
    counted = (index >= 0) & (index < num_weights)
    if padding_idx >= 0:
        counted = counted & (index != padding_idx)
    index, rows = torch.where(counted, index, 0), torch.where(counted, rows, 0)
    return rows.new_zeros([num_weights, rows.shape[1]]).scatter_add(0, index.expand_as(rows), rows).to(grad.dtype)


SUM, MEAN, MAX = range(3)
NO_FORM = "torchlib's embedding_bag gives offsets that make gradients wrong"
NO_GRADIENT = "the gradient of embedding_bag has no ONNX form"


def _is_left(mode: int, sparse: bool, *tensors: Tensor) -> bool:
    """Largest elements, gradients that are sparse, and tensors without elements are not for these rules."""
    return mode == MAX or sparse or any(0 in tensor.shape for tensor in tensors)


def _is_left_node(node: fx.Node) -> bool:
    tensors = (argument(node, name).meta["val"] for name in ("indices", "offsets", "weight"))
    return _is_left(argument(node, "mode"), argument(node, "sparse"), *tensors)


in_eager("aten._embedding_bag", "aten._embedding_bag_forward_only", why=NO_FORM, when=_is_left_node)


@decomposed("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default", why=NO_FORM)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """(bags, the bag of each index, indices a bag, the same again), the last three as torch's CPU kernel has them.

    Sums and means of dense gradients; the largest of a bag is left to eager.
    """
    if _is_left(mode, sparse, indices, offsets, weight):
        return NotImplemented
    n_bags = offsets.shape[0] - include_last_offset
    bag = _bags(indices, offsets)
    rows = widened(weight.index_select(0, indices))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counted = indices != padding_idx
    if padding_idx >= 0:
        rows = torch.where(counted.unsqueeze(1), rows, 0)
    total = rows.new_zeros([offsets.shape[0], weight.shape[1]]).index_add(0, bag, rows)[:n_bags]
    sizes = offsets.new_zeros([n_bags])
    if mode == MEAN:
        counts = torch.zeros_like(offsets, dtype=torch.int64).index_add(0, bag, counted.to(torch.int64))[:n_bags]
        total = total / counts.clamp(min=1).unsqueeze(1)
        sizes = counts.to(offsets.dtype)
    fast = mode == SUM and padding_idx < 0 and _is_fast(weight, per_sample_weights)
    of_index = offsets.new_zeros([0]) if fast else bag.to(offsets.dtype)
    return total.to(weight.dtype), of_index, sizes, sizes.clone()


def _bags(indices: Tensor, offsets: Tensor, found: Tensor | None = None) -> Tensor:
    """The bag of each index: how many begin up to it, less one. found: by the forward, where that needed them."""
    if found is not None and found.shape[0] > 0:
        return found
    begins = offsets.new_zeros([indices.shape[0] + 1], dtype=torch.int64)
    begins = begins.index_add(0, offsets, torch.ones_like(offsets, dtype=torch.int64))
    return begins.cumsum(0)[:-1] - 1


def _is_fast(weight: Tensor, per_sample_weights: Tensor | None) -> bool:
    """Whether torch's CPU kernel sums without the bags of the indices, and gives none."""
    return (
        weight.dtype in (torch.float32, torch.float16)
        and weight.stride(1) == 1
        and (per_sample_weights is None or per_sample_weights.stride(0) == 1)
    )


@decomposed("aten._embedding_bag_backward.default", why=NO_GRADIENT)
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """To every row of the matrix, of sums and means. `scale_grad_by_freq` is left: torch's kernel divides by the
    frequencies of other rows.
    """
    if scale_grad_by_freq or _is_left(mode, sparse, indices, offsets, grad):
        return NotImplemented
    bag = _bags(indices, offsets, offset2bag)
    rows = widened(grad).index_select(0, bag)
    if mode == MEAN:
        rows = rows / bag_size.index_select(0, bag).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0)
    return rows.new_zeros([num_weights, grad.shape[1]]).index_add(0, indices, rows).to(grad.dtype)


@decomposed("aten._embedding_bag_per_sample_weights_backward.default", why=NO_GRADIENT)
def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    """To every weight the product of its bag's gradient and its row."""
    if _is_left(mode, False, indices, offsets, weight):
        return NotImplemented
    bag = _bags(indices, offsets, offset2bag)
    products = widened(grad).index_select(0, bag) * widened(weight.index_select(0, indices))
    summed = products.sum(1)
    if padding_idx >= 0:
        summed = torch.where(indices != padding_idx, summed, 0)
    return summed.to(grad.dtype)
