"""`rust_ort.align` beside onnx-array-api's compare_onnx_execution: letters, pairs and time; letters beside NumPy's.

Each model is an architecture of the census exported plain and optimized, and both tools align the two. onnx-array-api
runs them by NumPy, whose values are not ONNX Runtime's to the bit, so that a sum near a whole number may get another
letter: a second run of it, whose nodes ONNX Runtime computes, shows what is left when the values are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import math
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import rust_ort
from measure.architectures import ARCHITECTURES

Array: TypeAlias = NDArray[Any]
Result = tuple[str, str, tuple[int, ...], str, str, str]
"""Kind, dtype, shape, letters, operator, name."""
Key = tuple[str, str]
Pair = tuple[Key | None, Key | None]
"""Kind and name of what stands beside each other."""

PINS = Path(__file__).resolve().parents[1] / "requirements" / "align.txt"
SEED = 20
MODELS = (
    "llama", "llama_linear", "llama_yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "opt", "bloom",
    "falcon", "bert", "roberta", "albert", "electra", "t5", "t5_gated", "vit", "convnext", "resnet",
)  # fmt: skip
KINDS = {"INITIALIZER": "initializer", "INPUT": "input", "RESULT": "result", "OUTPUT": "output"}
ENDS = ("input", "output")
N_TENSORS = 10_000
BATCH = 1000
MOST_RATIO = 0.05
FLOATS: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
INTEGERS: tuple[Any, ...] = (np.int64, np.int32, np.int16, np.int8, np.uint8)


# --- letters of random tensors ---------------------------------------------------------------------------------------


def random_tensors(n: int, seed: int = SEED) -> Iterator[Array]:
    """Floats of each width, integers and booleans: NaN, infinities, empty ones, rank 0, sums near whole numbers."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        yield _random_tensor(rng)


def _random_tensor(rng: np.random.Generator) -> Array:
    shape = _random_shape(rng)
    chosen = rng.integers(0, 10)
    if chosen == 0:
        return np.asarray(rng.random(shape) < 0.5)
    if chosen <= 3:
        dtype = INTEGERS[rng.integers(len(INTEGERS))]
        info = np.iinfo(dtype)
        narrow = max(info.min, -(2**40)), min(info.max, 2**40)
        low, high = narrow if rng.random() < 0.7 else (info.min, info.max)
        return np.asarray(rng.integers(low, high, size=shape, dtype=dtype, endpoint=True))
    dtype = FLOATS[rng.integers(len(FLOATS))]
    scale = 10.0 ** rng.integers(-3, 6)
    value = np.asarray(rng.standard_normal(shape) * scale)
    if rng.random() < 0.3:  # sums of eighths, which lie on whole numbers
        value = np.round(value * 8) / 8
    with np.errstate(over="ignore"):
        made = np.array(value.astype(dtype))
    flat = made.reshape(-1)
    if rng.random() < 0.25 and flat.size:
        for _ in range(rng.integers(1, 4)):
            flat[rng.integers(flat.size)] = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return made


def _random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    rank = int(rng.integers(0, 5))
    if rng.random() < 0.05 and rank:
        sides = rng.integers(0, 4, size=rank)
        sides[rng.integers(rank)] = 0
        return tuple(int(side) for side in sides)
    most = {0: 1, 1: 20_000, 2: 150, 3: 28, 4: 12}[rank]
    return tuple(int(side) for side in rng.integers(1, 9 if rng.random() < 0.4 else most + 1, size=rank))


def letters_of(tensors: Sequence[Array]) -> list[str]:
    """What align gives tensors: they are the initializers of a model."""
    named = [numpy_helper.from_array(value, f"t{at}") for at, value in enumerate(tensors)]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    node = helper.make_node("Constant", [], ["y"], value_float=0.0)
    graph = helper.make_graph([node], "letters", [], [output], named)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = rust_ort.align(model, model)
    return [row["first"]["signature"] for row in found.rows if row["first"]["kind"] == "initializer"]


@dataclass(kw_only=True)
class Letters:
    """Tensors whose letters were compared, by dtype, and those that differ."""

    n: dict[str, int] = field(default_factory=dict)
    with_nan: int = 0
    with_infinity: int = 0
    empty: int = 0
    differing: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.n.values())


