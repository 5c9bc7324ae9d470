"""transformers' architectures as tiny random models with what they can do switched on: nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SEED = 20
BATCH, LENGTH, VOCABULARY, IMAGE = 2, 12, 96, 32
IGNORED = -100

Inputs = Callable[[torch.Generator], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the keyword arguments it is called with, labels among them where it has a loss."""

    module: nn.Module
    inputs: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One row of the table. config, model: names in transformers; options: of the configuration; inputs: from a
    generator; sub: {option: (configuration class, its options)} of composite configurations."""

    config: str
    model: str
    inputs: Inputs
    options: dict[str, Any] = field(default_factory=dict)
    sub: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def attentions(self) -> tuple[str, ...]:
        """What `attn_implementation` may be: always "eager"."""
        import transformers

        return ("eager", "sdpa") if getattr(transformers, self.model)._supports_sdpa else ("eager",)

    def build(self, attention: str = "eager") -> Case:
        """The same numbers at each call, in training mode; parameters that start at 0 or 1 are moved off it."""
        import transformers

        sub = {name: getattr(transformers, cls)(**options) for name, (cls, options) in self.sub.items()}
        config = getattr(transformers, self.config)(**self.options, **sub)
        config._attn_implementation = (
            {"": attention, "backbone_config": "eager"} if "backbone_config" in sub else attention
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module = getattr(transformers, self.model)(config).train()
            _perturb(module)
        return Case(module=module, inputs=self.inputs(torch.Generator().manual_seed(SEED)))


@torch.no_grad()
def _perturb(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


# --- Inputs ----------------------------------------------------------------------------------------------------------


def _tokens(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(4, VOCABULARY, shape or (BATCH, LENGTH), generator=generator)


def _mask() -> Tensor:
    """The second row is padded at its end."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    return mask


def _text(generator: torch.Generator) -> dict[str, Any]:
    return {"input_ids": _tokens(generator), "attention_mask": _mask()}


def _causal(generator: torch.Generator) -> dict[str, Any]:
    """Of a language model that predicts each next token. Without the cache that is a class' default, as all of this
    table: front_door.py has models with it."""
    text = _text(generator)
    return {**text, "labels": text["input_ids"].masked_fill(text["attention_mask"] == 0, IGNORED), "use_cache": False}


def _no_cache_argument(generator: torch.Generator) -> dict[str, Any]:
    inputs = _causal(generator)
    del inputs["use_cache"]
    return inputs


def _classified(generator: torch.Generator) -> dict[str, Any]:
    return {**_text(generator), "labels": torch.tensor([0, 1])}


def _pairs(generator: torch.Generator) -> dict[str, Any]:
    """Of BERT's pretraining: two segments, masked tokens, next sentence."""
    segments = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(BATCH, -1).contiguous()
    inputs = {**_no_cache_argument(generator), "token_type_ids": segments}
    return {**inputs, "next_sentence_label": torch.tensor([0, 1])}


def _segments(generator: torch.Generator) -> dict[str, Any]:
    inputs = _pairs(generator)
    del inputs["next_sentence_label"]
    return inputs


