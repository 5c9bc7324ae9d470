"""The three ways to name the backend."""

import copy
import pickle
import sys

import pytest
import torch
import warm

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")


def check(backend: object) -> None:
    model = torch.nn.Linear(5, 3)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 5)
    torch.testing.assert_close(compiled(x), model(x))
    twin = copy.deepcopy(compiled)
    torch.testing.assert_close(twin(x), model(x))
    with torch.no_grad():
        next(twin.parameters()).add_(1.0)
    assert not torch.allclose(twin(x), compiled(x))


def test_by_name_without_an_import() -> None:
    script = (
        "import sys, torch\n"
        "assert 'rust_ort' not in sys.modules\n"
        "m = torch.nn.Linear(5, 3)\n"
        "x = torch.randn(2, 5)\n"
        "torch.testing.assert_close(torch.compile(m, backend='rust_ort')(x), m(x))\n"
        "assert 'rust_ort' in torch._dynamo.list_backends()\n"
    )
    warm.run([sys.executable, "-c", script], check=True)


def test_by_name() -> None:
    check("rust_ort")


def test_by_module() -> None:
    check(rust_ort)
    assert copy.deepcopy(rust_ort) is rust_ort
    assert pickle.loads(pickle.dumps(rust_ort)) is rust_ort


def test_by_object() -> None:
    backend = rust_ort.backend(ort_optimization="basic")
    check(backend)
    assert copy.deepcopy(backend) == backend
    assert pickle.loads(pickle.dumps(backend)).options == backend.options


def test_the_same_graph_compiled_again_meets_its_session(daemon) -> None:
    def sessions() -> tuple[int, int]:
        counters = daemon.client().status()["counters"]
        return counters["sessions_built"], counters["session_hits"]

    x = torch.randn(2, 5)
    with torch.no_grad():
        torch.compile(torch.nn.Linear(5, 3), backend="rust_ort")(x)
        assert sessions() == (1, 0)
        torch._dynamo.reset()
        torch.compile(torch.nn.Linear(5, 3), backend="rust_ort")(x)
        assert sessions() == (1, 1)
