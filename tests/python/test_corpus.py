"""Programs that once failed, found by `make random-graphs` and made small: each is right now, or said to be open.

An open one may be right on another machine. Which zero a sum of zeros is depends on the kernel: that is no fault.
`make random-graphs ARGS="--corpus tests/python/corpus.json"` judges them again and writes into the file which are open.
"""

from pathlib import Path

import pytest

from measure.random_graphs.check import FINE, eagerly, examine
from measure.random_graphs.corpus import Case, entry, read, write

PATH = Path(__file__).parent / "corpus.json"
CASES = read(PATH)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.xfail(reason=case.still_open) if case.still_open else ())
        for case in CASES
    ],
)
def test_what_once_failed_is_right(case: Case) -> None:
    outcome = examine(case.text, eagerly(case.text), seed=-1)
    assert outcome.kind in FINE, f"{outcome.kind}: {outcome.why}\n{case.text.script()}"


def test_the_file_is_written_and_read_alike(tmp_path: Path) -> None:
    write(tmp_path / "corpus.json", CASES)
    assert (tmp_path / "corpus.json").read_text() == PATH.read_text()
    assert [entry(case.text) for case in read(tmp_path / "corpus.json")] == [entry(case.text) for case in CASES]
    assert len({case.name for case in CASES}) == len(CASES)
