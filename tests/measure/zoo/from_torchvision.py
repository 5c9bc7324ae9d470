"""Models of torchvision: classification, detection, segmentation, video and optical flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from measure.zoo.images import BATCH, SIDE, classifier, entropy
from measure.zoo.model import Call, Model, Subject, sgd
from measure.zoo.sources import made_by

OBJECTS = 2
"""In each image that a detector is trained on."""


def _torchvision(path: str, inputs: Callable[[Any], Subject], *, smaller: str = "", **options: Any) -> Model:
    """path: below torchvision.models. inputs: what a module of it is called with. options: of its factory."""
    source = f"torchvision.models.{path}"
    name = path.rpartition(".")[2]
    return Model(
        name=name, package="torchvision", source=source, smaller=smaller,
        build=lambda: inputs(made_by(source)(**options)),
    )  # fmt: skip


def _image(module: Any) -> Subject:
    return classifier(module, 3, SIDE, SIDE)


def _detection(side: int) -> Callable[[Any], Subject]:
    """Images as a list. In training each has boxes (left, top, right, bottom, in pixels), their classes and masks."""

    def subject(module: Any) -> Subject:
        images = [torch.rand(3, side, side) for _ in range(BATCH)]
        corner = torch.rand(BATCH, OBJECTS, 2) * side / 2
        boxes = torch.cat([corner, corner + side / 4 + torch.rand(BATCH, OBJECTS, 2) * side / 4], dim=-1)
        targets = [{"boxes": one, "labels": torch.arange(1, OBJECTS + 1), "masks": _inside(one, side)} for one in boxes]
        return Subject(
            module=module,
            evaluated=Call(args=(images,)),
            trained=Call(args=(images, targets)),
            loss=_total,
            optimizer=sgd,
        )

    return subject


def _inside(boxes: Tensor, side: int) -> Tensor:
    """Masks that are 1 inside each box."""
    places = torch.arange(side)
    columns = (places >= boxes[:, :1]) & (places < boxes[:, 2:3])
    rows = (places >= boxes[:, 1:2]) & (places < boxes[:, 3:])
    return (rows[:, :, None] & columns[:, None, :]).to(torch.uint8)


def _total(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([*losses.values()]).sum()


def _segmentation(side: int) -> Callable[[Any], Subject]:
    """Images with a class for each pixel."""

    def subject(module: Any) -> Subject:
        call = Call(args=(torch.randn(BATCH, 3, side, side),))
        labels = torch.randint(0, 21, (BATCH, side, side))
        return Subject(
            module=module, evaluated=call, trained=call, optimizer=sgd,
            loss=lambda output: cross_entropy(output["out"], labels),
        )  # fmt: skip

    return subject


def _video(batch: int, frames: int, side: int) -> Callable[[Any], Subject]:
    def subject(module: Any) -> Subject:
        call = Call(args=(torch.randn(batch, 3, frames, side, side),))
        labels = torch.randint(0, 400, (batch,))
        return Subject(module=module, evaluated=call, trained=call, loss=entropy(labels), optimizer=sgd)

    return subject


def _flow(module: Any) -> Subject:
    call = Call(args=(torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)))
    return Subject(module=module, evaluated=call, trained=call, optimizer=sgd)


VIT: Mapping[str, Any] = {
    "image_size": SIDE, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 256, "mlp_dim": 512,
}  # fmt: skip
SWIN3D: Mapping[str, Any] = {
    "patch_size": [2, 4, 4], "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": [8, 7, 7],
}  # fmt: skip
SMALL: Mapping[str, Any] = {"weights_backbone": None, "min_size": 128, "max_size": 192}
"""Of detectors that scale their images."""
FEW: Mapping[str, Any] = {
    "rpn_post_nms_top_n_train": 200, "rpn_post_nms_top_n_test": 100, "box_batch_size_per_image": 64,
    "box_detections_per_img": 10,
}  # fmt: skip
"""Of detectors in two stages: proposals and detections."""

CLASSIFICATION = [
    _torchvision("alexnet", _image),
    _torchvision("densenet121", _image),
    _torchvision("efficientnet_b0", _image),
    _torchvision("googlenet", _image),
    _torchvision("mnasnet0_5", _image),
    _torchvision("mobilenet_v2", _image),
    _torchvision("mobilenet_v3_small", _image),
    _torchvision("resnet18", _image),
    _torchvision("shufflenet_v2_x0_5", _image),
    _torchvision("squeezenet1_1", _image),
    _torchvision("swin_t", _image),
    _torchvision("VisionTransformer", _image, smaller="width, layers and heads", **VIT),
]
DETECTION = [
    _torchvision(
        "detection.fasterrcnn_mobilenet_v3_large_320_fpn", _detection(320), smaller="proposals and detections",
        weights_backbone=None, **FEW,
    ),
    _torchvision(
        "detection.maskrcnn_resnet50_fpn", _detection(128), smaller="image, proposals and detections", **SMALL, **FEW
    ),
    _torchvision("detection.retinanet_resnet50_fpn", _detection(128), smaller="image", **SMALL),
    _torchvision("detection.ssdlite320_mobilenet_v3_large", _detection(320), weights_backbone=None),
]  # fmt: skip
SEGMENTATION = [
    _torchvision("segmentation.deeplabv3_mobilenet_v3_large", _segmentation(SIDE), weights_backbone=None),
    _torchvision("segmentation.fcn_resnet50", _segmentation(96), smaller="image", weights_backbone=None),
    _torchvision("segmentation.lraspp_mobilenet_v3_large", _segmentation(SIDE), weights_backbone=None),
]
VIDEO = [
    _torchvision("video.r3d_18", _video(BATCH, 8, 64), smaller="frames and their size"),
    _torchvision("video.SwinTransformer3d", _video(1, 8, 112), smaller="width, layers, heads and frames", **SWIN3D),
]
MODELS = [
    *CLASSIFICATION,
    *DETECTION,
    *SEGMENTATION,
    *VIDEO,
    _torchvision("optical_flow.raft_small", _flow, smaller="image"),
]
