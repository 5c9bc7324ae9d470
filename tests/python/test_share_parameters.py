"""Parameters and buffers that live in shared memory: which are moved, what stays as it was, and what a fork sees."""

import copy
import functools
import gc
import importlib
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_fork import in_child
from test_weights import assert_same, make_model
from torch._subclasses.fake_tensor import FakeTensorMode

import rust_ort
from rust_ort import torch_private
from rust_ort.call import staging
from rust_ort.memory import parameters, process
from rust_ort.memory.layout import Layout

pytestmark = pytest.mark.usefixtures("daemon", "threads_of_the_test_alone")

X = torch.linspace(-1, 1, 120).reshape(5, 24)


def is_shared(tensor: torch.Tensor) -> bool:
    return process.arena().locate(tensor.data_ptr()) != 0


def shared(model: torch.nn.Module) -> set[str]:
    return {name for name, value in model.state_dict().items() if is_shared(value)}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of every input that a call copies, as it does."""
    sizes: list[int] = []
    real = staging.CallPlan.gather

    def counting(self: Any, arena: Any, inputs: Any, **options: Any) -> Any:
        call = real(self, arena, inputs, **options)
        sizes.extend(inputs[i].nbytes for i in call.copied if isinstance(inputs[i], torch.Tensor))
        return call

    monkeypatch.setattr(staging.CallPlan, "gather", counting)
    yield sizes


def test_after_the_first_call_only_inputs_are_copied(copied: list[int]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 7))
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    assert shared(model) == {*model.state_dict()}
    assert copied == [X.nbytes]
    copied.clear()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(3):
        compiled(X).square().sum().backward()
        optimizer.step()
    assert {*copied} == {X.nbytes, 5 * 7 * 4}, "the inputs, and the output's gradient"
    assert shared(model) == {*model.state_dict()}


def test_none_are_moved_where_the_option_says_so(copied: list[int]) -> None:
    model = make_model()
    compiled = torch.compile(model, backend=rust_ort.backend(share_parameters=False))
    for _ in range(2):
        assert_same(model, compiled, X)
    assert not shared(model) and model[0].weight.nbytes in copied


def test_the_tensor_keeps_all_that_it_has() -> None:
    model = make_model()
    weight, values = model[0].weight, model[0].weight.detach().clone()
    model(X).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    values = weight.detach().clone()
    seen: list[torch.Size] = []
    weight.register_hook(lambda grad: seen.append(grad.shape))
    weight.note = "kept"
    grad, version = weight.grad, weight._version
    pending = (weight * weight).sum()
    torch.compile(model, backend="rust_ort")(X)
    assert is_shared(weight) and model[0].weight is weight
    assert torch.equal(weight, values) and weight.grad is grad and weight.note == "kept"
    assert (weight.is_leaf, weight.requires_grad, weight._version) == (True, True, version)
    assert optimizer.state[weight]["step"] == 1
    (gradient,) = torch.autograd.grad(pending, weight)
    torch.testing.assert_close(gradient, 2 * values)
    assert seen == [weight.shape]


def detached(model: torch.nn.Module) -> object:
    return model[0].weight.detach()


def in_numpy(model: torch.nn.Module) -> object:
    return model[0].weight.detach().numpy()


def capsule(model: torch.nn.Module) -> object:
    return model[0].weight.detach().__dlpack__()


def storage(model: torch.nn.Module) -> object:
    return model[0].weight.untyped_storage()


def of_numpy(model: torch.nn.Module) -> object:
    array = model[0].weight.detach().clone().numpy()
    model[0].weight = torch.nn.Parameter(torch.from_numpy(array))
    return array


def flat(model: torch.nn.Module) -> object:
    values = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    at = 0
    for parameter in model.parameters():
        parameter.data = values[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    return values


def part_of_its_storage(model: torch.nn.Module) -> object:
    model[0].weight.data = torch.randn(2, *model[0].weight.shape)[1]
    return None


def transposed(model: torch.nn.Module) -> object:
    model[0].weight.data = torch.randn(24, 40).t()
    return None


def among_processes(model: torch.nn.Module) -> object:
    model[0].weight.share_memory_()
    return None


def in_inference_mode(model: torch.nn.Module) -> object:
    with torch.inference_mode():
        model[0].weight = torch.nn.Parameter(torch.randn(40, 24), requires_grad=False)
    return None


ALIASED: list[Callable[[torch.nn.Module], object]] = [
    detached, in_numpy, capsule, storage, of_numpy, flat, part_of_its_storage, transposed, among_processes,
    in_inference_mode,
]  # fmt: skip


@pytest.mark.parametrize("alias", ALIASED)
def test_what_others_may_see_is_not_moved_and_never_stale(alias: Callable[[torch.nn.Module], object]) -> None:
    model = make_model()
    kept = alias(model)
    compiled = torch.compile(model, backend="rust_ort")
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X), atol=1e-5, rtol=1e-5)
        assert "0.weight" not in shared(model)
        if isinstance(kept, torch.Tensor):
            kept.mul_(-0.5)
        elif type(kept).__module__ == "numpy":
            kept *= -0.5  # type: ignore[operator]
    del kept


@pytest.mark.parametrize("alias", ALIASED)
def test_where_all_must_be_moved_one_that_cannot_be_is_an_error(alias: Callable[[torch.nn.Module], object]) -> None:
    model = make_model()
    kept = alias(model)
    compiled = torch.compile(model, backend=rust_ort.backend(share_parameters=True))
    with pytest.raises(rust_ort.ClientError, match="share_parameters is True, and it cannot be moved") as caught:
        compiled(X)
    assert caught.value.code == "BAD_OPTION"
    del kept


def test_where_all_must_be_moved_they_are() -> None:
    model = make_model()
    compiled = torch.compile(model, backend=rust_ort.backend(share_parameters=True))
    assert_same(model, compiled, X)
    assert shared(model) == {*model.state_dict()}


def test_one_that_was_replaced_is_moved_anew() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()}, assign=True)
    assert not shared(model)
    assert_same(model, compiled, X)
    assert shared(model) == {*model.state_dict()}
    swapped = torch.nn.Parameter(torch.randn(8, 40))
    torch.utils.swap_tensors(model[2].weight, swapped)
    assert_same(model, compiled, X)
    assert shared(model) == {*model.state_dict()}


def test_tied_weights_are_one(copied: list[int]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24))
    model[2].weight = model[0].weight
    compiled = torch.compile(model, backend="rust_ort")
    for _ in range(2):
        assert_same(model, compiled, X)
    assert model[2].weight is model[0].weight and is_shared(model[0].weight)
    assert model[0].weight.nbytes not in copied


def test_a_moved_one_is_saved_copied_and_pickled_like_any() -> None:
    model = make_model()
    torch.compile(model, backend="rust_ort")(X)
    weight = model[0].weight
    saved = io.BytesIO()
    torch.save(weight, saved)
    assert saved.tell() < weight.nbytes + 2000
    saved.seek(0)
    for made in (torch.load(saved), pickle.loads(pickle.dumps(weight)), copy.deepcopy(weight)):
        assert torch.equal(made, weight) and not is_shared(made)


def test_a_moved_one_can_be_shared_among_processes() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    expected = model(X)
    model.share_memory()
    assert model[0].weight.is_shared() and not shared(model)
    torch.testing.assert_close(model(X), expected)
    assert_same(model, compiled, X)
    assert not shared(model)


def test_its_memory_cannot_be_resized_and_says_so() -> None:
    model = make_model()
    torch.compile(model, backend="rust_ort")(X)
    with pytest.raises(RuntimeError, match="not resizable"):
        model[0].weight.data.resize_(1000, 1000)
    with pytest.raises(RuntimeError, match="not resizable"):
        model[0].weight.untyped_storage().resize_(0)


def test_a_dropped_model_gives_its_memory_back() -> None:
    model = torch.nn.Linear(300, 300)
    torch.compile(model, backend="rust_ort")(torch.randn(2, 300))
    location = process.arena().locate(model.weight.data_ptr())
    assert location in dict(process.arena().live())
    del model
    torch._dynamo.reset()
    assert location not in dict(process.arena().live())


def test_before_a_fork_they_leave_and_come_back_with_the_next_call() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    expected = model(X).detach()

    def write() -> float:
        with torch.no_grad():
            model[0].weight.zero_()
        return float(model[0].weight.sum())

    assert in_child(write) == "0.0"
    assert not shared(model)
    torch.testing.assert_close(model(X).detach(), expected)
    torch.testing.assert_close(compiled(X).detach(), expected, atol=1e-5, rtol=1e-5)
    assert shared(model) == {*model.state_dict()}


def test_one_that_others_see_meanwhile_stays_at_a_fork() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    alias = model[0].weight.detach().numpy()
    assert in_child(lambda: float(model[0].weight.sum())) == str(float(model[0].weight.detach().sum()))
    alias[...] = 0.5
    assert is_shared(model[0].weight) and float(model[0].weight.detach().mean()) == 0.5
    assert_same(model, compiled, X)


def test_forks_beside_calls_of_other_threads_disturb_none() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(64, 256)
    with torch.no_grad():
        expected = compiled(x)
    ended, wrong = threading.Event(), []

    def call() -> None:
        with torch.no_grad():
            while not ended.is_set():
                got = compiled(x)
                if not torch.equal(got, expected):
                    wrong.append(float((got - expected).abs().max()))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_holds_the_memory_that_it_reads() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    arena, weight = process.arena(), model[0].weight
    location = arena.locate(weight.data_ptr())
    inputs = [weight.detach()]
    slot = staging.InputSlot("w", weight, keep_value=False)
    call = staging.CallPlan([slot], []).gather(arena, inputs, share="auto")
    assert call.locations == [location]
    weight.data = torch.zeros_like(weight)
    inputs.clear()
    assert location in dict(arena.live())
    del call
    assert location not in dict(arena.live())


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.Tensor])
@pytest.mark.parametrize("offset", [0, 16])
def test_a_call_holds_the_block_around_what_it_reads(kind: type, offset: int) -> None:
    arena = process.arena()
    flat, location = arena.empty(Layout(torch.float32, (64,), None))
    given = torch.empty(0).set_(flat.untyped_storage(), offset, (8,))  # no view, which would keep its base
    if kind is torch.nn.Parameter:
        given = torch.nn.Parameter(given)
    call = staging.CallPlan([staging.InputSlot("w", given, keep_value=False)], []).gather(arena, [given], share="auto")
    assert call is not None and call.locations == [location + 4 * offset]
    given.data = torch.zeros(8)
    del flat
    gc.collect()
    assert location in dict(arena.live())
    del call
    assert location not in dict(arena.live())


def test_one_that_is_given_twice_is_moved_once() -> None:
    arena, weight = process.arena(), torch.nn.Parameter(torch.randn(5, 3))
    slots = [staging.InputSlot(name, weight, keep_value=False) for name in "ab"]
    call = staging.CallPlan(slots, []).gather(arena, [weight, weight], share=True)
    assert call is not None and call.locations == [arena.locate(weight.data_ptr())] * 2


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    """One that may be writing into parameters, for all that is known of it."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    yield other
    stop.set()
    other.join()


