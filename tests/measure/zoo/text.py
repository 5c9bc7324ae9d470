"""What language models are called with: two sequences, the second padded at its end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from measure.zoo.from_transformers import Inputs

BATCH, LENGTH, PADDING, PROMPT, TARGET = 2, 128, 16, 32, 32
FIRST_TOKEN, LAST_TOKEN = 300, 1000
"""Between these no configuration has a special token."""
IGNORED = -100
"""Label that a loss leaves out."""


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(FIRST_TOKEN, LAST_TOKEN, (BATCH, length))


def text(length: int = LENGTH) -> dict[str, Any]:
    """Tokens and their mask."""
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    mask[1, -PADDING:] = 0
    return {"input_ids": tokens(length), "attention_mask": mask}


def labelled(config: Any) -> Inputs:
    """A language model: each token is a label. `generate()` goes on from a prompt without padding."""
    evaluated = text()
    labels = evaluated["input_ids"].masked_fill(evaluated["attention_mask"] == 0, IGNORED)
    return Inputs(
        evaluated=evaluated,
        trained={**evaluated, "labels": labels},
        generated={"input_ids": evaluated["input_ids"][:, :PROMPT]},
    )


def unmasked(config: Any) -> Inputs:
    """A language model without attention, which takes no mask."""
    evaluated = {"input_ids": tokens()}
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": evaluated["input_ids"]})


def spans(config: Any) -> Inputs:
    """Answers to questions: where they start and end."""
    evaluated = text()
    answers = {"start_positions": torch.tensor([3, 20]), "end_positions": torch.tensor([9, 31])}
    return Inputs(evaluated=evaluated, trained={**evaluated, **answers})


def classes(config: Any) -> Inputs:
    """A class for each sequence."""
    evaluated = text()
    return Inputs(evaluated=evaluated, trained={**evaluated, "labels": torch.tensor([0, 1])})


def _boxed(inputs: Inputs) -> Inputs:
    """With a box on the page for each token: left, top, right, bottom, of 1000."""
    corner = torch.randint(0, 500, (BATCH, LENGTH, 2))
    boxes = torch.cat([corner, corner + torch.randint(1, 500, (BATCH, LENGTH, 2))], dim=-1)
    return Inputs(evaluated={**inputs.evaluated, "bbox": boxes}, trained={**inputs.trained, "bbox": boxes})


def boxed_labelled(config: Any) -> Inputs:
    return _boxed(labelled(config))


def boxed_classes(config: Any) -> Inputs:
    return _boxed(classes(config))


def translation(config: Any) -> Inputs:
    """A sequence into another: labels give the decoder's inputs in training."""
    source, target = text(), tokens(TARGET)
    return Inputs(
        evaluated={**source, "decoder_input_ids": target},
        trained={**source, "labels": target},
        generated=source,
    )
