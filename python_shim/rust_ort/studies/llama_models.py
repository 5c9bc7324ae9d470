"""transformers' Llama in pieces, with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.torch_private import TorchDispatchMode

SEED = 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the configuration and of the inputs."""

    hidden: int = 512
    heads: int = 8
    intermediate: int = 2000
    vocabulary: int = 4000
    layers: int = 1
    batch: int = 2
    sequence: int = 1024


SIZES = {"full": Size(), "small": Size(hidden=64, heads=4, intermediate=96, vocabulary=128, sequence=32)}


@dataclass(kw_only=True)
class Study:
    """A module and the tensors it is called with. `module(*inputs)` gives one tensor."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]


def _sizes(size: Size) -> dict[str, int]:
    """What a LlamaConfig has of it."""
    return {
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "intermediate_size": size.intermediate,
        "vocab_size": size.vocabulary,
        "num_hidden_layers": size.layers,
    }


def config(size: Size, *, attention: str = "sdpa") -> Any:
    """A LlamaConfig. attention: "eager" or "sdpa". No step of a study reads a cache, so none fills one:
    tests/measure/front_door.py has models that do."""
    from transformers import LlamaConfig

    made = LlamaConfig(
        **_sizes(size),
        max_position_embeddings=max(2048, size.sequence),
        use_cache=False,
        attention_dropout=0.0,
    )
    made._attn_implementation = attention
    return made


class Attention(nn.Module):
    """(hidden states, cos, sin, mask?) to attention's output, without the weights that it returns beside it."""

    def __init__(self, config: Any) -> None:
        from transformers.models.llama.modeling_llama import LlamaAttention

        super().__init__()
        self.attention = LlamaAttention(config, layer_idx=0)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.attention(hidden, position_embeddings=(cos, sin), attention_mask=mask)[0]
        return output


class Decoder(nn.Module):
    """(hidden states, cos, sin, mask?) to hidden states."""

    def __init__(self, config: Any) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        super().__init__()
        self.layer = LlamaDecoderLayer(config, layer_idx=0)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(hidden, attention_mask=mask, position_embeddings=(cos, sin))
        return output


class Model(nn.Module):
    """Token ids to the last hidden states."""

    def __init__(self, config: Any) -> None:
        from transformers import LlamaModel

        super().__init__()
        self.model = LlamaModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return output


class CausalLM(nn.Module):
    """Token ids to the loss of predicting each next one."""

    def __init__(self, config: Any) -> None:
        from transformers import LlamaForCausalLM

        super().__init__()
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return output


PARTS: dict[str, Callable[[Any], nn.Module]] = {
    "attention": Attention,
    "decoder": Decoder,
    "model": Model,
    "causal_lm": CausalLM,
}


def build(name: str, size: Size, *, attention: str = "sdpa", device: str = "cpu") -> Study:
    """The part `name` of PARTS with its inputs: the same numbers at each call. Hidden states require grad."""
    cfg = config(size, attention=attention)
    generator = torch.Generator().manual_seed(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = PARTS[name](cfg).to(device).train()
    if name in ("model", "causal_lm"):
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.sequence), generator=generator)
        return Study(name=name, module=module, inputs=(tokens.to(device),))
    hidden = torch.randn(size.batch, size.sequence, size.hidden, generator=generator)
    inputs = [hidden, *_position_embeddings(cfg, hidden)]
    if attention == "eager":
        above = torch.full((size.sequence, size.sequence), torch.finfo(torch.float32).min).triu(1)
        inputs.append(above[None, None].expand(size.batch, 1, -1, -1).contiguous())
    moved = tuple(tensor.to(device) for tensor in inputs)
    moved[0].requires_grad_()
    return Study(name=name, module=module, inputs=moved)


def language_model(size: Size, *, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    """LlamaForCausalLM as its class makes it, of this size alone (its cache is in use), and token ids: the same numbers
    at each call on a device. Its loss: `model(input_ids=tokens, labels=tokens).loss`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = LlamaConfig(**_sizes(size))
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.sequence), generator=generator).to(device)
    with torch.random.fork_rng(devices=[tokens.device] if tokens.is_cuda else []), torch.device(device):
        torch.manual_seed(SEED)
        model: nn.Module = LlamaForCausalLM(made)
    return model.train(), tokens


def _position_embeddings(config: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    positions = torch.arange(hidden.shape[1])[None]
    cos, sin = LlamaRotaryEmbedding(config)(hidden, positions)
    return cos.contiguous(), sin.contiguous()


class _WidenFloat32(TorchDispatchMode):
    """Every request for float32 is one for float64: Llama's norms, rotary embedding and softmax ask for it by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        widened = {key: _wide(value) for key, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **widened)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def float64() -> Iterator[None]:
    """Inside, a module converted by `.double()` computes in float64 throughout, forward and backward."""
    with _WidenFloat32():
        yield
