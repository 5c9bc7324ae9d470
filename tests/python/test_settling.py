"""What settles a mismatch: what a sum adds up, another choice among equal keys, memory that nobody wrote."""

from __future__ import annotations

import dataclasses
import functools
import operator
from pathlib import Path
from typing import Any

import onnx
import onnx.reference
import pytest
import torch
from onnx import helper
from torch import Tensor, fx, nn

import rust_ort
from rust_ort.errors import ClientError
from rust_ort.link.specs import Verdict, not_compared
from rust_ort.observe.choices import why_open
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.observe.sums import Sums, added_up
from rust_ort.observe.terms import Terms
from rust_ort.tables import ADDING_OPERATORS

aten = torch.ops.aten


# --- What is added up ------------------------------------------------------------------------------------------------


def test_terms_of_sums_are_their_sizes() -> None:
    a, b = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0], [1.5]])
    for target, args, kwargs, expected in (
        (aten.mm.default, (a, b), {}, [[6.0]]),
        (aten.sum.dim_IntList, (a, [-1]), {}, [3.0]),
        (aten.mean.dim, (a, [-1], True), {"dtype": torch.float32}, [[1.5]]),
        (aten.sub.Tensor, (a, a), {}, [[2.0, 4.0]]),
        (aten.add.Tensor, (a, -3), {"alpha": -2}, [[7.0, 8.0]]),
        (aten.addmm.default, (torch.tensor([[-6.0]]), a, b), {"beta": -1}, [[12.0]]),
    ):
        made = added_up(target, args, kwargs)
        assert (made.dtype, made.tolist()) == (torch.float64, expected), target
    assert added_up(aten.exp.default, (a,), {}) is None


