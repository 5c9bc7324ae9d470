"""How long a model's calls and first calls take, beside eager and a peer. Accuracy is another task: nothing else of the
process is in what is timed here."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

import rust_ort
from measure.garbage import full_collections
from measure.home import home
from measure.zoo.model import SEED, Subject
from measure.zoo.side import Side, as_it_is, seeded, words

TIMED_S = 1.5
"""Of calls of a backend and of eager together."""
LEAST_CALLS = 3
WARM = "warm"
"""rust_ort once more: plans and sessions are there, as a later process of the same program has them."""


def timed(subject: Subject, *, train: bool, peer: str) -> dict[str, Any]:
    """Seconds: of a call in eager, and for rust_ort, WARM and the peer of a call and of what a first call takes longer
    (`compile`). rust_ort's first is with a daemon that has met none of the model's graphs."""
    eager = Side(subject, as_it_is, train=train)
    try:
        eager.run()
    except Exception as error:
        return {"status": "model_fail_to_load", "why": words(error)}
    _compiled_before(subject, train=train, peer=peer)
    result: dict[str, Any] = {"status": "pass", "why": ""}
    with _new_daemon():
        for name, backend in (("rust_ort", rust_ort.backend()), (peer, peer), (WARM, rust_ort.backend())):
            try:
                compiled = functools.partial(torch.compile, backend=backend)
                result[name] = _first_and_later(Side(subject, compiled, train=train), eager)
            except Exception as error:
                result[name] = {"status": "fail_to_run"}
                if name == "rust_ort":
                    result |= {"status": "fail_to_run", "why": words(error)}
            gc.collect()
    calls = [one.pop("eager") for one in result.values() if isinstance(one, dict) and "eager" in one]
    result["eager"] = {"call": statistics.median(calls)} if calls else {}
    result["load"] = os.getloadavg()[0]
    return result


@contextlib.contextmanager
def _new_daemon() -> Iterator[None]:
    """Inside, rust_ort's daemon is another one: it and its executor have started, and know no graph of a model."""
    with home() as made, mock.patch.dict(os.environ, made.environment()):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: (x * 2).sum(), backend=rust_ort.backend())
        compiled(torch.ones(3, requires_grad=True)).backward()
        yield


def _first_and_later(side: Side, eager: Side) -> dict[str, Any]:
    """Seconds of a side's first call, without Python's full searches for garbage (these go over all objects of the
    process, and in whose turn one falls is chance), and of later calls of both by turns."""
    torch.compiler.reset()
    seeded(SEED)
    begin = time.perf_counter()
    with full_collections() as collecting:
        side.run()
    first = time.perf_counter() - begin - collecting.seconds
    call, of_eager = _by_turns(side, eager)
    return {"status": "pass", "first": first, "call": call, "compile": max(first - call, 0.0), "eager": of_eager}


def _compiled_before(subject: Subject, *, train: bool, peer: str) -> None:
    """Whoever compiles a model first pays for what torch keeps of its source and its operators: here that is nobody."""
    torch.compiler.reset()
    with contextlib.suppress(Exception):  # which is told where the peer is timed
        Side(subject, functools.partial(torch.compile, backend=peer), train=train).run()


def _by_turns(*sides: Side) -> list[float]:
    """Median seconds of a call of each, taken by turns."""
    taken: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side.run()
    end = time.perf_counter() + TIMED_S
    while len(taken[0]) < LEAST_CALLS or time.perf_counter() < end:
        for side, seconds in zip(sides, taken, strict=True):
            begin = time.perf_counter()
            side.run()
            seconds.append(time.perf_counter() - begin)
    return [*map(statistics.median, taken)]