def letters(n: int, make_summary: Callable[[Array], str]) -> Letters:
    """Letters of `n` random tensors by align and by `make_summary`."""
    found, tensors = Letters(), random_tensors(n)
    for begin in range(0, n, BATCH):
        batch = list(itertools.islice(tensors, min(BATCH, n - begin)))
        with np.errstate(invalid="ignore", over="ignore"):
            expected = [make_summary(value) for value in batch]
        for value, ours, theirs in zip(batch, letters_of(batch), expected, strict=True):
            found.n[str(value.dtype)] = found.n.get(str(value.dtype), 0) + 1
            wide = value.astype(np.float64)
            found.with_nan += bool(np.isnan(wide).any())
            found.with_infinity += bool(np.isinf(wide).any())
            found.empty += not value.size
            if ours != theirs:
                found.differing.append(f"{value.dtype}{list(value.shape)}: {ours}, NumPy {theirs}")
    return found


# --- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Models:
    """An architecture's forward, plain and optimized, with feeds for both."""

    name: str
    protos: tuple[onnx.ModelProto, onnx.ModelProto]
    feeds: dict[str, Array]


def exported(name: str) -> Models:
    """A census architecture in evaluation mode."""
    case = ARCHITECTURES[name]("eager")
    module = case.module.eval()
    plain, optimized = (rust_ort.to_onnx(module, kwargs=case.inputs, optimized=given) for given in (False, True))
    feeds = {entry.name: case.inputs[entry.name].numpy() for entry in plain.graph.input}
    return Models(name=name, protos=(plain, optimized), feeds=feeds)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """A call's seconds: of the clock, and of processors, those of processes that it started included."""

    wall: float
    processor: float


@contextlib.contextmanager
def _timed(into: list[Spent]) -> Iterator[None]:
    gc.collect()
    gc.disable()  # as timeit does: a pass over all that torch and transformers hold takes half a second
    try:
        start, begin = time.perf_counter(), _processor_s()
        yield
        into.append(Spent(wall=time.perf_counter() - start, processor=_processor_s() - begin))
    finally:
        gc.enable()


def _processor_s() -> float:
    """Seconds of processors until now, those of processes that ended included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass(frozen=True, kw_only=True)
class Found:
    """An alignment as a tool gives it. first, second: each model's values. pairs: of what is no input and no output."""

    first: list[Result]
    second: list[Result]
    pairs: Counter[Pair]
    n_rows: int
    spent: Spent

    @property
    def results(self) -> list[Result]:
        """Of both, in an order that both tools have: by kind, then by name."""
        return [*sorted(self.first, key=_key), *sorted(self.second, key=_key)]


def _key(result: Result) -> tuple[str, str]:
    return result[0], result[5]


def _pair(first: Result | None, second: Result | None) -> Pair:
    return first and _key(first), second and _key(second)


def ours(models: Models) -> Found:
    """By rust_ort. Errors: RuntimeError where a model does not run to its end, or an end is not beside its namesake."""
    spent: list[Spent] = []
    with tempfile.TemporaryDirectory(prefix="rort-align-") as folder:
        paths = [Path(folder) / f"{at}.onnx" for at in (1, 2)]
        for path, proto in zip(paths, models.protos, strict=True):
            onnx.save(proto, path)
        with _timed(spent):
            found = rust_ort.align(*paths, feeds=models.feeds)
    if found.errors:
        raise RuntimeError(f"{models.name}: {found.errors[0]}")
    rows = [[None if row[side] is None else _result(row[side]) for side in ("first", "second")] for row in found.rows]
    pairs = Counter(_pair(*row) for row in rows if not any(side and side[0] in ENDS for side in row))
    for one, other in rows:
        if (one and one[0] in ENDS) and (other is None or _key(one) != _key(other)):
            raise RuntimeError(f"{models.name}: {one[5]} is not beside its namesake")
    sides = [[result for row in rows if (result := row[at]) is not None] for at in (0, 1)]
    return Found(first=sides[0], second=sides[1], pairs=pairs, n_rows=len(rows), spent=spent[0])


def _result(side: Mapping[str, Any]) -> Result:
    shape = tuple(side["shape"])
    return side["kind"], side["dtype"], shape, side["signature"], side["op_type"], side["name"]


