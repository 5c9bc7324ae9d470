"""An in-process stand-in for the client: parts run by the Python onnxruntime, judged with numpy.

It shares nothing with the daemon, which makes it an oracle for the export: what it gets wrong, the export got wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rust_ort.call.client import Client
from rust_ort.errors import ClientError
from rust_ort.link import wire
from rust_ort.link.specs import BY_DTYPE, Policy, Verdict
from rust_ort.tables import WRONG_OPTIMIZERS

KNOWN_WRONG_IN = "1.31.1"
"""The onnxruntime whose faults tests show. With it alone, one that a machine does not show is a skip."""

_TORCH_PROGRAMS = (
    Path(os.environ.get("RUST_ORT_TORCH_BINARY") or "/nonexistent"),
    Path(__file__).resolve().parents[2] / "target/release/rust-ort-torch",
)
TORCH_PROGRAM = next((place for place in _TORCH_PROGRAMS if place.is_file()), None)
needs_libtorch = pytest.mark.skipif(
    TORCH_PROGRAM is None, reason="no rust-ort-torch: `make test-torch` makes it and runs this"
)

_get = Client.get  # use_client replaces the attribute


class FakePart:
    """Runs one part in this process."""

    def __init__(self, client: FakeClient, spec: Any) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.client = client
        self.spec = spec
        self.prepared = wire.Reply().prepared
        try:
            self.session = onnxruntime.InferenceSession(
                spec.model, options, providers=["CPUExecutionProvider"], disabled_optimizers=client.disabled_optimizers
            )
        except Exception as error:  # onnxruntime has one class an error code, with no base of its own
            raise ClientError(str(error), code="BAD_MODEL", graph=spec.graph.name) from error
        self.calls = 0
        self.prepared_again = 0

    def __call__(self, inputs: Sequence[Any], *, eager_nodes: int = 0) -> list[torch.Tensor]:
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

        self.calls += 1
        self.client.eager_nodes += eager_nodes
        self.client.fail_if_asked()
        feeds = {}
        for name, value in zip(self.spec.input_names, inputs, strict=True):
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
            value = value.detach().contiguous()
            is_bool = value.dtype is torch.bool
            value = value.view(torch.uint8) if is_bool else value
            feeds[name] = OrtValue.from_dlpack(value.__dlpack__(), is_bool)
        fetched = self.session._sess.run_with_ort_values(feeds, self.spec.output_names, None)
        specs = self.spec.outputs(inputs) if callable(self.spec.outputs) else self.spec.outputs
        return [self._adopt(value, spec) for value, spec in zip(fetched, specs, strict=True)]

    def prepare(self, *, again: bool = False) -> None:
        self.prepared_again += again

    def check(self, inputs: Sequence[Any]) -> None:
        """What cannot be sent fails in the call."""

    def _adopt(self, value: Any, spec: Any) -> torch.Tensor:
        tensor = torch.from_dlpack(value.to_dlpack()) if spec.shape.count(0) == 0 else None
        if tensor is None:
            tensor = torch.empty(tuple(value.shape()), dtype=spec.dtype)
        if spec.dtype is torch.bool:
            tensor = tensor.view(torch.bool)
        assert tensor.dtype is spec.dtype, f"{spec}: got {tensor.dtype}"
        assert tuple(tensor.shape) == spec.shape, f"{spec}: got {tuple(tensor.shape)}"
        tensor = tensor.clone()
        if spec.stride is None:
            return tensor
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).copy_(tensor)

    def observed(
        self, inputs: Sequence[Any], *, step: int, dump: bool, references: list[torch.Tensor] | None, policy: Any,
        eager_nodes: int = 0,
    ) -> tuple[list[torch.Tensor], list[Any], str]:  # fmt: skip
        outputs = self(inputs, eager_nodes=eager_nodes)
        if dump:
            self.client.data_sets.append((self.spec.graph.name, self.spec.part, step))
        verdicts = []
        if references is not None:
            pairs = [
                (name, reference, candidate, "")
                for name, reference, candidate in zip(self.spec.output_names, references, outputs, strict=True)
            ]
            verdicts = self.client.compare(pairs, policy)
        return outputs, verdicts, ""


class FakeClient:
    """What rust_ort.call.client.Client does, in this process."""

    def __init__(self) -> None:
        self.parts: list[FakePart] = []
        self.eager_nodes = 0
        self.eager_graphs: list[str] = []
        self.data_sets: list[tuple[str, int, int]] = []
        self.dumps: list[str] = []
        self.plans: dict[str, bytes] = {}
        self.disabled_optimizers = list(WRONG_OPTIMIZERS)
        self.fail: Callable[[], None] | None = None

    def fail_if_asked(self) -> None:
        if self.fail is not None:
            self.fail()

    def build(self) -> str:
        return "in this process"

    def part(self, spec: Any, options: Any) -> FakePart:
        self.parts.append(FakePart(self, spec))
        return self.parts[-1]

    def plan(self, key: str) -> bytes | None:
        return self.plans.get(key)

    def put_plan(self, key: str, plan: bytes) -> None:
        self.plans[key] = plan

    def report_eager(self, graph_id: str, n: int) -> None:
        self.eager_nodes += n
        self.eager_graphs.append(graph_id)

    def compare(self, pairs: Sequence[tuple[str, Any, Any, str]], policy: Policy = BY_DTYPE, **known: Any) -> list[Any]:
        return [self._judge(*pair, policy) for pair in pairs]

    def _judge(self, name: str, reference: Any, candidate: Any, not_compared: str, policy: Policy) -> Any:
        if not_compared:
            return _verdict(name, "not_compared", not_compared)
        if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
            return _verdict(name, "mismatch", "shape or dtype")
        if reference.numel() == 0:
            return _verdict(name, "not_compared", "no elements")
        r, c = reference.detach().double(), candidate.detach().double()
        half = policy.through is not None or reference.dtype in (torch.float16, torch.bfloat16)
        atol, rtol, scale = (0.0, 1e-2, 1e-2) if half else (1e-6, 1e-4, 1e-4)
        if policy.given is not None:
            atol, rtol, scale = policy.given.atol, policy.given.rtol, policy.given.scale
        error = (c - r).abs()
        bound = atol + rtol * r.abs() + scale * r.abs().max()
        outside = int((~(error <= bound) & ~((r == c) | (r.isnan() & c.isnan()))).sum())
        worst = float(error.nan_to_num(0).max())
        return Verdict(
            name=name,
            kind="mismatch" if outside else "match",
            reason=f"{outside} outside" if outside else "",
            metrics=None,
            max_abs=worst,
            max_rel_to_max=worst / max(float(r.abs().max()), 1e-30),
            outside=outside,
        )

    def open_dump(self, *args: Any, **kwargs: Any) -> str:
        self.dumps.append(str(kwargs.get("run") or args))
        return f"/dev/null/{kwargs.get('run')}"

    def close_dump(self) -> None:
        self.dumps.append("closed")

    def flush_dump(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"counters": {"nodes_in_eager": self.eager_nodes}}

    def register(self, graph: Any) -> None:
        pass


def use_client(monkeypatch: pytest.MonkeyPatch, client: FakeClient | DaemonClient) -> None:
    """Every graph that is compiled from now on has this client."""
    of = client.of if isinstance(client, DaemonClient) else lambda options: client
    monkeypatch.setattr(Client, "get", staticmethod(of))


def together(functions: Mapping[str, Callable[..., Any]]) -> Callable[[Mapping[str, Sequence[Any]]], dict[str, Any]]:
    """All of them as one, {name: arguments} → {name: result}: compiled they are one graph, and what is wrong has its
    name in the message of `torch.testing.assert_close`."""

    def every(given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        return {name: function(*given[name]) for name, function in functions.items()}

    return every


def _verdict(name: str, kind: str, reason: str) -> Verdict:
    return Verdict(name=name, kind=kind, reason=reason, metrics=None, max_abs=0.0, max_rel_to_max=0.0, outside=0)


class DaemonClient:
    """The real client, with what the tests read off the stand-in."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def of(self, options: Any) -> Any:
        return _Watched(_get(options), self)


class _Watched:
    def __init__(self, client: Any, watcher: DaemonClient) -> None:
        self._client = client
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def part(self, spec: Any, options: Any) -> Any:
        self._watcher.parts.append(self._client.part(spec, options))
        return self._watcher.parts[-1]


def binary() -> str | None:
    """The rust-ort program under test."""
    return os.environ.get("RUST_ORT_BINARY") or shutil.which("rust-ort")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """A daemon of its own for this process, started by the first use and stopped at the end."""
    socket = folder / "v1.sock"
    kept = {name: os.environ.get(name) for name in ("RUST_ORT_SOCKET", "RUST_ORT_STATE_DIR")}
    os.environ.update(RUST_ORT_SOCKET=str(socket), RUST_ORT_STATE_DIR=str(folder))
    try:
        yield
    finally:
        program = binary()
        assert program is not None
        subprocess.run([program, "stop", "--force"], check=False, capture_output=True)
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
