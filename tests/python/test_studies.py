"""The studies: their arithmetic, their exit codes, and the GPU check's Rust side on a CUDA runtime without a GPU."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from measure import studies as page
from rust_ort.backend import GraphInfo
from rust_ort.export.partition import EagerNode
from rust_ort.studies import generate, gpu_check, llama_models, main_job

ROOT = Path(__file__).resolve().parents[2]


def row(part: str, graph: str, *, verdicts: tuple[str, ...] = ("match",), rel: float = 1e-6) -> main_job.Row:
    return main_job.Row(
        part=part,
        graph=graph,
        on_ort=10,
        in_eager=0,
        n_compared=len(verdicts),
        max_abs=1e-6,
        max_rel_to_max=rel,
        verdicts=verdicts,
    )


def outcomes(**changes: object) -> list[main_job.Outcome]:
    made = []
    for part in main_job.PARTS:
        rows = [row(part, "0_0-forward"), row(part, "0_0-backward")]
        if changes.get("part") == part:
            rows[0] = row(part, "0_0-forward", **{key: changes[key] for key in ("verdicts", "rel") if key in changes})  # type: ignore[arg-type]
        made.append(main_job.Outcome(rows=rows, errors=[(part, "forward", 2e-7, 1e-7)]))
    return made


def test_every_row_match_is_exit_0() -> None:
    assert main_job.judge(outcomes(), (100, 0)) == (0, [])


def test_the_demos_page_has_the_nodes_that_run_today(tmp_path: Path) -> None:
    """After a change of a graph's nodes: `make demo ARGS="--page docs/results/demo.md"`."""
    rows = main_job.run_part("attention", main_job.parse(["--size", "small", "--folder", str(tmp_path)])).rows
    page_of_demo = (ROOT / "docs/results/demo.md").read_text()
    shown = re.findall(r"^attention +\S+ward +(\d+) +(\d+) ", page_of_demo, re.MULTILINE)
    assert [(str(row.on_ort), str(row.in_eager)) for row in rows] == shown
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"verdicts": ("match", "mismatch")}, 1, "Mismatch (1 of 2)"),
        ({"rel": 1.1e-4}, 1, "> 0.0001"),
        ({"rel": math.nan}, 1, "Mismatch"),
        ({"verdicts": ("mismatch", "failed")}, 2, "Failed (1 of 2)"),
        ({"verdicts": ("match", "not_compared")}, 3, "NotCompared (1 of 2)"),
        ({"verdicts": ()}, 3, "NotCompared (no tensor)"),
    ],
)
def test_one_bad_row_decides_the_exit_code(changes: dict[str, object], code: int, text: str) -> None:
    got, wrong = main_job.judge(outcomes(part="decoder", **changes), (100, 0))
    assert got == code
    assert any(text in line and "decoder" in line for line in wrong), wrong


def test_share_below_99_percent_is_exit_1() -> None:
    assert main_job.judge(outcomes(), (99, 1))[0] == 0
    assert main_job.judge(outcomes(), (989, 11))[0] == 1
    assert main_job.judge(outcomes(), (0, 0))[0] == 1


def test_error_above_three_times_eagers_is_exit_1() -> None:
    made = outcomes()
    made[2].errors.append(("model", "backward", 3.1e-7, 1e-7))
    code, wrong = main_job.judge(made, (100, 0))
    assert (code, len(wrong)) == (1, 1)
    made[2].errors[-1] = ("model", "backward", math.inf, 1e-7)
    assert main_job.judge(made, (100, 0))[0] == 1


def test_missing_backward_is_exit_3() -> None:
    made = outcomes()
    made[0].rows.pop()
    assert main_job.judge(made, (100, 0)) == (3, ["attention: no backward graph was compared"])


def verdict(word: str, max_abs: float = 0.0, rel: float = 0.0) -> tuple[int, SimpleNamespace]:
    return 0, SimpleNamespace(name="a", kind=word, reason="", max_abs=max_abs, max_rel_to_max=rel)


