"""What a comparison allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rust_ort.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Inside means |candidate - reference| <= atol + rtol * |reference| + scale * max|reference|."""

    atol: float = 0.0
    rtol: float = 0.0
    scale: float = 0.0
    equal_nan: bool = True

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
                raise OptionError(f"tolerance {name}: expected a finite number >= 0, got {value!r}")
        if not isinstance(self.equal_nan, bool):
            raise OptionError(f"tolerance equal_nan: expected True or False, got {self.equal_nan!r}")
