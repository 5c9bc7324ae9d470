"""A compiled AOT graph and how it is called: at once through its only part, or node by node with its parts in place."""

from __future__ import annotations

import itertools
import logging
import operator
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort.call.client import Client
from rust_ort.call.node_batch import NodesOf
from rust_ort.call.part import Part
from rust_ort.call.staging import as_plain
from rust_ort.errors import DaemonFault
from rust_ort.export.partition import may_do_more
from rust_ort.export.plan import Plan, PlannedPart, restrides
from rust_ort.export.unwritten import is_unwritten
from rust_ort.link.specs import GraphSpec, Policy, Verdict, not_compared
from rust_ort.observe import rules, session, torch_trace
from rust_ort.observe.graph_info import GraphInfo, note_call
from rust_ort.observe.nodes import GraphNodes, PartNodes, branches_before
from rust_ort.observe.placement import Placement
from rust_ort.observe.reference import generators, run_reference, set_generators
from rust_ort.observe.second_look import LOOKS_INSIDE_SECONDS, Known, SecondLook, looked_at_again
from rust_ort.observe.sums import Sums
from rust_ort.observe.verdicts import policy
from rust_ort.options import Options
from rust_ort.runtime.fast_path import fast_path
from rust_ort.torch_private import autocast_off, boxed, pytree

log = logging.getLogger("rust_ort")

RETRY_AFTER_S = 10.0
"""How long a graph compiled without a daemon waits, under on_daemon_error="eager", before it looks for one again."""

_observed = threading.local()


