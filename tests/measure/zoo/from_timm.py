"""Models of timm: the smallest variant of each family, at the image size that it is made for."""

from __future__ import annotations

from typing import Any

from measure.zoo.images import classifier
from measure.zoo.model import Model, Subject
from measure.zoo.sources import made_by


def _timm(name: str, **options: Any) -> Model:
    """options: sizes other than the variant's own."""
    source = f"timm.models.{name}"

    def build() -> Subject:
        module = made_by(source)(pretrained=False, **options)
        return classifier(module, *module.default_cfg["input_size"])

    return Model(name=name, package="timm", source=source, smaller=", ".join(options), build=build)


MODELS = [
    _timm("beit_base_patch16_224", depth=2),
    _timm("cait_xxs24_224"),
    _timm("coat_lite_tiny"),
    _timm("convnext_atto"),
    _timm("crossvit_9_240"),
    _timm("deit_tiny_patch16_224"),
    _timm("ghostnet_100"),
    _timm("hrnet_w18_small"),
    _timm("levit_128s"),
    _timm("mixer_s32_224"),
    _timm("mobilevit_xxs"),
    _timm("nf_regnet_b0"),
    _timm("pit_ti_224"),
    _timm("repvgg_a0"),
    _timm("res2net50_14w_8s"),
    _timm("resnest14d"),
    _timm("rexnet_100"),
    _timm("tnt_s_patch16_224", depth=2),
    _timm("twins_svt_small"),
    _timm("xcit_nano_12_p16_224"),
]
