"""Training a causal language model equals eager, step by step."""

import copy

import pytest
import torch
import transformers

pytestmark = pytest.mark.usefixtures("daemon")


def losses(model: torch.nn.Module, call: torch.nn.Module, n_steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4000, (2, 128), generator=generator)
    values = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def test_five_adam_steps_of_llama_equal_eager() -> None:
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=2000,
        vocab_size=4000,
        max_position_embeddings=2048,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    twin = copy.deepcopy(model)
    expected = losses(model, model, 5)
    got = losses(twin, torch.compile(twin, backend="rust_ort", fullgraph=True), 5)
    print("eager:", expected, "rust_ort:", got)
    assert expected[-1] < expected[0]
    for step, (candidate, reference) in enumerate(zip(got, expected, strict=True)):
        assert abs(candidate - reference) <= 1e-5, f"step {step}: {candidate} {reference}"
