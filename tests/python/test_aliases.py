"""Which outputs share memory, with each other and with inputs, is eager's; an input's place in its storage counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import rust_ort
from rust_ort.export.aliases import SHARES_MEMORY

Program = Callable[[torch.Tensor], Any]


pytestmark = pytest.mark.usefixtures("client")


def doubled_and_flat(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.view(-1)


def flat_alone(x: torch.Tensor) -> Any:
    return (x * 2).view(-1)


def views_of_views(x: torch.Tensor) -> Any:
    y = (x * 2).t()
    return y[1:], y[1:].t()[:, :2], y.unsqueeze(0).expand(2, 4, 3)[1]


def views_without_their_base(x: torch.Tensor) -> Any:
    y = torch.tanh(x)
    return y.view(-1)[3:9], y.flatten()[6:12].view(2, 3), y.t()


def pieces(x: torch.Tensor) -> Any:
    y = x + 1
    return (y, *y.unbind(0), *y.split(2, dim=1))


def pieces_of_the_input(x: torch.Tensor) -> Any:
    return (*x.unbind(0), (x * 3).sum())


def rows_of_the_input(x: torch.Tensor) -> Any:
    return x[1:], x.t(), x * 2


def the_input_itself(x: torch.Tensor) -> Any:
    return x, x * 2, x


def read_on(x: torch.Tensor) -> Any:
    y = x * 2
    v = y[1:].t()
    return y, v, (v * 3).sum(), v.exp()


def written_inside(x: torch.Tensor) -> Any:
    y = x * 2
    v = y.view(-1)
    v[3:].add_(1)
    return y, v


def input_written_inside(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x[1:], x.sum()


def equal_but_apart(x: torch.Tensor) -> Any:
    return x * 2, x * 2, (x * 2).view(-1)


def detached(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.detach(), y.alias() if hasattr(y, "alias") else y.view_as(y)


def products(x: torch.Tensor) -> Any:
    y = torch.einsum("ij,kj->ik", x, x).unsqueeze(0) @ x
    return y, y[0], y.transpose(1, 2)


def complex_parts(x: torch.Tensor) -> Any:
    z = torch.complex(x, x * 2)
    return z.real, z.imag, torch.view_as_real(z)


def bits(x: torch.Tensor) -> Any:
    y = (x * 2).contiguous()
    return y, y.view(torch.int32)


def shuffled_in_one_group(x: torch.Tensor) -> Any:
    y = x.exp().reshape(1, 4, 3, 1)
    return y, functional.channel_shuffle(y, 1), functional.channel_shuffle(y, 4)


def shuffled_by_one_pixel(x: torch.Tensor) -> Any:
    y = x.exp().reshape(1, 4, 3, 1)
    return y, functional.pixel_shuffle(y, 1), functional.pixel_unshuffle(y, 1)


def input_shuffled(x: torch.Tensor) -> Any:
    y = x.view(1, 4, 3, 1)
    return functional.pixel_shuffle(y, 1), functional.channel_shuffle(y, 1)


def strided_from_a_row(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, y[1:].as_strided((2,), (1,))


def strided_across(x: torch.Tensor) -> Any:
    y = x.exp()
    v = y.t().as_strided((3, 2), (2, 1))
    return y, v, v.sin(), y.t()


def split_unsafely(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, torch.unsafe_split(y, 2, 1)[0], *torch.unsafe_chunk(y, 2, 0), *y.unsafe_split_with_sizes([1, 3], 1)


def undeclared_view(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, torch.ops.aten._unsafe_view(y, (4, 3))


def undeclared_view_of_the_input(x: torch.Tensor) -> Any:
    return torch.ops.aten._unsafe_view(x, (4, 3)), x * 2, torch.unsafe_split(x, 2, 1)[1]


def spread(x: torch.Tensor) -> Any:
    return (x[:1] * 2).expand(5, 4)


def spread_and_read(x: torch.Tensor) -> Any:
    y = x.sum(0, keepdim=True).expand_as(x)
    return x - y, y, x.exp().expand(2, 3, 4).unsqueeze(1)


def half(x: torch.Tensor) -> Any:
    return (x * 2)[x.shape[0] // 2 :]


def piece_and_sum(x: torch.Tensor) -> Any:
    y = x.exp()
    return y.chunk(2, dim=1)[-1], y.sum()


def every_other_column(x: torch.Tensor) -> Any:
    return (x @ x.t()).t()[:, 1::2]


def last_of_a_product(x: torch.Tensor) -> Any:
    return (x @ x.t())[:, -1].unsqueeze(0)


PROGRAMS = [
    doubled_and_flat, flat_alone, views_of_views, views_without_their_base, pieces, pieces_of_the_input,
    rows_of_the_input, the_input_itself, read_on, written_inside, input_written_inside, equal_but_apart, detached,
    products, complex_parts, bits, shuffled_in_one_group, shuffled_by_one_pixel, input_shuffled,
    strided_from_a_row, strided_across, split_unsafely, undeclared_view, undeclared_view_of_the_input, spread,
    spread_and_read, half, piece_and_sum, every_other_column, last_of_a_product,
]  # fmt: skip


def random_program(seed: int) -> Program:
    """Three chains of random views over one value or over the input; at times one is read, or a value's is written.

    Not the input's: of a view of a written input with dynamic sizes, AOTAutograd guesses the place in the storage.
    """
    chance = random.Random(seed)
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.reshape(-1),
        lambda t: t.t() if t.dim() == 2 else t,
        lambda t: t[1:],
        lambda t: t[..., ::2],
        lambda t: t.unsqueeze(0),
        lambda t: t.flatten(0, 1) if t.dim() == 3 else t,
        lambda t: t.chunk(2, dim=0)[-1],
        lambda t: t.narrow(0, 0, max(t.shape[0] - 1, 1)),
        lambda t: t.select(0, 0) if t.dim() > 1 else t,
        lambda t: t.diagonal() if t.dim() == 2 else t,
    ]
    chains = [[chance.choice(views) for _ in range(chance.randint(0, 3))] for _ in range(3)]
    of_input, reads, writes = chance.random() < 0.3, chance.random() < 0.4, chance.random() < 0.3

    def program(x: torch.Tensor) -> Any:
        base = x if of_input else torch.tanh(x) + 1
        outputs = []
        for chain in chains:
            value = base
            for view in chain:
                value = view(value)
            outputs.append(value)
        if writes and not of_input:
            outputs[-1].mul_(3)
        return (*outputs, outputs[0].sum()) if reads else (*outputs, x * 2)

    return program


def made(seed: int, *, grad: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(leaf, what the program is called with: a view with an offset of a value of the leaf)."""
    generator = torch.Generator().manual_seed(seed)
    leaf = torch.randn(5, 4, generator=generator).requires_grad_(grad)
    return leaf, (leaf * 1)[1:4]


