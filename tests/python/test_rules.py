"""Every rule of rust_ort.export.rules: with it the result is eager's, without it something is worse.

The second half notices the upstream fix that makes a rule superfluous.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from rule_cases import (
    BY_CHANCE,
    CASES,
    FLOAT64,
    IDS,
    IMAGE,
    LONG,
    MATRIX,
    NEAR_ONE_TENTH,
    ROWS,
    SCORES,
    WITHOUT_CASE,
    Case,
    aten,
    case,
    inf,
)
from support import KNOWN_WRONG_IN, FakeClient, together, use_client
from torch import Tensor
from torch.nn import functional

import rust_ort
from measure import rules as document
from rust_ort.export import rounding, rules
from rust_ort.export.rules import How, Rule
from rust_ort.export.rules.indexing import NEGATIVE
from rust_ort.tables import WRONG_OPTIMIZERS

DOCUMENT = Path(__file__).parents[2] / "docs" / "design" / "known-wrong-upstream.md"

pytestmark = pytest.mark.usefixtures("client")


def results(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs and gradients."""
    given = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    torch.manual_seed(0)
    made = function(*given)
    outputs = [out for out in (made if isinstance(made, tuple) else [made]) if isinstance(out, Tensor)]
    summed = [out for out in outputs if out.requires_grad]
    if not summed:
        return outputs
    wanted = [tensor for tensor in given if tensor.requires_grad]
    gradients = torch.autograd.grad(summed, wanted, [torch.ones_like(out) for out in summed], allow_unused=True)
    return [*outputs, *(gradient for gradient in gradients if gradient is not None)]


@dataclass(frozen=True, order=True)
class Outcome:
    """How bad a compiled call is. broken: Dynamo fell back, no graph is ours."""

    refused: bool = False
    wrong: bool = False
    broken: bool = False
    eager: int = 0
    inputs: int = 0


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    """torch.testing's, but for float64: there a number rounded to float32 shows."""
    return {"rtol": 1e-11, "atol": 1e-11} if dtype is torch.float64 else {}


def outcome(met: Case, *, without_fusions: Sequence[str] = WRONG_OPTIMIZERS) -> tuple[Outcome, list[str]]:
    """And why nodes ran in eager, and what is wrong. without_fusions: optimizers of ONNX Runtime that are off."""
    reference = results(met.function, met.inputs)
    backend = rust_ort.Backend()  # the list of a process's graphs lets old ones go
    client = FakeClient()
    client.disabled_optimizers = [*without_fusions]
    with pytest.MonkeyPatch.context() as patch:
        use_client(patch, client)
        try:
            candidate = results(torch.compile(met.function, backend=backend, dynamic=met.dynamic), met.inputs)
        except Exception as error:  # whatever torch or the runtime raises
            return Outcome(refused=True), [repr(error)]
    graphs = backend.graphs
    mistakes = []
    for index, (ours, eagers) in enumerate(zip(candidate, reference, strict=True)):
        try:
            torch.testing.assert_close(
                ours, eagers, equal_nan=True, check_stride=met.strides, **_tolerance(eagers.dtype)
            )
        except AssertionError as error:
            mistakes.append(f"result {index}: {error}")
    made = Outcome(
        wrong=bool(mistakes),
        broken=not graphs,
        eager=sum(len(graph.eager) for graph in graphs),
        inputs=sum(len(part.spec.input_names) for part in client.parts),
    )
    return made, [*(node.reason for graph in graphs for node in graph.eager), *mistakes]


ELSEWHERE = {("aten.copy.default", How.EAGER): "inputs that are views, of symbolic sizes: test_aliases.py"}
"""Rules for some nodes of an operator whose case is of the others."""

RULES = [
    pytest.param(rule, id=f"{rule.operator}-{rule.how.name}")
    for rule in rules.RULES
    if rule.operator in CASES and (rule.operator, rule.how) not in ELSEWHERE
]


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    operators = {rule.operator for rule in rules.RULES}
    assert operators == set(CASES) | set(WITHOUT_CASE)


