"""The rooms of the Python package: who may use whom. The twin of tests/layering.rs.

docs/design/architecture.md draws them. Run with -s it prints the rooms with their floors and every circle.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rust_ort"
FOLDER = ROOT / "python_shim" / PACKAGE
MEASURE = ROOT / "tests" / "measure"

ROOMS: dict[str, tuple[str, ...]] = {
    "native": ("_native",),
    "base": ("errors", "progress", "_callable", "_version", "_built", "tables"),
    "torch_private": ("torch_private",),
    "options": ("options",),
    "memory": ("memory",),
    "link": ("link",),
    "call": ("call",),
    "export": ("export",),
    "observe": ("observe",),
    "runtime": ("runtime",),
    "public": ("align", "backend", "compare", "blame", "keep", "explain", "dump", "report", "to_onnx", "service", ""),
    "onnx_tools": ("onnx_tools",),
    "studies": ("studies",),
}
"""{room: its files and folders}, "" being `__init__.py`. A room uses rooms further up this list, and itself."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""{(file, what it uses): why}: arrows that go up all the same."""

LATE: dict[tuple[str, str], str] = {
    ("rust_ort.backend", "rust_ort.runtime.compilation"): "importing rust_ort connects nothing and loads no compiler",
    ("rust_ort.studies.gpu_check", "rust_ort.torch_private"): "it begins with machines that have no torch",
    ("rust_ort.studies.gpu_check", "rust_ort.studies.gpu.libraries"): "it begins with machines that have no torch",
    ("rust_ort.studies.gpu_check", "rust_ort.studies.gpu.page"): "it begins with machines that have no torch",
    ("rust_ort.studies.gpu_check", "rust_ort.studies.gpu.record"): "it begins with machines that have no torch",
    ("rust_ort.studies.gpu_check", "rust_ort.studies.gpu.runner"): "it begins with machines that have no torch",
    ("rust_ort.studies.gpu_check", "rust_ort.studies.gpu.steps"): "it begins with machines that have no torch",
}
"""{(file, what it uses): why not at its top}: imports inside functions. They obey the order of rooms like all others.
What others wrote is free, as onnx and onnxscript, which only an export loads."""

NATIVE = f"{PACKAGE}._native"
NATIVE_USERS = ("options", "memory", "link", "call", "_built", "tables")
"""The native module, and the files and folders that may use it."""

LISTED = {f"{PACKAGE}.export.rules": f"{PACKAGE}.export.rules."}
"""{file: beginning of the names that it imports from a list}."""


@dataclass(frozen=True, kw_only=True, order=True)
class Use:
    """A file that imports another. late: inside a function."""

    file: str
    used: str
    line: int
    late: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} uses {self.used}"


def modules(folder: Path) -> dict[str, str]:
    """{dotted name: source} of a package; of a native module it is the stub."""
    found = {}
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.pyi"))):
        steps = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(steps[:-1] if steps[-1] == "__init__" else steps)] = path.read_text()
    return found


def uses(sources: Mapping[str, str], packages: Iterable[str]) -> list[Use]:
    """Every import of one of `sources` by another, also for type checkers alone. packages: which of them are folders,
    whose relative imports begin at themselves."""
    folders = set(packages)
    found = set()
    for name, text in sources.items():
        for node, late in imports(ast.parse(text)):
            for used in targets(node, name if name in folders else name.rpartition(".")[0]):
                known = used if used in sources else used.rpartition(".")[0]
                if known in sources and known != name:
                    found.add(Use(file=name, used=known, line=node.lineno, late=late))
        begin = LISTED.get(name)
        found |= {Use(file=name, used=m, line=1, late=False) for m in sources if begin and m.startswith(begin)}
    return sorted(found)