class PartRunner:
    """A part inside the outer graph: takes the part's arguments, returns its values."""

    def __init__(self, part: Part, planned: PlannedPart, info: GraphInfo) -> None:
        self.part = part
        self.planned = planned
        self.index = planned.graph.index
        self.outputs = planned.tensor_outputs
        self.returned = [node.name for node in pytree.tree_leaves(planned.graph.module.graph.output_node().args[0])]
        self._pick = planned.pick
        self._results = planned.results
        self._info = info
        self._eager_nodes = len(info.eager) if planned.graph.index == 0 else 0

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        inputs = [args[position] for position in self._pick]
        observation = getattr(_observed, "now", None)
        try:
            if observation is None:
                tensors = self.part(inputs, eager_nodes=self._eager_nodes)
            else:
                tensors = self.observe(args, inputs, observation)
        except DaemonFault as fault:
            fault.part = self.index
            raise
        return tuple(tensors[result] if isinstance(result, int) else result(args) for result in self._results)

    def observe(self, args: Sequence[Any], inputs: list[Any], observation: _Observation) -> list[torch.Tensor]:
        self.part.check(inputs)  # before eager's values are made for nothing
        nodes = observation.nodes.run(self.part, self.planned, args) if observation.nodes is not None else None
        try:
            return self._compared(args, inputs, observation, nodes)
        except BaseException:
            if nodes is not None:
                nodes.abandon()
            raise

    def _compared(
        self, args: Sequence[Any], inputs: list[Any], observation: _Observation, nodes: PartNodes | None
    ) -> list[torch.Tensor]:
        """The observed call. nodes: the part's, which were compared before."""
        values = nodes.references if nodes is not None else observation.references
        references = [values[name] for name in self.outputs] if values is not None else None
        tensors, verdicts, _ = self.part.observed(
            inputs,
            step=observation.step,
            dump=observation.dump,
            references=references,
            policy=observation.policy,
            eager_nodes=self._eager_nodes,
        )
        terms: dict[str, Any] = {}
        if references is not None:
            wrong = observation.nodes is not None and observation.nodes.is_wrong
            wrong = wrong or self._info.of_this_run.first_wrong_node() is not None
            verdicts = self._looked_at_again(args, references, tensors, verdicts, terms, observation, wrong=wrong)
            if nodes is None and any(verdict.kind == "mismatch" for verdict in verdicts):
                nodes = self._looked_inside(args, observation)
                if nodes is not None and any(node.is_wrong for node in nodes.verdicts):
                    verdicts = self._not_noise(references, tensors, verdicts, terms, observation)
        if nodes is not None:
            ties = nodes.finish(dict(zip(self.outputs, tensors, strict=True)), dump=observation.dump, terms=terms)
            verdicts = self._excused(references or [], tensors, verdicts, ties, observation)
            if nodes.is_right and not observation.differs:
                verdicts = self._moved_by_rounding(references or [], tensors, verdicts, terms, observation)
        # What follows from a value that is wrong is not put down to rounding.
        observation.differs |= any(not verdict.is_pass for verdict in verdicts)
        if references is not None:
            self._info.add_results(
                [tensor for tensor, verdict in zip(tensors, verdicts, strict=True) if verdict.is_pass]
            )
        self._info.add_verdicts(observation.step, verdicts)
        torch_trace.compared(self._info, observation.step, verdicts)
        return tensors

    def _looked_inside(self, args: Sequence[Any], observation: _Observation) -> PartNodes | None:
        """The part's nodes, compared where the outputs alone were to be: only they tell a branch that rounding turned,
        or a choice between equals, from a fault. None where that cannot be, or a wrong node of the graph is known: to
        whoever watches this run, of this run."""
        options, eagers = self._info.options, observation.references
        assert observation.again is not None and options is not None and eagers is not None
        is_long = observation.again.seconds > LOOKS_INSIDE_SECONDS
        if is_long or observation.policy.given is not None or self._info.of_this_run.first_wrong_node() is not None:
            return None
        call, names = observation.calls[self.planned.graph.name]
        nodes = PartNodes(
            of=NodesOf(part=self.part, step=observation.step),
            planned=self.planned,
            info=self._info,
            options=options,
            dump_values=False,
            branches_before=branches_before(call, observation.branches),
        )
        try:
            with torch.no_grad(), autocast_off():
                nodes.run([eagers[name] for name in names], args, None)
        except Exception as error:  # want of memory, too: the call has its outputs and its verdicts
            nodes.abandon()
            log.info("%s: its nodes could not be compared: %s", self._info.name, error)
            return None
        if nodes.branch:
            observation.branches[call.name] = nodes.branch
        return nodes

    def _excused(
        self, references: list[torch.Tensor], candidates: list[torch.Tensor], verdicts: Sequence[Verdict],
        ties: Mapping[str, str], observation: _Observation,
    ) -> list[Verdict]:  # fmt: skip
        """Mismatches that come of another branch are ties. ties: {output: why}, by FX names."""
        of = {
            verdict.name: (reference, candidate, ties[output])
            for verdict, output, reference, candidate in zip(
                verdicts, self.outputs, references, candidates, strict=True
            )
            if verdict.kind == "mismatch" and output in ties
        }
        judged = self._judged(of, observation, ties={name: why for name, (*_, why) in of.items()}) if of else []
        excused = {verdict.name: verdict for verdict in judged}
        return [excused.get(verdict.name, verdict) for verdict in verdicts]

    def _not_noise(
        self, references: list[torch.Tensor], candidates: list[torch.Tensor], verdicts: Sequence[Verdict],
        terms: Mapping[str, Any], observation: _Observation,
    ) -> list[Verdict]:  # fmt: skip
        """What was put down to noise before a node was known to be wrong, judged without it. terms: by FX names."""
        of = {
            verdict.name: (output, reference, candidate)
            for verdict, output, reference, candidate in zip(
                verdicts, self.outputs, references, candidates, strict=True
            )
            if verdict.kind == "noise"
        }
        sums = {} if observation.policy.is_half else {name: terms.get(output) for name, (output, *_) in of.items()}
        judged = self._judged({name: pair for name, (_, *pair) in of.items()}, observation, terms=sums) if of else []
        found = {verdict.name: verdict for verdict in judged}
        return [found.get(verdict.name, verdict) for verdict in verdicts]

    def _moved_by_rounding(
        self, references: list[torch.Tensor], candidates: list[torch.Tensor], verdicts: Sequence[Verdict],
        terms: Mapping[str, Any], observation: _Observation,
    ) -> list[Verdict]:  # fmt: skip
        """Mismatches that rounding makes as large are noise, where every node alone is right. terms: by FX names."""
        wrong = {
            output: verdict
            for output, verdict in zip(self.outputs, verdicts, strict=True)
            if verdict.kind == "mismatch"
        }
        known_wrong = self._info.of_this_run.first_wrong_node() is not None
        if not wrong or known_wrong or observation.policy.given is not None or observation.again is None:
            return list(verdicts)
        eagers = dict(zip(self.outputs, references, strict=True))
        spreads = observation.again.spreads(wrong, eagers)
        float64 = observation.again.float64(eagers)
        given = dict(zip(self.outputs, candidates, strict=True))
        moved = {output: wrong[output].name for output in spreads}

        def named(found: Mapping[str, Any]) -> dict[str, Any]:
            return {name: found.get(output) for output, name in moved.items()}

        values = {name: (eagers[output], given[output]) for output, name in moved.items()}
        sums = {} if observation.policy.is_half else named(terms)
        known = {"terms": sums, "exact": named(float64), "spreads": named(spreads)}
        judged = self._judged(values, observation, **known) if values else []
        found = {verdict.name: verdict for verdict in judged}
        return [found.get(verdict.name, verdict) for verdict in verdicts]

    def _judged(
        self, values: Mapping[str, Sequence[Any]], observation: _Observation, **known: Mapping[str, Any]
    ) -> list[Verdict]:
        """Verdicts of {name: (reference, candidate, ...)}, which the dump gets, too. known: as of `Client.compare`."""
        return observation.client.compare(
            [(name, reference, candidate, "") for name, (reference, candidate, *_) in values.items()],
            observation.policy,
            settles=(self._info.graph_id, self.index, observation.step),
            ordinal=self.part.spec.device,
            **known,
        )

    def _looked_at_again(
        self, args: Sequence[Any], references: list[torch.Tensor], candidates: list[torch.Tensor],
        verdicts: Sequence[Verdict], terms: dict[str, Any], observation: _Observation, *, wrong: bool,
    ) -> list[Verdict]:  # fmt: skip
        """args: of the part; terms: gets what outputs add up, by their FX names; wrong: whether a node alone is."""
        outputs = {verdict.name: output for verdict, output in zip(verdicts, self.outputs, strict=True)}
        values = dict(zip(outputs, zip(references, candidates, strict=True), strict=True))

        def named(found: Mapping[str, Any]) -> dict[str, Any]:
            return {name: found.get(output) for name, output in outputs.items()}

        def added_up() -> dict[str, Any]:
            terms.update(self._terms(args))
            return named(terms)

        def look(names: Collection[str], sums: Known, float64: Known) -> list[Verdict]:
            return self._judged({name: values[name] for name in names}, observation, terms=sums, exact=float64)

        def float64() -> dict[str, Any]:
            assert observation.again is not None  # there are references
            return named(observation.again.float64(dict(zip(self.outputs, references, strict=True))))

        # What was asked for is not put down to noise, nor what a wrong node may have done.
        excuses = observation.policy.given is None and not wrong
        half = observation.policy.is_half
        return looked_at_again(verdicts, look, added_up, float64 if excuses else None, half=half)

    def _terms(self, args: Sequence[Any]) -> dict[str, torch.Tensor | None]:
        """{output: what it adds up}, where it is a sum. args: of the part."""
        module, given = self.planned.graph.module, list(args)
        if restride := restrides(module):  # what another part gave is contiguous, and views need it as it was traced
            restride(given)
        with torch.no_grad(), autocast_off(), Sums() as sums:
            made = module(*given)
        return {name: sums.of(value) for name, value in zip(self.returned, pytree.tree_leaves(made), strict=True)}