@pytest.mark.usefixtures("daemon")
def test_terms_are_what_the_nodes_of_onnx_give_of_sizes(tmp_path: Path) -> None:
    """`rust-ort blame` takes them for that, where it knows all of the nodes."""
    x, y = torch.linspace(-2, 3, 20).reshape(4, 5), torch.linspace(1, -3, 20).reshape(4, 5)
    image, kernel = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4), torch.linspace(-1, 2, 24).reshape(3, 2, 2, 2)
    met = set()
    for target, inputs, more in (
        (aten.add.Tensor, (x, y), ()),
        (aten.sum.dim_IntList, (x,), ([1],)),
        (aten.mean.dim, (x,), ([0],)),
        (aten.mm.default, (x, y.t().contiguous()), ()),
        (aten.addmm.default, (x[:, :4].contiguous(), x, y.t().contiguous()), ()),
        (aten.bmm.default, (x[None], y.t().contiguous()[None]), ()),
        (aten.convolution.default, (image, kernel), (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ):
        folder = tmp_path / target.name().replace("::", ".")
        function = functools.partial(lambda target, more, *given: target(*given, *more), target, more)
        with rust_ort.dump("run", folder=folder):
            torch.compile(function, backend="rust_ort", dynamic=False)(*inputs)
        torch._dynamo.reset()
        (path,) = folder.glob("run/*/part_0/model.onnx")
        model = onnx.load(path)
        ops = {node.op_type for node in model.graph.node} - {"Constant"}
        assert ops <= ADDING_OPERATORS, f"{target}: {ops - ADDING_OPERATORS} in no list of src/onnx/terms.rs"
        met |= ops
        feeds = {given.name: tensor.abs().numpy() for given, tensor in zip(model.graph.input, inputs, strict=True)}
        (given,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
        torch.testing.assert_close(torch.from_numpy(given), added_up(target, (*inputs, *more), {}).float())
    assert {"Add", "ReduceSum", "ReduceMean", "MatMul", "Gemm", "Conv"} <= met


def test_what_a_node_is_made_of_runs_again_where_its_terms_are_asked_for() -> None:
    def function(x: Tensor) -> Tensor:
        return aten.mean.dim(aten.sin.default(x), [-1]).view(2, 1) * 2.0

    graph = torch.fx.experimental.proxy_tensor.make_fx(function)(x := torch.randn(2, 8))
    names = {node.name: node for node in graph.graph.nodes if node.op == "call_function"}
    interpreter = fx.Interpreter(graph, garbage_collect_values=False)
    interpreter.run(x)
    terms = Terms(interpreter.env)
    expected = x.sin().double().abs().mean(-1)
    torch.testing.assert_close(terms.of(names["mul"]), 2 * expected.view(2, 1))
    torch.testing.assert_close(terms.of(names["mean"]), expected)
    assert terms.of(names["sin"]) is None


@pytest.mark.usefixtures("daemon")
def test_the_mean_of_what_is_centred_drifts_by_rounding_alone() -> None:
    """In exact arithmetic it is 0: eager's -1.5e-8 and ONNX Runtime's 0 are as right."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.LayerNorm(32))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).mean(-1).pow(2).sum()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    report = rust_ort.compare(Centred(), torch.randn(4, 32), options={"compare": "nodes"})
    means = [node for _, node in report.nodes if node.op == "aten.mean.dim"]
    for mean in means:
        assert mean.local.is_pass and mean.cumulative.kind == "match", mean
    assert [mean.cumulative.metrics and mean.cumulative.metrics.get("max_terms") for mean in means] != [None]


def test_gradients_and_what_views_casts_and_adds_them_keep_their_terms() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(5, 3)
    with Sums() as sums:
        (layer(x) - layer(-x)).sum().backward()
        made = layer.bias.grad
        assert made is not None
        cast = made.view(1, 2).to(torch.bfloat16).t()
    assert made.tolist() == [0.0, 0.0]
    terms = sums.of(made)
    assert terms is not None and terms.tolist() == [10.0, 10.0]
    assert sums.of(cast) is not None and sums.of(x) is None


def test_a_scaled_or_joined_sum_keeps_its_terms() -> None:
    with Sums() as sums:
        total = torch.tensor([1.0, -1.0]).sum()
        made = {
            "scaled": total * -3.0,
            "halved": -total / 2.0,
            "joined": torch.stack([total, torch.tensor(4.0)]).sum(),
            "of no sum": torch.tensor([1.0]) * 2.0,
        }
    terms = {name: sums.of(value) for name, value in made.items()}
    assert {name: known and known.item() for name, known in terms.items()} == {
        "scaled": 6.0, "halved": 1.0, "joined": 6.0, "of no sum": None,
    }  # fmt: skip


def test_what_is_added_in_place_has_the_terms_of_both() -> None:
    total, x = torch.zeros(()), torch.tensor([4.0, -4.0])
    with Sums() as sums:
        total.add_(x.sum()).sub_(x.sum())
    terms = sums.of(total)
    assert terms is not None and terms.item() == 16.0


def test_results_of_fused_operators_that_are_sums_have_their_terms() -> None:
    """Of a mean Σ|x|/n, of a bias' gradient Σ|dy|, and of what was nothing but rounding what it was made of."""
    x = torch.tensor([[1.0, -3.0], [-2.0, 2.0]])
    norm = nn.BatchNorm1d(2, momentum=0.5)
    with Sums() as sums:
        mean = aten.native_layer_norm.default(x, [2], None, None, 1e-5)[1]
        both = torch.var_mean(x, 0)[1]
        norm(x)
        running = norm.running_mean
        scores = x.clone().requires_grad_()
        scores.softmax(-1).sum().backward()
        assert scores.grad is not None
        product = scores.grad @ x
    for value, expected in ((mean, [[2.0], [2.0]]), (both, [1.5, 2.5]), (running, [0.75, 1.25])):
        known = sums.of(value)
        assert known is not None and known.tolist() == expected
    lost, of_lost = sums.of(scores.grad), sums.of(product)
    assert lost is not None and of_lost is not None
    torch.testing.assert_close(of_lost, lost @ x.abs().double())


def summed(layers: nn.Module, shape: tuple[int, ...], then: Any = None) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    after = () if then is None else (then,)
    return nn.Sequential(layers, *after), torch.randn(shape, requires_grad=True)


def _nothing_is_accused(report: rust_ort.Report) -> None:
    assert report.ok, str(report)
    inside = [verdict for graph in report.graphs for _, verdict in graph.verdicts if verdict.kind != "match"]
    assert not inside, inside


ZERO: dict[str, tuple[nn.Module, tuple[int, ...], nn.Module | None]] = {
    "layer norm": (nn.LayerNorm(8), (16, 8), None),
    "batch norm": (nn.BatchNorm1d(8), (16, 8), None),
    "group norm": (nn.GroupNorm(2, 8), (4, 8, 5, 5), None),
    "instance norm": (nn.InstanceNorm2d(8), (4, 8, 5, 5), None),
    "softmax": (nn.Softmax(-1), (16, 8), None),
    "softmax of a layer": (nn.Linear(8, 8), (16, 8), nn.Softmax(-1)),
    "softmax of a norm": (nn.LayerNorm(8), (16, 8), nn.Softmax(-1)),
    "norm of a layer": (nn.Linear(8, 8), (16, 8), nn.LayerNorm(8)),
    "norm of a convolution": (nn.Conv2d(8, 8, 3), (4, 8, 5, 5), nn.BatchNorm2d(8)),
    "norm of a norm": (nn.GroupNorm(2, 8), (4, 8, 5, 5), nn.InstanceNorm2d(8)),
    "through an activation": (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), (16, 8), nn.Softmax(-1)),
}
"""What is summed has no gradient but for rounding."""


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("case", ZERO)
def test_gradients_of_a_sum_that_does_not_change_match(case: str) -> None:
    model, x = summed(*ZERO[case])
    _nothing_is_accused(rust_ort.compare(model, x, loss=torch.sum, options={"compare": "outputs"}))


class Deep(nn.Module):
    """Of many normalized layers: what the sums on the way add up at worst grows with each."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + nn.functional.silu(norm(convolution(x)))
        return x.mean((2, 3))


def tripled(proto: Any) -> None:
    """A transform: in the backward, what the third convolution gives its input is three times as large."""
    nodes = [node for node in proto.graph.node if node.op_type == "ConvTranspose"]
    if len(nodes) < 3:
        return
    value = nodes[2].output[0]
    nodes[2].output[0] = f"{value}_right"
    proto.graph.initializer.append(helper.make_tensor("three", onnx.TensorProto.FLOAT, [], [3.0]))
    place = next(at for at, node in enumerate(proto.graph.node) if node.output[0] == f"{value}_right")
    proto.graph.node.insert(place + 1, helper.make_node("Mul", [f"{value}_right", "three"], [value], name="planted"))


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_what_a_deep_model_adds_up_explains_no_fault(autocast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    model, x = Deep(), torch.randn(3, 8, 6, 6)
    assert rust_ort.compare(model, x, autocast=autocast).ok
    report = rust_ort.compare(model, x, autocast=autocast, options={"transforms": [tripled]})
    wrong = [verdict.name for verdict in report.verdicts if verdict.kind == "mismatch"]
    assert not report.ok and len(wrong) > 5, report
    far = {verdict.name for verdict in report.verdicts if verdict.max_rel_to_max > 0.1}
    assert far and far <= set(wrong), report


def scaled_sum(factor: float) -> Any:
    """A transform: the first sum of the backward times a factor."""

    def transform(proto: Any) -> None:
        if not any("tangents" in value.name for value in proto.graph.input):
            return
        place, node = next((at, node) for at, node in enumerate(proto.graph.node) if node.op_type == "ReduceSum")
        value = node.output[0]
        node.output[0] = f"{value}_right"
        wide = any(node.input[0] in other.output for other in proto.graph.node if other.op_type == "Cast")
        dtype = onnx.TensorProto.DOUBLE if wide else onnx.TensorProto.FLOAT
        proto.graph.initializer.append(helper.make_tensor("factor", dtype, [], [factor]))
        proto.graph.node.insert(place + 1, helper.make_node("Mul", [f"{value}_right", "factor"], [value], name="bad"))

    return transform


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("compare", ["off", "outputs", "nodes"])
@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_many_terms_in_half_precision_explain_no_wrong_sign(compare: str, factor: float) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 8)), torch.randn(4096, 48)
    assert rust_ort.compare(model, x, autocast=torch.bfloat16, options={"compare": compare}).ok
    options = {"compare": compare, "transforms": [scaled_sum(factor)]}
    report = rust_ort.compare(model, x, autocast=torch.bfloat16, options=options)
    assert [verdict.kind for verdict in report.verdicts if verdict.name == "grad of 2.bias"] == ["mismatch"], report


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_the_mean_of_what_was_normalized_matches(norm: Any) -> None:
    """It is zero but for rounding: the forward keeps it for the backward, or it moves the running mean."""
    torch.manual_seed(0)
    model = nn.Sequential(norm(8), norm(8))
    _nothing_is_accused(rust_ort.compare(model, torch.randn(16, 8), options={"compare": "outputs"}))


class Attention(nn.Module):
    """The gradient of the key's bias is zero: it moves all scores of a query alike."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return scores.softmax(-1) @ self.value(x)


def seeded() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    return Attention(), torch.randn(2, 6, 8)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("compare", ["off", "outputs", "nodes"])
def test_a_gradient_that_is_zero_but_for_rounding_matches(autocast: torch.dtype | None, compare: str) -> None:
    model, x = seeded()
    report = rust_ort.compare(model, x, autocast=autocast, options={"compare": compare})
    _nothing_is_accused(report)


def off_by_a_thousandth(proto: Any) -> None:
    """Of the backward: every sum is off by 1e-3 of what it adds up."""
    for node in [node for node in proto.graph.node if node.op_type == "ReduceSum" and node.output[0].startswith("sum")]:
        part = f"{node.output[0]}_terms"
        proto.graph.node.add(op_type="Abs", input=[node.input[0]], output=[f"{part}_abs"], name=f"{part}_n0")
        made = proto.graph.node.add(op_type="ReduceSum", input=[f"{part}_abs", *node.input[1:]], name=f"{part}_n1")
        made.output.append(part)
        made.attribute.extend(node.attribute)
        proto.graph.node.add(op_type="Mul", input=[part, f"{part}_by"], output=[f"{part}_off"], name=f"{part}_n2")
        proto.graph.initializer.add(name=f"{part}_by", data_type=1, float_data=[1e-3])
        last = proto.graph.node.add(op_type="Add", input=[f"{part}_sum", f"{part}_off"], name=f"{part}_n3")
        last.output.append(node.output[0])
        node.output[0] = f"{part}_sum"


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("seed", range(81, 84))
def test_a_loss_that_cancels_is_judged_by_its_terms(seed: int) -> None:
    """Seed 81 makes a loss of -9e-5 out of a product's elements of up to 1."""
    torch.manual_seed(seed)
    report = rust_ort.compare(torch.nn.Linear(4, 4), torch.randn(2, 4))
    assert report.ok, report


@pytest.mark.usefixtures("daemon")
def test_a_gradient_that_is_zero_is_judged_all_the_same() -> None:
    model, x = seeded()
    report = rust_ort.compare(model, x, options={"compare": "nodes", "transforms": [off_by_a_thousandth]})
    wrong = {verdict.name for verdict in report.verdicts if verdict.kind == "mismatch"}
    assert "grad of key.bias" in wrong, str(report)
    assert report.first_wrong_node is not None and report.first_wrong_node[1].op == "aten.sum.dim_IntList"


# --- What is open ----------------------------------------------------------------------------------------------------


def chosen(target: Any, *args: Any, result: int = 1, **kwargs: Any) -> tuple[fx.Node, dict[fx.Node, Any]]:
    """The node of a result of a choice, its indices or the values, and eager's values."""
    graph = fx.Graph()
    keys = graph.placeholder("keys")
    pair = graph.call_function(target, (keys, *args[1:]), kwargs)
    node = graph.call_function(operator.getitem, (pair, result))
    made = target(*args, **kwargs)
    return node, {keys: args[0], pair: made, node: made[result]}


def test_equal_keys_may_come_in_any_order_but_each_once() -> None:
    keys = torch.tensor([[2.0, 1.0, 2.0, float("nan")]])
    node, env = chosen(aten.sort.default, keys)
    for indices, kind in (
        ([1, 0, 2, 3], "tie"), ([1, 2, 0, 3], "tie"), ([1, 2, 2, 3], ""), ([0, 1, 2, 3], ""), ([1, 0, 2, 4], ""),
        ([1, 0, 2, -1], ""),
    ):  # fmt: skip
        assert why_open(node, torch.tensor([indices]), env) == kind, indices
    for target, args, swapped in (
        (aten.topk.default, (torch.tensor([5.0, 1.0, 5.0]), 1), [2]),
        (aten.kthvalue.default, (torch.tensor([1.0, 1.0]), 1), 1),
        (aten.median.dim, (torch.tensor([1.0, 1.0, 1.0]), 0), 2),
        (aten.mode.default, (torch.tensor([1.0, 1.0]),), 0),
        (aten.sort.default, (torch.tensor(1.0),), 0),
    ):
        node, env = chosen(target, *args)
        assert why_open(node, torch.tensor(swapped), env) == "tie", target


def test_what_promises_an_order_or_is_no_choice_is_not_open() -> None:
    keys = torch.tensor([[2.0, 1.0, 2.0]])
    node, env = chosen(aten.sort.stable, keys, stable=True)
    assert why_open(node, torch.tensor([[1, 2, 0]]), env) == ""
    node, env = chosen(aten.sort.stable, keys, stable=False, dim=1)
    assert why_open(node, torch.tensor([[1, 2, 0]]), env) == "tie"
    node, env = chosen(aten.topk.default, keys, 2, result=0)
    assert why_open(node, torch.tensor([[2.0, 1.0]]), env) == "", "sorted values are no choice"
    node, env = chosen(aten.max.dim, keys, 1)
    assert why_open(node, torch.tensor([2]), env) == "", "torch documents the first"
    node, env = chosen(aten.topk.default, keys, 2)
    assert why_open(node, torch.tensor([[0]]), env) == "", "another shape"


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_and_indices_of_one_choice_are_judged_together(dim: int) -> None:
    keys = torch.tensor([[5.0, 1.0, 3.0, 5.0], [2.0, 8.0, 7.0, 2.0], [9.0, 9.0, 1.0, 4.0]])
    for target, result in ((aten.topk.default, 0), (aten.topk.default, 1)):
        node, env = chosen(target, keys, 2, dim, result=result, sorted=False)
        eagers = env[node.args[0]]
        turned, other = env[node].flip(dim), eagers[1 - result]
        assert why_open(node, turned, env, {1 - result: other.flip(dim)}) == "open order"
        assert why_open(node, turned, env, {1 - result: other}) == "", "these values are not at those places"
    node, env = chosen(aten.median.dim, torch.tensor([1.0, 1.0, 2.0]), 0)
    taken = 1 - int(env[node])
    assert why_open(node, torch.tensor(taken), env, {0: torch.tensor(1.0)}) == "tie"
    assert why_open(node, torch.tensor(taken), env, {0: torch.tensor(2.0)}) == ""


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_an_order_that_nobody_asked_for_is_open(dim: int) -> None:
    keys = torch.tensor([[5.0, 1.0, 3.0, 5.0], [2.0, 8.0, 7.0, 2.0], [9.0, 9.0, 1.0, 4.0]])
    for result, kind in ((0, "open order"), (1, "open order")):
        node, env = chosen(aten.topk.default, keys, 2, dim, result=result, sorted=False)
        assert why_open(node, env[node].flip(dim), env) == kind
        assert why_open(node, env[node] + 1, env) == ""
        node, env = chosen(aten.topk.default, keys, 2, dim, result=result)
        assert why_open(node, env[node].flip(dim), env) == ""
    node, env = chosen(aten.topk.default, torch.tensor([1.0, 5.0, 5.0, 5.0]), 2, sorted=False)
    others = [index for index in (1, 2, 3) if index not in env[node].tolist()]
    assert why_open(node, torch.tensor([others[0], env[node][1]]), env) == "tie"


def written(target: Any, *args: Any) -> tuple[fx.Node, dict[fx.Node, Any]]:
    """The node that writes into its first argument, and eager's values."""
    graph = fx.Graph()
    nodes = {graph.placeholder(f"x{number}"): arg for number, arg in enumerate(args) if isinstance(arg, Tensor)}
    of = {id(arg): node for node, arg in nodes.items()}
    indices = [[of.setdefault(id(one), graph.placeholder("i")) for one in arg] if isinstance(arg, list) else arg
               for arg in args]  # fmt: skip
    node = graph.call_function(target, tuple(of.get(id(arg), arg) for arg in indices))
    nodes |= {of[id(one)]: one for arg in args if isinstance(arg, list) for one in arg}
    return node, {**nodes, node: target(*args)}


def test_of_several_writes_to_one_place_any_may_stay() -> None:
    zeros, values, twice = torch.zeros(3), torch.tensor([1.0, 2.0, float("nan"), 4.0]), torch.tensor([0, 0, 1, 1])
    for node, env in (
        written(aten.index_put.default, zeros, [twice], values),
        written(aten.scatter.src, zeros, 0, twice, values),
    ):
        for made, kind in (
            ([1.0, 4.0, 0.0], "tie"), ([1.0, float("nan"), 0.0], "tie"), ([3.0, 4.0, 0.0], ""), ([4.0, 2.0, 0.0], ""),
            ([1.0, 4.0, 1.0], ""), ([0.0, 4.0, 0.0], ""),
        ):  # fmt: skip
            assert why_open(node, torch.tensor(made), env) == kind, (node, made)
    node, env = written(aten.index_put.default, zeros, [twice], values, True)
    assert why_open(node, torch.tensor([2.0, 4.0, 0.0]), env) == "", "what is added up is no choice"
    once = torch.tensor([0, 2])
    node, env = written(aten.index_put.default, zeros, [once], values[:2])
    assert why_open(node, torch.tensor([2.0, 0.0, 1.0]), env) == "", "written to the wrong place"


def routed(x: Tensor) -> Tensor:
    """A mixture of experts, whose router has equal scores in half precision."""
    scores, experts = torch.topk((x @ x.mT).round(), 2, sorted=False)
    return (x[:4].tanh()[experts % 4] * scores.softmax(-1)[..., None]).sum(1)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_with_equal_scores_accuses_nobody(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (12, 6), generator=torch.Generator().manual_seed(0)).to(dtype)
    report = rust_ort.compare(routed, x, options={"compare": "nodes"})
    assert report.first_wrong_node is None, str(report)
    drifted = {node.op for _, node in report.nodes if node.cumulative.kind != "match"}
    assert "aten.topk.default" in drifted, "no score is equal to another: the test tests nothing"
    assert {(node.op, node.choice) for _, node in report.nodes if node.choice} == {("aten.topk.default", "tie")}


def unstable(x: Tensor) -> Tensor:
    keys = (x * 0).long()
    _, order = keys.sort()
    made = torch.empty_like(order)
    made.scatter_(0, order, torch.arange(order.numel()))
    return x[order][made] * 2


@pytest.mark.usefixtures("daemon")
def test_chance_accuses_nobody() -> None:
    report = rust_ort.compare(unstable, torch.randn(48), options={"compare": "nodes"})
    assert report.ok, str(report)
    reasons = {node.op: node.local.reason for _, node in report.nodes if node.local.kind == "not_compared"}
    assert reasons == {"aten.empty_strided.default": "memory that nobody wrote into"} or not reasons


def test_a_node_that_could_not_be_compared_is_not_the_wrong_one(caplog: pytest.LogCaptureFixture) -> None:
    def node(name: str, kind: str, reason: str = "no kernel") -> NodeVerdict:
        verdict: Verdict = dataclasses.replace(not_compared(name, reason), kind=kind)
        return NodeVerdict(
            part=0, name=name, op="aten.mm.default", module="", source="", local=verdict, cumulative=verdict
        )

    info = GraphInfo(
        name="0_0-forward", direction="forward", graph_id="", compute_nodes=2, parts=[["a", "b"]], eager=[], seconds={}
    )
    report = rust_ort.Report(verdicts=[dataclasses.replace(not_compared("output", ""), kind="match")], graphs=[info])
    info.add_nodes(0, [node("a", "failed")], [])
    assert report.first_wrong_node is None and info.first_wrong_node() is None
    assert not report.ok and "could not be compared" in str(report)
    assert "differs" not in caplog.text
    with pytest.raises(ClientError, match="no kernel"):
        report.check()
    assert node("c", "failed", "run failed: another shape").is_wrong
    info.add_nodes(0, [node("b", "mismatch")], [])
    assert report.first_wrong_node is not None and report.first_wrong_node[1].name == "b"
