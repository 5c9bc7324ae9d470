"""The coverage study: its judge, its verdicts, its workers, a slice of docs/results/coverage.json held as the floor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Daemon
from support import FakeClient, FakePart
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput

from measure import coverage, coverage_item, coverage_report, coverage_sample
from measure.coverage_item import Item, Result, run_item, spread
from measure.coverage_judge import difference
from measure.coverage_sample import FAULTS, Judged, judge_sample, together
from rust_ort.errors import ClientError

nan, inf = math.nan, math.inf
half, single = torch.float16, torch.float32


def tensor(*values: Any, dtype: torch.dtype = single) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (tensor(nan, inf, -inf, 0.0), tensor(nan, inf, -inf, -0.0)),
        (tensor(1.0), tensor(1.000002)),
        (tensor(1.0, dtype=half), tensor(1.001, dtype=half)),
        (tensor(2**62 + 1, dtype=torch.int64), tensor(2**62 + 1, dtype=torch.int64)),
        (torch.tensor(complex(nan, 1)), torch.tensor(complex(nan, 1))),
        (tensor(), tensor()),
        (tensor(1.0, 0.0).to_sparse(), tensor(1.0, 0.0).to_sparse()),
    ],
)
def test_what_is_as_good_as_eager(reference: Tensor, candidate: Tensor) -> None:
    assert difference(reference, candidate) == ""


@pytest.mark.parametrize(
    ("reference", "candidate", "says"),
    [
        (tensor(1.0), tensor(1.00002), "1 of 1 elements, worst at (0,): 1.0000200271606445, expected 1.0"),
        (tensor(1.0, nan), tensor(1.0, 0.0), "1 of 2 elements, worst at (1,): 0.0, expected nan"),
        (tensor(inf), tensor(-inf), "worst at (0,): -inf, expected inf"),
        (tensor(0.0), tensor(nan), "worst at (0,): nan, expected 0.0"),
        (tensor(2**62 + 1, dtype=torch.int64), tensor(2**62, dtype=torch.int64), "1 of 1 elements"),
        (tensor(True), tensor(False), "1 of 1 elements"),
        (tensor(1.0), tensor(1.0, dtype=half), "torch.float16, expected torch.float32"),
        (tensor(1.0), tensor(1.0).reshape(()), "shape (), expected (1,)"),
    ],
)
def test_what_differs(reference: Tensor, candidate: Tensor, says: str) -> None:
    assert says in difference(reference, candidate)


@pytest.mark.parametrize(
    ("reference", "candidate", "exact", "right"),
    [
        (1.0, 1.002, 1.001, True),  # eager is as far away, on the other side
        (1.0, 1.003, 1.001, True),  # twice as far
        (1.0, 1.006, 1.001, False),
        (1.0, 1.004, 1.0, False),  # eager is exact, and this is four steps away
        (0.0, 1e-3, 0.0, False),  # a step around 0 is the smallest number
        (inf, 6e4, 7e4, False),  # where eager overflows, nothing is excused
        (nan, 1.0, 1.0, True),
        (1.0, nan, nan, False),
    ],
)
def test_the_float64_value_excuses_at_most_twice_eagers_distance(
    reference: float, candidate: float, exact: float, right: bool
) -> None:
    precise = tensor(exact, dtype=torch.float64)
    text = difference(tensor(reference, dtype=half), tensor(candidate, dtype=half), lambda: [precise])
    assert (text == "") is right, text


@pytest.mark.parametrize(
    ("candidate", "right"),
    [
        ((8.0, 1.0, 0.0), True),
        ((8.04, 1.0, 0.0), True),  # twice as far as eager
        ((8.0, 1.01, 0.0), True),  # a rounding of the inputs is as far there
        ((8.0, 1.1, 0.0), False),  # nearer than that rounding, farther than eager's farthest
        ((8.0, 1.0, 0.01), False),  # no rounding changes what is 0
    ],
)
def test_a_rounding_of_the_inputs_excuses_at_most_eagers_farthest(candidate: tuple[float, ...], right: bool) -> None:
    exact = [tensor(8.0, one, 0.0, dtype=torch.float64) for one in (1.0, 1.1)]
    text = difference(tensor(8.02, 1.0, 0.0, dtype=half), tensor(*candidate, dtype=half), lambda: exact)
    assert (text == "") is right, text


def test_what_eager_may_round_is_seen_by_several_runs_of_its_own() -> None:
    """A sum whose rounding is of the size of what is added up, which no float64 run of it shows."""
    terms = torch.linspace(-1e4, 1e4, 4001)
    sample = SampleInput(terms)

    def one_by_one(x: Tensor, *_: object) -> Tensor:
        return x.cumsum(0)[-1]

    _, *others = coverage_sample._exactly(one_by_one, sample, backward=False)
    dtypes = [ran.outputs[0].dtype for ran in others]
    assert dtypes == [torch.float64, torch.float32] * coverage_sample.ROUNDINGS
    again = coverage_sample.run(one_by_one, sample, backward=False, retaken=coverage_sample.Retaken(wide=False))
    assert torch.equal(again.outputs[0], one_by_one(terms))


def test_samples_are_the_first_and_some_of_the_rest() -> None:
    assert [spread(2, 3), spread(10, 1), spread(10, 2), spread(10, 3), spread(10, 6)] == [
        [0, 1],
        [0],
        [0, 9],
        [0, 1, 9],
        [0, 1, 2, 4, 6, 9],
    ]
    assert spread(4, 0) == [0, 1, 2, 3]


@pytest.mark.parametrize(("op", "dtype", "described"), coverage_item.EAGERS_OWN)
def test_what_is_eagers_own_is_a_sample(op: str, dtype: str, described: str) -> None:
    info = coverage_item.op_infos()[op]
    samples = coverage_item.samples_of(info, getattr(torch, dtype), count=0, requires_grad=True)
    assert described in [coverage_item.described(sample) for _, sample in samples]


def test_samples_are_judged_together_and_halved_where_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def judge(_: Any, sample: Any, **__: Any) -> dict[str, Judged]:
        given = sample.input if isinstance(sample.input, list) else [(sample.input, (), {})]
        asked.append([int(value) for value, _, _ in given])
        bad = 5 in asked[-1]
        return {"forward": Judged(verdict="wrong", detail="planted") if bad else Judged(verdict="right")}

    samples = [(index, SampleInput(torch.tensor(float(index)))) for index in range(16)]
    monkeypatch.setattr(coverage_item, "judge_sample", judge)
    monkeypatch.setattr(coverage_item, "samples_of", lambda *_, **__: samples)
    result = run_item(Item(op="sin", dtype="float32", samples=0))
    assert (result.forward, result.samples) == ("wrong", 16)
    assert [(index, detail) for index, _, _, _, detail in result.notes] == [(5, "planted")]
    assert [len(values) for values in asked] == [16, 8, 4, 4, 2, 1, 1, 2, 8]


def test_samples_together_are_one_function_of_all() -> None:
    samples = [SampleInput(torch.ones(2), args=(index,)) for index in range(3)]
    function, sample = together(torch.mul, samples)
    torch.testing.assert_close(function(sample.input), [torch.full((2,), float(index)) for index in range(3)])
    assert sample.output_process_fn_grad([1, 2, 3]) == [1, 2, 3]


class OffByOne(FakePart):
    """A backend that is wrong."""

    def __call__(self, inputs: Any, *, eager_nodes: int = 0) -> list[Tensor]:
        return [output + 1 for output in super().__call__(inputs, eager_nodes=eager_nodes)]


def judged(function: Callable[..., Any], *inputs: Tensor, backward: bool = True) -> dict[str, Judged]:
    given = [value.requires_grad_(backward) for value in inputs]
    return judge_sample(function, SampleInput(given[0], args=tuple(given[1:])), backward=backward)


def verdicts(function: Callable[..., Any], *inputs: Tensor, backward: bool = True) -> list[str]:
    return [found.verdict for found in judged(function, *inputs, backward=backward).values()]


X = torch.linspace(0.1, 0.9, 6)


def test_translated_and_right(client: FakeClient) -> None:
    assert verdicts(torch.sin, X.clone()) == ["right", "right"]
    assert client.parts


def test_a_wrong_result_is_wrong(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "part", lambda spec, options: OffByOne(client, spec))
    assert verdicts(torch.sin, X.clone()) == ["wrong", "wrong"]


def test_an_error_of_the_backend_is_a_crash(client: FakeClient) -> None:
    def fail() -> None:
        raise ClientError("planted")

    client.fail = fail
    found = judged(torch.sin, X.clone())
    assert [one.verdict for one in found.values()] == ["crashed", "crashed"]
    assert "planted" in found["forward"].detail


def test_a_node_left_to_eager_is_not_right(client: FakeClient) -> None:
    found = judged(lambda x: torch.special.erfcx(x) + 1, X.clone(), backward=False)["forward"]
    assert (found.verdict, [op for op, _ in found.eager]) == ("eager", ["aten.special_erfcx.default"])
    assert client.parts, "the addition is translated, and the whole is not right for it"


def test_what_a_graph_break_leaves_outside_is_not_right(client: FakeClient) -> None:
    found = judged(lambda x: torch.nonzero(x.sin()), X.clone(), backward=False)["forward"]
    assert (found.verdict, [op for op, _ in found.eager]) == ("eager", ["graph break"])


def test_a_graph_that_computes_nothing_is_not_right(client: FakeClient) -> None:
    assert verdicts(lambda x: x, X.clone(), backward=False) == ["nothing"]
    assert not client.parts


def test_what_aot_eager_does_wrong_too_is_not_ours(client: FakeClient) -> None:
    assert verdicts(lambda x: x + torch.compiler.is_compiling(), X.clone(), backward=False) == ["untraceable"]


def test_memory_that_nobody_wrote_is_nondeterministic(client: FakeClient) -> None:
    for dtype in (torch.float32, torch.bool):
        assert verdicts(torch.empty_like, torch.ones(9).to(dtype), backward=False) == ["nondeterministic"]


def test_a_worker_that_ends_costs_its_item_only(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = coverage.Worker()
    try:
        assert worker.run(Item(op="no such operator", dtype="bool", samples=1)) == "the process died: exit code 1"
        result = worker.run(Item(op="sin", dtype="float32", samples=1))
        assert isinstance(result, Result)
        assert (result.forward, result.backward) == ("right", "right")
        everything = worker.run(Item(op="where", dtype="float32", samples=0, dynamic=True))
        assert isinstance(everything, Result)
        assert everything.samples > 3
        monkeypatch.setattr(coverage, "WATCHDOG_S", 0.0)
        assert worker.run(Item(op="sin", dtype="float32", samples=1)) == "no result within 0 s"
    finally:
        worker.end()


def test_what_a_file_has_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sweep(wanted: Sequence[Item], *, finished: Callable[[Result], None], **_: Any) -> list[Result]:
        asked.extend(item.op for item in wanted)
        results = [Result(op=item.op, dtype=item.dtype, forward="right", backward=None) for item in wanted]
        for result in results:
            finished(result)
        return results

    monkeypatch.setattr(coverage, "sweep", sweep)
    monkeypatch.setattr(coverage, "home", lambda: contextlib.nullcontext(SimpleNamespace(environment=dict)))
    raw, output = tmp_path / "raw.jsonl", tmp_path / "coverage.md"
    before = Result(
        op="abs", dtype="uint8", forward="eager", backward=None, eager=[("forward", "aten.abs", "no kernel")]
    )
    settings = {"samples": 0, "dynamic": False, "torch": torch.__version__}
    cut_off = '{"op": "floor", "dtype": "uint8", "forw'
    raw.write_text("\n".join([json.dumps(settings), json.dumps(dataclasses.asdict(before)), cut_off]))
    for expected in (["floor"], []):
        asked.clear()
        arguments = ["--ops", "abs,floor", "--dtypes", "uint8", "--raw", str(raw), "--output", str(output)]
        assert coverage.main(arguments) == 0
        assert asked == expected
    assert coverage.written(raw, settings)["abs", "uint8"] == before
    assert "no kernel" in output.read_text()
    with pytest.raises(SystemExit, match="give another file"):
        coverage.main([*arguments, "--dynamic"])


def test_what_is_no_fault_is_told_once() -> None:
    result = Result(op="abs", dtype="float32", forward="nothing", backward=None)
    for index, verdict in enumerate(["untraceable", "untraceable", "wrong", "wrong"]):
        judged = Judged(verdict=verdict, detail="s" * coverage_item.ALIKE + str(index))
        coverage_item._add(result, "forward", judged, index, SampleInput(tensor(1.0)))
    assert [(index, verdict) for index, _, verdict, _, _ in result.notes] == [
        (0, "untraceable"),
        (2, "wrong"),
        (3, "wrong"),
    ]
    assert result.forward == "wrong"


def test_the_floor_is_written_and_read_alike() -> None:
    results = [Result(op=op, dtype="bool", forward="right", backward=None) for op in ("b", "a")]
    floor = coverage_report.floor(results)
    assert (
        json.loads(coverage_report.floor_text(floor)) == floor == {"bool": {"a": ["right", None], "b": ["right", None]}}
    )
    worse = Result(op="a", dtype="bool", forward="eager", backward=None)
    assert coverage_report.worse(floor["bool"]["a"], results[1]) == []
    assert "eager, recorded right" in coverage_report.worse(floor["bool"]["a"], worse)[0]


DOCS = Path(__file__).parents[2] / "docs" / "results"
RECORDED: dict[bool, dict[str, dict[str, list[str | None]]]] = {
    dynamic: json.loads((DOCS / name).read_text())
    for dynamic, name in ((False, "coverage.json"), (True, "coverage-dynamic.json"))
}
EVERY = {False: 140, True: 480}
ALWAYS = ("index_put", "nn.functional.conv2d", "nn.functional.conv_transpose3d", "nn.functional.embedding")
"""In float32 beside each so many."""


@pytest.mark.parametrize("dynamic", RECORDED)
def test_nothing_recorded_is_wrong_or_crashed(dynamic: bool) -> None:
    faults = {
        (dtype, op, direction)
        for dtype, ops in RECORDED[dynamic].items()
        for op, found in ops.items()
        for direction, verdict in zip(coverage_report.DIRECTIONS, found, strict=True)
        if verdict in FAULTS
    }
    assert faults == set()


@pytest.mark.usefixtures("daemon")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dynamic", RECORDED)
def test_no_operator_of_a_slice_is_worse_than_recorded(dynamic: bool) -> None:
    recorded = RECORDED[dynamic]
    chosen = [(dtype, op) for dtype, ops in recorded.items() for op in ops][:: EVERY[dynamic]]
    chosen += [("float32", op) for op in ALWAYS]
    assert len(chosen) > (12 if dynamic else 30)
    worse = []
    for dtype, op in chosen:
        result = run_item(Item(op=op, dtype=dtype, samples=2, dynamic=dynamic))
        worse += coverage_report.worse(recorded[dtype][op], result)
    print(f"{len(chosen)} of {sum(map(len, recorded.values()))} operators and dtypes")
    assert not worse
