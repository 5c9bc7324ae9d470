"""docs/results/random-graphs.md: what is drawn, how it is judged, the results, what the generator does not reach."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from measure.bench.table import environment
from measure.random_graphs.runs import KINDS
from measure.random_graphs.summary import Summary

DRAWN = """## What is drawn

A function of one to seven statements from a table of operators, and one to four calls of it, from a seed and nothing
else. A fifth of the functions are plain: static, of the usual dtypes and numbers. Each other has, by chance:

- **dynamic**: one compiled function called with several sizes, among them 0, 1, primes and 257, with `dynamic=True`,
  `dynamic=None`, `mark_dynamic` and `maybe_mark_dynamic`; numbers as arguments, also in the place of literals such as
  dimensions, paddings and strides; arithmetic on sizes, positive and negative, as sizes, as bounds of slices, as
  numbers and as results.
- **views**: arguments that are views (offset, steps, columns, transposed, permuted, channels_last, expanded,
  overlapping, two of one memory); statements that write into arguments and into views of them; outputs that are views
  of arguments, of each other and of intermediates, and are written to afterwards; with gradients, under `no_grad` and
  `inference_mode`.
- **values**: one class of numbers. special: NaN, infinities, zeros; zeros: of both signs; tiny: subnormals; large: the
  largest, near overflow, integers near wrap; whole: 2^8, 2^11, 2^24, 2^31 and 2^53 and their neighbours; halfway: n + ½
  and its neighbours; full: all bits of the mantissa.
- **wide**: every dtype, with int16, int8 and uint8; Python numbers of every kind on both sides; factories.
- **errors**: indices that are negative, out of range or of an empty dimension. Eager's error is the expected result.
- **data**: sizes that data decides, captured by Dynamo or with graph breaks. **autocast**: regions, nested.

## How it is judged

Each call of the compiled function beside eager: dtypes, shapes, values of outputs, of gradients, of what arguments are
views of, and of everything after the outputs were written to; strides of dimensions of more than one element; offsets;
who shares memory with whom; `requires_grad`; whether there is an error. A function whose operations IEEE 754 fixes is
judged to the bit, any other within torch.testing's tolerance, or no further from float64 than twice eager's own
distance and a unit in the last place. The sign of a zero is a kind of its own, judged where eager agrees with float64
about it.

"zeros": it is right but for the sign of zeros that sums give (of matrix products, convolutions, means, norms too), or
extremes of zeros of both signs: kernels begin with 0.0 or with the first product, and take the first or the second.
Eager with all of these zeros positive, then negative, tells which results that decides.

"refused": torch.compile raises ConstraintViolationError, as a dimension that is marked dynamic must have the size that
another has, which eager asks when it runs, and a graph when it is made.