def _spans(generator: torch.Generator) -> dict[str, Any]:
    return {**_text(generator), "start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 5])}


def _token_classes(generator: torch.Generator) -> dict[str, Any]:
    return {**_text(generator), "labels": torch.randint(0, 2, (BATCH, LENGTH), generator=generator)}


def _translation(generator: torch.Generator) -> dict[str, Any]:
    return {**_text(generator), "labels": _tokens(generator, BATCH, 8), "use_cache": False}


def _pixels(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, 3, IMAGE, IMAGE, generator=generator)


def _image(generator: torch.Generator) -> dict[str, Any]:
    """One label for all: of two, gradients would cancel but for eager's own rounding."""
    return {"pixel_values": _pixels(generator), "labels": torch.tensor([1, 1])}


def _image_and_text(generator: torch.Generator) -> dict[str, Any]:
    ids = _tokens(generator)
    ids[:, -1] = 2  # the end token, whose place CLIP pools from
    return {"input_ids": ids, "attention_mask": _mask(), "pixel_values": _pixels(generator), "return_loss": True}


def _image_and_unmasked_text(generator: torch.Generator) -> dict[str, Any]:
    inputs = _image_and_text(generator)
    del inputs["attention_mask"]
    return inputs


def _objects(generator: torch.Generator) -> dict[str, Any]:
    """Without labels: DETR's loss assigns boxes outside torch."""
    mask = torch.ones(BATCH, IMAGE, IMAGE, dtype=torch.int64)
    mask[1, -8:] = 0
    return {"pixel_values": _pixels(generator), "pixel_mask": mask}


def _speech(generator: torch.Generator) -> dict[str, Any]:
    return {"input_features": torch.randn(BATCH, 8, 32, generator=generator), "labels": _tokens(generator, BATCH, 8),
            "use_cache": False}  # fmt: skip


def _waves(generator: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(BATCH, 400, dtype=torch.int64)
    mask[1, -80:] = 0
    return {"input_values": torch.randn(BATCH, 400, generator=generator), "attention_mask": mask}


def _transcribed(generator: torch.Generator) -> dict[str, Any]:
    return {**_waves(generator), "labels": torch.randint(1, 30, (BATCH, 4), generator=generator)}


def _masked_waves(generator: torch.Generator) -> dict[str, Any]:
    """Of wav2vec2's pretraining. Masked steps and negatives are given: the model would draw them with numpy."""
    steps = WAVE_STEPS
    masked = torch.zeros(BATCH, steps, dtype=torch.bool)
    masked[:, 2:7] = True
    negatives = torch.randint(0, BATCH * steps, (BATCH, steps, 3), generator=generator)
    return {**_waves(generator), "mask_time_indices": masked, "sampled_negative_indices": negatives}


# --- Options ---------------------------------------------------------------------------------------------------------

TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**TEXT, **SIZES, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
GROUPED = {**TEXT, **SIZES, "num_key_value_heads": 2, "head_dim": 8, "attention_dropout": 0.1}
SEQ2SEQ = {
    **TEXT, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.1,
    "attention_dropout": 0.1, "activation_dropout": 0.1, "scale_embedding": True, "max_position_embeddings": 32,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
PIXELS = {"image_size": IMAGE, "patch_size": 8, "num_channels": 3}
WAVE_STEPS = 98
WAVE = {
    **SIZES, "vocab_size": 32, "hidden_dropout": 0.1, "activation_dropout": 0.1, "attention_dropout": 0.1,
    "feat_proj_dropout": 0.1, "final_dropout": 0.1, "layerdrop": 0.0, "conv_dim": (16, 16), "conv_stride": (2, 2),
    "conv_kernel": (6, 4), "num_conv_pos_embeddings": 6, "num_conv_pos_embedding_groups": 2, "mask_feature_prob": 0.0,
    "mask_time_length": 2,
}  # fmt: skip


def _rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **options}, "max_position_embeddings": 64}


LLAMA3 = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8
)  # fmt: skip
YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=8)
LONG = _rope(
    "longrope", factor=4.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4, original_max_position_embeddings=8
)  # fmt: skip

CLIP_PARTS = {**SIZES, "attention_dropout": 0.1}


def _llama(**options: Any) -> Architecture:
    return _decoder("Llama", **GROUPED, attention_bias=True, mlp_bias=True, **options)


def _mixtral(**options: Any) -> Architecture:
    return _decoder(
        "Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, sliding_window=4,
        router_jitter_noise=0.1, **options,
    )  # fmt: skip


def _decoder(name: str, **options: Any) -> Architecture:
    return Architecture(config=f"{name}Config", model=f"{name}ForCausalLM", inputs=_causal, options=options)


def _encoder(name: str, head: str, inputs: Inputs, options: Mapping[str, Any] = ENCODER, **more: Any) -> Architecture:
    return Architecture(config=f"{name}Config", model=f"{name}For{head}", inputs=inputs, options={**options, **more})


def _t5(**options: Any) -> Architecture:
    return Architecture(
        config="T5Config", model="T5ForConditionalGeneration", inputs=_translation,
        options=dict(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.1,
            relative_attention_num_buckets=8, relative_attention_max_distance=16, decoder_start_token_id=0, **options,
        ),
    )  # fmt: skip


