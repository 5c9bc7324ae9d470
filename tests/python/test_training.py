"""Training a causal language model equals eager, step by step."""

import pytest
import torch

from rust_ort.studies import mixed_training

pytestmark = pytest.mark.usefixtures("daemon")


def test_five_adam_steps_of_llama_equal_eager() -> None:
    expected = mixed_training.losses(0, 5, autocast=None)
    got = mixed_training.losses(
        0, 5, autocast=None, wrap=lambda model: torch.compile(model, backend="rust_ort", fullgraph=True)
    )
    print("eager:", expected, "rust_ort:", got)
    assert expected[-1] < expected[0]
    for step, (candidate, reference) in enumerate(zip(got, expected, strict=True)):
        assert abs(candidate - reference) <= 1e-5, f"step {step}: {candidate} {reference}"
