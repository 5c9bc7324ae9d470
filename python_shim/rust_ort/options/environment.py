"""Options from the environment: the text of RUST_ORT_<NAME> becomes a value as it might have been given."""

from __future__ import annotations

import importlib
import json
from typing import Any

from rust_ort.options.checks import bad

ENV_PREFIX = "RUST_ORT_"


def plain(name: str, text: str) -> Any:
    return text


def flag(name: str, text: str) -> Any:
    flags = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in flags:
        raise bad(name, "1 or 0", text)
    return flags[text.lower()]


def flag_or_auto(name: str, text: str) -> Any:
    return "auto" if text.lower() == "auto" else flag(name, text)


def integer(name: str, text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        raise bad(name, "an integer", text) from None


def real(name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        raise bad(name, "a number", text) from None


def names(name: str, text: str) -> Any:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def pairs(name: str, text: str) -> Any:
    """JSON, or key=value,key=value."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise bad(name, f"JSON ({error})", text) from None
    found = {}
    for entry in names(name, text):
        key, equals, value = entry.partition("=")
        if not equals:
            raise bad(name, "key=value,key=value", text)
        found[key.strip()] = value.strip()
    return found


def rules(name: str, text: str) -> Any:
    """JSON, or key=pattern,pattern;key=pattern."""
    if text.lstrip().startswith("{"):
        return pairs(name, text)
    found: dict[str, list[str]] = {}
    for entry in filter(str.strip, text.split(";")):
        key, equals, patterns = entry.partition("=")
        if not equals:
            raise bad(name, "key=pattern,pattern;key=pattern", text)
        found[key.strip()] = names(name, patterns)
    return found


def tolerance(name: str, text: str) -> Any:
    kept: dict[str, Any] = {}
    for key, value in pairs(name, text).items():
        if key == "equal_nan":
            kept[key] = value if isinstance(value, bool) else flag(name, value)
            continue
        try:
            kept[key] = float(value)
        except (TypeError, ValueError):
            raise bad(name, "numbers, e.g. atol=1e-5,rtol=1e-3", text) from None
    return kept


def functions(name: str, text: str) -> Any:
    """module:function,module:function"""
    return [_imported(name, entry) for entry in names(name, text)]


def translations(name: str, text: str) -> Any:
    """operator=module:function,operator=module:function"""
    return {operator: _imported(name, str(entry)) for operator, entry in pairs(name, text).items()}


def _imported(name: str, text: str) -> Any:
    module, colon, attribute = text.partition(":")
    try:
        if not colon:
            raise AttributeError("no colon")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise bad(name, f"module:function ({error})", text) from None
