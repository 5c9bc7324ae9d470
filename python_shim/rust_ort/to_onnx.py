"""The forward of a model as one ONNX model, which any runtime runs.

proto = rust_ort.to_onnx(model, x, path="model.onnx", dynamic_shapes={"x": {0: "batch"}})
onnxruntime.InferenceSession("model.onnx").run(None, {"x": x.numpy()})
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rust_ort import torch_private
from rust_ort._callable import make_callable
from rust_ort.errors import ClientError, OptionError
from rust_ort.export.forward_model import ForwardGraph, forward_graph, translated, written_inputs
from rust_ort.export.model_file import ModelInput, ModelOutput, assembled, saved
from rust_ort.export.module_functions import stacks
from rust_ort.export.provenance import parameter_name
from rust_ort.export.text import one_line
from rust_ort.export.translate import Translated
from rust_ort.observe.reference import one_at_a_time, rng_kept
from rust_ort.observe.sides import named_members
from rust_ort.observe.state import UNINITIALIZED, Copies
from rust_ort.observe.values import named_values
from rust_ort.options import Options, arguments
from rust_ort.runtime.assumptions import LEAST_TRACED, assumptions
from rust_ort.runtime.capture import Captured, capture
from rust_ort.runtime.decisive import opset as opset_of
from rust_ort.runtime.dynamic_shapes import DynamicSize, dynamic_sizes, resize
from rust_ort.torch_private import pytree

if TYPE_CHECKING:
    import onnx

__all__ = ["to_onnx"]


def to_onnx(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    opset: int | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    parameters: str = "initializers",
    optimized: bool = False,
    export_modules_as_functions: bool | Sequence[str] = False,
    custom_translations: Mapping[Any, Any] | None = None,
    **unknown: Any,
) -> onnx.ModelProto:
    """The forward of `model(*args, **kwargs)` as one ONNX model: what the backend exports without gradients, whole.

        proto = rust_ort.to_onnx(model, x, path="model.onnx", dynamic_shapes={"x": {0: "batch"}})

    model: a module or a function of tensors, in the mode that it is in: call `model.eval()` before. It runs once, on
    copies of the arguments; again with dynamic sizes of 1. path: where to write the model, too; over 2 GB its tensors
    go into `path` + ".data", and the proto that is returned refers to that file. opset: 18 to 26; None: of
    RUST_ORT_OPSET, else 18. dynamic_shapes: as torch.export has them, {argument: {dimension: name}}, a name being a str
    or torch.export.Dim; Dim.DYNAMIC and Dim.AUTO leave the name to us. A size of 1 is traced as 2, and the graph tried
    on the example itself; Dim.AUTO fixes it. parameters: "initializers" under their own names, or "inputs" after the
    arguments. optimized: constants folded and equal nodes shared by onnxscript's optimizer, what is of buffers alone
    folded where the model does not grow, Reshapes and Transposes taken out where a Gemm or a pointwise node needs none;
    parameters and calls of functions stay as they are, but for a parameter that is only read transposed, which is
    stored so, as `weight.T`. export_modules_as_functions: a local function for each submodule that is called, which
    calls with equal bodies share and take parameters as inputs; or patterns of the submodules' paths or classes,
    ["decoder.*", "Attention"]. custom_translations: {torch operator: onnxscript function}.

    Inputs are the tensors among the arguments, in their order: `x`, `cache_layers_0_keys`; also one that nothing reads.
    Numbers, strings and None among the arguments are constants of the model. Outputs are the tensors in what the model
    returns, under their names there (`logits`), else `output`, `output_0`; one named like an input has a number behind
    it. Buffers, and tensors that the program has from elsewhere, are initializers. What else a program does, to its
    attributes or a file, is not in the model. A model that computes in bfloat16 on the CPU is written with a warning:
    its provider needs `rust-ort widen`. What torch assumed of dynamic sizes is in metadata_props["rust_ort.assumes"],
    one a line, `x.shape[0] == y.shape[0]`: the model is right for sizes of which that holds. Where torch has 2 as the
    least size, 1 is tried: `>= 1` where the graph then gives eager's results.

    Errors: ClientError where the graph breaks, where a node has no ONNX form (each is named, with its line), and where
    the forward writes into a parameter, buffer or argument; OptionError for an argument, and where the program fixes a
    size that is to be dynamic; OSError where nothing can be written to `path`; what the model raises.
    """
    if unknown:
        raise _unknown(model, unknown)
    kwargs = dict(kwargs or {})
    options = _checked(model, kwargs, opset, parameters, optimized, custom_translations)
    patterns = _checked_patterns(export_modules_as_functions)
    target = _checked_path(path)
    plain: Any = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", model)
    with one_at_a_time(), rng_kept(), _same_members(plain), _told_apart(args):
        made = _forward(plain, lambda: _call(plain, args, kwargs, dynamic_shapes, own_sizes=patterns != ()), options)
        inputs = made.names.inputs(made.graph, made.call.sizes, made.size_names, as_inputs=parameters == "inputs")
        modules = stacks(made.graph.module.graph, made.onnx, patterns) if patterns != () else None
        proto = assembled(
            made.onnx, inputs, made.outputs, made.size_names, list(made.assumed), optimized=optimized, modules=modules
        )
        written = saved(proto, target)
    if _computes_in_bfloat16(made.graph):
        warnings.warn(NO_BFLOAT16, UserWarning, stacklevel=3)
    return written


def _checked(
    model: object, kwargs: Mapping[str, Any], opset: object, parameters: object, optimized: object, custom: object
) -> Options:
    arguments.checked_model("to_onnx", model, kwargs)
    arguments.checked_choice("to_onnx", "parameters", parameters, ("initializers", "inputs"))
    arguments.checked_flag("to_onnx", "optimized", optimized)
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ClientError(
            f"to_onnx model: {arguments.shown(model)} is compiled (model.compile()); give it as it was before",
            code="BAD_ARGUMENT",
        )
    members = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    if any(isinstance(tensor, UNINITIALIZED) for tensor in members):
        raise ClientError(
            f"to_onnx model: {arguments.shown(model)} has parameters that its first call makes; call it once before",
            code="BAD_ARGUMENT",
        )
    named = {"opset": opset, "custom_translations": custom}
    return Options.parse({name: value for name, value in named.items() if value is not None})


NO_BFLOAT16 = (
    "to_onnx: the model computes in bfloat16, for which ONNX Runtime's CPU provider has next to no kernels and raises "
    "NOT_IMPLEMENTED; `rust-ort widen model.onnx wide.onnx` writes one that computes in float32 and rounds"
)


def _computes_in_bfloat16(graph: ForwardGraph) -> bool:
    """Whether a node on the CPU gives bfloat16."""
    values = (node.meta.get("val") for node in graph.module.graph.nodes if node.op == "call_function")
    leaves = (leaf for value in values for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
    return any(leaf.dtype is torch.bfloat16 and leaf.device.type == "cpu" for leaf in leaves)


IN_OTHER_WORDS = {
    "dynamic_axes": "dynamic_shapes={argument: {dimension: name}}",
    "f": "path=...",
    "opset_version": "opset=...",
    "args": "the arguments themselves, one by one",
    "optimize": "optimized=...",
    "do_constant_folding": "optimized=...",
    "export_params": "parameters='initializers' or 'inputs'",
    "custom_translation_table": "custom_translations=...",
    "input_names": "nothing: inputs have the names of the forward's arguments",
    "output_names": "nothing: outputs have the names of what the forward returns",
    "external_data": "nothing: tensors of more than 2 GB go into a file beside the model",
    "dynamo": "nothing: torch.compile's capture is the only one",
}
"""{argument of torch.onnx.export: what it is here}."""


def _unknown(model: Any, given: Mapping[str, Any]) -> OptionError:
    name = next(iter(given))
    own = {entry.name: entry for entry in inspect.signature(to_onnx).parameters.values()}
    if name in IN_OTHER_WORDS and name not in {entry.name for entry in _parameters(_function(model))}:
        hint = f"in its place is {IN_OTHER_WORDS[name]}"
    elif close := difflib.get_close_matches(name, [*own], n=1, cutoff=0.75):
        hint = f"did you mean {close[0]}"
    else:
        hint = f"arguments of the model by name are given as kwargs={{{name!r}: ...}}"
    return OptionError(f"to_onnx {name}=...: to_onnx has no argument of that name; {hint}")


@contextlib.contextmanager
def _told_apart(args: Sequence[Any]) -> Iterator[None]:
    """Errors: OptionError, for whatever is raised, where the arguments are in a tuple, as torch.onnx.export takes them,
    and the model does not take one."""
    try:
        yield
    except Exception as error:
        of_tensors = args and isinstance(args[0], tuple | list) and any(isinstance(one, Tensor) for one in args[0])
        refused = isinstance(error, TypeError | AttributeError) or getattr(error, "code", "") in ("", "NO_GRAPH")
        if not of_tensors or len(args) > 2 or not refused:
            raise
        raise OptionError(
            f"to_onnx: the model does not take a {type(args[0]).__name__} of tensors: its arguments follow it one by "
            f"one, to_onnx(model, x, y, path=...): {one_line(str(error))}",
            code="BAD_ARGUMENT",
        ) from error


def _checked_patterns(given: object) -> tuple[str, ...] | None:
    """(): no functions; None: of all submodules."""
    if isinstance(given, bool):
        return None if given else ()
    if isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise OptionError(
        "to_onnx export_modules_as_functions: expected True, False or a list of patterns of paths or classes, got "
        f"{arguments.shown(given)}"
    )


def _checked_path(path: object) -> Path | None:
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise OptionError(f"to_onnx path: expected the path of a file, or None, got {arguments.shown(path)}")
    target = Path(os.path.realpath(os.fsdecode(path)))  # a link stays, and leads to what is written
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise OptionError(f"to_onnx path {str(target)!r}: expected a file in a folder that is there")
    return target


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of the model, with copies of the arguments. leaves: (path, tensor) of every tensor among them before it:
    a cache holds others afterwards. own_sizes: whether submodules are to ask their own tensors for sizes."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    leaves: list[tuple[str, Tensor]]
    sizes: list[DynamicSize]
    own_sizes: bool

    def small(self, *, least: int = 0) -> list[DynamicSize]:
        """Sizes that are to be dynamic, and that torch traces apart in this call."""
        return [size for size in self.sizes if size.strict and least <= size.length < LEAST_TRACED]


def _call(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: object, *, own_sizes: bool
) -> _Call:
    copies = Copies(model)
    args, kwargs = _apart(model, copies.of(args), copies.of(kwargs))
    given = _bound(model, args, kwargs)
    shapes = _keywords_apart(model, dynamic_shapes, given)
    return _Call(
        args=args, kwargs=kwargs, leaves=_tensors(given), sizes=dynamic_sizes(shapes, given), own_sizes=own_sizes
    )


@dataclass(kw_only=True)
class _Forward:
    """The forward of a call, in ONNX. assumed, size_names: as _Names.assumptions and _size_names give them."""

    call: _Call
    captured: Captured
    names: _Names
    graph: ForwardGraph
    onnx: Translated
    assumed: dict[str, str]
    size_names: dict[str, str]
    outputs: list[ModelOutput]
    right_at_one: set[str] = field(default_factory=set)

    def right_at(self, sizes: Iterable[DynamicSize]) -> None:
        """Has `assumed` say that 1 was tried of these sizes, too."""
        self.right_at_one |= set(map(_in_words, sizes))
        self.assumed = self.names.assumptions(self.right_at_one)


def _forward(model: Any, call: Callable[[], _Call], options: Options) -> _Forward:
    """The forward in ONNX. call: makes one, of the same arguments again each time.

    torch fixes a size of 0 or 1, and takes any other for 2 or more. Where a 1 is to be dynamic, the example has 2
    elements in its place, and the graph is run once on the example as it is, for eager's results. A program that does
    not run with 2 is traced as it is. Of another example the graph is run once with 1, which tells whether 1 is right.
    """
    example, larger = call(), call()
    small = example.small()
    if not small:
        made = _traced(model, example, options)
        _try_one(model, made, larger)
        return made
    resize(larger.small(least=1), 2)
    failed: Exception | None = None
    if not larger.small():
        try:
            made = _traced(model, larger, options)
        except Exception as error:  # what the model raises, too
            if isinstance(error, ClientError) and error.code not in ("FIXED_SIZE", "GRAPH_BREAK"):
                raise
            failed = error
        else:
            if differs := _difference(model, made, example):
                raise _apart_error(small, f"traced with 2 there, {differs}")
            made.right_at(small)
            _try_one(model, made, call())
            return made
    try:
        with torch_private.small_sizes_as_any(True):
            return _traced(model, example, options)
    except ClientError as error:
        if one_line(str(error)) == one_line(str(failed)):  # sizes of 1 have no part in it
            raise error from None
        why = f"with 2 there, {failed}" if failed else str(error)
        raise _apart_error(small, why) from (failed or error)


def _try_one(model: Any, made: _Forward, call: _Call) -> None:
    """Lowers what is assumed to 1 where the graph gives eager's results for it. call: of the arguments as traced."""
    least = f" >= {LEAST_TRACED}"
    open_to_one = {line.removesuffix(least) for line in made.assumed if line.endswith(least)}
    for line in reversed(made.assumed):
        one, _, other = line.partition(" == ")
        if {one, other} & open_to_one:
            open_to_one |= {one, other}
    fakes = _fakes(made.captured, made.graph)
    traced = [
        str(fakes[id(size.tensor)].shape[size.axis]) if id(size.tensor) in fakes else str(size)
        for size in made.call.sizes
    ]
    symbols = {symbol for size, symbol in zip(made.call.sizes, traced, strict=True) if _in_words(size) in open_to_one}
    sizes = [size for size, symbol in zip(call.sizes, traced, strict=True) if symbol in symbols]
    if not sizes:
        return
    resize(sizes, 1)
    with contextlib.suppress(Exception), warnings.catch_warnings():  # a model that takes no 1 may say so as it likes
        warnings.simplefilter("ignore")
        if not _difference(model, made, call):
            made.right_at(sizes)


