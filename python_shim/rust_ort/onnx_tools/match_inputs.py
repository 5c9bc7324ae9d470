"""Feeds of one ONNX model from those of another: by name, by content, by dtype and shape where that is clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import Tensor

from rust_ort.errors import ClientError
from rust_ort.onnx_tools.helpers import Model, Shape, loaded, provenance, shape_of, tensor_of


@dataclass(frozen=True, kw_only=True, eq=False)
class _Value:
    """An input or an initializer. aliases: every name it is known by."""

    name: str
    aliases: frozenset[str]
    elem_type: int
    shape: Shape
    read: Callable[[], Tensor] | None = None

    def __str__(self) -> str:
        also = sorted(self.aliases - {self.name})
        dtype = onnx.TensorProto.DataType.Name(self.elem_type).lower()
        return f"{self.name!r}{f' = {also[0]!r}' if also else ''} {dtype} {self.shape}"

    def fits(self, other: _Value) -> bool:
        """Same element type and shape; a named dimension fits every number."""
        return (
            self.elem_type == other.elem_type
            and len(self.shape) == len(other.shape)
            and all(m == n or str in (type(m), type(n)) for m, n in zip(self.shape, other.shape, strict=True))
        )

    def tensor(self) -> Tensor:
        assert self.read is not None
        return self.read()


def build_matching_inputs(
    model_from: Model,
    feeds: Mapping[str, Tensor],
    model_to: Model,
    *,
    names: Mapping[str, str] | None = None,
    content: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Feeds for `model_to` from `feeds`, those of `model_from`, and from `model_from`'s initializers.

    An input is matched by name, where the provenance.json beside a dumped model and `names` ({name in a model: name of
    the parameter or argument}) give further names; else by `content` ({input of model_to: its known tensor}); else by
    dtype and shape, when only one value that nothing else took has them, or all that have them are equal.
    Errors: ClientError that names the candidates.
    """
    sources = _sources(loaded(model_from), feeds, _aliases(model_from, names))
    targets = _inputs(loaded(model_to), _aliases(model_to, names))
    chosen: dict[str, _Value] = {}
    for target in targets:
        found = _by_name(target, sources) or _by_content(target, sources, content or {})
        if found is not None:
            chosen[target.name] = found
    taken = {id(value) for value in chosen.values()}
    free = [source for source in sources if id(source) not in taken]
    open_ = [target for target in targets if target.name not in chosen]
    for target in open_:
        chosen[target.name] = _by_kind(target, free, [other for other in open_ if other is not target])
    return {target.name: chosen[target.name].tensor() for target in targets}


def _aliases(model: Model, names: Mapping[str, str] | None) -> dict[str, str]:
    described = {entry["name"]: entry["of"] for entry in provenance(model).get("inputs", []) if entry["of"]}
    return {**described, **(names or {})}


def _known(name: str, aliases: Mapping[str, str]) -> frozenset[str]:
    return frozenset({name, aliases.get(name, name)})


def _inputs(model: Any, aliases: Mapping[str, str]) -> list[_Value]:
    """Inputs that must be fed: those without an initializer of the same name."""
    defaults = {entry.name for entry in model.graph.initializer}
    return [
        _Value(
            name=entry.name,
            aliases=_known(entry.name, aliases),
            elem_type=entry.type.tensor_type.elem_type,
            shape=shape_of(entry),
        )
        for entry in model.graph.input
        if entry.name not in defaults
    ]


def _sources(model: Any, feeds: Mapping[str, Tensor], aliases: Mapping[str, str]) -> list[_Value]:
    inputs = _inputs(model, aliases)
    missing = [str(value) for value in inputs if value.name not in feeds]
    if missing:
        raise ClientError(f"feeds lack inputs of the model they are for: {', '.join(missing)}")
    fed = [
        _Value(
            name=value.name, aliases=value.aliases, elem_type=value.elem_type, shape=tuple(feeds[value.name].shape),
            read=lambda name=value.name: feeds[name],  # type: ignore[misc]
        )
        for value in inputs
    ]  # fmt: skip
    constants = [
        _Value(
            name=entry.name, aliases=_known(entry.name, aliases), elem_type=entry.data_type, shape=tuple(entry.dims),
            read=lambda entry=entry: tensor_of(entry),  # type: ignore[misc]
        )
        for entry in model.graph.initializer
    ]  # fmt: skip
    return fed + constants


def _by_name(target: _Value, sources: Sequence[_Value]) -> _Value | None:
    named = [source for source in sources if source.aliases & target.aliases]
    if not named:
        return None
    fitting = [source for source in named if source.fits(target)]
    if not fitting:
        raise ClientError(f"input {target}: the value of that name is {_listed(named)}; the models differ")
    if not _all_equal(fitting):
        raise ClientError(f"input {target}: its name is that of {_listed(fitting)}; tell them apart with names=")
    return fitting[0]


def _by_content(target: _Value, sources: Sequence[_Value], content: Mapping[str, Tensor]) -> _Value | None:
    known = next((content[name] for name in sorted(target.aliases) if name in content), None)
    if known is None:
        return None
    fitting = [source for source in sources if source.fits(target)]
    equal = [source for source in fitting if torch.equal(source.tensor(), known)]
    if not equal:
        raise ClientError(f"input {target}: none of {_listed(fitting)} has the content given for it")
    return equal[0]


def _by_kind(target: _Value, free: Sequence[_Value], others: Sequence[_Value]) -> _Value:
    """The only value of this dtype and shape that is left, for the only input that asks for it."""
    fitting = [source for source in free if source.fits(target)]
    if not fitting:
        raise ClientError(
            f"input {target}: no value has its name, and none that is left its dtype and shape; "
            f"left are {_listed(free)}; name it with names="
        )
    if _all_equal(fitting) and (len(fitting) > 1 or not any(fitting[0].fits(other) for other in others)):
        return fitting[0]
    rivals = [other for other in others if any(source.fits(other) for source in fitting)]
    also = f", and {_listed(rivals)} asks for them too" if rivals else ""
    raise ClientError(
        f"input {target}: dtype and shape do not tell which of {_listed(fitting)} it is{also}; "
        "give names= or content="
    )  # fmt: skip


def _all_equal(values: Sequence[_Value]) -> bool:
    return all(torch.equal(values[0].tensor(), other.tensor()) for other in values[1:])


def _listed(values: Sequence[_Value]) -> str:
    return ", ".join(map(str, values)) or "nothing"