def info(*verdicts: tuple[int, SimpleNamespace]) -> GraphInfo:
    return GraphInfo(
        name="0_0-forward",
        direction="forward",
        graph_id="",
        compute_nodes=12,
        parts=[["a"] * 7, ["b"] * 3],
        eager=[EagerNode(name="c", op="d", reason="e", source="f")] * 2,
        seconds={},
        verdicts=list(verdicts),
    )


def test_row_of_a_graph_takes_the_worst_of_its_verdicts() -> None:
    graph = info(verdict("match", 0.5, 0.25), verdict("match", math.inf, 0.125), verdict("not_compared", math.nan))
    (made,) = main_job.rows_of("model", [graph])
    assert (made.graph, made.direction, made.on_ort, made.in_eager) == ("0_0-forward", "forward", 10, 2)
    assert (made.n_compared, made.max_abs, made.max_rel_to_max) == (2, math.inf, 0.25)
    assert made.verdict == "NotCompared (1 of 3)"


def test_nan_in_a_metric_is_never_hidden_by_a_larger_number() -> None:
    graph = info(verdict("match", 1.0, 1.0), verdict("match", math.nan, math.nan), verdict("match", 2.0, 2.0))
    (made,) = main_job.rows_of("model", [graph])
    assert math.isnan(made.max_abs)
    assert made.code == 1


def test_file_that_the_dump_lacks_is_named_and_exits_2(tmp_path: Path) -> None:
    made = outcomes()
    made[0].dump = tmp_path
    code, wrong = main_job.judge(made, (100, 0))
    assert code == 2
    assert f"not in the dump: {tmp_path}/0_0-backward/part_0/model.onnx" in wrong


def test_error_is_relative_to_the_largest_of_the_reference() -> None:
    reference = [torch.tensor([0.0, -4.0], dtype=torch.float64), torch.zeros(2)]
    assert main_job.error_to(reference, [torch.tensor([1.0, -4.0]), torch.zeros(2)]) == 0.25
    assert main_job.error_to(reference, [torch.tensor([math.nan, 0.0]), torch.zeros(2)]) == math.inf


class AsksForFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float32) * self.weight.float()
        return (
            nn.functional.softmax(y, dim=-1, dtype=torch.float32).to(x.dtype) + torch.ones(7, dtype=torch.float32) / 3
        )


def test_float64_run_has_no_float32_step_forward_or_backward() -> None:
    module = AsksForFloat32().double()
    x = torch.linspace(0, 3, 7, dtype=torch.float64, requires_grad=True)
    with llama_models.float64():
        output = module(x)
        output.square().sum().backward()
    weight = module.weight.detach().clone().requires_grad_()
    x2 = x.detach().clone().requires_grad_()
    expected = torch.softmax(x2 * weight, -1) + 1 / 3
    expected.square().sum().backward()
    assert output.dtype == torch.float64
    assert torch.allclose(output, expected, rtol=0, atol=1e-15)
    assert module.weight.grad is not None
    assert weight.grad is not None
    assert torch.allclose(module.weight.grad, weight.grad, rtol=0, atol=1e-15)
    assert x.grad is not None
    assert x2.grad is not None
    assert torch.allclose(x.grad, x2.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(llama_models.PARTS))
def test_each_llama_part_is_built_alike_twice_and_has_gradients(name: str, attention: str) -> None:
    size = llama_models.SIZES["small"]
    first, second = (llama_models.build(name, size, attention=attention) for _ in range(2))
    outputs, grads = main_job.run_once(first.module, first.module, first)
    again, _ = main_job.run_once(second.module, second.module, second)
    assert torch.equal(outputs[0], again[0])
    assert all(grad.isfinite().all() and grad.abs().max() > 0 for grad in grads)
    exact, exact_grads = main_job.run_float64(first)
    assert exact[0].dtype == torch.float64
    assert main_job.error_to(exact, outputs) < 5e-6
    assert main_job.error_to(exact_grads, grads) < 5e-6


