"""docs/results/zoo.md and docs/results/zoo.json from what was found."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from measure.zoo.causes import CAUSES
from measure.zoo.graphnet import PREFIX
from measure.zoo.judge import ABSOLUTE, FEW, FEW_TIMES, MOVED, RELATIVE, TIMES

Found = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""{model: {task: what was found}}."""

COMPARED = ("eval", "train", "dynamic eval", "dynamic train", "inductor eval", "inductor train")
"""Tasks with accuracy beside a peer."""
TIMED = ("eval time", "train time", "inductor eval time", "inductor train time")
"""Tasks with time beside a peer."""
PEER = {task: "inductor" if task.startswith("inductor") else "aot_eager" for task in (*COMPARED, *TIMED)}
NO_FAULT = ("pass", "none", "model_fail_to_load", "eager_two_runs_differ")
"""What says nothing against the backend."""
SHOWN = ("eval", "train", "generate", "compare", "blame", "bfloat16", "float16", "dynamic eval", "dynamic train")
LONG_S, SLOW, SLOW_SHORT = 0.020, 1.5, 3.0
"""A call of eager that takes longer, and how much more than eager's is slow for it, and for a shorter one."""
SLOW_COMPILE = 2.0
"""Times aot_eager's."""
LONG_FIRST_S = 60.0
MOST_LEFT = 30
DIGITS = 4

INTRODUCTION = """\
# The zoo

How public models do under `torch.compile(backend="rust_ort")`. Made by `make zoo`: models of transformers, timm,
torchvision, torch-geometric, diffusers and torchaudio, built offline with seeded random weights, **in the
configuration that their own class defaults to, made smaller only in sizes**: caches, dropout, labels and outputs are
as a user has them. A process of one thread for each model, two at a time, whatever the line on threads says below.

What is done with each:

- eval: a call under `no_grad`. train: two training steps in training mode with the optimizer that is usual; both
  losses, and every gradient and buffer after the first step are judged. eval time, train time: the same, timed.
- generate: eight tokens of `generate()` with the forward compiled, against eager's.
- compare, blame, explain: the tools, in float32; blame with `ls`, `show`, `compare`, `replay`, `sbs` and `blame` of the
  command line on its dump. bfloat16, float16: autocast, `compare` of outputs with `ls`, `show`, `compare` and `replay`
  on its dump, and `compare="nodes"`. A tool is at fault where it raises, accuses somebody, leaves out what has no
  reason, or says of a value what another does not. That torch.compile itself differs from eager, as aot_eager shows, is
  no fault of a tool's.
- dynamic: eval and train once more with `dynamic=True`. float16 and dynamic are done for every third model."""

JUDGED = f"""\
eval, train and dynamic are judged without this project's own comparison, as PyTorch's benchmarks judge: each value may
be {TIMES:.0f} times as far from float64 as eager is ({FEW_TIMES:.0f} times where it has at most {FEW} numbers), by root
mean square (where it is further, eager runs from parameters that are moved by a rounding, {MOVED} times: so far; and
where it still is, eager runs once more by torch's own kernels, without oneDNN, and the value may be as far from that),
and {RELATIVE:.0e} of itself and {ABSOLUTE:.0e} more; where the model does not run in float64, ten times
the last two from eager. Integers and shapes are equal. The words are those of PyTorch's `benchmarks/dynamo`: pass,
fail_accuracy, fail_to_run, eager_two_runs_differ, model_fail_to_load, timeout, OOM. aot_eager runs beside rust_ort, so
that what is torch's own is told. Work is an estimate of floating-point operations, and of bytes where an operator has
no formula: a node that is a whole layer hides in a share of nodes."""


def graphnets(output: Path) -> Path:
    """The file of GraphNet's results beside a report."""
    return output.with_name(f"{output.stem}-graphnet.json")


def _read(path: Path) -> Found:
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    return found


def as_json(found: Found) -> str:
    """A line for each task."""
    models = []
    for model in sorted(found):
        tasks = ",\n".join(
            f"  {json.dumps(task)}: {json.dumps(_rounded(found[model][task]))}" for task in sorted(found[model])
        )
        models.append(f"{json.dumps(model)}: {{\n{tasks}\n}}")
    return "{\n" + ",\n".join(models) + "\n}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    return value


