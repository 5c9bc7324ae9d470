"""Faults planted in tiny models by the option `transforms`: does the comparison find each, and name its node first?

| file | what it does |
|---|---|
| faults.py | kinds of faults: where in a model one may be planted, and how |
| run.py | a family compiled and compared, with a fault planted or none |
| table.py | rows → docs/results/planted.md and .json |
| __main__.py | all of it: families x precisions unplanted, then faults drawn from what they hold |
"""
