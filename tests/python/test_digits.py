"""Numbers for people: Python and Rust print the same."""

import json
from pathlib import Path

import pytest

from rust_ort.observe.digits import distance_text, few, significant

GOLDEN = Path(__file__).parents[1] / "golden" / "numbers.json"


@pytest.mark.parametrize("row", json.loads(GOLDEN.read_text()), ids=lambda row: f"{row['value']}-{row['digits']}")
def test_the_golden_numbers_are_told_as_in_rust(row: dict[str, str]) -> None:
    value = float(row["value"])
    assert significant(value, int(row["digits"])) == row["significant"]
    assert distance_text(value) == row["distance"]


def test_a_sentence_has_numbers_as_people_write_them() -> None:
    assert [few(value) for value in (1e-6, 0.03125, 1.6243, 12345.0)] == ["1e-6", "0.03125", "1.624", "1.234e4"]