def test_beside_other_threads_none_is_moved(thread: threading.Thread) -> None:
    model = make_model()
    assert_same(model, torch.compile(model, backend="rust_ort"), X)
    assert not shared(model)
    thread.name = "Thread-7 (_pin_memory_loop)"
    assert_same(model, torch.compile(model, backend="rust_ort"), X)
    assert shared(model) == {*model.state_dict()}


def test_beside_the_threads_of_inductor_they_are_moved() -> None:
    before = parameters.other_threads()
    inductor = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    task = inductor.submit(lambda: threading.get_ident())
    thread = task if isinstance(task, int) else task.result()  # where there is one core, it has no threads
    assert thread == threading.get_ident() or thread in parameters.other_threads() - before
    model = make_model()
    assert_same(model, torch.compile(model, backend="rust_ort"), X)
    assert shared(model) == {*model.state_dict()}


def test_threads_of_inductor_that_ended_are_not_known() -> None:
    """Their numbers go to later threads, in a fork's child at once."""
    inductor = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    inductor.submit(threading.get_ident)
    assert in_child(lambda: len(torch_private.threads_of_inductor())) == "0"
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    pool = functools.cache(lambda: SimpleNamespace(_threads={ended, threading.current_thread()}))
    pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_private, "find_or", lambda *_: pool)
        assert torch_private.threads_of_inductor() == (threading.current_thread(),)


