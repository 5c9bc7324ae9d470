"""Llama through two exporters: rust_ort and torch.onnx.export.

Runs a part in eager and compiled by rust_ort inside a dump, exports the same module with torch.onnx.export, shows what
was exported and what its inputs are, feeds both models the same tensors in plain ONNX Runtime, and compares everything
with eager. Then gives each of rust_ort's graphs, backward too, to torch.onnx.export, and lists both models' values side
by side in the order of execution. Exit code: 0 all match, 1 a mismatch, 2 an error, 3 nothing was compared, or
something was left out and nothing in its stead was compared.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rust_ort
from rust_ort.link.daemon import find_binary
from rust_ort.link.specs import Verdict
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.observe.verdicts import Pair
from rust_ort.onnx_tools import helpers
from rust_ort.onnx_tools.helpers import WORDS, Refused, judge, results_to_string, verdict_line
from rust_ort.onnx_tools.match_inputs import build_matching_inputs
from rust_ort.studies import both_exporters, llama_models, torch_export
from rust_ort.studies.llama_models import Study
from rust_ort.studies.main_job import ERROR, MATCH, MISMATCH, NOTHING, PARTS, aligned, cotangent_of, gradients, worst_of

OPSETS = range(18, 24)
"""Below 18 torch.onnx.export gives 18 in silence; 23 is the largest it names."""
RUN = "llama"
GRAPH_LINES = 10
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments. half: dtype of the autocast, None without mixed precision."""

    part: str
    backward: bool
    ortopt: bool
    cuda: bool
    opset: int
    half: torch.dtype | None
    attention: str
    size: str
    folder: Path

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"

    @property
    def alone_on_cuda(self) -> bool:
        """Whether models alone run on the GPU, too: not every module onnxruntime can."""
        return self.cuda and has_cuda_provider()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype=self.half) if self.half else contextlib.nullcontext()

    @property
    def exported(self) -> Path:
        return self.folder / f"llama_export_{self.part}.onnx"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the summary. left_out: why there is nothing to compare. stand_in: what was compared in its stead."""

    what: str
    verdicts: Sequence[Verdict] = ()
    left_out: str = ""
    stand_in: str = ""

    @property
    def worst(self) -> str:
        """Kind of the worst verdict; "match" only when there is one and every one matches."""
        kinds = {verdict.kind for verdict in self.verdicts}
        return next((kind for kind in ("failed", "mismatch", "not_compared", "match") if kind in kinds), "not_compared")

    @property
    def code(self) -> int:
        return {"match": MATCH, "mismatch": MISMATCH, "failed": ERROR}.get(self.worst, NOTHING)

    def cells(self) -> tuple[str, ...]:
        n = sum(verdict.kind == self.worst for verdict in self.verdicts)
        compared = [verdict for verdict in self.verdicts if verdict.kind in ("match", "mismatch")]
        numbers = [worst_of([getattr(v, key) for v in compared]) for key in ("max_abs", "max_rel_to_max")]
        shown = [f"{number:.2e}" if compared else "-" for number in numbers]
        return (self.what, WORDS[self.worst], *shown, f"{n} of {len(self.verdicts)}" if self.verdicts else "-")

    def notes(self) -> list[str]:
        """What the table has no room for: reasons."""
        stead = f"; compared in its stead: {self.stand_in}" if self.stand_in else ""
        left_out = [f"{WORDS['not_compared']} {self.what}: {self.left_out}{stead}"] if self.left_out else []
        return left_out + [verdict_line(verdict) for verdict in self.verdicts if verdict.kind != "match"]


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """The only model of one graph of the dump, with its first call."""

    graph: str
    direction: str
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def runs(self) -> Path:
        """The model that ran: the one with float32 in place of what the provider lacks, where there is one."""
        other = self.folder / "model.precision.onnx"
        return other if other.is_file() else self.model

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return helpers.data_set(self.folder / "test_data_set_0", prefix)

    def outputs(self, role: str) -> dict[str, str]:
        """{output: what it is of} of the outputs with a role: PlainAOTOutput, GradAOTOutput."""
        entries = helpers.provenance(self.model)["outputs"]
        return {entry["name"]: entry["of"] for entry in entries if entry["role"] == role}


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A model that ran alone. model: the file that ran, None where none did. rows: of what was refused."""

    outputs: dict[str, Tensor]
    model: Path | None
    rows: list[Row]


# --- eager and compiled ----------------------------------------------------------------------------------------------


