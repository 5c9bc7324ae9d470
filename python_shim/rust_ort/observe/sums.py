"""What sums add up: Σ|terms| of each element that an operator gives, in float64.

What cancels has no other measure of its rounding: the gradient of a bias before a softmax is zero, and two right
kernels give 7e-9 and -2e-8.

What an examination by `rust-ort blame` knows of ONNX's operators is in src/blame/terms.rs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rust_ort.observe.masked import BACKWARD as ATTENTION_BACKWARD
from rust_ort.observe.masked import swamped
from rust_ort.torch_private import OpOverload, TorchDispatchMode, pytree, torchs_decompositions

log = logging.getLogger("rust_ort")
aten = torch.ops.aten

ADDING: dict[Any, Any] = {
    aten.add.Tensor: aten.add.Tensor,
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.add.Tensor,
    aten.rsub.Scalar: aten.add.Tensor,
    aten.add.Scalar: aten.add.Scalar,
    aten.sub.Scalar: aten.add.Scalar,
}
"""{operator: what of sizes gives the size}. Every number among the arguments is a term or a factor."""

REDUCING: frozenset[Any] = frozenset(
    {
        aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default,
        aten.index_put.default, aten.index_add.default, aten.scatter_add.default, aten.embedding_dense_backward.default,
    }
)  # fmt: skip
"""Operators that add up what they are given. Numbers among the arguments are axes and sizes."""

MULTIPLYING: frozenset[Any] = frozenset(
    {
        aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default, aten.dot.default,
        aten.addmv.default, aten.convolution.default, aten.convolution_backward.default, aten.addcmul.default,
    }
)  # fmt: skip
"""Operators that add up products."""

ALIKE = frozenset(
    {aten.clone.default, aten._to_copy.default, aten.detach.default, aten.alias.default, aten.neg.default}
)
SCALING = frozenset({aten.mul.Tensor, aten.div.Tensor})

FUSED: dict[Any, Any] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
} | {
    operator: operator
    for operator in (
        aten.native_layer_norm.default, aten.native_layer_norm_backward.default, aten.native_group_norm.default,
        aten.native_group_norm_backward.default, aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit.no_stats, aten.native_batch_norm_backward.default,
        aten._softmax_backward_data.default, aten._log_softmax_backward_data.default,
    )
}  # fmt: skip
"""{operator of which some results are sums: the one of the same results, and of the running statistics, by whose
decomposition it is measured}. The decomposition of the first would write into the statistics once more."""

MEANS = frozenset({aten.var_mean.correction, aten.std_mean.correction})
"""Operators of which the second result is a mean."""

LINEAR = frozenset(
    {
        aten.gelu_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default,
        aten.silu_backward.default, aten.threshold_backward.default, aten.native_dropout_backward.default,
    }
)  # fmt: skip
"""Operators that scale each element of their first argument by what the others decide."""

LOST = 256
"""So many times its own size a factor adds up where its rounding is beyond any tolerance: nothing of it is known."""

DEEPEST = 1
"""A factor behind more products than so many counts as its size, unless all of it is rounding: what each adds up at
worst, one after another, grows with a power of the depth, and then explains anything."""

JOINING = frozenset({aten.stack.default, aten.cat.default})
MOVING = frozenset({aten._unsafe_view.default, aten.flip.default, aten.constant_pad_nd.default})


def added_up(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], size: Callable[[Tensor], Tensor] | None = None
) -> Any:
    """Σ|terms| of what `target` gives of these arguments, in float64; None where it is not known to add up.

    size: of an argument, float64; None: its absolute values.
    """
    operator = ADDING.get(target, target if target in REDUCING or target in MULTIPLYING else None)
    if operator is None:
        return None
    return _of_sizes(operator, args, kwargs, size or _absolute, numbers_are_terms=target in ADDING)


def parts_added_up(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Σ|terms| of each result of a fused operator, float64, None of those that are no sums; None of other operators."""
    if target is ATTENTION_BACKWARD:
        return _of_attention(*args, **kwargs)
    return Sums().of_parts(FUSED[target], args, kwargs) if target in FUSED else None