def same_memory(tensors: Sequence[torch.Tensor]) -> list[list[bool]]:
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[left == right for right in storages] for left in storages]


def outcome(call: Program, *, write: int, grad: bool) -> list[Any]:
    """Everything a user can see of a call after writing into its output number `write`."""
    _, x = made(7, grad=grad)
    outputs = call(x)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if write < len(outputs) and not outputs[write].is_complex():
        try:
            with torch.no_grad():
                outputs[write].add_(1)
        except RuntimeError as error:
            return ["refused", len(outputs), type(error)]
    seen: list[Any] = [*(output.detach().clone() for output in outputs), x.detach().clone()]
    layouts = [(tuple(o.shape), o.stride(), o.storage_offset(), o.untyped_storage().nbytes()) for o in outputs]
    return [*seen, same_memory([*outputs, x]), [o.requires_grad for o in outputs], layouts]


def equal(got: list[Any], expected: list[Any]) -> bool:
    if len(got) != len(expected):
        return False
    for one, other in zip(got, expected, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.shape != other.shape or not torch.allclose(one, other, atol=1e-5, equal_nan=True):
                return False
        elif one != other:
            return False
    return True


def check(program: Program, *, grad: bool, dynamic: bool) -> None:
    """As eager, or where torch.compile itself differs as aot_eager does."""
    n_outputs = len(out) if isinstance(out := program(made(7, grad=False)[1]), tuple) else 1
    compiled = torch.compile(program, backend=rust_ort, dynamic=dynamic)
    aot_eager = torch.compile(program, backend="aot_eager", dynamic=dynamic)
    for write in range(n_outputs + 1):
        with torch.set_grad_enabled(grad):
            expected = outcome(program, write=write, grad=grad)
            ours = outcome(compiled, write=write, grad=grad)
            if not equal(ours, expected):
                expected = outcome(aot_eager, write=write, grad=grad)
        assert equal(ours, expected), f"write into {write}:\nours {ours}\nexpected {expected}"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_write_into_one_output_is_seen_where_eager_shows_it(program: Program, grad: bool, dynamic: bool) -> None:
    check(program, grad=grad, dynamic=dynamic)


@pytest.mark.parametrize("seed", range(20))
def test_random_chains_of_views_share_memory_as_in_eager(seed: int) -> None:
    check(random_program(seed), grad=bool(seed % 2), dynamic=seed % 4 >= 2)


def test_a_view_that_shows_nothing_is_part_of_the_model() -> None:
    """It begins and ends with its memory: a graph that is one part and nothing else is called faster."""
    backend = rust_ort.backend(on_unsupported="error")
    with torch.no_grad():
        torch.compile(lambda x: (x * 2).view(4, 3), backend=backend)(torch.randn(3, 4))
    (info,) = backend.graphs
    assert not info.eager


def test_what_is_read_on_stays_on_onnxruntime() -> None:
    backend = rust_ort.backend(on_unsupported="error")
    with torch.no_grad():
        torch.compile(read_on, backend=backend)(torch.randn(3, 4))
    (info,) = backend.graphs
    assert len(info.parts) == 1
    assert {node.reason for node in info.eager} <= {SHARES_MEMORY}
    assert info.compute_nodes == sum(map(len, info.parts)) + len(info.eager)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "training"])
