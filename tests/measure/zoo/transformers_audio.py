"""Models of speech and sound, of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from measure.zoo.from_transformers import COMMON, Inputs, transformer
from measure.zoo.text import TARGET, tokens

BATCH, SAMPLES = 2, 16_000
"""One second."""
FEATURES: Mapping[str, Any] = {"vocab_size": 32, "conv_dim": [64] * 7}
"""A vocabulary of characters stays as it is."""


def transcribed(config: Any) -> Inputs:
    """Waves, and characters that they are aligned with."""
    evaluated = {"input_values": torch.randn(BATCH, SAMPLES)}
    labels = torch.randint(3, config.vocab_size, (BATCH, 12))
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": labels})


def classified(config: Any) -> Inputs:
    """Waves, a class for each."""
    evaluated = {"input_values": torch.randn(BATCH, SAMPLES)}
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": torch.tensor([0, 1])})


def spectrograms(config: Any) -> Inputs:
    """Log-mel spectrograms, a class for each."""
    evaluated = {"input_values": torch.randn(BATCH, config.max_length, config.num_mel_bins)}
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": torch.tensor([0, 1])})


def dictation(config: Any) -> Inputs:
    """Log-mel spectrograms, two frames for each position of the encoder, and text."""
    heard = {"input_features": torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions)}
    target = tokens(TARGET)
    return Inputs(
        evaluated={**heard, "decoder_input_ids": target}, trained={**heard, "labels": target}, generated=heard
    )


MODELS = [
    transformer("ASTForAudioClassification", spectrograms, smaller="width, layers, heads, length", max_length=256),
    transformer("HubertForSequenceClassification", classified, **FEATURES),
    transformer("Wav2Vec2ForCTC", transcribed, **FEATURES),
    transformer("WhisperForConditionalGeneration", dictation, smaller=f"{COMMON}, length", max_source_positions=200),
]
