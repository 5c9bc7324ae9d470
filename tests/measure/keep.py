"""`make keep`: which values of a Llama decoder to keep in float32, in half precision; docs/results/keep-in-float32.md.

Weights are random, of the scale of `LlamaConfig.initializer_range`. Real Llamas have a few channels whose activations
are a thousand times the others' (Sun et al., Massive Activations in Large Language Models, 2024): in the variant
"outlier" one channel of one layer's gate and up projections is so large that their product overflows float16,
and the down projection makes an ordinary number of it again.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.keep import Kept
from rust_ort.link.specs import Verdict
from rust_ort.studies.llama_models import Size, config

PRECISIONS = ("float16", "bfloat16", "autocast float16")
VARIANTS = ("outlier", "plain")
SEED = 7
OUTLIER_LAYER, OUTLIER_CHANNEL = 1, 3
SHOWN = 6
"""Rows of each table."""


SIZES = {
    "full": Size(intermediate=1376, layers=2, vocabulary=1024, sequence=32),
    "small": Size(hidden=64, heads=4, intermediate=96, layers=2, vocabulary=64, sequence=16),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model, and what outputs must be within: `times` the error of rounding them, or the tolerance of the dtype."""

    precision: str
    variant: str
    times: float | None

    @property
    def limit(self) -> str:
        return "the dtype's tolerance" if self.times is None else f"{self.times:g} roundings of each output"


class Decoder(nn.Module):
    """(hidden states) to hidden states, through all layers and the last norm, causal. Without the cache, whose
    roundings are outputs of their own: front_door.py looks for rules with it."""

    def __init__(self, size: Size) -> None:
        from transformers import LlamaModel

        super().__init__()
        self.model = LlamaModel(config(size))

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return output


def built(size: Size, variant: str) -> tuple[Decoder, Tensor]:
    """The decoder in float32 and its tokens: the same numbers at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Decoder(size)
        tokens = torch.randint(0, size.vocabulary, (1, size.sequence))
    if variant == "outlier":
        mlp = model.model.layers[OUTLIER_LAYER].mlp
        with torch.no_grad():
            # |gate|, |up| reach a few times norm; their product then passes 65504, and down brings it back.
            for projection in (mlp.gate_proj, mlp.up_proj):
                weight = projection.weight[OUTLIER_CHANNEL]
                weight.mul_(450.0 / weight.norm())
            mlp.down_proj.weight[:, OUTLIER_CHANNEL].mul_(1e-3)
    return model, tokens


def kept(asked: Asked, size: Size, budget: float) -> tuple[Kept, float]:
    """What is to be kept, and the seconds that it took to find it."""
    model, tokens = built(size, asked.variant)
    autocast = asked.precision.removeprefix("autocast ") if asked.precision.startswith("autocast") else None
    if autocast is None:
        model = model.to(getattr(torch, asked.precision))
    torch.compiler.reset()
    start = time.perf_counter()
    found = rust_ort.keep_in_float32(model, tokens, autocast=autocast, times=asked.times, budget=budget)
    return found, time.perf_counter() - start


def worst(found: Kept, direction: str, which: str) -> str:
    """The largest error of a direction's outputs in roundings of the output, "-" where there is none."""
    judged = [output[which] for output in found.outputs if direction in output["graph"] and output[which]]
    if not judged:
        return "-"
    times = [math.inf if one["times"] is None else one["times"] for one in judged]
    return f"{max(times):.3g}" if judged else "-"


def apart(found: Kept, side: str, kind: str) -> str:
    """The largest max|Δ|/max|r| of outputs or gradients against a float64 run of the whole model. side: "eager",
    "before" or "after", the model compiled without and with the rules; "-" where that was not run."""
    report = found.after if side == "after" else found.before
    if report is None:
        return "-"
    of_kind = [verdict for verdict in report.verdicts if verdict.name.startswith("grad") == (kind == "gradients")]
    errors = [_errors(verdict, "reference" if side == "eager" else "candidate") for verdict in of_kind]
    known = [error for error in errors if error is not None]
    if not known:
        return "-"
    absolute, relative = (max(of) for of in zip(*known, strict=True))
    if math.isinf(absolute):
        n = sum(math.isinf(error) for error, _ in known)
        return f"infinite ({n} of {len(known)})"
    # Of what eager has made infinite or NaN as a whole there is no largest.
    return f"max abs Δ {absolute:.2e}" if math.isinf(relative) else f"{relative:.2e}"


