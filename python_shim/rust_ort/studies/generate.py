"""A prompt through tiny Llama and Qwen3 models: a greedy loop of this file's own and transformers' `generate()`, with a
dynamic and a static cache, greedy and sampled, one prompt and a batch with left padding. Tokens are compared with
eager's one by one; the table has graphs, recompilations, nodes left to eager and the time of a token.

Weights are random, of a seed: nothing is downloaded. Exit code: 0 every mode gives eager's tokens, 1 one does not,
2 one raises, 3 some call of a mode went by the compiled graphs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rust_ort
from rust_ort.backend import Backend, GraphInfo
from rust_ort.options import Options
from rust_ort.studies.llama_models import SEED, Size

SIZES = {
    "tiny": Size(hidden=64, heads=4, intermediate=96, vocabulary=512, layers=2),
    "small": Size(hidden=256, heads=8, intermediate=688, vocabulary=2_000, layers=4),
    "full": Size(hidden=768, heads=12, intermediate=2048, vocabulary=32_000, layers=12),
}
"""Sizes of the models; `batch` and `sequence` are those of the prompts."""

MODELS, LOOPS, CACHES = ("llama", "qwen3"), ("own", "generate()"), ("dynamic", "static")
CHOICES, PROMPTS = ("greedy", "sampled"), ("one prompt", "left-padded")
TEXTS = {
    "one prompt": ["The daemon runs graphs of a model"],
    "left-padded": ["Nothing falls back silently: what ran in eager is counted", "A token", "Each graph runs once"],
}
"""{kind of prompt: its texts}. Those of a batch have different lengths, so that all but one are padded."""

TEMPERATURE = 0.8
TOKENS = 16
ROUNDS = 3
TOKENIZER_SIZE = 512
PLAIN, FROZEN, INDUCTOR = "rust_ort", "rust_ort, frozen", "inductor"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to generate. model: of MODELS; loop: of LOOPS; cache: of CACHES; choice: of CHOICES; prompt: of PROMPTS."""

    model: str
    loop: str
    cache: str
    choice: str
    prompt: str

    def __str__(self) -> str:
        return f"{self.model}, {self.loop}, {self.cache} cache, {self.choice}, {self.prompt}"


MODES = [
    Mode(model=model, loop=loop, cache=cache, choice=choice, prompt=prompt)
    for model, loop, cache, prompt, choice in itertools.product(MODELS, LOOPS, CACHES, PROMPTS, CHOICES)
]
"""Modes of one model, loop and cache stand together: they share compiled graphs."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """size: of SIZES, or one's own; tokens: new ones of each prompt; rounds: timed runs of each mode, 0: none."""

    size: Size = SIZES["tiny"]
    tokens: int = TOKENS
    rounds: int = ROUNDS
    inductor: bool = False


@dataclass(kw_only=True)
class Ran:
    """A mode in one variant.

    equal: tokens that are eager's; difference: the first that is not, or ""; logits: largest |difference| of a step
    over the largest |logit|, up to that token. graphs: compiled for the mode, beyond those of modes before it;
    recompilations: those of them whose frame had been compiled; nodes: compute nodes of the graphs that ran, of which
    n_in_eager are left to eager, in_eager: {operator: reason}. not_served: calls of the forward that no compiled graph
    served; fallbacks: graph calls that ran in eager for a daemon's fault. ms, eager_ms: medians of a token, timed in
    turns; None: not timed. error: what it raised.
    """

    equal: int = 0
    difference: str = ""
    logits: float = 0.0
    graphs: int = 0
    recompilations: int = 0
    nodes: int = 0
    n_in_eager: int = 0
    in_eager: dict[str, str] = field(default_factory=dict)
    not_served: int = 0
    fallbacks: int = 0
    ms: float | None = None
    eager_ms: float | None = None
    error: str = ""


@dataclass(kw_only=True)
class Row:
    """A mode. tokens: eager's, of each prompt; text: the first prompt's as text. variants: {variant: what it gave}."""

    mode: Mode
    tokens: list[list[int]]
    text: str
    variants: dict[str, Ran] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return sum(map(len, self.tokens))


@dataclass(kw_only=True)
class Study:
    """All modes. vocabulary: where the tokenizer's comes from; prompts: {kind: token ids, padding included}."""

    settings: Settings
    vocabulary: str
    prompts: dict[str, list[list[int]]]
    rows: list[Row] = field(default_factory=list)

    @property
    def code(self) -> int:
        judged = [(row, ran) for row in self.rows for name, ran in row.variants.items() if name != INDUCTOR]
        if any(ran.error for _, ran in judged):
            return 2
        if any(ran.equal != row.n for row, ran in judged):
            return 1
        return 3 if not judged or any(ran.not_served or ran.fallbacks for _, ran in judged) else 0

    def same_loops(self) -> tuple[int, int]:
        """(pairs in which eager's own loop chose the tokens of eager's `generate()`, all pairs)."""
        by_case: dict[tuple[str, ...], list[list[list[int]]]] = {}
        for row in self.rows:
            by_case.setdefault((row.mode.model, row.mode.cache, row.mode.choice, row.mode.prompt), []).append(
                row.tokens
            )
        pairs = [found for found in by_case.values() if len(found) == len(LOOPS)]
        return sum(found[0] == found[1] for found in pairs), len(pairs)


