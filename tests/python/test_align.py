"""Two models beside each other: `rust_ort.align`."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import rust_ort
from measure import align as measure
from rust_ort.errors import ClientError, OptionError

FLOAT = TensorProto.FLOAT


def make_summary(value: NDArray[Any]) -> str:
    """The four letters as onnx-array-api defines them."""
    flat = value.reshape(-1).astype(np.float64)
    if flat.size <= 4:
        sums = np.zeros(4)
        sums[: flat.size] = flat
    else:
        padded = np.zeros(flat.size + -flat.size % 4)
        padded[: flat.size] = flat
        sums = padded.reshape((4, -1)).sum(axis=1)
    return "".join(chr(65 + int(v) % 26) if abs(v) < 1e10 else "?" for v in sums)


def values() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    found: dict[str, NDArray[Any]] = {}
    for size in (0, 1, 3, 4, 5, 7, 31, 33, 129, 1000, 4099, 70_001):
        found[f"f32_{size}"] = (rng.normal(size=size) * 100).astype(np.float32)
        found[f"f64_{size}"] = rng.normal(size=size) * 1000
        found[f"f16_{size}"] = rng.normal(size=size).astype(np.float16)
        found[f"bf16_{size}"] = rng.normal(size=size).astype(ml_dtypes.bfloat16)
        found[f"i64_{size}"] = rng.integers(-(2**40), 2**40, size=size)
        found[f"i8_{size}"] = rng.integers(-128, 128, size=size).astype(np.int8)
        found[f"u8_{size}"] = rng.integers(0, 256, size=size).astype(np.uint8)
        found[f"bool_{size}"] = rng.random(size) < 0.5
    found["scalar"] = np.array(-2.5, dtype=np.float32)
    found["empty"] = np.zeros((3, 0, 2), dtype=np.float32)
    found["nan"] = np.array([1, np.nan, 3, 4, 5, 6, 7, 8, 9], dtype=np.float32)
    found["infinite"] = np.array([np.inf, 1, -np.inf, 2, np.inf, -np.inf, 3, 4], dtype=np.float32)
    found["large"] = np.array([1e10, 9.9e9, -1e10, -9.9e9])
    found["edges"] = np.array([2**63 - 1, -(2**63), 0, 1, 2**53 + 1], dtype=np.int64)
    return found


def identity(name: str, dtype: int, shape: list[int | str], op: str = "Identity") -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, [name], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_letters_are_those_of_numpy() -> None:
    given = values()
    graph = helper.make_graph(
        [helper.make_node("Identity", ["scalar"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = rust_ort.align(model, model)
    letters = {
        row["first"]["name"]: row["first"]["signature"] for row in found.rows if row["first"]["kind"] == "initializer"
    }
    with np.errstate(invalid="ignore"):
        assert letters == {name: make_summary(value) for name, value in given.items()}
    assert not found.differing and not found.errors


def test_letters_of_random_tensors_are_those_of_numpy() -> None:
    found = measure.letters(300, make_summary)
    assert not found.differing
    assert found.total == 300 and len(found.n) == 10
    assert min(found.with_nan, found.with_infinity, found.empty) > 3


def test_the_page_of_onnx_array_api_goes_on_where_it_was(tmp_path: Path) -> None:
    spent = measure.Spent(wall=1.0, processor=0.1)
    row = measure.Row(name="llama", n=3, n_pairs=2, letters=1, unexplained=0, pairs=0, far=["Erf"], same_letters=0,
                      same_pairs=0, ours=spent, theirs=measure.Spent(wall=9.0, processor=4.0))  # fmt: skip
    found = measure.Letters(n={"float32": 4, "bool": 1}, with_nan=1)
    measure.write(tmp_path / "align.md", {"llama": row}, found)
    assert measure.kept(tmp_path / "align.json") == ({"llama": row}, found)
    assert "5 random tensors" in (tmp_path / "align.md").read_text()
    assert measure.wrong([row], found) == []


def cost(one: measure.Result, other: measure.Result) -> float:
    """As onnx-array-api defines the distance of two values."""
    floats = {"float16", "float32", "float64"}
    found = 1000.0 * (one[0] != other[0])
    if one[1] != other[1]:
        found += 10 * (0.2 if {one[1], other[1]} <= floats else 1)
    if one[2] != other[2]:
        found += abs(math.prod(one[2]) - math.prod(other[2]))
        same_rank = len(one[2]) == len(other[2])
        found += sum(abs(m - n) for m, n in zip(one[2], other[2], strict=True)) if same_rank else 100
    found += sum(abs(ord(a) - ord(b)) for a, b in zip(one[3], other[3], strict=True))
    return found + 10 * (one[4] != other[4])


def aligned(first: list[measure.Result], second: list[measure.Result]) -> list[tuple[int | None, int | None]]:
    """Pairs of the least distance; of equal ones a pair goes before what the first has alone, then the second."""
    best: dict[tuple[int, int], float] = {(-1, -1): 0.0}
    before: dict[tuple[int, int], tuple[int, int]] = {}
    band = max(50, abs(len(first) - len(second)) + 1)
    for i in range(len(first)):
        for j in range(max(0, i - band), min(len(second), i + band)):
            ways = [((i - 1, j - 1), cost(first[i], second[j])), ((i - 1, j), 1000.0), ((i, j - 1), 1000.0)]
            known = [(best[way] + spent, at, way) for at, (way, spent) in enumerate(ways) if way in best]
            best[i, j], _, before[i, j] = min(known)
    at = len(first) - 1, len(second) - 1
    found: list[tuple[int | None, int | None]] = []
    while at != (-1, -1):
        i, j = before[at]
        found.append((at[0] if at[0] > i else None, at[1] if at[1] > j else None))
        at = i, j
    return found[::-1]


class Head(nn.Module):
    """Attention whose scores are scaled and masked."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * 0.25
        masked = scores.masked_fill(self.mask[:5, :5] == 0, -100.0)
        return x + torch.softmax(masked, -1) @ self.value(x)


