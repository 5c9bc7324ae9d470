"""One token of batch 1 with transformers' StaticCache, no gradients, float32: a call that reads every weight once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from measure.bench.table import FROZEN
from measure.bench.timing import Timing, alternating
from rust_ort.studies import llama_models
from rust_ort.studies.llama_models import SEED, Size

VARIANTS = ("eager", "inductor", "rust_ort", FROZEN)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A Llama whose output layer is its embedding. Tokens: the prompt that the cache holds, and the cache's length."""

    size: Size = Size(hidden=768, heads=12, intermediate=2048, vocabulary=32_000, layers=12)
    prompt: int = 128
    cache: int = 256
    name: str = "decoding one token, 110 M parameters"


def cases() -> list[Case]:
    return [Case()]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """model, cache: of this variant alone, for a call writes to the cache."""

    model: Any
    call: Callable[..., Any]
    cache: Any
    token: Tensor
    position: int

    def __call__(self) -> Tensor:
        """The logits after `token`, always at the place after the prompt: a cache that grew would be full in time."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.position)
        logits: Tensor = self.call(self.token, past_key_values=self.cache, use_cache=True).logits
        return logits

    def written(self) -> list[Tensor]:
        """Keys and values that the last call left in the cache."""
        return [
            tensor[:, :, : self.position + 1] for layer in self.cache.layers for tensor in (layer.keys, layer.values)
        ]


def build(case: Case, variant: str) -> Decoding:
    """The same numbers at each call; the prompt goes through the model in eager."""
    from transformers import LlamaForCausalLM, StaticCache

    config = llama_models.config(case.size)
    config.tie_word_embeddings = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).eval()
        tokens = torch.randint(0, case.size.vocabulary, (1, case.prompt + 1))
    cache = StaticCache(config=config, max_cache_len=case.cache)
    model(tokens[:, :-1], past_key_values=cache, use_cache=True)
    call = model if variant == "eager" else _compiled(model, variant)
    return Decoding(model=model, call=call, cache=cache, token=tokens[:, -1:], position=case.prompt)


def _compiled(model: Any, variant: str) -> Any:
    if variant == FROZEN:
        return torch.compile(model, backend="rust_ort", options={"freeze_parameters": True}, dynamic=False)
    return torch.compile(model, backend=variant, dynamic=False)


@torch.no_grad()
def measure(case: Case, variants: Sequence[str], *, rounds: int) -> list[Timing]:
    """Each variant's time of a token. Raises AssertionError when logits or cache differ from eager's."""
    torch.compiler.reset()
    expected = build(case, "eager")
    wanted = [expected(), *expected.written()]
    calls: dict[str, Callable[[], object]] = {}
    for variant in variants:
        run = build(case, variant)
        for _ in range(2):
            got = [run(), *run.written()]
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
        calls[variant] = run
    return alternating(case.name, calls, rounds=rounds)
