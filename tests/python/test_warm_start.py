"""A second process exports nothing: plans come from the daemon's disk, sessions from a warm executor."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from support import FakeClient
from test_export_parts import aot_graphs

from rust_ort.export import decompositions, exporter
from rust_ort.export.hash import operators_key
from rust_ort.export.plan import make_plan
from rust_ort.runtime import kept_plans

PROCESS = """
import json, sys
import torch
from torch import nn
import rust_ort
{patch}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return torch.relu(self.norm(self.one(x))) @ self.two.weight

class PartlyEager(Model):
    def forward(self, x):
        y = super().forward(x)
        solved = torch.linalg.solve(y.T @ y + 4 * torch.eye(6), y.T)
        return torch.fft.fft(solved * 2).abs() + y.T.sum(0) * torch.tril(y.T)

def run(kind, sizes, dynamic):
    torch.manual_seed(0)
    model = kind()
    compiled = torch.compile(model, backend="rust_ort", dynamic=dynamic)
    for size in sizes:
        results = []
        for call in (model, compiled):
            x = torch.randn(size, 6, generator=torch.Generator().manual_seed(size)).requires_grad_()
            model.zero_grad()
            out = call(x)
            out.square().sum().backward()
            results.append([out, x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for reference, candidate in zip(*results, strict=True):
            torch.testing.assert_close(candidate, reference, rtol=1e-4, atol=1e-4 * float(reference.abs().max()))

{programs}
exporter = [name for name in ("onnxscript", "onnx", "torch.onnx._internal.exporter._core") if name in sys.modules]
print(json.dumps({{"exporter": exporter, "graphs": len(rust_ort.graphs()),
                   "eager": sum(len(graph.eager) for graph in rust_ort.graphs())}}))
"""


PARTLY_EAGER = "run(PartlyEager, [4], False)"
PROGRAMS = f"run(Model, [4], False); run(Model, [3, 5, 7], True); {PARTLY_EAGER}"


def run_process(patch: str = "", seed: str | None = None, programs: str = PARTLY_EAGER) -> dict[str, Any]:
    """Runs the models in a process of their own, held against eager there. seed: of its hashes; those without have one
    of their own. A process has imported nothing but torch before."""
    command = [sys.executable, "-c", PROCESS.format(patch=textwrap.dedent(patch), programs=programs)]
    if seed is None:
        done = warm.run(command)
    else:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


def counted(run_cli: Any) -> dict[str, int]:
    status = run_cli("status", "--json")
    assert status.returncode == 0, status.stderr
    counters: dict[str, int] = json.loads(status.stdout)["counters"]
    return counters


def plans(daemon: Any) -> list[Path]:
    return sorted(daemon.state.glob("plans/v1/*"), key=lambda path: path.stat().st_size)


def test_a_later_process_exports_nothing_and_builds_nothing_where_an_executor_is_warm(
    daemon: Any, run_cli: Any
) -> None:
    first = run_process(programs=PROGRAMS)
    cold = counted(run_cli)
    assert first["exporter"] and first["eager"] > 0
    assert (cold["exports"], cold["plan_hits"]) == (first["graphs"], 0)

    second = run_process(seed="77", programs=PROGRAMS)
    warm = counted(run_cli)
    assert (second["exporter"], second["graphs"], second["eager"]) == ([], first["graphs"], first["eager"])
    assert (warm["exports"], warm["sessions_built"]) == (cold["exports"], cold["sessions_built"])
    assert warm["plan_hits"] == second["graphs"] + 1, "and the operators that stay whole"
    assert warm["session_hits"] > cold["session_hits"]

    assert run_cli("stop").returncode == 0
    third = run_process(programs=PROGRAMS)
    after = counted(run_cli)
    assert third["exporter"] == []
    assert after["exports"] == 0
    assert after["sessions_built"] == cold["sessions_built"]


def test_a_damaged_plan_is_exported_again(daemon: Any, run_cli: Any) -> None:
    run_process()
    exports = counted(run_cli)["exports"]
    damaged = plans(daemon)[-1]
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    run_process()
    assert counted(run_cli)["exports"] == exports + 1
    assert damaged.read_bytes() == good
    assert daemon.logs().count("its checksum is another graph's or another plan's") == 1


def test_changed_sources_of_the_export_meet_no_old_plan(daemon: Any, run_cli: Any) -> None:
    run_process()
    exports = counted(run_cli)["exports"]
    changed = run_process('import rust_ort.export; rust_ort.export.SOURCES = "0" * 64')
    assert counted(run_cli)["exports"] == 2 * exports
    assert changed["exporter"]


def test_a_plan_that_the_runtime_refuses_is_exported_again(daemon: Any, run_cli: Any) -> None:
    run_process()
    exports = counted(run_cli)["exports"]
    broken = run_process("""
        from rust_ort.export import messages
        part = messages._part
        def another_model(cut, graph, exported):
            exported.model = exported.model[:-40]
            return part(cut, graph, exported)
        messages._part = another_model
    """)
    assert "does not serve, it is exported again" in broken["stderr"]
    assert counted(run_cli)["exports"] == 2 * exports


def graph() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve(x @ x + 4 * torch.eye(3), x.relu())
        return torch.tanh(y) + torch.rand_like(y)

    return aot_graphs(function, torch.randn(3, 3))[0]


def test_a_plan_comes_back_as_it_was() -> None:
    gm = graph()
    client: Any = FakeClient()
    made = make_plan(gm, name="g")
    kept_plans.save(client, "key", made)
    found = kept_plans.load(client, "key", gm, daemon_needed=True)
    assert found is not None
    assert [part.translated for part in found.parts] == [part.translated for part in made.parts]
    assert [part.graph.compute_nodes for part in found.parts] == [part.graph.compute_nodes for part in made.parts]
    assert [(part.pick, part.tensor_outputs) for part in found.parts] == [
        (part.pick, part.tensor_outputs) for part in made.parts
    ]
    assert found.cut.eager == made.cut.eager
    assert made.cut.eager


def test_another_graphs_plan_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    gm = graph()
    client: Any = FakeClient()
    kept_plans.save(client, "key", make_plan(gm, name="g"))
    other = aot_graphs(lambda x: torch.tanh(x) * 2, torch.randn(3, 3))[0]
    assert kept_plans.load(client, "key", other, daemon_needed=True) is None
    client.plans["key"] = b"\x00\xffgarbage"
    assert kept_plans.load(client, "key", gm, daemon_needed=True) is None
    assert caplog.text.count("it is exported again") == 2


def test_the_table_from_kept_names_is_the_exporters() -> None:
    client: Any = FakeClient()
    kept_plans.decomposition_table(client, daemon_needed=True)  # made and kept
    kept: Any = FakeClient()
    kept.plans = client.plans
    assert set(kept.plans) == {operators_key()}
    table = kept_plans.decomposition_table(kept, daemon_needed=True)
    fresh = decompositions.table()
    assert table.keys() == fresh.keys()
    for operator, decomposition in fresh.items():
        same = getattr(decomposition, "func", decomposition)
        assert getattr(table[operator], "func", table[operator]) is same, operator


def test_the_base_of_the_table_is_torchs_but_for_composite_operators() -> None:
    decomp = exporter.private().decomp
    overloads = set(decomp.get_onnx_implemented_overloads(exporter.registry()))
    torchs = decomp.create_onnx_friendly_decomposition_table(overloads)
    ours = decompositions._onnx_friendly(exporter.whole_operators())
    assert all(torchs[operator] is decomposition for operator, decomposition in ours.items())
    beyond = [operator for operator in torchs if operator not in ours]
    assert len(beyond) > 300
    assert [str(operator) for operator in beyond if not operator._can_decompose()] == []
    general = torch._decomp.decomposition_table
    theirs = {str(operator) for operator in general if torchs.get(operator) is not general[operator]}
    assert exporter.whole_operators() == theirs


def test_the_study_says_what_a_warm_process_does(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from measure import warm_start

    programs = subprocess.run

    def run(command: Any, *, env: Any, **given: Any) -> Any:
        if command[0] == sys.executable:
            return warm.run(command, env=env, check=True)
        return programs(command, env=env, **given)

    monkeypatch.setattr(subprocess, "run", run)
    variants = "rust_ort cold,rust_ort warm"
    assert warm_start.main(["--size", "small", "--rounds", "1", "--variants", variants]) == 0
    rows = [line.split(" | ") for line in capfd.readouterr().out.splitlines() if line.startswith("| rust_ort ")]
    cells = {row[0]: row[4:] for row in rows}
    assert cells == {
        "| rust_ort cold": ["2", "2", "yes |"],
        "| rust_ort warm": ["0", "0", "no |"],
    }


@pytest.mark.parametrize("variant", ["cold", "warm", "after stop"])
def test_a_compilation_has_its_cpu_time_told(variant: str) -> None:
    from measure import compile_time

    one = compile_time.Compile(layers=1, variant=variant, nodes=9, client=0.25, served=0.5, torchs=2.0)
    other = compile_time.Compile(layers=1, variant=variant, nodes=9, client=0.75, served=0.5, torchs=2.0)
    text = compile_time.markdown([one, other], command="make")
    row = f"| 1 | 9 | {variant} | {compile_time.VARIANTS[variant]} | 0.50 | 0.50 | 2.00 | 0.250 | 0.500 |"
    assert row in text.splitlines()


def test_the_cpu_time_of_a_compilation_is_counted_in_fresh_processes(capfd: pytest.CaptureFixture[str]) -> None:
    from measure import compile_time

    assert compile_time.main(["--layers", "1", "--rounds", "1"]) == 0
    rows = [line.split(" | ") for line in capfd.readouterr().out.splitlines() if line.startswith("| 1 | ")]
    client = {row[2]: float(row[4]) for row in rows}
    assert set(client) == set(compile_time.VARIANTS)
    assert client["cold"] > client["warm"] > 0, "a warm process exports nothing"
    assert all(float(row[6]) > client[row[2]] for row in rows), "torch's own part is the larger one"