def theirs(models: Models, evaluator: Any = None) -> tuple[Found, dict[tuple[int, str, str], Array]]:
    """By onnx-array-api, and {(model, kind, name): value}. evaluator: of nodes, None: its own. Pairs are those that it
    gives what is left without inputs and outputs, which align pairs beforehand."""
    from onnx_array_api.reference import compare_onnx_execution

    spent: list[Spent] = []
    with _timed(spent):
        first, second, whole, distance = compare_onnx_execution(
            *models.protos, inputs=(models.feeds, models.feeds), cls=evaluator, keep_tensor=True
        )
    inner = [[result for result in results if KINDS[result.kind.name] not in ENDS] for results in (first, second)]
    _, alignment = distance.distance_sequence(*inner)
    pairs: Counter[Pair] = Counter()
    last = (-1, -1)
    for i, j in alignment:
        one, other = (_their_result(inner[at][place]) for at, place in enumerate((i, j)))
        both = (i, j) == (last[0] + 1, last[1] + 1)
        pairs[_pair(one if both or i != last[0] else None, other if both or i == last[0] else None)] += 1
        last = i, j
    sides = [[_their_result(result) for result in results] for results in (first, second)]
    found = Found(first=sides[0], second=sides[1], pairs=pairs, n_rows=len(whole), spent=spent[0])
    values = {
        (at, *_key(_their_result(result))): result.value
        for at, results in enumerate((first, second)) for result in results
    }  # fmt: skip
    return found, values


def _their_result(result: Any) -> Result:
    kind = KINDS[result.kind.name]
    return kind, str(result.dtype), tuple(result.shape), result.summary, result.op_type or "", result.name


def by_onnxruntime() -> Any:
    """onnx-array-api's evaluator, whose nodes ONNX Runtime computes one by one, without its optimizer."""
    from onnx_array_api.reference import ExtendedReferenceEvaluator

    class Evaluator(ExtendedReferenceEvaluator):  # type: ignore[misc]
        def __init__(self, proto: onnx.ModelProto) -> None:
            super().__init__(proto)
            self.rt_nodes_ = [_Node(node, proto) for node in proto.graph.node]

    return Evaluator


class _Node:
    """A node as onnx.reference has them."""

    has_linked_attribute = False

    def __init__(self, node: onnx.NodeProto, model: onnx.ModelProto) -> None:
        self.op_type, self.input, self.output = node.op_type, list(node.input), list(node.output)
        self._node, self._opsets, self._ir_version = node, model.opset_import, model.ir_version

    def need_context(self) -> bool:
        return False

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        import onnxruntime

        given = {name: value for name, value in zip(self.input, inputs, strict=True) if name}
        entries = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
        ]
        wanted = [name for name in self.output if name]
        graph = helper.make_graph([self._node], "node", entries, [onnx.ValueInfoProto(name=name) for name in wanted])
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return tuple(session.run(wanted, given))


# --- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model. n: values of both models. letters: of those that differ from onnx-array-api's, and `unexplained`: where
    NumPy's value has ONNX Runtime's bits all the same. far: operators whose value NumPy computes otherwise than by
    rounding. same_letters, same_pairs: those that differ where ONNX Runtime computes both. refused: why NumPy's run of
    onnx-array-api, of which the rest tells, did not end, or ""."""

    name: str
    n: int
    n_pairs: int
    letters: int
    unexplained: int
    pairs: int
    far: list[str]
    same_letters: int
    same_pairs: int
    ours: Spent
    theirs: Spent
    refused: str = ""

    @property
    def ratio(self) -> float:
        """Of processor time: the clock tells of the machine's other work, too."""
        return self.ours.processor / self.theirs.processor