@pytest.mark.parametrize("kind", ["layers", "attention"])
def test_pairs_are_those_of_the_least_distance(kind: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))
    if kind == "attention":
        model = nn.Sequential(Head(), Head())
    x = torch.randn(2, 5, 8)
    plain, optimized = (rust_ort.to_onnx(model.eval(), x, optimized=given) for given in (False, True))
    name = plain.graph.input[0].name
    found = measure.ours(measure.Models(name=kind, protos=(plain, optimized), feeds={name: x.numpy()}))
    first, second = ([result for result in of if result[0] not in measure.ENDS] for of in (found.first, found.second))
    assert len(first) > len(second) > 15
    expected = [
        measure._pair(first[i] if i is not None else None, second[j] if j is not None else None)
        for i, j in aligned(first, second)
    ]
    assert found.pairs == Counter(expected)


@pytest.mark.parametrize("kind", ["numpy", "torch", "npz", "compressed", "pair"])
def test_feeds_are_arrays_tensors_and_files(kind: str, tmp_path: Path) -> None:
    x: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = identity("x", FLOAT, ["n", 3], "Neg")
    feeds: Any = {"x": x}
    if kind == "torch":
        feeds = {"x": torch.from_numpy(x).t().contiguous().t()}
    elif kind in ("npz", "compressed"):
        feeds = tmp_path / "x.npz"
        (np.savez if kind == "npz" else np.savez_compressed)(feeds, x=np.asfortranarray(x))
    elif kind == "pair":
        feeds = ({"x": x}, {"other": torch.from_numpy(x)})
    found = rust_ort.align(model, model, feeds=feeds)
    assert [row["symbol"] for row in found.rows] == ["=", "=", "="]
    assert found.rows[0]["first"]["signature"] == make_summary(x)
    assert found.rows[1]["first"]["signature"] == make_summary(-x)
    assert "003 = | OUTPUT float32  2:2x3 " in found.text


