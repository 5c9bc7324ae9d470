"""Numbers for people: the rule of `src/compare/digits.rs`, so that both languages print the same.

In a sentence a number stands as people write it (`significant`), in a column of distances it is scientific
(`distance_text`). tests/golden/numbers.json holds both languages to it.
"""

from __future__ import annotations

import math


def significant(value: float, digits: int) -> str:
    """At most so many significant digits, scientific below 1e-4 and where the digits do not reach the unit:
    `significant(-2.812594175338745e-7, 4)` is "-2.813e-7", `significant(0.25, 4)` is "0.25"."""
    return _written(f"{value:.{digits}g}")


def few(value: float) -> str:
    """A distance or a tolerance, in a sentence: four digits."""
    return significant(value, 4)


def distance_text(value: float) -> str:
    """A distance or an error, for a column of them: three digits, always scientific; "0" where there is none."""
    return "0" if value == 0 else _written(f"{abs(value) if math.isinf(value) else value:.2e}")


def _written(text: str) -> str:
    """As Rust writes it: "e-7" for "e-07", "e4" for "e+04", "NaN" for "nan"."""
    mantissa, exponent = text.partition("e")[::2]
    return f"{mantissa}e{int(exponent)}" if exponent else text.replace("nan", "NaN")
