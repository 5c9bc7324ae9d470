"""Random numbers that the backward of a checkpoint draws once more: torch writes a node for that without a value."""

from __future__ import annotations

import contextlib

from torch import fx

from rust_ort.torch_private import HigherOrderOperator, detect_fake_mode, outside_tracing

DRAWS_AGAIN = "run_with_rng_state"
"""(the generator's state, an operator, its arguments …) to what the operator gives."""


def give_values(gm: fx.GraphModule) -> None:
    for node in gm.graph.nodes:
        if (
            isinstance(node.target, HigherOrderOperator)
            and node.target.name() == DRAWS_AGAIN
            and "val" not in node.meta
        ):
            _, operator, *given = node.args
            args, kwargs = fx.map_arg((given, node.kwargs), lambda source: source.meta["val"])
            with outside_tracing(), detect_fake_mode(args) or contextlib.nullcontext():
                node.meta["val"] = operator(*args, **kwargs)
