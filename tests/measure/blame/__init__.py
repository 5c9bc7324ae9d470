"""Faults planted in real architectures: does `rust_ort.blame` name each first, and nobody where nothing is planted?

| file | what it does |
|---|---|
| run.py | a family blamed, with a fault planted or none |
| table.py | rows → docs/results/blame.md and .json |
| __main__.py | all of it |
"""