def text_of_tokenizer() -> tuple[str, str]:
    """(name, text) that the tokenizer learns from: the README beside the sources, else what the options mean."""
    readme = Path(__file__).resolve().parents[3] / "README.md"
    return ("README.md", readme.read_text()) if readme.is_file() else ("Options.table()", str(Options.table()))


def tokenizer_of(text: str) -> Any:
    """A byte-level BPE of TOKENIZER_SIZE tokens, padding on the left."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE, special_tokens=["<pad>", "<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", padding_side="left")


def model_of(name: str, size: Size) -> Any:
    """A causal LM of MODELS in evaluation, two heads of queries for each of keys: the same weights at each call."""
    import transformers

    kind = {"llama": "Llama", "qwen3": "Qwen3"}[name]
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 2,
        head_dim=size.hidden // size.heads,
        vocab_size=size.vocabulary,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@torch.no_grad()
def own_loop(model: Any, feeds: dict[str, Tensor], mode: Mode, n: int) -> tuple[Tensor, list[Tensor]]:
    """(tokens [batch, n], logits [batch, vocabulary] of each step), by `model.forward` alone.

    feeds: input_ids and attention_mask, padded on the left. A static cache has its full length from the beginning, and
    so has the mask: what is not written yet, causality hides.
    """
    from transformers import DynamicCache, StaticCache

    ids, mask = feeds["input_ids"], feeds["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    if mode.cache == "static":
        cache: Any = StaticCache(config=model.config, max_cache_len=ids.shape[1] + n)
        mask = torch.nn.functional.pad(mask, (0, n), value=1)
    else:
        cache = DynamicCache(config=model.config)
    generator = torch.Generator().manual_seed(SEED)
    tokens, logits = [], []
    for _ in range(n):
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        last = out.logits[:, -1].clone()
        if mode.choice == "greedy":
            ids = last.argmax(-1, keepdim=True)
        else:
            ids = torch.multinomial((last / TEMPERATURE).softmax(-1), 1, generator=generator)
        positions = positions[:, -1:] + 1
        if mode.cache == "dynamic":
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        tokens.append(ids)
        logits.append(last)
    return torch.cat(tokens, 1), logits


@torch.no_grad()
def by_generate(model: Any, feeds: dict[str, Tensor], mode: Mode, n: int) -> tuple[Tensor, list[Tensor]]:
    """As `own_loop`, by transformers' `generate()`, whose random numbers are the process's."""
    options: dict[str, Any] = {"do_sample": mode.choice == "sampled", "max_new_tokens": n, "disable_compile": True}
    if mode.choice == "sampled":
        options |= {"temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0}
    if mode.cache == "static":
        options["cache_implementation"] = "static"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = model.generate(**feeds, **options, output_logits=True, return_dict_in_generate=True)
    return made.sequences[:, feeds["input_ids"].shape[1] :], list(made.logits)


def generated(model: Any, feeds: dict[str, Tensor], mode: Mode, n: int) -> tuple[Tensor, list[Tensor]]:
    return {"own": own_loop, "generate()": by_generate}[mode.loop](model, feeds, mode, n)


def compare(got: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], ran: Ran) -> None:
    """Fills in `equal`, `difference` and `logits`."""
    tokens, wanted = got[0], expected[0]
    if tokens.shape != wanted.shape:
        ran.difference = f"shape {tuple(tokens.shape)}, eager's {tuple(wanted.shape)}"
        return
    same = tokens == wanted
    ran.equal = int(same.sum())
    steps = same.all(0)
    first = int((~steps).nonzero()[0]) if not bool(steps.all()) else len(steps)
    # A different token makes every later step one of other inputs.
    for ours, eagers in list(zip(got[1], expected[1], strict=True))[: first + 1]:
        largest = float(eagers.abs().max())
        ran.logits = max(ran.logits, float((ours - eagers).abs().max()) / largest)
    if first < len(steps):
        row = int((~same[:, first]).nonzero()[0])
        best = expected[1][first][row].topk(2).values
        ran.difference = (
            f"prompt {row}, token {first}: {int(tokens[row, first])}, eager's {int(wanted[row, first])}; its largest "
            f"logit is {float(best[0] - best[1]):.2g} above its second, ours differ by {ran.logits:.2g} of the largest"
        )


def watched(graphs: Callable[[], Sequence[GraphInfo]], run: Callable[[], Any], n: int, ran: Ran) -> Any:
    """What `run` gives, n calls of a forward; fills in what is counted of graphs."""
    before = {id(graph): (graph.calls, graph.daemon_fallbacks) for graph in graphs()}
    made = run()
    for graph in graphs():
        calls, fallbacks = before.get(id(graph), (0, 0))
        if id(graph) not in before:
            ran.graphs += 1
            ran.recompilations += recompiled(graph.name)
        if graph.calls > calls:
            ran.nodes += graph.compute_nodes
            ran.n_in_eager += len(graph.eager)
            ran.in_eager |= {node.op: node.reason for node in graph.eager}
            ran.fallbacks += graph.daemon_fallbacks - fallbacks
    served = sum(graph.calls - before.get(id(graph), (0, 0))[0] for graph in graphs())
    ran.not_served = max(0, n - served)
    return made


def recompiled(name: str) -> bool:
    """Whether a graph's name, torch's compile id and a direction, is of a frame that was compiled before."""
    return name.split("-")[0].split("_")[1] != "0"


def backends(inductor: bool) -> dict[str, Any]:
    found: dict[str, Any] = {PLAIN: rust_ort.backend(), FROZEN: rust_ort.backend(freeze_parameters=True)}
    return found | ({INDUCTOR: INDUCTOR} if inductor else {})


def group(
    modes: Sequence[Mode], feeds: dict[str, dict[str, Tensor]], tokenizer: Any, settings: Settings
) -> Iterator[Row]:
    """Rows of modes that share a model, a loop and a cache, each when its last variant has run: one compiled forward
    serves them all. Each variant has Dynamo to itself, whose limit of recompilations is one for all that compile a
    function."""
    eager = model_of(modes[0].model, settings.size)
    expected = [generated(eager, feeds[mode.prompt], mode, settings.tokens) for mode in modes]
    rows = [
        Row(mode=mode, tokens=tokens.tolist(), text=tokenizer.decode(tokens[0]))
        for mode, (tokens, _) in zip(modes, expected, strict=True)
    ]
    variants = backends(settings.inductor)
    for name, backend in variants.items():
        torch.compiler.reset()
        model = model_of(modes[0].model, settings.size)
        model.forward = torch.compile(model.forward, backend=backend)
        for row, wanted in zip(rows, expected, strict=True):
            row.variants[name] = _ran(row.mode, (eager, model), backend, feeds[row.mode.prompt], wanted, settings)
            if len(row.variants) == len(variants):
                yield row


def _ran(
    mode: Mode,
    models: tuple[Any, Any],
    backend: Any,
    feeds: dict[str, Tensor],
    expected: tuple[Tensor, list[Tensor]],
    settings: Settings,
) -> Ran:
    """One mode of a compiled model. models: eager's and the compiled one."""
    ran = Ran()
    n = settings.tokens
    eager, compiled = (functools.partial(generated, model, feeds, mode, n) for model in models)
    try:
        got = watched(lambda: backend.graphs, compiled, n, ran) if isinstance(backend, Backend) else compiled()
        compare(got, expected, ran)
        ran.eager_ms, ran.ms = times((eager, compiled), settings.rounds, n)
    except Exception as error:  # the study tells which modes raise
        ran.error = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
    return ran


