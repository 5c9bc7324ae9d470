"""Encoders with decoders, of transformers: text into text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from measure.zoo.from_transformers import transformer
from measure.zoo.text import translation

STARTED: Mapping[str, Any] = {"decoder_start_token_id": 0}
"""Without it these classes refuse labels."""

MODELS = [
    transformer("BartForConditionalGeneration", translation),
    transformer("BlenderbotForConditionalGeneration", translation),
    transformer("BlenderbotSmallForConditionalGeneration", translation),
    transformer("LEDForConditionalGeneration", translation, attention_window=32, max_encoder_position_embeddings=1024),
    transformer("M2M100ForConditionalGeneration", translation),
    transformer("MBartForConditionalGeneration", translation),
    transformer("MT5ForConditionalGeneration", translation),
    transformer("PLBartForConditionalGeneration", translation),
    transformer("PegasusForConditionalGeneration", translation),
    transformer(
        "SwitchTransformersForConditionalGeneration", translation, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1, **STARTED,
    ),
    transformer("T5ForConditionalGeneration", translation, **STARTED),
]  # fmt: skip
