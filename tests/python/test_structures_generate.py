"""transformers' generate through compiled models, token for token as with aot_eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from structures import Compile, check

import rust_ort

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("served")

CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()


def prompt() -> dict[str, torch.Tensor]:
    ids = torch.randint(2, 64, (2, 5))
    mask = torch.ones_like(ids)
    ids[0, :2] = mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 8, "temperature": 0.7},
    "beams": {"do_sample": False, "num_beams": 2},
}


@pytest.mark.parametrize(
    ("cache", "strategies"), [("dynamic", ("greedy", "sampled")), ("static", ("greedy",)), ("static", ("beams",))]
)
def test_generate_gives_the_same_tokens(cache: str, strategies: tuple[str, ...]) -> None:
    """One compiled model for strategies that differ in what is done with its logits alone."""

    def program(compiled: Compile) -> Any:
        model = llama()
        model.forward = compiled(model.forward)
        found = {}
        for strategy in strategies:
            options = {**STRATEGIES[strategy], "max_new_tokens": 6, "disable_compile": True}
            if cache == "static":
                options["cache_implementation"] = "static"
            made = model.generate(**prompt(), **options, output_logits=True, return_dict_in_generate=True)
            found[strategy] = made.sequences, list(made.logits)
        return found

    check(program, tol=1e-4)


def test_a_cache_that_the_program_holds() -> None:
    """Prefill, then token by token with a StaticCache, whose buffers every call writes to."""

    def program(compiled: Compile) -> Any:
        model = llama()
        call = compiled(model)
        given = prompt()["input_ids"]
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        found = []
        with torch.no_grad():
            ids, position = given, torch.arange(5)
            for _ in range(4):
                logits = call(ids, past_key_values=cache, cache_position=position, use_cache=True).logits
                ids, position = logits[:, -1:].argmax(-1), position[-1:] + 1
                found += [logits, ids]
        return found, [(layer.keys, layer.values) for layer in cache.layers]

    check(program, tol=1e-4)


def test_generate_compiles_by_its_own_configuration(caplog: pytest.LogCaptureFixture) -> None:
    """transformers' CompileConfig has a mode of inductor's by default, which nobody chose."""
    rust_ort.backend._tell_mode.cache_clear()

    def tokens(**options: Any) -> Any:
        torch.manual_seed(0)
        return llama().generate(
            **prompt(), do_sample=False, max_new_tokens=6, cache_implementation="static", **options
        )  # fmt: skip

    expected = tokens(disable_compile=True)
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    config = transformers.CompileConfig(backend="rust_ort")
    config._compile_all_devices = True  # on a CPU, too
    with caplog.at_level("WARNING", logger="rust_ort"):
        assert torch.equal(tokens(compile_config=config), expected)
    assert [graph for graph in rust_ort.graphs()[known:] if graph.parts and graph.calls]
    assert "mode='reduce-overhead' is inductor's" in caplog.text