def imports(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import statement, and whether it stands in a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, late
        yield from imports(node, late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def targets(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Dotted names that a statement in a file of `package` names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    steps = package.split(".")
    begin = steps[: len(steps) - node.level + 1] if node.level else []
    base = ".".join([*begin, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def room_of(module: str) -> str | None:
    first = module.split(".")[1] if "." in module else ""
    return next((room for room, entries in ROOMS.items() if first in entries), None)


def upward(found: Iterable[Use], exceptions: Mapping[tuple[str, str], str] = EXCEPTIONS) -> list[str]:
    """What uses a room that stands after its own in the list, or stands in no room."""
    order = list(ROOMS)
    wrong = []
    for use in found:
        own, other = room_of(use.file), room_of(use.used)
        if own is None or other is None:
            wrong.append(f"{use}: {use.file if own is None else use.used} is in no room: add it to ROOMS")
        elif order.index(other) > order.index(own) and (use.file, use.used) not in exceptions:
            wrong.append(f"{use}: {own} may not use {other}, which stands after it")
    return wrong


def circles(needs: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups whose members need each other, directly or through others (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in needs.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in needs:
        if node not in number:
            visit(node)
    return sorted(found)


def unfit_for_native(found: Iterable[Use]) -> list[str]:
    """Uses of the native module by files that may not."""
    return [str(use) for use in found if use.used == NATIVE and f"{use.file}.".split(".")[1] not in NATIVE_USERS]


def needs_of(found: Iterable[Use]) -> dict[str, list[str]]:
    needs: dict[str, list[str]] = {}
    for use in found:
        needs.setdefault(use.file, []).append(use.used)
    return needs


def floors(found: Iterable[Use]) -> dict[str, int]:
    """{room: its floor}: 0 for one that uses no other, else one above the highest that it uses."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for use in found:
        own, other = room_of(use.file), room_of(use.used)
        if own is not None and other is not None and own != other:
            used[own].add(other)
    floor: dict[str, int] = {}
    for room in ROOMS:
        floor[room] = 1 + max((floor[other] for other in used[room] if other in floor), default=-1)
    return floor


def packages_of(folder: Path) -> set[str]:
    return {".".join(path.parent.relative_to(folder.parent).parts) for path in folder.rglob("__init__.py")}


@functools.cache
def of_package() -> list[Use]:
    return uses(modules(FOLDER), packages_of(FOLDER))


def test_a_room_uses_rooms_further_up_the_list_only() -> None:
    found = of_package()
    floor = floors(found)
    for room, entries in ROOMS.items():
        needed = {room_of(use.used) for use in found if room_of(use.file) == room} - {room}
        print(f"floor {floor[room]}  {room:<13}", ", ".join(name for name in ROOMS if name in needed) or "-")
        assert entries
    assert upward(found) == []


def test_no_two_files_need_each_other() -> None:
    found = circles(needs_of(of_package()))
    print("circles:", found or "none")
    assert found == []


def test_what_is_imported_inside_a_function_says_why() -> None:
    late = {(use.file, use.used) for use in of_package() if use.late}
    assert {pair: "no reason in LATE" for pair in late if pair not in LATE} == {}


def test_the_native_module_is_used_by_the_rooms_of_a_call_alone() -> None:
    assert unfit_for_native(of_package()) == []
    assert (f"{PACKAGE}._built", NATIVE) in {(use.file, use.used) for use in of_package()}


def test_every_exception_is_needed() -> None:
    found = of_package()
    assert set(EXCEPTIONS) <= {(use.file, use.used) for use in found}
    assert set(LATE) <= {(use.file, use.used) for use in found if use.late}
    assert all(map(str.strip, (*EXCEPTIONS.values(), *LATE.values())))


def test_every_file_is_in_a_room_and_every_room_has_files() -> None:
    names = modules(FOLDER)
    assert [name for name in names if room_of(name) is None] == []
    assert {room_of(name) for name in names} == set(ROOMS)


def test_the_measuring_tools_have_no_circle_and_nothing_installed_uses_them() -> None:
    sources = modules(FOLDER) | modules(MEASURE)
    found = uses(sources, packages_of(FOLDER) | packages_of(MEASURE))
    assert any(use.file.startswith("measure.") and use.used.startswith(PACKAGE) for use in found)
    assert circles(needs_of(found)) == []
    assert [str(use) for use in found if use.file.startswith(PACKAGE) and use.used.startswith("measure")] == []


def test_the_picture_in_the_docs_is_this_one() -> None:
    text = (ROOT / "docs" / "design" / "architecture.md").read_text().split("## Python: ")[1]
    rows = re.findall(r"^\| (`[^|]*) \|", text.split("## The walk")[0], re.MULTILINE)
    drawn = [tuple(re.findall(r"`(\w+)(?:\.pyi?|/)`", row)) for row in rows]
    assert drawn == [tuple(name or "__init__" for name in entries) for entries in ROOMS.values()]
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {
        "__init__.py",
        "tests/python/test_layering.py",
        "python_shim/build_backend.py",
    }
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py")}
    assert {name for name in named if name not in files and f"export/{name}" not in files} == set()


def planted(**texts: str) -> list[Use]:
    """Uses among sources named like files of the package: `link__wire="import ..."` is rust_ort/link/wire.py."""
    sources = {f"{PACKAGE}.{name.replace('__', '.')}": text for name, text in texts.items()}
    return uses(sources, ())


@pytest.mark.parametrize(
    "text",
    [
        "from rust_ort.call.part import Part",
        "from rust_ort.call import part",
        "import rust_ort.call.part",
        "from ..call.part import Part",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rust_ort.call.part import Part",
        "def later():\n    from rust_ort.call.part import Part",
        "class A:\n    def later(self):\n        if self:\n            from rust_ort.call import part as p",
    ],
)
def test_an_arrow_upward_is_seen(text: str) -> None:
    found = planted(link__wire=text, call__part="")
    assert len(upward(found)) == 1
    assert "link may not use call" in upward(found)[0]
    assert upward(found, {("rust_ort.link.wire", "rust_ort.call.part"): "a test"}) == []
    assert upward(planted(link__wire="", call__part="from rust_ort.link import wire")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from rust_ort import _native",
        "from rust_ort._native import VERSION",
        "import rust_ort._native",
        "from .. import _native",
        "def later():\n    from .._native import VERSION",
    ],
)
def test_a_use_of_the_native_module_by_another_room_is_seen(text: str) -> None:
    line = 1 + text.count("\n")
    assert unfit_for_native(planted(_native="", call__part=text)) == []
    assert unfit_for_native(planted(_native="", runtime__fast_path=text)) == [
        f"rust_ort.runtime.fast_path:{line} uses rust_ort._native"
    ]


def test_a_file_in_no_room_is_seen() -> None:
    assert "is in no room" in upward(planted(attic="", errors="from rust_ort.attic import chest"))[0]


def test_a_circle_is_seen_within_a_room_and_through_others() -> None:
    two = planted(
        link__wire="from rust_ort.link import lanes", link__lanes="def f():\n  from rust_ort.link import wire"
    )
    assert upward(two) == []
    assert circles(needs_of(two)) == [["rust_ort.link.lanes", "rust_ort.link.wire"]]
    three = planted(
        backend="from rust_ort.compare import a", compare="import rust_ort.dump", dump="from .backend import b"
    )
    assert circles(needs_of(three)) == [["rust_ort.backend", "rust_ort.compare", "rust_ort.dump"]]
    none = planted(backend="import rust_ort.compare", compare="import rust_ort.dump", dump="import torch")
    assert circles(needs_of(none)) == []


def test_a_late_import_is_told_from_one_at_the_top() -> None:
    found = planted(backend="from rust_ort.errors import E\ndef f():\n  from rust_ort.compare import c", compare="",
                    errors="")  # fmt: skip
    assert [(use.used, use.late) for use in found] == [("rust_ort.compare", True), ("rust_ort.errors", False)]
    assert [(use.used, use.late) for use in planted(backend="def f():\n  import onnx")] == []


def test_a_floor_is_one_above_the_highest_that_is_used() -> None:
    found = planted(errors="", link__wire="from rust_ort.errors import E", call__part="from rust_ort.link import wire")
    assert [floors(found)[room] for room in ("base", "link", "call", "export")] == [0, 1, 2, 0]