@dataclass(kw_only=True)
class _Observation:
    """What is wanted of a call. references: {FX name: eager's value}, of what parts read and give; nodes: gives them,
    node by node. again: what is looked at where these differ. calls: {part: (the outer graph's call of it, what it
    reads)}, by FX names; branches: {call: the other branch that the part took}, of parts whose nodes were compared
    because outputs differed. differs: what a part gave before is outside tolerance, or was not compared."""

    step: int
    dump: bool
    references: dict[str, Any] | None
    nodes: GraphNodes | None
    policy: Policy
    again: SecondLook | None
    client: Client
    calls: Mapping[str, tuple[fx.Node, list[str]]]
    branches: dict[str, str] = field(default_factory=dict)
    differs: bool = False


class CompiledGraph:
    """A compiled AOT graph. Called with a list of its inputs (boxed: the list is emptied); returns its outputs."""

    def __init__(
        self, *, info: GraphInfo, plan: Plan, runners: list[PartRunner] | None, options: Options, graph: GraphSpec,
        prepare: Callable[[], list[PartRunner]],
    ) -> None:  # fmt: skip
        self.info = info
        info.code = weakref.ref(self)
        self._options = options
        self._graph = graph
        self._plan = plan
        self._module = plan.cut.module
        self._prepare = prepare
        self._preparing = threading.Lock()
        self._tried_at = time.monotonic()
        self._compare = options.compare != "off"
        self._restride_all = restrides(plan.cut.module)
        self._restride = restrides(plan.cut.outer)
        placeholders = (node for node in plan.cut.outer.graph.nodes if node.op == "placeholder")
        self._unused = [position for position, node in enumerate(placeholders) if not node.users]
        returned = pytree.tree_leaves(plan.cut.outer.graph.output_node().args[0])
        self._unwritten = [
            position for position, node in enumerate(returned) if isinstance(node, fx.Node) and is_unwritten(node)
        ]
        self._runners: list[PartRunner] | None = None
        self._calls: dict[str, tuple[fx.Node, list[str]]] = {}
        self._fast: Callable[[list[Any]], Any] | None = None
        self._outer: Callable[[list[Any]], Any] | None = None
        if runners is not None:
            self._link(runners)
        self._keep_inputs = options.on_daemon_error == "eager"
        self._warned = False
        self._steps = itertools.count()

    def __call__(self, args: list[Any]) -> Any:
        info = self.info
        step = next(self._steps)
        if info.unreachable is not None:
            self._try_again()
        note_call(info)
        if step == 1 and self._options.runtimes:
            rules.warn_of_idle(self._options)
        if session.current() is not None and session.must_show(info.graph_id, info.name):
            self._show()
        compare = self._compare and step % self._options.compare_every == 0
        if not compare and not session.dump_wanted(info.graph_id, info.name):
            if self._fast is not None and not self._keep_inputs:
                return self._fast(args)
            args[:] = map(as_plain, args)
            return self._guarded(args, None)
        args[:] = map(as_plain, args)
        return self._observed_call(args, step, compare=compare)

    def _link(self, runners: list[PartRunner]) -> None:
        self._fast = fast_path(self._plan, [runner.part for runner in runners])
        self._outer = _linked(self._plan, runners)
        self._calls = _calls(self._plan, runners)
        self._runners = runners
        self.info.placement = Placement.of(runner.part.prepared for runner in runners)
        if self._options.runtimes:
            self.info.division = rules.Division.of((runner.part.prepared for runner in runners), self._options)
            rules.note(self.info.division, self._options)

    def _try_again(self) -> None:
        """Prepares the parts that no daemon was there for when the graph was compiled; at most every few seconds."""
        if time.monotonic() - self._tried_at < RETRY_AFTER_S or not self._preparing.acquire(blocking=False):
            return
        try:
            if self.info.unreachable is not None:
                self._link(self._prepare())
                self.info.unreachable = None
                log.info("%s: the daemon is there now, its parts run on ONNX Runtime", self.info.name)
        except DaemonFault as fault:
            self.info.unreachable = fault
        finally:
            self._tried_at = time.monotonic()
            self._preparing.release()

    def _show(self) -> None:
        """Hands graph and models to a dump that was opened after they were compiled."""
        session.announce(self._options)
        if not self._runners:
            Client.get(self._options).register(self._graph)
        for runner in self._runners or ():
            runner.part.prepare(again=True)

    def _observed_call(self, args: list[Any], step: int, *, compare: bool) -> Any:
        if compare and not self._runners:
            self.info.add_verdicts(step, [_ran_in_eager(self.info, str(self.info.unreachable or ""))])
            compare = False
        by_nodes = compare and self._options.compare == "nodes"
        inputs = self._reference_inputs(args) if compare else []
        names = {name for runner in self._runners or () for name in runner.outputs}
        reads = {name for _, read in self._calls.values() for name in read}
        begin = time.monotonic()
        references = run_reference(self._module, inputs, capture=names | reads)[1] if compare and not by_nodes else None
        again = SecondLook(self._module, inputs, names, time.monotonic() - begin) if compare else None
        with session.data_set(self.info.graph_id, self.info.name, self._options) as data_set:
            step = step if data_set is None else data_set
            nodes = None
            if by_nodes:
                nodes = GraphNodes(
                    plan=self._plan,
                    info=self.info,
                    options=self._options,
                    inputs=inputs,
                    step=step,
                    dump=data_set is not None,
                )
            observation = _Observation(
                step=step,
                dump=data_set is not None,
                references=references,
                nodes=nodes,
                policy=policy(self._options, [self.info]),
                again=again,
                client=Client.get(self._options),
                calls=self._calls,
            )
            del inputs, again
            return self._guarded(args, observation)

    def _reference_inputs(self, args: list[Any]) -> list[Any]:
        inputs = list(args)
        if self._restride_all is not None:
            self._restride_all(inputs)
        return inputs

    def _guarded(self, args: list[Any], observation: _Observation | None) -> Any:
        """Runs the outer graph; on a lost daemon runs it in eager if the options say so, and nothing has run that a
        second run would do twice."""
        kept = list(args) if self._keep_inputs else None
        drawn = generators() if self._keep_inputs and self.info.eager else None
        try:
            return self._run(args, observation)
        except DaemonFault as fault:
            if kept is None:
                raise
            done = self._done_before(fault.part)
            if done:
                fault.add_note(f"not run again in eager: {', '.join(done)} ran already and may do more than it returns")
                raise
            if observation is not None and (observation.references is not None or observation.nodes is not None):
                self.info.add_verdicts(observation.step, [_ran_in_eager(self.info, str(fault))])
            if drawn is not None:  # eager nodes before the loss may have drawn: the rerun draws the same
                set_generators(drawn)
            return self._in_eager(kept, fault)

    def _done_before(self, part: int | None) -> list[str]:
        """Names of the custom operators and collectives that run before a part of the graph."""
        if part is None:
            return []
        name = self._plan.parts[part].graph.name
        outer = self._plan.cut.outer
        before = itertools.takewhile(lambda node: node.target != name, outer.graph.nodes)
        return [node.name for node in before if may_do_more(outer, node)]

    def _run(self, args: list[Any], observation: _Observation | None) -> Any:
        if not self._runners:
            if self.info.unreachable is not None:
                # Raised at every call: without this each raise would add to its traceback and keep the call's inputs.
                raise self.info.unreachable.with_traceback(None)
            if self.info.eager:
                Client.get(self._options).report_eager(self._graph, len(self.info.eager))
        if self._restride is not None and self.info.eager:
            self._restride(args)
        _observed.now, before = observation, getattr(_observed, "now", None)
        for position in self._unused:
            args[position] = None
        try:
            with autocast_off():
                assert self._outer is not None
                outputs = self._outer(args)
        finally:
            _observed.now = before
        if self._unwritten:
            self.info.add_unwritten([outputs[position] for position in self._unwritten])
        return outputs

    def _in_eager(self, args: list[Any], fault: DaemonFault) -> Any:
        self.info.note_fallback(fault)
        if not self._warned:
            self._warned = True
            log.warning("%s runs in eager because on_daemon_error is 'eager': %s", self.info.name, fault)
        with autocast_off():
            if self._restride_all is not None:
                self._restride_all(args)
            return self._module(*args)