def times(runs: Sequence[Callable[[], Any]], rounds: int, n: int) -> list[float | None]:
    """Median milliseconds of a token, prompt included, of each; the runs take turns. None: no round."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, values in zip(runs, taken, strict=True):
            begin = time.perf_counter()
            run()
            values.append((time.perf_counter() - begin) * 1000 / n)
    return [statistics.median(values) if values else None for values in taken]


def run(
    settings: Settings,
    modes: Sequence[Mode] = MODES,
    *,
    say: Callable[[str], None] = lambda _: None,
    show: Callable[[str], None] = lambda _: None,
) -> Study:
    """Runs the modes, those of a model, a loop and a cache beside each other. say: told of each group before it. show:
    told the lines of the table: its head before any mode, a mode's when it has run."""
    name, text = text_of_tokenizer()
    tokenizer = tokenizer_of(text)
    feeds = {
        kind: dict(tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False))
        for kind, texts in TEXTS.items()
    }
    study = Study(
        settings=settings,
        vocabulary=f"byte-level BPE, {len(tokenizer)} tokens, of {name}",
        prompts={kind: inputs["input_ids"].tolist() for kind, inputs in feeds.items()},
    )
    names = list(backends(settings.inductor))
    for of_head in head(study, names):
        show(of_head)
    grouped = itertools.groupby(modes, lambda mode: (mode.model, mode.loop, mode.cache))
    with quiet():
        for key, of_group in grouped:
            say(f"{', '.join(key)} cache")
            for row in group(list(of_group), feeds, tokenizer, settings):
                study.rows.append(row)
                show(line(row, names))
    return study


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' own warnings kept back."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def text(study: Study) -> str:
    """The table, and below it what differs, raises or is left to eager."""
    names = list(dict.fromkeys(name for row in study.rows for name in row.variants))
    return "\n".join([*head(study, names), *(line(row, names) for row in study.rows), *foot(study)])


