"""The bench: its peers equal eager, its rounds alternate, its table says who is ahead."""

import json
from pathlib import Path

import pytest
import torch

import rust_ort
from measure.bench import calls, models, table, timing, watched
from measure.bench.timing import Timing
from rust_ort.observe import session
from rust_ort.studies.llama_models import SIZES


def timed(variant: str, us: float, case: str = "Add") -> Timing:
    return Timing(case=case, variant=variant, us=us, p10_us=us, p90_us=us, rounds=3, calls_per_round=10)


def test_in_process_backend_equals_eager() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        for case in calls.cases():
            call = calls.compiled("in-process ONNX Runtime", case, spinning=False)
            torch.testing.assert_close(call(*case.inputs), case.function(*case.inputs))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("way", ["forward", "step"])
@pytest.mark.parametrize("part", ["attention", "causal_lm"])
@pytest.mark.usefixtures("daemon")
def test_a_model_is_timed_after_it_equals_eager(part: str, way: str, precision: str) -> None:
    case = models.Case(part=part, way=way, precision=precision, size=SIZES["small"])
    found = models.measure(case, ("eager", "rust_ort"), rounds=2)
    assert [entry.variant for entry in found] == ["eager", "rust_ort"]
    assert all(entry.us > 0 and entry.rounds == 2 and entry.case == case.name for entry in found)


def test_what_differs_from_eager_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: lambda *inputs: module(*inputs) * 1.1)
    case = models.Case(part="attention", way="forward", precision="fp32", size=SIZES["small"])
    with pytest.raises(AssertionError, match="not close"):
        models.measure(case, ("eager", "rust_ort"), rounds=1)


def test_what_has_another_gradient_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(module: torch.nn.Module, **_: object) -> object:
        return lambda *inputs: 2 * module(*inputs) - module(*inputs).detach()

    monkeypatch.setattr(torch, "compile", doubled)
    case = models.Case(part="attention", way="step", precision="fp32", size=SIZES["small"])
    with pytest.raises(AssertionError, match="not close"):
        models.measure(case, ("rust_ort",), rounds=1)


def test_rounds_alternate_and_the_median_is_kept() -> None:
    order: list[str] = []
    found = timing.alternating(
        "case", {name: lambda name=name: order.append(name) for name in ("one", "two")}, rounds=4
    )
    turns = [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]
    assert turns[-4:] == ["two", "one", "two", "one"], "the first of a round was the last of the round before"
    assert [entry.variant for entry in found] == ["one", "two"]
    assert all(entry.p10_us <= entry.us <= entry.p90_us for entry in found)


def test_the_table_names_the_ratio_to_the_best_peer_and_the_one_before(tmp_path: Path) -> None:
    rows = [timed("eager", 5.0), timed("inductor", 4.0), timed("rust_ort", 2.0)]
    kept = tmp_path / "bench.json"
    kept.write_text(table.document([timed("eager", 1.0), timed("rust_ort", 3.0)]))
    text = table.markdown(rows, table.written(kept), command="make bench")
    assert "| | eager | inductor | rust_ort | ours / best | before |" in text
    assert "| Add | 5.0 µs | 4.0 µs | 2.0 µs | 0.50 | 3.00 |" in text
    assert table.written(tmp_path / "none.json") == {}


def test_a_document_without_ninetieth_percentiles_is_read(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    document = json.loads(table.document([timed("eager", 2.0), timed("rust_ort", 3.0)]))
    for entry in document["timings"]:
        del entry["p90_us"]
    kept.write_text(json.dumps(document))
    assert table.written(kept) == {("Add", "ours / best"): 1.5}


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.filterwarnings("error:the dump")
def test_what_watching_costs_is_timed_and_told(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped: list[str] = []
    closing = rust_ort.dump.close

    def close(opened: session.DumpSession) -> None:
        dumped.extend(name for _, name in opened.dumped)
        closing(opened)

    monkeypatch.setattr(rust_ort.dump, "close", close)
    case = models.Case(part="decoder", way="step", precision=precision, size=SIZES["small"])
    known = len(rust_ort.graphs())
    found = watched.measure(case, rounds=1)
    assert [entry.variant for entry in found] == list(watched.VARIANTS)
    counts = [len(graph.nodes) for graph in rust_ort.graphs()[known:]]
    assert sum(count > 0 for count in counts) == 2, "forward and backward of one variant have nodes"
    assert len(dumped) == 2, "forward and backward of one variant are dumped"
    assert session.current() is None
    text = table.markdown(found, {}, command="make bench")
    assert "| outputs / both | before | nodes / eager | before | dumped / ours | before |" in text
    us = {entry.variant: entry.us for entry in found}
    assert f"| {us['nodes compared'] / us['eager']:.2f} | - |" in text and f"decoder step {precision}, watched" in text
