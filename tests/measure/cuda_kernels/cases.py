"""Models of one node each: every operator of ONNX, in every version, with every element type that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, defs, helper

ELEMENTS = {
    "bfloat16": TensorProto.BFLOAT16,
    "float16": TensorProto.FLOAT16,
    "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
}
"""Element types that are asked for, as ONNX's schemas call them."""

FLOATS = ("bfloat16", "float16", "float", "double")

OTHERS = ("float", "int64", "bool", "int32", "uint8", "double", "int8", "uint16", "string", "float8e4m3fn")
"""What a type that is not asked for is, the first of these that the operator takes."""

TYPED_BY = ("to", "dtype", "output_datatype", "output_dtype")
"""Attributes that hold the element type of what comes out."""

BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of which the kernel is no question of types: what their bodies compute is asked for by itself."""

NOT_ASKED = BODIES | {"Constant", "Optional", "OptionalGetElement", "OptionalHasElement"}
"""A Constant is no node to ONNX Runtime; Optional's are no tensors."""

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "AveragePool": {"kernel_shape": [2, 2]},
    "BitShift": {"direction": "LEFT"},
    "Concat": {"axis": 0},
    "ConcatFromSequence": {"axis": 0},
    "DepthToSpace": {"blocksize": 2},
    "Einsum": {"equation": "ij,jk->ik"},
    "GroupNormalization": {"num_groups": 2},
    "LRN": {"size": 3},
    "LSTM": {"hidden_size": 4},
    "LinearAttention": {"q_num_heads": 2, "kv_num_heads": 2},
    "GRU": {"hidden_size": 4, "linear_before_reset": 1},
    "LpPool": {"kernel_shape": [2, 2]},
    "MaxPool": {"kernel_shape": [2, 2]},
    "MaxRoiPool": {"pooled_shape": [2, 2]},
    "MaxUnpool": {"kernel_shape": [2, 2]},
    "RandomNormal": {"shape": [2]},
    "RandomUniform": {"shape": [2]},
    "RNN": {"hidden_size": 4},
    "SpaceToDepth": {"blocksize": 2},
    "Split": {"num_outputs": 2},
    "TfIdfVectorizer": {
        "max_gram_length": 1, "max_skip_count": 0, "min_gram_length": 1, "mode": "TF", "ngram_counts": [0],
        "ngram_indexes": [0], "pool_int64s": [1],
    },
}  # fmt: skip
"""Attributes that an operator needs, or that a kernel of 1.31.1 asks for."""

OLDER: dict[tuple[str, int], dict[str, Any]] = {
    ("BatchNormalization", 1): {"consumed_inputs": [0, 0]},
    ("Pad", 1): {"paddings": [0, 0]},
    ("Pad", 2): {"pads": [0, 0]},
    ("Slice", 1): {"starts": [0], "ends": [1]},
    ("Split", 1): {},
    ("Split", 2): {},
    ("Split", 11): {},
    ("Split", 13): {},
    ("TopK", 1): {"k": 1},
    ("Unsqueeze", 1): {"axes": [0]},
    ("Unsqueeze", 11): {"axes": [0]},
    ("Upsample", 1): {"height_scale": 2.0, "width_scale": 2.0},
    ("Upsample", 7): {"scales": [1.0, 2.0]},
}
"""The same of older versions."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: an operator, the opset of this version, and which of its types has the element that is asked for."""

    operator: str
    since: int
    type_name: str
    element: str


def cases() -> Iterator[Case]:
    """All, in the order of the operators."""
    for schema in sorted(schemas(), key=lambda schema: (schema.name, schema.since_version)):
        if schema.name in NOT_ASKED:
            continue
        for constraint in schema.type_constraints:
            taken = {_element(allowed) for allowed in constraint.allowed_type_strs}
            for element in ELEMENTS:
                if element in taken and _is_reached(schema, constraint.type_param_str):
                    yield Case(
                        operator=schema.name, since=schema.since_version,
                        type_name=constraint.type_param_str, element=element,
                    )  # fmt: skip