@functools.cache
def with_and_without(operator: str) -> tuple[Outcome, list[str], Outcome]:
    """Of the operator's case, with its rules, several at times, and without all of them: (outcome, why nodes ran in
    eager, outcome without)."""
    made, reasons = outcome(CASES[operator])
    with rules.without(operator):
        torch._dynamo.reset()
        worse, _ = outcome(CASES[operator])
    return made, reasons, worse


@pytest.mark.parametrize("rule", RULES)
def test_with_the_rule_it_is_right_and_without_it_worse(rule: Rule) -> None:
    if not rule.overloads:
        pytest.skip(f"torch {torch.__version__} has no {rule.operator}")
    made, reasons, worse = with_and_without(rule.operator)
    assert not made.refused and not made.wrong
    if rule.how is How.EAGER:
        assert rule.why in reasons
    if rule.how is How.TRANSLATED:
        assert made.eager == 0
    if rule.how is How.EAGER:
        assert worse.refused or worse.wrong, f"upstream is right about {rule.operator}: the rule can go"
    else:
        assert worse > made, f"upstream is right about {rule.operator}: the rule can go"
    if rule.silent and rule.operator not in BY_CHANCE and rule.why != NEGATIVE:
        assert worse.wrong, f"{rule.operator} is not silently wrong without its rule: {worse}"


def test_float64_is_silently_wrong_where_nothing_looks_for_rounded_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with rules.without("aten.softplus.default"):
        found, reasons = outcome(CASES["aten.softplus.default"])
        assert not found.wrong and any("beside float64" in reason for reason in reasons)
        torch._dynamo.reset()
        monkeypatch.setattr(rounding, "rounded", lambda *_: {})
        silent, _ = outcome(CASES["aten.softplus.default"])
        assert silent.wrong and silent.eager == 0


@pytest.mark.parametrize("offset", [None, 1, 16])
@pytest.mark.parametrize(
    "view", [lambda y: y.t(), lambda y: y[2:], lambda y: y[2:].t(), lambda y: y.view(9, 7, 1).permute(2, 1, 0)]
)
def test_as_strided_of_a_view_takes_elements_in_the_order_of_memory(view: Any, offset: int | None) -> None:
    def strided(x: Tensor) -> Tensor:
        return view(x + 1).as_strided((3, 4), (5, 1), offset) + 1

    made, reasons = outcome(case(strided, MATRIX))
    assert not made.refused and not made.wrong
    before_the_view = offset == 1 and view(MATRIX).storage_offset() > MATRIX.storage_offset() + 1
    assert (made.eager == 0) == (not before_the_view), reasons


@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: torch.linalg.vector_norm(x, keepdim=True),
        lambda x: torch.linalg.vector_norm(x * 300, 3, 0),
        lambda x: torch.linalg.vector_norm(x, -inf, (0, 1)),
        lambda x: torch.linalg.vector_norm(x.sum(), 2, 0),
        lambda x: torch.linalg.vector_norm(x, dtype=torch.float64),
        lambda x: torch.sum((x * 60000).round(), dtype=torch.float64),
        lambda x: (x > 0).sum(1),
        lambda x: torch.cumprod(x, -2, dtype=torch.float32),
    ],
    ids=["keepdim", "cubes", "least", "rank_0", "norm_in_float64", "sum_in_float64", "count", "cumprod"],
)
def test_reductions_are_right_in_half_precision(reduce: Callable[..., Any]) -> None:
    made, _ = outcome(case(lambda x: reduce(x.detach()), MATRIX.half()))
    assert not made.refused and not made.wrong and made.eager == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_sums_of_integers_begin_again_where_eagers_do(dtype: torch.dtype) -> None:
    x = torch.full((5, 3), torch.iinfo(dtype).max, dtype=dtype)
    squares = torch.full((4, 3, 3), 2 ** (x.element_size() * 8 - 2), dtype=dtype)
    for total in (
        lambda x, _: x.sum(0, dtype=dtype),
        lambda x, _: x.sum(dtype=dtype),
        lambda x, _: x.sum((0, 1), keepdim=True, dtype=dtype),
        lambda x, y: torch.addbmm(x[:3], y, y),
    ):
        torch._dynamo.reset()
        made, _ = outcome(case(total, x, squares))
        # ONNX has no product of small integers.
        assert not made.refused and not made.wrong and made.eager <= (dtype != torch.int32)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16])
