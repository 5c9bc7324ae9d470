"""Shared memory: tensors as it holds them, the blocks they lie in, and whose they are after a fork.

| file | what it does |
|---|---|
| layout.py | dtypes, strides and sizes of tensors |
| arena.py, segment.py | the memfds that blocks are cut from, and how a place in one is named; lending is native |
| parameters.py | parameters and buffers that are moved there |
| device.py | tensors on CUDA devices: the allocations that they lie in, and the stream of a call |
| process.py | this process's arena and what it sent of devices, and what a fork does to them |
"""