def measured(models: Models) -> Row:
    """A model by both tools. Errors: RuntimeError where they list other values."""
    mine = ours(models)
    same, exact = theirs(models, by_onnxruntime())
    numpys, values, refused = same, exact, ""
    try:
        numpys, values = theirs(models)
    except Exception as error:  # onnx.reference's own, and NumPy's
        refused = f"{type(error).__name__}: {error}"
    for other in (numpys, same):
        if [_unlettered(result) for result in mine.results] != [_unlettered(result) for result in other.results]:
            raise RuntimeError(f"{models.name}: the tools list other values")
    differing = [
        (at, *_key(one))
        for at in (0, 1)
        for one, other in zip(_side(mine, at), _side(numpys, at), strict=True) if one != other
    ]  # fmt: skip
    operators = {(at, *_key(result)): result[4] for at in (0, 1) for result in _side(mine, at)}
    return Row(
        name=models.name,
        n=len(exact),
        n_pairs=mine.n_rows,
        letters=len(differing),
        unexplained=0 if refused else sum(values[key].tobytes() == exact[key].tobytes() for key in differing),
        pairs=unlike(mine, numpys),
        far=sorted({operators[key] for key, value in values.items() if _distance(value, exact[key]) > 1e-3}),
        same_letters=sum(a != b for a, b in zip(mine.results, same.results, strict=True)),
        same_pairs=unlike(mine, same),
        ours=mine.spent,
        theirs=numpys.spent,
        refused=refused,
    )


def _side(found: Found, at: int) -> list[Result]:
    return sorted((found.first, found.second)[at], key=_key)


def _unlettered(result: Result) -> tuple[Any, ...]:
    return (*result[:3], *result[4:])


def unlike(one: Found, other: Found) -> int:
    """Pairs of one that the other has not."""
    return (one.pairs - other.pairs).total()


def _distance(value: Array, reference: Array) -> float:
    """max|Δ| / max|r| of the finite elements."""
    wide, exact = (array.astype(np.float64).reshape(-1) for array in (value, reference))
    finite = np.isfinite(wide) & np.isfinite(exact)
    if not finite.any():
        return 0.0
    scale = float(np.abs(exact[finite]).max()) or 1.0
    return float(np.abs(wide[finite] - exact[finite]).max()) / scale


