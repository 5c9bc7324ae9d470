"""The values in what a model takes and gives: named, whatever they are nested in, and made comparable."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.torch_private import pytree

PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, range, slice, torch.dtype, torch.device)
"""What == compares."""


@dataclass(frozen=True)
class NotWalked:
    """In the place of an object that holds no value that could be compared. what: its type."""

    what: str


def named_tensors(value: Any) -> list[tuple[str, Tensor]]:
    """(path, tensor) of every tensor in nested containers and dataclasses such as transformers' ModelOutput."""
    return [(path, leaf) for path, leaf in _unique(_Walk(objects=False).of(value, ""))]


def named_values(value: Any) -> list[tuple[str, Any]]:
    """(path, leaf) of every value, also in the attributes of objects such as transformers' DynamicCache: tensors,
    arrays as tensors, numbers and their like; NotWalked where an object has nothing to compare. No path comes twice."""
    return _unique(_Walk(objects=True).of(value, ""))


def _unique(found: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Keys with dots can make two paths read the same: the second has a number behind it."""
    seen: Counter[str] = Counter()
    named = []
    for path, leaf in found:
        seen[path] += 1
        named.append((path if seen[path] == 1 else f"{path} ({seen[path]})", leaf))
    return named


class _Walk:
    """objects: whether also attributes are looked into, and what is no tensor is given, too."""

    def __init__(self, *, objects: bool) -> None:
        self._objects = objects
        self._seen: set[int] = set()
        self._inside: set[int] = set()

    def of(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Tensor):
            yield path, value
            return
        if id(value) in self._inside:
            return
        self._inside.add(id(value))
        items = self._items(value)
        if items is not None:
            for step, item in items:
                yield from self.of(item, path + step)
        elif self._objects:
            yield from self._leaf(value, path)
        self._inside.discard(id(value))

    def _items(self, value: Any) -> list[tuple[str, Any]] | None:
        """(step of the path, item) of a container; None of what is none."""
        if isinstance(value, PLAIN):
            return None
        if isinstance(value, Mapping):
            return [(f".{key}" if isinstance(key, str) else f"[{key!r}]", item) for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return [(f"[{index}]", item) for index, item in enumerate(value)]
        if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
            names = [name for name in value.__dataclass_fields__ if hasattr(value, name)]
            return [(f".{name}", getattr(value, name)) for name in names]
        leaves, spec = pytree.tree_flatten(value)
        return None if spec.is_leaf() else [(f"[{index}]", item) for index, item in enumerate(leaves)]

    def _leaf(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, PLAIN):
            yield path, value
        elif (array := as_tensor(value)) is not None:
            yield path, array
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            if isinstance(value, nn.Module):
                yield from (
                    (f"{path}.{name}", item) for name, item in [*value.named_parameters(), *value.named_buffers()]
                )
            elif attributes := attributes_of(value):
                for name, item in attributes.items():
                    yield from self.of(item, f"{path}.{name}")
            else:
                yield path, NotWalked(type(value).__name__)


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object holds by name; of functions, classes and modules of Python nothing."""
    if callable(value) or isinstance(value, (type, type(sys))):
        return {}
    slots = [name for kind in type(value).__mro__ for name in _names(kind.__dict__.get("__slots__", ()))]
    held = {
        name: getattr(value, name) for name in slots if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }
    return held | dict(getattr(value, "__dict__", {}))


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def as_tensor(value: Any) -> Tensor | None:
    """A copy of a numpy array or number as a tensor; None of all else, and of a dtype that torch lacks."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    try:
        return torch.from_numpy(numpy.array(value))
    except TypeError:
        return None


def plain(value: Tensor) -> Tensor:
    """A strided tensor with the elements of any: a jagged one's values, a sparse one dense."""
    if value.layout is torch.strided:
        return value
    return value.values() if value.layout is torch.jagged else value.to_dense()


def kept(value: Any) -> Any:
    """A copy of a tensor that can be judged; all else as it is."""
    return plain(value.detach()).clone() if isinstance(value, Tensor) else value


def ragged(value: Any) -> dict[str, Tensor]:
    """{name: where the parts of a jagged tensor begin and how long they are}; {} of any other."""
    if not isinstance(value, Tensor) or value.layout is not torch.jagged:
        return {}
    jagged: Any = value
    parts = {"offsets": jagged.offsets(), "lengths": jagged.lengths()}
    return {name: part.detach().clone() for name, part in parts.items() if part is not None}


def same(left: Any, right: Any) -> bool:
    """Whether both are tensors of equal elements, NaN where NaN is, or equal otherwise."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return bool(left == right)
    left, right = plain(left.detach()), plain(right.detach())
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(((left == right) | ((left != left) & (right != right))).all())