def run_once(job: Job, study: Study, call: Callable[..., Any]) -> dict[str, Tensor]:
    """{"output" or "grad of <parameter or argument>": tensor} of `call`, which is the study's module or compiled."""
    with job.autocast():
        output = call(*study.inputs)
    values = {"output": output.detach().clone()}
    if job.backward:
        names = [name for name, _ in sorted(study.module.named_parameters())]
        pairs = zip(argument_names(study), study.inputs, strict=True)
        names += [name for name, tensor in pairs if tensor.requires_grad]
        found = gradients(study.module, study.inputs, output, cotangent_of(output))
        values |= {f"grad of {name}": grad for name, grad in zip(names, found, strict=True)}
    return values


def argument_names(study: Study) -> list[str]:
    """Names of the arguments that the study gives its module."""
    return list(inspect.signature(study.module.forward).parameters)[: len(study.inputs)]


def describe_run(who: str, values: dict[str, Tensor]) -> None:
    grads = [tensor for name, tensor in values.items() if name.startswith("grad")]
    if grads:
        print(f"-- {who} worked, {len(grads)} gradients, first one is {tuple(grads[0].shape)}, {grads[0].dtype}")
    else:
        print(results_to_string(values["output"]))


def run_compiled(job: Job, study: Study) -> tuple[dict[str, Tensor], Path, list[GraphInfo]]:
    """Compiles and runs inside a dump: what run_once gives, the dump's folder, the graphs."""
    torch.compiler.reset()
    backend = rust_ort.Backend({"opset": job.opset})
    with rust_ort.dump(RUN, folder=job.folder, clean=True) as path:
        values = run_once(job, study, torch.compile(study.module, backend=backend, fullgraph=True))
    describe_run("rust_ort backend", values)
    return values, path, backend.graphs


def judged(job: Job, what: str, pairs: Sequence[Pair]) -> Row:
    """Judges and prints; the summary's line."""
    print(what)
    verdicts = judge(pairs, half=job.half)
    for verdict in verdicts:
        print(f"  {verdict_line(verdict)}")
    return Row(what=what, verdicts=verdicts)


def against_eager(job: Job, eager: dict[str, Tensor], compiled: dict[str, Tensor]) -> Iterator[Row]:
    pairs = [(name, eager[name], compiled[name], "") for name in eager]
    yield judged(job, "compiled vs eager: output", pairs[:1])
    if job.backward:
        yield judged(job, "compiled vs eager: gradients", pairs[1:])


# --- the dump --------------------------------------------------------------------------------------------------------


def show_dump(path: Path, models: Sequence[Dumped]) -> None:
    """Models and graph texts with their sizes, then each model's feeds and the first lines of its graph."""
    files = [file for file in sorted(path.rglob("*")) if file.suffix in (".onnx", ".txt")]
    print(f"exported models: {sum(file.suffix == '.onnx' for file in files)} models and their graphs in {path}")
    cells = [("file", "bytes"), *((str(file.relative_to(path)), f"{file.stat().st_size}") for file in files)]
    print(aligned(cells))
    for dumped in models:
        print(f"\nInputs of the first call of {dumped.graph}")
        for name, tensor in dumped.tensors("input").items():
            print(f"-- {name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}")
        print(f"\nFirst {GRAPH_LINES} lines of its graph module")
        print("\n".join((dumped.folder.parent / "fx.txt").read_text().splitlines()[:GRAPH_LINES]))


def dumped_models(path: Path, graphs: Sequence[GraphInfo]) -> list[Dumped]:
    """Graphs that are one model."""
    folders = {json.loads(file.read_text())["graph_id"]: file.parent for file in path.glob("*/parts.json")}
    return [
        Dumped(graph=folder.name, direction=graph.direction, folder=folder / "part_0")
        for graph in graphs
        if len(graph.parts) == 1 and (folder := folders[graph.graph_id])
    ]


def in_pieces(graphs: Sequence[GraphInfo]) -> Iterator[Row]:
    """A row for each graph that is several models or none."""
    for graph in graphs:
        if len(graph.parts) != 1:
            reason = f"{len(graph.parts)} models, because {len(graph.eager)} nodes ran in eager; one is wanted"
            yield Row(what=f"{graph.name} alone vs compiled", left_out=reason)


# --- the other exporter ----------------------------------------------------------------------------------------------