def _ran_in_eager(info: GraphInfo, why: str = "") -> Verdict:
    """Eager is never compared with eager."""
    reasons = why or "; ".join(sorted({node.reason for node in info.eager})) or "it computes nothing"
    return not_compared(info.name, f"ran in eager: {reasons}")


def _calls(plan: Plan, runners: Sequence[PartRunner]) -> dict[str, tuple[fx.Node, list[str]]]:
    """{part: (its call in the outer graph, names in the whole graph of what it reads)}."""
    returned = {runner.planned.graph.name: runner.returned for runner in runners}

    def name(read: fx.Node) -> str:
        source, place = read.args if read.target is operator.getitem else (None, 0)
        made = returned.get(str(source.target), []) if isinstance(source, fx.Node) else []
        return str(made[int(place)]) if made else read.name  # type: ignore[arg-type]

    calls = [node for node in plan.cut.outer.graph.nodes if node.op == "call_module"]
    return {str(call.target): (call, [name(read) for read in call.all_input_nodes]) for call in calls}


def _linked(plan: Plan, runners: Sequence[PartRunner]) -> Callable[[list[Any]], Any]:
    """The outer module with each part replaced by its runner, as a boxed call."""
    outer = plan.cut.outer
    for planned, runner in zip(plan.parts, runners, strict=True):
        delattr(outer, planned.graph.name)
        object.__setattr__(outer, planned.graph.name, runner)
    return boxed(outer)
