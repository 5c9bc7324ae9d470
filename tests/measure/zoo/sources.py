"""What a model's source names."""

from __future__ import annotations

import importlib
from typing import Any


def made_by(source: str) -> Any:
    """The class or factory of a dotted path. A package may have a module of the same name as a factory in it, such as
    torchvision.models.alexnet: the package's attribute is meant."""
    package, _, name = source.rpartition(".")
    return getattr(importlib.import_module(package), name)
