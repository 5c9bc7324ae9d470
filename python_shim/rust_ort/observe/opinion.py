"""What settles a local mismatch of floats: the node in float64, and what its sums may lose."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.observe.in_order import furthest, granted, lost, terms_of
from rust_ort.observe.masked import attention
from rust_ort.observe.products import Product, to_look_at
from rust_ort.observe.sums import added_up, element_by_element, parts_added_up
from rust_ort.torch_private import pytree

log = logging.getLogger("rust_ort")
aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Exact:
    """What a node makes of eager's values, and Σ|terms| of it, or a bound of that, where it is known, in float64: of
    the node's shape, or of some of its elements, which are at these places in it laid flat."""

    values: Tensor
    terms: Tensor | None
    elements: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """What belongs to `values`. tensor: of the node's shape."""
        return tensor if self.elements is None else tensor.flatten()[self.elements]


class Opinions:
    """Of the nodes of a graph. env: eager's values."""

    def __init__(self, env: Mapping[fx.Node, Any]) -> None:
        self._env = env
        self._last: tuple[fx.Node, Any, Any] | None = None
        """(node, what it gives, Σ|terms|): its results ask one after the other."""

    def of(self, node: fx.Node, reference: Tensor, candidate: Tensor, tolerance: Mapping[str, Any]) -> Exact | None:
        """None where the operator cannot. tolerance: that candidate and reference are apart by more than."""
        product = Product.of(node, self._env)
        elements = None if product is None else to_look_at(product, reference, candidate, tolerance)
        if product is not None and elements is not None:
            values, terms = product.at(elements)
            exact = Exact(values=values, terms=terms, elements=elements)
        else:
            found = self._whole(node)
            if found is None:
                return None
            exact = found
        return self._as_in_order(node, product, exact, (exact.of(reference), exact.of(candidate)))

    def _whole(self, node: fx.Node) -> Exact | None:
        """Of all elements."""
        source, index = node.args if node.target is operator.getitem else (node, None)
        assert isinstance(source, fx.Node)
        if self._last is None or self._last[0] is not source:
            self._last = None  # not beside the next
            self._last = (source, *self._in_float64(source))
        _, made, added = self._last
        if source is node:
            self._last = None
        exact = _result(made, index)
        return None if exact is None else Exact(values=exact, terms=_result(added, index))

    def _as_in_order(self, node: fx.Node, product: Product | None, exact: Exact, pair: tuple[Tensor, Tensor]) -> Exact:
        """`exact` with terms that explain what a sum in order loses, where its own explain too little. pair: reference
        and candidate at the elements that are looked at."""
        dtype = pair[0].dtype
        if exact.terms is None or not dtype.is_floating_point or dtype is torch.float64 or not exact.values.numel():
            return exact
        places = furthest(*pair, exact.values, exact.terms)
        if places is None:
            return exact
        terms = self._terms_at(node, product)
        most = 0.0
        for place in places.tolist():
            at = place if exact.elements is None else int(exact.elements[place])
            added = terms(at)
            if added is not None:
                most = max(most, lost(added, float(exact.terms.flatten()[place])))
        return replace(exact, terms=exact.terms * granted(most))

    def _terms_at(self, node: fx.Node, product: Product | None) -> Callable[[int], Tensor | None]:
        """What gives the terms of an element of a node, by its place in the flat result."""
        if product is not None:
            return product.terms_of
        source, index = node.args if node.target is operator.getitem else (node, None)
        assert isinstance(source, fx.Node) and not isinstance(index, fx.Node)
        args, kwargs = self._widened(source)
        result: Any = index
        return lambda place: terms_of(source.target, args, kwargs, result, place)

    def _widened(self, source: fx.Node) -> tuple[Any, Any]:
        args, kwargs = pytree.tree_map(_wide, fx.map_arg((source.args, source.kwargs), lambda n: self._env[n]))
        return args, kwargs

    def _in_float64(self, source: fx.Node) -> tuple[Any, Any]:
        target: Any = source.target
        args, kwargs = self._widened(source)
        try:
            masked = attention(target, args, kwargs)
            made = target(*args, **kwargs) if masked is None else masked
            added = added_up(target, args, kwargs)
            if added is None:
                added = parts_added_up(target, args, kwargs)
            return made, element_by_element(target, args, kwargs, made) if added is None else added
        except (RuntimeError, TypeError, ValueError) as error:
            log.debug("%s has no float64 opinion: %s", source.name, error)
            return None, None


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _result(made: Any, index: Any) -> Tensor | None:
    if isinstance(index, int):
        made = made[index] if isinstance(made, tuple | list) else None
    return made if isinstance(made, Tensor) and made.dtype is torch.float64 else None
