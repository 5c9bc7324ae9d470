"""What was exported once is not exported again: plans, and what the decomposition table is made of, kept by the daemon.

A warm process loads neither torch.onnx nor onnxscript. What cannot be had from the daemon is made anew.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from torch import fx

from rust_ort.call.client import Client
from rust_ort.errors import DaemonFault, RustOrtError
from rust_ort.export import decompositions, exporter, messages
from rust_ort.export.hash import operators_key
from rust_ort.export.plan import Plan

log = logging.getLogger("rust_ort")


def decomposition_table(client: Client, *, daemon_needed: bool) -> dict[Any, Callable[..., Any]]:
    """`decompositions.table()`."""
    return decompositions.table(_whole_operators(client, operators_key(), daemon_needed))


@functools.cache
def _whole_operators(client: Client, key: str, daemon_needed: bool) -> frozenset[str]:
    known = _get(client, key, daemon_needed)
    if known:
        return messages.operators_from(known)
    names = exporter.whole_operators()
    _put(client, key, messages.operators_message(names))
    return names


def load(client: Client, graph_id: str, gm: fx.GraphModule, *, daemon_needed: bool) -> Plan | None:
    """The plan of `gm` as an earlier process made it; None when there is none that fits."""
    start = time.perf_counter()
    known = _get(client, graph_id, daemon_needed)
    if known is None:
        return None
    loaded = time.perf_counter()
    try:
        plan = messages.plan_from(gm, known)
    except (DecodeError, KeyError, ValueError) as error:
        log.warning("the plan kept of graph %s does not fit, it is exported again: %r", graph_id[:8], error)
        return None
    plan.seconds = {"load": loaded - start, "partition": time.perf_counter() - loaded}
    return plan


def save(client: Client, graph_id: str, plan: Plan) -> None:
    """Keeps a plan whose parts the runtime took."""
    _put(client, graph_id, messages.plan_message(plan))


def count(client: Client, graph_id: str) -> None:
    """Tells of an export that later processes cannot use."""
    _put(client, graph_id, b"")


def _get(client: Client, key: str, daemon_needed: bool) -> bytes | None:
    try:
        return client.plan(key)
    except DaemonFault as error:
        if daemon_needed:
            raise
        log.debug("no plan: %s", error)
        return None


def _put(client: Client, key: str, plan: bytes) -> None:
    try:
        client.put_plan(key, plan)
    except RustOrtError as error:
        log.warning("a plan is not kept, later processes export again: %s", error)
