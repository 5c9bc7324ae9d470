"""Text for people: JSON in a fraction of json's time, and what others say in one line."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any


def indented(value: Any) -> str:
    """`json.dumps(value, indent=1)`, for which json does without its encoder in C. value: dicts with keys that are
    strings, lists, strings, numbers, bools and None."""
    return _indented(value, "\n")


def _indented(value: Any, margin: str) -> str:
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is int:
        return str(value)
    inner = margin + " "
    if kind is dict:
        if not value:
            return "{}"
        if not all(type(key) is str for key in value):
            return json.dumps(value, indent=1).replace("\n", margin)
        items = [f"{quoted(key)}: {_indented(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"
    if kind is list or kind is tuple:
        if not value:
            return "[]"
        items = [_indented(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{margin}]"
    return json.dumps(value, indent=1).replace("\n", margin)


def one_line(said: str) -> str:
    """The first line of it that says something: what torch or ONNX Runtime goes on with is a trace."""
    return next((line.strip() for line in said.splitlines() if line.strip()), "")
