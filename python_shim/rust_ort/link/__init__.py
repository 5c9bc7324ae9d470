"""The way to the daemon and to the executor.

| file | what it does |
|---|---|
| link.py | what is asked of a daemon, over a connection that is made anew after a loss |
| connection.py, releases.py | one connection: handshake, requests, lease of an executor; what died, to be released |
| lanes.py, futex.py | a call handed to the executor without the daemon, and the wait for its answer |
| specs.py | what a graph and a part are told to the daemon as, and what a comparison says |
| wire.py | the frames and messages that requests travel in |
| daemon.py | where the daemon is, and how one is started |

docs/protocol.md gives the formats.
"""
