"""Random small torch functions through rust_ort and eager: `PYTHONPATH=tests python -m measure.random_graphs`.

The way of a seed, by file: `features.py` what kind of function; `table*.py`, `functions.py`, `rows.py`, `operator.py`
the operators; `draw.py`, `values.py`, `layouts.py`, `sizes.py` their operands; `generate.py`, `conditioning.py` a
function that eager can answer; `program.py` its source; `observe.py` all that can be seen of a call; `judge.py` what
differs; `check.py` one function through all of it; `reduce.py` a failing one made small; `corpus.py` kept; `run.py`
many, in processes; `summary.py`, `reach.py`, `page.py` the totals.
"""
