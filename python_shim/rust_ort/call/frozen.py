"""The option freeze_parameters: parts whose parameters are constants of their sessions.

A part has its session with parameters as inputs, as without the option; each set of parameters that it is called with
has another one, made at the first call with them. Whether a set is still what its session was made of is asked at each
call, of the tensors themselves, which are kept: the same objects, as often written (torch's version counter), at the
same address. A write that torch does not count (through `.data`, the storage, a collective, a NumPy array, DLPack or
C++) is not seen, but for the steps of torch's fused optimizers, which tell of themselves.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from rust_ort.call.part import Part
from rust_ort.call.staging import staged_ref
from rust_ort.errors import DaemonFault, RustOrtError
from rust_ort.link.link import Link
from rust_ort.link.specs import BY_DTYPE, OutputSpec, PartSpec, Policy, Verdict
from rust_ort.memory import process
from rust_ort.memory.parameters import is_alone
from rust_ort.options import Options
from rust_ort.torch_private import is_functorch_wrapped

log = logging.getLogger("rust_ort")

MAX_SETS = 256
"""Sets of parameters that one part has sessions for: modules alike, such as a model's layers, share a graph."""

WORTH_CALLS = 16
"""A session that served fewer calls when something changed was not worth its making."""

CHANGES = 3
"""After so many of those an input that changes is no constant any more."""

IN_VAIN = 8
"""After so many sets of parameters that nobody has any more, and that served fewer calls, no further one is frozen."""

_version = operator.attrgetter("_version")
_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


def may_freeze(value: object) -> bool:
    """Whether it is a parameter whose changes can be seen.

    Not a buffer: BatchNorm's training in eager counts no write to its statistics. Not what shares its memory, whose
    writes count elsewhere, nor an inference tensor, whose do nowhere.
    """
    if type(value) is not torch.nn.Parameter or is_functorch_wrapped(value) or value.is_inference():
        return False
    if not value.is_cpu or value.layout is not torch.strided:
        return False
    return value.numel() > 0 and value.data_ptr() != 0 and is_alone(value)


