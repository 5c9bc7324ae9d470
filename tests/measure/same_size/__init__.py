"""Noise of half precision and faults no larger than it: is each told for what it is?

| file | what it does |
|---|---|
| sites.py | functions of one operator, forward and backward, and what they are called with |
| faults.py | faults of a part of a step, planted in the ONNX node of a value |
| run.py | a function compared with eager, with a fault or none |
| table.py | what came of it → docs/results/same-size.md and .json |
| __main__.py | all of it |
"""
