"""The project's own measuring tools: what docs/results/bench.md, coverage.md, op-census.md, … are made by.

They are no part of what is installed: `PYTHONPATH=tests python -m measure.coverage`, or `make coverage`.
"""
