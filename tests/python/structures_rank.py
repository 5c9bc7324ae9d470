"""One of two ranks: `torchrun structures_rank.py <folder>` trains a model under aot_eager and us, in each of PROGRAMS.

Compares loss, gradients and parameters of every step, and writes <program>_<r>.json: how many nodes ONNX Runtime ran,
or what was wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from structures import Compile, Program, check
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    """No loop over the blocks: FSDP's hooks break the graph, and Dynamo leaves a frame alone that breaks in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](x * 1.5))
        return self.head(self.norm(x))


def whole(value: Tensor | None) -> Tensor | None:
    """All shards of a value."""
    return value.full_tensor().clone() if isinstance(value, DTensor) else None if value is None else value.clone()


def train(model: nn.Module, call: Any, parameters: Any) -> list[Any]:
    optimizer = torch.optim.AdamW(parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    found: list[Any] = []
    for step in range(STEPS):
        rows = 4 if step < 2 else 6
        x, y = torch.randn(rows, 8, generator=generator), torch.randint(3, (rows,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        found += [loss.detach(), [whole(p.grad) for p in parameters()]]
        optimizer.step()
    return [*found, [whole(p.detach()) for p in parameters()]]


def ddp(compiled: Compile) -> Any:
    """Small buckets, so that Dynamo's DDPOptimizer splits the graph; the first is 1 MiB unless this private name says
    otherwise."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 512
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    return train(model, compiled(model), model.parameters)


def fsdp(compiled: Compile) -> Any:
    model = Model()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return train(model, compiled(model), model.parameters)


def blocks(compiled: Compile) -> Any:
    """FSDP over blocks that are compiled each for itself."""
    model = Model()
    for index, layer in enumerate(model.layers):
        model.layers[index] = compiled(layer)
        fully_shard(model.layers[index])
    fully_shard(model)
    return train(model, model, model.parameters)


def flat(compiled: Compile) -> Any:
    """FSDP whose parameters are views of one flat parameter, which is resized between steps."""
    model = FullyShardedDataParallel(Model(), use_orig_params=True, device_id=torch.device("cpu"))
    return train(model, compiled(model), model.parameters)


PROGRAMS = {"ddp": ddp, "fsdp": fsdp, "blocks": blocks, "flat": flat}


def ran(program: Program) -> dict[str, Any]:
    infos = check(program)
    nodes = sum(len(part) for info in infos for part in info.parts if info.calls)
    return {"nodes": nodes, "graphs": [info.direction for info in infos if info.parts and info.calls]}


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    for name, program in PROGRAMS.items():
        try:
            found = ran(program)
        except Exception:  # the other programs are judged all the same
            found = {"wrong": traceback.format_exc()}
        Path(folder, f"{name}_{dist.get_rank()}.json").write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
