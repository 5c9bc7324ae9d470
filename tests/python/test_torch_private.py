"""The private names of torch: which are gone, that they are in two files alone, and what stands in for them."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import rust_ort
from rust_ort import ClientError, torch_private
from rust_ort.call import staging
from rust_ort.export import exporter
from rust_ort.options.operators import overload_of

PACKAGE = Path(rust_ort.__file__).parent
MEASURE = Path(__file__).resolve().parents[1] / "measure"
FENCES = {"torch_private.py", "export/exporter.py"}


def dotted(node: ast.AST) -> str | None:
    """`torch.a._b` of such an expression, None of another."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{before}.{node.attr}" if before is not None and isinstance(node, ast.Attribute) else None


def is_private(path: str) -> bool:
    """Whether a dotted name is torch's and not public: aten._x is an operator, __version__ is for all."""
    first, *steps = path.split(".")
    if first not in ("torch", "functorch") or steps[:1] == ["ops"]:
        return False
    hidden = any(step.startswith("_") and not step.startswith("__") for step in steps)
    return hidden or path.startswith("torch.fx.experimental")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every private name of torch that a source uses."""
    for node in ast.walk(tree):
        found: list[str | None] = []
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(dotted(node))
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "setattr", "hasattr"):
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant):
                found.append(f"{dotted(node.args[0])}.{attribute.value}")
        yield from ((node.lineno, name) for name in found if name is not None and is_private(name))


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in (PACKAGE, MEASURE):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder).as_posix(), ast.parse(path.read_text())


def test_no_private_name_is_used_elsewhere() -> None:
    used = [
        f"{name}:{line}: {private}"
        for name, tree in sources() if name not in FENCES
        for line, private in private_names(tree)
    ]  # fmt: skip
    assert used == []


@pytest.mark.parametrize(
    "text",
    [
        "torch._C._x()", "from torch import _guards", "import torch._dynamo", "from torch._dynamo.exc import Z",
        "from torch.utils import _pytree as pytree", 'getattr(torch._C, "y", None)', 'getattr(torch, "_x")',
        "from torch.fx.experimental.symbolic_shapes import a", "from functorch import _x",
    ],
)  # fmt: skip
def test_a_private_name_is_seen(text: str) -> None:
    assert list(private_names(ast.parse(text)))


@pytest.mark.parametrize("text", ["torch.ops.aten._softmax.default", "torch.__version__", "self._C", "import torch"])
def test_a_public_name_is_not_taken_for_a_private_one(text: str) -> None:
    assert not list(private_names(ast.parse(text)))


def is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


def test_no_private_name_is_gone_from_this_torch() -> None:
    """Red where torch dropped a name: the list says which, and the table what stands in until somebody looks."""
    gone = {}
    for path, stand_in in torch_private.USED.items():
        try:
            if not is_module(path):  # OpInfo's takes 20 s to import
                torch_private.find(path)
        except ClientError:
            gone[path] = stand_in or "nothing stands in: what needs it is an error"
    assert gone == {}, f"torch {torch.__version__}"


def test_the_exporter_has_what_is_used_of_it() -> None:
    tree = ast.parse((PACKAGE / "export/exporter.py").read_text())
    names = {name for _, name in private_names(tree)}
    assert len(names) > 10
    gone = []
    for name in sorted(names):
        try:
            torch_private.find(name)
        except ClientError:
            gone.append(name)
    assert gone == [], f"torch {torch.__version__}"
    exporter.private()


def test_what_is_found_is_in_the_table() -> None:
    """A name looked up but not listed would be missed by the test above, and one listed but not used is a lie."""
    tree = ast.parse((PACKAGE / "torch_private.py").read_text())
    asked = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("find", "find_or")
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    attributes = {"torch.ops.aten.add.Tensor._schema", "torch.autograd.forward_ad._current_level"}
    assert asked | attributes == set(torch_private.USED)


def test_a_name_that_is_gone_is_an_error_that_says_so() -> None:
    with pytest.raises(ClientError) as caught:
        torch_private.find("torch._guards.NoSuchThing.try_get")
    message = str(caught.value)
    assert f"torch {torch.__version__} has no torch._guards.NoSuchThing.try_get" in message
    assert f"pip install 'torch{torch_private.SUPPORTED}'" in message
    assert torch_private.find_or("torch._nowhere.at_all", 7) == 7


def test_the_range_is_the_one_that_the_package_declares() -> None:
    project = Path(__file__).parents[2] / "python_shim/pyproject.toml"
    assert f'"torch{torch_private.SUPPORTED}"' in project.read_text()


STRIDED = [((2, 3), (3, 1)), ((3, 2), (1, 3)), ((), ()), ((0, 4), (4, 1)), ((6,), (1,))]


@pytest.mark.parametrize(("shape", "stride"), STRIDED)
@pytest.mark.parametrize("way", [torch_private.reinterpret, torch_private.set_over])
def test_a_tensor_over_memory_is_no_view(way: Callable[..., torch.Tensor], shape: Any, stride: Any) -> None:
    memory = torch.arange(8.0)
    made = way(memory[1:], shape, stride)
    assert made.shape == shape and made.stride() == stride and made.storage_offset() == 1
    assert not made._is_view()
    assert made.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def test_reinterpret_is_given_plain_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    """From torch 2.15 on it refuses a torch.Size, which is a subclass."""
    seen = []

    def checked(tensor: torch.Tensor, shape: Any, stride: Any) -> torch.Tensor:
        seen.append(f"{type(shape).__name__}, {type(stride).__name__}")
        return torch_private.set_over(tensor, shape, stride)

    monkeypatch.setattr(staging, "reinterpret", checked)
    compiled = torch.compile(lambda x, y: (x.t() * 2, (x + y).expand(2, 3, 4), x.sum()), backend="rust_ort")
    x, y = torch.rand(3, 4), torch.rand(4)
    torch.testing.assert_close(compiled(x, y), (x.t() * 2, (x + y).expand(2, 3, 4), x.sum()))
    assert set(seen) == {"tuple, tuple"}


@pytest.mark.parametrize("way", [torch_private.is_functorch_wrapped, torch_private.has_no_storage])
def test_a_tensor_of_torch_func_is_told_by_either_way(way: Callable[[torch.Tensor], bool]) -> None:
    inside: list[bool] = []
    torch.func.vmap(lambda x: (inside.append(way(x)), x * 2)[1])(torch.rand(3))
    torch.func.grad(lambda x: (inside.append(way(x)), x.sum())[1])(torch.rand(3))
    assert inside == [True, True]
    assert not way(torch.rand(3)) and not way(torch.rand(3, requires_grad=True)[1:])


@pytest.mark.parametrize("way", [torch_private.autocast_off, torch_private.autocast_disabled])
def test_autocast_is_off_by_either_way(way: Callable[[], Any]) -> None:
    a = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.bfloat16
        with way():
            assert (a @ a).dtype is torch.float32
        assert (a @ a).dtype is torch.bfloat16


@pytest.mark.parametrize("way", [torch_private.foreach_copy, torch_private.copy_each])
def test_tensors_are_copied_by_either_way(way: Callable[..., Any]) -> None:
    targets, sources = [torch.zeros(2, 3), torch.zeros(4)], [torch.rand(3, 2).t(), torch.rand(4, dtype=torch.float64)]
    way(targets, sources)
    assert all(torch.equal(target, source.to(target.dtype)) for target, source in zip(targets, sources, strict=True))


def test_the_stand_in_for_the_fake_mode_finds_the_same() -> None:
    modes: list[tuple[Any, Any]] = []

    def compiler(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
        modes.append((torch_private.detect_fake_mode(values), torch_private.fake_mode_of(values)))
        return gm.forward

    torch.compile(lambda x: x + 1, backend=torch_private.aot_autograd(fw_compiler=compiler))(torch.rand(3))
    assert len(modes) == 1 and modes[0][0] is modes[0][1] is not None


IN_A_COMPILATION = (
    "torch._dynamo.convert_frame.compile_lock",
    "torch._guards.CompileContext",
    "torch._guards.detect_fake_mode",
    "torch.fx._lazy_graph_module._make_graph_module",
    "torch.fx._lazy_graph_module._use_lazy_graph_module",
)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Takes a name away, and returns the list to which it is added whenever it is asked for."""
    real = torch_private.find

    def take(path: str) -> list[str]:
        missed: list[str] = []

        def found(asked: str) -> Any:
            if asked == path:
                missed.append(asked)
                raise torch_private.gone(asked)
            return real(asked)

        monkeypatch.setattr(torch_private, "find", found)
        torch.compiler.reset()
        return missed

    return take


