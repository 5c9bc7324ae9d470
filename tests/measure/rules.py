"""The rules of rust_ort.export.rules as the table of docs/design/known-wrong-upstream.md."""

from __future__ import annotations

import sys

from rust_ort.export.rules import RULES, Rule


def table() -> str:
    """Markdown: one row a reason."""
    rows: dict[tuple[str, str, bool, str], list[str]] = {}
    for rule in sorted(RULES, key=_order):
        key = (rule.upstream, rule.why, rule.silent, rule.how.value)
        rows.setdefault(key, []).append(rule.operator.removeprefix("aten.").removesuffix(".default"))
    lines = ["| upstream | operators | what is wrong or missing | silent | what is done |", "|---|---|---|---|---|"]
    for (upstream, why, silent, done), operators in rows.items():
        names = ", ".join(f"`{operator}`" for operator in operators)
        lines.append(f"| {upstream} | {names} | {why} | {'yes' if silent else 'no'} | {done} |")
    return "\n".join(lines) + "\n"


def _order(rule: Rule) -> tuple[str, str]:
    return rule.upstream, rule.operator


def main() -> int:
    """Print the table. Returns the exit code."""
    sys.stdout.write(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
