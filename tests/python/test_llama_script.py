"""The study of two exporters on a small Llama: its matrix, what it prints, its exit codes; matching of inputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import test_planted
import torch
from onnx import TensorProto, helper, numpy_helper

from rust_ort.errors import ClientError
from rust_ort.link.specs import Verdict
from rust_ort.onnx_tools import helpers
from rust_ort.onnx_tools.match_inputs import build_matching_inputs
from rust_ort.studies import llama, llama_models
from rust_ort.studies.llama import Row

DIRECTIONS = ("forward", "backward")

# --- the script ------------------------------------------------------------------------------------------------------


def run(folder: Path, capsys: pytest.CaptureFixture[str], **given: object) -> tuple[int, str]:
    """(exit code, stdout) of the script on a small Llama."""
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    code = llama.main(["--size", "small", "--folder", str(folder), *words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err, captured.err
    return code, captured.out


def summary(text: str) -> dict[str, str]:
    """{what: verdict} of the summary table."""
    lines = text.split("\nSummary\n")[1].splitlines()[2:]
    rows = [re.split(r"\s{2,}", line) for line in lines if re.search(r"\s{2,}", line)]
    return {row[0]: row[1] for row in rows}


def expected_rows(backward: int, refused: str = "") -> dict[str, str]:
    """refused: the part whose models as exported ONNX Runtime refuses."""
    rows = ["compiled vs eager: output", "0_0-forward alone vs compiled", "export vs eager", "export vs rust_ort"]
    rows += ["compiled vs eager: gradients", "0_0-backward alone vs compiled"] * backward
    rows += [f"export vs rust_ort, 0_0-{direction}" for direction in DIRECTIONS[: 1 + backward]]
    exported = [refused, *("0", "1")[: 1 + backward]] if refused else []
    return {
        **dict.fromkeys(rows, "Match"),
        **{f"llama_export_{name}.onnx as exported": "NotCompared" for name in exported},
    }


def tables(text: str) -> dict[str, list[str]]:
    """{graph: symbol of each row} of the side-by-side tables."""
    return {
        table.splitlines()[0]: re.findall(r"^\d{3,} ([=~+-]) \| ", table.split("\n\n")[0], re.MULTILINE)
        for table in text.split("\nSide by side, ")[1:]
    }


@pytest.fixture
def first_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph names as in a process of its own."""
    monkeypatch.setattr("rust_ort.observe.graph_info._names", {})


