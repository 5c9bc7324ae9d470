"""Attention as functions of our own domain, in ONNX operators: what any tool runs where our executor has a kernel.

[Causal][Masked]ScaledDotProductAttention: (query, key, value, scale[, attn_mask]) to (output, logsumexp).
The same with Gradient after it: (grad_output, query, key, value, output, logsumexp, scale[, attn_mask]) to
(grad_query, grad_key, grad_value).

query, output and their gradients are [batch, heads, length, size]; key and value [batch, key heads, keys, size], where
each of the key heads serves as many heads in a row. logsumexp, [batch, heads, length], scale, a number, and attn_mask,
which is broadcast to [batch, heads, length, keys] and added to the scores, are of the element type that is computed in:
attribute stash_type, float32 for half precision. A row whose every score is -inf gives zeros, and 0 as logsumexp.
Attribute kernel names the kernel of CUDA's that eager has: "flash", "efficient" or "cudnn". No node of the body reads
it; our executor puts that kernel in the place of the call.
"""

from __future__ import annotations

import itertools
from typing import Any

DOMAIN = "rust_ort"
VERSION = 1

NAMES = [
    f"{causal}{masked}ScaledDotProductAttention{gradient}"
    for causal, masked, gradient in itertools.product(("", "Causal"), ("", "Masked"), ("", "Gradient"))
]

_SCORES = """
    batch = Shape <start = 0, end = 1> (query)
    length = Shape <start = 2, end = 3> (query)
    size = Shape <start = 3, end = 4> (query)
    groups = Shape <start = 1, end = 2> (key)
    keys = Shape <start = 2, end = 3> (key)
    rest = Constant <value_ints = [-1]> ()
    sharing = Constant <value_ints = [2]> ()
    last = Constant <value_ints = [-1]> ()
    query_shape = Shape (query)
    by_group = Concat <axis = 0> (batch, groups, rest, length, size)
    scores_by_group = Concat <axis = 0> (batch, groups, rest, length, keys)
    scores_by_head = Concat <axis = 0> (batch, rest, length, keys)
    wide_query = Cast <to: int = @stash_type> (query)
    wide_key = Cast <to: int = @stash_type> (key)
    wide_value = Cast <to: int = @stash_type> (value)
    scaled_query = Mul (wide_query, scale)
    queries = Reshape (scaled_query, by_group)
    shared_key = Unsqueeze (wide_key, sharing)
    shared_value = Unsqueeze (wide_value, sharing)
    key_across = Transpose <perm = [0, 1, 2, 4, 3]> (shared_key)
    grouped_scores = MatMul (queries, key_across)
    products = Reshape (grouped_scores, scores_by_head)
"""

_CAUSAL = """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    last_axis = Constant <value_ints = [1]> ()
    n_rows = Squeeze (length)
    n_columns = Squeeze (keys)
    rows = Range (zero, n_rows, one)
    columns = Range (zero, n_columns, one)
    row = Unsqueeze (rows, last_axis)
    seen = LessOrEqual (columns, row)
    minus_infinity = Constant <value_float = -inf> ()
    unseen = CastLike (minus_infinity, products)
    {result} = Where (seen, products, unseen)
"""

_FORWARD = """
    largest = ReduceMax (scores, last)
    no_score = IsInf <detect_positive = 0> (largest)
    number_0 = Constant <value_float = 0.0> ()
    number_1 = Constant <value_float = 1.0> ()
    nothing = CastLike (number_0, scores)
    something = CastLike (number_1, scores)
    shift = Where (no_score, nothing, largest)
    shifted = Sub (scores, shift)
    weights = Exp (shifted)
    total = ReduceSum (weights, last)
    divisor = Where (no_score, something, total)
    probabilities = Div (weights, divisor)
    logarithm = Log (divisor)
    row_logsumexp = Add (shift, logarithm)
    logsumexp = Squeeze (row_logsumexp, last)
    grouped_probabilities = Reshape (probabilities, scores_by_group)
    grouped_output = MatMul (grouped_probabilities, shared_value)
    wide_output = Reshape (grouped_output, query_shape)
    output = CastLike (wide_output, query)
"""