def test_scatters_are_right_in_every_dtype(dtype: torch.dtype) -> None:
    x = (MATRIX * 9).to(dtype)
    index = IDS[:4].reshape(2, 2)

    def scatters(x: Tensor) -> tuple[Tensor, ...]:
        added = x.index_add(0, IDS, x[:5]), x.scatter_add(0, index, x), x.index_put((IDS,), x[:5], accumulate=True)
        return (*added, *(x.scatter_reduce(0, index, x, kind) for kind in ("sum", "prod", "amax", "amin")))

    made, _ = outcome(case(lambda x: scatters(x.detach()), x))
    assert not made.refused and not made.wrong


@pytest.mark.parametrize("kind", ["amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_extremes_that_are_scattered_know_nan_and_infinity(kind: str, include_self: bool) -> None:
    def scattered(x: Tensor) -> Tensor:
        return torch.ones(4, 3).scatter_reduce(0, torch.zeros(4, 3).long(), x, kind, include_self=include_self)

    for values in (ROWS, torch.full((4, 3), inf), torch.full((4, 3), -inf)):
        torch._dynamo.reset()
        made, _ = outcome(case(lambda x: scattered(x.detach()), values))
        assert not made.refused and not made.wrong


@pytest.mark.parametrize(
    "draw",
    [
        functional.dropout,
        lambda x: functional.gumbel_softmax(x),
        lambda x: functional.rrelu(-x, training=True),
        lambda x: torch.empty_like(x).normal_(),
        lambda x: torch.empty_like(x).uniform_(),
        lambda x: torch.empty_like(x).bernoulli_(0.3),
        lambda x: torch.normal(x, 1.0),
    ],
    ids=["dropout", "gumbel_softmax", "rrelu", "normal", "uniform", "bernoulli", "normal_of_a_tensor"],
)
def test_a_seed_gives_eagers_numbers(draw: Callable[..., Any]) -> None:
    made, _ = outcome(case(lambda x: draw(x.detach()), MATRIX))
    assert not made.refused and not made.wrong


@pytest.mark.parametrize("p, dtype", [(1, torch.float32), (2, torch.float64), (inf, torch.float32)])
def test_distances_and_their_gradients_are_eagers(p: float, dtype: torch.dtype) -> None:
    points = torch.stack([MATRIX, MATRIX.flip(0)]).to(dtype)
    made, _ = outcome(case(lambda x, y: torch.cdist(x, y, p), points, points[:, 2:5]))
    assert not made.refused and not made.wrong and made.eager == 0


@pytest.mark.parametrize(
    "offset, dims, dtype",
    [
        (0, (0, 1), torch.float16),
        (1, (0, 2), torch.float64),
        (-1, (-1, 1), torch.int8),
        (-2, (1, 2), torch.float32),
        (1, (2, 0), torch.bool),
    ],
)
def test_what_is_written_to_a_diagonal(offset: int, dims: tuple[int, int], dtype: torch.dtype) -> None:
    into = IMAGE[:, :, :3].mul(9).to(dtype)
    diagonal = IMAGE.flip(0)[:, :, :3].mul(9).diagonal(offset, *dims).to(dtype)
    made, _ = outcome(case(lambda x, y: torch.diagonal_scatter(x, y, offset, *dims), into, diagonal.contiguous()))
    assert not made.refused and not made.wrong and made.eager == 0


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_in_float64_is_eagers(affine: bool) -> None:
    weights = (FLOAT64, FLOAT64.flip(0)) if affine else ()
    made, _ = outcome(case(lambda x, *given: functional.layer_norm(x, (7,), *given), MATRIX.double(), *weights))
    assert not made.refused and not made.wrong and made.eager == 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_batch_norm_beside_float32_parameters_are_float32s(dtype: torch.dtype, dynamic: bool) -> None:
    """What backward reads of forward, mean and 1 / deviation, is not rounded to half precision."""
    norm, x = torch.nn.BatchNorm2d(3), IMAGE.to(dtype)
    reference = copy.deepcopy(norm)

    def gradients(function: Callable[[Tensor], Tensor], of: torch.nn.BatchNorm2d) -> Any:
        return torch.autograd.grad((function(x) * IMAGE).sum(), list(of.parameters()))

    torch._dynamo.reset()
    made = gradients(torch.compile(norm, backend="rust_ort", dynamic=dynamic, fullgraph=True), norm)
    torch.testing.assert_close(made, gradients(reference, reference))
    torch.testing.assert_close(dict(norm.named_buffers()), dict(reference.named_buffers()))


WRONG_FUSIONS = {
    "NoopElimination": case(lambda x: 1 / (x.detach() * 0 + 0), torch.tensor([-1.0, 1.0])),
    "MatMulScaleFusion": case(lambda x, y: (x * 1e-20) @ y, torch.full((2, 2), 1e25), torch.full((2, 2), 1e25)),
    "DivMulFusion": case(lambda x, y: torch.div(1, x) * y, torch.tensor([1e-39, 1.0]), torch.tensor([1e-10, 2.0])),
    "ConvMulFusion": case(
        lambda x: functional.conv2d(x, torch.full((1, 1, 3, 3), 1e20)) * 1e25, torch.full((1, 1, 3, 3), 1e-25)
    ),
    "ConvAddFusion": case(
        lambda x: functional.conv2d(x, torch.ones(1, 1, 3, 3), torch.full((1,), 3e38)) + torch.full((1, 1, 1), 3e38),
        torch.full((1, 1, 3, 3), -4e37),
    ),
}

VECTORS = "MatmulTransposeFusion"
"""It takes vectors for matrices; a model made by hand reaches it, a graph of torch does not."""


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("shape, dims", [
    ((2**16, 3), 0), ((4, 2**20), 1), ((2, 1024, 16), (0, 1)), ((3, 1024, 2, 16), (1, 3)), ((2, 3, 40, 50), (0, 2, 3)),
    ((2, 5, 3), (0, -1)), ((1031, 2), 0), ((1, 2048, 0), 1), ((5,), ()), ((2, 3, 30_000), -1), ((8195,), 0),
])  # fmt: skip
def test_sums_in_two_stages(shape: tuple[int, ...], dims: int | tuple[int, ...]) -> None:
    xs = {f"{dtype}": LONG[: math.prod(shape)].reshape(shape).to(dtype) for dtype in FLOATS}
    reductions = list(itertools.product((torch.sum, torch.mean), (False, True)))

    def function(xs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{reduce.__name__} of {dtype}{', keepdim' if keepdim else ''}": reduce(x, dims, keepdim=keepdim)
            for dtype, x in xs.items()
            for reduce, keepdim in reductions
        }

    compiled = torch.compile(function, backend="rust_ort", dynamic=False)
    torch.testing.assert_close(compiled(xs), function(xs), equal_nan=True)


UNEVEN = 1_000_003
LENGTHS: dict[str, tuple[tuple[int, ...], Any]] = {
    "columns": ((UNEVEN, 2), 0),
    "rows": ((2, UNEVEN), 1),
    "in the middle": ((2, UNEVEN, 2), 1),
    "alone": ((UNEVEN,), 0),
    "all": ((3, 1009, 1013), None),
    "but the second": ((3, 5, 1009, 211), (0, 2, 3)),
    "every other": ((7, 1009, 2, 151), (1, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_of_uneven_and_unknown_length(dynamic: bool) -> None:
    """To 1e-5, where one number after the other is off by 1e-4 to 1e-3; and of second tensors, shorter all over."""

    def reduced(xs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{reduce.__name__} of {name}": reduce(x, LENGTHS[name][1])
            for name, x in xs.items()
            for reduce in (torch.sum, torch.mean, torch.var, torch.nansum, torch.std)
        }

    compiled = torch.compile(reduced, backend="rust_ort", dynamic=dynamic, fullgraph=True)
    xs = {name: NEAR_ONE_TENTH[: math.prod(shape)].reshape(shape) for name, (shape, _) in LENGTHS.items()}
    shorter = {name: x[tuple(slice(2 if size < 10 else 7) for size in x.shape)].contiguous() for name, x in xs.items()}
    for given in (xs, shorter):
        exact = reduced({name: x.double() for name, x in given.items()})
        for name, made in compiled(given).items():
            assert (made - exact[name]).abs().max() <= 1e-5 * exact[name].abs().max(), name


@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings(mode: str, padding_idx: int | None, include_last_offset: bool) -> None:
    offsets = torch.tensor([0, 3, 3, 5] if include_last_offset else [0, 3, 3])

    def bags(*weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            functional.embedding_bag(
                IDS, weight, offsets, mode=mode, padding_idx=padding_idx, include_last_offset=include_last_offset
            )
            for weight in weights
        )

    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    made, reasons = outcome(case(bags, *(SCORES.to(dtype) for dtype in dtypes)))
    assert made == Outcome(inputs=made.inputs), reasons


@pytest.mark.parametrize("optimizer", [name for name in WRONG_OPTIMIZERS if name != VECTORS])
def test_an_optimizer_that_is_switched_off_is_still_wrong(optimizer: str) -> None:
    met = WRONG_FUSIONS[optimizer]
    right, reasons = outcome(met)
    assert not right.wrong and not right.refused and right.eager == 0, f"{right}: {reasons}"
    torch._dynamo.reset()
    switched_on, reasons = outcome(met, without_fusions=[name for name in WRONG_OPTIMIZERS if name != optimizer])
    assert not switched_on.refused, reasons
    if not switched_on.wrong and onnxruntime.__version__ == KNOWN_WRONG_IN:
        where = f"{platform.machine()}, {os.cpu_count()} cores; {right}, {switched_on}"
        pytest.skip(f"onnxruntime {KNOWN_WRONG_IN} is right with {optimizer} on this machine: {where}")
    assert switched_on.wrong, f"onnxruntime {onnxruntime.__version__} is right with {optimizer}: it can be switched on"


@pytest.mark.parametrize("n_columns", [2, 3])
def test_the_fusion_of_a_transpose_and_a_product_with_a_vector_is_still_wrong(n_columns: int) -> None:
    """No rule makes a product with a vector any more; models of other exporters hold them."""
    nodes = [
        onnx.helper.make_node("Transpose", ["matrix"], ["transposed"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["transposed", "vector"], ["product"]),
    ]
    float32 = onnx.TensorProto.FLOAT
    feeds = [
        onnx.helper.make_tensor_value_info("matrix", float32, [2, n_columns]),
        onnx.helper.make_tensor_value_info("vector", float32, [2]),
    ]
    fetches = [onnx.helper.make_tensor_value_info("product", float32, [n_columns])]
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "mv", feeds, fetches), opset_imports=opset, ir_version=9
    )
    matrix = MATRIX[:2, :n_columns].numpy()
    vector = matrix[:, 0].copy()

    def product(switched_off: list[str]) -> Tensor:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"], disabled_optimizers=switched_off
        )
        return torch.from_numpy(session.run(None, {"matrix": matrix, "vector": vector})[0])

    right = torch.from_numpy(matrix.T @ vector)
    torch.testing.assert_close(product([*WRONG_OPTIMIZERS]), right)
    switched_on = product([name for name in WRONG_OPTIMIZERS if name != VECTORS])
    is_right = torch.allclose(switched_on, right)
    assert not is_right, f"onnxruntime {onnxruntime.__version__} is right with {VECTORS}: it can be switched on"


KEEP_A_NUMBER: list[Callable[[Tensor], Tensor]] = [
        lambda x: x + 0.1, lambda x: x * 0.1, lambda x: 0.1 / x, lambda x: 0.1 - x, lambda x: x > x.new_full((), 0.1),
        lambda x: torch.where(x > 0, x, 0.1), lambda x: torch.clamp(x, 0.1, 0.2), lambda x: torch.clamp_max(x, 0.1),
        lambda x: torch.clamp_min(x, 0.1), lambda x: aten.fill(x, 0.1), lambda x: aten.full_like(x[::2], 0.1),
        lambda x: x + torch.full((7,), 0.1, dtype=torch.float64), lambda x: torch.masked_fill(x, x > 0, 0.1),
        lambda x: x.new_full((3,), 1e300), lambda x: x + aten.scalar_tensor(0.1, dtype=torch.float64),
        lambda x: torch.add(x, x, alpha=0.1), lambda x: torch.lerp(x, x.flip(0), 0.1), torch.rad2deg,
        lambda x: torch.log2(x.abs()), lambda x: torch.log10(x.abs()), lambda x: torch.fmod(x, 0.1),
        lambda x: torch.addcdiv(x, x, x.flip(0) + 2, value=0.1), lambda x: torch.pow(0.1, x), lambda x: x**0.1,
    ]  # fmt: skip


def test_a_number_in_float64_is_not_rounded() -> None:
    named = {f"{getattr(one, '__name__', '')} {index}": one for index, one in enumerate(KEEP_A_NUMBER)}
    every, given = together(named), dict.fromkeys(named, (FLOAT64,))
    backend = rust_ort.Backend()
    candidate = torch.compile(every, backend=backend, dynamic=False)(given)
    assert [graph.eager for graph in backend.graphs] == [[]]
    torch.testing.assert_close(candidate, every(given), rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64])
@pytest.mark.parametrize("number", [1.0, 5])
def test_a_number_less_an_integer_is_in_the_dtype_of_the_result(dtype: torch.dtype, number: float) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return number - x, torch.rsub(x, number, alpha=2)

    x = torch.tensor([0, 3, 100], dtype=dtype)
    candidate = torch.compile(function, backend="rust_ort", dynamic=False)(x)
    torch.testing.assert_close(candidate, function(x), rtol=0, atol=0)


def test_sizes_are_divided_as_python_divides_them() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return x + (-n // 2), x + (n // -2), x + (-7 // n), x + (-n % 4), x[-n // 2 :] * 2

    compiled = torch.compile(function, backend="rust_ort", dynamic=True)
    for n in (9, 8, 5):
        x = torch.arange(float(n))
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


def test_ranges_are_eagers() -> None:
    bounds = [(0, 1, 0.1), (5, -5, -0.3), (0, 3e5, 1.0), (2**40, 2**40 - 9, -4), (0.5, 0.5, 1)]
    ranges = {f"{bound} of {dtype}": (bound, dtype) for bound in bounds for dtype in (*FLOATS, None)}

    def function() -> dict[str, Tensor]:
        return {name: torch.arange(*bound, dtype=dtype) + 0 for name, (bound, dtype) in ranges.items()}

    references = function()
    for name, candidate in torch.compile(function, backend="rust_ort", dynamic=False)().items():
        # One rounding of the largest number: a machine may multiply and add in one step or two.
        eps = torch.finfo(candidate.dtype).eps if candidate.is_floating_point() else 0
        torch.testing.assert_close(
            candidate, references[name], rtol=eps, atol=eps * max(map(abs, ranges[name][0])),
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def test_the_document_has_every_rule() -> None:
    assert document.table() in DOCUMENT.read_text()
