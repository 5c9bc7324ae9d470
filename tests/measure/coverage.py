"""Which of torch's operators run on ONNX Runtime, and are right: OpInfo's own samples through torch.compile.

Every operator of torch.testing's OpInfo database in every dtype, forward and backward, through a daemon of this study's
own. Each worker process takes one item at a time; one that dies or hangs costs its item only.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure.home import home

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from measure.coverage_item import Item, Result

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")
ALL = 0
"""As a number of samples: every one."""
WATCHDOG_S = 600.0
"""Of one sample."""
ITEMS_A_PROCESS = 400
"""Then a fresh one takes over: what torch.compile leaves behind is not for thousands of graphs."""


def items(
    ops: Sequence[str] = ("*",), dtypes: Sequence[str] = DTYPES, *, samples: int = ALL, dynamic: bool = False
) -> list[Item]:
    """Every (operator, dtype) that OpInfo has, of operators that match a pattern; sorted by operator."""
    import torch

    from measure.coverage_item import Item, op_infos

    return [
        Item(op=name, dtype=dtype, samples=samples, dynamic=dynamic)
        for name, info in op_infos().items()
        for dtype in dtypes
        if getattr(torch, dtype) in info.dtypes and any(fnmatchcase(name, pattern) for pattern in ops)
    ]


class Worker:
    """A process that runs items. Used by one thread."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Connection | None = None
        self._done = 0

    def run(self, item: Item) -> Result | str:
        """The result, or what happened to the process."""
        if self._done >= ITEMS_A_PROCESS:
            self.end()
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._done += 1
        try:
            self._connection.send(item)
            while self._connection.poll(WATCHDOG_S):
                received: Result | None = self._connection.recv()
                if received is not None:
                    return received
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.end()
            return f"the process died: exit code {code}"
        self.end(hung=True)
        return f"no result within {WATCHDOG_S:.0f} s"

    def end(self, *, hung: bool = False) -> None:
        """Ends the process; the next item has another."""
        if self._connection is not None:
            self._connection.close()
            self._process.join(0 if hung else WATCHDOG_S)  # it ends by itself when nobody listens
            self._process.kill()
            self._process.join()
        self._connection, self._done = None, 0

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()


def serve(connection: Connection) -> None:
    """What a worker process does: items in, results out and before them None for each sample that is through, until
    the other side closes."""
    from measure.coverage_item import run_item
    from measure.home import spare_torchs_own_measuring

    spare_torchs_own_measuring()
    # Of a sample's time a quarter went into walking all that is imported, over and over.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        connection.send(run_item(item, through=lambda: connection.send(None)))


