"""The way to the daemon and to the executor.

| file | what it does |
|---|---|
| link.py | what is asked of a daemon, over a connection that is made anew after a loss |
| connection.py, releases.py | one connection: handshake, requests, lease of an executor; what died, to be released |
| device_order.py | the order of its calls on CUDA devices, and an executor that dies with work there |
| waiting.py | whom a long wait is for |
| lanes.py | a call handed to the executor without the daemon: which lane; the rest is native |
| specs.py | what a graph and a part are told to the daemon as, and what a comparison says |
| wire.py | the frames and messages that requests travel in |
| daemon.py, pool.py | where the daemon is, and how one is started; the executor's threads |
| program.py | what a command of the program says |
| platform.py | where rust_ort runs |

docs/design/protocol.md gives the formats.
"""