# --- generation ------------------------------------------------------------------------------------------------------

TINY = generate.Settings(
    size=llama_models.Size(hidden=32, heads=4, intermediate=48, vocabulary=512, layers=1), tokens=4, rounds=0
)


def modes_of(model: str, loop: str, cache: str) -> list[generate.Mode]:
    return [mode for mode in generate.MODES if (mode.model, mode.loop, mode.cache) == (model, loop, cache)]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("cache", generate.CACHES)
@pytest.mark.parametrize("loop", generate.LOOPS)
@pytest.mark.parametrize("model", generate.MODELS)
def test_generation_gives_eagers_tokens_in_every_mode(
    model: str, loop: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = dict(list(generate.backends(False).items())[: 2 if model == "llama" else 1])
    monkeypatch.setattr(generate, "backends", lambda _: variants)
    study = generate.run(TINY, modes_of(model, loop, cache))
    assert (study.code, len(study.rows)) == (0, 4), generate.text(study)
    for row in study.rows:
        assert row.n == TINY.tokens * len(study.prompts[row.mode.prompt])
        assert set(row.variants) == set(variants)
        assert all(ran.logits < 1e-5 and ran.nodes and not ran.n_in_eager for ran in row.variants.values()), row
        # What a strategy does with logits compiles nothing.
        assert all((ran.graphs > 0) == (row.mode.choice == "greedy") for ran in row.variants.values()), row


def test_own_loop_chooses_what_generate_chooses() -> None:
    """In eager: own positions, masks and random numbers are those of `generate()`, under left padding too."""
    tokenizer = generate.tokenizer_of(generate.text_of_tokenizer()[1])
    model = generate.model_of("qwen3", TINY.size)
    for mode in modes_of("qwen3", "own", "dynamic") + modes_of("qwen3", "own", "static"):
        feeds = dict(
            tokenizer(generate.TEXTS[mode.prompt], return_tensors="pt", padding=True, return_token_type_ids=False)
        )
        own, theirs = (call(model, feeds, mode, 6)[0] for call in (generate.own_loop, generate.by_generate))
        assert torch.equal(own, theirs), mode
        if mode.prompt == "left-padded":
            assert feeds["attention_mask"][:, -1].all()
            assert not feeds["attention_mask"].all()


def test_a_backend_with_other_logits_is_told_with_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def negated(gm: torch.fx.GraphModule, _: object) -> object:
        return lambda *inputs: [
            -out if isinstance(out, torch.Tensor) and out.shape[-1] == TINY.size.vocabulary else out
            for out in gm.forward(*inputs)
        ]

    monkeypatch.setattr(generate, "backends", lambda _: {generate.PLAIN: negated})
    study = generate.run(TINY, modes_of("llama", "own", "dynamic")[:1])
    assert study.code == 1
    assert "rust_ort: llama, own, dynamic cache, greedy, one prompt: prompt 0, token 0: " in generate.text(study)


@pytest.mark.usefixtures("served")
def test_a_row_of_generation_is_shown_when_its_mode_has_run_below_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    ran, modes = generate._ran, modes_of("llama", "own", "static")[:2]

    def watched(mode: generate.Mode, *others: Any) -> generate.Ran:
        told.append(f"running {mode}")
        return ran(mode, *others)

    monkeypatch.setattr(generate, "_ran", watched)
    monkeypatch.setattr(generate, "backends", lambda _: {generate.PLAIN: "eager", generate.FROZEN: "eager"})
    study = generate.run(TINY, modes, show=told.append)
    running = [f"running {mode}" for mode in modes]
    rows = [generate.line(row, list(row.variants)) for row in study.rows]
    shown = [line for line in told if line not in running]
    assert told[len(shown) - 2 :] == [*running, running[0], rows[0], running[1], rows[1]]
    assert [*shown, *generate.foot(study)] == generate.text(study).splitlines()
    assert {line.rindex("4 of 4") for line in rows} == {shown[-4].index("frozen")}


def test_generation_prints_as_json_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    def run(settings: object, say: Any, show: Any = None) -> generate.Study:
        say("a group")
        if show is not None:
            show("a row")
        return generation()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "run", run)
        assert (generate.main(["--json"]), generate.main([])) == (0, 0)
    out = capsys.readouterr().out
    assert json.loads(out[: out.rindex("}") + 1])["code"] == 0
    assert out[out.rindex("}") + 1 :].splitlines() == ["", "a row"]


