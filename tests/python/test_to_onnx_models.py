"""rust_ort.to_onnx on what public models do beside computing: they log, write into buffers that they do not read, ask
arguments for their sizes alone."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest
import torch
from test_to_onnx import assert_eager, shapes
from torch import Tensor, nn
from torch.nn import functional

import rust_ort
from rust_ort.errors import ClientError
from rust_ort.observe.values import named_values

LOGGER = logging.getLogger(__name__)
SIZES = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2() -> nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SIZES, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    )


def longrope() -> nn.Module:
    import transformers

    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4, "original_max_position_embeddings": 8,
    }  # fmt: skip
    config = transformers.LlamaConfig(
        **SIZES, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, rope_parameters=rope,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def words(batch: int, length: int, *, labels: bool) -> dict[str, Tensor]:
    ids = torch.randint(3, 64, (batch, length))
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return feeds | ({"labels": ids.clone()} if labels else {})


@pytest.mark.parametrize("make", [gpt2, longrope])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_language_model_of_a_default_configuration_gives_eagers_results(make: Any, dynamic: bool) -> None:
    """gpt2 logs that it has no loss of its own, longrope keeps its frequencies in a buffer, short and long ones."""
    torch.manual_seed(0)
    model = make().eval()
    given = words(2, 12, labels=make is gpt2)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    sizes = {name: {0: "batch", 1: "length"} for name in given} if dynamic else None
    proto = rust_ort.to_onnx(model, kwargs=given, dynamic_shapes=sizes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers())
    for batch, length in [(2, 12), *([(3, 5), (1, 1)] if dynamic else [])]:  # a loss of one token is NaN
        feeds = words(batch, length, labels=make is gpt2)
        with torch.no_grad():
            made = named_values(model(**feeds))
        assert_eager(proto, feeds, [leaf for _, leaf in made if isinstance(leaf, Tensor)])


@functools.lru_cache
def once(logger: logging.Logger, text: str) -> None:
    logger.warning(text)


def logs(x: Tensor) -> Tensor:
    LOGGER.warning("a batch of %s", x.shape[0])
    logging.info("of the root")
    if LOGGER.isEnabledFor(logging.DEBUG):
        LOGGER.debug("in detail")
    LOGGER.told_once("once")  # type: ignore[attr-defined]
    return x * 2


def test_what_is_told_a_logger_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.Logger, "told_once", once, raising=False)
    ignored = set(torch._dynamo.config.ignore_logging_functions)
    assert_eager(rust_ort.to_onnx(logs, torch.ones(3)), {"x": torch.ones(3)}, [torch.full((3,), 2.0)])
    assert not caplog.records
    assert torch._dynamo.config.ignore_logging_functions == ignored


class Scratch(nn.Module):
    """A buffer that each call writes before it reads it. returns: what of it is returned beside."""

    def __init__(self, returns: str = "") -> None:
        super().__init__()
        self.returns = returns
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        self.mean.copy_(x.mean(0))
        beside = {"": (), "view": (self.mean[1:],), "itself": (self.mean,)}[self.returns]
        return x + self.mean, *beside


@pytest.mark.parametrize("returns", ["", "view"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_buffer_that_is_overwritten_before_it_is_read_is_no_state(returns: str, n: int) -> None:
    model = Scratch(returns).eval()
    proto = rust_ort.to_onnx(model, torch.randn(n, 4), dynamic_shapes=({0: "n"},), parameters="inputs")
    assert model.mean.tolist() == [1, 1, 1, 1]
    assert (shapes(proto.graph.input), len(proto.graph.initializer)) == ({"x": ["n", 4]}, 0)
    for other in (1, 5):
        x = torch.randn(other, 4)
        assert_eager(proto, {"x": x}, list(model(x)))


class Partly(Scratch):
    def forward(self, x: Tensor) -> Any:
        self.mean[:2].copy_(x.mean(0)[:2])
        return x + self.mean


class Once(Scratch):
    """The first call alone fills the buffer."""

    filled = False

    def forward(self, x: Tensor) -> Any:
        if not self.filled:
            self.mean.copy_(x.mean(0))
            self.filled = True
        return x + self.mean


@pytest.mark.parametrize("model", [Scratch("itself"), Partly(), Once()], ids=["returned", "in part", "once"])
def test_a_buffer_whose_value_counts_is_state(model: Scratch) -> None:
    with pytest.raises(ClientError, match="writes into mean") as caught:
        rust_ort.to_onnx(model.eval(), torch.randn(3, 4))
    assert caught.value.code == "MUTATION"
    assert model.mean.tolist() == [1, 1, 1, 1]


def of_its_size(x: Tensor, y: Tensor) -> Tensor:
    return x * y.shape[0] + torch.arange(y.shape[1])[:, None]


@pytest.mark.parametrize("optimized", [False, True])
def test_an_input_that_is_asked_for_its_sizes_alone_is_one(optimized: bool) -> None:
    sizes = {"x": {0: "n"}, "y": {0: "m", 1: "k"}}
    proto = rust_ort.to_onnx(
        of_its_size, torch.ones(3), torch.ones(4, 5), dynamic_shapes=sizes, optimized=optimized
    )  # fmt: skip
    assert shapes(proto.graph.input) == {"x": ["n"], "y": ["m", "k"]}
    assert shapes(proto.graph.output) == {"output": ["k", "n"]}
    assert {node.op_type for node in proto.graph.node if "y" in node.input} == {"Shape"}
    for n, m, k in [(3, 4, 5), (1, 1, 1), (2, 9, 1)]:
        x, y = torch.randn(n), torch.ones(m, k)
        assert_eager(proto, {"x": x, "y": y}, [of_its_size(x, y)])


def test_inputs_that_are_asked_for_their_sizes_alone_may_be_all_there_are() -> None:
    cached = {"kept": [torch.ones(2, 1), torch.ones(2, 6)]}

    def positions(kept: list[Tensor], unread: Tensor) -> Tensor:
        return torch.arange(kept[1].shape[1]) + kept[0].shape[0]

    sizes = {"kept": [{0: "batch"}, {1: "length"}], "unread": {0: "rows"}}
    proto = rust_ort.to_onnx(positions, kwargs={**cached, "unread": torch.ones(3)}, dynamic_shapes=sizes)
    assert shapes(proto.graph.input) == {"kept_0": ["batch", 1], "kept_1": [2, "length"], "unread": ["rows"]}
    feeds = {"kept_0": torch.ones(5, 1), "kept_1": torch.ones(2, 4), "unread": torch.ones(1)}
    assert_eager(proto, feeds, [torch.arange(4) + 5])


def test_one_mean_of_channels_last_is_one_of_any_batch() -> None:
    """torch has it as strided, of sizes that are 1: Swin's pooling."""

    def pooled(x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool1d(x.relu().transpose(1, 2), 1).flatten(1) * 2

    proto = rust_ort.to_onnx(pooled, torch.randn(2, 5, 6), dynamic_shapes=({0: "n", 1: "length"},))
    for n, length in [(2, 5), (1, 1), (4, 9)]:
        x = torch.randn(n, length, 6)
        assert_eager(proto, {"x": x}, [pooled(x)])


def test_a_layout_of_dynamic_sizes_that_is_another_is_an_error() -> None:
    with pytest.raises(ClientError, match="as_strided"):
        rust_ort.to_onnx(
            lambda x: (x * 2).as_strided((x.shape[0], 3), (1, x.shape[0])), torch.ones(2, 3), dynamic_shapes=({0: "n"},)
        )


class Moving(nn.Module):
    """Moves a tensor to the device of its argument, as longrope its frequencies: it is there from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.full((3,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept.to(x.device)
        self.kept = kept
        return x.sum() * kept + kept


@pytest.mark.parametrize("optimized", [False, True])
def test_a_tensor_that_an_attribute_is_set_to_as_it_is_changes_nothing(optimized: bool) -> None:
    proto = rust_ort.to_onnx(Moving().eval(), torch.ones(4), optimized=optimized)
    assert_eager(proto, {"x": torch.ones(4)}, [torch.full((3,), 10.0)])
