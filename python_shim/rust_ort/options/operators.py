"""The torch operators that an option names."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from rust_ort import torch_private
from rust_ort.errors import OptionError


def overload_of(option: str, key: object) -> Any:
    """The OpOverload that `key` stands for: itself, the default overload of a packet, a registered name ("mylib::op",
    "mylib::op.overload"), or what torch.library.custom_op made.

    Errors: OptionError for what is no operator, and for one that never reaches a backend as a node.
    """
    if isinstance(key, str):
        key = _named(option, key)
    key = getattr(key, "_opoverload", key)
    if isinstance(key, torch_private.OpOverloadPacket):
        key = _default(option, key)
    if not isinstance(key, torch_private.OpOverload):
        raise OptionError(
            f'option {option}: expected an operator, such as torch.ops.aten.gelu.default or "mylib::op", got {key!r}'
        )
    if key._schema.is_mutable:
        raise OptionError(f"option {option}: {key} writes to its inputs, which ONNX has no form for; map one without")
    if torch_private.is_composite(key):
        raise OptionError(
            f"option {option}: {key} is composite: torch takes it apart before a graph is there; map the operators it "
            "is made of, or call a torch.library.custom_op in its place"
        )
    return key


def _named(option: str, name: str) -> Any:
    namespace, colons, rest = name.partition("::")
    packet_name, dot, overload = rest.partition(".")
    if not colons or not packet_name:
        raise OptionError(f'option {option}: expected "namespace::name" or "namespace::name.overload", got {name!r}')
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    if packet is None:
        registered = {known.partition(".")[0] for known in torch_private.operator_names()}
        close = difflib.get_close_matches(name, sorted(registered), n=1)
        hint = f"; did you mean {close[0]!r}" if close else "; import the module that registers it first"
        raise OptionError(f"option {option}: no operator {namespace}::{packet_name} is registered{hint}")
    if not dot:
        return packet
    if overload not in _registered(packet):
        raise OptionError(f"option {option}: {packet} has no overload {overload!r}; it has {_overloads(packet)}")
    return getattr(packet, overload)


def _default(option: str, packet: Any) -> Any:
    if "default" in _registered(packet):
        return packet.default
    raise OptionError(f"option {option}: {packet} has no default overload; name one of {_overloads(packet)}")


def _overloads(packet: Any) -> str:
    return ", ".join(str(getattr(packet, name)) for name in _registered(packet))


def _registered(packet: Any) -> list[str]:
    """Names of its overloads, less those that only TorchScript has."""
    names = packet.overloads()
    return [name for name in names if torch_private.is_registered(getattr(packet, name))]
