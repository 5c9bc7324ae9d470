"""The content hash: the same in every process, different when a model would be."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from rust_ort.export.hash import graph_hash
def f(x, y):
    return torch.nn.functional.layer_norm(x @ y, (3,), eps={eps}), x.sum(), {{"k": torch.tensor({constant})+x[0]}}
x, y = torch.ones({rows}, 4, dtype=torch.{dtype}), torch.ones(4, 3, dtype=torch.{dtype})
gm = make_fx(f, tracing_mode={mode!r})(x, y)
print(graph_hash(gm, extra={extra}))
"""


def hash_in_a_process(seed: str = "0", **changes: object) -> str:
    values: dict[str, object] = {
        "eps": 1e-5, "constant": [1.0, 2.0, 3.0, 4.0], "mode": "fake", "rows": 2, "dtype": "float32", "extra": [],
    }  # fmt: skip
    code = CODE.format(**{**values, **changes})
    env = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    ).stdout.strip()


def test_two_processes_with_different_hash_seeds_agree() -> None:
    first = hash_in_a_process("1")
    assert first == hash_in_a_process("4242")
    assert len(first) == 64
    assert set(first) <= set("0123456789abcdef")


def test_what_changes_a_model_changes_the_hash() -> None:
    hashes = [
        hash_in_a_process(),
        hash_in_a_process(eps=1e-6),
        hash_in_a_process(rows=3),
        hash_in_a_process(dtype="float64"),
        hash_in_a_process(constant=[1.0, 2.0, 3.0, 5.0]),
        hash_in_a_process(mode="symbolic"),
        hash_in_a_process(extra=["opset 20"]),
    ]
    assert len(set(hashes)) == len(hashes)
