"""compare="nodes": eager runs an AOT graph node by node, and hands each node's value over to be compared.

The reference walks beside the candidate, part by part, and draws the same random numbers. Of a part, nodes go over in
batches, so that what is alive at a time stays under a bound: references, candidates and locals of the batch, and what
later nodes read of the batches before.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rust_ort.call.client import Client
from rust_ort.call.node_batch import NodeFeed, NodesOf, NodeValue, NotCompared, can_travel, reachable
from rust_ort.call.part import Part
from rust_ort.errors import RustOrtError
from rust_ort.export.partition import EagerNode, is_compute
from rust_ort.export.plan import Plan, PlannedPart
from rust_ort.export.provenance import computed_by, module_path, operator_name, source_line
from rust_ort.export.unwritten import UNWRITTEN, is_unwritten
from rust_ort.link.specs import BY_DTYPE, Verdict, not_compared
from rust_ort.memory import device
from rust_ort.observe import torch_trace
from rust_ort.observe.branches import branch_behind, near_a_branch, other_branch, rectifier
from rust_ort.observe.choices import WHY_OPEN, Open, why_open
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.observe.opinion import Opinions
from rust_ort.observe.reference import as_traced, generators, set_generators
from rust_ort.observe.report import noise_text
from rust_ort.observe.terms import Terms
from rust_ort.observe.turned import turned
from rust_ort.observe.verdicts import fits, policy
from rust_ort.observe.wide import WideGraph, reason_of
from rust_ort.options import Options
from rust_ort.progress import progress, tick
from rust_ort.torch_private import autocast_off, pytree

log = logging.getLogger("rust_ort")

COPIES = 4
"""Of a node's value while its batch is judged: eager's, its copy in shared memory, the candidate, the local one."""

KEPT_COPIES = 3
"""Of a value that a later batch reads: the local one is gone."""

WIDE_BYTES = 32
"""Of an element while its batch is judged, where float64 is asked for: two values, each shared and not."""

UNSHARED = 2
"""On a device there is no copy in shared memory: of a value one less, of float64 half as much."""

FREE_SHARE = 2
"""A batch takes no more than one of so many bytes of a device that nobody has."""

BATCH_NODES = 256

LAYER_NODES = 32
"""From so many on a batch ends with its layer: layers repeat, and what is run of equal batches is one session."""

NO_FLOAT64 = "inside the tolerance of its type; the operator has no float64 to ask"

NO_VALUE = "the ONNX model has no value of its own for it"
UNUSED = "none of its results is used"
HIDING_NOTHING = frozenset({NO_VALUE, UNUSED, UNWRITTEN})
"""Why a node is not compared that computes nothing, or is compared with the node that reads it."""


@dataclass(kw_only=True)
class _Known:
    """A value that later nodes may read. reference: where the executor reaches it; candidate: ONNX Runtime's."""

    reference: torch.Tensor | int | float
    candidate: torch.Tensor | int | float