"torch": `backend="aot_eager"` differs in the same results in the same way, or eager gives our values with its oneDNN
kernels off. It is asked only where rust_ort differs.
"""
WHY = {
    "eager refuses it": "there is nothing to compare, but where errors are wanted",
    "no operand fits": "the drawn operand has no fitting value",
    "ill-conditioned": "moving eager's values by 2 units in their last place moves the result by more than 64",
    "too large or not finite": "plain numbers stay below 1000, that one function does not hide another's error",
    "an integer of what it cannot hold": "C++ leaves it undefined, and eager's kernels differ among themselves",
    "a sum that may overflow on its way": "whether it does is up to the order of its terms",
    "it writes where elements share memory": "the last of them stays, whichever that is",
    "the least integer divided: eager ends the process": "by -1 it is a trap of the processor",
    "rounding decides an integer or bool": "the operands are not what they are in float64, and it shows",
    "rounding decides a size": "the same of a shape",
    "not a tensor of these dtypes": "a Python number, or complex",
    "too large": "more than 1000 elements in the first call, or five dimensions",
    "functions: eager gives something else each time": "memory that nobody wrote",
    "functions: it reads nothing": "a function without an argument",
    "functions: eager refuses it with gradients or in this mode": "such as a write to a leaf",
    "functions: ill-conditioned": "the same of a gradient",
    "functions: a gradient is not finite": "plain numbers have finite gradients",
    "functions: too few statements": "none fitted",
}
"""What is drawn again, and why: nothing of it looks at rust_ort."""
NOT_DRAWN = """Not drawn at all: complex, float8 and unsigned dtypes but uint8; sparse, nested and quantized tensors;
modules with parameters and buffers; `torch.cond`, loops and other functions of functions; operators that draw numbers;
scattering without accumulation to one place twice (which is written last is undefined); sizes above 1031; devices but
the CPU."""


def markdown(summary: Summary, *, command: str, runs: Iterable[str] = ()) -> str:
    """The whole page. runs: lines about all runs there were."""
    lines = [
        "# Random functions",
        "",
        f"Made by `{command}`: seeds {ranges(summary.seeds)}, {summary.core_seconds / max(1, summary.graphs):.2f} s a",
        "function on one core. `--seed N` prints what a seed makes, reduced if it fails; `--from` makes this page of",
        "earlier runs' `--json`. Programs that once failed are in `tests/python/corpus.json`.",
        "",
        *(f"- {name}: {value}" for name, value in environment().items()),
        "",
        f"**{summary.line()}.**",
        "",
        *(
            [f"{summary.again} of them failed when they first ran: what is said of those is what they do now.", ""]
            if summary.again
            else []
        ),
        *_table(("what came of it", "functions"), [(kind, summary.kinds[kind]) for kind in KINDS]),
        "",
        *_bad(summary),
        f"{summary.settled} results were outside the tolerance and as near to float64 as eager's. Of {summary.calls}",
        f"calls, {summary.refused} are refused by eager, and so by rust_ort.",
        "",
        *DRAWN.splitlines(),
        "",
        *runs,
        "## What came up",
        "",
        *_table(("where it ran", "functions"), summary.where.most_common()),
        "",
        f"With a backward pass: {summary.backward}.",
        "",
        *_table(("the function has", "functions"), sorted(summary.features.items())),
        "",
        *_table(("dtype among results", "functions"), summary.dtypes.most_common()),
        "",
        *_table(
            ("family", "functions", "of them wholly translated"),
            [(name, n, summary.translated[name]) for name, n in sorted(summary.families.items())],
        ),
        "",
        "Drawn again, by a look at eager alone:",
        "",
        *_table(("what", "times", "why"), _rejected(summary)),
        "",
        "## What it reaches",
        "",
        *summary.reach.markdown(),
        "",
        *NOT_DRAWN.splitlines(),
        "",
        "## Left to eager",
        "",
        *_table(("what", "functions"), summary.eager.most_common(40)),
        "",
        "## What torch.compile does otherwise itself",
        "",
        *_torch(summary),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _bad(summary: Summary) -> list[str]:
    if not summary.bad:
        return []
    seeds: dict[str, list[int]] = defaultdict(list)
    for outcome in summary.bad:
        for kind in outcome.differs or [outcome.kind]:
            seeds[kind].append(outcome.seed)
    rows = [(kind, len(found), ", ".join(map(str, found[:8]))) for kind, found in sorted(seeds.items())]
    return [*_table(("differs in", "functions", "such as seeds"), rows), ""]


def _torch(summary: Summary) -> list[str]:
    seeds: dict[str, list[int]] = defaultdict(list)
    for outcome in summary.torch:
        seeds[", ".join(outcome.differs)].append(outcome.seed)
    rows = [(kind, len(found), ", ".join(map(str, found[:8]))) for kind, found in sorted(seeds.items())]
    return _table(("differs in", "functions", "such as seeds"), rows)


def _rejected(summary: Summary) -> list[tuple[object, ...]]:
    rows = [(why, count) for why, count in summary.rejected.most_common() if why != "drawn"]
    return [(why, count, WHY.get(why, "")) for why, count in rows]


def ranges(seeds: Sequence[int]) -> str:
    """1 to 5, 9 to 12."""
    ordered = enumerate(sorted(set(seeds)))
    runs = [[seed for _, seed in run] for _, run in itertools.groupby(ordered, key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]
