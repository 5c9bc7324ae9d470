"""`python -m measure.language_models`: language models of transformers as their class makes them, small, under
compare="nodes": what became of each node of a training step and of an inference. Exit code 1 where one does not match.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import rust_ort

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", LLAMA),
    "GPT-2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 64}),
    "Qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "Gemma 2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 8}),
    "OPT": (
        "OPTForCausalLM",
        {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64,
         "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    ),
    "Phi-3": ("Phi3ForCausalLM", LLAMA),
    "Mistral": ("MistralForCausalLM", LLAMA),
    "OLMo 2": ("Olmo2ForCausalLM", LLAMA),
    "T5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 64,
         "decoder_start_token_id": 0},
    ),
}  # fmt: skip
"""{family: (class of transformers, its sizes)}. All else is the class's own, the cache of keys and values in use."""
TOKENS = (2, 8)


def build(family: str) -> nn.Module:
    """The model, seeded, on the CPU."""
    import transformers

    kind, sizes = FAMILIES[family]
    made = getattr(transformers, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = made(made.config_class(**sizes))
    return model


def tokens() -> torch.Tensor:
    return torch.arange(TOKENS[0] * TOKENS[1]).view(TOKENS) % 60 + 2


def compare_nodes(model: nn.Module, *, training: bool, device: str = "cpu") -> rust_ort.Backend:
    """The backend that compared every node of a call, and of its backward where it is trained."""
    torch.compiler.reset()
    backend = rust_ort.backend(compare="nodes")
    call = torch.compile(model.to(device).train(training), backend=backend)
    ids = tokens().to(device)
    with torch.set_grad_enabled(training):
        loss = call(input_ids=ids, labels=ids).loss
    if training:
        loss.backward()
    return backend


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.language_models", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma separated")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args(argv)
    code = 0
    for family in arguments.families.split(","):
        for training in (True, False):
            backend = compare_nodes(build(family), training=training, device=arguments.device)
            rows = [node for graph in backend.graphs for _, node in graph.nodes]
            kinds = Counter(row.local.kind for row in rows)
            others = Counter(row.local.reason or str(row) for row in rows if row.local.kind != "match")
            told = "".join(f"\n    {n} x {why}" for why, n in others.most_common())
            print(f"{family}, {'training' if training else 'inference'}: {dict(kinds)}{told}", flush=True)
            code |= any(row.local.kind not in ("match", "not_compared") for row in rows) or not kinds["match"]
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