class GraphNodes:
    """The comparison of one call of a graph. `at(part)` takes the reference up to that part."""

    def __init__(
        self, *, plan: Plan, info: GraphInfo, options: Options, inputs: Sequence[Any], step: int, dump: bool
    ) -> None:
        self._plan = plan
        self._info = info
        self._options = options
        self._step = step
        self._dump_values = dump and options.dump_values
        self._interpreter = fx.Interpreter(plan.cut.outer)
        self._interpreter.args_iter = iter(inputs)
        self._nodes = iter(plan.cut.outer.graph.nodes)
        self._wide = WideGraph() if options.compare_float64 == "all" else None
        self._generators = generators()
        self._branches: dict[str, str] = {}
        """{node of the outer graph: the other branch that a part took}."""
        self.is_wrong = False
        """Whether a node alone is, of the parts so far."""
        left = [n for n in info.eager if fits(options.compare_only, (n.name, n.op, n.module))]
        info.add_nodes(step, [_left_to_eager(node) for node in left], [])

    def run(self, part: Part, planned: PlannedPart, candidates: Sequence[Any]) -> PartNodes:
        """Compares every node of the part that is next in the graph. candidates: what the part is called with."""
        with self._as_reference():
            call = self._next_part()
            interpreter = self._interpreter
            references = interpreter.fetch_args_kwargs_from_env(call)[0]
            nodes = PartNodes(
                of=NodesOf(part=part, step=self._step),
                planned=planned,
                info=self._info,
                options=self._options,
                dump_values=self._dump_values,
                branches_before=branches_before(call, self._branches),
            )
            wide = self._wide
            carried = (
                None
                if wide is None
                else [wide.values.get(arg, arg) if isinstance(arg, fx.Node) else arg for arg in call.args]
            )
            try:
                interpreter.env[call] = nodes.run(references, candidates, carried)
            except BaseException:
                nodes.abandon()
                raise
            self.is_wrong = self.is_wrong or any(node.is_wrong for node in nodes.verdicts)
            if nodes.branch:
                self._branches[call.name] = nodes.branch
            if wide is not None:
                wide.values[call] = nodes.wide_outputs
            self._forget(call)
        return nodes

    def _next_part(self) -> fx.Node:
        node: fx.Node
        for node in self._nodes:
            if node.op == "call_module":
                return node
            value = self._interpreter.env[node] = as_traced(node, self._interpreter.run_node(node))
            if self._wide is not None:
                (self._wide.take if node.op in ("placeholder", "get_attr") else self._wide.step)(node, value)
            self._forget(node)
        raise AssertionError("a part was called that the graph does not have")

    def _forget(self, node: fx.Node) -> None:
        for last in self._interpreter.user_to_last_uses.get(node, ()):
            del self._interpreter.env[last]
            if self._wide is not None:
                self._wide.values.pop(last, None)

    @contextlib.contextmanager
    def _as_reference(self) -> Iterator[None]:
        """The reference's generators go on where it left them; the candidate's are untouched."""
        candidates = generators()
        set_generators(self._generators)
        try:
            with torch.no_grad(), autocast_off():
                yield
        finally:
            self._generators = generators()
            set_generators(candidates)


