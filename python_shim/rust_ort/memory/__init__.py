"""Shared memory: tensors as it holds them, the blocks they lie in, and whose they are after a fork.

| file | what it does |
|---|---|
| layout.py | dtypes, strides and sizes of tensors |
| arena.py, segment.py | blocks, and the memfds they are cut from |
| process.py | this process's arena, and what a fork does to it |
"""
