"""Random functions: the same seed makes the same function, and a slice of them through rust_ort is right."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from conftest import Daemon

from measure.home import with_tools
from measure.random_graphs.check import BAD, Outcome, check
from measure.random_graphs.generate import Growing, generate
from measure.random_graphs.judge import differences
from measure.random_graphs.program import Input, Program, Step
from measure.random_graphs.reduce import reduced
from measure.random_graphs.table import operators

SEEDS = range(60)
"""The same in every run: `make random-graphs` draws new ones."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_slice_of_random_functions_is_right(daemon: Daemon) -> None:
    print(f"seeds: {SEEDS}")
    outcomes = [check(seed) for seed in SEEDS]
    where = Counter(outcome.where for outcome in outcomes)
    print(Counter(outcome.kind for outcome in outcomes), where)
    bad = [outcome for outcome in outcomes if outcome.kind in BAD]
    assert not bad, "\n".join(map(told, bad))
    assert where["translated"] > 0.65 * len(outcomes)


def told(outcome: Outcome) -> str:
    command = f"PYTHONPATH=tests python -m measure.random_graphs --seed {outcome.seed}"
    return f"{command}: {outcome.kind}\n{outcome.why}\n{outcome.source}\n{outcome.reduced}"


def test_a_seed_makes_the_same_function_in_every_process() -> None:
    text = "from measure.random_graphs.generate import generate\n"
    text += "for seed in range(5): print(generate(seed).program.script())"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**with_tools(), "PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "".join(generate(seed).program.script() + "\n" for seed in range(5))


def test_the_table_has_every_family_and_no_operator_that_never_fits() -> None:
    rng = random.Random(1)
    never = [
        operator.name
        for family in operators().values()
        for operator in family
        if not any(Growing(rng=rng, rejected=Counter()).attempt(operator) for _ in range(50))
    ]
    assert never == []
    assert len({operator.name for family in operators().values() for operator in family}) > 250


def test_the_printed_script_is_the_function() -> None:
    made = generate(3)
    script = made.program.script().replace('backend="rust_ort"', 'backend="eager"')
    namespace: dict[str, object] = {}
    exec(script, namespace)
    expected = list(made.expected.values())
    got = [value for value in namespace["expected"] if value is not None]  # type: ignore[attr-defined]
    assert len(got) == len(expected)
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


def planted(last: str) -> Program:
    """A function of four statements, of which `last` is one."""
    tensor = torch.arange(6.0).reshape(2, 3)
    lines = ("v0 = torch.sin(x0)", "v1 = v0 + x0", last, "v3 = v2 * 2")
    steps = tuple(
        Step(operator="", family="", lines=(line,), reads=("x0", "v0", "v1", "v2")[: k + 1], targets=(f"v{k}",))
        for k, line in enumerate(lines)
    )
    given = Input(name="x0", tensor=tensor, requires_grad=False)
    return Program(inputs=(given,), steps=steps, outputs=("v3", "v1"), cotangents={})


def test_a_failing_function_is_reduced_to_the_statement_that_fails() -> None:
    program = planted("v2 = torch.cos(v1)")
    smallest = reduced(program, lambda tried: "torch.cos" in tried.source())
    assert smallest.source().splitlines()[1:-1] == ["    v2 = torch.cos(v1)", "    v3 = v2 * 2"]


@pytest.mark.parametrize(
    ("candidate", "wrong", "settled"),
    [
        ([1.0, 2.0], 0, 0),
        ([1.0, 2.0 + 6e-5], 1, 0),
        ([1.0, 2.0 - 3e-5], 0, 1),
        ([1.0, float("nan")], 1, 0),
    ],
)
def test_the_judge_asks_float64_where_a_value_is_outside_the_tolerance(
    candidate: list[float], wrong: int, settled: int
) -> None:
    # Eager itself is 3e-5 above what float64 gives, the third candidate is on it.
    expected = {"v0": torch.tensor([1.0, 2.0])}
    third = {"v0": torch.tensor([1.0, 2.0 - 3e-5], dtype=torch.float64)}
    found = differences(expected, {"v0": torch.tensor(candidate)}, lambda: third)
    assert (len(found[0]), found[1]) == (wrong, settled)


def test_another_dtype_or_shape_is_wrong_whatever_float64_says() -> None:
    expected = {"v0": torch.ones(2)}
    for candidate in (torch.ones(2, 1), torch.ones(2, dtype=torch.float16)):
        wrong, settled = differences(expected, {"v0": candidate}, lambda: {"v0": torch.ones(2).double()})
        assert (len(wrong), settled) == (1, 0)
    assert differences(expected, {}, dict)[0][0].why == "missing"