def _of(found: Found, task: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for model in sorted(found):
        if task in found[model]:
            yield model, found[model][task]


def faults(found: Found) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(model, task, what was found) of all that is not right."""
    return [
        (model, task, one) for task in _tasks(found) for model, one in _of(found, task) if one["status"] not in NO_FAULT
    ]


def is_wrong(found: Found) -> bool:
    """Whether something is not right that torch's aot_eager passes, or that is a tool's."""
    return any(one.get(PEER.get(task, ""), {}).get("status") in (None, "pass") for _, task, one in faults(found))


def _tasks(found: Found) -> list[str]:
    given = {task for of in found.values() for task in of}
    return [task for task in dict.fromkeys((*SHOWN, "explain", *COMPARED, *TIMED)) if task in given]


def totals(found: Found) -> str:
    """A table: how many models in which state, task by task."""
    lines = ["| task | models | pass | not right | of these not right with the peer, either |", "|---|---|---|---|---|"]
    for task in _tasks(found):
        counts = Counter(one["status"] for _, one in _of(found, task))
        bad = {status: count for status, count in counts.items() if status not in ("pass", "none")}
        both = sum(
            one["status"] not in NO_FAULT and one.get(PEER.get(task, ""), {}).get("status") not in (None, "pass")
            for _, one in _of(found, task)
        )
        said = ", ".join(f"{count} {status}" for status, count in sorted(bad.items()))
        lines.append(f"| {task} | {sum(counts.values()) - counts['none']} | {counts['pass']} | {said} | {both or ''} |")
    return "\n".join(lines)


def markdown(output: Path) -> str:
    """Of the results beside it."""
    from measure.bench.table import environment

    found, samples = _read(output.with_suffix(".json")), _read(graphnets(output))

    parts = [
        INTRODUCTION,
        JUDGED,
        "\n".join(f"- {name}: {value}" for name, value in {**environment(), "packages": _packages()}.items()),
        "## Totals",
        _counted(found),
        totals(found),
        _share(found),
        _times(found),
        "## What is not right, and why",
        _faults(faults(found)),
        *eager_wrong(found),
        "## What is left to eager",
        "Most models first; nodes of their training step, or of eval where they are not trained.",
        _left(found),
        "## What is slow",
        f"Run time over {SLOW} times eager's where that takes more than {LONG_S * 1e3:.0f} ms, over {SLOW_SHORT:.0f} "
        f"times below; compile time over {SLOW_COMPILE:.0f} times aot_eager's; first calls over {LONG_FIRST_S:.0f} s.",
        _slow(found),
        "## Models",
        "Time: of a call, by eager's (aot_eager's by eager's). Compile: first call less a later one and less Python's "
        "full searches for garbage (in whose turn one falls is chance), by aot_eager's, with a daemon that has not met "
        "the model (with one that has, as a later process finds it).",
        _models(found),
        *(_graphnet(samples) if samples else ()),
    ]
    return "\n\n".join(parts) + "\n"


def _counted(found: Found) -> str:
    from measure.zoo.models import MODELS

    said = f"{len(found)} of the zoo's {len(MODELS)} models have results."
    return said if len(found) == len(MODELS) else f"{said} The others were not run yet: this says nothing of them."


def _faults(wrong: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    rows = [
        (model, task, f"{one['status']}: {_first(one)}", CAUSES.get((model, task), "not looked into"))
        for model, task, one in wrong
    ]
    return _table(("model", "task", "what", "why"), rows)


def _first(one: Mapping[str, Any]) -> str:
    """Of a tool's faults the first, and how many there are more."""
    why: str = one.get("why", "")
    more = one.get("faults", 1) - 1
    return f"{why.partition('; ')[0]}; and {more} more" if more > 0 else why


def eager_wrong(found: Found) -> list[str]:
    """A section about values that eager has wrong; [] where there are none."""
    rows = [
        (model, task, f"{name}: {why}")
        for task in _tasks(found)
        for model, one in _of(found, task)
        for name, why in one.get("rust_ort", {}).get("eager_wrong", {}).items()
    ]
    said = (
        "Values that are away from eager's by oneDNN's kernels, and as right as eager's by torch's own "
        "(`torch.backends.mkldnn.flags(enabled=False)`): oneDNN is wrong."
    )
    return ["## Where eager is wrong", said, _table(("model", "task", "value"), rows)] if rows else []


def _graphnet(found: Found) -> list[str]:
    sources = Counter(model.split("/")[1] for model in found)
    said = ", ".join(f"{count} of {source}" for source, count in sorted(sources.items()))
    wrong, too_large = [], defaultdict(list)
    for model, task, one in faults(found):
        if one["status"] == "OOM":
            too_large[task].append(model.removeprefix(PREFIX))
        else:
            wrong.append((model, task, one))
    return [
        "## GraphNet",
        f"{len(found)} graphs of [GraphNet](https://github.com/PaddlePaddle/GraphNet), drawn by a fixed seed, from a "
        f"copy of its repository: {said}. eval of each, train of every third; parameters are drawn from the mean and "
        "the deviation that a sample tells, and sizes are those of the sample. A process holds eager, float64 and the "
        "backends of a graph, and is ended at 8 GiB (OOM): that says nothing of any of them.",
        totals(found),
        _share(found),
        *([_times(found)] if {*TIMED} & {*_tasks(found)} else []),
        "### Not right",
        _faults(wrong),
        "### Too large to be judged here",
        *(f"{task}: {', '.join(models)}." for task, models in too_large.items()),
        "### Left to eager",
        _left(found),
    ]


def _packages() -> str:
    from importlib.metadata import version

    from measure.zoo.models import MODELS

    counts = Counter(model.package for model in MODELS.values())
    return ", ".join(f"{count} models of {name} {version(name)}" for name, count in sorted(counts.items()))


def _main(of: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What rust_ort made of the training step, or of eval where there is none; {} of neither."""
    for task in ("train", "eval"):
        seen: Mapping[str, Any] = of.get(task, {}).get("rust_ort", {})
        if "nodes" in seen:
            return seen
    return {}


def _share(found: Found) -> str:
    made = [seen for of in found.values() if (seen := _main(of))]
    nodes, ours = sum(one["nodes"] for one in made), sum(one["on_onnxruntime"] for one in made)
    shares = sorted(1 - one["eager_work"] / one["work"] for one in made if one["work"])
    whole = sum(one["on_onnxruntime"] == one["nodes"] for one in made)
    if not shares:
        return ""
    least, median = 100 * shares[0], 100 * statistics.median(shares)
    return (
        f"{ours:,} of {nodes:,} nodes ({100 * ours / nodes:.1f} %) ran on ONNX Runtime; by work {least:.0f} % in the "
        f"model that leaves most to eager, {median:.1f} % in the median. {whole} of {len(made)} models leave nothing "
        "to eager."
    )


def _ratio(one: Mapping[str, Any], name: str = "rust_ort") -> float | None:
    ours, eager = one.get(name, {}).get("call"), one.get("eager", {}).get("call")
    return ours / eager if ours is not None and eager else None


def _compile(one: Mapping[str, Any], peer: str, ours_is: str = "rust_ort") -> float | None:
    ours, theirs = one.get(ours_is, {}).get("compile"), one.get(peer, {}).get("compile")
    return ours / theirs if ours is not None and theirs else None


def _times(found: Found) -> str:
    rows = []
    for task in (task for task in TIMED if task in _tasks(found)):
        of = [one for _, one in _of(found, task)]
        for what, is_long in (("over", True), ("under", False)):
            some = [one for one in of if "call" in one.get("eager", {}) and (one["eager"]["call"] > LONG_S) is is_long]
            if not some:
                continue
            rows.append((
                task, f"{what} {LONG_S * 1e3:.0f} ms", len(some), _spread(map(_ratio, some)),
                _spread(_ratio(one, PEER[task]) for one in some),
                _spread(_compile(one, PEER[task]) for one in some),
                _spread(_compile(one, PEER[task], "warm") for one in some),
            ))  # fmt: skip
    head = (
        "task", "eager's call", "models", "time by eager's", "the peer's by eager's", "compile by the peer's",
        "compile again",
    )  # fmt: skip
    loads = [one["load"] for task in TIMED for _, one in _of(found, task) if "load" in one]
    beside = f" Processes that ran or waited meanwhile, the zoo's own among them: {_spread(loads)}." if loads else ""
    return f"Median (nine of ten are below); aot_eager is the peer.{beside}\n\n" + _table(head, rows)


def _spread(ratios: Iterable[float | None]) -> str:
    known = sorted(one for one in ratios if one is not None)
    return f"{statistics.median(known):.2f} ({known[int(0.9 * (len(known) - 1))]:.2f})" if known else ""


def _left(found: Found) -> str:
    models: dict[tuple[str, str], set[str]] = defaultdict(set)
    nodes: Counter[tuple[str, str]] = Counter()
    for model, of in found.items():
        for op, why, count in _main(of).get("left", ()):
            models[op, why].add(model)
            nodes[op, why] += count
    order = sorted(models, key=lambda key: (-len(models[key]), -nodes[key], key))
    rows = [
        (f"`{op}`", why, len(models[op, why]), nodes[op, why], ", ".join(sorted(models[op, why])[:3]))
        for op, why in order[:MOST_LEFT]
    ]
    return _table(("operator", "why", "models", "nodes", "such as"), rows)


def slow(found: Found) -> list[tuple[str, str, str]]:
    """(model, task, how slow) of what is."""
    said = []
    for task in (task for task in TIMED if task in _tasks(found)):
        for model, one in _of(found, task):
            ratio, compiling = _ratio(one), _compile(one, PEER[task])
            if ratio is not None:
                eager = one["eager"]["call"]
                if ratio > (SLOW if eager > LONG_S else SLOW_SHORT):
                    said.append((model, task, f"{ratio:.1f} times eager's {eager * 1e3:.1f} ms"))
            if compiling is not None and compiling > SLOW_COMPILE:
                theirs = one[PEER[task]]["compile"]
                said.append((model, task, f"compiles {compiling:.1f} times as long as {PEER[task]}'s {theirs:.1f} s"))
            if one.get("rust_ort", {}).get("first", 0.0) > LONG_FIRST_S:
                said.append((model, task, f"first call {one['rust_ort']['first']:.0f} s"))
    return said


def _slow(found: Found) -> str:
    rows = [(*one, CAUSES.get((one[0], one[1]), "")) for one in slow(found)]
    return _table(("model", "task", "what", "why"), rows)


def _models(found: Found) -> str:
    from measure.zoo.models import MODELS

    rows = []
    for model in (name for name in MODELS if name in found):
        of, seen = found[model], _main(found[model])
        cells = [_cell(of.get(task)) for task in SHOWN]
        share = f"{seen['on_onnxruntime']}/{seen['nodes']}" if seen else ""
        work = f"{100 * (1 - seen['eager_work'] / seen['work']):.0f} %" if seen.get("work") else ""
        made = f"{seen['graphs']}, {seen['breaks']}" if "breaks" in seen else ""
        timed = [of.get(task, {}) for task in TIMED[:2]]
        times = [_pair(one, _ratio) for one in timed]
        compiles = [
            f"{_number(_compile(one, 'aot_eager'))} ({_number(_compile(one, 'aot_eager', 'warm'))})" for one in timed
        ]
        rows.append((model, MODELS[model].package, *cells, share, work, made, *times, *compiles))
    head = (
        "model", "package", *SHOWN, "nodes on ONNX Runtime", "by work", "graphs, breaks", "eval time", "train time",
        "eval compile", "train compile",
    )  # fmt: skip
    return _table(head, rows)


def _cell(one: Mapping[str, Any] | None) -> str:
    if one is None or one["status"] == "none":
        return ""
    return "pass" if one["status"] == "pass" else f"**{one['status']}**"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _pair(one: Mapping[str, Any], ratio: Callable[..., float | None]) -> str:
    ours, theirs = ratio(one), ratio(one, "aot_eager")
    return "" if ours is None else f"{ours:.2f} ({_number(theirs)})"


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
