"""Layers that torch runs as one operator in evaluation: nothing of them is left in eager, and they are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.torch_private import pytree

pytestmark = [pytest.mark.usefixtures("served"), pytest.mark.filterwarnings("ignore::UserWarning")]

leaves = pytree.tree_leaves
WIDTH, HEADS, LENGTH = 16, 2, 5
SLACK = {torch.float32: 2e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Of the largest element: a unit or two in the last place of the dtype, or a few of float32 and float64."""
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]], dtype=torch.bool)
EACH = torch.rand(2, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.6
ALL_MASKED = PADDED | torch.tensor([[True], [False]])


@pytest.fixture(autouse=True)
def each_compiles() -> None:
    """Dynamo recompiles one function, as the modules' call is, a few times only."""
    torch._dynamo.reset()


def inputs(dtype: torch.dtype, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, LENGTH, WIDTH, generator=generator).to(dtype) for _ in range(count)]


def check(module: nn.Module, *args: Any, dynamic: bool | None = None, **kwargs: Any) -> None:
    """It is eager's, and no node of it ran in eager."""
    dtype = next(module.parameters()).dtype
    backend = rust_ort.Backend()
    with torch.no_grad():
        wanted = module(*args, **kwargs)
        made = torch.compile(module, backend=backend, dynamic=dynamic)(*args, **kwargs)
    assert [graph.direction for graph in backend.graphs] == ["inference"]
    assert [(node.op, node.reason) for graph in backend.graphs for node in graph.eager] == []
    for ours, eagers in zip(
        torch.utils._pytree.tree_leaves(made), torch.utils._pytree.tree_leaves(wanted), strict=True
    ):
        atol = SLACK[dtype] * float(eagers.nan_to_num().abs().max()) if eagers.numel() else 0.0
        torch.testing.assert_close(ours, eagers, rtol=0, atol=atol, equal_nan=True, check_stride=True)


ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "norm first": ({"norm_first": True, "layer_norm_eps": 1e-3}, {}),
    "gelu": ({"activation": "gelu"}, {}),
    "causal": ({}, {"src_mask": CAUSAL}),
    "causal by infinities": ({}, {"src_mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf)}),
    "padded": ({"norm_first": True}, {"src_key_padding_mask": PADDED}),
    "causal and padded": ({"activation": "gelu"}, {"src_mask": CAUSAL, "src_key_padding_mask": PADDED}),
    "a row all masked": ({}, {"src_key_padding_mask": ALL_MASKED}),
}


@pytest.mark.parametrize("dtype", SLACK, ids=str)
@pytest.mark.parametrize("name", ENCODERS)
def test_a_transformers_encoder_layer(name: str, dtype: torch.dtype) -> None:
    options, masks = ENCODERS[name]
    if dtype is torch.float64 and "gelu" in options.values():
        pytest.skip("ONNX Runtime has no Erf of float64: gelu alone is left to eager")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, dtype=dtype, **options).eval()
    masks = {key: mask.to(dtype) if mask.is_floating_point() else mask for key, mask in masks.items()}
    check(layer, *inputs(dtype, 1), **masks)


def test_what_no_kernel_of_float64_has_is_one_node_and_not_the_layer() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, dtype=torch.float64, activation="gelu")
    backend = rust_ort.Backend()
    with torch.no_grad():
        torch.compile(layer.eval(), backend=backend)(*inputs(torch.float64, 1))
    assert [node.op for node in backend.graphs[0].eager] == ["aten.gelu.default"]


class Attention(nn.Module):
    """The fused operator itself, which nn.MultiheadAttention calls outside Dynamo."""

    def __init__(self, dtype: torch.dtype, **options: Any) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=dtype)
        nn.init.normal_(self.own.in_proj_bias)
        self.options = {"need_weights": True, "average_attn_weights": True, **options}

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        own = self.own
        output, weights = torch._native_multi_head_attention(
            query, key, value, WIDTH, HEADS, own.in_proj_weight, own.in_proj_bias, own.out_proj.weight,
            own.out_proj.bias, **self.options,
        )  # fmt: skip
        return (output, weights) if self.options["need_weights"] else output


