"""The content hash: the same in every process, different when a model would be."""

from __future__ import annotations

import os
import subprocess
import sys

import warm

BEGIN = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from rust_ort.export.hash import graph_hash
"""
CODE = """
def f(x, y):
    return torch.nn.functional.layer_norm(x @ y, (3,), eps={eps}), x.sum(), {{"k": torch.tensor({constant})+x[0]}}
x, y = torch.ones({rows}, 4, dtype=torch.{dtype}), torch.ones(4, 3, dtype=torch.{dtype})
gm = make_fx(f, tracing_mode={mode!r})(x, y)
print(graph_hash(gm, extra={extra}))
"""
GRAPH: dict[str, object] = {
    "eps": 1e-5, "constant": [1.0, 2.0, 3.0, 4.0], "mode": "fake", "rows": 2, "dtype": "float32", "extra": [],
}  # fmt: skip


def hashes_in_a_process(*changes: dict[str, object], seed: str | None = None) -> list[str]:
    """Of the graph with each of the changes. seed: of Python's hashes; a process without has one of its own."""
    code = BEGIN + "".join(CODE.format(**{**GRAPH, **change}) for change in changes)
    command = [sys.executable, "-c", code]
    if seed is None:
        return warm.run(command, check=True).stdout.split()
    env = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.split()


def test_two_processes_with_different_hash_seeds_agree() -> None:
    (first,) = hashes_in_a_process({})
    assert [first, first] == hashes_in_a_process({}, {}, seed="4242")
    assert len(first) == 64
    assert set(first) <= set("0123456789abcdef")


def test_what_changes_a_model_changes_the_hash() -> None:
    changes: list[dict[str, object]] = [
        {}, {"eps": 1e-6}, {"rows": 3}, {"dtype": "float64"}, {"constant": [1.0, 2.0, 3.0, 5.0]}, {"mode": "symbolic"},
        {"extra": ["opset 20"]},
    ]  # fmt: skip
    hashes = hashes_in_a_process(*changes)
    assert len(set(hashes)) == len(hashes) == len(changes)
