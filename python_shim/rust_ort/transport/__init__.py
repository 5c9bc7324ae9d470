"""A call's way out of this process and back. The files in the order in which the data passes them:

| file | what it does |
|---|---|
| specs.py | what a graph and a part are told to the daemon as, and what a comparison says |
| part.py | one prepared model: its preparation and its calls |
| node_batch.py | nodes of a part handed over to be compared with eager |
| staging.py | inputs into shared memory: which may be sent, plans of calls, buffers for small inputs |
| layout.py | dtypes, strides and sizes of tensors as shared memory holds them |
| arena.py, segment.py | blocks of shared memory, and the memfds they are cut from |
| lanes.py, futex.py | a call handed to the executor without the daemon, and the wait for its answer |
| connection.py, wire.py | requests to the daemon, and the frames and messages they travel in |
| daemon.py | where the daemon is, and how one is started |
| process.py | this process's arena, and what a fork does to it |

`rust_ort.client` is the way in. docs/decisions/0001-ownership.md says who frees what,
docs/protocol.md gives the formats.
"""