@pytest.mark.parametrize("path", IN_A_COMPILATION)
def test_a_function_compiles_with_the_stand_in(path: str, without: Callable[[str], list[str]]) -> None:
    missed = without(path)
    x = torch.rand(3, 4, requires_grad=True)
    compiled = torch.compile(lambda x: (torch.sin(x) * 2).sum(), backend="rust_ort")
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x.detach()))
    assert missed


def test_an_error_is_still_told_where_dynamo_wraps_it(without: Callable[[str], list[str]]) -> None:
    missed = without("torch._dynamo.exc.ShortenTraceback")
    compiled = torch.compile(torch.relu, backend=rust_ort.backend(on_unsupported="error", transforms=[lambda _: 3]))
    with pytest.raises(Exception, match="expected a ModelProto, or None"):
        compiled(torch.rand(3))
    assert missed


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("torch._C._dispatch_get_all_op_names", "aten::no_such", "no operator aten::no_such is registered"),
        ("torch._C._dispatch_has_kernel", "aten::gelu", None),
        ("torch._C._dispatch_has_kernel_for_dispatch_key", "aten::gelu", "has no torch._C._dispatch_has_kernel_for"),
    ],
)
def test_operators_are_named_with_the_stand_in(
    path: str, name: str, message: str | None, without: Callable[[str], list[str]]
) -> None:
    missed = without(path)
    if message is None:
        assert overload_of("custom_translations", name) is torch.ops.aten.gelu.default
    else:
        with pytest.raises(ClientError, match=message):
            overload_of("custom_translations", name)
    assert missed
