"""The operators whose operands need more than a row of the table."""

from __future__ import annotations

from measure.random_graphs.draw import Draw, NotFitting
from measure.random_graphs.operator import Operator, adding_to

FUNCTIONS: list[Operator] = []
function = adding_to(FUNCTIONS)


def several(draw: Draw, count: int, text: str) -> str:
    draw.n_targets = count
    return text


# --- matmul ---


@function("matmul", weight=3)
def matmul(d: Draw) -> str:
    x = d.f(least=1)
    inner, *batch = d.size(x, -1), *d.t(x).shape[:-2]
    kind = d.whole(0, 3)
    shape = [[inner], [inner, d.whole(1, 4)], [*batch, inner, d.whole(1, 4)], [1, inner, 2]][kind]
    return f"torch.matmul({x}, {d.sized(shape, d.t(x).dtype)})"


@function("matmul", weight=2)
def mm(d: Draw) -> str:
    x = d.f(2)
    return f"torch.mm({x}, {d.sized([d.size(x, 1), d.whole(1, 5)], d.t(x).dtype)})"


@function("matmul", weight=2)
def bmm(d: Draw) -> str:
    x = d.f(3)
    return f"torch.bmm({x}, {d.sized([d.size(x, 0), d.size(x, 2), d.whole(1, 4)], d.t(x).dtype)})"


@function("matmul")
def mv(d: Draw) -> str:
    x = d.f(2)
    return f"torch.mv({x}, {d.sized([d.size(x, 1)], d.t(x).dtype)})"


@function("matmul", weight=2)
def addmm(d: Draw) -> str:
    x, columns = d.f(2), d.whole(1, 4)
    dtype = d.t(x).dtype
    y = d.sized([d.size(x, 1), columns], dtype)
    z = d.sized(d.rng.choice([[columns], [d.size(x, 0), columns], [1, columns], []]), dtype)
    return f"torch.addmm({z}, {x}, {y}, beta={d.one_of(1, 0, 0.5)}, alpha={d.one_of(1, 2)})"


@function("matmul")
def baddbmm(d: Draw) -> str:
    x, columns = d.f(3), d.whole(1, 4)
    batch, rows, inner = d.t(x).shape
    y = d.sized([batch, inner, columns], d.t(x).dtype)
    z = d.sized(d.rng.choice([[batch, rows, columns], [columns], [1, 1, 1]]), d.t(x).dtype)
    return f"torch.baddbmm({z}, {x}, {y}, beta={d.one_of(1, 0.5)}, alpha={d.one_of(1, 2)})"


@function("matmul")
def addmv(d: Draw) -> str:
    x = d.f(2)
    added, vector = (d.sized([d.size(x, dim)], d.t(x).dtype) for dim in (0, 1))
    return f"torch.addmv({added}, {x}, {vector}, alpha={d.one_of(1, 2)})"


@function("matmul", weight=2)
def linear(d: Draw) -> str:
    x, features = d.f(least=1), d.whole(1, 5)
    dtype = d.t(x).dtype
    bias = d.sized([features], dtype) if d.flag() else "None"
    return f"F.linear({x}, {d.sized([features, d.size(x, -1)], dtype)}, {bias})"


@function("matmul")
def attention(d: Draw) -> str:
    batch, heads, queries, size = (d.whole(1, 2), d.whole(1, 2), d.whole(1, 4), d.whole(1, 4))
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
    made = d.whole(1, 2)
    kernel = [d.whole(1, min(3, size + 2)) for size in d.t(x).shape[2:]]
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
    dim, size = d.dim(x), d.whole(1, 3)
    return several(d, max(1, -(-d.size(x, dim) // size)), f"torch.split({x}, {size}, {dim})")


@function("join", weight=2)
def split_sizes(d: Draw) -> str:
    x = d.any(least=1)
    dim = d.dim(x)
    first = d.whole(0, d.size(x, dim))
    return several(d, 2, f"torch.split({x}, [{first}, {d.size(x, dim) - first}], {dim})")


@function("join", weight=2)
def chunk(d: Draw) -> str:
    x = d.any(least=1)
    dim, count = d.dim(x), d.whole(1, 3)
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
    shape[dim] = d.whole(0, 3)
    return f"torch.cat([{x}, {d.sized(shape, d.dtype())}], {dim})"


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
    if (
        d.features.values != "plain"
    ):  # eager multiplies scale and mean out first: an infinite weight makes NaN, not infinity
        raise NotFitting
    x = d.f(d.rng.choice((3, 4)))
    channels, dtype = d.size(x, 1), d.t(x).dtype
    groups = d.rng.choice([g for g in (1, 2, channels) if g and channels % g == 0])
    return f"F.group_norm({x}, {groups}, {d.sized([channels], dtype)}, {d.sized([channels], dtype)}, eps=1e-3)"


# --- layers in a row ---


@function("norm", weight=3)
def layers(d: Draw) -> list[str]:
    """As models of images have them: sizes that are halved and rounded, and norms that divide by them."""
    rank = d.whole(1, 2)
    x = d.f(rank + 2)
    if 0 in d.t(x).shape or d.features.values != "plain":
        raise NotFitting
    channels, dtype = d.size(x, 1), d.t(x).dtype
    lines = [f"@ = {x}"]
    for _ in range(d.whole(2, 4)):
        shrinking = [
            "@[..., ::2]",
            "@[..., 1:]",
            f"F.max_pool{rank}d(@, 2, 2, ceil_mode={d.flag()}) if @.shape[-1] > 1 and @.shape[2] > 1 else @",
            f"F.avg_pool{rank}d(@, 3, 2, 1)",
            f"F.interpolate(@, scale_factor={d.one_of(0.5, 1.5, 2)}) if @.shape[-1] > 1 and @.shape[2] > 1 else @",
        ]
        groups = d.one_of(1, channels, 2 if channels % 2 == 0 else 1)
        changing = [
            f"F.group_norm(@, {groups}, eps=1e-3)",
            "F.instance_norm(@, eps=1e-3) if @[0, 0].numel() > 1 else @",
            "F.batch_norm(@, None, None, training=True, eps=1e-3) if @.numel() > @.shape[1] else @",
            "F.layer_norm(@, @.shape[1:], eps=1e-3)",
            "F.layer_norm(@, @.shape[-1:], eps=1e-3)",
            "@.softmax(-1)",
            "@.sub(@.mean((0, -1), keepdim=True))",
            "@.div(@.shape[-1])",
            f"F.{d.one_of('gelu', 'silu', 'relu')}(@)",
        ]
        if d.flag():
            made = d.rng.choice((1, 2, 4))
            weight = d.sized([made, channels, *[3] * rank], dtype)
            lines.append(f"@ = F.conv{rank}d(@, {weight}, None, stride={d.one_of(1, 2)}, padding=1)")
            channels = made
        else:
            lines.append(f"@ = {d.one_of(*shrinking)}")
            lines.append(f"@ = {d.one_of(*changing)}")
    return lines