def test_beside_other_threads_they_are_moved_on_demand(thread: threading.Thread) -> None:
    model = make_model()
    assert_same(model, torch.compile(model, backend=rust_ort.backend(share_parameters=True)), X)
    assert shared(model) == {*model.state_dict()}


def test_at_a_fork_beside_other_threads_they_stay(thread: threading.Thread) -> None:
    name, thread.name = thread.name, "QueueFeederThread"
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    thread.name = name
    assert in_child(lambda: float(model[0].weight.sum())) == str(float(model[0].weight.detach().sum()))
    assert shared(model) == {*model.state_dict()}
    thread.name = "QueueFeederThread"
    in_child(lambda: 0)
    assert not shared(model), "what stayed at one fork leaves at a later one"


def test_what_is_sent_by_threads_of_torchs_own_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    parameters.left.clear()
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    assert len(parameters.left) == 4
    monkeypatch.setattr(parameters.time, "monotonic", lambda: 1e12)
    compiled(X)
    assert not parameters.left, "also by a call that moves nothing"


def transposed_data(model: torch.nn.Module) -> None:
    model[0].weight.data = model[0].weight.data.t()


def transposed_in_place(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.t_()


def steps(model: torch.nn.Module) -> None:
    model[0].weight.data = model[0].weight.data.repeat(1, 2)[:, ::2]


def negated(model: torch.nn.Module) -> None:
    model[0].weight.data = torch._neg_view(model[0].weight.data)


@pytest.mark.parametrize("change", [transposed_data, transposed_in_place, steps, negated])
def test_a_moved_one_may_be_seen_by_other_strides_later(change: Callable[[torch.nn.Module], None]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 24))
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    assert shared(model) == {*model.state_dict()}
    change(model)
    for _ in range(2):
        assert_same(model, compiled, X)