def _in_words(size: DynamicSize) -> str:
    """As the model's inputs are named."""
    return f"{_identifier(size.where)}.shape[{size.axis}]"


def _fakes(captured: Captured, forward: ForwardGraph) -> dict[int, Tensor]:
    """{id of an input: what it was traced as}."""
    values = {node.name: node.meta.get("val") for node in forward.module.graph.find_nodes(op="placeholder")}
    return {id(captured.inputs[position]): values[value] for value, position in forward.inputs.items()}


def _apart_error(small: Sequence[DynamicSize], why: str) -> OptionError:
    sizes = " and ".join(f"{size} is {size.length}" for size in small)
    return OptionError(
        f"to_onnx dynamic_shapes: {sizes} in the example, to be dynamic, but the program takes that size apart; take "
        f"an example of size >= 2, or leave the size fixed\n  {why}",
        code="FIXED_SIZE",
    )


def _traced(model: Any, call: _Call, options: Options) -> _Forward:
    custom = options.custom_translations

    def check(made: Captured) -> None:
        _check_writes(model, call.leaves, made)

    captured = capture(model, call.args, call.kwargs, call.sizes, custom, check)
    names = _Names(model, call.leaves, captured)
    graph = forward_graph(captured.graph, own_sizes=call.own_sizes)
    onnx = translated(graph, name=_model_name(model), opset=opset_of(options), custom=custom)
    assumed = names.assumptions()
    size_names = _size_names(captured, graph, call.sizes, assumed)
    return _Forward(
        call=call, captured=captured, names=names, graph=graph, onnx=onnx, assumed=assumed, size_names=size_names,
        outputs=names.outputs(graph),
    )  # fmt: skip