def element_by_element(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> Tensor | None:
    """What a pointwise operator may add up at each element, in float64: one, its result and its arguments there, and no
    more than the largest element of all; None of other operators. made: its result, float64.

    A formula for one element is made of that element's numbers: one that is huge, such as a mask's, says nothing of
    what rounding does to the others.
    """
    if torch.Tag.pointwise not in getattr(target, "tags", ()) or not isinstance(made, Tensor):
        return None
    sizes = made.abs() + 1.0
    for value in pytree.tree_leaves((args, kwargs)):
        if isinstance(value, Tensor):
            if torch.broadcast_shapes(value.shape, made.shape) != made.shape:
                return None
            sizes = sizes + value.abs()
        elif isinstance(value, float | int):
            sizes = sizes + abs(value)
    finite = made[made.isfinite()].abs()
    largest = finite.max() if finite.numel() else made.new_zeros(())
    return torch.where(sizes.isnan(), largest, torch.minimum(sizes, largest))


def _of_attention(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Of the gradients of query, key and value. A score's is a difference of two sums, which cancel where all that is
    attended to is alike."""
    if dropout_p or query.shape[1] != key.shape[1] or query.numel() == 0 or key.numel() == 0:
        return None
    heads = (tensor.flatten(0, 1) for tensor in (grad_out, query, key, value, out, logsumexp))
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:2], *attn_mask.shape[-2:]).flatten(0, 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # One head after the other: the kernel itself never has all scores.
    each = [
        _of_a_head(*head, is_causal=is_causal, mask=None if mask is None else mask[at], scale=scale)
        for at, head in enumerate(zip(*heads, strict=True))
    ]
    of_query, of_key, of_value = (torch.stack(terms) for terms in zip(*each, strict=True))
    return of_query.view_as(query), of_key.view_as(key), of_value.view_as(value)


def _of_a_head(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, *, is_causal: bool,
    mask: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad, q, k, v, o = map(_absolute, (grad_out, query, key, value, out))
    scores = query.double() @ key.double().mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else swamped(scores + mask)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    # Beside a huge score the kernel's logsumexp has lost the others, and would make probabilities beyond 1.
    probabilities = (scores - logsumexp.double().unsqueeze(-1)).exp().clamp(max=1.0)
    terms = probabilities * (grad @ v.mT + (grad * o).sum(-1, keepdim=True)) * abs(scale)
    return terms @ k, terms.mT @ q, probabilities.mT @ grad


def _of_sizes(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], of: Callable[[Tensor], Tensor], *,
    numbers_are_terms: bool,
) -> Any:  # fmt: skip
    """`operator` of the sizes of what it is given; None where it takes no such thing."""

    def sized(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return of(value)
        if isinstance(value, float) or (numbers_are_terms and isinstance(value, int)):
            return abs(value)
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    args, kwargs = pytree.tree_map(sized, (tuple(args), dict(kwargs)))
    kwargs = {name: abs(value) if name in ("alpha", "beta") else value for name, value in kwargs.items()}
    try:
        return operator(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        log.debug("%s: what it adds up is not known: %s", operator, error)
        return None


def _absolute(tensor: Tensor) -> Tensor:
    return tensor.detach().double().abs()


class Sums(TorchDispatchMode):
    """Inside, what the sums that run add up is noted: `of` any tensor that still lives, through views, casts and sums
    of sums. Costs each sum a second one in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted: Any = WeakTensorKeyDictionary()
        """{tensor: (Σ|terms|, products on the way)}."""
        self._is_of_parts = False

    def of(self, tensor: Any) -> Tensor | None:
        """Σ|terms| of each element; None where nobody knows."""
        return self._known(tensor)[0]

    def _known(self, tensor: Any) -> tuple[Tensor | None, int]:
        size, depth = (self._noted.get(tensor) if isinstance(tensor, Tensor) else None) or (None, 0)
        return (size, depth) if size is not None and size.shape == tensor.shape else (None, 0)

    def repeat(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], given: Any) -> None:
        """Notes what `given`, which `target` gave of these arguments, adds up: it runs once more. What cannot run in a
        dispatch mode is not noted."""
        try:
            with self:
                made = target(*args, **kwargs)
        except Exception as error:  # what runs in eager need not run under a dispatch mode
            log.debug("%s: what it adds up is not known: %s", target, error)
            return
        for tensor, twin in zip(pytree.tree_leaves(made), pytree.tree_leaves(given), strict=False):
            self._note(twin, *self._known(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # composite operators come in decompositions alone
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        depth = self._depth(func, args)
        noted = self._sizes(func, args, kwargs)
        made = func(*args, **kwargs)
        for tensor, size in zip(pytree.tree_leaves(made), pytree.tree_leaves(noted), strict=False):
            self._note(tensor, size, depth)
        if func is not FUSED.get(func, func) and isinstance(noted, tuple):
            self._note(args[3], noted[3], depth)  # the running mean, which it writes
        return made

    def _depth(self, func: Any, args: Sequence[Any]) -> int:
        """Products on the way of what `func` gives."""
        known = [tensor for tensor in _tensors(args) if self.of(tensor) is not None]
        multiplies = func in MULTIPLYING or func in FUSED or (func in SCALING and len(known) > 1)
        if self._is_of_parts or not multiplies:
            return max((self._known(tensor)[1] for tensor in known), default=0)
        return 1 + max((self._known(tensor)[1] for tensor in known if not self._is_too_deep(tensor)), default=0)

    def _is_too_deep(self, tensor: Tensor) -> bool:
        """Whether as a factor it counts as its size. All of it is rounding where its largest element is no more than
        one rounding of what it adds up; of halves, which are rounded on the way to it, too, that tells nothing."""
        size, depth = self._known(tensor)
        if size is None or depth <= DEEPEST:
            return False
        is_half = tensor.dtype.itemsize < 4
        return is_half or not bool(_absolute(tensor).max() <= 2 * torch.finfo(tensor.dtype).eps * size.max())

    def _note(self, tensor: Any, size: Any, depth: int) -> None:
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and isinstance(size, Tensor):
            # Laid out alike: what views the one views the other.
            alike = size.stride() == tensor.stride()
            size = size if alike else torch.empty_like(tensor, dtype=torch.float64).copy_(size)
            self._noted[tensor] = size, depth

    def _sizes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first: Any = args[0] if args else None
        known = self.of(args[1] if func is aten.copy_.default else first)
        if known is not None and (func in ALIKE or func is aten.copy_.default):
            return known.expand(first.shape)
        moves = func in MOVING or (isinstance(func, OpOverload) and func.is_view)
        if known is not None and moves and isinstance(first, Tensor):
            return func(known, *args[1:], **kwargs)
        if not all(type(value) in (Tensor, torch.nn.Parameter) for value in _tensors(args)):
            return None  # of a subclass nobody knows
        if func is ATTENTION_BACKWARD:
            return parts_added_up(func, args, kwargs)
        if func in FUSED:
            return self.of_parts(FUSED[func], args, kwargs)
        if known is not None and func in LINEAR:
            others = [other.double() if _is_float(other) else other for other in args[1:]]
            return func(known, *others, **kwargs).abs()

        several = func in SCALING and sum(self.of(tensor) is not None for tensor in _tensors(args)) > 1

        def of(tensor: Tensor) -> Tensor:
            known = self.of(tensor)
            if (func in MULTIPLYING or several) and not self._is_of_parts and self._is_too_deep(tensor):
                known = None
            if known is None or func not in MULTIPLYING:
                return _or_absolute(known, tensor)
            own = _absolute(tensor)
            return torch.where(own * LOST < known, known, own)

        if func in MEANS:
            return None, func(of(first), *args[1:], **kwargs)[1]
        if func in SCALING or func in JOINING:
            if all(self.of(tensor) is None for tensor in _tensors(args)):
                return None
            return _of_sizes(func, args, kwargs, of, numbers_are_terms=func in SCALING)
        return added_up(func, args, kwargs, of)

    def of_parts(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the operator's decomposition adds up, each of its parts by itself; all together count as one product."""
        deep = [(tensor, self._noted.pop(tensor)) for tensor in _tensors(args) if self._is_too_deep(tensor)]
        was_of_parts, self._is_of_parts = self._is_of_parts, True
        try:
            with self:
                made = torchs_decompositions()[operator](*args, **kwargs)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            log.debug("%s: what it adds up is not known: %s", operator, error)
            return None
        finally:
            self._is_of_parts = was_of_parts
            for tensor, noted in deep:
                self._noted[tensor] = noted
        return pytree.tree_map(self.of, made)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _or_absolute(known: Tensor | None, tensor: Tensor) -> Tensor:
    return _absolute(tensor) if known is None else known


def _tensors(args: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
