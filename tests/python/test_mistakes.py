"""Mistakes a user makes: each is an error of the right type that names argument, expected and got."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.errors import ClientError, OptionError

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7
LINEAR = nn.Linear(4, 4)
# Not by chance: of some weights the default loss is nearly zero, and in half precision noise.
LINEAR.load_state_dict({"weight": torch.arange(16.0).reshape(4, 4).cos(), "bias": torch.arange(4.0)})


def compare(*args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: rust_ort.compare(*args, **kwargs)


def explain(*args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: rust_ort.explain(*args, **kwargs)


def dump(*args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: rust_ort.dump(*args, **kwargs).__enter__()


def compiled(**kwargs: Any) -> Callable[[], object]:
    return lambda: torch.compile(LINEAR, backend="rust_ort", **kwargs)(X)


ARGUMENTS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (compare(LINEAR, X, autocast=torch.float32), OptionError,
     r"compare autocast: expected torch.bfloat16, torch.float16, their names, or None .*got torch.float32"),
    (compare(LINEAR, X, autocast=torch.int64), OptionError, r"compare autocast: expected .*got torch.int64"),
    (compare(LINEAR, X, autocast="bf16"), OptionError, r"compare autocast: expected .*got 'bf16' of type str"),
    (compare(LINEAR, X, autocast=True), OptionError, r"compare autocast: expected .*got True of type bool"),
    (compare(LINEAR, X, autocast=[torch.float16]), OptionError, r"compare autocast: expected .*of type list"),
    (compare(LINEAR, X, backward="yes"), OptionError,
     r"compare backward: expected True or False, got 'yes' of type str"),
    (compare(LINEAR, X, backward=None), OptionError, r"compare backward: expected True or False, got None"),
    (compare(LINEAR, X, loss="mse"), OptionError,
     r"compare loss: expected a function from the model's outputs to a scalar tensor, or None, got 'mse' of type str"),
    (compare(LINEAR, X, loss=X), OptionError, r"compare loss: expected .*got a tensor torch.float32\[2, 4\]"),
    (compare(LINEAR, X, options=["compare"]), OptionError,
     r"compare options: expected a dict such as \{'compare': 'nodes'\}, rust_ort.Options or None, got \['compare'\]"),
    (compare(LINEAR, X, options="compare"), OptionError,
     r"compare options: expected a dict .*got 'compare' of type str"),
    (compare(LINEAR, X, options=3), OptionError, r"compare options: expected a dict .*got 3 of type int"),
    (compare(LINEAR, X, options={"compar": "nodes"}), OptionError, r"unknown option 'compar'; did you mean 'compare'"),
    (compare(LINEAR, X, options={"compare": "node"}), OptionError,
     r"option compare: expected one of 'off', 'outputs', 'nodes', got 'node'; did you mean 'nodes'"),
    (compare(LINEAR, X, options={"tolerance": 1e-3}), OptionError,
     r"option tolerance: expected None or a dict with atol, rtol, scale, equal_nan, got 0.001"),
    (compare(LINEAR, X, options={"transforms": len}), OptionError,
     r"option transforms: expected a sequence of functions ModelProto -> ModelProto or None, got <built-in "
     r"function len>"),
    (compare(LINEAR, X, options={"compare_only": "aten.mm"}), OptionError,
     r"option compare_only: expected a sequence of patterns"),
    (compare(LINEAR, X, tolerance={"atol": 1e-3}), OptionError,
     r"compare tolerance=...: the model takes no argument of that name; .*goes into options=\{'tolerance': ...\}"),
    (compare(LINEAR, X, kwargs={"y": X}), OptionError,
     r"compare kwargs=...: the model takes no argument of that name; its arguments are given as they are"),
    (compare(3, X), ClientError, r"compare model: expected a module or a function, got 3 of type int"),
    (compare(X, LINEAR), ClientError,
     r"compare model: expected a module or a function, got a tensor torch.float32\[2, 4\]"),
    (compare(nn.Linear, X), ClientError,
     r"compare model: expected a module or a function, got the class Linear; make one"),
    (explain("model", X), ClientError, r"explain model: expected a module or a function, got 'model' of type str"),
    (explain(LINEAR, X, backward=1), OptionError, r"explain backward: expected True or False, got 1 of type int"),
    (explain(LINEAR, X, options=("threads", 1)), OptionError, r"explain options: expected a dict .*of type tuple"),
    (explain(LINEAR, X, threads=1), OptionError, r"explain threads=...: the model takes no argument of that name"),
    (dump(3), OptionError, r"dump run: expected the name of a folder .*, got 3 of type int"),
    (dump("a/b"), OptionError, r"dump run: expected the name of a folder .*, got 'a/b' .*the argument folder"),
    (dump(""), OptionError, r"dump run: expected the name of a folder .*, got ''"),
    (dump("a:b"), OptionError, r"dump run: expected the name of a folder \(letters, digits, .*, got 'a:b'"),
    (dump("x" * 201), OptionError, r"dump run: expected the name of a folder .* at most 200 bytes\), got 'xxx"),
    (dump(Path("run")), OptionError, r"dump run: expected the name of a folder .*, got PosixPath"),
    (dump("run", folder=3), OptionError, r"dump folder: expected a path, got 3 of type int"),
    (dump("run", folder="/dev/null/x"), OptionError,
     r"dump folder '/dev/null/x': expected a folder, but /dev/null is none"),
    (dump("run", clean="yes"), OptionError, r"dump clean: expected True or False, got 'yes'"),
    (dump("run", calls="frist"), OptionError,
     r"dump calls: expected one of 'first', 'all', 'none', got 'frist' of type str; did you mean 'first'"),
    (dump("run", calls=1), OptionError, r"dump calls: expected one of .*got 1 of type int"),
    (dump("run", options={"compare": "nodes"}), OptionError, r"'compare' is of what is compiled .* takes socket"),
    (dump("run", options=4), OptionError, r"dump options: expected a dict .*got 4 of type int"),
    (lambda: rust_ort.backend(compar="nodes"), OptionError, r"unknown option 'compar'; did you mean 'compare'"),
    (lambda: rust_ort.Backend([1]), OptionError, r"backend options: expected a dict .*got \[1\] of type list"),
    (lambda: rust_ort(LINEAR, X), ClientError,
     r"which torch.compile calls with a graph; got a Linear module; use torch.compile\(model, backend=rust_ort\)"),
    (compiled(options=[("compare", 1)]), OptionError, r"backend options: expected a dict"),
    (compiled(options={"threads": "two"}), OptionError, r"option threads: expected an integer from 1 to 1024 or None"),
    (compiled(mode="fastest"), OptionError,
     r"mode='fastest' of type str: torch.compile has 'default', 'reduce-overhead', .*; use mode=None and options"),
    (lambda: rust_ort.status(options="x"), OptionError, r"status options: expected a dict"),
    (lambda: rust_ort.status(options={"socket": "relative"}), ClientError,
     r"socket 'relative': expected an absolute path"),
    (lambda: rust_ort.shutdown(stop_daemon="yes"), OptionError,
     r"shutdown stop_daemon: expected True or False, got 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "kind", "text"), ARGUMENTS, ids=[text[:40] for _, _, text in ARGUMENTS])
def test_a_wrong_argument_is_named_with_what_was_expected_and_got(
    mistake: Callable[[], object], kind: type[Exception], text: str
) -> None:
    torch._dynamo.reset()
    with pytest.raises(kind, match=text) as caught:
        mistake()
    assert "TORCHDYNAMO_VERBOSE" not in str(caught.value)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16", "float16", torch.bfloat16])
def test_a_dtype_of_autocast_may_be_given_by_name(name: Any) -> None:
    report = rust_ort.compare(LINEAR, X, autocast=name).check()
    halves = {graph.lowest_precision for graph in report.graphs if graph.direction == "forward"}
    assert halves == {torch.float16 if name == "float16" else torch.bfloat16}


def raising_loss(outputs: Any) -> Tensor:
    return outputs["nope"].sum()


LOSSES = [
    (raising_loss, rf"argument loss: raising_loss \({__file__}:\d+\) raised .* at {__file__}:\d+; it was "
     rf"called with the "
     r"outputs of eager, a tuple \(\[0\] torch.float32\[2, 4\]\)"),
    (lambda outputs: outputs[0], r"argument loss: <lambda> .* gave a tensor torch.float32\[2, 4\], expected a scalar"),
    (lambda outputs: 1.0, r"argument loss: <lambda> .* gave 1.0 of type float, expected a scalar tensor"),
    (lambda outputs: None, r"argument loss: <lambda> .* gave None of type NoneType, expected a scalar tensor"),
    (lambda outputs: outputs[0].detach().sum(), r"argument loss: .* requires no gradient, .* or pass backward=False"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "text"), LOSSES)
def test_a_loss_that_does_not_do_its_work_is_named(loss: Any, text: str) -> None:
    with pytest.raises(ClientError, match=text) as caught:
        rust_ort.compare(lambda x: (LINEAR(x),), X, loss=loss)
    assert caught.value.code == "BAD_LOSS"
    assert (caught.value.__cause__ is not None) == (loss is raising_loss)


@pytest.mark.usefixtures("daemon")
def test_a_loss_without_a_backward_is_compared() -> None:
    report = rust_ort.compare(LINEAR, X, backward=False, loss=lambda out: out.square().sum()).check()
    assert [verdict.name for verdict in report.verdicts] == ["output", "loss"]


def test_what_the_model_raises_says_on_which_side_it_was() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        rust_ort.compare(LINEAR, X[:, :3])
    assert caught.value.__notes__ == ["rust_ort.compare: raised by the model in eager"]


@pytest.mark.usefixtures("daemon")
def test_what_only_the_compiled_model_raises_says_so() -> None:
    class Odd(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x + 1

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            return None

        @staticmethod
        @torch.compiler.disable
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            Odd.calls += 1
            if Odd.calls > 1:
                raise ValueError("only once")
            return grad

    @torch.compiler.disable
    def odd(x: Tensor) -> Tensor:
        return Odd.apply(x)  # type: ignore[no-any-return,no-untyped-call]

    with pytest.raises(ValueError, match="only once") as caught:
        rust_ort.compare(lambda x: odd(x * 2), X.clone().requires_grad_())
    assert caught.value.__notes__ == ["rust_ort.compare: raised by the model in the backend, in the backward"]


# --- functions that the user gives to the export ---------------------------------------------------------------------


def transform_that_raises(proto: Any) -> None:
    {}["foo"]


def transform_to_a_number(proto: Any) -> int:
    return 5


def transform_to_a_model_without_graph(proto: Any) -> Any:
    import onnx

    return onnx.ModelProto()


def transform_to_an_unknown_operator(proto: Any) -> None:
    proto.graph.node[0].op_type = "Nosuch"


def transform_to_external_data(proto: Any) -> None:
    import onnx

    weight = onnx.TensorProto(name="elsewhere", dims=[2], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="weights.bin")
    proto.graph.initializer.append(weight)


TRANSFORMS = [
    (transform_that_raises, OptionError,
     rf"^option transforms: transform_that_raises \({__file__}:\d+\) raised KeyError: 'foo' at "
     rf"{__file__}:\d+\n  graph: "),
    (transform_to_a_number, OptionError,
     rf"^option transforms: transform_to_a_number \({__file__}:\d+\) returned 5 of type int, expected a "
     rf"ModelProto, or None"),
    (transform_to_a_model_without_graph, ClientError,
     rf"^option transforms: the runtime refuses the model that transform_to_a_model_without_graph "
     rf"\({__file__}:\d+\) made, "
     r"not the one given: .*no graph"),
    (transform_to_an_unknown_operator, ClientError,
     r"^option transforms: the runtime refuses the model that transform_to_an_unknown_operator .*Nosuch"),
    (transform_to_external_data, ClientError,
     r"^option transforms: the runtime refuses the model that transform_to_external_data .*\"elsewhere\": external "
     r"data \"weights.bin\".*load the data into the model"),
]  # fmt: skip


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(("transform", "kind", "text"), TRANSFORMS)
@pytest.mark.parametrize("use", ["compile", "compare", "explain"])
def test_a_transform_that_fails_is_named(transform: Any, kind: type[Exception], text: str, use: str) -> None:
    options = {"transforms": [transform]}
    with pytest.raises(kind, match=text) as caught:
        if use == "compile":
            torch.compile(LINEAR, backend="rust_ort", options=options)(X)
        else:
            getattr(rust_ort, use)(LINEAR, X, options=options)
    assert isinstance(caught.value, ClientError)
    assert re.search(r"\n  graph: \d+_\d+(_\d+)?-forward", str(caught.value))
    if transform is transform_that_raises:
        assert isinstance(caught.value.__cause__, KeyError)
    else:
        assert "KeyError" not in str(caught.value)


class Transform:
    def __call__(self, proto: Any) -> None:
        raise KeyError("foo")


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (Transform(), "Transform.__call__"),
        (functools.partial(lambda key, proto: {}[key], "foo"), "<lambda>"),
    ],
    ids=["object", "partial"],
)
def test_a_transform_that_is_no_plain_function_is_named_too(transform: Any, name: str) -> None:
    where = rf"{name} \({__file__}:\d+\) raised KeyError: 'foo' at {__file__}:\d+"
    with pytest.raises(OptionError, match=where) as caught:
        rust_ort.compare(LINEAR, X, options={"transforms": [transform]})
    assert not hasattr(caught.value, "__notes__"), "the model did not raise it"


@pytest.mark.usefixtures("daemon")
def test_a_transform_that_fails_beside_a_kept_plan_is_called_once() -> None:
    called = []

    def transform(proto: Any) -> None:
        called.append(proto)
        if len(called) > 1:
            raise KeyError("foo")

    transform.cache_key = "same"  # type: ignore[attr-defined]
    torch.compile(LINEAR, backend="rust_ort", options={"transforms": [transform]})(X.clone())
    torch._dynamo.reset()
    with pytest.raises(OptionError, match="raised KeyError"):
        torch.compile(LINEAR, backend="rust_ort", options={"transforms": [transform]})(X.clone())
    assert len(called) == 2


def translation_that_raises(x: Any) -> Any:
    raise KeyError("zz")


@pytest.mark.usefixtures("daemon")
def test_a_translation_that_fails_is_named_with_its_cause() -> None:
    options = {"custom_translations": {"aten::relu": translation_that_raises}, "on_unsupported": "error"}
    text = (
        r"relu \(aten.relu.default\).*: its translation \(option custom_translations\) failed: custom translation "
        rf"translation_that_raises, {__file__}:\d+: KeyError: 'zz'"
    )
    with pytest.raises(ClientError, match=text) as caught:
        rust_ort.compare(nn.ReLU(), X, options=options)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.graph.endswith("-inference") and caught.value.node == "relu"


@pytest.mark.parametrize("name", ["kwargs", "tolerance"])
def test_what_a_model_s_kwargs_swallow_is_warned_of(daemon: object, name: str) -> None:
    def doubled(x: Tensor, **_: Any) -> Tensor:
        return x * 2

    given: dict[str, Any] = {name: {"atol": 1.0}}
    with pytest.warns(UserWarning, match=rf"compare {name}=...: the model's \*\*kwargs takes it"):
        assert rust_ort.compare(doubled, X, **given).ok


def test_an_argument_of_the_model_with_an_option_s_name_is_the_model_s(daemon: object) -> None:
    def scaled(x: Tensor, *, threads: int) -> Tensor:
        return x * threads

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert rust_ort.compare(scaled, X, threads=3).ok


def test_who_hands_on_what_it_is_given_is_not_warned_of(daemon: object) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, threads: int = 1, **_: Any) -> Tensor:
            return x * threads

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return self.inner(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for model in (Scaled(), Wrapped(), functools.partial(Scaled()), torch.compile(Scaled(), backend="eager")):
            assert rust_ort.compare(model, X, threads=3).ok


def test_the_warning_points_at_the_caller(daemon: object) -> None:
    with pytest.warns(UserWarning) as caught:
        rust_ort.compare(lambda x, **_: x * 2, X, kwargs={})
    assert caught[0].filename == __file__