class FreezingPart(Part):
    """A part that is called with parameters, and runs sessions of which they are constants. Prepared, dumped and
    compared node by node as any other. Calls from several threads run side by side."""

    def __init__(self, client: Link, spec: PartSpec, options: Options) -> None:
        super().__init__(client, spec, options)
        self.frozen: tuple[FrozenPart, ...] = ()
        """One for each set of parameters that it was called with."""
        self._positions = tuple(spec.may_freeze)
        self._changes: dict[int, int] = {}
        self._in_vain = 0
        if self._share is True:
            self._share = "auto"  # what is a constant need not be in shared memory

    def __call__(self, inputs: Sequence[torch.Tensor | int | float], *, eager_nodes: int = 0) -> list[torch.Tensor]:
        """As of a part. Errors also: the runtime's, where it cannot make the session."""
        frozen = self._current(inputs)
        if frozen is None:
            return super().__call__(inputs, eager_nodes=eager_nodes)
        return frozen(frozen.others(inputs), eager_nodes=eager_nodes)

    def observed(
        self,
        inputs: Sequence[torch.Tensor | int | float],
        *,
        step: int,
        dump: bool,
        references: Sequence[torch.Tensor] | None,
        policy: Policy = BY_DTYPE,
        eager_nodes: int = 0,
        runs: Part | None = None,
    ) -> tuple[list[torch.Tensor], list[Verdict], str]:
        """As of a part: the session with constants runs, and a data set has every input."""
        return super().observed(
            inputs,
            step=step,
            dump=dump,
            references=references,
            policy=policy,
            eager_nodes=eager_nodes,
            runs=runs or self._current(inputs),
        )

    def _current(self, inputs: Sequence[Any]) -> FrozenPart | None:
        """What runs with these inputs; None: this part itself, with all of them as inputs."""
        frozen: FrozenPart | None
        is_stale = False
        for frozen in self.frozen:
            if frozen.is_of(inputs):
                if frozen.is_as_it_was():
                    frozen.calls += 1
                    return frozen
                is_stale = True
                break
        frozen = None  # `_freeze` may end its session
        if not self._positions or len(inputs) != len(self.spec.input_names):
            return None
        if not is_stale and not any(may_freeze(inputs[position]) for position in self._positions):
            return None  # without the lock, which a thread holds for as long as it builds a session
        with self.client.lock:
            return self._freeze(inputs)

    def _freeze(self, inputs: Sequence[Any]) -> FrozenPart | None:
        """Makes a session with what the inputs are now. The caller holds the client's lock."""
        there = next((frozen for frozen in self.frozen if frozen.is_of(inputs)), None)
        if there is not None:
            changed = there.changed()
            if not changed:  # another thread was here
                return there
            self._note_changes(changed, in_vain=there.calls < WORTH_CALLS)
        abandoned = [one for one in self.frozen if one is not there and one.is_abandoned()]
        self._in_vain += sum(one.calls < WORTH_CALLS for one in abandoned)
        self.frozen = kept = tuple(one for one in self.frozen if one is not there and one not in abandoned)
        del abandoned
        positions = [position for position in self._positions if may_freeze(inputs[position])]
        if not positions:
            return None
        if len(kept) >= MAX_SETS or self._in_vain >= IN_VAIN:
            many = f"{MAX_SETS} modules have sessions of their own already"
            self._give_up(many if len(kept) >= MAX_SETS else f"{IN_VAIN} times they were others after a few calls")
            return None
        there = None  # its session ends before the next is made: both at once would be twice the memory
        self.client.release_dead()
        frozen = FrozenPart(self, positions, [inputs[position] for position in positions])
        try:
            frozen.prepare()
        except RustOrtError as error:
            error.add_note(
                "while making a session with parameters as constants; freeze_parameters=False has them as inputs"
            )
            raise
        _give_back()
        frozen.calls = 1
        self.frozen = (frozen, *kept)
        return frozen

    def _note_changes(self, changed: Sequence[int], *, in_vain: bool) -> None:
        names = ", ".join(self.spec.input_names[position] for position in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        log.info("%s: %s%s changed: the session with parameters as constants is made anew", self._graph, names, more)
        for position in changed if in_vain else ():
            self._changes[position] = self._changes.get(position, 0) + 1
        # One update of all modules that share the graph is a change of each.
        most = CHANGES * max(1, len(self.frozen))
        moving = [position for position in changed if self._changes.get(position, 0) >= most]
        if moving:
            self._share = self.options.share_parameters
            self._positions = tuple(position for position in self._positions if position not in moving)
            log.warning(
                "%s: freeze_parameters: %d parameter(s) or buffer(s), such as %s, changed %d times within %d calls: "
                "they are inputs from now on",
                self._graph, len(moving), self.spec.input_names[moving[0]], most, most * WORTH_CALLS,
            )  # fmt: skip

    def _give_up(self, why: str) -> None:
        self._positions = ()
        self._share = self.options.share_parameters
        log.warning("%s: freeze_parameters: %s: parameters of further modules are inputs", self._graph, why)

    @property
    def _graph(self) -> str:
        return self.spec.graph.name


class FrozenPart(Part):
    """A part of which some inputs are constants, called with the others."""

    def __init__(self, of: Part, positions: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """positions, tensors: of those that are constants, rising."""
        self.calls = 0
        self.positions = tuple(positions)
        # Kept: no other tensor can come to be the same object.
        self._tensors = tuple(tensors)
        self._first = self.positions[0]
        self._pick = _getter(self.positions)
        self._inputs_of_model = of.spec.input_names
        constants = frozenset(positions)
        left = [position for position in range(len(of.spec.input_names)) if position not in constants]
        self.others = _getter(left)
        # Before their values are looked at: what is written from here on is seen at the next call.
        self._versions, self._addresses = self._state()
        self._memory = [_Memory(tensor) for tensor in tensors]
        self._written: set[int] = set()
        _watch(self)
        super().__init__(
            of.client,
            dataclasses.replace(
                of.spec,
                input_names=[of.spec.input_names[position] for position in left],
                outputs=_outputs(of.spec, dict(zip(positions, tensors, strict=True)), left),
            ),
            of.options,
        )

    # --- whether it is still right ---

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Whether these are the very tensors that are its constants."""
        tensors = self._tensors
        return inputs[self._first] is tensors[0] and all(map(operator.is_, self._pick(inputs), tensors))

    def is_as_it_was(self) -> bool:
        """Whether nothing that torch knows of has changed them."""
        tensors = self._tensors
        return (
            not self._written
            and [*map(_version, tensors)] == self._versions
            and [*map(_address, tensors)] == self._addresses
            and not any(memory.is_gone() for memory in self._memory)
        )

    def changed(self) -> list[int]:
        """Positions of those that changed."""
        then, now = zip(self._versions, self._addresses, strict=True), zip(*self._state(), strict=True)
        found = [position for position, old, new in zip(self.positions, then, now, strict=True) if old != new]
        gone = [position for position, memory in zip(self.positions, self._memory, strict=True) if memory.is_gone()]
        return sorted(self._written.union(found, gone))

    def note_written(self, written: set[int]) -> None:
        """Notes that these tensors, by their ids, were written."""
        for position, tensor in zip(self.positions, self._tensors, strict=True):
            if id(tensor) in written:
                self._written.add(position)

    def is_abandoned(self) -> bool:
        """Whether nobody else has one of the tensors, so that no call can come with it."""
        return any(sys.getrefcount(tensor) <= OURS_ALONE for tensor in self._tensors)

    def _state(self) -> tuple[list[int], list[int]]:
        return [*map(_version, self._tensors)], [*map(_address, self._tensors)]

    # --- preparation ---

    def _model_inputs(self) -> list[str]:
        return self._inputs_of_model

    def _check(self, prepared: Any) -> None:
        super()._check(prepared)
        if prepared.frozen_inputs != len(self.positions):
            raise DaemonFault(
                f"{len(self.positions)} inputs were to be constants, and the daemon made {prepared.frozen_inputs}: "
                "it is of a version without freeze_parameters; end it with `rust-ort stop`",
                graph=self.spec.graph.name,
            )

    def _prepare_request(self, held: list[object]) -> Any:
        request = super()._prepare_request(held)
        with torch.no_grad():
            for position, tensor in zip(self.positions, self._tensors, strict=True):
                what = f"constant {self._inputs_of_model[position]!r} of {self.spec.graph.name}"
                constant = request.prepare_part.frozen.add(input=position)
                constant.tensor.CopyFrom(staged_ref(what, tensor, held))
        return request


_watched: weakref.WeakSet[FrozenPart] = weakref.WeakSet()
_hook: list[object] = []


def _watch(frozen: FrozenPart) -> None:
    if not _hook:
        _hook.append(register_optimizer_step_post_hook(_after_step))
    _watched.add(frozen)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """After any optimizer's step: the fused kernels count no write (torch 2.13)."""
    written = {id(tensor) for group in optimizer.param_groups if group.get("fused") for tensor in group["params"]}
    for frozen in list(_watched) if written else ():
        frozen.note_written(written)


class _Memory:
    """A tensor's memory: nothing else comes to be at its address unseen. Its storage is not held: what is alone with it
    may be moved to shared memory."""

    __slots__ = ("_held", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        arena = process.arena()
        location = arena.locate(tensor.data_ptr())
        self._held = arena.holder(location) if location else None
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def is_gone(self) -> bool:
        """Whether the storage is: the address may be another's."""
        return self._held is None and bool(self._storage.expired())


def _outputs(
    spec: PartSpec, constants: Mapping[int, torch.Tensor], left: Sequence[int]
) -> list[OutputSpec] | Callable[[Sequence[object]], list[OutputSpec]]:
    """The outputs of a call with those that are left."""
    outputs = spec.outputs
    if not callable(outputs):
        return outputs
    of_all = outputs
    every: list[object] = [constants.get(position) for position in range(len(spec.input_names))]

    def specs(inputs: Sequence[object]) -> list[OutputSpec]:
        given = every.copy()
        for position, value in zip(left, inputs, strict=True):
            given[position] = value
        return of_all(given)

    return specs


def _give_back() -> None:
    """Gives back what was staged for a session, which is as large as a model, and which no call will use."""
    arena = process.arena()
    arena.live()  # takes back what was freed
    for _ in range(2):  # what is idle since one trim goes with the next
        arena.trim()


def _getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda inputs: tuple(inputs[position] for position in positions)


OURS_ALONE = next(sys.getrefcount(tensor) for tensor in (torch.empty(0, device="cpu"),))
"""References to a tensor that only a tuple has, as `is_abandoned` asks."""