def test_a_damaged_npz_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(300, dtype=np.float32).reshape(100, 3))
    whole = path.read_bytes()
    model = identity("x", FLOAT, ["n", 3])
    assert not rust_ort.align(model, model, feeds=path).differing
    for at in range(40, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            found = rust_ort.align(model, model, feeds=path)
        except ClientError as error:
            assert "x.npz" in str(error) or "input" in str(error), at
        else:
            assert found.rows[0]["first"]["signature"] == make_summary(np.arange(300)), at
    path.write_bytes(whole[:-30])
    with pytest.raises(ClientError, match="no zip"):
        rust_ort.align(model, model, feeds=path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_tensors_of_every_dtype_are_fed_as_they_are(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    code = {torch.bfloat16: 16, torch.float16: 10, torch.int64: 7, torch.bool: 9, torch.complex64: 14}[dtype]
    model = identity("x", code, [2, 3])
    found = rust_ort.align(model, model, feeds={"x": tensor})
    assert found.rows[0]["first"]["dtype"] == str(dtype).removeprefix("torch.")
    if dtype.is_complex:
        assert "Identity" in found.errors[0], "ONNX Runtime has no kernel: what ran up to there is told"
    else:
        assert found.summary["matched"] == 3


def test_differences_are_those_of_numpy() -> None:
    x = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)
    found = rust_ort.align(identity("x", FLOAT, [5, 7], "Tanh"), identity("x", FLOAT, [5, 7], "Sin"), feeds={"x": x})
    row = found.differing[0]
    one, other = np.tanh(x.astype(np.float64)), np.sin(x.astype(np.float64))
    assert (row["symbol"], row["first"]["op_type"], row["second"]["op_type"]) == ("~", "Tanh", "Sin")
    assert row["max_abs"] == pytest.approx(np.abs(one - other).max(), rel=1e-4)
    assert row["max_rel_to_max"] == pytest.approx(np.abs(one - other).max() / np.abs(one).max(), rel=1e-4)


def test_a_model_that_fails_is_aligned_up_to_there() -> None:
    model = identity("x", FLOAT, ["n", 3])
    broken = identity("x", FLOAT, ["n", 3])
    broken.graph.node.add(op_type="MatMul", input=["y", "y"], output=["z"])
    found = rust_ort.align(model, broken, sizes={"n": 2})
    assert len(found.errors) == 1 and "MatMul" in found.errors[0]
    assert [row["symbol"] for row in found.rows] == ["=", "=", "-"]


def test_an_initializer_that_is_an_input_too_need_not_be_fed() -> None:
    model = identity("x", FLOAT, [2])
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("w")
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [2]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    x = np.array([1, 1], np.float32)
    found = rust_ort.align(model, model, feeds={"x": x, "w": x})
    assert [row["first"]["signature"] for row in found.rows] == ["BCAA", "BBAA", "CDAA", "CDAA"]
    assert found.models[0]["notes"] == ['no input takes "w"']


def test_what_is_printed_is_what_the_command_prints() -> None:
    one, other = identity("x", FLOAT, ["n", 3], "Neg"), identity("x", FLOAT, ["n", 3], "Abs")
    found = rust_ort.align(one, other, feeds={"x": np.ones((2, 3), np.float32)})
    assert "001 = " not in str(found) and "002 ~ " in str(found) and "001 = " in found.text
    assert str(found).splitlines()[-1].startswith("outputs: 0 of 1 match, 1 differ, worst a=2.00e0 r=2.00e0 !"), str(
        found
    )
    assert (
        repr(found).startswith("<Alignment: ")
        and "mismatch=1" in repr(found)
        and "0 of 1 outputs match" in repr(found)
        and len(repr(found)) < 200
    )
    assert [model["path"] for model in found.models] == ["model1", "model2"]
    assert "model 1: model1, " in str(found) and "rust-ort-align-" not in found.text + found.feeds
    assert found.outputs == {
        "all": 1, "matched": 0, "mismatch": 1, "empty": 0, "alone": 0, "of_two_types": 0, "of_nan": 0,
        "in_order": True, "worst": 3,
    }  # fmt: skip


def test_a_value_has_one_verdict_wherever_it_stands() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(6, 6)).astype(np.float32) for name in ("W", "U")}

    def model(order: str, transposed: bool = False) -> onnx.ModelProto:
        nodes = [helper.make_node("MatMul", ["x", {"p": "W", "q": "U"}[name]], [name]) for name in order]
        held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
        if transposed:
            held[0] = numpy_helper.from_array(np.ascontiguousarray(weights["W"].T), "Wt")
            nodes = [helper.make_node("Transpose", ["Wt"], ["W"], perm=[1, 0]), *nodes]
        graph = helper.make_graph(
            [*nodes, helper.make_node("Sub", ["p", "q"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", FLOAT, ["b", 6])],
            [helper.make_tensor_value_info("y", FLOAT, ["b", 6])],
            held,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    found = rust_ort.align(model("pq"), model("qp"), sizes={"b": 5})
    assert found.summary["mismatch"] == 0 and found.outputs["matched"] == 1, found.text
    swapped = next(row for row in found.rows if row["first"] and row["first"]["name"] == "p")
    assert (swapped["verdict"], swapped["max_abs"]) == ("match", 0)
    found = rust_ort.align(model("pq"), model("pq", transposed=True), sizes={"b": 5})
    assert found.summary["mismatch"] == 0 and found.outputs["matched"] == 1, found.text
    assert [1, 0] in [row["transposed"] for row in found.rows], found.text


def test_what_does_not_fit_is_an_error() -> None:
    model = identity("x", FLOAT, ["n", 3])
    for arguments, expected in [
        ({"feeds": {"x": np.zeros((2, 2), np.float32)}}, "expected float32"),
        ({"feeds": {"x": object()}}, "feeds"),
        ({"feeds": 3}, "expected {input: tensor} or a path"),
        ({"feeds": ({}, {}, {})}, "expected one or a pair"),
        ({"feeds": {}, "sizes": {"n": 2}}, "got both"),
        ({"sizes": {"m": 2}}, "no input of either model"),
    ]:
        with pytest.raises(ClientError, match=expected):
            rust_ort.align(model, model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="tolerance"):
        rust_ort.align(model, model, tolerance={"rel": 1})
    with pytest.raises(ClientError, match="ModelProto or a path"):
        rust_ort.align(3, model)
    with pytest.raises(ClientError, match=r"nowhere\.onnx"):
        rust_ort.align("nowhere.onnx", model)


def test_an_execution_provider_is_asked_for_by_its_name() -> None:
    model = identity("x", FLOAT, [2, 3])
    assert not rust_ort.align(model, model, providers=["CPUExecutionProvider"]).differing
    with pytest.raises(ClientError, match=r"--provider NoExecutionProvider: onnxruntime .* has .*CPUExecutionProvider"):
        rust_ort.align(model, model, providers=["NoExecutionProvider"])


def test_the_module_is_the_function_and_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(rust_ort.align)) is rust_ort.align
    assert {"align", "Alignment"} <= set(dir(rust_ort))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sizes": {"n": "x"}}, r"align sizes\['n'\]: expected an integer of 0 or more, got 'x'"),
        ({"sizes": {"n": 1.5}}, r"align sizes\['n'\]"),
        ({"seed": -1}, "align seed: expected an integer of 0 or more, got -1"),
        ({"seed": True}, "align seed"),
    ],
)
def test_a_number_that_is_none_is_told(given: dict[str, Any], text: str) -> None:
    model = identity("x", FLOAT, ["n"])
    with pytest.raises(ClientError, match=text):
        rust_ort.align(model, model, **given)


def test_an_array_of_negative_stride_is_copied() -> None:
    model = identity("x", FLOAT, [3])
    made = rust_ort.align(model, model, feeds={"x": np.arange(3, dtype=np.float32)[::-1]})
    assert made.errors == [] and made.differing == []
