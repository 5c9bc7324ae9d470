"""The forward of a model as one ONNX model, which any runtime runs.

proto = rust_ort.to_onnx(model, x, path="model.onnx", dynamic_shapes={"x": {0: "batch"}})
onnxruntime.InferenceSession("model.onnx").run(None, {"x": x.numpy()})
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rust_ort._callable import make_callable
from rust_ort.errors import ClientError, OptionError
from rust_ort.export.forward_model import ForwardGraph
from rust_ort.export.model_file import assembled, saved
from rust_ort.export.module_functions import stacks
from rust_ort.export.text import one_line
from rust_ort.observe.reference import one_at_a_time, rng_kept
from rust_ort.observe.state import UNINITIALIZED
from rust_ort.options import Options, arguments
from rust_ort.runtime.forward import forward, same_members
from rust_ort.runtime.forward_call import call_of, function_of, parameters_of
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

    Inputs are the tensors among the arguments, in their order: `x`, `cache_layers_0_keys`; also one that nothing reads,
    or of which sizes alone are read, by Shape where they are dynamic. Numbers, strings and None among the arguments are
    constants of the model. Outputs are the tensors in what the model returns, under their names there (`logits`), else
    `output`, `output_0`; one named like an input has a number behind it. Buffers, and tensors that the program has from
    elsewhere, are initializers. What else a program does, to its attributes, a logger or a file, is not in the model;
    nor is a write into a buffer or parameter that each call overwrites whole before it reads it. A model that computes
    in bfloat16 on the CPU is written with a warning: its provider needs `rust-ort widen`; so is one with a type that
    ONNX has not for an operator, such as a product of int16. What torch assumed of dynamic sizes is in
    metadata_props["rust_ort.assumes"], one a line, `x.shape[0] == y.shape[0]`: the model is right for sizes
    of which that holds. Where torch has 2 as the least size, 1 is tried: `>= 1` where the graph then gives eager's
    results. The modules that a node is in are in its metadata, as torch.onnx.export has them.

    Errors: ClientError where the graph breaks, where a node has no ONNX form (each is named, with its line), and where
    the forward writes into an argument, or otherwise into a parameter or buffer; OptionError for an argument, and where
    the program fixes a size that is to be dynamic; OSError where nothing can be written to `path`; what the model
    raises.
    """
    if unknown:
        raise _unknown(model, unknown)
    kwargs = dict(kwargs or {})
    options = _checked(model, kwargs, opset, parameters, optimized, custom_translations)
    patterns = _checked_patterns(export_modules_as_functions)
    target = _checked_path(path)
    plain: Any = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", model)
    with one_at_a_time(), rng_kept(), same_members(plain), _told_apart(args):
        made = forward(plain, lambda: call_of(plain, args, kwargs, dynamic_shapes, own_sizes=patterns != ()), options)
        inputs = made.names.inputs(made.graph, made.call.sizes, made.size_names, as_inputs=parameters == "inputs")
        traced = made.graph.module.graph
        proto = assembled(
            made.onnx, inputs, made.outputs, made.size_names, made.assumes(), optimized=optimized,
            modules=stacks(traced, made.onnx, None),
            functions=stacks(traced, made.onnx, patterns) if patterns != () else None,
        )  # fmt: skip
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
    if name in IN_OTHER_WORDS and name not in {entry.name for entry in parameters_of(function_of(model))}:
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


make_callable(__name__, to_onnx)