def test_a_buffer_may_be_a_view_of_what_a_compiled_function_gave() -> None:
    given = torch.compile(lambda x: x * 2, backend="rust_ort")(torch.randn(24, 24))

    class Module(torch.nn.Module):
        def __init__(self, buffer: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("b", buffer)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.b

    for buffer in (given.t(), given[:, ::2], given[3].expand(24, 24), given[1:2].expand(24, 24)):
        model = Module(buffer)
        for share in ("auto", False):
            compiled = torch.compile(model, backend=rust_ort.backend(share_parameters=share))
            torch.testing.assert_close(compiled(X), model(X), atol=1e-4, rtol=1e-4)


def test_strides_stay_where_a_dimension_is_one() -> None:
    model = torch.nn.Conv2d(8, 16, 1).to(memory_format=torch.channels_last)
    strides = model.weight.stride()
    compiled = torch.compile(model, backend="rust_ort")
    compiled(torch.randn(1, 8, 4, 4))
    assert is_shared(model.weight) and model.weight.stride() == strides
    in_child(lambda: 0)
    assert not is_shared(model.weight) and model.weight.stride() == strides


def test_modes_of_the_caller_see_nothing_of_a_move() -> None:
    class Refusing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func is not torch.Tensor.data.__set__
            return func(*args, **(kwargs or {}))

    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.no_grad():
        compiled(X)
        model.load_state_dict(make_model().state_dict(), assign=True)
        with Refusing():
            assert torch.allclose(compiled(X), model(X), atol=1e-5)
    assert shared(model) == {*model.state_dict()}


def test_a_fork_among_fake_tensors() -> None:
    model = make_model()
    torch.compile(model, backend="rust_ort")(X)
    expected = model[0].weight.detach().clone()
    sparse = torch.nn.Parameter(torch.eye(4).to_sparse(), requires_grad=False)
    with FakeTensorMode():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert not shared(model) and torch.equal(model[0].weight, expected)
    del sparse


def test_a_subclass_of_parameter_is_copied_or_refused() -> None:
    class Own(torch.nn.Parameter):
        pass

    model = make_model()
    model[0].weight = Own(torch.randn(40, 24))
    torch.testing.assert_close(torch.compile(model, backend="rust_ort")(X), model(X), atol=1e-5, rtol=1e-5)
    assert not is_shared(model[0].weight)
    compiled = torch.compile(model, backend=rust_ort.backend(share_parameters=True))
    with pytest.raises(rust_ort.ClientError, match=r"it cannot be moved into shared memory: it is a .*Own"):
        compiled(X)


def test_without_torchs_count_of_owners_nothing_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "storage_owners", lambda _: -1)
    monkeypatch.setattr(parameters, "ALONE", parameters._users(torch.empty(1)))
    model = make_model()
    assert_same(model, torch.compile(model, backend="rust_ort"), X)
    assert not shared(model)


def test_a_call_in_inference_mode_moves_them_too() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.inference_mode():
        compiled(X)
    assert shared(model) == {*model.state_dict()}
    assert_same(model, compiled, X)
