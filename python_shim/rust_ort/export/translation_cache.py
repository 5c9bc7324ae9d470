"""Translations of operators, cached by their arguments for one graph: the nodes that a function's first call wrote are
written again. Repeated layers are most of a model, and a function takes far longer than the nodes that it writes."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
Source = Any
"""Of an input or a result: None, a shared constant itself, or a place among the values that were given, which the
outputs of the nodes come after."""


class _Unlike(Exception):
    """What was given or written cannot be told to be alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """A node that a function wrote. outputs: their dtypes and shapes, as far as the function said them."""

    operator: tuple[str, str, str, int | None]
    attributes: tuple[Any, ...]
    inputs: tuple[Source, ...]
    outputs: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """What a function wrote, without the constants that the whole graph shares, and what it returned."""

    nodes: tuple[_Node, ...]
    results: Source | list[Source] | tuple[Source, ...]


class TranslationCache:
    """The registry of one graph: its functions are called once for arguments that are alike.

    They are if all that a function may go by is: of values dtype, shape, what operator made them of which dtypes and
    which are the same one; whatever else is given as a whole; `context`. What cannot be told is called each time.

    registry: torch's exporter's. but_for: targets whose functions, the user's, may go by more. recorder: gives what
    records the nodes of the call. tensor: the class of the values that it makes.
    """

    def __init__(
        self, registry: Any, *, but_for: Mapping[Any, object], recorder: Callable[[], Any], tensor: Any
    ) -> None:
        self.opset_version = registry.opset_version
        self.context: Hashable = None
        self._registry, self._but_for, self._recorder, self._tensor = registry, but_for, recorder, tensor
        self._decompositions: dict[Any, Sequence[Any]] = {}
        self._written: dict[Hashable, _Written | None] = {}
        self._shared: set[int] = set()
        """Ids of the graph's shared constants, which live as long as it is written."""
        self._n_shared = 0

    def get_decomps(self, target: Any) -> Sequence[Any]:
        """What the exporter asks of a registry."""
        if target not in self._decompositions:
            known: Sequence[Any] = self._registry.get_decomps(target)
            self._decompositions[target] = known if target in self._but_for else [*map(self._called_once, known)]
        return self._decompositions[target]

    def _called_once(self, known: Any) -> Any:
        function = functools.partial(self._call, known.onnx_function)
        return types.SimpleNamespace(onnx_function=function, is_complex=known.is_complex)

    def _call(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder()
        given: dict[int, Any] = {}
        try:
            kind = _kind(args, kwargs, given)
        except _Unlike:
            return function(*args, **kwargs)
        key = (function, self.context, kind)
        if (written := self._written.get(key)) is not None:
            return self._again(written, list(given.values()), recorder)
        if key in self._written:
            return function(*args, **kwargs)
        self._share(recorder.constant_farm)
        apart = self._shared.isdisjoint(given)  # else a node's input might be either
        n_before = len(recorder.nodes)
        results = function(*args, **kwargs)
        self._share(recorder.constant_farm)
        try:
            read = apart and _kind(args, kwargs, {}) == kind
            self._written[key] = self._read(recorder.nodes[n_before:], given, results) if read else None
        except _Unlike:
            self._written[key] = None
        return results

    def _share(self, farm: dict[Any, Any]) -> None:
        """Takes note of the constants that came since; a farm only grows."""
        self._shared.update(map(id, itertools.islice(reversed(farm.values()), len(farm) - self._n_shared)))
        self._n_shared = len(farm)

    def _read(self, nodes: Sequence[Any], given: Mapping[int, Any], results: Any) -> _Written:
        places = {known: place for place, known in enumerate(given)}

        def source(value: Any) -> Source:
            if value is None or id(value) in self._shared:
                return value
            if id(value) not in places:
                raise _Unlike
            return places[id(value)]

        read = []
        for node in nodes:
            if all(id(output) in self._shared for output in node.outputs):
                continue
            inputs = tuple(map(source, node.inputs))
            read.append(_Node(
                operator=(node.domain, node.op_type, node.overload, node.version),
                attributes=_attributes(node),
                inputs=inputs,
                outputs=tuple(map(self._said, node.outputs)),
            ))  # fmt: skip
            for output in node.outputs:
                places[id(output)] = len(places)
        if type(results) not in (list, tuple):
            return _Written(nodes=tuple(read), results=source(results))
        return _Written(nodes=tuple(read), results=type(results)(map(source, results)))

    def _said(self, output: Any) -> tuple[Any, Any]:
        """dtype and shape of an output of which nothing else is said."""
        if type(output) is not self._tensor or output.name is not None or _has_more(output):
            raise _Unlike
        return _type_of(output), _copied(output.shape)

    def _again(self, written: _Written, values: list[Any], recorder: Any) -> Any:
        """Records the nodes for other values, and returns what the function would."""
        import onnx_ir as ir

        def value(source: Source) -> Any:
            return values[source] if type(source) is int else source

        for node in written.nodes:
            outputs = []
            for dtype, shape in node.outputs:
                output = self._tensor(recorder.opset, shape=_copied(shape))
                if dtype is not None:
                    output.dtype = dtype
                outputs.append(output)
            domain, op_type, overload, version = node.operator
            recorder.nodes.append(ir.Node(
                domain, op_type, [*map(value, node.inputs)], node.attributes,
                overload=overload, outputs=outputs, version=version,
            ))  # fmt: skip
            values += outputs
        results = written.results
        return type(results)(map(value, results)) if isinstance(results, (list, tuple)) else value(results)


def _has_more(known: Any) -> bool:
    """Whether a value or node of onnx_ir carries what is not looked at here."""
    return bool(known.metadata_props or known.meta or known.doc_string or getattr(known, "const_value", None))


def _attributes(node: Any) -> tuple[Any, ...]:
    if node.name is not None or _has_more(node) or node.device_configurations:
        raise _Unlike
    made = tuple(node.attributes.values())
    if any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in made):  # a body belongs to one node
        raise _Unlike
    return made


def _kind(args: Sequence[Any], kwargs: Mapping[str, Any], given: dict[int, Any]) -> Hashable:
    """What of the arguments a function may go by; `given` becomes {id: value} of their values. Raises _Unlike."""
    return tuple(_kind_of(arg, given) for arg in args), tuple((name, _kind_of(kwargs[name], given)) for name in kwargs)


def _kind_of(argument: Any, given: dict[int, Any]) -> Hashable:
    if argument is None or type(argument) in (bool, int, str):
        return type(argument), argument
    if type(argument) is float:
        return float, argument.hex()  # 0.0 is not -0.0
    if type(argument) in (list, tuple):
        return type(argument), tuple(_kind_of(item, given) for item in argument)
    import onnx_ir as ir

    if isinstance(argument, ir.DataType):
        return ir.DataType, int(argument)
    if not isinstance(argument, ir.Value):
        raise _Unlike
    if id(argument) in given:
        return list(given).index(id(argument))
    given[id(argument)] = argument
    dims = None if argument.shape is None else argument.shape.dims
    producer = argument.producer()
    made = None if producer is None else (producer.domain, producer.op_type, *map(_type_of, producer.inputs))
    return type(argument), _type_of(argument), dims, made


def _type_of(value: Any) -> Any:
    """The dtype of a tensor, None where it is not said. Raises _Unlike for other values, and where more is known."""
    if value is None or value.type is None:
        return None
    if type(value.type).__name__ != "TensorType" or value.type.denotation is not None or value.const_value is not None:
        raise _Unlike
    return value.type.dtype


def _copied(shape: Any) -> Any:
    return None if shape is None else shape.copy()