@pytest.mark.usefixtures("daemon", "first_names")
@pytest.mark.parametrize(
    ("part", "backward", "mixed"),
    [
        (part, backward, mixed)
        for part in ("attention", "decoder", "model")
        for backward, mixed in ((0, 0), (1, 0), (1, 1))  # (0, 1) is the first half of (1, 1)
    ]
    + [("attention", 0, 1)],
)
def test_every_part_matches_forward_and_backward_and_mixed(
    part: str, backward: int, mixed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(tmp_path, capsys, part=part, backward=backward, mixed=mixed)
    assert code == 0, text
    assert summary(text) == expected_rows(backward, part if mixed else "")
    assert ("NOT_IMPLEMENTED" in text) is bool(mixed)
    module = llama_models.build(part, llama_models.SIZES["small"]).module
    judged = {name for name, _ in module.named_parameters() if f"  Match grad of {name}: max" in text}
    assert judged == ({name for name, _ in module.named_parameters()} if backward else set())
    directions = DIRECTIONS[: 1 + backward]
    assert sorted(path.name for path in (tmp_path / "llama").glob("0_0-*")) == sorted(f"0_0-{d}" for d in directions)
    for name in [f"llama_rust_ort_{part}_{d}" for d in directions] + [f"llama_export_{part}{'.precision' * mixed}"]:
        before, after = (tmp_path / f"{name}{suffix}" for suffix in (".before.opt.onnx", ".opt.onnx"))
        for path in (before, after):
            assert f"{path}: {helpers.node_count(path)} nodes" in text
    pairs = [f"llama_{who}_{number}" for number in range(1 + backward) for who in ("export", "rust_ort")]
    assert all((tmp_path / f"{name}{suffix}").is_file() for name in pairs for suffix in (".onnx", ".txt"))
    found = tables(text)
    assert list(found) == [f"0_0-{d}" for d in directions]
    assert all(symbols.count("=") > len(symbols) / 3 for symbols in found.values()), found
    ends = re.findall(r"^outputs: (\d+) of (\d+) match", text, re.MULTILINE)
    assert len(ends) == 1 + backward and all(matched == n for matched, n in ends), ends


@pytest.mark.usefixtures("daemon", "first_names")
def test_float16_runs_as_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(tmp_path, capsys, backward=1, mixed=1, dtype="float16")
    assert code == 0, text
    assert summary(text) == expected_rows(1)


@pytest.mark.usefixtures("daemon", "first_names")
def test_opset_is_of_both_exporters_and_ortopt_0_runs_models_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(tmp_path, capsys, opset=20, ortopt=0)
    assert code == 0, text
    versions = {
        path.name: [entry.version for entry in onnx.load(path).opset_import if not entry.domain]
        for path in (tmp_path / "llama_export_attention.onnx", tmp_path / "llama/0_0-forward/part_0/model.onnx")
    }
    assert versions == {"llama_export_attention.onnx": [20], "model.onnx": [20]}
    assert not list(tmp_path.glob("*.opt.onnx"))
    again, text = run(tmp_path, capsys, ortopt=0)
    assert again == 0, text
    compiled_again = {name.replace("0_0-", "0_0_1-"): verdict for name, verdict in expected_rows(0).items()}
    assert summary(text) == compiled_again


@pytest.mark.usefixtures("daemon", "first_names")
def test_planted_error_exits_1_and_the_other_exporter_still_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUST_ORT_TRANSFORMS", f"{test_planted.__name__}:one_epsilon")
    code, text = run(tmp_path, capsys, part="decoder", backward=1)
    assert code == 1, text
    rows = summary(text)
    assert rows["compiled vs eager: output"] == rows["compiled vs eager: gradients"] == "Mismatch"
    assert rows["export vs rust_ort"] == "Mismatch"
    assert rows["export vs eager"] == rows["0_0-forward alone vs compiled"] == "Match"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_exits_2_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert llama.main(["--cuda", "1"]) == 2
    assert "--cuda 1: this machine lacks a GPU that torch can use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "mlp"], "choose from"),
        (["--opset", "17"], "choose from 18, 19"),
        (["--backward", "2"], "choose from 0, 1"),
        (["--dtype", "float16"], "add --mixed 1"),
    ],
)
def test_bad_argument_names_the_choices(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        llama.main(words)
    assert exited.value.code == 2
    assert message in capsys.readouterr().err.replace("'", "")


def verdict(kind: str) -> Verdict:
    return Verdict(name="a", kind=kind, reason="", metrics=None, max_abs=0.0, max_rel_to_max=0.0, outside=0)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 3),
        ([Row(what="a", verdicts=[verdict("match")])], 0),
        ([Row(what="a", verdicts=[verdict("match"), verdict("not_compared")])], 3),
        ([Row(what="a", verdicts=[verdict("match")]), Row(what="b", left_out="two models")], 3),
        ([Row(what="a", verdicts=[verdict("match")]), Row(what="b", left_out="refused", stand_in="c")], 0),
        ([Row(what="b", left_out="refused", stand_in="c")], 3),
        ([Row(what="a", verdicts=[verdict("mismatch")]), Row(what="b", left_out="two models")], 1),
        ([Row(what="a", verdicts=[verdict("mismatch")]), Row(what="b", verdicts=[verdict("failed")])], 2),
    ],
)
def test_worst_row_decides_the_exit_code(rows: list[Row], code: int) -> None:
    assert llama.exit_code(rows) == code


