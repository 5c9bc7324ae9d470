"""Random small torch functions through rust_ort and eager: `PYTHONPATH=tests python -m measure.random_graphs`.

`table.py`, `functions.py`: the operators; `draw.py`: their operands; `generate.py`: a function from a seed;
`program.py`: what a function is; `judge.py`: who is right; `check.py`: one function through all of it; `reduce.py`: a
failing one made small; `run.py`: many, in processes; `summary.py`: the totals.
"""
