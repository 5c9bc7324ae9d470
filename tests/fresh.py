"""What a new user gets today: `pip install ./python_shim` into an empty environment, the guide's programs, some tests.

pip resolves what the day offers, so a dependency's new release that breaks the package is seen here: the output names
what is newer than the versions that development is pinned to. A step of `make test`, whose build begins it: with
`--ahead` pip installs what the package declares into the environment, while cargo builds the package.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
import tomllib
from pathlib import Path

from environments import PROJECT, ROOT, SHOWN, TEST_ONLY, Counts, Environment, InstallFailed, tested

TESTS = ("test_entry.py", "test_torch_private.py", "test_threads.py", "test_opset.py")
"""What a newer torch or onnxscript breaks first: names that are private, translations. README's program has a fault
planted and found."""
LOGS = ROOT / "build/fresh-logs"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


def programs() -> list[tuple[str, str]]:
    """(page and number, program) of each Python block of README and guide."""
    return [
        (f"{page.stem}-{number}", block)
        for page in PAGES
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
    ]


def run_blocks(environment: Environment, folder: Path) -> Counts:
    """Each block in a process of its own, in an empty folder."""
    made = Counts()
    for name, block in programs():
        here = folder / name
        here.mkdir(parents=True)
        (here / "block.py").write_text(block)
        log = LOGS / f"{name}.log"
        code = environment.run("block.py", cwd=here, log=log)
        if code == 0:
            made.passed += 1
        else:
            made.failed += 1
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            made.failures[name] = f"exit code {code}: {' '.join(last)}"
    if not made.passed and not made.failed:
        made.failed, made.failures = 1, {"README": "no page has a Python block"}
    return made


def other_than_tested(installed: dict[str, str]) -> list[str]:
    """`torch 2.15.0 (tested with 2.13.0)` of each dependency that is not at the pinned version."""
    pinned = tested()
    return [
        f"{name} {installed[name]} (tested with {pinned[name]})" for name in SHOWN if installed[name] != pinned[name]
    ]


def ahead(environment: Environment) -> None:
    """An empty environment with what pip resolves for what the package declares."""
    shutil.rmtree(environment.folder, ignore_errors=True)
    environment.make()
    environment.install(*tomllib.loads(PROJECT.read_text())["project"]["dependencies"])


def check(environment: Environment, scratch: Path) -> Counts:
    """Installs, prints what was resolved, runs blocks and tests. Errors: InstallFailed."""
    begin = time.monotonic()
    try:
        environment.install("./python_shim")
    except InstallFailed as error:
        # A download of gigabytes that breaks off says nothing of the package, which would fail the second time, too.
        print(f"    installed at the second try; the first: {error}", flush=True)
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.make()
        environment.install("./python_shim")
    installed = environment.versions()
    print(f"    installed in {time.monotonic() - begin:.0f} s: " + ", ".join(f"{n} {installed[n]}" for n in SHOWN))
    begin = time.monotonic()
    made = run_blocks(environment, scratch)
    print(f"    programs of README and guide: {made}; {time.monotonic() - begin:.0f} s", flush=True)
    begin = time.monotonic()
    pins = tested()
    environment.install(*(f"{name}=={pins[name]}" for name in TEST_ONLY), versions=installed)
    tests = environment.tests([str(ROOT / "tests/python" / name) for name in TESTS], log=LOGS / "tests.log")
    print(f"    tests: {tests}; {time.monotonic() - begin:.0f} s", flush=True)
    made.passed += tests.passed
    made.failed += tests.failed
    made.skipped += tests.skipped
    made.failures.update(tests.failures)
    if made.failed:
        print("    other than the versions that are tested: " + (", ".join(other_than_tested(installed)) or "none"))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build/fresh-venv", help="made anew, or by --ahead, removed at the end"
    )
    parser.add_argument("--counts", type=Path, default=ROOT / "build/fresh-counts", help="where the counts line goes")
    parser.add_argument("--ahead", action="store_true", help="make the environment alone, but for the package")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    environment = Environment(folder=folder / "venv")
    made_ahead = folder / "ahead"  # for which dependencies; written once the environment is whole, and taken once
    if arguments.ahead:
        made_ahead.unlink(missing_ok=True)
        ahead(environment)
        made_ahead.write_bytes(PROJECT.read_bytes())
        return 0
    arguments.counts.unlink(missing_ok=True)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    if not made_ahead.exists() or made_ahead.read_bytes() != PROJECT.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
    made_ahead.unlink(missing_ok=True)
    try:
        environment.make()
        made = check(environment, folder / "readme")
    except InstallFailed as error:
        made = Counts(failed=1, failures={"pip install ./python_shim": str(error)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for test, said in made.failures.items():
        print(f"    FAILED {test}: {said}")
    # In one line each, so that the last lines of a run tell why.
    failures = "".join(f"    FAILED {test}: {' '.join(said.split())[-300:]}\n" for test, said in made.failures.items())
    arguments.counts.write_text(f"Fresh install: {made}\n{failures}")
    return 1 if made.failed else 0


if __name__ == "__main__":
    sys.exit(main())
