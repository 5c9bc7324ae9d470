"""The operators that random functions are made of.

A row is Python text with places: `{f}` `{i}` `{b}` a floating, integer, bool value, `{n}` a number, `{any}` any of these; a
digit behind it is its rank, `2+` its least rank. The first value is what the others are of: `{x}` itself, `{other}` a
value that broadcasts with it, `{same}` one of its dtype, `{equal}` one of its shape and dtype, `{dim}` `{dims}` its
dimensions, `{size}` a size of it; `{distinct}` behind a value demands different values. `{flag}`, `{number}`, `{dtype}`,
`{a|b|c}`: a choice. What needs more than that is a function.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rust_ort.studies.random_graphs.draw import Draw, NotFitting

Made = str | list[str]
EXACT = ("view", "join", "index", "sort", "creation", "comparison", "in place")
"""Families that compute nothing: their results are as exact as their operands."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """make: an expression, or statements in which `@` is the target."""

    name: str
    family: str
    make: Callable[[Draw], Made]
    weight: float = 1.0


ROWS = {
    "pointwise unary": """
        torch.abs({n})
        torch.neg({n})
        torch.positive({n})
        torch.square({n})
        torch.sin({n})
        torch.cos({n})
        torch.tan({f}.tanh())
        torch.tanh({n})
        torch.sinh({f})
        torch.cosh({f})
        torch.asin({f}.tanh() * 0.75)
        torch.acos({f}.tanh() * 0.75)
        torch.atan({n})
        torch.asinh({f})
        torch.acosh({f}.abs() + 1.5)
        torch.atanh({f}.tanh() * 0.75)
        torch.exp({n})
        torch.exp2({f})
        torch.expm1({f})
        torch.log({n}.abs() + 0.5)
        torch.log2({f}.abs() + 0.5)
        torch.log10({f}.abs() + 0.5)
        torch.log1p({f}.abs())
        torch.sqrt({n}.abs() + 0.5)
        torch.rsqrt({f}.abs() + 0.5)
        torch.reciprocal({n}.abs() + 0.5)
        torch.erf({f})
        torch.erfc({f})
        torch.sigmoid({n})
        torch.logit({f}.sigmoid(), eps={0.01|0.125})
        torch.sign({n})
        torch.sgn({n})
        torch.round({f})
        torch.round({f}, decimals={0|1})
        torch.floor({n})
        torch.ceil({n})
        torch.trunc({f})
        torch.frac({f})
        torch.sinc({f})
        torch.deg2rad({f})
        torch.rad2deg({f})
        torch.nan_to_num({f}, nan={0.5|1.0}, posinf=4.0, neginf=-4.0)
        torch.clamp({n}, {-2|-1|None}, {0|1|2})
        torch.clamp({f}, min={-1.5|-0.5|0.0})
        torch.clamp({n}, max={1|2})
        torch.bitwise_not({i})
        torch.logical_not({any})
        torch.clone({any})
        torch.celu({f}, {0.5|1.0})
        torch.threshold({f}, {0.5|1.0}, {-1.0|0.25})
    """,
    "activation": """
        F.relu({n})
        F.relu6({f})
        F.gelu({f}, approximate={'none'|'tanh'})
        F.silu({f})
        F.mish({f})
        F.elu({f}, {0.5|1.0})
        F.selu({f})
        F.softplus({f}, {1|2})
        F.softsign({f})
        F.leaky_relu({f}, {0.25|0.01})
        F.hardtanh({f}, {-1.0|-2.0}, {0.5|1.0})
        F.hardswish({f})
        F.hardsigmoid({f})
        F.logsigmoid({f})
        F.tanhshrink({f})
        F.softshrink({f}, {0.25|0.5})
        F.hardshrink({f}, {0.25|0.5})
        F.glu({f1+}[..., :{x}.shape[-1] // 2 * 2], -1)
        F.prelu({f2}, torch.full((), 0.25, dtype={x}.dtype).reshape(1))
    """,
    "pointwise binary": """
        torch.add({n}, {other})
        torch.add({n}, {other}, alpha={1|2|3})
        torch.add({n}, {number})
        torch.sub({n}, {other})
        torch.sub({n}, {number}, alpha={1|2})
        torch.rsub({f}, {other})
        {number} - {n}
        torch.mul({n}, {other})
        {n} * {number}
        torch.div({n}, {other}.abs() + 0.5)
        {n} / {-2|2|4|0.5}
        {number} / ({f}.abs() + 0.5)
        torch.div({n}, {other}.abs() + 1, rounding_mode={'trunc'|'floor'})
        torch.floor_divide({n}, {2|3|-2})
        torch.remainder({n}, {2|3|-2|1.5})
        torch.fmod({n}, {2|3|1.5})
        torch.maximum({n}, {same})
        torch.minimum({n}, {same})
        torch.fmax({f}, {other})
        torch.fmin({f}, {other})
        torch.pow({n}, {0|1|2|3})
        torch.pow({f}.abs() + 0.5, {other})
        torch.pow({2|1.5|0.5}, {f})
        torch.hypot({f}, {same})
        torch.logaddexp({f}, {same})
        torch.logaddexp2({f}, {same})
        torch.xlogy({f}, {other}.abs() + 0.5)
        torch.atan2({f}, {same})
        torch.copysign({f}, {other})
        torch.heaviside({f}, {same})
        torch.float_power({f}.abs() + 0.5, {2|0.5})
        torch.bitwise_and({i}, {same})
        torch.bitwise_or({i}, {same})
        torch.bitwise_xor({i}, {same})
        {i} << {0|1|2}
        {i} >> {0|1|2}
        torch.logical_and({any}, {other})
        torch.logical_or({any}, {other})
        torch.logical_xor({b}, {same})
    """,
    "pointwise ternary": """
        torch.addcmul({f}, {same}, {same}, value={1|0.5|-2})
        torch.addcdiv({f}, {same}, {same}.abs() + 0.5, value={1|0.5})
        torch.lerp({f}, {equal}, {0.25|0.5|1.5})
        torch.lerp({f}, {equal}, {equal})
        torch.clamp({f}, {same}.clamp(max=0), {same}.abs())
        torch.where({b}, {f}, {number})
        torch.where({n} > {0|0.25}, {x}, {other})
        torch.where({b}, {number}, {number})
        {any}.masked_fill({x} == {0|1}, {2|-1})
        {f}.masked_fill({b}, {-1.5|0})
    """,
    "comparison": """
        torch.eq({any}, {other})
        torch.ne({n}, {other})
        torch.lt({n}, {other})
        torch.le({n}, {other})
        torch.gt({n}, {other})
        torch.ge({n}, {number})
        {n} == {number}
        {n} < {number}
        torch.isnan({f})
        torch.isinf({f})
        torch.isfinite({f})
        torch.signbit({f})
        torch.isclose({f}, {same})
    """,
    "cast": """
        {any}.to({dtype})
        {any}.to({dtype})
        {n}.to(torch.bool)
        {any}.float()
        {n}.double()
        {f}.type_as({other})
        {any} + {any}.to({dtype}).sum()
    """,
    "reduction": """
        torch.sum({any})
        torch.sum({n1+}, {dims}, keepdim={flag})
        torch.sum({n1+}, {dim}, dtype={dtype})
        torch.mean({f})
        torch.mean({f1+}, {dims}, keepdim={flag})
        torch.mean({n1+}, {dim}, dtype=torch.float32)
        torch.prod({n})
        torch.prod({n1+}, {dim}, keepdim={flag})
        torch.amax({n1+}, {dims}, keepdim={flag})
        torch.amin({n1+}, {dims}, keepdim={flag})
        torch.max({n})
        torch.min({n})
        torch.all({any1+}, {dim}, keepdim={flag})
        torch.any({any1+}, {dim}, keepdim={flag})
        torch.any({any})
        torch.var({f1+}, {dims}, correction={0|1}, keepdim={flag})
        torch.std({f1+}, {dims}, correction={0|1}, keepdim={flag})
        torch.var({f})
        2: torch.var_mean({f1+}, {dim}, correction={0|1})
        2: torch.std_mean({f1+}, {dim}, keepdim={flag})
        2: torch.aminmax({n1+}, dim={dim}, keepdim={flag})
        torch.logsumexp({f1+}, {dims}, keepdim={flag})
        torch.count_nonzero({any1+}, {dim})
        torch.nansum({f1+}, {dim})
        torch.nanmean({f1+}, {dim})
        torch.linalg.vector_norm({f}, {1|2|3})
        torch.linalg.vector_norm({f1+}, {1|2|float('inf')}, {dims}, keepdim={flag})
        torch.norm({f1+}, dim={dim})
        torch.linalg.matrix_norm({f2+})
        torch.trace({n2})
    """,
    "sort": """
        torch.sort({n1+}{distinct}, {dim}, descending={flag})[0]
        2: torch.sort({n1+}{distinct}, {dim}, descending={flag})
        2: torch.sort({n1+}, stable=True, dim={dim}, descending={flag})
        torch.argsort({n1+}{distinct}, {dim}, descending={flag})
        torch.msort({f1+}{distinct})
        2: torch.topk({n1+}{distinct}, min(2, {x}.shape[-1]), largest={flag})
        torch.topk({n1+}{distinct}, {size}, {lastdim})[0]
        2: torch.kthvalue({f1+}{distinct}, 1, {dim})
        2: torch.median({f1+}{distinct}, {dim}, keepdim={flag})
        torch.argmax({f1+}{distinct}, {dim}, keepdim={flag})
        torch.argmin({f1+}{distinct}, {dim}, keepdim={flag})
        torch.argmax({n}{distinct})
        2: torch.max({f1+}{distinct}, {dim}, keepdim={flag})
        2: torch.min({f1+}{distinct}, {dim}, keepdim={flag})
    """,
    "cumulative": """
        torch.cumsum({n1+}, {dim})
        torch.cumsum({n1+}, {dim}, dtype={dtype})
        torch.cumprod({f1+}, {dim})
        torch.logcumsumexp({f1+}, {dim})
        2: torch.cummax({n1+}{distinct}, {dim})
        2: torch.cummin({f1+}{distinct}, {dim})
        torch.diff({n1+}, dim={dim})
        torch.trapezoid({f1+}, dim={dim})
    """,
    "matmul": """
        torch.outer({n1}, {f1})
        torch.einsum('ij,ij->i', {f2}, {equal})
        torch.einsum('bij,bkj->bik', {f3}, {equal})
        torch.inner({f2}, {equal})
        torch.dot({f1}, {equal})
        torch.vdot({f1}, {equal})
        {f2} @ {x}.t()
        {f2+}.mT @ {x}
        torch.tensordot({f2}, {equal}, dims={1|2})
        torch.kron({f2}, {f1})
        torch.cross({f1+}[..., :1].expand(*{x}.shape[:-1], 3) * 2, torch.ones(3, dtype={x}.dtype), dim=-1)
        torch.linalg.multi_dot([{f2}, {x}.t(), {x}])
    """,
    "view": """
        {any}.flatten()
        {any}.ravel()
        {any2+}.flatten({0|1}, -1)
        {any}.unsqueeze({newdim})
        {any}.squeeze()
        {any1+}.squeeze({dim})
        {any1+}.squeeze({dims})
        {any2+}.transpose({dim}, {dim})
        {any2}.t()
        {any2+}.mT
        {any1+}.movedim({dim}, {dim})
        torch.permute({any}, {order})
        {any}.reshape(-1)
        {any}.reshape({regrouped})
        {any}.contiguous().view({regrouped})
        {any1+}.unflatten({dim}, (1, -1))
        {any1+}.select({dim}, {0|-1})
        {any1+}[0]
        {any1+}[1:]
        {any1+}[::2]
        {any1+}[..., 1::2]
        {any2+}[:, -1]
        {any2+}[:, 1:3]
        {any2+}[..., None, ::2]
        {any1+}[None, :-1]
        {any1+}.narrow({dim}, 0, 1)
        {any1+}.unfold({dim}, {1|2}, {1|2})
        torch.diagonal({any2+}, {-1|0|1}, {0|-2}, -1)
        torch.as_strided({any1+}.contiguous(), ({x}.numel() // 2,), (2,), {0|1})
        torch.as_strided({any2+}.contiguous(), ({x}.shape[-1], {x}.shape[-1]), (0, 1))
        {any}.expand(2, *{x}.shape)
        {any1+}[..., :1].expand(*{x}.shape[:-1], 3)
        torch.broadcast_to({any}, (2, 1, *{x}.shape))
        {any1+}.repeat(2, *([1] * ({x}.dim() - 1)))
        {any}.repeat({1|2}, *([2] * {x}.dim()))
        torch.tile({any}, ({1|2}, 2))
        torch.flip({any1+}, {dims})
        torch.fliplr({any2+})
        torch.roll({any1+}, {-1|1|2}, {dim})
        torch.roll({any}, {-1|1|2})
        torch.rot90({any2+}, {1|2|-1})
        torch.repeat_interleave({any1+}, {1|2}, {dim})
        torch.tril({n2+}, {-1|0|1})
        torch.triu({n2+}, {-1|0|1})
        torch.diag_embed({n1+}, {0|1})
        torch.diag({n1})
        torch.swapaxes({any2+}, 0, -1)
        torch.atleast_2d({any})
        torch.real({f})
        {f}.detach()
    """,
    "join": """
        torch.stack([{any}, {equal}], {newdim})
        torch.stack([{any}, {x}, {equal}])
        torch.cat([{any1+}, {equal}], {dim})
        torch.cat([{any1+}, {x}, {x}], {dim})
        torch.hstack([{any}, {equal}])
        torch.vstack([{any}, {equal}])
        torch.dstack([{any}, {equal}])
        torch.block_diag({f2}, {equal})
        2: torch.meshgrid({any1}, {any1}, indexing={'ij'|'xy'})
        torch.cartesian_prod({any1}, {equal})
    """,
    "creation": """
        torch.zeros_like({any})
        torch.ones_like({n}, dtype={dtype})
        torch.full_like({n}, {2|-1})
        {f}.new_full((2, {size}), {number})
        {any} + torch.arange({x}.shape[-1] if {x}.dim() else 1)
        {f} + torch.arange(0, 1, 0.25, dtype={x}.dtype).sum()
        {f} * torch.eye(3, dtype={x}.dtype).sum()
        {f1+} + torch.linspace(0, 1, {x}.shape[-1], dtype={x}.dtype)
        {n} + torch.scalar_tensor({number})
        {f} + torch.tensor({number})
        {i} + torch.tensor([{1|2}])
        F.one_hot({i}.clamp(0, 3).long(), 4)
    """,
    "softmax": """
        torch.softmax({f}, {dim})
        torch.softmax({f1+}, {dim}, dtype=torch.{float32|float64})
        torch.log_softmax({f}, {dim})
        torch.log_softmax({f1+}, {dim}, dtype=torch.float32)
        F.softmin({f1+}, {dim})
    """,
    "norm": """
        F.layer_norm({f1+}, ({x}.shape[-1],), eps={1e-5|1e-2})
        F.rms_norm({f1+}, ({x}.shape[-1],), eps={1e-5|1e-2})
        F.group_norm({f3+}, 1, eps=1e-3)
        F.instance_norm({f3+}, eps=1e-3)
        F.batch_norm({f2+}, None, None, training=True, eps=1e-3)
        F.normalize({f1+}, dim={dim})
        F.local_response_norm({f3+}, 2)
        F.cosine_similarity({f1+}, {equal}, dim={dim})
        torch.renorm({f2+}, 2, 0, {1.0|2.0})
        F.layer_norm({f2+}, {x}.shape[-2:], {x}.detach()[(0,) * ({x}.dim() - 2)], None)
    """,
    "pooling": """
        F.max_pool1d({f3}, {1|2})
        F.max_pool2d({f4}, {1|2})
        F.max_pool2d({f3}, 3, 1, 1)
        2: F.max_pool2d({f4}{distinct}, 2, {1|2}, return_indices=True)
        F.avg_pool1d({f3}, {1|2}, {1|2})
        F.avg_pool2d({f4}, {2|3}, 1, 1, ceil_mode={flag}, count_include_pad={flag})
        F.avg_pool2d({f3}, 2, 1)
        F.adaptive_avg_pool1d({f3}, {1|2|3})
        F.adaptive_avg_pool2d({f4}, {1|2|(2,3)})
        F.adaptive_max_pool2d({f4}, {1|2})
        F.lp_pool2d({f4}.abs() + 0.5, 2, 2)
    """,
    "pad and resize": """
        F.pad({any1+}, ({0|1|2}, {0|1|-1}))
        F.pad({any2+}, ({0|1}, {0|2}, {0|1|-1}, 1), value={0|1|2})
        F.pad({f3}, (1, 1), mode={'reflect'|'replicate'|'circular'})
        F.pad({f4}, (1, 0, 1, 1), mode={'reflect'|'replicate'|'circular'})
        F.interpolate({f3}, scale_factor={2|1.5}, mode={'nearest'|'linear'})
        F.interpolate({f4}, size={(3,4)|2|(5,5)}, mode={'nearest'|'bilinear'})
        F.interpolate({f4}, scale_factor=2, mode={'bilinear'|'bicubic'}, align_corners={flag})
        F.pixel_unshuffle({f4}.repeat(1, 1, 2, 2), 2)
        F.pixel_shuffle({f4}.repeat(1, 4, 1, 1), 2)
        F.unfold({f4}, {1|2}, padding={0|1})
        F.channel_shuffle({f4}.repeat(1, 2, 1, 1), 2)
    """,
    "loss": """
        F.mse_loss({f}, {equal}, reduction={'mean'|'sum'|'none'})
        F.l1_loss({f}, {equal}, reduction={'mean'|'sum'|'none'})
        F.smooth_l1_loss({f}, {equal}, beta={0.5|1.0})
        F.huber_loss({f}, {equal}, delta={0.5|2.0})
        F.binary_cross_entropy({f}.sigmoid(), {equal}.sigmoid())
        F.binary_cross_entropy_with_logits({f}, {equal}.sigmoid(), reduction={'mean'|'sum'|'none'})
        F.kl_div({f1+}.log_softmax(-1), {equal}.softmax(-1), reduction={'sum'|'batchmean'})
        F.soft_margin_loss({f}, {equal}.sign())
        F.poisson_nll_loss({f}, {equal}.abs())
        F.margin_ranking_loss({f}, {equal}, {equal}.sign(), margin=0.25)
        F.hinge_embedding_loss({f}, {equal}.sign())
        F.triplet_margin_loss({f2}, {equal}, {equal})
        F.cosine_embedding_loss({f2}, {equal}, torch.ones({x}.shape[0], dtype={x}.dtype))
        F.pairwise_distance({f2}, {equal})
    """,
}

LESS_OFTEN = {
    "torch.renorm": 0.3,
    "torch.kthvalue": 0.3,
    "torch.median": 0.3,
    "torch.logcumsumexp": 0.3,
    "torch.atan2": 0.3,
    "torch.heaviside": 0.3,
    "torch.floor_divide": 0.4,
    "torch.remainder": 0.4,
    "torch.argmax": 0.5,
    "torch.argmin": 0.5,
    "torch.msort": 0.5,
}
"""Weights of operators that are left to eager, in whole or in some cases: a function with one of them shows little."""

_functions: list[Operator] = []


def function(family: str, *, weight: float = 1.0) -> Callable[[Callable[[Draw], Made]], Callable[[Draw], Made]]:
    """Adds an operator that needs more than a row."""

    def add(make: Callable[[Draw], Made]) -> Callable[[Draw], Made]:
        _functions.append(Operator(name=make.__name__, family=family, make=make, weight=weight))
        return make

    return add


def several(draw: Draw, count: int, text: str) -> str:
    draw.n_targets = count
    return text


# --- matmul ---


@function("matmul", weight=3)
def matmul(d: Draw) -> str:
    x = d.f(least=1)
    inner, *batch = d.size(x, -1), *d.t(x).shape[:-2]
    kind = d.int(0, 3)
    shape = [[inner], [inner, d.int(1, 4)], [*batch, inner, d.int(1, 4)], [1, inner, 2]][kind]
    return f"torch.matmul({x}, {d.sized(shape, d.t(x).dtype)})"


@function("matmul", weight=2)
def mm(d: Draw) -> str:
    x = d.f(2)
    return f"torch.mm({x}, {d.sized([d.size(x, 1), d.int(1, 5)], d.t(x).dtype)})"


@function("matmul", weight=2)
def bmm(d: Draw) -> str:
    x = d.f(3)
    return f"torch.bmm({x}, {d.sized([d.size(x, 0), d.size(x, 2), d.int(1, 4)], d.t(x).dtype)})"


@function("matmul")
def mv(d: Draw) -> str:
    x = d.f(2)
    return f"torch.mv({x}, {d.sized([d.size(x, 1)], d.t(x).dtype)})"


@function("matmul", weight=2)
def addmm(d: Draw) -> str:
    x, columns = d.f(2), d.int(1, 4)
    dtype = d.t(x).dtype
    y = d.sized([d.size(x, 1), columns], dtype)
    z = d.sized(d.rng.choice([[columns], [d.size(x, 0), columns], [1, columns], []]), dtype)
    return f"torch.addmm({z}, {x}, {y}, beta={d.one_of(1, 0, 0.5)}, alpha={d.one_of(1, 2)})"


@function("matmul")
def baddbmm(d: Draw) -> str:
    x, columns = d.f(3), d.int(1, 4)
    batch, rows, inner = d.t(x).shape
    y = d.sized([batch, inner, columns], d.t(x).dtype)
    z = d.sized(d.rng.choice([[batch, rows, columns], [columns], [1, 1, 1]]), d.t(x).dtype)
    return f"torch.baddbmm({z}, {x}, {y}, beta={d.one_of(1, 0.5)}, alpha={d.one_of(1, 2)})"


@function("matmul")
def addmv(d: Draw) -> str:
    x = d.f(2)
    dtype = d.t(x).dtype
    return f"torch.addmv({d.sized([d.size(x, 0)], dtype)}, {x}, {d.sized([d.size(x, 1)], dtype)}, alpha={d.one_of(1, 2)})"


@function("matmul", weight=2)
def linear(d: Draw) -> str:
    x, features = d.f(least=1), d.int(1, 5)
    dtype = d.t(x).dtype
    bias = d.sized([features], dtype) if d.flag() else "None"
    return f"F.linear({x}, {d.sized([features, d.size(x, -1)], dtype)}, {bias})"


@function("matmul")
def attention(d: Draw) -> str:
    batch, heads, queries, size = (d.int(1, 2), d.int(1, 2), d.int(1, 4), d.int(1, 4))
    dtype = d.t(d.f()).dtype
    q = d.sized([batch, heads, queries, size], dtype)
    k, v = (d.sized([batch, heads, queries, size], dtype) for _ in range(2))
    return f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={d.flag()})"


# --- convolution ---


def _convolution(d: Draw, rank: int, *, transposed: bool) -> str:
    x = d.f(rank + 2)
    if 0 in d.t(x).shape:
        raise NotFitting
    channels = d.size(x, 1)
    groups = d.rng.choice([g for g in (1, 1, 1, channels) if channels % g == 0])
    made = d.int(1, 2)
    kernel = [d.int(1, min(3, size + 2)) for size in d.t(x).shape[2:]]
    shape = [channels, made, *kernel] if transposed else [made * groups, channels // groups, *kernel]
    dtype = d.t(x).dtype
    weight = d.sized(shape, dtype)
    bias = d.sized([made * groups], dtype) if d.flag() else "None"
    name = f"F.conv_transpose{rank}d" if transposed else f"F.conv{rank}d"
    return f"{name}({x}, {weight}, {bias}, stride={d.one_of(1, 1, 2)}, padding={d.one_of(0, 1)}, groups={groups})"


@function("convolution", weight=2)
def conv1d(d: Draw) -> str:
    return _convolution(d, 1, transposed=False)


@function("convolution", weight=3)
def conv2d(d: Draw) -> str:
    return _convolution(d, 2, transposed=False)


@function("convolution", weight=0.7)
def conv_transpose1d(d: Draw) -> str:
    return _convolution(d, 1, transposed=True)


@function("convolution", weight=0.7)
def conv_transpose2d(d: Draw) -> str:
    return _convolution(d, 2, transposed=True)


# --- splitting ---


@function("join", weight=2)
def split(d: Draw) -> str:
    x = d.any(least=1)
    dim, size = d.dim(x), d.int(1, 3)
    return several(d, max(1, -(-d.size(x, dim) // size)), f"torch.split({x}, {size}, {dim})")


@function("join", weight=2)
def split_sizes(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    first = d.int(0, d.size(x, dim))
    return several(d, 2, f"torch.split({x}, [{first}, {d.size(x, dim) - first}], {dim})")


@function("join", weight=2)
def chunk(d: Draw) -> str:
    x = d.any(least=1)
    dim, count = d.dim(x), d.int(1, 3)
    return several(d, len(d.t(x).chunk(count, dim)), f"torch.chunk({x}, {count}, {dim})")


@function("join")
def tensor_split(d: Draw) -> str:
    x = d.any(least=1)
    return several(d, 3, f"torch.tensor_split({x}, 3, {d.dim(x)})")


@function("join")
def unbind(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    if not 1 <= d.size(x, dim) <= 4:
        raise NotFitting
    return several(d, d.size(x, dim), f"torch.unbind({x}, {dim})")


@function("join", weight=2)
def cat_of_dtypes(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    shape = list(d.t(x).shape)
    shape[dim] = d.int(0, 3)
    return f"torch.cat([{x}, {d.sized(shape, d.dtype())}], {dim})"


# --- index ---


@function("index", weight=2)
def index_select(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    return f"torch.index_select({x}, {dim}, {d.index([d.int(0, 4)], d.size(x, dim))})"


@function("index", weight=2)
def gather(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    shape = [d.int(1, size) if size else 0 for size in d.t(x).shape]
    shape[dim] = d.int(1, 4)
    return f"torch.gather({x}, {dim}, {d.index(shape, d.size(x, dim))})"


@function("index")
def take(d: Draw) -> str:
    x = d.any(least=1)
    return f"torch.take({x}, {d.index(d.shape(most=2), d.t(x).numel(), negative=True)})"


@function("index")
def take_along_dim(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    shape = list(d.t(x).shape)
    shape[dim] = d.int(1, 3)
    return f"torch.take_along_dim({x}, {d.index(shape, d.size(x, dim))}, {dim})"


@function("index", weight=2)
def advanced(d: Draw) -> str:
    x = d.any(least=1)
    first = d.index(d.shape(least=1, most=2), d.size(x, 0), negative=True)
    return f"{x}[{first}]"


@function("index", weight=2)
def advanced_of_two(d: Draw) -> str:
    x = d.any(least=2)
    rank, count = d.t(x).dim(), d.int(1, 3)
    first, second = d.index([count], d.size(x, 0), negative=True), d.index([count], d.size(x, -1), negative=True)
    middle = ", :" * (rank - 2)
    return f"{x}[{first}{middle}, {second}]"


@function("index")
def advanced_and_slice(d: Draw) -> str:
    x = d.any(least=2)
    return f"{x}[1:, {d.index([2], d.size(x, 1))}]"


@function("index")
def embedding(d: Draw) -> str:
    x = d.f(2)
    padding = d.one_of("None", 0) if d.size(x, 0) else "None"
    return f"F.embedding({d.index(d.shape(most=2), d.size(x, 0))}, {x}, padding_idx={padding})"


def _scattering(d: Draw, *, repeated: bool) -> tuple[str, int, str, str]:
    """Target, dimension, index, source."""
    x = d.n(least=1)
    dim = d.dim(x)
    shape = [d.int(1, size) if size else 0 for size in d.t(x).shape]
    if 0 in shape:
        raise NotFitting
    index = d.index(shape, d.size(x, dim)) if repeated else d.permutations(shape, dim % len(shape), d.size(x, dim))
    return x, dim, index, d.sized(shape, d.t(x).dtype)


@function("index", weight=2)
def scatter(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=False)
    return f"torch.scatter({x}, {dim}, {index}, {d.one_of(source, d.one_of(2, -1))})"


@function("index", weight=2)
def scatter_add(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=True)
    return f"torch.scatter_add({x}, {dim}, {index}, {source})"


@function("index")
def scatter_reduce(d: Draw) -> str:
    x, dim, index, source = _scattering(d, repeated=True)
    how = d.one_of("'sum'", "'amax'", "'amin'", "'prod'", "'mean'")
    return f"torch.scatter_reduce({x}, {dim}, {index}, {source}, {how}, include_self={d.flag()})"


def _rows(d: Draw, *, repeated: bool) -> tuple[str, int, str, list[int]]:
    """Target, dimension, 1-D index, shape of what goes there."""
    x = d.n(least=1)
    dim = d.dim(x)
    size = d.size(x, dim)
    count = d.int(1, 3)
    index = d.index([count], size) if repeated else d.permutation(size, count)
    shape = list(d.t(x).shape)
    shape[dim] = count
    return x, dim, index, shape


@function("index", weight=2)
def index_add(d: Draw) -> str:
    x, dim, index, shape = _rows(d, repeated=True)
    return f"torch.index_add({x}, {dim}, {index}, {d.sized(shape, d.t(x).dtype)}, alpha={d.one_of(1, 2)})"


@function("index")
def index_copy(d: Draw) -> str:
    x, dim, index, shape = _rows(d, repeated=False)
    return f"torch.index_copy({x}, {dim}, {index}, {d.sized(shape, d.t(x).dtype)})"


@function("index")
def index_fill(d: Draw) -> str:
    x, dim, index, _ = _rows(d, repeated=False)
    return f"torch.index_fill({x}, {dim}, {index}, {d.one_of(2, -1)})"


@function("index", weight=2)
def index_put(d: Draw) -> str:
    accumulate = d.flag()
    x = d.n(least=1)
    count = d.int(1, 3)
    index = d.index([count], d.size(x, 0)) if accumulate else d.permutation(d.size(x, 0), count)
    values = d.sized([count, *d.t(x).shape[1:]], d.t(x).dtype)
    return f"torch.index_put({x}, ({index},), {values}, accumulate={accumulate})"


@function("index")
def masked_scatter(d: Draw) -> str:
    x = d.n(least=1)
    mask = d.sized(d.t(x).shape, torch.bool)
    return f"torch.masked_scatter({x}, {mask}, {d.sized(d.t(x).shape, d.t(x).dtype)})"


@function("index")
def bucketize(d: Draw) -> str:
    return f"torch.bucketize({d.f()}, torch.tensor([-1.5, 0.25, 1.0]), right={d.flag()})"


@function("index")
def select_scatter(d: Draw) -> str:
    x = d.n(least=1)
    dim = d.dim(x)
    if d.size(x, dim) == 0:
        raise NotFitting
    shape = list(d.t(x).shape)
    del shape[dim]
    return f"torch.select_scatter({x}, {d.sized(shape, d.t(x).dtype)}, {dim}, {d.one_of(0, -1)})"


@function("index")
def slice_scatter(d: Draw) -> str:
    x = d.n(least=1)
    dim = d.dim(x)
    shape = list(d.t(x).shape)
    shape[dim] = len(range(1, shape[dim], 2))
    return f"torch.slice_scatter({x}, {d.sized(shape, d.t(x).dtype)}, {dim}, 1, None, 2)"


# --- losses with classes ---


@function("loss", weight=2)
def cross_entropy(d: Draw) -> str:
    x = d.f(d.rng.choice((2, 2, 3)))
    shape = [d.size(x, 0), *d.t(x).shape[2:]]
    target = d.index(shape, d.size(x, 1))
    how = d.one_of("'mean'", "'sum'", "'none'")
    return f"F.cross_entropy({x}, {target}, reduction={how}, label_smoothing={d.one_of(0.0, 0.25)})"


@function("loss", weight=2)
def nll_loss(d: Draw) -> str:
    x = d.f(2)
    weight = d.sized([d.size(x, 1)], d.t(x).dtype)
    target = d.index([d.size(x, 0)], d.size(x, 1))
    return f"F.nll_loss({x}.log_softmax(1), {target}, {weight}.detach().abs() + 0.5, ignore_index={d.one_of(-100, 0)})"


# --- norms with parameters ---


@function("norm", weight=2)
def layer_norm(d: Draw) -> str:
    x = d.f(least=1)
    size, dtype = d.size(x, -1), d.t(x).dtype
    return f"F.layer_norm({x}, ({size},), {d.sized([size], dtype)}, {d.sized([size], dtype)})"


@function("norm", weight=2)
def batch_norm(d: Draw) -> list[str]:
    x = d.f(d.rng.choice((2, 3, 4)))
    size = d.size(x, 1)
    dtype = d.t(x).dtype
    weight, bias = d.sized([size], dtype), d.sized([size], dtype)
    mean, variance = (f"torch.{made}({size}, dtype={dtype})" for made in ("zeros", "ones"))
    return [f"@ = F.batch_norm({x}, {mean}, {variance}, {weight}, {bias}, training={d.flag()}, eps=1e-3)"]


@function("norm")
def group_norm(d: Draw) -> str:
    x = d.f(d.rng.choice((3, 4)))
    channels, dtype = d.size(x, 1), d.t(x).dtype
    groups = d.rng.choice([g for g in (1, 2, channels) if g and channels % g == 0])
    return f"F.group_norm({x}, {groups}, {d.sized([channels], dtype)}, {d.sized([channels], dtype)}, eps=1e-3)"


# --- written in place, into a clone ---


def _in_place(d: Draw, *, least: int = 0) -> str:
    return d.n(least=least)


@function("in place", weight=2)
def add_in_place(d: Draw) -> list[str]:
    x = d.f()
    return [f"@ = {x}.clone()", f"@.{d.one_of('add_', 'mul_', 'sub_')}({d.other(x, same=True)})"]


@function("in place")
def scalar_in_place(d: Draw) -> list[str]:
    return [f"@ = {d.n()}.clone()", f"@.{d.one_of('add_', 'mul_', 'fill_', 'clamp_min_')}({d.one_of(2, -1, 3)})"]


@function("in place", weight=2)
def slice_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    kept = len(range(1, d.size(x, 0), 2))
    value = d.sized([kept, *d.t(x).shape[1:]], d.t(x).dtype) if d.flag() else d.one_of(2, -1)
    return [f"@ = {x}.clone()", f"@[1::2] = {value}"]


@function("in place")
def column_written(d: Draw) -> list[str]:
    x = d.n(least=2)
    return [f"@ = {x}.clone()", f"@[..., 0].{d.one_of('add_', 'mul_')}({d.one_of(2, 3)})"]


@function("in place")
def select_copied(d: Draw) -> list[str]:
    x = d.n(least=1)
    dim = d.dim(x)
    if d.size(x, dim) == 0:
        raise NotFitting
    shape = list(d.t(x).shape)
    del shape[dim]
    return [f"@ = {x}.clone()", f"@.select({dim}, {d.one_of(0, -1)}).copy_({d.sized(shape, d.dtype())})"]


@function("in place")
def masked_in_place(d: Draw) -> list[str]:
    x = d.n()
    return [f"@ = {x}.clone()", f"@.masked_fill_({d.sized(d.t(x).shape, torch.bool)}, {d.one_of(2, -1)})"]


@function("in place")
def mask_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    return [f"@ = {x}.clone()", f"@[{d.sized(d.t(x).shape, torch.bool)}] = {d.one_of(2, -1)}"]


@function("in place")
def index_assigned(d: Draw) -> list[str]:
    x = d.n(least=1)
    return [f"@ = {x}.clone()", f"@[{d.permutation(d.size(x, 0), 1)}] = {d.one_of(2, -1)}"]


@function("in place")
def index_added_in_place(d: Draw) -> list[str]:
    x, dim, index, shape = _rows(d, repeated=True)
    return [f"@ = {x}.clone()", f"@.index_add_({dim}, {index}, {d.sized(shape, d.t(x).dtype)})"]


@function("in place")
def transposed_written(d: Draw) -> list[str]:
    x = d.f(2)
    return [f"@ = {x}.clone()", f"@.t().mul_({d.sized([d.size(x, 1), 1], d.t(x).dtype)})"]


# --- rows ---

_PLACE = re.compile(r"\{([^{}]+)\}")
_VALUE = re.compile(r"(f|i|b|n|any)(\d)?(\+)?")


def _filled(template: str, draw: Draw) -> str:
    """The text of a row with its places filled, from left to right."""
    first = ""

    def place(match: re.Match[str]) -> str:
        nonlocal first
        what = match.group(1)
        value = _VALUE.fullmatch(what)
        if value:
            kind, rank, plus = value.groups()
            pick = getattr(draw, kind)
            name = str(pick() if rank is None else pick(least=int(rank)) if plus else pick(int(rank)))
            first = first or name
            return name
        return _of_first(what, draw, first) if what in _OF_FIRST else _plain(what, draw)

    return _PLACE.sub(place, template)


_OF_FIRST: dict[str, Callable[[Draw, str], object]] = {
    "x": lambda d, x: x,
    "other": lambda d, x: d.other(x),
    "same": lambda d, x: d.other(x, same=True),
    "equal": lambda d, x: d.sized(d.t(x).shape, d.t(x).dtype),
    "dim": lambda d, x: d.dim(x),
    "dims": lambda d, x: d.dims(x),
    "lastdim": lambda d, x: -1,
    "size": lambda d, x: d.size(x, -1),
    "newdim": lambda d, x: d.int(-d.t(x).dim() - 1, d.t(x).dim()),
    "order": lambda d, x: tuple(d.rng.sample(range(d.t(x).dim()), d.t(x).dim())),
    "regrouped": lambda d, x: regrouped(d, d.t(x).shape),
    "distinct": lambda d, x: "" if d.distinct(x) else "",
}


def _of_first(what: str, draw: Draw, first: str) -> str:
    return str(_OF_FIRST[what](draw, first))


def _plain(what: str, draw: Draw) -> str:
    if what == "flag":
        return str(draw.flag())
    if what == "number":
        return str(draw.number())
    if what == "dtype":
        return str(draw.dtype())
    return draw.rng.choice(what.split("|"))


def regrouped(draw: Draw, shape: Sequence[int]) -> tuple[int, ...]:
    """Another shape of as many elements."""
    count = math.prod(shape)
    if count == 0:
        return (*shape, draw.int(1, 3))
    made = []
    while count > 1 and len(made) < 3:
        divisor = draw.rng.choice([k for k in range(1, count + 1) if count % k == 0])
        made.append(divisor)
        count //= divisor
    return (*made, count)


def _row(family: str, text: str) -> Operator:
    count, _, template = text.rpartition(": ") if re.match(r"\d: ", text) else ("1", "", text)
    named = re.search(r"((?:torch|F)\.[\w.]+)\(", template) or re.search(r"(?<=\})\s*(\.\w+|\[|\S+)", template)
    name = named.group(1) if named else template

    def make(draw: Draw) -> str:
        draw.n_targets = int(count)
        return _filled(template, draw)

    return Operator(name=name, family=family, make=make, weight=LESS_OFTEN.get(name, 1.0))


@functools.cache
def operators() -> dict[str, list[Operator]]:
    """By family."""
    table: dict[str, list[Operator]] = {}
    for family, rows in ROWS.items():
        table[family] = [_row(family, row.strip()) for row in rows.strip().splitlines()]
    for operator in _functions:
        table.setdefault(operator.family, []).append(operator)
    return table
