"""Random numbers: drawn in eager, by the kernels that torch.manual_seed controls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed, whole
from rust_ort.export.shapes import fills_its_storage, has_no_elements, row_major
from rust_ort.export.unwritten import is_unwritten
from rust_ort.torch_private import traced_node

aten = torch.ops.aten

whole(
    "aten.cauchy.default", "aten.exponential.default", "aten.geometric.default", "aten.log_normal.default",
    why="torch's decomposition draws other numbers than torch's kernel", silent=True,
)  # fmt: skip


@decomposed("aten.native_dropout.default", why="whole, in eager, it would cut its graph in two", upstream="torch")
def native_dropout(tensor: Tensor, p: float, train: bool | None) -> Any:
    """(dropped, mask). The mask alone is drawn in eager, as torch's kernel draws it, and before the part that reads it:
    it depends on where elements are in memory, not on what they are."""
    kept = 1.0 - p
    if train is False or kept == 0 or has_no_elements(tensor) or not fills_its_storage(tensor) or _is_unwritten(tensor):
        return NotImplemented
    rows = tensor.is_cpu and row_major(tensor, range(tensor.dim()))  # bernoulli's result is, whatever it is given
    dtype = torch.bool if rows else tensor.dtype
    memory = aten.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
    mask = aten.bernoulli.p(memory, kept) if rows else aten.native_dropout(memory, p, train)[1]
    return tensor * mask * (1.0 / kept), mask


def _is_unwritten(tensor: Tensor) -> bool:
    """Whether its elements are nobody's already, as those of `memory` above."""
    node = traced_node(tensor)
    return node is not None and is_unwritten(node)