def export(job: Job, study: Study) -> None:
    """Writes what torch.onnx.export makes of the module as the study calls it."""
    print("\nThe other exporter")
    if job.backward:
        print("torch.onnx.export has no backward: of the module, it is compared with our forward")
    module = torch_export.Autocast(study.module, job.device, job.half) if job.half else study.module
    names = argument_names(study)
    torch_export.export(module, study.inputs, job.exported, input_names=names, opset=job.opset)


def show_inputs(model_rust_ort: Path, model_export: Path) -> None:
    for init in (False, True):
        print("\nThe inputs of both models" + (", with initializers" if init else ""))
        print(f"rust_ort: {helpers.inputs_from_onnx_model(model_rust_ort, init=init)}")
        print(f"export: {helpers.inputs_from_onnx_model(model_export, init=init)}")


# --- both models in plain ONNX Runtime -------------------------------------------------------------------------------


def ready(job: Job, path: Path, name: str) -> Path:
    """The model to run: `path`, or with --ortopt 1 what ONNX Runtime's optimizer makes of it. Errors: Refused."""
    if not job.ortopt:
        return path
    before, after = (job.folder / f"{name}{suffix}" for suffix in (".before.opt.onnx", ".opt.onnx"))
    after.unlink(missing_ok=True)
    shutil.copyfile(path, before)
    print(f"run onnxruntime optimization on {path}")
    n_before, n_after = helpers.optimize_model(before, after, cuda=job.alone_on_cuda)
    print(f"  {before}: {n_before} nodes\n  {after}: {n_after} nodes")
    return after


def run_dumped(job: Job, dumped: Dumped) -> tuple[Alone, list[Row]]:
    """One of our models on its first call's inputs, judged against what the compiled run gave.

    With a row for a model that was refused, as those of a GPU in bfloat16 are where models alone run on the CPU.
    """
    alone = run_alone(job, dumped.runs, f"llama_rust_ort_{job.part}_{dumped.direction}", dumped.tensors("input"))
    if alone.model is None:
        return alone, alone.rows
    actual = dumped.tensors("actual")
    labels = {name: f"{name} (grad of {of})" for name, of in dumped.outputs("GradAOTOutput").items()}
    pairs = [(labels.get(name, name), actual.get(name), value, "") for name, value in alone.outputs.items()]
    return alone, [*alone.rows, judged(job, f"{dumped.graph} alone vs compiled", pairs)]


def matching_feeds(job: Job, forward: Dumped) -> dict[str, Tensor]:
    print("build_matching_inputs")
    feeds = build_matching_inputs(forward.model, forward.tensors("input"), job.exported)
    print("done")
    return feeds


def run_alone(job: Job, path: Path, name: str, feeds: dict[str, Tensor]) -> Alone:
    """A model, or its float32 twin where ONNX Runtime refuses bfloat16. name: of its optimized form."""
    try:
        model = ready(job, path, name)
        return Alone(outputs=helpers.run_model(model, feeds, cuda=job.alone_on_cuda), model=model, rows=[])
    except Refused as refused:
        reason = str(refused)
    print(f"ONNX Runtime refuses {path}: {reason}")
    what = f"{name}.onnx as exported"
    if job.half is not torch.bfloat16 or job.alone_on_cuda:
        return Alone(outputs={}, model=None, rows=[Row(what=what, left_out=reason)])
    twin = job.folder / f"{name}.precision.onnx"
    subprocess.run([find_binary(), "widen", str(path), str(twin)], check=True, stdout=subprocess.DEVNULL)
    print(f"in its stead: {twin}, the same model with bfloat16 computed in float32 and rounded (rust-ort widen)")
    model = ready(job, twin, twin.stem)
    rows = [Row(what=what, left_out=reason, stand_in=twin.name)]
    return Alone(outputs=helpers.run_model(model, feeds, cuda=job.alone_on_cuda), model=model, rows=rows)


def output_of_both(
    job: Job, eager: Tensor, ours: tuple[str, dict[str, Tensor]], theirs: dict[str, Tensor]
) -> Iterator[Row]:
    """The output that both models have, with eager and with each other. ours: the output's name, all outputs."""
    (name, outputs), (other, value) = ours, next(iter(theirs.items()))
    print(f"outputs of both models: {name} = {other}")
    yield judged(job, "export vs eager", [(other, eager, value, "")])
    yield judged(job, "export vs rust_ort", [(f"{name} = {other}", outputs[name], value, "")])


# --- both exporters on each graph -------------------------------------------------------------------------------------


