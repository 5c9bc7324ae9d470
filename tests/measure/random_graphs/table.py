"""The operators that random functions are made of.

A row is Python text with places: `{f}` `{i}` `{b}` a floating, integer, bool value, `{n}` a number, `{any}` any of
these; a digit behind it is its rank, `2+` its least rank. The first value is what the others are of: `{x}` itself,
`{other}` a value that broadcasts with it, `{same}` one of its dtype, `{equal}` one of its shape and dtype, `{dim}`
`{dims}` its dimensions, `{size}` a size of it; `{distinct}` behind a value demands different values. `{flag}`,
`{number}`, `{dtype}`, `{a|b|c}`: a choice. `2:` before it: so many results. What needs more is in `functions.py`.
"""

from __future__ import annotations

import functools

from measure.random_graphs import functions_index
from measure.random_graphs.functions import FUNCTIONS
from measure.random_graphs.operator import Operator
from measure.random_graphs.rows import of_row
from measure.random_graphs.table_memory import MEMORY_ROWS
from measure.random_graphs.table_sizes import SIZE_ROWS

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


@functools.cache
def operators() -> dict[str, list[Operator]]:
    """By family."""
    table: dict[str, list[Operator]] = {}
    for family, rows in {**ROWS, **SIZE_ROWS, **MEMORY_ROWS}.items():
        table[family] = [of_row(family, row.strip(), LESS_OFTEN) for row in rows.strip().splitlines()]
    for operator in (*FUNCTIONS, *functions_index.FUNCTIONS):
        table.setdefault(operator.family, []).append(operator)
    return table