def sweep(wanted: Sequence[Item], *, workers: int, finished: Callable[[Result], None] = lambda _: None) -> list[Result]:
    """The results of all items, in their order. finished: called with each as it comes, from several threads."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for position in range(len(wanted)):
        waiting.put(position)
    results: dict[int, Result] = {}

    def work() -> None:
        worker = Worker()
        try:
            while True:
                position = waiting.get_nowait()
                results[position] = _result(worker, wanted[position])
                finished(results[position])
        except queue.Empty:
            pass
        finally:
            worker.end()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[position] for position in sorted(results)]


def _result(worker: Worker, item: Item) -> Result:
    """A process that ends is our fault where torch.compile with aot_eager goes through the same item."""
    said = worker.run(item)
    if not isinstance(said, str):
        return said
    control = worker.run(dataclasses.replace(item, backend="aot_eager"))
    verdict = "untraceable" if isinstance(control, str) else "crashed"
    return _ended(item, verdict, said)


def _ended(item: Item, verdict: str, why: str) -> Result:
    import torch

    from measure.coverage_item import Result, has_backward, op_infos

    backward = has_backward(op_infos()[item.op], getattr(torch, item.dtype))
    return Result(
        op=item.op,
        dtype=item.dtype,
        forward=verdict,
        backward=verdict if backward else None,
        notes=[(-1, "forward", verdict, "", why)],
    )


def _progress(total: int, raw: Any) -> Callable[[Result], None]:
    lock = threading.Lock()
    done = Counter[str]()

    def finished(result: Result) -> None:
        with lock:
            done["items"] += 1
            if raw is not None:
                raw.write(json.dumps(dataclasses.asdict(result)) + "\n")
                raw.flush()
            bad = {result.forward, result.backward} & {"wrong", "crashed"}
            if bad or done["items"] % 50 == 0:
                what = f"{result.op} {result.dtype}: {result.forward}, {result.backward}" if bad else ""
                print(f"{done['items']}/{total} {what}", file=sys.stderr, flush=True)

    return finished


def written(raw: Path, settings: dict[str, Any]) -> dict[tuple[str, str], Result]:
    """{(operator, dtype): result} of a file of `--raw`, which begins with the settings of its sweep."""
    from measure.coverage_item import Result

    def result(given: dict[str, Any]) -> Result:
        lists = {name: [tuple(one) for one in given[name]] for name in ("eager", "notes")}
        return Result(**{**given, **lists})

    head, *lines = raw.read_text().split("\n")
    if json.loads(head) != settings:
        raise SystemExit(f"{raw}: a sweep of {head}, and this one is of {json.dumps(settings)}; give another file")
    results = [result(json.loads(line)) for line in lines[:-1]]  # what comes after the last end of a line was cut off
    return {(result.op, result.dtype): result for result in results}


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, print the totals, write the tables. Returns the exit code: 1 where a result is wrong or crashed."""
    parser = argparse.ArgumentParser(prog="python -m measure.coverage", description=__doc__)
    parser.add_argument("--ops", default="*", help="comma separated patterns of OpInfo's names")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="comma separated")
    parser.add_argument("--samples", type=int, default=ALL, help="of each operator and dtype; 0: all")
    parser.add_argument("--dynamic", action="store_true", help="torch.compile(dynamic=True)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--raw", type=Path, help="file for every result as a line of JSON, as it comes; what it has is not run again"
    )
    parser.add_argument("--output", type=Path, help="markdown file; the floor goes beside it as JSON")
    arguments = parser.parse_args(argv)
    import torch

    from measure import coverage_report as report
    from measure.coverage_sample import FAULTS

    dtypes = tuple(arguments.dtypes.split(","))
    unknown = set(dtypes) - set(DTYPES)
    if unknown or arguments.samples < 0 or arguments.workers < 1:
        parser.error(
            f"unknown dtypes {sorted(unknown)}; known: {', '.join(DTYPES)}; --samples is 0 or more, --workers 1 or more"
        )
    os.environ["OMP_NUM_THREADS"] = "1"
    wanted = items(arguments.ops.split(","), dtypes, samples=arguments.samples, dynamic=arguments.dynamic)
    settings = {"samples": arguments.samples, "dynamic": arguments.dynamic, "torch": torch.__version__}
    raw_file: Path | None = arguments.raw
    done = written(raw_file, settings) if raw_file and raw_file.exists() else {}
    left = [item for item in wanted if (item.op, item.dtype) not in done]
    with home() as made:
        os.environ.update(made.environment())
        if raw_file:
            begun = raw_file.with_suffix(".begun")
            begun.write_text(
                "".join(json.dumps(line) + "\n" for line in (settings, *map(dataclasses.asdict, done.values())))
            )
            begun.replace(raw_file)
        with raw_file.open("a") if raw_file else open(os.devnull, "w") as raw:
            swept = sweep(left, workers=arguments.workers, finished=_progress(len(left), raw))
    done.update({(result.op, result.dtype): result for result in swept})
    results = [done[item.op, item.dtype] for item in wanted]
    for direction in ("forward", "backward"):
        print(direction, dict(Counter(getattr(result, direction) for result in results)))
    if arguments.output:
        arguments.output.write_text(
            report.markdown(results, command="make coverage", samples=arguments.samples, dynamic=arguments.dynamic)
        )
        arguments.output.with_suffix(".json").write_text(report.floor_text(report.floor(results)))
    return int(any({result.forward, result.backward} & set(FAULTS) for result in results))


if __name__ == "__main__":
    sys.exit(main())
