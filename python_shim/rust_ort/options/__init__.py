"""What a user sets and hands over: the options in one table, and the checks of options and arguments.

| file | what it does |
|---|---|
| table.py | every option: name, default, meaning; `Options.parse` |
| checks.py, environment.py | each option's check, and its twin in the environment |
| tolerance.py, operators.py | what a comparison allows; the operators that options name |
| arguments.py | checks of what is handed to compare, explain, dump and the backend |
"""

from rust_ort.options.table import HIGHEST_OPSET, LOWEST_OPSET, Options
from rust_ort.options.tolerance import Tolerance

__all__ = ["HIGHEST_OPSET", "LOWEST_OPSET", "Options", "Tolerance"]