def traced(job: Job, study: Study) -> dict[str, both_exporters.Traced]:
    """{direction: AOT graph} as rust_ort's backend is given them."""
    torch.compiler.reset()
    tracing = both_exporters.Tracing()
    run_once(job, study, torch.compile(study.module, backend=tracing, fullgraph=True))
    return tracing.found


def file_pairs(job: Job, graphs: dict[str, both_exporters.Traced], models: Sequence[Dumped]) -> Iterator[str]:
    """Writes each graph as both exporters' model and as text: 0 is the forward, 1 the backward. The reason why
    torch.onnx.export gave none, or "", model by model."""
    for number, dumped in enumerate(models):
        ours, theirs = pair_of(job, number)
        shutil.copyfile(dumped.model, ours)
        shutil.copyfile(dumped.folder.parent / "fx.txt", ours.with_suffix(".txt"))
        theirs.unlink(missing_ok=True)
        outputs = [entry["name"] for entry in helpers.provenance(dumped.model)["outputs"]]
        try:
            missing = both_exporters.export(graphs[dumped.direction], theirs, outputs=outputs, opset=job.opset)
        except Exception as error:  # the exporter's own classes, and whatever its translations raise
            yield f"torch.onnx.export: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            continue
        yield f"the graph given to torch.onnx.export has no {', '.join(missing)}" if missing else ""


def pair_of(job: Job, number: int) -> tuple[Path, Path]:
    """The files of a graph: rust_ort's model and the exporter's."""
    return job.folder / f"llama_rust_ort_{number}.onnx", job.folder / f"llama_export_{number}.onnx"


def each_graph(job: Job, study: Study, models: Sequence[Dumped], ours: dict[str, Alone]) -> Iterator[Row]:
    """Both exporters' models of each graph: outputs judged, then all values beside each other."""
    print("\nThe same graphs through both exporters")
    reasons = list(file_pairs(job, traced(job, study), models))
    written = [path for number in range(len(models)) for path in pair_of(job, number) if path.is_file()]
    print(f"in {job.folder}: {', '.join(f'{path.stem}.{{onnx,txt}}' for path in written)}")
    for number, (dumped, reason) in enumerate(zip(models, reasons, strict=True)):
        what = f"export vs rust_ort, {dumped.graph}"
        if reason:
            yield Row(what=what, left_out=reason)
            continue
        path, feeds = pair_of(job, number)[1], dumped.tensors("input")
        first, second = ours[dumped.graph], run_alone(job, path, path.stem, feeds)
        yield from second.rows
        if first.model is None or second.model is None:
            continue
        names = [f"{ours} = {theirs}" for ours, theirs in zip(first.outputs, second.outputs, strict=True)]
        values = zip(first.outputs.values(), second.outputs.values(), strict=True)
        pairs = [(name, *pair, "") for name, pair in zip(names, values, strict=True)]
        yield judged(job, what, pairs)
        print(f"\nSide by side, {dumped.graph}")
        providers = ["CUDAExecutionProvider"] * job.alone_on_cuda + ["CPUExecutionProvider"]
        found = rust_ort.align(first.model, second.model, feeds=feeds, providers=providers)
        print(found.text)
        if found.errors:
            yield Row(what=f"side by side, {dumped.graph}", left_out="; ".join(found.errors))


# --- all of it -------------------------------------------------------------------------------------------------------


def exit_code(rows: Sequence[Row]) -> int:
    """The worst row's. A row with a stand-in does not count: the rows of the stand-in do."""
    codes = [row.code for row in rows if not row.stand_in]
    return next((code for code in (ERROR, MISMATCH, NOTHING) if code in codes), MATCH if codes else NOTHING)


def run(job: Job) -> Iterator[Row]:
    """Every step of the study, with the summary's lines as they are known."""
    size = llama_models.SIZES[job.size]
    study = llama_models.build(job.part, size, attention=job.attention, device=job.device)
    print(f"simple run with {len(study.inputs)} inputs")
    eager = run_once(job, study, study.module)
    describe_run("eager mode", eager)
    compiled, path, graphs = run_compiled(job, study)
    yield from against_eager(job, eager, compiled)
    yield from in_pieces(graphs)
    models = dumped_models(path, graphs)
    show_dump(path, models)
    export(job, study)
    forward = next((dumped for dumped in models if dumped.direction != "backward"), None)
    if forward is None:
        yield Row(what="export vs rust_ort", left_out="our forward is not one model")
        return
    print(f"model_rust_ort={forward.model}\nmodel_export={job.exported}")
    show_inputs(forward.model, job.exported)
    print("\nOptimization and verification" if job.ortopt else "\nVerification")
    ours: dict[str, Alone] = {}
    for dumped in models:
        ours[dumped.graph], rows = run_dumped(job, dumped)
        yield from rows
    yield from whole_module(job, eager["output"], forward, ours[forward.graph].outputs)
    yield from each_graph(job, study, models, ours)


