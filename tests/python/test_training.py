"""Training a causal language model equals eager, step by step."""

import pytest

from measure import mixed_training

pytestmark = pytest.mark.usefixtures("daemon")


def test_five_adam_steps_of_llama_equal_eager() -> None:
    expected = mixed_training.train(0, 5, autocast=None).losses
    got = mixed_training.train(0, 5, autocast=None, wrap=mixed_training.compiled).losses
    print("eager:", expected, "rust_ort:", got)
    assert expected[-1] < expected[0]
    for step, (candidate, reference) in enumerate(zip(got, expected, strict=True)):
        assert abs(candidate - reference) <= 1e-5, f"step {step}: {candidate} {reference}"
