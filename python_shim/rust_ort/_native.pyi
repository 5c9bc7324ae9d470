"""The native module (python_shim/native)."""

VERSION: str
"""Of the program that was built with this module."""