def _difference(model: Any, made: _Forward, call: _Call) -> str:
    """What a graph does with the tensors of a call that the model does not; "" where they agree."""
    instead = {id(traced): own for (_, traced), (_, own) in zip(made.call.leaves, call.leaves, strict=True)}
    inputs: dict[str, Any] = dict(made.graph.constants)
    for name, position in made.graph.inputs.items():
        tensor = made.captured.inputs[position]
        inputs[name] = instead.get(id(tensor), tensor)
    placeholders = made.graph.module.graph.find_nodes(op="placeholder")
    with torch.no_grad():
        try:
            got = made.graph.module(*(inputs[node.name] for node in placeholders))
        except Exception as error:  # whatever an operator raises
            return f"its graph fails on the example: {one_line(str(error))}"
        result = model(*call.args, **call.kwargs)
    expected = [leaf for _, leaf in named_values(result) if isinstance(leaf, Tensor)]
    if len(expected) != len(made.outputs):
        return f"it has {len(made.outputs)} outputs, of the example {len(expected)}"
    for output, reference in zip(made.outputs, expected, strict=True):
        if isinstance(output.value, int) and not _close(got[output.value], reference):
            shapes = [str(list(tensor.shape)) for tensor in (got[output.value], reference)]
            what = "other values" if shapes[0] == shapes[1] else f"{shapes[0]}, not {shapes[1]}"
            return f"its graph gives {what} in {output.name} of the example"
    return ""


