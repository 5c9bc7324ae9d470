"""The clients of this process: a link to a daemon, and what tensors travel over it for."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping, Sequence

import torch

from rust_ort.call.frozen import FreezingPart
from rust_ort.call.on_device import shown
from rust_ort.call.part import Part
from rust_ort.call.staging import placed_ref, staged_ref
from rust_ort.link import daemon, wire
from rust_ort.link.link import Link
from rust_ort.link.platform import check_platform
from rust_ort.link.pool import allow_spinning, libtorch, threads
from rust_ort.link.specs import BY_DTYPE, PartSpec, Policy, Spread, Verdict, verdicts_from
from rust_ort.memory import process
from rust_ort.options import Options

_clients: dict[tuple[str, int, bool, str], Client] = {}
_clients_lock = threading.Lock()


class Client(Link):
    """A link that prepares parts and compares tensors."""

    @staticmethod
    def get(options: Options) -> Client:
        """The client of this socket and these lease settings; nothing is connected yet."""
        check_platform()
        key = (daemon.socket_path(options.socket), threads(options), allow_spinning(options), libtorch(options))
        with _clients_lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = Client(key[0], options)
            return client

    def part(self, spec: PartSpec, options: Options) -> Part:
        """A prepared part. Errors: ClientError for a model the runtime refuses, DaemonFault."""
        part = FreezingPart(self, spec, options) if spec.may_freeze else Part(self, spec, options)
        part.prepare()
        return part

    def compare(
        self,
        pairs: Sequence[tuple[str, torch.Tensor | None, torch.Tensor | None, str]],
        policy: Policy = BY_DTYPE,
        *,
        terms: Mapping[str, torch.Tensor | None] | None = None,
        exact: Mapping[str, torch.Tensor | None] | None = None,
        ties: Mapping[str, str] | None = None,
        spreads: Mapping[str, Spread] | None = None,
        settles: tuple[str, int, int] | None = None,
        ordinal: int | None = None,
    ) -> list[Verdict]:
        """A verdict for each (name, reference, candidate, why there is nothing to compare or ""). terms: Σ|terms|
        of each element, float64, by name, where a value is a sum; exact: its float64; ties: why a mismatch comes of
        a choice between equals; spreads: how far rounding moves a value whose nodes alone are right. settles: (graph
        id, part, step) of the observed call whose outputs these are: what is dumped of it gets the verdicts, and what
        they are by. ordinal: of the CUDA device where the executor judges the
        tensors that lie there; None: all are copied to the host."""
        connection = self.connection() if ordinal is None else self.leased()
        place = staged_ref if ordinal is None else placed_ref
        request = wire.Request()
        request.compare_tensors.SetInParent()
        held: list[object] = []
        for name, reference, candidate, reason in pairs:
            pair = wire.TensorPair(name=name, not_compared=reason, tie=(ties or {}).get(name, ""))
            if spread := (spreads or {}).get(name):
                pair.spread.largest, pair.spread.rms = spread.largest, spread.rms
            known = {"terms": (terms or {}).get(name), "exact": (exact or {}).get(name)}
            for side, tensor in {"reference": reference, "candidate": candidate, **known}.items():
                if tensor is not None and not reason:
                    getattr(pair, side).CopyFrom(place(f"{side} of {name!r}", tensor, held))
            if not reason and (reference is None or candidate is None):
                pair.not_compared = f"there is no {'reference' if reference is None else 'candidate'}"
            request.compare_tensors.pairs.append(pair)
        policy.set(request.compare_tensors)
        if settles is not None:
            of = request.compare_tensors.settles
            of.graph_id, of.part, of.step = settles
        shown(connection, ordinal)
        return verdicts_from(connection.ask(request, keep=held))


def _after_fork_in_child() -> None:
    global _clients_lock
    _clients_lock = threading.Lock()
    for client in _clients.values():
        client.lock = threading.RLock()
        connection, client._connection = client._connection, None
        client._dump = None  # it goes on in the process that opened it
        if connection is not None:
            connection.forget()


process.after_fork_in_child.append(_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for client in list(_clients.values()):
        connection = client._connection
        if connection is not None:
            connection.close()
