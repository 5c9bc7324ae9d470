"""Models of diffusers: denoisers and autoencoders of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from measure.zoo.model import Call, Model, Subject
from measure.zoo.sources import made_by

BATCH, WORDS, WIDTH = 2, 16, 64
CHANNELS = (32, 64, 64, 128)
"""Of blocks of a U-Net."""

Inputs = Callable[[Any], dict[str, Any]]


def _diffusers(name: str, inputs: Inputs, *, smaller: str, **options: Any) -> Model:
    """inputs: made from the configuration, the same in both modes. options: of the class."""
    source = f"diffusers.{name}"

    def build() -> Subject:
        module = made_by(source)(**options)
        call = Call(kwargs=inputs(module.config))
        return Subject(module=module, evaluated=call, trained=call)

    return Model(name=name, package="diffusers", source=source, smaller=smaller, build=build)


def _images(config: Any) -> dict[str, Any]:
    return {"sample": torch.randn(BATCH, config.in_channels, config.sample_size, config.sample_size)}


def _steps() -> torch.Tensor:
    return torch.randint(0, 1000, (BATCH,))


def _noisy(config: Any) -> dict[str, Any]:
    return {**_images(config), "timestep": _steps()}


def _told(config: Any) -> dict[str, Any]:
    """With encoded words."""
    return {**_noisy(config), "encoder_hidden_states": torch.randn(BATCH, WORDS, config.cross_attention_dim)}


def _of_classes(config: Any) -> dict[str, Any]:
    return {"hidden_states": _images(config)["sample"], "timestep": _steps(), "class_labels": _steps()}


def _joint(config: Any) -> dict[str, Any]:
    """Words and image in one attention."""
    return {
        "hidden_states": _images(config)["sample"],
        "encoder_hidden_states": torch.randn(BATCH, WORDS, config.joint_attention_dim),
        "pooled_projections": torch.randn(BATCH, config.pooled_projection_dim),
        "timestep": _steps(),
    }


def _packed(config: Any) -> dict[str, Any]:
    """The image as a sequence of patches, with each patch's row and column."""
    side = 8
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3).float()
    return {
        "hidden_states": torch.randn(BATCH, side * side, config.in_channels),
        "encoder_hidden_states": torch.randn(BATCH, WORDS, config.joint_attention_dim),
        "pooled_projections": torch.randn(BATCH, config.pooled_projection_dim),
        "timestep": torch.rand(BATCH),
        "img_ids": places,
        "txt_ids": torch.zeros(WORDS, 3),
    }


MODELS = [
    _diffusers("AutoencoderKL", _images, smaller=""),
    _diffusers(
        "DiTTransformer2DModel", _of_classes, smaller="layers, heads and their width", num_layers=2,
        num_attention_heads=4, attention_head_dim=64,
    ),
    _diffusers(
        "FluxTransformer2DModel", _packed, smaller="layers, heads and widths of text", num_layers=1,
        num_single_layers=2, num_attention_heads=4, joint_attention_dim=4 * WIDTH, pooled_projection_dim=2 * WIDTH,
    ),
    _diffusers(
        "SD3Transformer2DModel", _joint, smaller="layers, heads, image and widths of text", num_layers=2,
        num_attention_heads=4, sample_size=32, joint_attention_dim=4 * WIDTH, caption_projection_dim=4 * WIDTH,
        pooled_projection_dim=2 * WIDTH,
    ),
    _diffusers(
        "UNet2DConditionModel", _told, smaller="channels, width of text", sample_size=32,
        block_out_channels=CHANNELS, cross_attention_dim=WIDTH,
    ),
    _diffusers("UNet2DModel", _noisy, smaller="channels", sample_size=32, block_out_channels=CHANNELS),
    _diffusers("VQModel", _images, smaller=""),
]  # fmt: skip
