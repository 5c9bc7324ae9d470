"""`python -m measure.front_door`: models of transformers as their class makes them, under every tool of the front door.
Exit code 1 where a tool raises, accuses somebody, or says of a value what another does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.export.unwritten import UNWRITTEN
from rust_ort.link.daemon import find_binary
from rust_ort.link.program import environment
from rust_ort.link.specs import PASSES
from rust_ort.observe.sides import BOTH_NONE, BY_CHANCE

BATCH, LENGTH, VOCABULARY, IMAGE = 2, 8, 100, 16

WIDTH = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**WIDTH, **TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
VISION = {**WIDTH, "image_size": IMAGE, "patch_size": 4}
SEQ2SEQ = {
    **TEXT, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip

Inputs = Callable[[], dict[str, Any]]


def _tokens() -> Tensor:
    return torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) * 37 % (VOCABULARY - 4) + 3


def causal() -> dict[str, Any]:
    return {"input_ids": _tokens(), "labels": _tokens()}


def masked() -> dict[str, Any]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -2:] = 0
    return {**causal(), "attention_mask": mask}


def image() -> dict[str, Any]:
    return {"pixel_values": _pixels(), "labels": torch.tensor([0, 1])}


def _pixels() -> Tensor:
    return torch.randn(BATCH, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(0))


def image_and_text() -> dict[str, Any]:
    return {"input_ids": _tokens(), "pixel_values": _pixels(), "return_loss": True}


@dataclass(frozen=True, kw_only=True)
class Family:
    """kind: class of transformers. sizes: of its configuration, in which nothing but sizes is set. sub: the same of
    configurations inside it."""

    kind: str
    sizes: Mapping[str, Any]
    inputs: Inputs = causal
    sub: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model, seeded, in training mode as its class makes it."""
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, self.kind)
        model: nn.Module = made(made.config_class(**self.sizes, **self.sub))
        return model


FAMILIES: dict[str, Family] = {
    "Llama": Family(kind="LlamaForCausalLM", sizes=DECODER),
    "GPT-2": Family(
        kind="GPT2LMHeadModel",
        sizes={"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY},
    ),
    "Qwen3": Family(kind="Qwen3ForCausalLM", sizes={**DECODER, "head_dim": 8}),
    "Gemma 2": Family(kind="Gemma2ForCausalLM", sizes={**DECODER, "head_dim": 8}),
    "OPT": Family(
        kind="OPTForCausalLM",
        sizes={
            **TEXT, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32,
        },
    ),
    "T5": Family(
        kind="T5ForConditionalGeneration",
        sizes={
            "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
        },
    ),
    "BERT": Family(kind="BertForMaskedLM", sizes={**WIDTH, "vocab_size": VOCABULARY}, inputs=masked),
    "BigBird": Family(  # makes layers in its first call, where a sequence is short; its pooler has no gradients
        kind="BigBirdForMaskedLM",
        sizes={**WIDTH, **TEXT, "max_position_embeddings": 64, "block_size": 2, "num_random_blocks": 1},
        inputs=masked,
    ),
    "BART": Family(kind="BartForConditionalGeneration", sizes=SEQ2SEQ, inputs=masked),
    "ViT": Family(kind="ViTForImageClassification", sizes=VISION, inputs=image),
    "CLIP": Family(
        kind="CLIPModel",
        sizes={"projection_dim": 16},
        sub={"text_config": {**WIDTH, **TEXT, "max_position_embeddings": 64}, "vision_config": VISION},
        inputs=image_and_text,
    ),
    "Swin": Family(
        kind="SwinForImageClassification",
        sizes={
            "image_size": IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 4,
        },
        inputs=image,
    ),
    "Mixtral": Family(kind="MixtralForCausalLM", sizes={**DECODER, "num_local_experts": 4}),
}  # fmt: skip

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
NO_KERNEL = "the runtime has no float64 kernel of"
"""What ONNX Runtime says of an operator without a kernel of float64, such as Erf."""
RIGHT = PASSES
"""Kinds of verdicts that accuse nobody."""
NOTHING = (BOTH_NONE, BY_CHANCE)
"""Reasons for which there is nothing to compare: a parameter that nothing used, what eager itself gives otherwise."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a tool should not have done. is_grave: it does not answer, or blames somebody."""

    precision: str
    tool: str
    what: str
    is_grave: bool

    def __str__(self) -> str:
        return f"{self.precision}, {self.tool}: {self.what}"


@dataclass(kw_only=True)
class Examination:
    """One model in one precision under every tool. n_values, n_nodes: what a report judged, the fewest of all. said:
    {value: {tool: the kind of its verdict}}."""

    precision: str
    faults: list[Fault] = field(default_factory=list)
    n_values: int = sys.maxsize
    n_nodes: int = 0
    said: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, tool: str) -> Fault:
        """The first of its faults."""
        return next(fault for fault in self.faults if fault.tool == tool)

    def fault(self, tool: str, what: str, *, is_grave: bool = False) -> None:
        self.faults.append(Fault(precision=self.precision, tool=tool, what=what, is_grave=is_grave))

    def asked(self, tool: str, call: Callable[[], Any]) -> Any:
        """What a tool gives, and can show; None where it raises. Each compiles the model itself."""
        torch.compiler.reset()
        torch.manual_seed(0)  # what is dropped is the same in every run
        try:
            given = call()
            str(given)
        except Exception as error:
            self.fault(tool, f"raises {type(error).__name__}: {error}", is_grave=True)
            return None
        return given

    def heard(self, tool: str, value: str, kind: str) -> None:
        self.said.setdefault(value, {})[tool] = kind

    def disagreements(self) -> Iterator[tuple[str, str]]:
        """(tool, what it says of a value and the first that was asked does not)."""
        for value, said in self.said.items():
            (first, kind), *others = said.items()
            for tool, other in others:
                if (other in RIGHT) is not (kind in RIGHT):
                    yield tool, f"{value} is {other}, which {first} says is {kind}"


