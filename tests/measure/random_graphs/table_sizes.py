"""Rows of the table: arithmetic on sizes, Python numbers beside tensors, tensors out of nothing."""

SIZE_ROWS = {
    "size arithmetic": """
        {any} + ({integer})
        ({integer}) - {n}
        {n} * ({integer})
        {f} * (({integer}) / 4)
        {f} / (({integer}) % 5 + 1)
        {f} * ({x}.numel() ** 0.5)
        {any1+}[: {integer}]
        {any1+}[{integer} :]
        {any1+}[{integer} : {integer}]
        {any1+}[-{x}.shape[0] // 2 :]
        {any1+}[:: ({integer}) % 3 + 1]
        {any1+}[{integer}]
        {any2+}[:, {integer} :]
        {any1+}.narrow({dim}, {count}, 1)
        {any1+}.narrow({dim}, 0, {count})
        {any1+}.select({dim}, {integer})
        {any2+}.reshape({x}.shape[0] * {x}.shape[1], -1)
        {any2+}.reshape(-1, {x}.shape[-1])
        {any2+}.reshape({x}.shape[1], -1)
        {any1+}.reshape({x}.numel() // {x}.shape[-1], {x}.shape[-1])
        {any1+}.reshape(-1, {count})
        {any}.contiguous().view({x}.numel())
        {any1+}.unflatten(0, ({x}.shape[0] // 2, 2))
        {any}.expand({count}, *{x}.shape)
        {any}.repeat({count}, *[1] * {x}.dim())
        {any1+}.repeat_interleave({count}, 0)
        {any1+}.repeat_interleave({count})
        2: torch.split({any1+}, [{x}.shape[0] // 2, {x}.shape[0] - {x}.shape[0] // 2])
        torch.split({any1+}, {count} + 1)[0]
        torch.chunk({any1+}, {count} + 1)[-1]
        F.pad({any1+}, ({integer}, {count}))
        F.pad({n1+}, ({x}.shape[0] % 3, {integer}), value={integer})
        torch.roll({any1+}, {integer}, {dim})
        torch.tril({any2}, {integer})
        torch.triu({any2}, {integer})
        torch.diagonal({any2}, {integer})
        torch.full(({count}, 2), {integer})
        torch.full(({count},), {integer}, dtype={dtype})
        torch.zeros({count}, {any1+}.shape[0]) + 1
        {f}.new_ones({count}, {x}.numel() % 7)
        torch.arange({integer})
        torch.arange({integer}, {integer})
        torch.arange({integer}, {integer}, {2|3|-1|-2})
        torch.arange({any1+}.shape[0]) * {x}.shape[0]
        torch.arange({any1+}.shape[-1], dtype={x}.dtype) + {x}
        torch.arange({any1+}.shape[0] - 1, -1, -1)
        torch.linspace(0, {integer}, {count})
        torch.eye({count}, {count})
        torch.tensor({integer})
        torch.tensor([{integer}, {integer}])
        torch.full_like({n}, {integer})
        torch.where({n} > ({integer}), {x}, {integer})
        {n}.masked_fill({x} > 0, {integer})
        torch.clamp({n}, min={integer})
        torch.pow({f}.abs() + 0.5, ({integer}) % 3)
        torch.remainder({n}, ({integer}) % 4 + 1)
        {i} // (({integer}) % 4 + 1)
        {i} % (({integer}) % 4 - 5)
        torch.add({n}, {x}, alpha={integer})
        {f1+}.sum({dim}) / {x}.shape[{dim}]
        {f1+}.mean({dim}) * {x}.shape[0]
        {f1+}.var() * ({x}.numel() - 1)
        F.interpolate({f3}, size={count} + 1)
        F.adaptive_avg_pool1d({f3}, {count} + 1)
        F.layer_norm({f1+}, {x}.shape[-1:])
        F.one_hot({i}.abs() % 4, {count} + 4)
        {f2} @ {x}.new_ones({x}.shape[1], {count})
        torch.cat([{any1+}, {x}[: {integer}]], 0)
        torch.cat([{any1+}, {x}.new_zeros({count}, *{x}.shape[1:])])
        torch.stack([{any1+}] * ({count} + 1))
        torch.as_strided({any1+}.contiguous(), ({x}.numel() // 2,), (1,), {x}.numel() % 2)
        {any1+}.unfold(0, {count} + 1, {1|2})
        {any1+}.flip(0)[{integer} :]
        torch.scalar_tensor({integer})
        torch.empty({count}, 3).fill_({integer})
        {n} if {integer} > {integer} else -{x}
        {integer}
        {integer}
        {any1+}.shape[0] * {x}.numel() - {integer}
        {n} * {argument} + {x}.shape.numel()
        torch.full(({count},), {argument})
        {argument} * 2
    """,
    "scalar": """
        {any} + {argument}
        {argument} - {n}
        {n} * {argument}
        {n} / {argument}
        {n} ** {argument}
        {any} > {argument}
        torch.where({b}, {argument}, {argument})
        torch.full((2,), {argument})
        torch.clamp({n}, {argument}, {argument})
        {any}.masked_fill({b}, {argument})
        {any} + {scalar}
        {scalar} + {any}
        {n} - {scalar}
        {scalar} - {n}
        {any} * {scalar}
        {scalar} * {any}
        {n} / {scalar}
        {scalar} / {n}
        {n} // {scalar}
        {scalar} // {n}
        {n} % {scalar}
        {scalar} % {n}
        {n} ** {0|1|2|3|-1|0.5|2.0|True}
        {2|0.5|1|-1.0|True} ** {n}
        {any} == {scalar}
        {any} != {scalar}
        {any} < {scalar}
        {scalar} <= {any}
        {any} > {scalar}
        {scalar} >= {any}
        {i} & {True|3|-1|0}
        {i} | {True|3|-1|0}
        {3|-1|True} ^ {i}
        {i} << {0|1|3|7}
        {i} >> {0|1|3|7|40}
        ~{i}
        -{n}
        {b} + {b}
        {b} * {scalar}
        {b} & {True|False}
        torch.add({any}, {scalar})
        torch.sub({n}, {scalar}, alpha={2|-1|0.5})
        torch.rsub({n}, {scalar})
        torch.mul({scalar}, {any})
        torch.div({n}, {scalar}, rounding_mode={'trunc'|'floor'|None})
        torch.fmod({n}, {scalar})
        torch.remainder({scalar}, {n})
        torch.where({b}, {scalar}, {scalar})
        torch.where({b}, {any}, {scalar})
        torch.where({b}, {scalar}, {any})
        torch.clamp({n}, {scalar}, {scalar})
        torch.clamp({n}, min={scalar})
        torch.clamp({n}, max={scalar})
        {any}.masked_fill({b}, {scalar})
        torch.full_like({any}, {scalar})
        torch.xlogy({scalar}, {n})
        torch.pow({scalar}, {n})
        torch.float_power({n}, {2|-1|0.5})
        torch.copysign({f}, {scalar})
        torch.hypot({f}, torch.tensor({scalar}))
        torch.maximum({n}, torch.tensor({scalar}))
        torch.minimum(torch.tensor({scalar}), {n})
        F.threshold({f}, {scalar}, {scalar})
        F.hardtanh({f}, -1, {1|2.5|3})
        F.leaky_relu({f}, {scalar})
        F.pad({any1+}, (1, 2), value={scalar})
        torch.nan_to_num({f}, {scalar}, {scalar}, {scalar})
        torch.addcmul({n}, {same}, {same}, value={1|2|-3})
        torch.lerp({f}, {equal}, {scalar})
        torch.isin({n}, torch.tensor([0, 1, 2]))
        torch.eq({any}, {scalar}).sum()
        torch.cumsum({any1+}, {dim})
        torch.sum({any1+}, {dim})
        torch.prod({any1+}, {dim})
        torch.abs({n})
        torch.gcd({i}, {same})
        torch.lcm({i}, {same})
        torch.frac({f})
        torch.trunc({n})
        torch.sign({any})
        torch.signbit({n})
        torch.nextafter({f}, {same})
        torch.frexp({f})[0]
        torch.ldexp({f}, {i})
        {f} + {i}
        {i} * {f}
        {any}.to({dtype}).to({dtype})
        {b}.to({dtype}) * 3
    """,
    "factory": """
        torch.zeros({2|(2,3)|()|0}, dtype={dtype}) + {any}.sum()
        torch.ones({2|(2,3)|(0,3)}, dtype={dtype})
        torch.full({(2,)|(1,3)|()}, {scalar})
        torch.full({(2,)|(1,3)|()}, {number}, dtype={dtype})
        torch.arange({5|2.5|0|-3}, dtype={dtype})
        torch.arange({1|0.5|-2}, {4|5.25|7}, {1|0.5|2|3})
        torch.arange({7|3.5}, {-2|0}, {-1|-2|-0.75})
        torch.linspace({0|-1.5|3}, {1|2.5|10}, {1|2|5|0})
        torch.linspace({0|-3}, {4|9}, {3|7}, dtype={dtype})
        torch.logspace({0|-1}, {1|2}, {1|3|4})
        torch.eye({2|3}, {1|3|4}, dtype={dtype})
        torch.tril_indices({2|3}, {3|4}, {-1|0|1})
        torch.triu_indices({2|3}, {3|4}, {-1|0|1})
        torch.empty({(2,3)|4}, dtype={dtype}).fill_({number})
        torch.tensor({scalar})
        torch.tensor([{scalar}, {scalar}])
        torch.tensor([[{number}, 1], [2, {number}]], dtype={dtype})
        torch.zeros_like({any}, dtype={dtype})
        torch.ones_like({any}) + {x}
        torch.full_like({any}, {scalar}, dtype={dtype})
        {any}.new_zeros({2|(1,2)}) + {scalar}
        {any}.new_tensor([{number}, {number}])
        torch.scalar_tensor({scalar}, dtype={dtype})
        torch.hann_window({1|4|5})
        torch.bartlett_window({4|5}, periodic={flag})
        torch.vander(torch.arange(3.0), {2|3})
        torch.as_tensor({scalar}) * {any}
        torch.asarray([{number}, {number}])
    """,
}