@dataclass(kw_only=True)
class PartNodes:
    """One part's nodes in one call. `references`: {FX name: eager's value} of the part's outputs; `wide_outputs`: their
    float64, where it is carried. `branches_before`: for each argument of the part the other branch that it comes of, or
    ""."""

    of: NodesOf
    planned: PlannedPart
    info: GraphInfo
    options: Options
    dump_values: bool
    branches_before: Sequence[str] = ()
    references: dict[str, Any] = field(default_factory=dict)
    wide_outputs: tuple[Any, ...] = ()
    verdicts: list[NodeVerdict] = field(default_factory=list)
    _known: dict[str, _Known] = field(default_factory=dict)
    _instrumented: dict[str, torch.Tensor] = field(default_factory=dict)
    _batch: list[tuple[fx.Node, NodeValue | NotCompared]] = field(default_factory=list)
    _batch_bytes: int = 0
    _kept_bytes: int = 0
    _stopped_by: str = ""
    _branches: dict[str, str] = field(default_factory=dict)
    _near: dict[str, torch.Tensor | None] = field(default_factory=dict)
    _bounds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _wide: WideGraph | None = None
    _ordinal: int | None = None
    """Number of the CUDA device that the part's tensors lie on, but for scalars of the host."""
    _most_bytes: int = 0

    def run(self, references: Sequence[Any], candidates: Sequence[Any], wide: Sequence[Any] | None) -> tuple[Any, ...]:
        """Eager's values of what the part returns. candidates, and wide, their float64 where that is carried: in the
        order of the part's placeholders."""
        graph = self.planned.graph.module.graph
        self._named = frozenset(self.planned.translated.named_values)
        self._outputs = {node.name for node in pytree.tree_leaves(graph.output_node().args[0])}
        self._last_use = _last_uses(graph)
        self._ordinal = self.of.part.spec.device
        self._most_bytes = self.options.compare_memory
        if self._ordinal is not None:
            self._most_bytes = min(self._most_bytes, device.free_bytes(self._ordinal) // FREE_SHARE)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, reference, candidate in zip(placeholders, references, candidates, strict=True):
            self._know(node, reference, candidate)
        before = zip(placeholders, self.branches_before, strict=False)
        self._branches = {node.name: branch for node, branch in before if branch}
        if wide is not None:
            self._wide = WideGraph()
            for node, value in zip(placeholders, wide, strict=True):
                self._wide.take(node, value)
        interpreter = fx.Interpreter(self.planned.graph.module, garbage_collect_values=False)
        interpreter.args_iter = iter(references)
        with progress(f"{self.info.name}: comparing with eager", unit="nodes", total=len(graph.nodes)):
            self._compare(interpreter)
        returned = interpreter.fetch_args_kwargs_from_env(graph.output_node())[0][0]
        nodes = pytree.tree_leaves(graph.output_node().args[0])
        self.references = dict(zip((node.name for node in nodes), pytree.tree_leaves(returned), strict=True))
        if self._wide is not None:
            self.wide_outputs = tuple(self._wide.values[node] for node in nodes)
        return tuple(pytree.tree_leaves(returned))

    def _compare(self, interpreter: fx.Interpreter) -> None:
        """Runs the part in eager and has its nodes judged, batch by batch."""
        for node in self.planned.graph.module.graph.nodes:
            if node.op == "output":
                break
            start = time.perf_counter_ns()
            value = interpreter.env[node] = as_traced(node, interpreter.run_node(node))
            nanoseconds = time.perf_counter_ns() - start
            if self._wide is not None and node.op != "placeholder":
                (self._wide.take if node.op == "get_attr" else self._wide.step)(node, value)
            if node.op == "call_function":
                self._take(node, value, nanoseconds, interpreter.env)
            full = len(self._batch) >= BATCH_NODES
            full = full or self._batch_bytes + self._kept_bytes > self._most_bytes
            full = full or (len(self._batch) >= LAYER_NODES and _ends_layer(node))
            if full and not _parts_results(node):
                self._judge(interpreter.env)
            tick()
        self._judge(interpreter.env)

    @property
    def branch(self) -> str:
        """The first branch that is another than eager's, here or before; "" for none."""
        return next(iter(self._branches.values()), "")

    @property
    def is_right(self) -> bool:
        """Every node alone was looked at, and is as right as eager's."""
        locals_ = (node.local for node in self.verdicts)
        looked = all((local.is_pass and not local.is_worse) or local.reason in HIDING_NOTHING for local in locals_)
        return looked and not self.options.compare_only

    def finish(
        self, plain: Mapping[str, torch.Tensor], *, dump: bool, terms: Mapping[str, torch.Tensor | None]
    ) -> dict[str, str]:
        """Judges what observing changed, and hands the verdicts to the graph's record. terms: of outputs that are sums
        and differ from eager's.

        Returns {output: the other branch that it comes of}, of outputs that are as these nodes give them, where every
        node alone is as right as eager's.
        """
        pairs = [
            (name, instrumented, plain[name], terms.get(name))
            for name, instrumented in self._instrumented.items()
            if name in plain
        ]
        changed = self.of.finish(pairs, dump=dump, policy=policy(self.options, [self.info]))
        self.info.add_nodes(self.of.step, self.verdicts, changed)
        torch_trace.compared_nodes(self.info, self.of.step, self.verdicts)
        self.info.add_right(self.planned.graph.index, right=self.is_right)
        outputs = pytree.tree_leaves(self.planned.graph.module.graph.output_node().args[0])
        if self.info.direction != "backward":
            self.info.add_turned(
                turned(outputs, self.info.operators, self.references, plain, self._near), self._branches
            )
        accused = any(node.is_wrong or node.is_failed for node in self.verdicts)
        if accused or self.options.compare_only or self.options.tolerance is not None:
            return {}
        same = {verdict.name for verdict in changed if verdict.is_pass}
        behind = {node.name: branch_behind(node, self._branches) for node in outputs if node.name in same}
        found = {name: f"{text}; each node alone is as eager's" for name, text in behind.items() if text}
        return found | self._turned_by_optimizing(changed, plain)

    def _turned_by_optimizing(self, changed: Sequence[Verdict], plain: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """{output: why} of comparisons that come out otherwise where nothing is observed, each by less than its sides
        may be off."""
        found = {}
        for name in (verdict.name for verdict in changed if verdict.kind == "mismatch"):
            near, reference = self._near.get(name), self.references.get(name)
            if near is None or not isinstance(reference, torch.Tensor) or plain[name].shape != reference.shape:
                continue
            other = plain[name] != reference
            if bool(near.expand(other.shape)[other].all()):
                n_other, n = int(other.sum()), reference.numel()
                found[name] = (
                    f"{n_other:,} of {n:,} elements of {name} took the other branch, as the model runs unobserved"
                )
        return found

    def abandon(self) -> None:
        """Ends the comparison of a call that failed: another graph of the same content has this step, too."""
        with contextlib.suppress(RustOrtError):
            self.of.finish([], dump=False, policy=BY_DTYPE)

    # --- collecting ---

    def _know(self, node: fx.Node, reference: Any, candidate: Any) -> None:
        # What the model does not read, as a constant that its translation folded into another value, is no feed of it.
        read = node.name in self._last_use and node.name in self.planned.translated.input_names
        if read and can_travel(reference) and can_travel(candidate):
            self._known[node.name] = _Known(reference=reference, candidate=candidate)

    def _take(self, node: fx.Node, value: Any, nanoseconds: int, env: Mapping[fx.Node, Any]) -> None:
        if isinstance(value, torch.Tensor):
            entry = self._entry(node, value, nanoseconds)
            if isinstance(entry, NodeValue):
                self._widen(node, value, entry, env)
                self._batch_bytes += self._bytes_of(value)
            elif not _selected(node, self.options.compare_only):
                return
            self._batch.append((node, entry))
        elif isinstance(value, int | float):  # a size: exact by definition, and not judged
            if node.name in self._named and can_travel(value):
                self._known[node.name] = _Known(reference=value, candidate=value)
        elif not any(user.target is operator.getitem and user.name in self._named for user in node.users):
            self._batch.append((node, NotCompared(name=node.name, reason=UNUSED)))

    def _bytes_of(self, value: torch.Tensor) -> int:
        """What a value takes while its batch is judged."""
        wide = WIDE_BYTES * value.numel() if self._wide else 0
        if self._ordinal is None:
            return COPIES * value.nbytes + wide
        return (COPIES - 1) * value.nbytes + wide // UNSHARED

    def _entry(self, node: fx.Node, value: torch.Tensor, nanoseconds: int) -> NodeValue | NotCompared:
        if node.name not in self._named:
            return NotCompared(name=node.name, reason=NO_VALUE)
        if is_unwritten(node):
            return NotCompared(name=node.name, reason=UNWRITTEN, nothing=True)
        if not can_travel(value):
            return NotCompared(name=node.name, reason=f"{value.dtype} on {value.device} cannot be compared")
        if self._stopped_by:
            return NotCompared(
                name=node.name, reason=f"after the first mismatch, {self._stopped_by} (option compare_stop)"
            )
        return NodeValue(
            name=node.name,
            reference=reachable(value),
            reference_ns=nanoseconds,
            judge=_selected(node, self.options.compare_only),
        )

    def _widen(self, node: fx.Node, value: torch.Tensor, entry: NodeValue, env: Mapping[fx.Node, Any]) -> None:
        """What is to be judged gets its float64, alone and as it drifted, where that was asked for."""
        if self._wide is None or not entry.judge:
            return
        entry.no_float64 = reason_of(node, value)
        if not entry.no_float64:
            entry.exact, alone = self._wide.alone(node, value, env)
            entry.exact_cumulative, carried = self._wide.carried(node)
            entry.no_float64 = alone or carried

    # --- judging ---

    def _judge(self, env: dict[fx.Node, Any]) -> None:
        """Sends the batch, keeps its verdicts, forgets what no later node reads."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return
        values = [value for _, value in batch]
        computed = {value.name for value in values if isinstance(value, NodeValue)}
        feeds = [
            NodeFeed(name=name, reference=known.reference, candidate=known.candidate)
            for name in _read_by([node for node, _ in batch], computed)
            if (known := self._known.get(name)) is not None
        ]
        judged = [(node, value) for node, value in batch if isinstance(value, NotCompared) or value.judge]
        verdicts = self.of.compare(
            feeds,
            values,
            policy=policy(self.options, [self.info]),
            dump_values=self.dump_values,
        )
        opinions, terms = Opinions(env), Terms(env)
        wrong = any(node.is_wrong for node in self.verdicts)
        for (node, value), (local, cumulative, births) in zip(judged, verdicts, strict=True):
            choice: Open = ""
            doubted = local.kind == "mismatch"
            # Where float64 is NaN too, NaN is no rounding: whoever asked for it has it differ.
            tolerance = self.options.tolerance
            nan = tolerance is not None and not tolerance.equal_nan and bool((local.metrics or {}).get("both_nan"))
            if local.kind == "mismatch" and isinstance(value, NodeValue) and not nan:
                assert value.local is not None
                choice = why_open(node, value.local, env, _beside(node, batch))
                if choice:
                    local, cumulative = self.of.settle_as_right(value, WHY_OPEN[choice])
                else:
                    local, cumulative = self._settled(node, value, (local, cumulative), opinions)
            wrong |= local.kind == "mismatch"
            # Float64 of all says more than what was added up; what a wrong node may have done is no rounding.
            drifted = cumulative.kind == "mismatch" and not cumulative.is_worse and not wrong
            if isinstance(value, NodeValue) and local.is_pass and drifted:
                added = terms.of(node)
                local, cumulative = (local, cumulative) if added is None else self.of.settle_drift(value, added)
            branch = f"{node.name}: {WHY_OPEN[choice]}" if choice else ""
            if isinstance(value, NodeValue) and local.is_pass:
                self._near[node.name] = near = self._near_a_branch(node, env)
                if cumulative.kind == "mismatch" and _is_near(near, value):
                    branch = branch or other_branch(node, value.candidate, env)
                if doubted and local.noise is not None and local.noise["kind"] == "reference_worse":
                    branch = branch or f"{node.name}: eager's kernel is wrong, {noise_text(local)}"
            if branch:
                self._branches[node.name] = branch
            self._keep(node, local, cumulative, births, getattr(value, "no_float64", ""), choice)
        for node, value in batch:
            if isinstance(value, NodeValue):
                self._known[node.name] = _Known(reference=value.reference, candidate=value.candidate)
                if node.name in self._outputs:
                    self._instrumented[node.name] = value.candidate
        self._forget(batch[-1][0], env)

    def _near_a_branch(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> torch.Tensor | None:
        """As `near_a_branch`; of what asks where a rectifier is zero, what holds of the rectifier."""
        of = rectifier(node)
        return near_a_branch(node, env, self._bounds) if of is None else self._near.get(of.name)

    def _settled(
        self,
        node: fx.Node,
        value: NodeValue,
        verdicts: tuple[Verdict, Verdict],
        opinions: Opinions,
    ) -> tuple[Verdict, Verdict]:
        """The verdicts of a local mismatch when all is known: by float64 and by what was added up."""
        assert value.local is not None
        if not value.reference.is_floating_point():
            return verdicts
        metrics = verdicts[0].metrics or {}
        exact = opinions.of(node, value.reference, value.local, metrics["tolerance"])
        if exact is not None:
            reference, local = exact.of(value.reference), exact.of(value.local)
            return self.of.settle(value.name, exact.values, reference=reference, local=local, terms=exact.terms)
        # Steps of each element are for what float64 can settle.
        pair = (node.name, value.reference, value.local, "")
        by_dtype = Client.get(self.options).compare([pair], ordinal=self._ordinal)[0]
        return self.of.settle_as_right(value, NO_FLOAT64) if by_dtype.kind == "match" else verdicts

    def _keep(
        self, node: fx.Node, local: Verdict, cumulative: Verdict, births: Sequence[dict[str, Any]], no_float64: str,
        choice: Open,
    ) -> None:  # fmt: skip
        source = computed_by(node)
        verdict = NodeVerdict(
            part=self.planned.graph.index,
            name=node.name,
            op=operator_name(source),
            module=module_path(source),
            source=source_line(source),
            local=local,
            cumulative=cumulative,
            no_float64=no_float64,
            choice=choice,
            births=tuple(births),
        )
        self.verdicts.append(verdict)
        if local.is_pass and cumulative.metrics is not None:
            self._bounds[node.name] = cumulative.metrics
        if verdict.is_wrong and not self._stopped_by and self.options.compare_stop == "first":
            self._stopped_by = node.name

    def _forget(self, done: fx.Node, env: dict[fx.Node, Any]) -> None:
        """Drops every value whose last reader has been judged. Outputs stay until the part returns."""
        for name in [name for name in self._known if self._dead(name, done)]:
            del self._known[name]
        for node in [node for node in env if self._dead(node.name, done) and node.name not in self._outputs]:
            del env[node]
            if self._wide is not None:
                self._wide.values.pop(node, None)
        made = (known.reference for name, known in self._known.items() if name in self._named)
        copies = KEPT_COPIES if self._ordinal is None else KEPT_COPIES - 1
        self._kept_bytes = copies * sum(value.nbytes for value in made if isinstance(value, torch.Tensor))
        if self._wide is not None:
            wide = (value for value in self._wide.values.values() if isinstance(value, torch.Tensor))
            self._kept_bytes += sum(value.nbytes for value in wide)

    def _dead(self, name: str, done: fx.Node) -> bool:
        last = self._last_use.get(name)
        return last is None or not last > done


def branches_before(call: fx.Node, branches: Mapping[str, str]) -> list[str]:
    """For each argument of a part's call the other branch that it comes of, or ""."""
    return [branch_behind(arg, branches) if isinstance(arg, fx.Node) else "" for arg in call.args]


def _is_near(near: torch.Tensor | None, value: NodeValue) -> bool:
    """Whether each element that is not eager's may come out otherwise, as far as that is known."""
    if near is None or value.reference.dtype is not torch.bool:
        return True
    if value.candidate is None or value.candidate.shape != value.reference.shape:
        return True
    other = value.candidate != value.reference
    return bool(near.expand(other.shape)[other].all())


def _left_to_eager(node: EagerNode) -> NodeVerdict:
    verdict = not_compared(node.name, f"ran in eager: {node.reason}")
    return NodeVerdict(
        part=None, name=node.name, op=node.op, module=node.module, source=node.source, local=verdict, cumulative=verdict
    )


def _last_uses(graph: fx.Graph) -> dict[str, fx.Node]:
    """{FX name: the last node that reads its value, through nodes without a value of their own too}."""
    last: dict[str, fx.Node] = {}
    for node in graph.nodes:
        for source in _sources(node):
            last[source.name] = node
    return last


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """What a node reads; of a node that unpacks, also what the unpacked one reads, and of an index that is spread also
    what it is spread from: rules for graph networks take that (`rules.indexing.line_of`)."""
    for source in node.all_input_nodes:
        yield source
        if node.target is operator.getitem or source.target is torch.ops.aten.expand.default:
            yield from source.all_input_nodes


def _beside(node: fx.Node, batch: Sequence[tuple[fx.Node, NodeValue | NotCompared]]) -> dict[int, torch.Tensor]:
    """{position: the candidate's value} of the other results of the operator that a node parts, on eager's inputs."""
    return {
        int(other.args[1]): value.local  # type: ignore[arg-type]
        for other, value in batch
        if other is not node
        and node.target is other.target is operator.getitem
        and other.args[0] is node.args[0]
        and isinstance(value, NodeValue)
        and value.local is not None
    }


def _parts_results(node: fx.Node) -> bool:
    """Whether a batch that ends with this node parts results of one operator, which read each other in its model."""
    return node.next.target is operator.getitem and node.next.args[0] is computed_by(node)


def _ends_layer(node: fx.Node) -> bool:
    """Whether the next node is of another layer, of those that are numbered."""
    return node.next.op == "call_function" and "" != _layer_of(node.next) != _layer_of(node) != ""


def _layer_of(node: fx.Node) -> str:
    """Path of the outermost numbered module that a node is of, such as "model.layers.3"; "": of none."""
    path = module_path(computed_by(node)).split(".")
    numbered = next((place for place, name in enumerate(path, 1) if name.isdigit()), 0)
    return ".".join(path[:numbered])


def _read_by(nodes: Sequence[fx.Node], computed: set[str]) -> list[str]:
    """Names of values that nodes read and that are not made among them, in the order of first use."""
    return list(
        dict.fromkeys(source.name for node in nodes for source in _sources(node) if source.name not in computed)
    )


def _selected(node: fx.Node, patterns: Sequence[str]) -> bool:
    """Whether a pattern is the node's name, operator or module."""
    if not is_compute(node) and node.target is not operator.getitem:
        return False
    source = computed_by(node)
    return fits(patterns, (node.name, operator_name(source), module_path(source)))
