"""copy_ gives what it writes into the source's values, spread over its own shape, in its own dtype and strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import together

import rust_ort

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

pytestmark = pytest.mark.usefixtures("client")


def spread_and_cut(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(w)
    return y.view(-1)[4:].sum()


def spread_and_added_up(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(w)
    return y.view(-1).cumsum(0)[-1]


def spread_number(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.copy_(w[0])
    return y.sum()


def spread_into_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1:].copy_(w)
    return y


def spread_into_a_column(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1].copy_(w[0])
    return y


def spread_into_a_diagonal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.diagonal().copy_(w[0])
    return y


def spread_into_a_transpose(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t().copy_(w[:, None])
    return y


def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x * 2).t()
    y.copy_(w[:, None])
    return y


def channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last) * 2
    y.copy_(w.reshape(2, 2))
    return y


def multiplied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.copy_(w)
    return y.t() @ x


def narrowed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x, dtype=torch.float16)
    y.copy_(w)
    return y.float() * x


def widened(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.double() * 2
    y.copy_(w)
    return y.view(-1)[4:].sum() + y


def cut_to_integers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x * 2).long()
    y.copy_(w + 0.7)
    return y * x


def input_from_a_constant(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.copy_(torch.tensor(3.0))
    return x * w


def input_from_its_own_row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:].copy_(x[0])
    return x * w


def of_equal_shape(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(x)
    return y * w


PROGRAMS = [
    spread_and_cut, spread_and_added_up, spread_number, spread_into_rows, spread_into_a_column, spread_into_a_diagonal,
    spread_into_a_transpose, transposed, channels_last, multiplied, narrowed, widened, cut_to_integers,
    input_from_a_constant, input_from_its_own_row, of_equal_shape,
]  # fmt: skip


def outcome(
    call: Callable[[dict[str, tuple[torch.Tensor, torch.Tensor]]], dict[str, torch.Tensor]], *, grad: bool
) -> tuple[dict[str, dict[str, torch.Tensor | None]], dict[str, tuple[int, ...]]]:
    """({program: output, first argument after the call and gradients}, {program: the output's strides})."""
    leaves, given = {}, {}
    for program in PROGRAMS:
        generator = torch.Generator().manual_seed(0)
        leaves[program.__name__] = [
            torch.rand(*size, generator=generator).requires_grad_(grad) for size in ((3, 4), (4,))
        ]
        x, w = (leaf * 1 for leaf in leaves[program.__name__])
        given[program.__name__] = x, w
    outs = call(given)
    found: dict[str, dict[str, torch.Tensor | None]] = {
        name: {"output": out.detach(), "x": given[name][0].detach()} for name, out in outs.items()
    }
    loss = sum((out.double() ** 2).sum() for out in outs.values() if out.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
        for name, (x, w) in leaves.items():
            found[name] |= {"gradient of x": x.grad, "gradient of w": w.grad}
    return found, {name: out.stride() for name, out in outs.items()}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "training"])
def test_copy_gives_eagers_values_strides_and_gradients(grad: bool, dynamic: bool) -> None:
    """All programs in one graph, each of tensors of its own."""
    every = together({program.__name__: program for program in PROGRAMS})
    expected, strides = outcome(every, grad=grad)
    backend = rust_ort.backend()
    got, ours = outcome(torch.compile(every, backend=backend, dynamic=dynamic), grad=grad)
    assert ours == strides
    assert backend.graphs and "aten.copy.default" not in {node.op for graph in backend.graphs for node in graph.eager}
    torch.testing.assert_close(got, expected)


def test_what_is_copied_is_apart_from_its_source() -> None:
    def copied(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        source, y, z = x.exp(), torch.empty(3, 4), torch.empty(3, 4)
        y.copy_(source)
        z.copy_(x)
        return source, y, z

    x = torch.zeros(3, 4)
    source, y, z = torch.compile(copied, backend=rust_ort)(x)
    y.add_(1)
    z.add_(10)
    assert source.sum() == 12 and y.sum() == 24 and z.sum() == 120 and x.sum() == 0
