"""Training a causal language model equals eager, step by step."""

import pytest
import torch

from measure import mixed_training

pytestmark = pytest.mark.usefixtures("daemon")


@pytest.mark.parametrize("cache", [True, False], ids=["as it is", "no cache"])
def test_five_adam_steps_of_llama_equal_eager(cache: bool) -> None:
    expected = mixed_training.train(0, 5, autocast=None, hidden=128, cache=cache).losses
    got = mixed_training.train(0, 5, autocast=None, hidden=128, cache=cache, wrap=mixed_training.compiled).losses
    print("eager:", expected, "rust_ort:", got)
    assert expected[-1] < expected[0]
    for step, (candidate, reference) in enumerate(zip(got, expected, strict=True)):
        assert abs(candidate - reference) <= 1e-5, f"step {step}: {candidate} {reference}"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("also", [False, True], ids=["saved", "also returned"])
def test_a_transposed_input_of_a_layer_is_saved(also: bool, dynamic: bool) -> None:
    """ONNX Runtime fuses both transposes into the product, and would write none of what backward reads."""
    layer = torch.nn.Linear(4, 3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        transposed = (x * 2).t()
        return (layer(transposed), transposed.clone()) if also else (layer(transposed),)

    compiled = torch.compile(function, backend="rust_ort", dynamic=dynamic)
    for columns in (2, 5):
        x = torch.randn(4, columns)
        ours, eager = compiled(x), function(x)
        torch.testing.assert_close(ours, eager)
        wanted = [layer.weight, layer.bias]
        ours, eager = (torch.autograd.grad(made[0].square().sum(), wanted) for made in (ours, eager))
        torch.testing.assert_close(ours, eager)
