"""Single elements of a product in float64: their values, and which of them decide."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from onnxscript import opset18 as op
from torch import Tensor, fx, nn

import rust_ort
from rust_ort.observe.in_order import SUMMED, granted, lost, terms_of
from rust_ort.observe.opinion import Opinions
from rust_ort.observe.products import EXPLAINED, FEW, WORST, Product, to_look_at
from rust_ort.tables import ROUNDINGS

aten = torch.ops.aten
EPSILON = torch.finfo(torch.float32).eps
TOLERANCE = {"atol": 0.0, "rtol": 2 * EPSILON * 8, "scale": 0.0, "equal_nan": False}


def called(target: Any, *args: Any, **kwargs: Any) -> tuple[fx.Node, dict[fx.Node, Any]]:
    """A node that calls `target`, and its tensors."""
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}

    def given(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        node = graph.placeholder(f"x{len(env)}")
        env[node] = value
        return node

    return graph.call_function(target, tuple(given(value) for value in args), kwargs), env


def product(target: Any, *args: Any, **kwargs: Any) -> Product:
    found = Product.of(*called(target, *args, **kwargs))
    assert found is not None
    return found


CASES: Mapping[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "mm": (aten.mm.default, (torch.randn(5, 7), torch.randn(7, 6)), {}),
    "transposed": (aten.mm.default, (torch.randn(7, 5).t(), torch.randn(6, 7).t()), {}),
    "bmm": (aten.bmm.default, (torch.randn(3, 5, 7), torch.randn(3, 7, 6)), {}),
    "addmm": (aten.addmm.default, (torch.randn(6), torch.randn(5, 7), torch.randn(7, 6)), {"alpha": -2, "beta": 0.5}),
    "baddbmm": (aten.baddbmm.default, (torch.randn(3, 1, 6), torch.randn(3, 5, 7), torch.randn(3, 7, 6)), {"beta": -1}),
    "half": (aten.mm.default, (torch.randn(5, 7).bfloat16(), torch.randn(7, 6).bfloat16()), {}),
    "no terms": (aten.mm.default, (torch.randn(5, 0), torch.randn(0, 6)), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_single_elements_are_those_of_the_whole_in_float64(
    case: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rust_ort.observe.products._CHUNK", chunk)
    target, args, kwargs = CASES[case]
    before = [value.clone() for value in args]
    wide = [value.double() for value in args]
    whole = target(*wide, **kwargs)
    terms = target(*(value.abs() for value in wide), **{name: abs(value) for name, value in kwargs.items()})
    elements = torch.randperm(whole.numel())[: whole.numel() // 2]
    exact, added = product(target, *args, **kwargs).at(elements)
    torch.testing.assert_close(exact, whole.flatten()[elements], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(added, terms.flatten()[elements], rtol=1e-13, atol=1e-13)
    assert all(torch.equal(value, kept) for value, kept in zip(args, before, strict=True)), "nothing is written"


def test_what_is_no_product_and_what_is_exact_anyway_has_none() -> None:
    x = torch.randn(3, 3)
    assert Product.of(*called(aten.mul.Tensor, x, x)) is None
    assert Product.of(*called(aten.mm.default, x.double(), x.double())) is None


@pytest.mark.parametrize("case", ["mm", "transposed", "bmm", "addmm", "baddbmm", "half", "no terms"])
def test_some_of_the_terms_are_a_lower_bound(case: str) -> None:
    target, args, kwargs = CASES[case]
    found = product(target, *args, **kwargs)
    least = found.least_terms()
    exact = found.at(torch.arange(least.numel()))[1].reshape(least.shape)
    assert least.shape == exact.shape and bool((least <= exact * (1 + 1e-6)).all())


@functools.cache
def computed(size: int) -> tuple[Product, Tensor, Tensor]:
    """A product of `size`, its value and Σ|terms|: nobody writes to them."""
    draws = torch.Generator().manual_seed(size)
    found = product(aten.mm.default, *(torch.randn(size, size, generator=draws) for _ in range(2)))
    value, terms = (made.reshape(size, size) for made in found.at(torch.arange(size * size)))
    return found, value, terms


def off(size: int, *, roundings: float) -> tuple[Product, Tensor, Tensor]:
    """A product of `size`, its value, and one that is off by so many roundings of Σ|terms| in every element."""
    found, value, terms = computed(size)
    signs = torch.randn(size, size).sign()
    return found, value.float(), (value + signs * roundings * EPSILON * terms).float()


def test_few_that_differ_are_all_looked_at() -> None:
    found, value, candidate = off(128, roundings=40)
    candidate = torch.where(torch.arange(128 * 128).reshape(128, 128) % 1000 == 7, candidate, value)
    elements = to_look_at(found, value, candidate, TOLERANCE)
    assert elements is not None and elements.tolist() == list(range(7, 128 * 128, 1000))


def test_of_many_that_what_they_add_up_explains_the_worst_are_looked_at() -> None:
    found, value, candidate = off(512, roundings=0.1)
    elements = to_look_at(found, value, candidate, {**TOLERANCE, "rtol": 0.0})
    assert elements is not None and len(elements) == WORST
    excess = (candidate - value).abs() / found.least_terms()
    assert set(elements.tolist()) == set(excess.flatten().topk(WORST).indices.tolist())


@pytest.mark.parametrize("place", [0, 512 * 512 - 1])
@pytest.mark.parametrize("planted", [40.0, float("nan"), float("inf")])
def test_among_many_one_that_nothing_explains_is_looked_at(place: int, planted: float) -> None:
    found, value, candidate = off(512, roundings=0.1)
    terms = found.at(torch.tensor([place]))[1]
    candidate.view(-1)[place] = (value.view(-1)[place] + planted * EPSILON * terms).float().item()
    elements = to_look_at(found, value, candidate, {**TOLERANCE, "rtol": 0.0})
    assert elements is not None and place in elements.tolist() and len(elements) <= 512 * 512 // FEW


@pytest.mark.parametrize("pair", [(math.inf, 1e3), (-math.inf, math.inf), (1.0, math.nan), (math.nan, 1.0)])
@pytest.mark.parametrize("many", [False, True])
def test_what_is_not_finite_is_looked_at_on_either_side(pair: tuple[float, float], many: bool) -> None:
    found, value, candidate = off(512, roundings=0.1 if many else 0.0)
    candidate[0, 0] += 1  # something else differs
    value[3, 4], candidate[3, 4] = pair
    elements = to_look_at(found, value, candidate, {**TOLERANCE, "rtol": 1e-9})
    assert elements is not None and 3 * 512 + 4 in elements.tolist()


def test_of_a_half_what_is_more_than_half_a_step_off_is_looked_at() -> None:
    left, right = torch.randn(128, 64).half(), torch.randn(64, 128).half()
    value = left @ right
    candidate = value.clone()
    candidate[5, 6] = torch.nextafter(value[5, 6].float(), torch.tensor(math.inf)) * (1 + 0.9 * 2**-10)
    tolerance = {**TOLERANCE, "rtol": 2.0**-10}
    assert to_look_at(product(aten.mm.default, left, right), value, candidate, tolerance) is not None


def test_numbers_that_are_values_of_the_graph_and_zero_are_left_to_the_whole() -> None:
    bias, left, right = torch.zeros(2), torch.ones(2, 3), torch.ones(3, 2)
    node, env = called(aten.addmm.default, bias, left, right)
    size = node.graph.placeholder("size")
    for alpha, expected in ((3, 3.0), (0, None)):
        node.kwargs = {"alpha": size}
        env[size] = alpha
        found = Product.of(node, env)
        assert (found and found.alpha) == expected


def test_the_default_device_is_not_asked() -> None:
    found = product(aten.mm.default, torch.ones(2, 3), torch.ones(3, 2))
    elements = torch.arange(4)
    with torch.device("meta"):
        exact, terms = found.at(elements)
    assert exact.tolist() == terms.tolist() == [3.0] * 4


def test_where_sums_overflow_they_explain_nothing() -> None:
    found = product(aten.mm.default, torch.full((64, 64), 1e30), torch.eye(64) * 1e20)
    reference = torch.zeros(64, 64)
    assert to_look_at(found, reference, torch.ones(64, 64), TOLERANCE) is None, "all of them"


def test_where_nothing_is_explained_the_whole_is_computed() -> None:
    found, value, candidate = off(128, roundings=40)
    assert to_look_at(found, value, candidate, TOLERANCE) is None
    node, env = called(aten.mm.default, found.left, found.right)
    exact = Opinions(env).of(node, value, candidate, TOLERANCE)
    assert exact is not None and exact.elements is None and exact.values.shape == (128, 128)
    assert exact.of(value) is value


def test_results_of_one_operator_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node, env = called(aten.var_mean.correction, torch.randn(4, 5), [1])
    runs: list[int] = []

    def target(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return aten.var_mean.correction(*args, **kwargs)

    monkeypatch.setattr(node, "target", target)
    opinions = Opinions(env)
    for index in range(2):
        result = node.graph.call_function(operator.getitem, (node, index))
        exact = opinions.of(result, torch.zeros(4), torch.ones(4), TOLERANCE)
        expected = torch.var_mean(next(iter(env.values())).double(), 1)[index]
        assert exact is not None and torch.equal(exact.values, expected)
    assert runs == [1]


def test_twice_what_explains_a_distance_is_what_an_opinion_grants() -> None:
    assert ROUNDINGS > 2 * EXPLAINED


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_kernel_that_clips_infinity_is_named(dtype: torch.dtype) -> None:
    """Beside sums that rounding explains."""

    def clipped(a: Any, b: Any) -> Any:
        return op.Clip(op.MatMul(a, b), op.CastLike(-1e3, a), op.CastLike(1e3, a))

    a, b = torch.randn(64, 256).to(dtype), (torch.randn(256, 64) * 0.01).to(dtype)
    a[3, 0], b[0] = math.inf, b[0].abs()
    options = {"custom_translations": {"aten::mm": clipped}, "compare": "nodes"}
    report = rust_ort.compare(lambda a, b: torch.mm(a, b), a, b, options=options)
    assert report.first_wrong_node is not None and report.first_wrong_node[1].name == "mm"


ALIKE: Mapping[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "bmm": (lambda x, weights: torch.bmm(weights, x), ((3, 1000, 16), (3, 5, 1000))),
    "mm": (lambda x, weights: torch.mm(weights, x), ((1000, 16), (5, 1000))),
    "addmm": (lambda x, weights: torch.addmm(x[0] * 1e-3, weights, x), ((1000, 16), (5, 1000))),
    "convolution": (lambda x, weights: nn.functional.conv1d(x, weights), ((2, 1000, 16), (4, 1000, 1))),
    "sum": (lambda x: (x.mT * 1).sum(-1), ((5000, 16),)),
}


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.parametrize("planted", [0.0, 1e-3])
def test_a_sum_of_equal_terms_in_order_accuses_nobody(case: str, planted: float) -> None:
    """As attention over equal scores gives them; ONNX Runtime adds in order, eager in blocks."""
    torch.manual_seed(0)
    function, shapes = ALIKE[case]
    x = (0.73 + 0.1 * torch.randn(16)).expand(shapes[0]).contiguous()
    given = [x, *(torch.full(shape, 1 / 1000) for shape in shapes[1:])]

    def change(proto: Any) -> None:
        output = proto.graph.output[0].name
        node = next(node for node in proto.graph.node if output in node.output)
        node.output[0] = "right"
        factor = helper.make_tensor("factor", TensorProto.FLOAT, [], [1.0 + planted])
        proto.graph.initializer.append(factor)
        proto.graph.node.append(helper.make_node("Mul", ["right", "factor"], [output]))

    options = {"compare": "nodes", "transforms": [change] if planted else ()}
    torch.compiler.reset()
    report = rust_ort.compare(function, *given, backward=False, options=options)
    assert report.ok is not bool(planted), report
    assert (report.first_wrong_node is not None) is bool(planted)


def test_what_a_sum_in_order_loses_is_measured() -> None:
    equal, different = torch.full((1000,), 0.1, dtype=torch.float64), torch.randn(1000, dtype=torch.float64)
    assert lost(equal, float(equal.sum())) > 16 > 4 > lost(different, float(different.abs().sum()))
    assert lost(equal[:0], 0.0) == 0.0
    assert (granted(0.0), granted(8.0), granted(16.0)) == (1.0, 1.0, 2.0)


LINEAR: Mapping[str, tuple[Any, tuple[Any, ...], int | None]] = {
    "sum": (aten.sum.dim_IntList, (torch.randn(4, 9), [1]), None),
    "mean": (aten.mean.dim, (torch.randn(4, 9), [0]), None),
    "addmm": (aten.addmm.default, (torch.zeros(6), torch.randn(5, 7), torch.randn(7, 6)), None),
    "dot": (aten.dot.default, (torch.randn(7), torch.randn(7)), None),
    "convolution": (
        aten.convolution.default,
        (torch.randn(2, 3, 8), torch.randn(4, 3, 3), None, [1], [1], [1], False, [0], 1),
        None,
    ),
    "its gradient": (
        aten.convolution_backward.default,
        (
            torch.randn(2, 4, 8), torch.randn(2, 3, 8), torch.randn(4, 3, 3), [4], [1], [1], [1], False, [0], 1,
            [True, True, True],
        ),
        1,
    ),
    "index_add": (aten.index_add.default, (torch.zeros(3), 0, torch.tensor([0, 2, 2, 0, 2]), torch.randn(5)), None),
}  # fmt: skip


@pytest.mark.parametrize("case", LINEAR)
def test_the_terms_of_an_element_add_up_to_it(case: str) -> None:
    target, args, result = LINEAR[case]
    wide = [value.double() if isinstance(value, Tensor) and value.is_floating_point() else value for value in args]
    made = target(*wide) if result is None else target(*wide)[result]
    for place in (0, made.numel() - 1):
        with torch.no_grad():
            terms = terms_of(target, wide, {}, result, place)
        assert terms is not None and terms.sum().item() == pytest.approx(made.flatten()[place].item())


def test_the_terms_of_a_products_element_are_those_it_adds_up() -> None:
    for case in ("mm", "transposed", "bmm", "baddbmm", "addmm"):
        target, args, kwargs = CASES[case]
        found = product(target, *args, **kwargs)
        place = torch.tensor([math.prod(found.shape) - 2])
        terms = found.at(place)[1].item()
        if found.bias is not None:
            terms -= abs(float(found.bias.expand(found.shape).flatten()[place]) * found.beta)
        assert found.terms_of(int(place)).abs().sum().item() == pytest.approx(terms)


def test_operators_whose_terms_are_known_have_a_tensor_there() -> None:
    for target, at in SUMMED.items():
        assert isinstance(target._schema.arguments[at].type, torch.TensorType), target
    assert terms_of(aten.exp.default, (torch.ones(3),), {}, None, 0) is None
