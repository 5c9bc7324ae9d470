"""Models of time series, of transformers."""

from __future__ import annotations

from typing import Any

import torch

from measure.zoo.from_transformers import Inputs, transformer

BATCH = 4


def seasons(config: Any) -> Inputs:
    """Past values, as far back as the greatest lag needs, future values, and the time of each."""
    past = config.context_length + max(config.lags_sequence)
    known = {
        "past_values": torch.rand(BATCH, past) + 1,
        "past_time_features": torch.randn(BATCH, past, config.num_time_features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_time_features": torch.randn(BATCH, config.prediction_length, config.num_time_features),
        "future_values": torch.rand(BATCH, config.prediction_length) + 1,
    }
    return Inputs(evaluated=known, trained=known)


def patches(config: Any) -> Inputs:
    """Past values, in training with what followed."""
    channels = config.num_input_channels
    evaluated = {"past_values": torch.randn(BATCH, config.context_length, channels)}
    future = torch.randn(BATCH, config.prediction_length, channels)
    return Inputs(evaluated=evaluated, trained={**evaluated, "future_values": future})


MODELS = [
    transformer("InformerForPrediction", seasons, smaller="", prediction_length=24, num_time_features=2),
    transformer("PatchTSTForPrediction", patches, smaller=""),
]