ATTENTIONS: dict[str, dict[str, Any]] = {
    "averaged weights": {},
    "weights of heads": {"average_attn_weights": False},
    "no weights": {"need_weights": False},
    "causal": {"mask": CAUSAL, "mask_type": 0},
    "padded": {"mask": PADDED, "mask_type": 1},
    "a mask of each head": {"mask": EACH, "mask_type": 2, "average_attn_weights": False},
    "a mask that says no type": {"mask": EACH},
    "infinities": {"mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf), "mask_type": 0},
    "a row all masked": {"mask": ALL_MASKED, "mask_type": 1},
}


@pytest.mark.parametrize("dtype", SLACK, ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_native_multi_head_attention(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = inputs(dtype, 3)
    attention = Attention(dtype, **ATTENTIONS[name])
    check(attention, query, query, query)
    if dtype is torch.float32:
        for given in ([query, key, key], [query, key, value]):
            torch._dynamo.reset()
            check(attention, *given)


@pytest.mark.parametrize("count", [1, 2], ids=["self", "cross"])
def test_layers_of_sizes_known_at_run_time(count: int) -> None:
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    query, *rest = inputs(torch.float32, count)
    key = rest[0] if rest else query
    check(attention, query, key, key, dynamic=True)
    check(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True).eval(), query, dynamic=True)


TRANSFORMERS = {
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2),
    "decoder layer": lambda: nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True),
    "whole": lambda: nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_stacks_of_layers(name: str) -> None:
    torch.manual_seed(0)
    count = 1 if name == "encoder" else 2
    check(TRANSFORMERS[name]().eval(), *inputs(torch.float32, count))


RECURRENT: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(WIDTH, 8),
    "lstm both ways": lambda: nn.LSTM(WIDTH, 8, num_layers=2, bidirectional=True, dropout=0.5),
    "lstm without bias": lambda: nn.LSTM(WIDTH, 8, bias=False, batch_first=True),
    "lstm with projections": lambda: nn.LSTM(WIDTH, 8, proj_size=4),
    "gru": lambda: nn.GRU(WIDTH, 8),
    "gru both ways": lambda: nn.GRU(WIDTH, 8, num_layers=2, bidirectional=True, dropout=0.5),
    "rnn": lambda: nn.RNN(WIDTH, 8),
    "rnn of relu": lambda: nn.RNN(WIDTH, 8, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    """Dynamo leaves these modules alone unless told."""
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True):
        check(RECURRENT[name]().eval(), *inputs(torch.float32, 1))


def test_an_lstm_of_any_length() -> None:
    torch.manual_seed(0)
    module, backend = nn.LSTM(WIDTH, 8).eval(), rust_ort.Backend()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        compiled = torch.compile(module, backend=backend, dynamic=True)
        for length, size in ((5, 2), (40, 3), (7, 2)):
            x = 4 * torch.randn(length, size, WIDTH)  # gates saturate
            torch.testing.assert_close(compiled(x), module(x))
    assert [len(graph.eager) for graph in backend.graphs] == [0]


@pytest.mark.parametrize(
    ("name", "autocast"),
    [("lstm both ways", False), ("gru both ways", False), ("gru both ways", True), ("rnn of relu", False)],
)
def test_recurrent_layers_train_whose_input_needs_no_gradient(name: str, autocast: bool) -> None:
    torch.manual_seed(0)
    module, backend = RECURRENT[name]().eval(), rust_ort.Backend()
    (x,) = inputs(torch.float32, 1)

    def trained(call: Any) -> list[Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = call(x)[0]
        output.float().square().sum().backward()
        return [output, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]

    with torch._dynamo.config.patch(allow_rnn=True):
        made = trained(torch.compile(module, backend=backend))
    slack = SLACK[torch.bfloat16 if autocast else torch.float32] * (8 if autocast else 1)
    for ours, eagers in zip(made, trained(module), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=0, atol=slack * float(eagers.abs().max()))
    assert [(graph.direction, len(graph.eager)) for graph in backend.graphs] == [("forward", 0), ("backward", 0)]


def test_what_dynamo_leaves_alone_says_how_it_is_told() -> None:
    explained = rust_ort.explain(nn.LSTM(WIDTH, 8), *inputs(torch.float32, 1))
    assert "no graph was compiled: Attempted to wrap RNN, GRU, or LSTM: torch._dynamo.config.allow_rnn = True" in str(
        explained
    )