def _close(candidate: Tensor, reference: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    if (candidate.shape, candidate.dtype) != (reference.shape, reference.dtype):
        return False
    if not reference.dtype.is_floating_point:
        return torch.equal(candidate, reference)
    step = torch.finfo(reference.dtype).eps ** 0.5
    candidate, reference = candidate.double(), reference.double()
    largest = reference[reference.isfinite()].abs().max().item() if reference.isfinite().any() else 0.0
    return torch.allclose(candidate, reference, rtol=step, atol=step * largest, equal_nan=True)


def _apart(model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, each tensor of them an object of its own, and none of the model's: torch would take two that are
    one for one input, and the other one's name would be nobody's."""
    members = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    met = {id(tensor) for tensor in members}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in met:
            leaf = leaf.detach().clone()
        met.add(id(leaf))
        kept.append(leaf)
        return leaf

    kept: list[Tensor] = []  # alive, so that no address is met twice
    made: tuple[Any, Any] = pytree.tree_map(own, (args, kwargs))
    return made


def _bound(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """{argument: value}, as the forward names them. Errors: OptionError for a call that does not fit, for arrays."""
    function = _function(model)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except ValueError:  # a builtin, which has no signature
        bound = {f"input_{index}": value for index, value in enumerate(args)} | dict(kwargs)
    except TypeError as error:
        is_file = any(isinstance(value, str | os.PathLike) and str(value).endswith(".onnx") for value in args)
        hint = "; a file to write to is given as path=..." if is_file else ""
        raise OptionError(f"to_onnx: the model does not take these arguments: {error}{hint}") from error
    kinds = {entry.name: entry.kind for entry in _parameters(function)}
    given: dict[str, Any] = {}
    for name, value in bound.items():
        given |= value if kinds.get(name) is inspect.Parameter.VAR_KEYWORD else {name: value}
    for name, value in given.items():
        for leaf in pytree.tree_leaves(value):
            if type(leaf).__module__.partition(".")[0] == "numpy":
                raise OptionError(
                    f"to_onnx: {name} has {arguments.shown(leaf)}, which would be a constant; give a tensor"
                )
    return given


def _keywords_apart(model: Any, dynamic_shapes: object, given: Mapping[str, Any]) -> object:
    """{argument: spec} where torch.export's form has those of a `**keywords` together: {"keywords": {"x": spec}}."""
    named = {entry.name: entry.kind for entry in _parameters(_function(model))}
    keyword = next((name for name, kind in named.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    own = [name for name in given if name in named]
    if keyword is None or keyword in given:
        return dynamic_shapes
    if isinstance(dynamic_shapes, list | tuple) and len(dynamic_shapes) == len(own) + 1:
        together = dynamic_shapes[-1]
        if isinstance(together, Mapping) and all(isinstance(name, str) for name in together):
            dynamic_shapes = dict(zip([*own, keyword], dynamic_shapes, strict=True))
    if isinstance(dynamic_shapes, Mapping) and isinstance(dynamic_shapes.get(keyword, 0), Mapping | None):
        rest = {name: spec for name, spec in dynamic_shapes.items() if name != keyword}
        return {**rest, **(dynamic_shapes[keyword] or {})}
    return dynamic_shapes


def _tensors(given: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """(path, tensor) of every tensor among the arguments."""
    named = [(name + step, leaf) for name, value in given.items() for step, leaf in named_values(value)]
    return [(path, leaf) for path, leaf in named if isinstance(leaf, Tensor)]


def _function(model: Any) -> Any:
    return model.forward if isinstance(model, nn.Module) else model


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


@contextlib.contextmanager
def _same_members(model: Any) -> Iterator[None]:
    """Restores which tensors are registered where. Errors: ClientError where the call registered another: an ONNX model
    has no state."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for module in modules:
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
            before.append((kind, table, dict(table)))
    try:
        yield
        for kind, table, then in before:
            other = [name for name, tensor in table.items() if then.get(name) is not tensor]
            if other:
                raise _writes([f"{kind} {name}" for name in other], model)
    finally:
        for _, table, then in before:
            if {name: id(tensor) for name, tensor in table.items()} != {name: id(then[name]) for name in then}:
                table.clear()
                table.update(then)


def _check_writes(model: Any, leaves: Sequence[tuple[str, Tensor]], captured: Captured) -> None:
    """Errors: ClientError where the graph writes into what it is given."""
    names = _Names(model, leaves, captured)
    written = [names.of_input(position) for position in written_inputs(captured.graph)]
    if given := [name for name in written if names.is_argument(name)]:
        raise ClientError(
            f"to_onnx: the forward writes into {', '.join(given)}, which an ONNX model cannot: have it write into a "
            "clone() of the argument",
            code="MUTATION",
        )
    if written:
        raise _writes(written, model)


def _writes(written: Sequence[str], model: Any) -> ClientError:
    training = isinstance(model, nn.Module) and any(module.training for module in model.modules())
    mode = (
        "and the model is in training mode: call model.eval(), which ends it for batch norm and its like" if training
        else "and nothing is in training mode, where it would end: return the new value instead"
    )  # fmt: skip
    return ClientError(
        f"to_onnx: the forward writes into {', '.join(written)}, which an ONNX model cannot, {mode}", code="MUTATION"
    )


def _model_name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "model")


class _Names:
    """What the user calls the tensors of a captured forward."""

    def __init__(self, model: Any, leaves: Sequence[tuple[str, Tensor]], captured: Captured) -> None:
        self._captured = captured
        self._taken: Counter[str] = Counter()
        self._arguments: dict[str, Tensor] = {}
        for path, leaf in leaves:
            self._arguments[self._unique(_identifier(path))] = leaf
        self._of = {id(leaf): name for name, leaf in reversed(self._arguments.items())}
        self._members: dict[int, str] = {}
        for kind in ("parameters", "buffers"):
            for name, tensor in named_members(model, kind):
                if id(tensor) not in self._of and id(tensor) not in self._members:
                    self._members[id(tensor)] = self._unique(name)
        self._constants: dict[int, str] = {}

    def _unique(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else self._unique(f"{name}_{self._taken[name] - 1}")

    def of_tensor(self, tensor: Tensor, source: str) -> str:
        for known in (self._of, self._members, self._constants):
            if id(tensor) in known:
                return known[id(tensor)]
        name = parameter_name(source.replace("G[", "L[", 1) if source.startswith("G[") else source)
        name = name if re.fullmatch(r"[\w.]+", name) else _identifier(name)
        return self._constants.setdefault(id(tensor), self._unique(name or "constant"))

    def is_argument(self, name: str) -> bool:
        return name in self._arguments

    def of_input(self, position: int) -> str:
        """An input of Dynamo's graph, in messages."""
        if not 0 <= position < len(self._captured.inputs):
            return "an argument"
        return self.of_tensor(self._captured.inputs[position], self._captured.sources[position])

    def assumptions(self, right_at_one: Iterable[str] = ()) -> dict[str, str]:
        """{what torch assumed of sizes, by the inputs' names: the line that asked}. right_at_one: sizes of which 1 was
        tried."""
        names = {source: self.of_input(position) for position, source in enumerate(self._captured.sources)
                 if isinstance(self._captured.inputs[position], Tensor)}  # fmt: skip
        values = [node.meta.get("val") for node in self._captured.graph.graph.find_nodes(op="placeholder")]
        return assumptions(values, names, list(right_at_one))

    def inputs(
        self, forward: ForwardGraph, sizes: Sequence[DynamicSize], size_names: Mapping[str, str], *, as_inputs: bool
    ) -> list[ModelInput]:
        """Arguments first, then parameters, then what the program has from elsewhere."""
        read = {}
        tensors = []
        for value, position in forward.inputs.items():
            tensor, source = self._captured.inputs[position], self._captured.sources[position]
            name = self.of_tensor(tensor, source)
            if name not in self._arguments:
                tensors.append(_initializer(name, value, tensor, stays=as_inputs and isinstance(tensor, nn.Parameter)))
            read[name] = value
        tensors += [
            _initializer(self._unique(value), value, tensor, stays=False) for value, tensor in forward.constants.items()
        ]
        fakes = {node.name: node.meta.get("val") for node in forward.module.graph.find_nodes(op="placeholder")}
        found = []
        for name, tensor in self._arguments.items():
            used = read.get(name)
            shape = _shape(tensor, sizes) if used is None else _named_shape(fakes[used], size_names)
            found.append(ModelInput(name=name, value=used, dtype=tensor.dtype, shape=shape))
        known = {entry.name for entry in tensors}
        for _, leaf in named_values(self._captured.result):  # a parameter that is returned, and that nothing else reads
            name = self._members.get(id(leaf), "")
            if name and name not in known:
                tensors.append(_initializer(name, None, leaf, stays=as_inputs and isinstance(leaf, nn.Parameter)))
                known.add(name)
        return found + tensors

    def outputs(self, forward: ForwardGraph) -> list[ModelOutput]:
        """Every tensor in what the model returned, in its order."""
        made = {id(self._captured.outputs[position]): index for index, position in enumerate(forward.outputs)}
        found = []
        for step, leaf in named_values(self._captured.result):
            if not isinstance(leaf, Tensor):
                continue
            name = _identifier(step)
            name = f"output_{name}" if name[:1].isdigit() else name or "output"
            value: int | str | None = made.get(id(leaf), self._of.get(id(leaf), self._members.get(id(leaf))))
            if value is None:
                raise ClientError(
                    f"to_onnx: output {name} is {arguments.shown(leaf)} that neither the graph computes nor the call "
                    "gives: compute something of it, or leave it out of what is returned",
                    code="UNSUPPORTED",
                )
            found.append(ModelOutput(name=self._unique(name), value=value))
        return found


def _initializer(name: str, value: str | None, tensor: Tensor, *, stays: bool) -> ModelInput:
    return ModelInput(
        name=name, value=value, dtype=tensor.dtype, shape=tuple(tensor.shape), tensor=None if stays else tensor
    )


def _identifier(path: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_") if not path.isidentifier() else path


def _shape(tensor: Tensor, sizes: Sequence[DynamicSize]) -> tuple[int | str, ...]:
    """Of an argument that nothing reads."""
    named = {
        size.axis: size.name or f"{_identifier(size.where)}_{size.axis}" for size in sizes if size.tensor is tensor
    }
    return tuple(named.get(axis, length) for axis, length in enumerate(tensor.shape))


def _named_shape(fake: Tensor, size_names: Mapping[str, str]) -> tuple[int | str, ...]:
    return tuple(
        _with_names(size, size_names) if isinstance(size, torch.SymInt) and not size.node.expr.is_number else int(size)
        for size in fake.shape
    )


def _with_names(size: Any, size_names: Mapping[str, str]) -> str:
    return re.sub(r"\bs\d+\b", lambda symbol: size_names.get(symbol[0], symbol[0]), str(size.node.expr))


def _size_names(
    captured: Captured, forward: ForwardGraph, sizes: Sequence[DynamicSize], assumed: Mapping[str, str]
) -> dict[str, str]:
    """{torch's symbol: the name of the size}. Errors: OptionError where the program makes two names one size."""
    fakes = _fakes(captured, forward)
    found: dict[str, str] = {}
    first: dict[str, DynamicSize] = {}
    expressions = [(size, str(fakes[id(size.tensor)].shape[size.axis])) for size in sizes if id(size.tensor) in fakes]
    for size, expression in expressions:
        if not re.fullmatch(r"s\d+", expression) or size.name is None:
            continue
        known = found.setdefault(expression, size.name)
        if known != size.name:
            raise _one_size(assumed, first[expression], size)
        first.setdefault(expression, size)
    for size, expression in expressions:
        if re.fullmatch(r"s\d+", expression):
            found.setdefault(expression, f"{_identifier(size.where)}_{size.axis}")
    for size, expression in expressions:
        if size.strict and (pinned := _pinned(size, expression, assumed)):
            raise OptionError(
                f"to_onnx dynamic_shapes: {size} is to be dynamic, but the program fixes it at {pinned}; take "
                f"it out, or leave it open with torch.export.Dim.AUTO{_reasons(assumed)}",
                code="FIXED_SIZE",
            )
        if expression.isdigit():
            continue
        if size.name is not None and not re.fullmatch(r"s\d+", expression):
            named = re.sub(r"\bs\d+\b", lambda symbol: found.get(symbol[0], symbol[0]), expression)
            raise OptionError(
                f"to_onnx dynamic_shapes: {size} is named {size.name!r}, but the program makes it {named}; "
                f"leave its name to us (torch.export.Dim.AUTO){_reasons(assumed)}",
                code="FIXED_SIZE",
            )
    return found


def _pinned(size: DynamicSize, expression: str, assumed: Mapping[str, str]) -> str:
    """The number that the program fixes a size at, in its expression or by what torch assumed; "" where there is
    none."""
    if expression.isdigit():
        return expression
    fixed = re.compile(rf"{re.escape(_in_words(size))} == (\d+)")
    found = (fixed.fullmatch(line) for line in assumed)
    return next((match[1] for match in found if match), "")


def _one_size(assumed: Mapping[str, str], one: DynamicSize, other: DynamicSize) -> OptionError:
    return OptionError(
        f"to_onnx dynamic_shapes: {one} is named {one.name!r} and {other} {other.name!r}, but torch takes them for one "
        f"size; give both one name{_reasons(assumed)}",
        code="FIXED_SIZE",
    )


def _reasons(assumed: Mapping[str, str]) -> str:
    lines = [f"\n  {what}{f', asked for at {line}' if line else ''}" for what, line in assumed.items()]
    return "".join(lines)


make_callable(__name__, to_onnx)