def whole_module(job: Job, eager: Tensor, forward: Dumped, ours: dict[str, Tensor]) -> Iterator[Row]:
    """The exporter's model of the module beside our forward. ours: its outputs, none where it was refused."""
    theirs = run_alone(job, job.exported, job.exported.stem, matching_feeds(job, forward))
    yield from theirs.rows
    names = list(forward.outputs("PlainAOTOutput"))
    if len(names) == len(theirs.outputs) == 1 and ours:
        yield from output_of_both(job, eager, (names[0], ours), theirs.outputs)
    else:
        n_ours = len(names) if ours else 0
        counts = f"torch.onnx.export's model gave {len(theirs.outputs)} outputs, ours {n_ours}; one each is wanted"
        yield Row(what="export vs rust_ort", left_out=counts)


def has_cuda_provider() -> bool:
    """Whether this Python's onnxruntime runs models on a GPU; the executor's runtime is another one."""
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def parse(argv: Sequence[str] | None) -> Job:
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.llama", description=__doc__)

    def switch(name: str, default: int, text: str) -> None:
        parser.add_argument(name, type=int, choices=(0, 1), default=default, help=f"{text} (default {default})")

    parser.add_argument("--part", default="attention", choices=PARTS, help="of Llama (default attention)")
    switch("--backward", 0, "gradients too")
    switch("--mixed", 0, "mixed precision: inside torch.autocast")
    switch("--ortopt", 1, "optimize both models with ONNX Runtime before they run")
    switch("--cuda", 0, "on a GPU")
    parser.add_argument(
        "--opset", type=int, choices=OPSETS, default=OPSETS[0], help=f"of both exporters (default {OPSETS[0]})"
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of --mixed 1 (default bfloat16; float16 on a GPU)")
    parser.add_argument("--attention", default="eager", choices=("eager", "sdpa"), help="transformers' implementation")
    parser.add_argument("--size", default="full", choices=sorted(llama_models.SIZES), help="of the Llama configuration")
    parser.add_argument("--folder", type=Path, default=Path("dump_models"), help="where models and dump go")
    given = parser.parse_args(argv)
    if given.dtype and not given.mixed:
        parser.error(f"--dtype {given.dtype} is the dtype of mixed precision: add --mixed 1")
    dtype = given.dtype or ("float16" if given.cuda else "bfloat16")
    return Job(
        part=given.part,
        backward=bool(given.backward),
        ortopt=bool(given.ortopt),
        cuda=bool(given.cuda),
        opset=given.opset,
        half=DTYPES[dtype] if given.mixed else None,
        attention=given.attention,
        size=given.size,
        folder=given.folder,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job and prints. Returns the exit code."""
    job = parse(argv)
    for name in ("part", "ortopt", "backward", "cuda"):
        print(f"{name}={getattr(job, name)}")
    print(f"mixed={job.half is not None}{f' ({job.half})' if job.half else ''}\nopset={job.opset}")
    if job.cuda and not torch.cuda.is_available():
        print("--cuda 1: this machine lacks a GPU that torch can use; use --cuda 0", file=sys.stderr)
        return ERROR
    if job.cuda and not job.alone_on_cuda:
        print("this onnxruntime has no CUDAExecutionProvider: models alone run on the CPU")
    rows: list[Row] = []
    try:
        for row in run(job):
            rows.append(row)
        code = exit_code(rows)
    except Exception:  # whatever it was, the trace and what was judged before are printed
        traceback.print_exc()
        code = ERROR
    report(rows, code)
    return code


def report(rows: Sequence[Row], code: int) -> None:
    """Summary table, reasons, exit code."""
    print("\nSummary")
    print(aligned([("what", "verdict", "max_abs", "max|Δ|/max|r|", "tensors"), *(row.cells() for row in rows)]))
    for note in (note for row in rows for note in row.notes()):
        print(note)
    print("everything compared matches" if code == MATCH else f"exit {code}")


if __name__ == "__main__":
    sys.exit(main())
