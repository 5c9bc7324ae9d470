"""Calls on the device against eager there: values, who ran the nodes, what went through the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rust_ort
from rust_ort.backend import GraphInfo
from rust_ort.studies.gpu import copies
from rust_ort.studies.gpu.cases import DTYPES, Case, Program, all_cases
from rust_ort.studies.gpu.device import synchronize
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Record
from rust_ort.studies.main_job import counted_nodes, error_to

TOLERANCES = {torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
"""rtol of torch.testing.assert_close by dtype. Twice that part of the largest element is what sums of other orders may
differ by in elements near 0."""


def run(record: Record, device: str) -> None:
    """A row a case, and one for what the executors say of the host."""
    exact_products()
    for case in all_cases():
        if device == "cuda" or not case.cuda_only:
            record.row(case.name, partial(check, case, device))
    for dtype in DTYPES:
        record.row(f"compared where it lies, {str(dtype).removeprefix('torch.')}", partial(compared, dtype, device))
    if device == "cuda":
        record.row("bytes through the host, counted by the executors", told_by_executors)


def told_by_executors(numbers: dict[str, Any]) -> None:
    """Errors: MissingHere."""
    numbers.update(counted := copies.counted_by_executors())
    if not counted:
        raise MissingHere("the daemon's status has no counter of bytes through the host")


def exact_products() -> None:
    """Eager multiplies float32 as float32: TF32 keeps ten bits of each factor."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def check(case: Case, device: str, numbers: dict[str, Any]) -> None:
    """Fills the numbers. Errors: CheckFailed; what a call raises."""
    torch.compiler.reset()
    eager, ours = case.build(device), case.build(device)
    expected = eager.drive(eager.target)
    backend = rust_ort.Backend()
    call = torch.compile(ours.target, backend=backend, fullgraph=True, dynamic=case.dynamic)
    before = counted_nodes()
    got = ours.drive(call)
    synchronize(device)
    after = counted_nodes()
    numbers["error"] = largest_error(expected, got)
    judge(expected, got, case.precision)
    on_ort, in_eager = (n - n_before for n, n_before in zip(after, before, strict=True))
    numbers["nodes"] = f"{on_ort} on ONNX Runtime{f', {in_eager} in eager' if in_eager else ''}"
    if not case.empty:
        all_on_onnxruntime(backend.graphs, on_ort, in_eager)
    if device == "cuda":
        hot(case, ours, call, numbers)


def compared(dtype: torch.dtype, device: str, numbers: dict[str, Any]) -> None:
    """A call that is compared with eager: every output judged, none of them through the host. Errors: CheckFailed."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to(
        device, dtype
    )
    x = torch.randn(256, 512, device=device, dtype=dtype)
    backend = rust_ort.backend(compare="outputs")
    call = torch.compile(model, backend=backend, fullgraph=True)
    call(x).sum().backward()
    synchronize(device)
    verdicts = [verdict for graph in backend.graphs for _, verdict in graph.verdicts]
    numbers["outputs"] = len(verdicts)
    if wrong := [verdict for verdict in verdicts if verdict.kind != "match"]:
        raise CheckFailed(f"{len(wrong)} of {len(verdicts)} outputs: {wrong[0]}")
    if not verdicts:
        raise CheckFailed("nothing was compared")
    if device == "cuda":
        before = copies.counted_by_executors()
        call(x).sum().backward()
        synchronize(device)
        after = copies.counted_by_executors()
        numbers["executor's"] = count = sum(after.values()) - sum(before.values())
        if count:
            raise CheckFailed(f"{count} bytes through the host in the executor")


def hot(case: Case, program: Program, call: Any, numbers: dict[str, Any]) -> None:
    """What goes through the host in a call that is compiled already. Errors: CheckFailed."""
    found = copies.through_host(lambda: program.drive(call))
    numbers |= found
    count = found["executor's"]
    if isinstance(count, int) and count and not case.scalar_on_host:
        raise CheckFailed(f"{count} bytes through the host in the executor")


def judge(expected: Sequence[Tensor], got: Sequence[Tensor], precision: torch.dtype) -> None:
    """Errors: CheckFailed that says which tensor."""
    for i, (reference, candidate) in enumerate(zip(expected, got, strict=True)):
        rtol = max(TOLERANCES[precision], TOLERANCES.get(reference.dtype, 0.0))
        largest = float(reference.detach().abs().max()) if reference.numel() else 0.0
        atol = max(1e-5, 2 * rtol * largest)
        try:
            torch.testing.assert_close(candidate, reference, rtol=rtol, atol=atol)
        except AssertionError as error:
            raise CheckFailed(f"tensor {i} of {len(expected)} differs from eager: {error}") from None


def largest_error(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """The largest max|candidate - reference| / max|reference| of those that have elements."""
    pairs = [(r.detach(), c.detach()) for r, c in zip(expected, got, strict=True) if r.numel() and r.shape == c.shape]
    return error_to([reference for reference, _ in pairs], [candidate for _, candidate in pairs])


def all_on_onnxruntime(graphs: Sequence[GraphInfo], on_ort: int, in_eager: int) -> None:
    """on_ort, in_eager: nodes that ran, by the executors' count. Errors: CheckFailed where eager ran any, or nobody ran
    some."""
    for graph in graphs:
        if graph.fallen_back:
            raise CheckFailed(f"{graph.name}: {graph.fallen_back}")
    if named := named_in_eager(graphs):
        raise CheckFailed(named)
    if not graphs:
        raise CheckFailed("no graph was compiled")
    if not on_ort or in_eager:
        raise CheckFailed(f"the executors counted {on_ort} nodes on ONNX Runtime and {in_eager} in eager")


def named_in_eager(graphs: Sequence[GraphInfo]) -> str:
    """The operators that ran in eager, how many of each, and why; "" for none."""
    found = Counter((node.op, node.reason) for graph in graphs for node in graph.eager)
    return "; ".join(f"{n} x {op} ran in eager: {reason}" for (op, reason), n in found.most_common())
