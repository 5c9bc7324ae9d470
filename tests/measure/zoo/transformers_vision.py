"""Models of images, of transformers. Losses of detection and of segments match objects with scipy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from measure.zoo.from_transformers import Inputs, transformer

BATCH, SIDE = 2, 224

NARROW = "width, layers and heads"
SWIN: Mapping[str, Any] = {"embed_dim": 32, "depths": [2, 2, 2, 2], "num_heads": [2, 4, 8, 16]}


def pixels(side: int = SIDE) -> Tensor:
    return torch.randn(BATCH, 3, side, side)


def classes(config: Any) -> Inputs:
    """A class for each image."""
    evaluated = {"pixel_values": pixels()}
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": torch.tensor([0, 1])})


def maps(config: Any) -> Inputs:
    """A class for each pixel."""
    evaluated = {"pixel_values": pixels()}
    labels = torch.randint(0, config.num_labels, (BATCH, SIDE, SIDE))
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": labels})


def objects(config: Any) -> Inputs:
    """Boxes with a class each: centre, width and height, in parts of the image. Images have different heights."""
    mask = torch.ones(BATCH, SIDE, SIDE, dtype=torch.int64)
    mask[1, -32:] = 0
    evaluated = {"pixel_values": pixels(), "pixel_mask": mask}
    labels = [
        {"class_labels": torch.arange(count) % config.num_labels, "boxes": torch.rand(count, 4) * 0.4 + 0.2}
        for count in (3, 1)
    ]
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": labels})


def segments(config: Any) -> Inputs:
    """Masks with a class each."""
    side, counts = 128, (3, 1)
    evaluated = {"pixel_values": pixels(side)}
    labels = {
        "class_labels": [torch.arange(count) % config.num_labels for count in counts],
        "mask_labels": [torch.randint(0, 2, (count, side, side)).float() for count in counts],
    }
    return Inputs(evaluated=evaluated, trained={**evaluated, **labels})


MODELS = [
    transformer(
        "ConvNextV2ForImageClassification", classes, smaller=NARROW, hidden_sizes=[32, 64, 128, 256],
        depths=[1, 1, 3, 1],
    ),
    transformer(
        "DetrForObjectDetection", objects, smaller="layers and heads; its backbone, ResNet-18 for ResNet-50",
        backbone_config={"backbone": "resnet18"},
    ),
    transformer("Dinov2ForImageClassification", classes, smaller=NARROW),
    transformer(
        "Mask2FormerForUniversalSegmentation", segments, smaller=f"{NARROW}; points of the loss", backbone_config=SWIN,
        feature_size=64, mask_feature_size=64, hidden_dim=64, encoder_feedforward_dim=128, dim_feedforward=128,
        decoder_layers=3, num_queries=20, train_num_points=1024,
    ),
    transformer("SegformerForSemanticSegmentation", maps, smaller="image"),
    transformer("SwinForImageClassification", classes, smaller=NARROW, **SWIN),
    transformer("ViTForImageClassification", classes, smaller=NARROW),
]  # fmt: skip