def head(study: Study, names: Sequence[str]) -> list[str]:
    """Lines before the rows. names: of the variants."""
    settings, size = study.settings, study.settings.size
    return [
        f"hidden {size.hidden}, {size.heads} heads, {size.layers} layers, {size.vocabulary} tokens known; "
        f"{settings.tokens} new tokens a prompt; {study.vocabulary}",
        "again: recompilations; a / b: not frozen / frozen",
        "rust_ort, frozen: tokens that are eager's; ms: of a token, prompt included, and eager's in turns with it",
        "",
        _padded([*COLUMNS, *_titles(names)]),
        _padded(["-" * width for width in _widths(len(names))]),
    ]


def line(row: Row, names: Sequence[str]) -> str:
    """A row of the table."""
    ours = [ran for name, ran in row.variants.items() if name != INDUCTOR]
    counts = [(ran.graphs, ran.recompilations, ran.nodes, ran.n_in_eager) for ran in ours]
    return _padded([str(row.mode), *map(_each, zip(*counts, strict=True)), *_results(row, names)])


def foot(study: Study) -> list[str]:
    """Lines below the rows."""
    notes: Counter[str] = Counter()
    for row in study.rows:
        for name, ran in row.variants.items():
            notes.update(f"{name}: {note}" for note in _notes(row.mode, ran))
    same, pairs = study.same_loops()
    loops = f"eager's own loop and eager's generate() choose the same tokens in {same} of {pairs} cases"
    return [*(["", loops] if pairs else []), *(note if n == 1 else f"{note} ({n} modes)" for note, n in notes.items())]


COLUMNS = {"mode": max(len(str(mode)) for mode in MODES), "graphs": 6, "again": 5, "nodes": 11, "in eager": 8}
"""{title: width}; of a variant two more, RESULT and TIME wide. What is wider moves the rest of its row."""

RESULT, TIME = 10, 15


def _widths(n_variants: int) -> list[int]:
    return [*COLUMNS.values(), *[RESULT, TIME] * n_variants]


def _padded(cells: Sequence[str]) -> str:
    widths = _widths((len(cells) - len(COLUMNS)) // 2)
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _titles(names: Sequence[str]) -> list[str]:
    return [title for name in names for title in (name.rpartition(" ")[2], "ms (eager)")]


def _each(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else " / ".join(map(str, values))


def _results(row: Row, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        ran = row.variants[name]
        yield "raises" if ran.error else f"{ran.equal} of {row.n}"
        yield "-" if ran.ms is None or ran.eager_ms is None else f"{ran.ms:.2f} ({ran.eager_ms:.2f})"


def _notes(mode: Mode, ran: Ran) -> Iterator[str]:
    if ran.error:
        yield f"{mode}: {ran.error}"
    if ran.difference:
        yield f"{mode}: {ran.difference}"
    if ran.not_served:
        yield f"{mode}: {ran.not_served} calls went by the compiled graphs (is Dynamo's limit of recompilations met?)"
    if ran.fallbacks:
        yield f"{mode}: {ran.fallbacks} calls ran in eager for a daemon's fault"
    for operator, reason in ran.in_eager.items():
        yield f"in eager: {operator}: {reason}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study and prints it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.generate", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="tiny", help="of the models (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="new tokens of each prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed runs; 0: none (default: %(default)s)")
    parser.add_argument("--inductor", action="store_true", help="inductor beside them; its tokens decide nothing")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    arguments = parser.parse_args(argv)
    if arguments.tokens < 2 or arguments.rounds < 0:
        parser.error("--tokens from 2 on (the first is of the prompt alone), --rounds from 0 on")
    settings = Settings(
        size=SIZES[arguments.size],
        tokens=arguments.tokens,
        rounds=arguments.rounds,
        inductor=arguments.inductor,
    )

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    if arguments.json:
        study = run(settings, say=say)
        print(json.dumps({**dataclasses.asdict(study), "code": study.code}, indent=1))
    else:
        study = run(settings, say=say, show=lambda what: print(what, flush=True))
        for below in foot(study):
            print(below)
    return study.code


if __name__ == "__main__":
    sys.exit(main())