def examine(family: Family, folder: Path) -> list[Examination]:
    """folder: for dumps."""
    with torch.random.fork_rng(devices=[]):
        return _examined(family, folder)


def _examined(family: Family, folder: Path) -> list[Examination]:
    model, examinations = family.build(), []
    for precision, autocast in PRECISIONS.items():
        seen = Examination(precision=precision)
        examinations.append(seen)
        if autocast is None:
            _compare(seen, model, family.inputs())
            _explain(seen, model, family.inputs())
        else:
            _dump(seen, model, family.inputs(), autocast, folder)
            _keep(seen, model, family.inputs(), autocast, folder / "keep")
        _blame(seen, model, family.inputs(), autocast, folder / precision)
        for tool, what in seen.disagreements():
            seen.fault(tool, what)
    return examinations


def _compare(seen: Examination, model: nn.Module, inputs: Mapping[str, Any]) -> None:
    report = seen.asked("compare", lambda: rust_ort.compare(model, **inputs))
    if report is not None:
        _judge(seen, "compare", report)


def _dump(seen: Examination, model: nn.Module, inputs: Mapping[str, Any], autocast: torch.dtype, folder: Path) -> None:
    """What compares outputs alone, dumped and read."""

    def dumped() -> rust_ort.Report:
        with rust_ort.dump("outputs", folder=folder):
            return rust_ort.compare(model, autocast=autocast, options={"compare": "outputs"}, **inputs)

    report = seen.asked("compare outputs", dumped)
    if report is not None:
        _judge(seen, "compare outputs", report)
        _told(seen, report, folder / "outputs", ("ls", "show", "compare", "replay"))


def _judge(seen: Examination, tool: str, report: rust_ort.Report) -> None:
    """A report accuses nobody, and what it leaves out it leaves out for a reason."""
    verdicts = [*report.verdicts, *report.missing]
    for verdict in verdicts:
        if verdict.kind in RIGHT or verdict.kind == "mismatch":
            seen.heard(tool, verdict.name, verdict.kind)
        if verdict.kind not in RIGHT and not verdict.name.startswith("buffer ") and verdict.reason not in NOTHING:
            seen.fault(tool, verdict.reason or f"{verdict.name}: {verdict.kind}")
    left = {node.name for graph in report.graphs for node in graph.eager}
    for graph, node in report.nodes:
        if node.local.kind not in RIGHT and node.name not in left and node.local.reason != UNWRITTEN:
            seen.fault(tool, f"{graph}: {node}", is_grave=True)
    if report.ok:
        warned = [verdict for graph in report.graphs for _, verdict in graph.verdicts if verdict.kind not in RIGHT]
        for verdict in warned:
            seen.fault(f"{tool}, graphs", f"is ok, and warned of {verdict.reason}")
    json.loads(report.to_json())
    report.rows()
    seen.n_values = min(seen.n_values, sum(verdict.kind in RIGHT for verdict in verdicts))
    seen.n_nodes = max(seen.n_nodes, sum(node.local.kind in RIGHT for _, node in report.nodes))


def _blame(
    seen: Examination, model: nn.Module, inputs: Mapping[str, Any], autocast: torch.dtype | None, folder: Path
) -> None:
    blamed = seen.asked("blame", lambda: rust_ort.blame(model, autocast=autocast, folder=folder, **inputs))
    if blamed is None:
        return
    _judge(seen, "compare nodes", blamed.report)
    if blamed.culprit is not None or not blamed.complete:
        seen.fault("blame", f"blames {blamed.culprit}" if blamed.culprit else "is not complete", is_grave=True)
    _told(seen, blamed.report, blamed.folder, ("ls", "show", "compare", "replay", "sbs", "blame"))
    if autocast is None:
        _command(seen, "prove", str(blamed.folder), "--faults=1")


