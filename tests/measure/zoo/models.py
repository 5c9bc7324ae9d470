"""Every model of the zoo."""

from __future__ import annotations

import importlib

from measure.zoo.model import Model

_ROOMS = (
    "from_diffusers", "from_timm", "from_torch_geometric", "from_torchaudio", "from_torchvision", "transformers_audio",
    "transformers_multimodal", "transformers_seq2seq", "transformers_series", "transformers_text",
    "transformers_vision",
)  # fmt: skip
"""Modules here, each with its models as MODELS."""

EVERY: list[Model] = sorted(
    (model for room in _ROOMS for model in importlib.import_module(f"measure.zoo.{room}").MODELS),
    key=lambda model: (model.package, model.name),
)
MODELS: dict[str, Model] = {model.name: model for model in EVERY}
"""By name, sorted by package."""
