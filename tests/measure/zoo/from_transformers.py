"""Models of transformers: a row names a class, what it is called with, and sizes that the common ones do not cover."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from measure.zoo.model import Call, Model, Subject
from measure.zoo.sources import made_by

VOCABULARY = 4096

SIZES: Mapping[str, int] = {
    # encoders, and decoders since Llama
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
    "embedding_size": 128, "vocab_size": VOCABULARY,
    # DistilBERT, GPT-2, GPT-J, XLNet, MPT
    "dim": 256, "hidden_dim": 512, "n_layers": 2, "n_heads": 4, "n_layer": 2, "n_head": 4, "n_embd": 256,
    "d_inner": 512, "d_head": 64,
    # encoders with decoders, OPT, XGLM, GPT-Neo
    "d_model": 256, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 512,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "attention_heads": 4, "word_embed_proj_dim": 256,
}  # fmt: skip
"""Sizes that a configuration gets where its class declares a number under that name."""
COMMON = "width, layers, heads and vocabulary"
"""What SIZES makes smaller, in words."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Keyword arguments of the call in each mode and of `generate()`."""

    evaluated: Mapping[str, Any]
    trained: Mapping[str, Any]
    generated: Mapping[str, Any] = field(default_factory=dict)


def transformer(name: str, inputs: Callable[[Any], Inputs], *, smaller: str | None = None, **options: Any) -> Model:
    """The class `name` of transformers. inputs: made from its configuration. options: of that configuration, over
    SIZES; a nested configuration is a dictionary. smaller: None: COMMON and the names of the options."""

    def build() -> Subject:
        made = made_by(f"transformers.{name}")
        config = made.config_class(**_sizes(made.config_class(), options))
        module, drawn = made(config), inputs(config)
        generated = {**drawn.generated, "min_new_tokens": 8, "max_new_tokens": 8, "do_sample": False}
        return Subject(
            module=module,
            evaluated=Call(kwargs=drawn.evaluated),
            trained=Call(kwargs=drawn.trained),
            generated=Call(kwargs=generated) if drawn.generated and made.can_generate() else None,
        )

    return Model(
        name=name,
        package="transformers",
        source=f"transformers.{name}",
        smaller=", ".join([COMMON, *_names(options)]) if smaller is None else smaller,
        build=build,
    )


def _sizes(default: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that make a configuration smaller than `default`, one of its class."""
    declared = {one.name: one.default for one in fields(default)}
    sizes = {name: size for name, size in SIZES.items() if type(declared.get(name)) is int}
    heads = declared.get("num_key_value_heads")
    if type(heads) is int:  # as many as queries have, or one for each two
        sizes["num_key_value_heads"] = 4 if heads == declared["num_attention_heads"] else 2
    nested: dict[str, Any] = {}
    for name in type(default).sub_configs:
        inner: Any = getattr(default, name)
        smaller = _sizes(inner, options.get(name, {}))
        if smaller:
            nested[name] = {"model_type": inner.model_type, **_differences(inner), **smaller}
    return {**sizes, **_tokens(default), **options, **nested}


def _differences(config: Any) -> dict[str, Any]:
    """What its owner's defaults make otherwise than those of its own class."""
    own = type(config)().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != own.get(name)}


def _tokens(config: Any) -> dict[str, Any]:
    """Special tokens that the smaller vocabulary has no place for, moved into it."""
    found: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= VOCABULARY:
            found[name] = value % VOCABULARY
        elif name.endswith("suppress_tokens") and isinstance(value, list):
            found[name] = [token % VOCABULARY for token in value]
    return found


def _names(options: Mapping[str, Any]) -> list[str]:
    """Sizes beside the common ones: a token's number is none."""
    return [
        f"{name} ({', '.join(_names(value))})" if isinstance(value, Mapping) else name
        for name, value in options.items()
        if name not in SIZES and not name.endswith("token_id")
    ]
