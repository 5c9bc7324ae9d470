"""What is called on the device: small functions and modules, and what happens around and between their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.torch_private import gpu_sleep

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
SLEEP_CYCLES = 50_000_000
THREADS = 2
CALLS_A_THREAD = 8

Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one side runs, with parameters and inputs of its own. target: what is compiled. drive: given the target or
    what was compiled of it, everything that is done with it, and each tensor that comes of it."""

    target: Call
    drive: Callable[[Call], list[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """build: the program, the same numbers at each call, on a device. precision: what its results are judged by.
    cuda_only: it has no meaning on the CPU. scalar_on_host: a call hands a scalar of the CPU over. empty: its tensors
    have no elements, and eager is right to have its nodes."""

    name: str
    build: Callable[[str], Program]
    precision: torch.dtype = torch.float32
    dynamic: bool = False
    cuda_only: bool = False
    scalar_on_host: bool = False
    empty: bool = False


def all_cases() -> list[Case]:
    return [*_in_each_dtype(), *_under_autocast(), *_around_calls(), *_between_calls()]


# --- modules and functions in each dtype -----------------------------------------------------------------------------


class Convolutions(nn.Module):
    """Images to classes: two convolutions, a normalization, a mean over pixels. Smooth, as `mlp` is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 8, 3, stride=2)
        self.classes = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.norm(self.first(images)))
        classes: Tensor = self.classes(self.second(hidden).mean((2, 3)))
        return classes


class Attention(nn.Module):
    """(batch, length, 32) to the same: four heads, causal, a residual, a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.qkv(hidden).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        normed: Tensor = self.norm(hidden + self.out(mixed.transpose(1, 2).flatten(2)))
        return normed


class Tokens(nn.Module):
    """Token ids to the loss of predicting each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.logits = nn.Linear(16, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.logits(nn.functional.gelu(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def mlp(features: int = 64) -> nn.Module:
    """Smooth: where rounding takes a unit of ReLU to the other side of 0, a whole row of a weight's gradient differs,
    and no kernel is wrong."""
    return nn.Sequential(nn.Linear(features, 64), nn.GELU(), nn.Linear(64, features))


def _in_each_dtype() -> Iterator[Case]:
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")

        def functions(device: str, dtype: torch.dtype = dtype) -> Program:
            first, second = (normal(7, 33, device=device, dtype=dtype, grad=True) for _ in range(2))
            return once(lambda x, y: (torch.sigmoid(x) * y + 1, (x - y).softmax(-1)), first, second)

        def module(
            make: Callable[[], nn.Module], inputs: Callable[[str], Tensor], dtype: torch.dtype = dtype
        ) -> Callable[[str], Program]:
            def build(device: str) -> Program:
                given = inputs(device)
                given = given.to(dtype).requires_grad_() if given.is_floating_point() else given
                return once(seeded(make).to(device, dtype), given)

            return build

        yield Case(name=f"elementwise and softmax, {name}", build=functions, precision=dtype)
        yield Case(name=f"MLP, {name}", build=module(mlp, lambda device: normal(9, 64, device=device)), precision=dtype)
        yield Case(
            name=f"attention, {name}",
            build=module(Attention, lambda device: normal(2, 17, 32, device=device)),
            precision=dtype,
        )
        yield Case(
            name=f"embedding and cross entropy, {name}",
            build=module(Tokens, lambda device: torch.arange(24, device=device).view(2, 12) % 50),
            precision=dtype,
        )
        yield Case(
            name=f"convolutions, {name}",
            build=module(Convolutions, lambda device: normal(2, 3, 16, 16, device=device)),
            precision=dtype,
        )


def _under_autocast() -> Iterator[Case]:
    for dtype in HALVES:
        name = str(dtype).removeprefix("torch.")
        for what, make, shape in (("MLP", mlp, (9, 64)), ("attention", Attention, (2, 17, 32))):

            def build(
                device: str, make: Any = make, shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype
            ) -> Program:
                given = normal(*shape, device=device, grad=True)
                return once(seeded(make).to(device), given, around=lambda: torch.autocast(device, dtype=dtype))

            yield Case(name=f"{what}, autocast to {name}", build=build, precision=dtype)


# --- layouts, scalars, streams, threads ------------------------------------------------------------------------------


def _channels_last(device: str) -> Program:
    module: nn.Module = seeded(Convolutions).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = normal(2, 3, 16, 16, device=device).to(memory_format=torch.channels_last)
    return once(module, images.requires_grad_())


def _cpu_scalar(device: str) -> Program:
    return once(lambda x, scale: x * scale + 1, normal(5, 7, device=device, grad=True), torch.tensor(2.5))


def _not_contiguous(device: str) -> Program:
    whole = normal(12, 10, device=device)
    views = (whole.t(), whole[::2, 1:9].reshape(6, 8)[:, ::2], whole[3].expand(4, 10))
    return once(lambda x, y, z: (x.relu() @ whole[:, :3], y * 2, z.cumsum(0)), *views)


def _empty_batch(device: str) -> Program:
    return once(seeded(mlp).to(device), normal(0, 64, device=device, grad=True))


def _other_stream(device: str) -> Program:
    given = normal(64, 64, device=device)

    def drive(call: Call) -> list[Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            gpu_sleep(SLEEP_CYCLES)  # who does not wait for this stream reads what was there before
            late = given + 1
            result = call(late) * 2
        torch.cuda.current_stream().wait_stream(stream)
        return [result]

    return Program(target=lambda x: torch.tanh(x) @ x, drive=drive)


def _two_threads(device: str) -> Program:
    module = seeded(mlp).to(device)
    batches = [normal(9, 64, device=device) + i for i in range(THREADS)]

    def drive(call: Call) -> list[Tensor]:
        def many(batch: Tensor) -> list[Tensor]:
            with torch.no_grad():
                return [call(batch) for _ in range(CALLS_A_THREAD)]

        many(batches[0])  # compiled by one thread; two at once is torch's own affair
        with ThreadPoolExecutor(THREADS) as pool:
            return [result for results in pool.map(many, batches) for result in results]

    return Program(target=module, drive=drive)


def _around_calls() -> Iterator[Case]:
    yield Case(name="channels_last", build=_channels_last)
    yield Case(name="a scalar on the CPU", build=_cpu_scalar, scalar_on_host=True)
    yield Case(name="inputs that are not contiguous", build=_not_contiguous)
    yield Case(name="an empty batch", build=_empty_batch, empty=True)
    yield Case(name="another stream", build=_other_stream, cuda_only=True)
    yield Case(name="two threads", build=_two_threads)


# --- what changes between calls --------------------------------------------------------------------------------------


def _changed_parameter(device: str) -> Program:
    module = seeded(mlp).to(device)
    given = normal(9, 64, device=device)

    def drive(call: Call) -> list[Tensor]:
        results = []
        for _ in range(3):
            results.append(call(given).detach())
            with torch.no_grad():
                module.get_parameter("0.weight").mul_(-0.5)
        return results

    return Program(target=module, drive=drive)


def _changed_input(device: str) -> Program:
    def drive(call: Call) -> list[Tensor]:
        given = normal(9, 64, device=device)
        results = []
        for _ in range(3):
            results.append(call(given))
            given.add_(1)
        return [*results, given]

    return Program(target=lambda x: torch.sin(x) @ x.t(), drive=drive)


def _written_input(device: str) -> Program:
    def write(x: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return x.sum(0)

    def drive(call: Call) -> list[Tensor]:
        given = normal(9, 64, device=device)
        return [call(given), call(given), given]

    return Program(target=write, drive=drive)


def _kept_outputs(device: str) -> Program:
    def drive(call: Call) -> list[Tensor]:
        return [call(normal(9, 64, device=device) + i) for i in range(4)]

    return Program(target=lambda x: (x * 2).softmax(0), drive=drive)


def _dynamic_batch(device: str) -> Program:
    module = seeded(mlp).to(device)

    def drive(call: Call) -> list[Tensor]:
        results: list[Tensor] = []
        for rows in (5, 2, 9, 33):
            results += with_gradients(module, call, (normal(rows, 64, device=device, grad=True),))
        return results

    return Program(target=module, drive=drive)


def _between_calls() -> Iterator[Case]:
    yield Case(name="a parameter changed in place between calls", build=_changed_parameter)
    yield Case(name="an input changed in place between calls", build=_changed_input)
    yield Case(name="an input written by the function", build=_written_input)
    yield Case(name="outputs kept over later calls", build=_kept_outputs)
    yield Case(name="dynamic batch sizes", build=_dynamic_batch, dynamic=True)


# --- how they are made -----------------------------------------------------------------------------------------------


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The module with the same parameters at each call, made on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def normal(*shape: int, device: str, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    """Waves in place of random numbers, made on the device: nothing goes through the host."""
    n = torch.Size(shape).numel()
    values = torch.arange(n, device=device, dtype=torch.float32).mul_(0.73).sin_().view(shape)
    return values.to(dtype).requires_grad_(grad)


def once(target: Call, *inputs: Tensor, around: Callable[[], Any] | None = None) -> Program:
    """One call of it and its gradients. around: a context of the forward."""

    def drive(call: Call) -> list[Tensor]:
        return with_gradients(target, call, inputs, around)

    return Program(target=target, drive=drive)


def with_gradients(
    target: Call, call: Call, inputs: Sequence[Tensor], around: Callable[[], Any] | None = None
) -> list[Tensor]:
    """Outputs, then gradients of the parameters of `target` and of the inputs that require them."""
    if around is None:
        made = call(*inputs)
    else:
        with around():
            made = call(*inputs)
    outputs = [made] if isinstance(made, Tensor) else list(made)
    wanted = [*(target.parameters() if isinstance(target, nn.Module) else ()), *(x for x in inputs if x.requires_grad)]
    if not wanted:
        return outputs
    weights = [normal(*output.shape, device=output.device.type, dtype=output.dtype) + 1 for output in outputs]
    gradients = torch.autograd.grad(outputs, wanted, weights)
    return [*(output.detach() for output in outputs), *gradients]
