"""The steps of `make gpu-check`, each in a process of its own with a daemon of its own.

steps.py: which there are. runner.py: shares out the time, runs them, ends what hangs. record.py: the rows a step
writes. page.py: the table and its JSON. libraries.py: what CUDA libraries the provider needs and where they are.
device.py: memory and synchronization of a device. copies.py: bytes through the host. cases.py, calls.py: calls against
eager. culprits.py: blame, dumps, what to keep in float32. nodes.py: every node, and its time. memory.py: a training
loop, a killed client, a killed executor. models.py: Llama. numerics.py: `rust-ort study`. speed.py: the bench.
"""