def schemas() -> list[Any]:
    """Of ONNX's own operators, every version that is not withdrawn."""
    found = [schema for schema in defs.get_all_schemas_with_history() if schema.domain == ""]
    return [schema for schema in found if not schema.deprecated]


def model(case: Case) -> onnx.ModelProto:
    """The model of a case: every input is one of the graph, of an unknown shape. Types that the case does not name
    have its element, too, where the operator takes it: what computes in half precision does with all that it reads."""
    schema = defs.get_schema(case.operator, case.since, "")
    chosen = _types(schema, case)
    inputs, infos = [], []
    for formal in schema.inputs:
        if formal.option == defs.OpSchema.FormalParameterOption.Optional and not _is_asked(formal, case):
            inputs.append("")
            continue
        count = 1
        if formal.option == defs.OpSchema.FormalParameterOption.Variadic:
            count = max(2, formal.min_arity) if case.operator != "ConcatFromSequence" else 1
        for _ in range(count):
            name = f"input_{len(inputs)}"
            inputs.append(name)
            infos.append(helper.make_value_info(name, _type_proto(chosen.get(formal.type_str, formal.type_str))))
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = [f"output_{at}" for at in range(_n_outputs(schema))]
    node = helper.make_node(case.operator, inputs, outputs, name="node", **_attributes(schema, case, chosen))
    graph = helper.make_graph([node], "graph", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.since)], ir_version=10)


def _n_outputs(schema: Any) -> int:
    single = [o for o in schema.outputs if o.option == defs.OpSchema.FormalParameterOption.Single]
    return 2 if schema.name == "Split" else max(1, len(single))


def _is_reached(schema: Any, type_name: str) -> bool:
    """Whether a case can choose the type: an input has it, or an attribute says it."""
    by_attribute = any(name in schema.attributes for name in TYPED_BY) or schema.name == "ConstantOfShape"
    return any(formal.type_str == type_name for formal in schema.inputs) or (
        by_attribute and any(formal.type_str == type_name for formal in schema.outputs)
    )


def _is_asked(formal: Any, case: Case) -> bool:
    return bool(formal.type_str == case.type_name) and case.type_name not in ("T", "T1")


def _types(schema: Any, case: Case) -> dict[str, str]:
    """{type's name: the type that it is}, as ONNX writes it."""
    chosen = {}
    for constraint in schema.type_constraints:
        by_element = {_element(allowed): allowed for allowed in sorted(constraint.allowed_type_strs)}
        is_asked = case.element in FLOATS or constraint.type_param_str == case.type_name
        wanted = (case.element, *OTHERS) if is_asked else OTHERS
        element = next((element for element in wanted if element in by_element), None)
        if element is not None:
            chosen[constraint.type_param_str] = by_element[element]
    return chosen


def _attributes(schema: Any, case: Case, chosen: Mapping[str, str]) -> dict[str, Any]:
    given = dict(OLDER.get((case.operator, case.since), ATTRIBUTES.get(case.operator, {})))
    of_result = schema.outputs[0].type_str if schema.outputs else ""
    if of_result in chosen and all(formal.type_str != of_result for formal in schema.inputs):
        element = getattr(TensorProto, _element(chosen[of_result]).upper())
        for name in TYPED_BY:
            if name in schema.attributes:
                is_text = schema.attributes[name].type == defs.OpSchema.AttrType.STRING
                given[name] = _element(chosen[of_result]).upper() if is_text else element
        if case.operator == "ConstantOfShape":
            given["value"] = helper.make_tensor("value", element, [1], [0])
    return given


def _element(written: str) -> str:
    """float of "tensor(float)", of "seq(tensor(float))" and of "optional(tensor(float))"."""
    return written.rsplit("(", 1)[-1].rstrip(")")


def _type_proto(written: str) -> onnx.TypeProto:
    inner = written.split("(", 1)[-1][:-1]
    if written.startswith("seq("):
        return helper.make_sequence_type_proto(_type_proto(inner))
    if written.startswith("optional("):
        return helper.make_optional_type_proto(_type_proto(inner))
    return helper.make_tensor_type_proto(getattr(TensorProto, inner.upper()), None)
