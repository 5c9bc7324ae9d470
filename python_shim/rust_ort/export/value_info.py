"""A changed model's value_info, held against its nodes: whoever rewrites the model believes it."""

from __future__ import annotations

from typing import Any


def drop_contradicted(proto: Any) -> None:
    """Takes out of a ModelProto's value_info the shapes that its nodes contradict, as ONNX's own inference has it, and
    puts the inferred ones there. What inference cannot tell stays."""
    from onnx import ModelProto, shape_inference

    untold = ModelProto()
    untold.CopyFrom(proto)
    del untold.graph.value_info[:]
    try:
        known_model = shape_inference.infer_shapes(untold, data_prop=True)
    except (RuntimeError, ValueError):  # no valid model: the runtime says what is wrong with it
        return
    inferred = {info.name: info for info in known_model.graph.value_info}
    for told in proto.graph.value_info:
        known = inferred.get(told.name)
        if known is not None and _contradicts(known.type.tensor_type, told.type.tensor_type):
            told.CopyFrom(known)


def _contradicts(known: Any, told: Any) -> bool:
    """Whether both cannot be true: of tensor types. Sizes without a number may be any."""
    if known.elem_type and told.elem_type and known.elem_type != told.elem_type:
        return True
    if not (known.HasField("shape") and told.HasField("shape")):
        return False
    if len(known.shape.dim) != len(told.shape.dim):
        return True
    sizes = zip(known.shape.dim, told.shape.dim, strict=True)
    return any(a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value for a, b in sizes)