# --- the page --------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row], found: Letters) -> str:
    """docs/results/align.md."""
    from measure.bench.table import environment

    version = PINS.read_text().split("==")[1].strip()
    n, n_pairs = sum(row.n for row in rows), sum(row.n_pairs for row in rows)
    dtypes = ", ".join(f"{dtype} {count}" for dtype, count in sorted(found.n.items()))
    lines = [
        "# `rust_ort.align` beside onnx-array-api",
        "",
        f"Made by `make align`: {len(rows)} architectures of the census as tiny random models, each exported by",
        "`rust_ort.to_onnx` plain and optimized, and the two aligned by `rust_ort.align` and by",
        f"`compare_onnx_execution` of onnx-array-api {version}.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "## Letters",
        "",
        f"{found.total:,} random tensors against `make_summary`, NumPy's sums: {len(found.differing)} differ.",
        f"{dtypes}; {found.with_nan} with NaN, {found.with_infinity} with infinities, {found.empty} empty.",
        *[f"- {line}" for line in found.differing[:20]],
        "",
        "## Models",
        "",
        f"{n:,} values and {n_pairs:,} rows. onnx-array-api's own evaluator is NumPy; beside it the same tool with",
        "nodes that ONNX Runtime computes one by one: there values have the same bits, and so must letters and pairs.",
        "",
        "- letters differ: values to which NumPy's run of onnx-array-api gives other letters;",
        "- of the same bits: of these, values that NumPy computes to the bit as ONNX Runtime: none may be;",
        "- pairs differ: rows that pair other values, which follows from the letters; inputs and outputs, which align",
        "  pairs beforehand, are left out: each was found beside its namesake;",
        "- far: operators whose values NumPy has more than 0.001 of the largest away.",
        "",
        "| model | values | rows | letters differ | of the same bits | pairs differ | far | letters, ONNX Runtime "
        "| pairs, ONNX Runtime | ours s | theirs s | ours / theirs | by the clock |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in rows]
    lines += [
        f"| all | {n} | {n_pairs} | {sum(row.letters for row in rows)} | {sum(row.unexplained for row in rows)} "
        f"| {sum(row.pairs for row in rows)} | | {sum(row.same_letters for row in rows)} "
        f"| {sum(row.same_pairs for row in rows)} | | | {ratio_of_all(rows):.3f} | |",
        "",
        "Seconds are of processors, for a call: ours starts a process, reads both models and prints its table; theirs",
        "runs and aligns alone. A process and its runtime's library are most of ours, whatever the models: the fewer",
        "values, the more of onnx-array-api's time that is. Python collects no garbage meanwhile.",
        "",
        "## What is not fed, and not compared",
        "",
        "- Inputs of text, sequences, optionals and maps are not fed: a model with one is refused, and told what to do",
        "  instead (an initializer for text; SequenceConstruct or Optional in the input's place; or cut behind it).",
        "- Of what nodes give, sequences, text and tensors of 4 and 2 bits are listed and not compared. Constants of",
        "  these types are, bit by bit, but for sequences.",
        "- Bodies of Loop and Scan are one node: what they give is compared, the values inside are not.",
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    by_numpy = f"{row.letters} | {row.unexplained} | {row.pairs} | {', '.join(row.far) or '-'}"
    times = f"{row.theirs.processor:.2f} | {row.ratio:.3f} | {row.ours.wall / row.theirs.wall:.3f}"
    if row.refused:
        by_numpy, times = f"refused: {row.refused} | - | - | -", "- | - | -"
    same = f"{row.same_letters} | {row.same_pairs}"
    return f"| {row.name} | {row.n} | {row.n_pairs} | {by_numpy} | {same} | {row.ours.processor:.2f} | {times} |"


def wrong(rows: Sequence[Row], found: Letters) -> list[str]:
    """What the page must not show."""
    said = [f"{len(found.differing)} tensors have other letters than NumPy's"] if found.differing else []
    for row in rows:
        if row.unexplained or row.same_letters or row.same_pairs:
            said.append(f"{row.name}: letters or pairs differ where the values are the same")
    if rows and ratio_of_all(rows) > MOST_RATIO:
        said.append(f"{ratio_of_all(rows):.3f} of onnx-array-api's processor time")
    return said


def ratio_of_all(rows: Sequence[Row]) -> float:
    """Our processor time by onnx-array-api's, all models together."""
    timed = [row for row in rows if not row.refused]
    theirs = sum(row.theirs.processor for row in timed)
    return sum(row.ours.processor for row in timed) / theirs if theirs else math.nan


def kept(path: Path) -> tuple[dict[str, Row], Letters]:
    """Rows and letters of an earlier run, beside its page; none where there is none."""
    if not path.is_file():
        return {}, Letters()
    held = json.loads(path.read_text())
    rows = {
        name: Row(**{**row, "ours": Spent(**row["ours"]), "theirs": Spent(**row["theirs"])})
        for name, row in held["models"].items()
    }
    return rows, Letters(**held["letters"])


def write(path: Path, rows: Mapping[str, Row], found: Letters) -> None:
    """The page, and the JSON beside it."""
    path.write_text(markdown(list(rows.values()), found))
    held = {"letters": asdict(found), "models": {name: asdict(row) for name, row in rows.items()}}
    path.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the page, write it. Returns the exit code: 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m measure.align", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="architectures, comma separated")
    parser.add_argument("--tensors", type=int, default=N_TENSORS, help="random tensors; 0: none")
    parser.add_argument(
        "--output", type=Path, help="markdown file, with JSON beside it, which has what this run does not measure"
    )
    arguments = parser.parse_args(argv)
    rows, found = kept(arguments.output.with_suffix(".json")) if arguments.output else ({}, Letters())
    if arguments.tensors:
        from onnx_array_api.reference.evaluator_yield import make_summary

        found = letters(arguments.tensors, make_summary)
        print(f"{arguments.tensors} tensors: {len(found.differing)} differ", file=sys.stderr, flush=True)
    refused: list[str] = []
    for name in filter(None, arguments.models.split(",")):
        try:
            rows[name] = measured(exported(name))
        except Exception as error:  # what cannot be exported, and what onnx.reference refuses
            print(f"WRONG: {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            refused.append(name)
            continue
        print(rows[name], file=sys.stderr, flush=True)
        if arguments.output:
            write(arguments.output, rows, found)
    print(markdown(list(rows.values()), found))
    if arguments.output:
        write(arguments.output, rows, found)
    said = wrong(list(rows.values()), found) + [f"{name} was not measured" for name in refused]
    for line in said:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