def generation(**changes: object) -> generate.Study:
    rows = [generate.Row(mode=generate.MODES[0], tokens=[[1, 2]], text="")]
    rows[0].variants = {generate.PLAIN: generate.Ran(equal=2), generate.FROZEN: generate.Ran(**{"equal": 2, **changes})}  # type: ignore[arg-type]
    return generate.Study(settings=TINY, vocabulary="", prompts={}, rows=rows)


def test_one_bad_variant_decides_the_exit_code_of_generation() -> None:
    assert generation().code == 0
    assert generation(equal=1).code == 1
    assert generation(error="ValueError: no").code == 2
    assert generation(not_served=1).code == 3
    assert generation(fallbacks=1).code == 3
    assert generate.Study(settings=TINY, vocabulary="", prompts={}).code == 3
    inductors = generation()
    inductors.rows[0].variants[generate.INDUCTOR] = generate.Ran(equal=0)
    assert inductors.code == 0


def test_recompilations_are_of_frames_that_were_compiled() -> None:
    names = ["0_0-inference", "0_1-inference", "3_0-forward", "3_12_1-forward"]
    assert [generate.recompiled(name) for name in names] == [False, True, False, True]


# --- GPU check -------------------------------------------------------------------------------------------------------


@pytest.fixture
def binary() -> str:
    path = os.environ.get("RUST_ORT_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("RUST_ORT_BINARY names no binary; make test sets it")
    return path


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_check_exits_2_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--binary", sys.executable]) == 2
    captured = capsys.readouterr()
    assert "missing: a GPU that torch can use" in captured.err
    assert "CUDA provider:" in captured.out


def test_missing_library_folder_and_binary_are_both_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu_check.main(["--binary", "/nowhere/rust-ort", "--onnxruntime", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"no libonnxruntime.so* in {tmp_path}" in error
    assert "not found at /nowhere/rust-ort" in error


def test_a_missing_native_module_is_named_with_where_it_belongs(tmp_path: Path) -> None:
    module = tmp_path / "_native.abi3.so"
    with pytest.raises(gpu_check.Missing, match=f"not found at {module}: make build, or copy"):
        gpu_check.native_module(tmp_path)
    module.write_bytes(b"of no machine")
    with pytest.raises(gpu_check.Missing, match=r"a native module that loads here: .*_native\.abi3\.so"):
        gpu_check.native_module(tmp_path)
    assert gpu_check.native_module(gpu_check.PACKAGE).exists()


def test_pattern_is_the_one_the_rust_side_makes() -> None:
    assert gpu_check.pattern(5, 6, "cpu").tolist() == [5, 36, 67, 98, 129, 160]
    assert gpu_check.pattern(0, (1 << 20) + 1, "cpu")[-1].item() == 101


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver without a GPU, for the processes that are started; the folder of its memory and journals."""
    libraries, folder = tmp_path / "libraries", tmp_path / "gpu"
    libraries.mkdir()
    folder.mkdir()
    source = ROOT / "tests" / "fixtures" / "fake_libcuda.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-pthread", "-o", str(libraries / "libcuda.so.1"), str(source)], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("FAKE_CUDA_FOLDER", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def test_python_side_talks_to_the_rust_side(binary: str, stand_in: Path) -> None:
    n = 1000
    exporter, importer = gpu_check.Probe(binary), gpu_check.Probe(binary)
    try:
        shared = exporter.ask(op="share", device=0, len_bytes=n)
        tensor = dict(device=0, offset=0, len_bytes=n, memory="0363" + shared["memory"])
        events = dict(ready=shared["ready"], done=shared["done"])
        assert importer.ask(op="open", **tensor, **events)["driver_version"] == 13010
        exporter.ask(op="write", seed=5, delay_ms=1)
        assert importer.ask(op="read", seed=5)["wrong_bytes"] == 0
        assert importer.ask(op="read", seed=6)["wrong_bytes"] == n
        importer.ask(op="write", seed=9, delay_ms=1)
        with pytest.raises(gpu_check.ProbeFailed, match="close first"):
            importer.ask(op="open", **tensor, **events)
        importer.ask(op="close")
        assert exporter.ask(op="read", seed=9)["wrong_bytes"] == 0
    finally:
        exporter.end()
        importer.end()
    # One command was refused; and nothing but the journals is left.
    assert (exporter.process.returncode, importer.process.returncode) == (0, 2)
    assert all(path.name.startswith("journal.") for path in stand_in.iterdir())


def test_rust_side_that_finds_no_driver_is_reported(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"of no machine")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    probe = gpu_check.Probe(binary)
    try:
        with pytest.raises(gpu_check.ProbeFailed, match=r"NVIDIA's driver: .*libcuda\.so\.1"):
            probe.ask(op="devices")
    finally:
        probe.end()


# --- the page of studies ---------------------------------------------------------------------------------------------

PROSE = "# Studies\n\n<!-- made by make studies -->\nold\n<!-- /made -->\n\n"
SECTIONS = "## gemm\n\nprose\n\n```text\nold\n```\n\n## generate\n\nno block\n"


def finding(holds: str, claim: str = "a | b differ") -> dict[str, str]:
    return {"claim": claim, "holds": holds, "seed": "1", "here": "2"}


def test_a_finding_reproduces_where_every_draw_says_so() -> None:
    def of(*holds: str) -> tuple[str, int, int]:
        (found,) = page.verdicts([[finding(word)] for word in holds])
        return found.kind, found.yes, found.n

    assert of("yes", "yes") == ("every", 2, 2)
    assert of("yes", "no", "yes") == ("some", 2, 3)
    assert of("no", "no") == ("none", 0, 2)
    assert of("not_examined", "not_examined") == ("not run", 0, 0)
    with pytest.raises(ValueError, match="draws have other findings"):
        page.verdicts([[finding("yes")], [finding("yes", "another")]])


def test_rows_of_the_table_have_each_finding_once() -> None:
    found = page.verdicts([[finding("no"), finding("yes", "c")], [finding("no"), finding("no", "c")]])
    row = page.summary("gemm", found, 2)
    assert row.split(" | ")[2:] == ["0 of 2", "c: 1 of 2", "a \\| b differ (seed: 1; here: 2)", "- |"]


def test_prose_stays_where_blocks_are_made_again() -> None:
    made = page.with_table(page.with_block(PROSE + SECTIONS, "gemm", "new\n"), "table\n")
    assert made == (PROSE + SECTIONS).replace("old\n```", "new\n```").replace("old", "table")
    for section, text in (("generate", "no text block"), ("layernorm", "no section")):
        with pytest.raises(ValueError, match=text):
            page.with_block(SECTIONS, section, "")
    with pytest.raises(ValueError, match="made by make studies"):
        page.with_table(SECTIONS, "")


def test_the_page_has_a_block_for_each_study_and_names_the_processor() -> None:
    text = page.PAGE.read_text()
    for section in (*page.RUST, *page.PYTHON):
        assert page.with_block(text, section, "x") != text
    assert page.with_table(text, "x") != text
    assert page.machine().endswith((" core)", " cores)"))
