"""A small LLM as ONNX, its submodules as local functions, inlined, optimized, and the first against the last, value by
value: experimental-experiment's plot_exporter_recipes_c_modules, made again with rust_ort.to_onnx and rust_ort.align.

Exit code: 0 every model gives what eager gives, 1 one does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx.inliner import inline_local_functions
from torch import Tensor, nn

import rust_ort
from rust_ort.link.daemon import find_binary
from rust_ort.studies.main_job import aligned

SEED, TOKENS = 0, 30
VOCABULARY, WIDTH, HEADS, CONTEXT, INNER = 1024, 16, 2, 256, 128
"""The recipe's sizes."""


class Embedding(nn.Module):
    """Of words, and of the same numbers once more, as the recipe has positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.pe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.embedding(x) + self.pe(x)
        return made


class AttentionBlock(nn.Module):
    """One causal head."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)))

    def forward(self, x: Tensor) -> Tensor:
        n_tokens, width = x.shape[1:]
        products = self.query(x) @ self.key(x).transpose(-2, -1) * width**-0.5
        weights = products.masked_fill(self.mask[:n_tokens, :n_tokens] == 0, float("-inf")).softmax(-1)
        made: Tensor = weights @ self.value(x)
        return made


class MultiAttentionBlock(nn.Module):
    """Heads side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList([AttentionBlock() for _ in range(HEADS)])
        self.linear = nn.Linear(WIDTH * HEADS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(torch.cat([attention(x) for attention in self.attention], -1))
        return made


class FeedForward(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_1, self.relu, self.linear_2 = nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear_2(self.relu(self.linear_1(x)))
        return made


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = MultiAttentionBlock(), FeedForward()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm_1(x)) + x
        made: Tensor = self.feed_forward(self.norm_2(attended)) + attended
        return made


class LLM(nn.Module):
    """int64 ids of [batch, tokens] to float32 of [batch, tokens, 16]. Source: the recipe."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = Embedding(), DecoderLayer()

    def forward(self, input_ids: Tensor) -> Tensor:
        made: Tensor = self.decoder(self.embedding(input_ids))
        return made


@dataclass(frozen=True, kw_only=True)
class Made:
    """One model. n_nodes: of the graph and of all functions. output: shape, least and greatest. max_abs: how far it is
    from eager's. seeds: nodes that the recipe prints for its own, None where it prints none."""

    name: str
    n_nodes: int
    functions: list[str]
    output: str
    max_abs: float
    seeds: int | None

    @property
    def right(self) -> bool:
        return self.max_abs <= 1e-5


VARIANTS: dict[str, tuple[dict[str, Any], int | None]] = {
    "plain": ({}, 54),
    "functions": ({"export_modules_as_functions": True}, None),
    "optimized": ({"optimized": True}, 34),
    "functions, optimized": ({"export_modules_as_functions": True, "optimized": True}, None),
}
"""{model: (arguments of to_onnx, nodes of the recipe's own)}."""


@dataclass(frozen=True, kw_only=True)
class Eager:
    """The model and its call. output: as in `Made`. exported, unflattened: graphs of torch.export as text, of the whole
    and of submodules that call each other."""

    model: LLM
    ids: Tensor
    expected: Tensor
    output: str
    exported: str
    unflattened: str


def eager() -> Eager:
    """The recipe's model, seeded, as torch runs and exports it."""
    torch.manual_seed(SEED)
    model, ids = LLM().eval(), torch.randint(0, VOCABULARY, (1, TOKENS))
    with torch.no_grad():
        expected = model(ids)
    program = torch.export.export(model, (ids,))
    return Eager(
        model=model, ids=ids, expected=expected, output=_described(expected), exported=str(program.graph),
        unflattened=str(torch.export.unflatten(program).graph),
    )  # fmt: skip


def _described(output: Tensor) -> str:
    return f"shape={tuple(output.shape)}, min={output.min():.6g}, max={output.max():.6g}"


def run(given: Eager, folder: Path) -> tuple[list[Made], str]:
    """The models, which are left in a folder, and the table of the first against the optimized one."""
    model, ids, expected = given.model, given.ids, given.expected
    made = []
    for name, (arguments, seeds) in VARIANTS.items():
        proto = rust_ort.to_onnx(model, ids, **arguments)
        made.append(_judged(name, proto, ids, expected, seeds, folder))
        if proto.functions:
            made.append(_judged(f"{name}, inlined", inline_local_functions(proto), ids, expected, None, folder))
    plain, optimized = (str(folder / _file(name)) for name in ("plain", "optimized"))
    return made, rust_ort.align(plain, optimized, feeds={"input_ids": ids}).text


def _file(name: str) -> str:
    return f"{name.replace(', ', '-')}.onnx"


def _judged(
    name: str, proto: onnx.ModelProto, ids: Tensor, expected: Tensor, seeds: int | None, folder: Path
) -> Made:  # fmt: skip
    import onnxruntime

    onnx.checker.check_model(proto)
    onnx.save(proto, str(folder / _file(name)))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {"input_ids": ids.numpy()})
    return Made(
        name=name, n_nodes=len(proto.graph.node) + sum(len(function.node) for function in proto.functions),
        functions=[function.name for function in proto.functions], output=_described(torch.from_numpy(given)),
        max_abs=float((torch.from_numpy(given) - expected).abs().max()), seeds=seeds,
    )  # fmt: skip


def text(made: Sequence[Made]) -> str:
    """A row a model."""
    cells: list[tuple[str, ...]] = [("model", "nodes", "the recipe's", "functions", "max |Δ| from eager", "verdict")]
    for one in made:
        seeds = "" if one.seeds is None else str(one.seeds)
        right = "right" if one.right else "WRONG"
        cells.append((one.name, str(one.n_nodes), seeds, str(len(one.functions)), f"{one.max_abs:.2e}", right))
    return aligned(cells)


def _program(*arguments: str | Path) -> str:
    """What a command of the program prints."""
    command = [find_binary(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study and prints it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.submodules", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the models are left; by default nowhere")
    parser.add_argument("--json", action="store_true", help="what was made, and the table, as JSON")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rust-ort-submodules-") as made_here:
        folder = arguments.folder or Path(made_here)
        folder.mkdir(parents=True, exist_ok=True)
        given = eager()
        made, table = run(given, folder)
        picture = _program("dot", folder / _file("functions"), "--svg", folder / "functions.svg")
        if arguments.json:
            models = [dataclasses.asdict(one) for one in made]
            print(json.dumps({"eager": given.output, "models": models, "alignment": table}, indent=1))
        else:
            print(f"----- eager\noutput: {given.output}\n")
            print(f"----- torch.export\n{given.exported}\n\n----- torch.export, unflattened\n{given.unflattened}\n")
            for one in (one for one in made if one.name in VARIANTS or one.name == "functions, inlined"):
                print(f"----- {one.name}\n{_program('print', folder / _file(one.name))}")
                print(f"output: {one.output}\nmax discrepancy={one.max_abs:.3g}\n")
            print(f"----- a picture of the model with functions\n{picture}" if arguments.folder else "", end="")
            print("----- plain and optimized, value by value")
            print(table)
            print(text(made))
    return 0 if all(one.right for one in made) else 1


if __name__ == "__main__":
    sys.exit(main())
