"""Models of images with text, of transformers."""

from __future__ import annotations

from typing import Any

import torch

from measure.zoo.from_transformers import Inputs, transformer
from measure.zoo.text import PROMPT, TARGET, labelled, text, tokens
from measure.zoo.transformers_vision import BATCH, pixels

CAPTION = 64


def pairs(config: Any) -> Inputs:
    """Images and captions that belong together."""
    captions = text(CAPTION)
    captions["input_ids"][:, -1] = config.text_config.eos_token_id
    captions["attention_mask"][:] = 1
    evaluated = {**captions, "pixel_values": pixels()}
    return Inputs(evaluated=evaluated, trained={**evaluated, "return_loss": True})


def unmasked_pairs(config: Any) -> Inputs:
    """The same, of a model that is trained with padding left in."""
    evaluated = {"input_ids": tokens(CAPTION), "pixel_values": pixels()}
    return Inputs(evaluated=evaluated, trained={**evaluated, "return_loss": True})


def captions(config: Any) -> Inputs:
    """Images, and the text that says what they show."""
    of_text, seen = labelled(config), {"pixel_values": pixels(config.vision_config.image_size)}
    return Inputs(
        evaluated={**of_text.evaluated, **seen},
        trained={**of_text.trained, **seen},
        generated={**of_text.generated, **seen},
    )


def conversation(config: Any) -> Inputs:
    """An image's places, then text about it."""
    ids = torch.cat([torch.full((BATCH, config.image_seq_length), config.image_token_index), tokens(TARGET)], dim=1)
    seen = {"input_ids": ids, "pixel_values": pixels(config.vision_config.image_size)}
    prompt = {**seen, "input_ids": ids[:, : config.image_seq_length + PROMPT]}
    return Inputs(evaluated=seen, trained={**seen, "labels": ids}, generated=prompt)


def questions(config: Any) -> Inputs:
    """Images and questions, a score for each answer."""
    evaluated = {**text(TARGET), "pixel_values": pixels(config.image_size)}
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": torch.rand(BATCH, config.num_labels)})


MODELS = [
    transformer("BlipForConditionalGeneration", captions, vision_config={"image_size": 224}),
    transformer("CLIPModel", pairs),
    transformer("LlavaForConditionalGeneration", conversation, image_seq_length=64, vision_config={"image_size": 112}),
    transformer("SiglipModel", unmasked_pairs),
    transformer("ViltForQuestionAnswering", questions, image_size=224),
]
