"""One run of one part: its tensors into shared memory, the call, its outputs out of it.

| file | what it does |
|---|---|
| client.py | the way in: the clients of this process, which prepare parts and compare tensors |
| part.py | one prepared model: its preparation and its calls, observed ones too |
| frozen.py | the option freeze_parameters: parts whose parameters are constants of their sessions |
| node_batch.py | nodes of a part handed over to be compared with eager |
| staging.py | inputs into shared memory: which may be sent, plans of calls, what the native call leaves to Python |

docs/design/decisions/0001-ownership.md says who frees what.
"""
