"""Rows of the table: what writes into its operands and views of them, autocast, sizes that depend on data."""

MEMORY_ROWS = {
    "memory": """
        @ = {any}.zero_()
        @ = {n}.add_({number})
        @ = {n}.add_({same})
        @ = {n}.mul_({same})
        @ = {n}.mul_({2|-1|3})
        @ = {n}.sub_({same}, alpha=2)
        @ = {any}.copy_({other})
        @ = {any}.fill_({number})
        @ = {n}.clamp_({-1|0}, {1|2})
        @ = {n}.masked_fill_({x} > 0, {2|-1})
        @ = {f}.neg_()
        @ = {f}.sigmoid_()
        @ = {n}.abs_()
        @ = {any1+}[0].fill_({number})
        @ = {n1+}[1:].add_(1)
        @ = {n1+}[::2].mul_(2)
        @ = {n2+}[:, 1:].sub_(1)
        @ = {n2+}.mT.mul_(2)
        @ = {n2+}.transpose(0, 1)[0].add_(1)
        @ = {any1+}.view(-1)[:2].zero_()
        @ = {n}.flatten().add_(1)
        @ = {n}.reshape(-1).add_(1)
        @ = {n1+}.select({dim}, -1).mul_(3)
        @ = {n2}.diagonal().fill_({number})
        @ = {n}.unsqueeze(0).add_(1)
        @ = {n1+}.narrow({dim}, 0, 1).copy_({x}.narrow({dim}, 0, 1) * 2)
        @ = {n}.detach().add_(1)
        @ = {n}.detach();; @.mul_(2)
        @ = {n1+}[1:];; @.add_(1)
        @ = {n1+}[..., ::2];; @.mul_({2|3})
        @ = {n2+}.mT;; @[0] = {number}
        @ = {n}.view({x}.shape);; {x}.add_(1)
        @ = {n}.expand(2, *{x}.shape);; {x}.mul_(2)
        @ = {n1+}.clone()[1:];; @.add_(1)
        @ = {n2}.clone().t();; @[0] = 5
        @ = {n1+} * 1;; @[0] = {x}[-1]
        @ = {n1+} * 2;; @[1:] += @[:-1].clone()
        @ = {n};; @ += 1
        @ = {n};; @ *= {2|3}
        {any1+}[0] = {number};; @ = {x}.clone()
        {any1+}[..., -1] = {number};; @ = {x} * 1
        {n}.add_(1);; @ = {x}.view({x}.shape)
        @ = torch.mul({n}, 2, out=torch.empty({x}.shape, dtype={x}.dtype))
        with torch.no_grad(): @ = {n}.add_(1)
        with torch.no_grad(): @ = {n}.mul(2)
        with torch.no_grad(): @ = {n1+}[1:]
        with torch.enable_grad(): @ = {f} * 2
        @ = {any2}.clone().t_()
        @ = {any}.clone().unsqueeze_(0)
        @ = {any}.clone().squeeze_()
        @ = {any2+}.clone().transpose_(0, 1)
        @ = {n1+}.index_add_(0, torch.tensor([0]), {x}[:1].clone())
        @ = {n1+}.scatter_(0, torch.zeros_like({x}[:1], dtype=torch.int64), {number})
        @ = {n1+}.index_fill_(0, torch.tensor([0]), {number})
        @ = {f}.relu_()
        @ = {f1+}.cumsum_(0)
        @ = {i}.bitwise_not_()
        @ = {b}.logical_not_()
    """,
    "output view": """
        {any1+}[1:]
        {any1+}[:-1]
        {any1+}[..., ::2]
        {any1+}[0]
        {any2+}.mT
        {any2+}.transpose({dim}, {dim})
        {any}.view({x}.shape)
        {any}.flatten()
        {any}.detach()
        {any}.unsqueeze({newdim})
        {any}.expand(2, *{x}.shape)
        {any1+}.narrow({dim}, 0, 1)
        {any1+}.select({dim}, 0)
        {any2}.diagonal()
        {any}.contiguous()
        {any}.reshape({x}.shape)
        {any}.to({x}.dtype)
        {any1+}.unfold({dim}, 1, 1)
        2: torch.split({any1+}, [1, {x}.shape[0] - 1])
        2: {any1+}.tensor_split(2)
        {any2+}.unbind(0)[0]
        {any1+}.contiguous().as_strided(({x}.numel() // 2,), (1,))
        {any1+}.swapaxes(0, -1)
        {any}.squeeze()
        {any4}.contiguous(memory_format=torch.channels_last)
        {any4}.to(memory_format=torch.channels_last)
        torch.empty_like({n}).copy_({x})
        {any}.clone()
        {any2+}.mT.clone()
        {any2+}.mT + 0
        {any2+}.mT.contiguous()
        torch.zeros_like({any2+})
        {n2+}.mT.relu()
        {any2+}.permute({order}) * 2
    """,
    "data-dependent": """
        torch.nonzero({any})
        torch.argwhere({any1+})
        torch.masked_select({any}, {x} > 0)
        {any1+}[{x} > 0]
        {any1+}[{x} > 0] * 2
        {any1+}[torch.nonzero({x}.flatten()[: {x}.shape[0]]).flatten()]
        torch.unique({n})
        {n1+}[: int({x}.flatten()[0])]
        {any1+}.new_zeros(int({i}.abs().sum().item()) % 4 + 1)
        torch.arange(int({i}.abs().sum().item()) % 5)
        {any} * {i0}.item()
        {any} + {f0}.item()
        torch.full((2,), {i0}.item())
        torch.where({any1+} > 0)[0]
        torch.bincount({i1}.abs())
        {any1+}[{i1}.abs() % 2 == 0].sum() if {x}.shape[0] == {i1}.shape[0] else {x}
        torch.tensor({f0}.item()) + 1
        torch.nonzero({any}).sum(0)
        torch.masked_select({n}, {x} > 0).sum()
        {n1+} * torch.nonzero({x}).shape[0]
    """,
    "autocast": """
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = {f2} @ {x}.mT
        with torch.autocast("cpu", dtype=torch.float16): @ = {f2} @ {x}.mT
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = F.linear({f1+}, {x}.new_ones(3, {x}.shape[-1]))
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = torch.softmax({f2} @ {x}.mT, -1)
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = F.layer_norm({f2}, {x}.shape[-1:]) @ {x}.mT
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = {f1+}.sum({dim}) + {x}.mean({dim})
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = torch.cat([{f2} @ {x}.mT, {x} @ {x}.mT])
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False): @ = {f2} @ {x}.mT
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", dtype=torch.float16): @ = {f2} @ {x}.mT
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad(): @ = {f2} @ {x}.mT
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = F.mse_loss({f2} @ {x}.mT, torch.zeros(()))
        with torch.autocast("cpu", dtype=torch.bfloat16): @ = torch.bmm({f3}, {x}.mT) * {x}.sum()
        with torch.autocast("cpu", enabled=False): @ = {f2} @ {x}.mT
    """,
}