def test_refused_model_without_a_twin_is_left_out_with_the_runtimes_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise helpers.Refused("no kernel for MatMul")

    monkeypatch.setattr(helpers, "run_model", refuse)
    job = llama.parse(["--mixed", "1", "--dtype", "float16", "--ortopt", "0", "--folder", str(tmp_path)])
    alone = llama.run_alone(job, job.exported, job.exported.stem, {})
    assert (alone.outputs, alone.model, llama.exit_code(alone.rows)) == ({}, None, 3)
    assert alone.rows[0].notes() == ["NotCompared llama_export_attention.onnx as exported: no kernel for MatMul"]


def test_model_that_ran_is_preferred_to_the_exported_one(tmp_path: Path) -> None:
    dumped = llama.Dumped(graph="0_0-forward", direction="forward", folder=tmp_path)
    assert dumped.runs == tmp_path / "model.onnx"
    (tmp_path / "model.precision.onnx").touch()
    assert dumped.runs == tmp_path / "model.precision.onnx"


# --- helpers ---------------------------------------------------------------------------------------------------------


def model(inputs: dict[str, Any], **initializers: torch.Tensor) -> onnx.ModelProto:
    """Sum of nothing: only inputs and initializers matter here."""
    entries = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    weights = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in initializers.items()]
    return helper.make_model(helper.make_graph([], "g", entries, [], weights))


A, B, C = torch.full((2, 3), 1.0), torch.full((2, 3), 2.0), torch.full((4,), 3.0)


def test_inputs_are_matched_by_name_whatever_their_order() -> None:
    source = model({"primals_1": (2, 3), "primals_2": (2, 3)})
    got = build_matching_inputs(
        source,
        {"primals_1": A, "primals_2": B},
        model({"sin": (2, 3), "cos": (2, 3)}),
        names={"primals_1": "cos", "primals_2": "sin"},
    )
    assert list(got) == ["sin", "cos"]
    assert torch.equal(got["sin"], B)
    assert torch.equal(got["cos"], A)


def test_initializer_of_the_first_feeds_an_input_of_the_second() -> None:
    got = build_matching_inputs(
        model({"x": (2, 3)}, **{"layer.weight": B}),
        {"x": A},
        model({"primals_1": (2, 3), "x": (2, 3)}),
        names={"primals_1": "layer.weight"},
    )
    assert torch.equal(got["primals_1"], B)
    assert torch.equal(got["x"], A)


def test_names_come_from_the_provenance_beside_a_dumped_model(tmp_path: Path) -> None:
    onnx.save(model({"primals_1": (2, 3), "primals_2": (2, 3)}), tmp_path / "model.onnx")
    (tmp_path / "provenance.json").write_text(
        '{"inputs": [{"name": "primals_1", "of": "cos"}, {"name": "primals_2", "of": "sin"}]}'
    )
    feeds = {"primals_1": A, "primals_2": B}
    got = build_matching_inputs(tmp_path / "model.onnx", feeds, model({"sin": (2, 3)}))
    assert torch.equal(got["sin"], B)


def test_inputs_are_matched_by_known_content() -> None:
    source, target = model({"a": (2, 3), "b": (2, 3)}), model({"p": (2, 3), "q": (2, 3)})
    got = build_matching_inputs(source, {"a": A, "b": B}, target, content={"p": B.clone(), "q": A.clone()})
    assert torch.equal(got["p"], B)
    assert torch.equal(got["q"], A)
    with pytest.raises(ClientError, match=r"input 'p' float .* none of 'a' .*, 'b' .* has the content given for it"):
        build_matching_inputs(source, {"a": A, "b": B}, target, content={"p": B + 1, "q": A})


def test_equal_candidates_are_no_ambiguity() -> None:
    got = build_matching_inputs(
        model({"a": (2, 3), "b": (2, 3)}), {"a": A, "b": A.clone()}, model({"p": (2, 3), "q": (2, 3)})
    )
    assert torch.equal(got["p"], A)
    assert torch.equal(got["q"], A)


