"""What is compared by which tolerance, and why something is not: ran in eager, never compiled, named by no node."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rust_ort.link.specs import Policy, Verdict, not_compared
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.options import Options
from rust_ort.torch_private import compile_counters, suppresses_errors

Pair = tuple[str, Tensor | None, Tensor | None, str]
"""(name, reference, candidate, why there is nothing to compare or "")."""


def fits(patterns: Sequence[str], names: Iterable[str]) -> bool:
    """Whether one of a node's names, its FX name, operator or module path, is what a pattern says; no pattern: yes."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def policy(options: Options, graphs: Iterable[GraphInfo]) -> Policy:
    """By what the values of graphs are judged: the lowest precision that took part in one took part in all."""
    dtypes = {graph.lowest_precision for graph in graphs}
    half = next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)
    return Policy(given=options.tolerance, through=half, noise_factor=options.noise_factor)


def missing(options: Options, graphs: Sequence[GraphInfo]) -> list[Verdict]:
    """A verdict for each pattern of compare_only by which no node was compared."""
    if options.compare_only and options.compare != "nodes":
        why = f"no node is compared under compare={options.compare!r}; use compare='nodes'"
        return [not_compared("option compare_only", why)]
    found = []
    nodes = [node for graph in graphs for _, node in graph.nodes]
    for pattern in options.compare_only:
        fitting = [node for node in nodes if fits([pattern], (node.name, node.op, node.module))]
        if not fitting:
            found.append(not_compared(f"compare_only {pattern!r}", _no_node(pattern, graphs)))
        elif all(node.local.kind == "not_compared" for node in fitting):
            why = f"{fitting[0].name}: {fitting[0].local.reason}"
            found.append(not_compared(f"compare_only {pattern!r}", why))
    return found


def _no_node(pattern: str, graphs: Sequence[GraphInfo]) -> str:
    names = [name for graph in graphs for named in (graph.operators, graph.modules) for pair in named.items()
             for name in pair if name]  # fmt: skip
    known = list(dict.fromkeys(names))
    close = difflib.get_close_matches(pattern.strip("*?"), known, n=3, cutoff=0.4)
    operators = list(dict.fromkeys(operator for graph in graphs for operator in graph.operators.values()))
    hint = f"the nearest: {', '.join(close)}" if close else f"the operators: {', '.join(operators[:10]) or 'none'}"
    return f"no node matched {pattern!r}; {hint}"


REMEDIES = {"Attempted to wrap RNN, GRU, or LSTM": "torch._dynamo.config.allow_rnn = True has Dynamo trace them"}
"""{why Dynamo leaves code to eager: what to do}, where Dynamo names no setting itself."""
SUPPRESSED = (
    "torch._dynamo.config.suppress_errors is on, by which torch leaves to eager what fails to compile, and logs; or "
    "there is nothing to compute on tensors"
)
_SETTING = re.compile(r"torch\._dynamo\.config\.\w+ = True")
_BACKEND = "Backend compiler exception"
_FAILED = re.compile(r"Explanation: (.+)")
_PLACE = re.compile(r'# File "([^"]+)", line (\d+)')
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
N_PLACES = 3


def graph_breaks() -> Counter[str]:
    """Why Dynamo left code to eager in this process, counted: what broke a graph, or kept it from being made."""
    counters = compile_counters()
    return Counter(counters["graph_break"]) | Counter(counters["unimplemented"])


def break_lines(breaks: Mapping[str, int]) -> list[str]:
    """A line for each kind of break: how often, what to do, and where as far as Dynamo says it. breaks: as of
    `graph_breaks`, whose reasons go on with a page that differs from place to place."""
    counts, places = Counter[str](), dict[str, dict[str, None]]()
    for reason, count in breaks.items():
        told = _told(reason)
        counts[told] += count
        places.setdefault(told, {}).update(dict.fromkeys(_places(reason)))
    lines = []
    for told, count in counts.items():
        where = list(places[told])
        more = f" and {len(where) - N_PLACES} more" if len(where) > N_PLACES else ""
        at = f" ({', '.join(where[:N_PLACES])}{more})" if where else ""
        lines.append(f"break ({count}): {told}{at}")
    return lines


def _told(reason: str) -> str:
    """Why Dynamo broke a graph, and the setting with which it does not."""
    line, setting = reason.splitlines()[0] if reason else "?", _SETTING.search(reason)
    remedy = REMEDIES.get(line) or (setting and f"{setting.group()} has Dynamo trace it")
    if line == _BACKEND and (failed := _FAILED.search(reason)):  # AOTAutograd's, too, which is before the backend
        line = failed.group(1)
    return f"{line}: {remedy}" if remedy else line


def _places(reason: str) -> Iterator[str]:
    """Where in the model, as far as Dynamo says it."""
    places = _PLACE.findall(reason)
    if reason.startswith(_BACKEND):  # it has the stack of the call that failed, the innermost last, twice
        places = _FRAME.findall(reason.partition("Developer debug context")[0])[-1:]
    return (f"{file}:{line}" for file, line in places)


def why_eager(graphs: Sequence[GraphInfo], breaks: Mapping[str, int]) -> tuple[str, str]:
    """Why there is no comparison of (values of the forward, gradients); "" where there is one.

    A value cannot be told to be of one graph, so what one graph of several computed after a daemon's fault is in all.
    """
    fallen = [graph for graph in graphs if graph.fallen_back]
    lost = "; ".join(f"{graph.name}: {graph.fallen_back}" for graph in fallen)
    reasons = "; ".join(sorted({node.reason for graph in graphs for node in graph.eager}))
    idle = f"ran in eager: {reasons}" if reasons else why_nothing(breaks)
    ran = {graph.direction for graph in graphs if graph.parts}
    forward = lost if any(graph.direction != "backward" for graph in fallen) else "" if ran - {"backward"} else idle
    return forward, lost or ("" if ran else idle)


def why_nothing(breaks: Mapping[str, int]) -> str:
    """Why the backend was given no graph. breaks: as of `graph_breaks`."""
    reasons = "; ".join(dict.fromkeys(_told(reason) for reason in breaks if reason))
    nothing = SUPPRESSED if suppresses_errors() else "torch.compile found nothing to compute on tensors"
    return f"no graph was compiled: {reasons or nothing}"
