"""One prepared model: its preparation, its calls over a lane, and its observed calls through the daemon."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import record_function

from rust_ort._native import Call
from rust_ort.call.on_device import of_stream, on_stream, show, shown
from rust_ort.call.staging import CallPlan, InputSlot, as_sent, check_has_no_tangent, placed_ref, tensor_ref
from rust_ort.errors import ClientError, DaemonLost, ExecutorLost, RustOrtError
from rust_ort.link import wire
from rust_ort.link.connection import Connection
from rust_ort.link.device_order import BLOCKING, DeviceQueue, Failure, late_text
from rust_ort.link.link import Link
from rust_ort.link.specs import BY_DTYPE, PartSpec, Policy, Verdict, providers, verdicts_from
from rust_ort.link.waiting import Waiting
from rust_ort.memory import device, process
from rust_ort.memory.arena import Arena
from rust_ort.options import Options
from rust_ort.torch_private import forward_mode, profiler_runs

log = logging.getLogger("rust_ort")

MAX_PLANS = 32
RECENT_PLANS = 8
"""That a call tries, one after the other, each up to the first input that is another."""

_call_ids = itertools.count(1)
_parts: weakref.WeakSet[Part] = weakref.WeakSet()


class Part:
    """A prepared model. Calls from several threads run side by side."""

    def __init__(self, client: Link, spec: PartSpec, options: Options) -> None:
        self.client = client
        self.spec = spec
        self.options = options
        self.prepared: Any = None  # the Prepared message of the newest preparation
        self._inputs = [f"input {i} {name!r} of {spec.graph.name}" for i, name in enumerate(spec.input_names)]
        self._handle = 0
        self._dump_epoch = 0
        self._connection: Connection | None = None
        self._arena: Arena | None = None
        self._plans: dict[object, CallPlan] = {}
        self._plans_lock = threading.Lock()
        self._recent: tuple[CallPlan, ...] = ()
        self._sends_others = False  # inputs that are not `as_sent`
        self._held = client.releases.watch(self, spec.graph.graph_id)
        self._dead = client.releases.dead
        self._share = options.share_parameters
        # Under "eager" a call that failed is done again in eager: its own answer decides.
        self._waits = BLOCKING or options.on_daemon_error == "eager"
        _parts.add(self)

    @property
    def handle(self) -> int:
        """What the newest preparation is named by, in its lease."""
        return self._handle

    # --- preparation ---

    def prepare(self, *, again: bool = False) -> Connection:
        """Sends graph and model to the current connection, unless it has them. again: a dump was opened since, which
        is to have them."""
        connection = self._connection
        if connection is not None and connection.lives() and not again:
            return connection
        if connection is not None and connection.dead is not None and connection.left_unfinished():
            raise ExecutorLost(
                "the executor died with work of earlier calls on a device: what they gave may be wrong; do that step "
                "again",
                graph=self.spec.graph.name,
                log=connection.executor_log,
            )
        with self.client.lock:
            return self.client.asked(lambda _: self._prepared(self.client.leased(), again=again))

    def _prepared(self, connection: Connection, *, again: bool) -> Connection:
        if connection is self._connection and not again:
            return connection
        if (self.spec.graph.graph_id, self.spec.graph.name) not in connection.graphs or again:
            self.client.register_on(connection, self.spec.graph)
        epoch = connection.dump_epoch
        if connection is self._connection:
            self._dump_epoch = epoch
            return connection
        held: list[object] = []
        about = f"session of graph {self.spec.graph.name}"
        prepared = connection.ask(self._prepare_request(held), keep=held, about=about)
        self._held.add(connection, prepared.handle)
        self._check(prepared)
        if self._arena is not process.arena():
            self._plans.clear()
            self._recent = ()
            self._arena = process.arena()
        self.prepared = prepared
        self._handle = prepared.handle
        self._dump_epoch = epoch
        self._connection = connection
        return connection

    def _check(self, prepared: Any) -> None:
        """Errors: ClientError where the session is not the model's."""
        got = [value.name for value in prepared.inputs], [value.name for value in prepared.outputs]
        if got != (self._model_inputs(), self.spec.output_names):
            raise ClientError(
                f"the model's inputs and outputs are {got[0]} and {got[1]}, "
                f"expected {self._model_inputs()} and {self.spec.output_names}",
                graph=self.spec.graph.name,
            )

    def _model_inputs(self) -> list[str]:
        return self.spec.input_names

    def _prepare_request(self, held: list[object]) -> Any:
        """held: gets what must live until the answer is here."""
        request = wire.Request()
        message = request.prepare_part
        message.graph_id = self.spec.graph.graph_id
        message.part = self.spec.part
        message.model = self.spec.model
        message.provenance_json = self.spec.provenance_json
        message.fx_values.update(self.spec.fx_values)
        message.named_values.extend(self.spec.named_values)
        message.session.optimization = self.options.ort_optimization
        message.session.config.update(self.options.session_options)
        message.session.disabled_passes.extend(self.options.disable_passes)
        message.session.keep_float32.extend(self.options.precision_rules.get("float32", ()))
        for runtime, patterns in self.options.runtimes.items():
            message.session.runtimes.add(runtime=runtime, patterns=patterns)
        for library in self.spec.custom_op_libraries:
            message.session.custom_op_libraries.add(**vars(library))
        for name, entries in providers(self.options, self.spec.device, beside_cuda=self.spec.beside_cuda):
            message.session.providers.add(name=name).options.update(entries)
        if self.spec.device is not None:
            message.session.device = device.uuid(self.spec.device)
        return request

    # --- the call ---

    def check(self, inputs: Sequence[Any]) -> None:
        """Errors: ClientError for an input that cannot be sent as it is."""
        for what, value in zip(self._inputs, inputs, strict=False):
            check_has_no_tangent(what, value)
            as_sent(what, value)

    def __call__(self, inputs: Sequence[torch.Tensor | int | float], *, eager_nodes: int = 0) -> list[torch.Tensor]:
        """The outputs. eager_nodes: eager compute nodes that ran beside this part since the graph's last call.

        Errors: ClientError for an input that cannot be sent, DaemonFault, ExecutorLost, DaemonLost; after a loss the
        next call works. A peer that was lost before it began with this call is replaced within it.
        """
        if self._dead:
            self.client.release_dead()
        if profiler_runs():
            with self._profiled():
                return self._called(inputs, eager_nodes)
        return self._called(inputs, eager_nodes)

    def _profiled(self) -> record_function:
        """The range by which torch's profiler shows the part."""
        return record_function(f"rust_ort: {self.spec.graph.name} part {self.spec.part}")

    def _called(self, inputs: Sequence[torch.Tensor | int | float], eager_nodes: int) -> list[torch.Tensor]:
        try:
            return self._call(inputs, eager_nodes)
        except _NotBegun:
            pass
        try:
            return self._call(inputs, eager_nodes)
        except _NotBegun as lost:
            raise lost.error from None

    def _call(self, inputs: Sequence[torch.Tensor | int | float], eager_nodes: int) -> list[torch.Tensor]:
        connection = self._connection
        if connection is None or connection.dead is not None:
            connection = self.prepare()
        handle = self._handle
        plan, call, inputs = self._gathered(inputs)
        if connection.dead is not None:
            # Announcing a new segment found the peer lost.
            raise _NotBegun(connection.error(self.spec.graph.name))
        self._exchange(connection, handle, call, eager_nodes, inputs, plan)
        return plan.finish(call)

    def _gathered(self, inputs: Sequence[Any]) -> tuple[CallPlan, Call, Sequence[Any]]:
        """The plan of these inputs, the call, and the inputs as they were taken, which keeps them. Errors: ClientError
        for what cannot be sent."""
        if forward_mode():
            self.check(inputs)
        try:
            return self._taken(inputs)
        except RuntimeError:  # torch's own of a tensor without a storage, which the native call asks for its address
            self.check(inputs)
            raise

    def _taken(self, inputs: Sequence[Any]) -> tuple[CallPlan, Call, Sequence[Any]]:
        arena = self._arena
        assert arena is not None
        given, share = inputs, self._share
        if self._sends_others and len(inputs) == len(self._inputs):
            inputs = list(map(as_sent, self._inputs, inputs))
            self._sends_others = any(sent is not one for sent, one in zip(inputs, given, strict=True))
        for plan in self._recent:
            call = plan.gather(arena, inputs, share=share, given=given)
            if call is not None:
                if plan is not self._recent[0]:
                    self._use(plan)
                return plan, call, inputs
        plan = self._planned(given)
        call = plan.gather(arena, inputs, share=share, given=given)
        if call is None:
            self._sends_others = True
            inputs = list(map(as_sent, self._inputs, given))
            call = plan.gather(arena, inputs, share=share, given=given)
            if call is None:
                raise ClientError("an input was changed by another thread while it was being sent; call again")
        self._use(plan)
        return plan, call, inputs

    def _use(self, plan: CallPlan) -> None:
        """Tries this plan first from now on, of those of the last calls."""
        others = [other for other in self._recent if other is not plan]
        self._recent = (plan, *others[: RECENT_PLANS - 1])

    def _exchange(
        self, connection: Connection, handle: int, call: Call, eager_nodes: int, inputs: Sequence[Any], plan: CallPlan
    ) -> None:
        """The call over a lane. inputs: what the executor reads, beside what the call keeps. One on a CUDA device
        becomes a part of its current stream."""
        if plan.device is None:
            if connection.order.queues and (failed := connection.order.failed()):
                self._tell_late(connection, *failed)
            return self._over_a_lane(connection, handle, call, eager_nodes, inputs, None)
        stream = device.stream(plan.device)
        try:
            queue = connection.queue(plan.device, stream)
        except (ExecutorLost, DaemonLost) as error:
            raise _NotBegun(error) from None
        if queue is None:
            return self._over_a_lane(connection, handle, call, eager_nodes, inputs, (plan.device, stream))
        with queue.lock:
            self._in_order(connection, queue, (handle, call, eager_nodes), plan, stream)

    def _in_order(
        self, connection: Connection, queue: DeviceQueue, what: tuple[int, Call, int], plan: CallPlan, stream: int
    ) -> None:
        """The call on a device, ordered by numbers: handed over, and waited for where its own answer matters."""
        handle, call, eager_nodes = what
        ids, work = (next(_call_ids), handle, eager_nodes), connection.order.work
        try:
            show(connection)
            slot = connection.slot(queue, stream)
            while queue.lane.unseen:
                if failed := queue.settle(connection):
                    self._tell_late(connection, *failed)
        except (ExecutorLost, DaemonLost) as error:
            raise _NotBegun(error) from None
        queue.graph = self.spec.graph.name
        try:
            lives = queue.lane.hand_over(call, ids, slot, stream, work)
        except ValueError as error:
            raise ClientError(str(error), graph=self.spec.graph.name) from None
        except RuntimeError as error:
            raise of_stream(error) from None
        if not lives:
            raise _NotBegun(connection.lost_executor()) from None
        if plan.served == connection.number and plan.all_on_device and not self._waits and connection.maps_all():
            return
        try:
            failed = queue.settle(connection)
        except (ExecutorLost, DaemonLost) as error:
            connection.order.told += 1
            if not queue.lane.running():
                raise _NotBegun(error) from None
            raise connection.error(self.spec.graph.name) from None
        if failed is not None:
            raise self._failed(connection, *failed)
        plan.served = connection.number

    def _over_a_lane(
        self, connection: Connection, handle: int, call: Call, eager_nodes: int, inputs: Sequence[Any],
        on_device: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """The call over a lane that nobody uses, and its answer. on_device: number of a device and of its current
        stream, whose order events keep."""
        lanes = connection.lanes
        assert lanes is not None
        events, stream = None, 0
        try:
            if on_device is not None:
                show(connection)
            lane = lanes.take(connection)
            try:
                if not lane.open:
                    connection.open_lane(lane)
                if on_device is not None:
                    ordinal, stream = on_device
                    events = connection.events(lane, ordinal)
                    on_stream(events.record, stream)
                try:
                    lane.write(call, call_id := next(_call_ids), handle, eager_nodes)
                except ValueError as error:
                    raise ClientError(str(error), graph=self.spec.graph.name) from None
            except BaseException:
                lanes.give(lane)
                raise
        except (ExecutorLost, DaemonLost) as error:
            raise _NotBegun(error) from None
        try:
            failure = lane.run(call, Waiting(connection, f"graph {self.spec.graph.name}"))
        except BaseException as error:
            # An answer comes before the work on a device is done: what comes on its stream is to come behind that.
            answers = not isinstance(error, ExecutorLost | DaemonLost)
            settle = functools.partial(events.wait, stream) if events is not None and answers else None
            lanes.abandon(lane, (inputs, call), settle)
            if isinstance(error, ExecutorLost | DaemonLost):
                if not lane.running():
                    raise _NotBegun(error) from None
                raise connection.error(self.spec.graph.name) from None
            connection.cancel(call_id=call_id)
            raise
        try:
            if failure is None and events is not None:
                on_stream(events.wait, stream)
        except BaseException:
            connection.hold((inputs, call))
            raise
        finally:
            lanes.give(lane)
        if failure is not None:
            raise self._failed(connection, self.spec.graph.name, failure)

    @staticmethod
    def _failed(connection: Connection, graph: str, failure: Failure) -> RustOrtError:
        """What a call of a graph failed of."""
        kind, code, text, node = failure
        if why := connection.why_unmapped(text):
            text = f"{text}: {why}"
        return wire.make_error(kind=kind, code=code, message=text, graph=graph, node=node, log=connection.executor_log)

    def _tell_late(self, connection: Connection, graph: str, failure: Failure) -> None:
        """Raises what an earlier call failed of that was handed over. Whoever goes on in eager after a fault would take
        it for this call's: it is logged then."""
        kind, code, text, node = failure
        error = self._failed(connection, graph, (kind, code, late_text(graph, text), node))
        if self.options.on_daemon_error != "eager":
            raise error
        log.error("%s", error)

    def _planned(self, inputs: Sequence[object]) -> CallPlan:
        names = self.spec.input_names
        if len(inputs) != len(names):
            raise ClientError(f"expected {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
        dynamic = callable(self.spec.outputs)
        slots = [InputSlot(what, value, keep_value=dynamic) for what, value in zip(self._inputs, inputs, strict=True)]
        key = tuple((slot.code, slot.shape, slot.kind, slot.bits, slot.device) for slot in slots)
        plan = self._plans.get(key)
        if plan is None:
            outputs = self.spec.outputs
            specs = outputs(inputs) if callable(outputs) else outputs
            if len(specs) != len(self.spec.output_names):
                raise ClientError(f"expected {len(self.spec.output_names)} output specs, got {len(specs)}")
            plan = CallPlan(slots, specs)
            with self._plans_lock:  # not the client's: another thread may hold that while a session is built
                while len(self._plans) >= MAX_PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[key] = plan
        return plan

    # --- the observed call ---

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
        """One call through the daemon: (outputs, a verdict for each output, the folder of the data set or "").

        references: eager's outputs; None compares nothing and gives no verdicts. runs: whose session, of the same model
        with some of its inputs as constants; None: this part's. Errors: as of a call.
        """
        if self._dead:
            self.client.release_dead()
        connection = self.prepare()
        if dump and self._dump_epoch != connection.dump_epoch:
            # The dump was opened since: it has neither graph nor model yet.
            connection = self.prepare(again=True)
        if runs is not None:
            connection = runs.prepare()
        with torch.no_grad():
            plan, call, inputs = self._gathered(inputs)
            locations = call.locations
            request = wire.Request()
            run = request.run_observed
            run.call.call_id = next(_call_ids)
            run.call.handle = (runs or self)._handle
            run.call.eager_nodes = eager_nodes
            for location, slot in zip(locations, plan.slots, strict=False):
                run.call.inputs.append(tensor_ref(location, slot.code, slot.shape))
            for location, layout in zip(locations[len(plan.slots) :], plan.outputs, strict=True):
                run.call.outputs.append(tensor_ref(location, layout.code, layout.shape))
            run.graph_id, run.part, run.step = self.spec.graph.graph_id, self.spec.part, step
            run.dump, run.compare = dump, references is not None
            held: list[object] = [inputs, call]
            for name, reference in zip(self.spec.output_names, references or (), strict=references is not None):
                run.references.append(placed_ref(f"reference of {name!r}", reference, held))
            policy.set(run)
            try:
                if connection.order.queues:
                    connection.order.wait_answers(connection)
                    if failed := connection.order.failed():
                        self._tell_late(connection, *failed)
                shown(connection, plan.device)
                with self._profiled():
                    answer = connection.ask(request, keep=held, about=f"graph {self.spec.graph.name}")
            except (ExecutorLost, DaemonLost) as lost:
                connection.hold(held)
                raise connection.loss(lost, self.spec.graph.name) from None
            except RustOrtError as error:
                if why := connection.why_unmapped(str(error)):
                    raise ClientError(f"{error}: {why}", code="BAD_TENSOR") from None
                raise
            outputs = plan.finish(call)
            if answer.dump:
                self.client.answered(str(answer.dump))
            return outputs, verdicts_from(answer.comparison), str(answer.dump)


class _NotBegun(Exception):
    """The peer was lost before it looked at the call."""

    def __init__(self, error: RustOrtError) -> None:
        super().__init__(error)
        self.error = error


def _after_fork_in_child() -> None:
    for part in list(_parts):
        part._plans_lock = threading.Lock()
        part._connection = None
        part._plans = {}
        part._recent = ()


process.after_fork_in_child.append(_after_fork_in_child)
