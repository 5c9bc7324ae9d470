"""The bench: its peers equal eager, its rounds alternate, its table says who is ahead."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_until

import rust_ort
from measure.bench import __main__ as bench
from measure.bench import calls, clients, curves, decode, first_call, memory, models, plots, table, timing, watched
from measure.bench.timing import Timing
from rust_ort.observe import session
from rust_ort.studies.llama_models import SIZES


def timed(variant: str, us: float, case: str = "Add") -> Timing:
    return Timing(case=case, variant=variant, us=us, p10_us=us, p90_us=us, rounds=3, calls_per_round=10)


def test_in_process_backend_equals_eager() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        for case in (case for case in calls.cases() if not case.is_half):
            call = calls.compiled(calls.IN_PROCESS, case, spinning=False)
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
    assert "| Add | 5.0 µs | 4.0 µs | 2.0 µs | 0.50 | 3.00 | 0.50 | - |" in text
    assert table.written(tmp_path / "none.json") == {}


def test_where_eager_is_best_inductor_is_told_beside_it() -> None:
    text = table.markdown([timed("eager", 1.0), timed("inductor", 4.0), timed("rust_ort", 2.0)], {}, command="")
    assert "| ours / best | before | ours / inductor | before |" in text
    assert "| 1.0 µs | 4.0 µs | 2.0 µs | 2.00 | - | 0.50 | - |" in text


def test_rows_of_other_variants_are_another_table() -> None:
    first = [timed(variant, 2e7, "first") for variant in first_call.VARIANTS]
    text = table.markdown([timed("eager", 1.0), *first, timed("eager", 1.0, "later")], {}, command="")
    assert text.count("|---") == 2 + (1 + len(first) + 4) + 2
    assert "| cold / inductor | before | warm / aot_eager | before |" in text
    assert "| first | 20.0 s | 20.0 s | 20.0 s | 20.0 s | 1.00 | - | 1.00 | - |" in text


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
    ending = rust_ort.dump.end

    def end(opened: session.DumpSession) -> None:
        dumped.extend(name for _, name in opened.dumped)
        ending(opened)

    monkeypatch.setattr(rust_ort.dump, "end", end)
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


@pytest.mark.usefixtures("daemon")
def test_a_token_is_decoded_again_and_again_at_the_same_place() -> None:
    case = decode.Case(size=replace(SIZES["small"], layers=2), prompt=5, cache=8)
    variants = ["eager", "rust_ort", table.FROZEN]
    found = decode.measure(case, variants, rounds=2)
    assert [entry.variant for entry in found] == variants
    assert rust_ort.status()["counters"]["frozen_bytes"] > 0
    ratios = table.ratios({entry.variant: entry for entry in found})
    us = [entry.us for entry in found]
    assert ratios == {table.BEST: us[1] / us[0], table.FROZEN_BEST: us[2] / us[0]}
    assert all(entry.case == case.name for entry in found)
    decoding = decode.build(case, "rust_ort")
    with torch.no_grad():
        first = decoding()
        assert all(torch.equal(decoding(), first) for _ in range(case.cache)), "more than the cache holds"
    graph = rust_ort.graphs()[-1]
    assert not graph.eager


def test_a_token_that_is_written_elsewhere_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(model: torch.nn.Module, **_: object) -> object:
        def call(token: torch.Tensor, **given: Any) -> object:
            given["past_key_values"].layers[-1].cumulative_length.add_(1)
            return model(token, **given)

        return call

    monkeypatch.setattr(torch, "compile", elsewhere)
    case = decode.Case(size=replace(SIZES["small"], layers=2), prompt=5, cache=8)
    with pytest.raises(AssertionError, match="not close"):
        decode.measure(case, ("rust_ort",), rounds=1)


@pytest.mark.usefixtures("daemon")
def test_a_point_of_a_curve_is_timed_and_plotted() -> None:
    points = curves.points(sequences=(16,), layers=(2,))
    assert [point.name for point in points] == [
        "sequence 16, decoder forward",
        "sequence 16, decoder step",
        "layers 2, model step",
    ]
    found = curves.measure(points[-1], ("eager", "rust_ort"), rounds=2)
    assert [(entry.case, entry.rounds) for entry in found] == [(points[-1].name, 2)] * 2
    eager, ours = (entry.us for entry in found)
    (panel,) = plots.panels(found)["layers"]
    assert (panel.title, panel.lines) == ("model step", {"eager": [(2, 1.0)], "rust_ort": [(2, ours / eager)]})


def test_curves_are_of_the_points_that_were_timed() -> None:
    cases = ("sequence 128, decoder step", "sequence 256, decoder step", "Add of 10", "clients 2, decoder forward")
    found = plots.panels([timed(variant, us, case) for case in cases for variant, us in (("eager", 4.0), ("o", 2.0))])
    assert found == {
        "sequence": [
            plots.Panel(title="decoder step", lines={v: [(128, y), (256, y)] for v, y in (("eager", 1.0), ("o", 0.5))})
        ],
        "clients": [plots.Panel(title="decoder forward", lines={"eager": [(2, 250_000.0)], "o": [(2, 500_000.0)]})],
    }


def test_plots_of_the_same_timings_are_the_same_files_and_the_table_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timings = [timed(v, us, f"layers {n}, model step") for n in (1, 2) for v, us in (("eager", 4.0), ("rust_ort", 2.0))]
    assert plots.draw([timed("eager", 1.0)], tmp_path) == []
    assert plots.draw(timings, tmp_path) == ["bench-layers.svg"]
    written = (tmp_path / "bench-layers.svg").read_bytes()
    plots.draw(timings, tmp_path)
    assert (tmp_path / "bench-layers.svg").read_bytes() == written
    assert b"rust_ort" in written and b"model step" in written
    text = table.markdown(timings, {}, command="make bench", plots=["bench-layers.svg"])
    assert "![bench-layers](bench-layers.svg)" in text


@pytest.mark.usefixtures("daemon")
def test_clients_call_at_once_on_one_daemon() -> None:
    found = clients.measure((1, 2), rounds=1, size="small", seconds=0.2)
    assert [(entry.case, entry.variant) for entry in found] == [
        (f"clients {n}, decoder forward", variant) for n in (1, 2) for variant in clients.VARIANTS
    ]
    assert all(entry.us > 0 and entry.calls_per_round > 0 for entry in found)
    assert rust_ort.status()["counters"]["sessions_built"] > 0
    wait_until(lambda: rust_ort.status()["clients"] == [], "the clients to end with the measuring")


def test_a_client_that_ends_ends_the_measuring() -> None:
    with pytest.raises(RuntimeError, match="a client of the bench ended with 1"):
        clients.measure((1,), rounds=1, size="no such size")


def test_a_first_call_is_timed_in_fresh_processes() -> None:
    found = first_call.measure(("rust_ort cold",), rounds=1, size="small")
    assert [entry.variant for entry in found] == ["rust_ort cold"]
    assert all(entry.us > 1000 and entry.case == first_call.NAME for entry in found)


def test_memory_is_that_of_all_processes_in_the_first_step_and_in_later_ones() -> None:
    peaks = memory.measure(("eager", "rust_ort"), rounds=1, size="small")
    assert [(peak.case, peak.variant) for peak in peaks] == [
        (f"memory, {step}", variant)
        for step in ("the first training step", "a training step")
        for variant in ("eager", "rust_ort")
    ]
    held = {(peak.case, peak.variant): peak.bytes for peak in peaks}
    assert all(2**27 < size < 2**32 for size in held.values())
    of_eager, ours = (held["memory, a training step", variant] for variant in ("eager", "rust_ort"))
    assert ours > of_eager + 2**23, "the executor's own is not in it"
    text = table.markdown([timed("eager", 1.0)], {}, command="", peaks=peaks)
    assert f"| memory, a training step | {of_eager / 2**30:.2f} | {ours / 2**30:.2f} | {ours / of_eager:.2f} |" in text
    assert len(json.loads(table.document([], peaks))["memory"]) == 4


def test_a_process_that_ends_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="a process of the bench ended"):
        memory.measure(("no such backend",), rounds=1, size="small")


def test_each_job_is_chosen_by_its_name_and_the_kept_run_is_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bench.jobs(calls.VARIANTS, rounds=30, spinning=False)
    names = [name for name, _ in made]
    assert len(set(names)) == len(names)
    for one in ("decoding", "sequence", "layers", "clients", "first call", "watched", "memory", "Add"):
        assert any(one in name for name in names)
    kept = tmp_path / "kept.json"
    kept.write_text(table.document([timed("eager", 1.0), timed("rust_ort", 3.0)]))
    monkeypatch.setattr(bench, "KEPT", kept)
    timings = [timed("eager", 4.0), timed("rust_ort", 2.0)]
    monkeypatch.setattr(bench, "jobs", lambda *_, **__: [("Add", lambda: timings), ("other", lambda: 1 / 0)])
    assert bench.main(["--cases", "Add"]) == 0
    assert "| Add | 4.0 µs | 2.0 µs | 0.50 | 3.00 |" in capsys.readouterr().out


def test_table_numbers_and_plots_are_written_beside_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timings = [
        timed(variant, us, f"layers {n}, model step")
        for n in (1, 2)
        for variant, us in (("eager", 4.0), ("rust_ort", 2.0))
    ]
    monkeypatch.setattr(bench, "jobs", lambda *_, **__: [("layers", lambda: timings)])
    assert bench.main(["--output", str(tmp_path / "bench.md")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench-layers.svg", "bench.json", "bench.md"]
    assert "![bench-layers](bench-layers.svg)" in (tmp_path / "bench.md").read_text()
    assert len(table.written(tmp_path / "bench.json")) == 2