def _errors(verdict: Verdict, side: str) -> tuple[float, float] | None:
    """A side's error against float64, and the same relative to the largest value."""
    if verdict.noise is None or verdict.metrics is None:
        return None
    error, largest = float(verdict.noise[f"{side}_error"]), float(verdict.metrics["max_reference"])
    if not math.isfinite(error):
        return math.inf, math.inf
    return error, error / largest if largest else math.inf if error else 0.0


def section(asked: Asked, found: Kept, seconds: float) -> str:
    """Of the page: one model."""
    found_in = [answer["found"] for answer in found.answers]
    rules = found.rules.get("float32", ())
    n_roundings = sum(len(culprit["values"]) for culprit in found.culprits)
    lines = [
        f"## {asked.precision}, {asked.variant}",
        "",
        f"Limit: {asked.limit}. {n_roundings} roundings in {len(found.answers)} graphs; "
        f"{len(rules)} rules; {seconds:.0f} s.",
        "",
        "| graph | found | worst output as it is | with the rules | all kept | runs | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for answer, what in zip(found.answers, found_in, strict=True):
        errors = [worst(found, answer["graph"], which) for which in ("before", "after", "everything")]
        kind = f"{len(what['float32'])} to keep" if what["kind"] == "rules" else what["kind"]
        cells = [answer["graph"], kind, *errors, str(answer["n_runs"]), f"{answer['seconds']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    if found.beyond:
        names = ", ".join(f"`{name}` of {graph}" for graph, name in found.beyond)
        lines += ["", f"Beyond reach, as they overflow themselves where the backward needs them: {names}."]
    lines += [
        "",
        "| against float64, the whole model | eager | compiled | with the rules |",
        "|---|---|---|---|",
        *(f"| {kind} | " + " | ".join(apart(found, side, kind) for side in ("eager", "before", "after")) + " |"
          for kind in ("outputs", "gradients")),
        "",
        "| rounding | graph | share | infinite elements | operator | module |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for graph in dict.fromkeys(culprit["graph"] for culprit in found.culprits):
        of_graph = [culprit for culprit in found.culprits if culprit["graph"] == graph]
        lines += [
            f"| `{one['pattern']}` | {graph} | {100 * one['share']:.1f} % | {one['n_infinite'] or ''} | "
            f"{one['op']} | {one['module']} |"
            for one in of_graph[:SHOWN]
        ]
    if rules:
        lines += ["", f'`precision_rules={{"float32": {_listed(rules)}}}`']
    return "\n".join([*lines, ""])


def _listed(rules: Sequence[str]) -> str:
    most = 24
    rest = f", … {len(rules) - most} more" if len(rules) > most else ""
    return "(" + ", ".join(f'"{rule}"' for rule in rules[:most]) + rest + ")"


def page(size: Size, sections: Sequence[str]) -> str:
    head = f"""# What to keep in float32

Made by `make keep`, on {platform.machine()}, {torch.get_num_threads()} threads. A Llama decoder (hidden {size.hidden},
{size.layers} layers, {size.heads} heads, {size.sequence} tokens, random weights), forward and backward. *Plain*: as it
is initialized. *Outlier*: one channel of one layer's MLP overflows float16, as in real Llamas.

Errors of outputs are root mean squares, in roundings: 1 is what rounding the exact output itself gives. A *share* is
what one rounding makes of an output's squared error when nothing else is rounded. Each graph is held against itself in
float64 on the inputs that it got; what the forward saves for the backward is half precision between the two, so the
second table, of the whole model against float64, keeps that error whatever the rules of the backward say.

"""
    return head + "\n".join(sections)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.keep", description=__doc__)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument(
        "--times", type=float, default=2.0, help="of the plain model: the outlier's limit is a tolerance"
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each graph")
    parser.add_argument("--output", type=Path, help="written after each model")
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    sections = []
    verified = True
    for variant in options.variants.split(","):
        for precision in options.precisions.split(","):
            if variant == "outlier" and "bfloat16" in precision:
                continue  # it has float32's range
            asked = Asked(precision=precision, variant=variant, times=options.times if variant == "plain" else None)
            found, seconds = kept(asked, size, options.budget)
            verified &= found.verified
            sections.append(section(asked, found, seconds))
            print(sections[-1], flush=True)
            if options.output is not None:
                options.output.write_text(page(size, sections), encoding="utf-8")
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