TABLE: dict[str, Architecture] = {
    "llama": _llama(**LLAMA3, tie_word_embeddings=True),
    "llama_linear": _llama(**_rope("linear", factor=2.0)),
    "llama_dynamic": _llama(**{**_rope("dynamic", factor=2.0), "max_position_embeddings": 8}),
    "llama_yarn": _llama(**YARN),
    "llama_longrope": _llama(**LONG),
    "mistral": _decoder("Mistral", **GROUPED, sliding_window=4),
    "mixtral": _mixtral(),
    "mixtral_eager_experts": _mixtral(experts_implementation="eager"),
    "mixtral_batched_experts": _mixtral(experts_implementation="batched_mm"),
    "qwen2": _decoder("Qwen2", **{**GROUPED, **SLIDING}, use_sliding_window=True),
    "qwen3": _decoder("Qwen3", **{**GROUPED, **SLIDING}, use_sliding_window=True, attention_bias=True),
    "gemma2": _decoder("Gemma2", **{**GROUPED, **SLIDING}, attention_bias=True, query_pre_attn_scalar=8),
    "gemma3": Architecture(
        config="Gemma3TextConfig", model="Gemma3ForCausalLM", inputs=_causal,
        options={**GROUPED, **SLIDING, "attention_bias": True, "query_pre_attn_scalar": 8,
                 "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    "phi3": _decoder(
        "Phi3", **{key: value for key, value in GROUPED.items() if key != "head_dim"}, sliding_window=4,
        resid_pdrop=0.1, embd_pdrop=0.1, original_max_position_embeddings=8, **LONG,
    ),
    "gpt2": Architecture(
        config="GPT2Config", model="GPT2LMHeadModel", inputs=_causal,
        options={**TEXT, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4,
                 "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt_neox": _decoder(
        "GPTNeoX", **TEXT, **SIZES, attention_dropout=0.1, hidden_dropout=0.1, max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ),
    "opt": _decoder(
        "OPT", **TEXT, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16,
        max_position_embeddings=32, attention_dropout=0.1, do_layer_norm_before=False,
    ),
    "bloom": _decoder("Bloom", **TEXT, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.1, attention_dropout=0.1,
                      apply_residual_connection_post_layernorm=True),
    "falcon": _decoder(
        "Falcon", **TEXT, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, bias=True, hidden_dropout=0.1, attention_dropout=0.1,
    ),
    "falcon_alibi": _decoder(
        "Falcon", **TEXT, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=True,
        parallel_attn=False, hidden_dropout=0.1, attention_dropout=0.1,
    ),
    "mpt": _decoder(
        "Mpt", **TEXT, d_model=32, n_heads=4, n_layers=2, max_seq_len=32, resid_pdrop=0.1, emb_pdrop=0.1,
        attn_config={"clip_qkv": 2.0, "softmax_scale": 0.3},
    ),
    "mamba": _decoder("Mamba", **TEXT, hidden_size=32, state_size=8, num_hidden_layers=2, use_bias=True,
                      rescale_prenorm_residual=True),
    "bert": _encoder("Bert", "PreTraining", _pairs),
    "roberta": _encoder("Roberta", "MaskedLM", _no_cache_argument, {**ENCODER, "pad_token_id": 1}),
    "distilbert": _encoder(
        "DistilBert", "QuestionAnswering", _spans, TEXT, dim=32, hidden_dim=48, n_layers=2, n_heads=4,
        max_position_embeddings=32, sinusoidal_pos_embds=True, attention_dropout=0.1,
    ),
    "albert": _encoder("Albert", "SequenceClassification", _classified, embedding_size=16, num_hidden_groups=2,
                       inner_group_num=2),
    "electra": _encoder("Electra", "TokenClassification", _token_classes, embedding_size=16),
    "deberta-v2": _encoder(
        "DebertaV2", "MaskedLM", _segments, relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=2,
        position_buckets=4, share_att_key=False, norm_rel_ebd="layer_norm", conv_kernel_size=3, conv_act="gelu",
        pooler_dropout=0.1, position_biased_input=True,
    ),
    "modernbert": _encoder(
        "ModernBert", "MaskedLM", _no_cache_argument, {**TEXT, **SIZES}, cls_token_id=1, sep_token_id=2,
        norm_bias=True, attention_bias=True, attention_dropout=0.1, local_attention=4, embedding_dropout=0.1,
        mlp_bias=True, mlp_dropout=0.1, layer_types=["full_attention", "sliding_attention"],
    ),
    "t5": _t5(),
    "t5_gated": _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": Architecture(config="BartConfig", model="BartForConditionalGeneration", inputs=_translation,
                         options=SEQ2SEQ),
    "bart_layerdrop": Architecture(
        config="BartConfig", model="BartForConditionalGeneration", inputs=_translation,
        options={**SEQ2SEQ, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
    ),
    "pegasus": Architecture(config="PegasusConfig", model="PegasusForConditionalGeneration", inputs=_translation,
                            options=SEQ2SEQ),
    "whisper": Architecture(
        config="WhisperConfig", model="WhisperForConditionalGeneration", inputs=_speech,
        options={**{key: value for key, value in SEQ2SEQ.items() if key != "max_position_embeddings"},
                 "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32,
                 "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "wav2vec2": Architecture(
        config="Wav2Vec2Config", model="Wav2Vec2ForPreTraining", inputs=_masked_waves,
        options={**WAVE, "num_codevectors_per_group": 8, "codevector_dim": 16, "proj_codevector_dim": 16,
                 "num_negatives": 3, "feat_quantizer_dropout": 0.1},
    ),
    "wav2vec2_ctc": Architecture(
        config="Wav2Vec2Config", model="Wav2Vec2ForCTC", inputs=_transcribed,
        options={**WAVE, "apply_spec_augment": False, "do_stable_layer_norm": True, "feat_extract_norm": "layer",
                 "conv_bias": True, "add_adapter": True, "num_adapter_layers": 1, "ctc_zero_infinity": True},
    ),
    "vit": _encoder("ViT", "ImageClassification", _image,
                    {**SIZES, **PIXELS, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}),
    "swin": _encoder(
        "Swin", "ImageClassification", _image, {}, image_size=IMAGE, patch_size=2, embed_dim=16, depths=(2, 2),
        num_heads=(2, 4), window_size=4, drop_path_rate=0.2, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1, use_absolute_embeddings=True,
    ),
    "convnext": _encoder("ConvNext", "ImageClassification", _image, {}, hidden_sizes=(16, 32), depths=(2, 2),
                         num_stages=2, patch_size=4, image_size=IMAGE, drop_path_rate=0.2, layer_scale_init_value=0.1),
    "resnet": _encoder("ResNet", "ImageClassification", _image, {}, embedding_size=16, hidden_sizes=(16, 32),
                       depths=(2, 2), layer_type="bottleneck", downsample_in_first_stage=True,
                       downsample_in_bottleneck=True),
    "resnet_basic": _encoder("ResNet", "ImageClassification", _image, {}, embedding_size=16, hidden_sizes=(16, 32),
                             depths=(1, 1), layer_type="basic"),
    "clip": Architecture(
        config="CLIPConfig", model="CLIPModel", inputs=_image_and_text, options={"projection_dim": 16},
        sub={"text_config": ("CLIPTextConfig", {**CLIP_PARTS, **TEXT, "max_position_embeddings": 32}),
             "vision_config": ("CLIPVisionConfig", {**CLIP_PARTS, **PIXELS})},
    ),
    "siglip": Architecture(
        config="SiglipConfig", model="SiglipModel", inputs=_image_and_unmasked_text,
        sub={"text_config": ("SiglipTextConfig", {**CLIP_PARTS, **TEXT, "max_position_embeddings": 32}),
             "vision_config": ("SiglipVisionConfig", {**CLIP_PARTS, **PIXELS})},
    ),
    "detr": Architecture(
        config="DetrConfig", model="DetrForObjectDetection", inputs=_objects,
        options={"use_timm_backbone": False, "use_pretrained_backbone": False, "d_model": 32, "num_queries": 5,
                 "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                 "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "attention_dropout": 0.1, "activation_dropout": 0.1,
                 "auxiliary_loss": True},
        sub={"backbone_config": ("ResNetConfig", {"embedding_size": 16, "hidden_sizes": (16, 32), "depths": (1, 1),
                                                  "out_features": ["stage2"]})},
    ),
}  # fmt: skip
"""Every architecture of the census. A name with an underscore behind another's is a variant of that."""

ARCHITECTURES: dict[str, Callable[..., Case]] = {
    name: functools.partial(Architecture.build, architecture) for name, architecture in TABLE.items()
}
"""{name: a function of the attention implementation that builds the case}."""
