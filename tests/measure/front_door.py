"""`python -m measure.front_door`: models of transformers as their class makes them, under every tool of the front door.
Exit code 1 where a tool raises, accuses somebody, or says of a value what another does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from measure.zoo import tools
from measure.zoo.model import Call

BATCH, LENGTH, VOCABULARY, IMAGE = 2, 8, 100, 16

WIDTH = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**WIDTH, **TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
VISION = {**WIDTH, "image_size": IMAGE, "patch_size": 4}
SEQ2SEQ = {
    **TEXT, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip

Inputs = Callable[[], dict[str, Any]]


def _tokens() -> Tensor:
    return torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) * 37 % (VOCABULARY - 4) + 3


def causal() -> dict[str, Any]:
    return {"input_ids": _tokens(), "labels": _tokens()}


def masked() -> dict[str, Any]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -2:] = 0
    return {**causal(), "attention_mask": mask}


def image() -> dict[str, Any]:
    return {"pixel_values": _pixels(), "labels": torch.tensor([0, 1])}


def _pixels() -> Tensor:
    return torch.randn(BATCH, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(0))


def image_and_text() -> dict[str, Any]:
    return {"input_ids": _tokens(), "pixel_values": _pixels(), "return_loss": True}


@dataclass(frozen=True, kw_only=True)
class Family:
    """kind: class of transformers. sizes: of its configuration, in which nothing but sizes is set. sub: the same of
    configurations inside it."""

    kind: str
    sizes: Mapping[str, Any]
    inputs: Inputs = causal
    sub: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model, seeded, in training mode as its class makes it."""
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, self.kind)
        model: nn.Module = made(made.config_class(**self.sizes, **self.sub))
        return model


FAMILIES: dict[str, Family] = {
    "Llama": Family(kind="LlamaForCausalLM", sizes=DECODER),
    "GPT-2": Family(
        kind="GPT2LMHeadModel",
        sizes={"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY},
    ),
    "Qwen3": Family(kind="Qwen3ForCausalLM", sizes={**DECODER, "head_dim": 8}),
    "T5": Family(
        kind="T5ForConditionalGeneration",
        sizes={
            "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
        },
    ),
    "BERT": Family(kind="BertForMaskedLM", sizes={**WIDTH, "vocab_size": VOCABULARY}, inputs=masked),
    "BigBird": Family(  # makes layers in its first call, where a sequence is short; its pooler has no gradients
        kind="BigBirdForMaskedLM",
        sizes={**WIDTH, **TEXT, "max_position_embeddings": 64, "block_size": 2, "num_random_blocks": 1},
        inputs=masked,
    ),
    "BART": Family(kind="BartForConditionalGeneration", sizes=SEQ2SEQ, inputs=masked),
    "ViT": Family(kind="ViTForImageClassification", sizes=VISION, inputs=image),
    "CLIP": Family(
        kind="CLIPModel",
        sizes={"projection_dim": 16},
        sub={"text_config": {**WIDTH, **TEXT, "max_position_embeddings": 64}, "vision_config": VISION},
        inputs=image_and_text,
    ),
    "Swin": Family(
        kind="SwinForImageClassification",
        sizes={
            "image_size": IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 4,
        },
        inputs=image,
    ),
    "Mixtral": Family(kind="MixtralForCausalLM", sizes={**DECODER, "num_local_experts": 4}),
}  # fmt: skip

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}


def examine(family: Family, folder: Path) -> list[tools.Examination]:
    """folder: for dumps."""
    with torch.random.fork_rng(devices=[]):
        return _examined(family, folder)


def _examined(family: Family, folder: Path) -> list[tools.Examination]:
    model, examinations, call = family.build(), [], Call(kwargs=family.inputs())
    for precision, autocast in PRECISIONS.items():
        seen = tools.Examination(precision=precision)
        examinations.append(seen)
        if autocast is None:
            tools.compare(seen, model, call)
            tools.explain(seen, model, call)
        else:
            tools.dump(seen, model, call, autocast, folder)
            tools.keep(seen, model, call, autocast, folder / "keep")
        blamed = tools.blame(seen, model, call, autocast, folder / precision)
        if blamed is not None and autocast is None:
            tools.command(seen, "prove", str(blamed.folder), "--faults=1")
        for tool, what in seen.disagreements():
            seen.fault(tool, what)
    return examinations


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.front_door", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma separated")
    arguments = parser.parse_args(argv)
    code = 0
    for name in arguments.families.split(","):
        with tempfile.TemporaryDirectory(prefix="front-door-") as folder:
            for seen in examine(FAMILIES[name], Path(folder)):
                by_tool = Counter(fault.tool for fault in seen.faults)
                faults = "".join(f"\n    {count} x {seen.of(tool)}" for tool, count in by_tool.items())
                told = f"{seen.n_values} values and {seen.n_nodes} nodes judged"
                print(f"{name}, {seen.precision}: {told}{faults}", flush=True)
                code |= bool(seen.faults)
    return code


if __name__ == "__main__":
    sys.exit(main())
