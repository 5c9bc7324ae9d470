"""Encoders and decoders of text, of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from measure.zoo.from_transformers import transformer
from measure.zoo.text import boxed_classes, boxed_labelled, classes, labelled, spans, unmasked

PADDED: Mapping[str, Any] = {"pad_token_id": 0}
"""Without it these classes refuse a batch of more than one sequence."""
ONE_PAIR: Mapping[str, Any] = {"attention_types": [[["global", "local"], 1]]}
"""GPT-Neo's kinds of attention, one for each of two layers."""

ENCODERS = [
    transformer("AlbertForMaskedLM", labelled),
    transformer("AlbertForQuestionAnswering", spans),
    transformer("BertForMaskedLM", labelled),
    transformer("BertForQuestionAnswering", spans),
    transformer("BigBirdForMaskedLM", labelled, block_size=8),  # above 11 blocks attention is sparse
    transformer("CamembertForMaskedLM", labelled),
    transformer("ConvBertForMaskedLM", labelled),
    transformer("DebertaForMaskedLM", labelled),
    transformer("DebertaForQuestionAnswering", spans),
    transformer("DebertaV2ForMaskedLM", labelled),
    transformer("DebertaV2ForQuestionAnswering", spans),
    transformer("DistilBertForMaskedLM", labelled),
    transformer("DistilBertForQuestionAnswering", spans),
    transformer("ElectraForQuestionAnswering", spans),
    transformer("FNetForMaskedLM", unmasked),
    transformer("LayoutLMForMaskedLM", boxed_labelled),
    transformer("LayoutLMForSequenceClassification", boxed_classes),
    transformer("LongformerForMaskedLM", labelled, attention_window=32),
    transformer("MegatronBertForQuestionAnswering", spans),
    transformer("MobileBertForMaskedLM", labelled),
    transformer("MobileBertForQuestionAnswering", spans),
    transformer("ModernBertForMaskedLM", labelled),
    transformer("NystromformerForMaskedLM", labelled),
    transformer("RoFormerForMaskedLM", labelled),
    transformer("RobertaForQuestionAnswering", spans),
]

DECODERS = [
    transformer("BartForCausalLM", labelled),
    transformer("BlenderbotForCausalLM", labelled),
    transformer("BlenderbotSmallForCausalLM", labelled),
    transformer("BloomForCausalLM", labelled),
    transformer("CohereForCausalLM", labelled),
    transformer(
        "DeepseekV3ForCausalLM", labelled, moe_intermediate_size=128, n_routed_experts=16, kv_lora_rank=64,
        q_lora_rank=96, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, first_k_dense_replace=1,
    ),
    transformer("ElectraForCausalLM", labelled),
    transformer("FalconForCausalLM", labelled),
    transformer("GPT2ForSequenceClassification", classes, **PADDED),
    transformer("GPT2LMHeadModel", labelled),
    transformer("GPTJForCausalLM", labelled),
    transformer("GPTNeoForCausalLM", labelled, **ONE_PAIR),
    transformer("GPTNeoForSequenceClassification", classes, **ONE_PAIR, **PADDED),
    transformer("GPTNeoXForCausalLM", labelled),
    transformer("Gemma2ForCausalLM", labelled),
    transformer("Gemma3ForCausalLM", labelled, num_hidden_layers=6),  # each sixth layer attends to everything
    transformer("GraniteForCausalLM", labelled),
    transformer("LlamaForCausalLM", labelled),
    transformer("MBartForCausalLM", labelled),
    transformer("MambaForCausalLM", labelled),
    transformer("MegatronBertForCausalLM", labelled),
    transformer("MistralForCausalLM", labelled),
    transformer("MixtralForCausalLM", labelled),
    transformer("MptForCausalLM", labelled),
    transformer("OPTForCausalLM", labelled),
    transformer("Olmo2ForCausalLM", labelled),
    transformer("OlmoeForCausalLM", labelled, num_experts=16),
    transformer("PLBartForCausalLM", labelled),
    transformer("PegasusForCausalLM", labelled),
    transformer("Phi3ForCausalLM", labelled),
    transformer("Qwen2ForCausalLM", labelled),
    transformer("Qwen3ForCausalLM", labelled),
    transformer("RecurrentGemmaForCausalLM", labelled, num_hidden_layers=3, lru_width=256),  # the third attends
    transformer("RobertaForCausalLM", labelled),
    transformer("TrOCRForCausalLM", labelled),
    transformer("XGLMForCausalLM", labelled),
    transformer("XLNetLMHeadModel", labelled),
]  # fmt: skip

MODELS = [*ENCODERS, *DECODERS]