_GRADIENT = """
    row_logsumexp = Unsqueeze (logsumexp, last)
    shifted = Sub (scores, row_logsumexp)
    weights = Exp (shifted)
    probabilities = Reshape (weights, scores_by_group)
    probabilities_across = Transpose <perm = [0, 1, 2, 4, 3]> (probabilities)
    wide_grad = Cast <to: int = @stash_type> (grad_output)
    wide_output = Cast <to: int = @stash_type> (output)
    grad = Reshape (wide_grad, by_group)
    of_output = Reshape (wide_output, by_group)
    value_across = Transpose <perm = [0, 1, 2, 4, 3]> (shared_value)
    grad_probabilities = MatMul (grad, value_across)
    through_output = Mul (grad, of_output)
    row_sums = ReduceSum (through_output, last)
    from_sums = Sub (grad_probabilities, row_sums)
    grad_scores = Mul (probabilities, from_sums)
    grad_scores_across = Transpose <perm = [0, 1, 2, 4, 3]> (grad_scores)
    grad_of_queries = MatMul (grad_scores, shared_key)
    grad_of_scaled = Reshape (grad_of_queries, query_shape)
    wide_grad_query = Mul (grad_of_scaled, scale)
    grad_query = CastLike (wide_grad_query, query)
    grad_keys = MatMul (grad_scores_across, queries)
    wide_grad_key = ReduceSum <keepdims = 0> (grad_keys, sharing)
    grad_key = CastLike (wide_grad_key, key)
    grad_values = MatMul (probabilities_across, grad)
    wide_grad_value = ReduceSum <keepdims = 0> (grad_values, sharing)
    grad_value = CastLike (wide_grad_value, value)
"""


def name_of(*, is_causal: bool, is_masked: bool, is_gradient: bool) -> str:
    """The function."""
    forward = f"{'Causal' if is_causal else ''}{'Masked' if is_masked else ''}ScaledDotProductAttention"
    return f"{forward}Gradient" if is_gradient else forward


def parameters(name: str) -> tuple[list[str], list[str]]:
    """The function's inputs and outputs."""
    mask = ["attn_mask"] if "Masked" in name else []
    if name.endswith("Gradient"):
        inputs = ["grad_output", "query", "key", "value", "output", "logsumexp", "scale", *mask]
        return inputs, ["grad_query", "grad_key", "grad_value"]
    return ["query", "key", "value", "scale", *mask], ["output", "logsumexp"]


def schema(name: str) -> Any:
    """The function's signature as onnx has it."""
    from onnx.defs import OpSchema

    inputs, outputs = parameters(name)
    wide = {"logsumexp", "scale", "attn_mask"}
    formals = [
        [OpSchema.FormalParameter(formal, "U" if formal in wide else "T") for formal in formals]
        for formals in (inputs, outputs)
    ]
    floats = [f"tensor({dtype})" for dtype in ("float", "double", "float16", "bfloat16")]
    return OpSchema(
        name,
        DOMAIN,
        VERSION,
        inputs=formals[0],
        outputs=formals[1],
        type_constraints=[("T", floats, ""), ("U", floats[:2], "")],
        attributes=[
            OpSchema.Attribute("stash_type", OpSchema.AttrType.INT, required=True),
            OpSchema.Attribute("kernel", OpSchema.AttrType.STRING, required=False),
        ],
    )


def function(name: str, opset: int) -> Any:
    """The function as onnx_ir has it, written with this opset, 18 or later."""
    import onnx.parser
    import onnx_ir as ir

    inputs, outputs = parameters(name)
    text = (
        f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {name} <stash_type: int = 1, kernel: string = ""> '
        f"({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {_body(name)} }}"
    )
    return ir.from_proto(onnx.parser.parse_function(text))


def _body(name: str) -> str:
    body, products = _SCORES, "products"
    if name.startswith("Causal"):
        body, products = body + _CAUSAL.format(result="seen_products"), "seen_products"
    summed = f"Add ({products}, attn_mask)" if "Masked" in name else f"Identity ({products})"
    return f"{body}scores = {summed}\n{_GRADIENT if name.endswith('Gradient') else _FORWARD}"