def test_an_input_whose_data_is_set_is_refused_with_its_line_and_a_way_out(grad: bool) -> None:
    def exchanged(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.data = x.exp()
        return x * w

    x, w = torch.zeros(3), torch.ones(3, requires_grad=grad)
    with pytest.raises(rust_ort.ClientError, match=r"test_aliases.py:\d+ in exchanged.*data\.copy_") as raised:
        torch.compile(exchanged, backend=rust_ort)(x, w)
    assert raised.value.code == "UNSUPPORTED"
    assert x.sum() == 0


def test_an_input_whose_data_is_copied_into_is_eagers() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        x.data.copy_(x.exp())
        return x * 2

    ours, eagers = torch.zeros(3), torch.zeros(3)
    torch.testing.assert_close(torch.compile(copied, backend=rust_ort)(ours), copied(eagers))
    torch.testing.assert_close(ours, eagers)


def test_a_value_whose_data_is_set_is_eagers() -> None:
    def exchanged(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.data = x.exp()
        return y + x

    x = torch.rand(3)
    torch.testing.assert_close(torch.compile(exchanged, backend=rust_ort)(x), exchanged(x))


def strided(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2,), (1,), 3) * 1.0


def strided_of_a_view(x: torch.Tensor) -> torch.Tensor:
    return x[1:].as_strided((3,), (2,), 2) + 1


def strided_of_a_transpose(x: torch.Tensor) -> torch.Tensor:
    return x.view(2, 3).t().as_strided((2, 2), (1, 2), 4) + 1


def strided_without_an_offset(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (1, 2)) + 1


def strided_scatter(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x, torch.full((2,), 100.0), (2,), (1,), 4)


def written_through_strides(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.as_strided((2,), (1,), 1).mul_(10)
    return y + x.as_strided((6,), (1,), 3)


@pytest.mark.parametrize(
    "program",
    [strided, strided_of_a_view, strided_of_a_transpose, strided_without_an_offset, strided_scatter,
     written_through_strides],
)  # fmt: skip
@pytest.mark.parametrize("first", [0, 2])
def test_as_strided_counts_from_the_start_of_the_inputs_storage(program: Program, first: int) -> None:
    base = torch.arange(24.0)
    compiled = torch.compile(program, backend=rust_ort, dynamic=False)
    with torch.no_grad():
        for offset in (first, 0, 1, 2, 3, 5):
            x = base[offset : offset + 6]
            try:
                expected = program(x)
            except RuntimeError:
                continue
            torch.testing.assert_close(compiled(x), expected, msg=lambda text, o=offset: f"offset {o}: {text}")


@pytest.mark.parametrize("write", [
    lambda y: y.mul_(0), lambda y: torch.no_grad()(y.add_)(100), lambda y: y.view(-1)[:1].zero_(),
])  # fmt: skip
@pytest.mark.parametrize("function", [torch.exp, torch.sigmoid, torch.tanh, lambda x: x.softmax(-1), torch.rsqrt])
def test_a_write_to_an_output_that_backward_reads_is_refused(function: Program, write: Program) -> None:
    """What is saved for backward is the output itself, of which autograd counts the writes."""
    for made in (function, torch.compile(function, backend="rust_ort", dynamic=False)):
        torch._dynamo.reset()
        y = made(torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True))
        write(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_write_to_the_data_of_an_output_is_seen_by_backward() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.compile(torch.exp, backend="rust_ort", dynamic=False)(x)
    y.data.add_(100)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


COPIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, y: x.copy_(y)[1:],
    "itself": lambda x, y: x.copy_(y),
    "half": lambda x, y: x.copy_(y).tensor_split(2)[0],
    "of a row": lambda x, y: x.copy_(y[:1])[1:],
    "of another dtype": lambda x, y: x.copy_(y.double())[1:],
    "not shown": lambda x, y: x[1:].copy_(y[1:]) * 2,
    "by index": lambda x, y: (x.__setitem__(slice(1, None), y[1:]), x[2:])[1],
    "filled": lambda x, y: x.fill_(3)[1:],
}
PLACES: dict[str, Callable[[int], tuple[torch.Tensor, torch.Tensor]]] = {
    "behind": lambda n: (base := torch.arange(4.0 * n).reshape(2, n, 2), base[1]),
    "with gaps": lambda n: (base := torch.arange(8.0 * n).reshape(2 * n, 4), base[::2, 1:3]),
    "flat": lambda n: (base := torch.arange(2.0 * n + 6), base[4 : 4 + 2 * n].view(n, 2)),
    "transposed": lambda n: (base := torch.arange(4.0 * n).reshape(2, 2, n), base[1].t()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("copy", COPIES)
def test_what_is_copied_into_a_view_keeps_its_place(copy: str, place: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(COPIES[copy], backend="rust_ort", dynamic=True)
    for n in (8, 9, 5):
        y = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))
        (base, x), (other_base, other) = PLACES[place](n), PLACES[place](n)
        made, expected = compiled(x, y), COPIES[copy](other, y)
        torch.testing.assert_close((made, base), (expected, other_base), rtol=0, atol=0)
        assert made.storage_offset() == expected.storage_offset()
        shared = [
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            for a, b in ((made, base), (expected, other_base))
        ]
        assert shared[0] == shared[1]