def _told(seen: Examination, report: rust_ort.Report, run: Path | None, commands: Sequence[str]) -> None:
    """Commands that read a dump say of the graphs' outputs what the call itself said."""
    for graph in report.graphs:
        for _, verdict in graph.verdicts:
            seen.heard("the call", f"{graph.name} {verdict.name}", verdict.kind)
        seen.heard("the call", f"{graph.name}", _worst(verdict.kind for _, verdict in graph.verdicts))
    for command in commands:
        for value, kind in _kinds(command, _command(seen, command, str(run), "--json")):
            seen.heard(f"rust-ort {command}", value, kind)
        _command(seen, command, str(run))


def _command(seen: Examination, command: str, *arguments: str) -> Any:
    """What a command of the program says, read where it is JSON; {} where it fails."""
    line = [find_binary(), command, *arguments]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    is_json = "--json" in arguments
    if not is_json and (done.returncode != 0 or done.stderr):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        is_grave = done.returncode not in (1, 3) or bool(done.stderr)  # 3: something was left out
        seen.fault(f"rust-ort {command}", f"exit code {done.returncode}: {''.join(last)}", is_grave=is_grave)
    return json.loads(done.stdout) if is_json and done.stdout else {}


def _kinds(command: str, said: Any) -> Iterator[tuple[str, str]]:
    """(value, kind) of what a command says of a graph and of its outputs."""
    if command == "ls":
        for graph in said.get("graphs", ()):
            counts = [step["verdicts"] or {} for part in graph["parts"] for step in part["steps"]]
            yield graph["name"], _worst(kind for of in counts for kind, count in of.items() if count)
    elif command in ("compare", "replay"):
        for data_set in said.get("data_sets", ()):
            graph = Path(data_set["path"]).parts[-3]
            for verdict in data_set["verdicts"]:
                yield f"{graph} {verdict['name']}", verdict["verdict"]["kind"]
    elif command == "sbs":
        for table in said.get("tables", ()):
            outputs = {verdict["name"] for verdict in table["plain"]}
            for node in table["nodes"]:
                if node["name"] in outputs:
                    yield f"{table['graph']} {node['name']}", node["cumulative"]["verdict"]["kind"]
                of = node["role"].removeprefix("GradAOTOutput ")
                if of != node["role"]:
                    yield f"grad of {of}", node["cumulative"]["verdict"]["kind"]
    elif command == "blame":
        for answer in said.get("answers", ()):
            for complaint in answer["complaints"]:
                verdict = complaint["as_ran"]
                yield f"{answer['graph']} {verdict['name']}", verdict["verdict"]["kind"]


def _worst(kinds: Iterable[str]) -> str:
    return next((kind for kind in kinds if kind not in RIGHT), RIGHT[0])


def _explain(seen: Examination, model: nn.Module, inputs: Mapping[str, Any]) -> None:
    explained = seen.asked("explain", lambda: rust_ort.explain(model, **inputs))
    if explained is not None and not explained.nodes_on_onnxruntime:
        seen.fault("explain", "nothing is on ONNX Runtime", is_grave=True)


def _keep(seen: Examination, model: nn.Module, inputs: Mapping[str, Any], autocast: torch.dtype, folder: Path) -> None:
    kept = seen.asked("keep", lambda: rust_ort.keep_in_float32(model, autocast=autocast, folder=folder, **inputs))
    if kept is None:
        return
    _judge(seen, "keep, before", kept.before)
    if kept.after is not None:
        _judge(seen, "keep, after", kept.after)
    if not kept.verified or not kept.complete:
        seen.fault("keep", f"verified {kept.verified}, complete {kept.complete}", is_grave=True)
    for note in (note for answer in kept.answers for note in answer["notes"]):
        if "measured from float32" in note and NO_KERNEL not in note:
            seen.fault("keep", note)
    _command(seen, "keep", str(kept.folder))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.front_door", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma separated")
    arguments = parser.parse_args(argv)
    code = 0
    for name in arguments.families.split(","):
        with tempfile.TemporaryDirectory(prefix="front-door-") as folder:
            for seen in examine(FAMILIES[name], Path(folder)):
                tools = Counter(fault.tool for fault in seen.faults)
                faults = "".join(f"\n    {count} x {seen.of(tool)}" for tool, count in tools.items())
                told = f"{seen.n_values} values and {seen.n_nodes} nodes judged"
                print(f"{name}, {seen.precision}: {told}{faults}", flush=True)
                code |= bool(seen.faults)
    return code


if __name__ == "__main__":
    sys.exit(main())
