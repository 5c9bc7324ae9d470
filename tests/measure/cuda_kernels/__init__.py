"""Which operators ONNX Runtime's CUDA provider has kernels for, told by the provider itself, without a GPU.

| file | what it is for |
|---|---|
| cases.py | a model of one node for each operator, version and element type |
| stand_in.py, runtime.c | libraries in the place of CUDA's: a device that computes nothing, enough for a session |
| sessions.py | makes the sessions, in a process that has the provider and these libraries |
| table.py | docs/results/cuda-kernels.md and .json |
"""