def test_dtype_and_shape_match_only_what_is_left_and_alone() -> None:
    source = model({"a": (2, 3), "b": (2, 3), "c": (4,)})
    feeds = {"a": A, "b": B, "c": C}
    got = build_matching_inputs(source, feeds, model({"b": (2, 3), "rest": ("n", 3), "q": (4,)}))
    assert torch.equal(got["rest"], A)
    assert torch.equal(got["q"], C)
    with pytest.raises(ClientError, match=r"input 'p' float \(2, 3\): .* which of 'a' float \(2, 3\), 'b' float"):
        build_matching_inputs(source, feeds, model({"p": (2, 3)}))
    with pytest.raises(ClientError, match=r"'q' float \(4,\) asks for them too"):
        build_matching_inputs(source, feeds, model({"p": (4,), "q": (4,)}))


def test_missing_value_and_missing_feed_are_named() -> None:
    source = model({"a": (2, 3)})
    with pytest.raises(
        ClientError, match=r"input 'p' float \(5,\): no value has its name.* left are 'a' float \(2, 3\)"
    ):
        build_matching_inputs(source, {"a": A}, model({"p": (5,)}))
    with pytest.raises(ClientError, match=r"input 'a' float \(5,\): the value of that name is 'a' float \(2, 3\)"):
        build_matching_inputs(source, {"a": A}, model({"a": (5,)}))
    with pytest.raises(ClientError, match="feeds lack inputs of the model they are for: 'a'"):
        build_matching_inputs(source, {}, model({"a": (2, 3)}))


def test_inputs_are_listed_as_tuples_with_initializers_on_request() -> None:
    made = model({"x": (2, "n")}, w=C)
    assert helpers.inputs_from_onnx_model(made) == [("INPUT", "x", 1, (2, "n"))]
    assert helpers.inputs_from_onnx_model(made, init=True)[1:] == [("INIT", "w", 1, (4,))]


def test_results_read_as_dtype_shape_and_sum() -> None:
    assert helpers.results_to_string(A) == "torch.float32 (2, 3) [sum=6]"
    text = helpers.results_to_string((A.bfloat16(), [C]))
    assert text.splitlines() == [
        "2 results",
        "  [0]: torch.bfloat16 (2, 3) [sum=6]",
        "  [1][0]: torch.float32 (4,) [sum=12]",
    ]


@pytest.mark.usefixtures("daemon")
def test_all_close_judges_each_tensor_and_names_what_differs() -> None:
    verdicts = helpers.assert_all_close([A, B], [A, B])
    assert [verdict.kind for verdict in verdicts] == ["match", "match"]
    with pytest.raises(AssertionError, match=r"^Mismatch \[1\]: max\|Δ\| 0\.0009999,") as raised:
        helpers.assert_all_close([A, B], [A, B + 1e-3])
    assert len(str(raised.value).splitlines()) == 1
    helpers.assert_all_close([A, B], [A, B + 1e-3], half=torch.float16)
    with pytest.raises(AssertionError, match=r"NotCompared \[1\]: there is no candidate"):
        helpers.assert_all_close([A, B], [A])
    with pytest.raises(AssertionError, match="no tensor to compare"):
        helpers.assert_all_close([], [])


def test_tensors_of_every_dtype_of_a_dump_are_read(tmp_path: Path) -> None:
    written = {"bf16": A.bfloat16(), "f16": B.half(), "ids": torch.tensor([3]), "flag": torch.tensor(True)}
    for index, (name, tensor) in enumerate(written.items()):
        bits = tensor.view(torch.int16) if name == "bf16" else tensor
        proto = numpy_helper.from_array(bits.numpy(), name)
        proto.data_type = TensorProto.BFLOAT16 if name == "bf16" else proto.data_type
        onnx.save_tensor(proto, tmp_path / f"input_{index}.pb")
    got = helpers.data_set(tmp_path, "input")
    assert list(got) == list(written)
    for name, tensor in written.items():
        assert got[name].dtype is tensor.dtype
        assert torch.equal(got[name], tensor)
