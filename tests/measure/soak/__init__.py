"""Clients that train while everything around them is killed, stopped, filled and removed: is anything lost?

`client.py`: one process that trains and dumps, and says what it was told. `chaos.py`: what happens to it, its executor
and its daemon. `clients.py`: which clients run, and new ones for those that ended. `processes.py`: who belongs to
it. `growth.py`: memory and descriptors of the daemon. `check.py`: what must be there. `events.py`: the log that all of
them write.
"""
