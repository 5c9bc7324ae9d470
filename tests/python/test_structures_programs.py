"""Ordinary programs, against aot_eager: what people write around modules, losses, buffers and training steps."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import Compile, Program, check, gradients, scalar, state
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

pytestmark = pytest.mark.usefixtures("served")

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Adds a program to the table."""
    PROGRAMS[function.__name__] = function
    return function


def trained(
    model: nn.Module, call: Callable[..., Any], *batches: tuple[Any, ...], loss: Callable[[Any], Tensor] | None = None
) -> Any:
    """Outputs of each batch, then gradients that added up, parameters and buffers."""
    found = []
    for batch in batches:
        out = call(*batch)
        (loss(out) if loss is not None else scalar(out)).backward()
        found.append(out)
    return found, gradients(model), state(model)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# --- recurrent and sparse --------------------------------------------------------------------------------------------


def recurrent(make: Callable[[], nn.Module]) -> Program:
    def run(compiled: Compile) -> Any:
        model = make()
        call = compiled(model)
        batches = [(randn(n, 2, 4),) for n in (2, 2)]
        # Dynamo leaves these modules alone unless told.
        with torch._dynamo.config.patch(allow_rnn=True):
            return trained(model, call, *batches, loss=lambda out: scalar(out[0])), [x.grad for (x,) in batches]

    return run


PROGRAMS["rnn"] = recurrent(lambda: nn.RNN(4, 6, nonlinearity="relu"))
PROGRAMS["lstm in both directions"] = recurrent(lambda: nn.LSTM(4, 6, bidirectional=True))
PROGRAMS["lstm with projections"] = recurrent(lambda: nn.LSTM(4, 6, proj_size=3))
PROGRAMS["gru with dropout"] = recurrent(lambda: nn.GRU(4, 6, num_layers=2, dropout=0.3))


@program
def cells_unrolled(compiled: Compile) -> Any:
    model = nn.ModuleList([nn.LSTMCell(4, 5), nn.GRUCell(5, 5)])

    def function(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        outs = []
        for row in x.unbind(0):
            h, c = model[0](row, (h, c))
            c = model[1](h, c)
            outs.append(c)
        return torch.stack(outs)

    return trained(model, compiled(function), (randn(3, 2, 4), torch.zeros(2, 5), torch.zeros(2, 5)))


@program
def packed_sequences(compiled: Compile) -> Any:
    model = nn.LSTM(4, 5)

    def function(x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].tanh()

    return trained(model, compiled(function), (randn(4, 3, 4), torch.tensor([4, 2, 3])))


@program
def embedding_bags(compiled: Compile) -> Any:
    model = nn.ModuleDict({m: nn.EmbeddingBag(9, 4, mode=m, padding_idx=0) for m in ("sum", "mean", "max")})
    model["words"] = nn.Embedding(9, 4, padding_idx=1, max_norm=None)

    def function(ids: Tensor, offsets: Tensor) -> Tensor:
        bags = [model[m](ids, offsets) for m in ("sum", "mean", "max")]
        return torch.cat([*bags, model["words"](ids)[:3]], 1)

    ids = torch.tensor([1, 1, 5, 0, 8, 2, 2])
    return trained(model, compiled(function), (ids, torch.tensor([0, 2, 5])), (ids[:6], torch.tensor([0, 1, 4])))


# --- attention, einsum, convolution ----------------------------------------------------------------------------------


@program
def multihead_attention(compiled: Compile) -> Any:
    model = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.0, add_bias_kv=True)
    padding = torch.tensor([[False, False, True], [False, False, False]])

    def function(x: Tensor, y: Tensor) -> Any:
        out, weights = model(x, y, y, key_padding_mask=padding)
        return out + model(x, x, x, attn_mask=torch.ones(4, 4).triu(1).bool(), need_weights=False)[0], weights

    return trained(model, compiled(function), (randn(2, 4, 8), randn(2, 3, 8)), loss=lambda out: scalar(out[0]))


@program
def transformer_layers(compiled: Compile) -> Any:
    layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.1, norm_first=True)
    model = nn.TransformerDecoder(layer, 1, norm=nn.LayerNorm(8))
    found = trained(model, compiled(model), (randn(3, 2, 8), randn(4, 2, 8)))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1).eval()
    with torch.no_grad():
        return found, compiled(encoder)(torch.randn(2, 3, 8))


@program
def einsum_nets(compiled: Compile) -> Any:
    model = nn.ParameterDict({"w": torch.randn(2, 4, 3), "core": torch.randn(3, 3, 3), "b": torch.randn(2, 3)})

    def function(x: Tensor) -> Tensor:
        h = torch.einsum("bi,hij->bhj", x, model["w"]) + model["b"]
        mixed = torch.einsum("bhi,bhj,ijk->bhk", h, h.sigmoid(), model["core"])
        return torch.einsum("...ij,...kj->...ik", mixed, h) - torch.tensordot(h, model["b"], ([2], [1])).mean()

    return trained(model, compiled(function), *((randn(n, 4),) for n in (3, 5)))


@program
def channels_last_convolutions(compiled: Compile) -> Any:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(4, 8, 3, groups=4, padding="same"), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(2)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    call = compiled(model)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    found = trained(model, call, (x,), (x,))
    model.eval()
    with torch.no_grad():
        return found, x.grad, call(x)


@program
def convolutions_of_other_ranks(compiled: Compile) -> Any:
    model = nn.ModuleList([nn.Conv1d(3, 4, 3, dilation=2, padding_mode="circular", padding=2), nn.Conv3d(1, 2, 2)])
    model.append(nn.ConvTranspose1d(4, 2, 4, stride=2, output_padding=1))

    def function(x: Tensor) -> Tensor:
        y = model[2](model[0](x))
        z = model[1](x.reshape(1, 1, 2, 3, -1))
        return y.mean() * F.interpolate(z, scale_factor=2).sum((0, 1))

    return trained(model, compiled(function), (randn(2, 3, 6),))


# --- parameters that are computed, shared, averaged ------------------------------------------------------------------


@program
def reparametrized_weights(compiled: Compile) -> Any:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).transpose(-1, -2)

    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.Linear(4, 4),
    )
    parametrize.register_parametrization(model[2], "weight", Symmetric())
    return trained(model, compiled(model), *((randn(n, 4),) for n in (3, 5)))


@program
def orthogonal_weights(compiled: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.orthogonal(nn.Linear(4, 4)))
    return trained(model, compiled(model), (randn(3, 4),))


@program
def tied_weights(compiled: Compile) -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embedding.weight
            self.row = self.embedding.weight[2]

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embedding(ids)) + self.row.detach())

    model = Tied()
    return trained(model, compiled(model), (torch.tensor([[1, 2], [2, 8]]),), (torch.tensor([[0]]),))


@program
def moving_averages(compiled: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    teacher = copy.deepcopy(model).requires_grad_(False)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    student, target = compiled(model), compiled(teacher)

    @compiled
    @torch.no_grad()
    def update() -> None:
        for mean, value in zip(teacher.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 0.1)
        torch._foreach_mul_(list(teacher.buffers())[:2], 0.5)

    found = []
    for _ in range(3):
        x = torch.randn(5, 4)
        loss = F.mse_loss(student(x), target(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update()
        averaged.update_parameters(model)
        found.append(loss)
    return found, state(model, teacher, averaged)


@program
def functional_calls(compiled: Compile) -> Any:
    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def ensemble(parameters: Any, x: Tensor) -> Tensor:
        return torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)

    def adapted(parameters: Any, x: Tensor, y: Tensor) -> Tensor:
        def loss(p: Any) -> Tensor:
            return F.mse_loss(torch.func.functional_call(models[0], p, (x,)), y)

        p = {
            name: value - 0.1 * g
            for (name, value), g in zip(parameters.items(), torch.func.grad(loss)(parameters).values(), strict=True)
        }
        return loss(p)

    one = {name: p.detach() for name, p in models[0].named_parameters()}
    out = compiled(ensemble)(parameters, randn(3, 4))
    scalar(out).backward()
    return out, [p.grad for p in parameters.values()], compiled(adapted)(one, torch.randn(3, 4), torch.randn(3, 4))


# --- training steps --------------------------------------------------------------------------------------------------


@program
def accumulation_and_clipping(compiled: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    call, found = compiled(model), []
    for step in range(4):
        loss = F.cross_entropy(call(torch.randn(5, 4)), torch.randint(3, (5,)), label_smoothing=0.1) / 2
        loss.backward()
        if step % 2:
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 1)
        found.append(loss)
    return found, gradients(model), state(model)


@program
def scaled_gradients(compiled: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    call, found = compiled(model), []
    for step in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(call(torch.randn(5, 4)), torch.full((5, 1), float("inf") if step == 1 else 1.0))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        found += [loss, scaler.get_scale()]
    return found, state(model)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huber": lambda x, y: F.huber_loss(x, y) + F.smooth_l1_loss(x, y, beta=0.3),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.tensor(2.0)),
    "kl": lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="batchmean"),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, x.flip(0).detach()) + F.cosine_similarity(x, y).mean(),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y.abs()) + F.gaussian_nll_loss(x, y, y.square() + 0.1),
    "margins": lambda x, y: F.multi_margin_loss(x, y.argmax(1)) + F.margin_ranking_loss(x[0], x[1], y[0].sign()),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign()) + F.soft_margin_loss(x, y.sign()),
    "contrast": lambda x, y: F.cross_entropy(F.normalize(x) @ F.normalize(y).t() / 0.1, torch.arange(4)),
}


@program
def losses(compiled: Compile) -> Any:
    def every(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {name: loss(x, y) for name, loss in LOSSES.items()}

    x, y = randn(4, 5), torch.randn(4, 5)
    found = compiled(every)(x, y)
    torch.stack(list(found.values())).sum().backward()
    return found, x.grad


@program
def connectionist_loss(compiled: Compile) -> Any:
    def function(x: Tensor, targets: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(2), targets, torch.tensor([6, 5]), torch.tensor([3, 2]))

    x = randn(6, 2, 5)
    loss = compiled(function)(x, torch.tensor([[1, 2, 2], [3, 4, 0]]))
    loss.backward()
    return loss, x.grad


# --- what goes in and what comes out ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]
    label: str = ""
    missing: Tensor | None = None


Pair = namedtuple("Pair", ["values", "indices"])


@program
def structured_outputs(compiled: Compile) -> Any:
    model = nn.Linear(4, 3)

    def function(given: dict[str, Any], *, flag: bool = False) -> Any:
        x, (a, b) = given["x"], given["pair"]
        y = model(x) * a + b
        top = y.topk(2)
        return (
            Output(y, [y.tanh(), x], label="flag" if flag else "none"),
            Pair(*top),
            OrderedDict(z=y > 0, n=x.shape[0]),
        )

    call = compiled(function)
    found = []
    for rows, flag in ((3, False), (3, True), (5, True)):
        out, pair, rest = call({"x": torch.randn(rows, 4), "pair": (2.0, torch.ones(3))}, flag=flag)
        out.logits.sum().backward()
        found.append((vars(out), pair, rest))
        assert type(out) is Output and type(pair) is Pair and type(rest) is OrderedDict
    return found, gradients(model)


@program
def integer_and_boolean_outputs(compiled: Compile) -> Any:
    def function(x: Tensor, ids: Tensor) -> Any:
        counts = F.one_hot(ids, 6).sum(0)
        return x.argmax(1), x.sort(1).indices, x.isfinite().all(), (x > 0).sum(), ids // 2, ids % 3, counts, ids == 2

    call = compiled(function)
    return [call(torch.randn(n, 5), torch.randint(0, 6, (n,))) for n in (3, 4)]


@program
def buffers_written_in_forward(compiled: Compile) -> Any:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.tensor(0))
            self.register_buffer("queue", torch.zeros(6, 4), persistent=False)
            self.history: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            self.steps += 1
            self.mean.lerp_(y.detach().mean(0), 0.1)
            self.queue = torch.cat([y.detach(), self.queue])[:6]
            self.queue[0].zero_()
            return y - self.mean + self.queue.sum()

    model = Running()
    found = trained(model, compiled(model), *((randn(n, 4),) for n in (3, 5)))
    return found, model.queue


@program
def arguments_written_through_views(compiled: Compile) -> Any:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x[:, 1].add_(y[0])
        x.view(-1)[::3] = 5
        y.t().mul_(2)
        return x.sum(1) * y.mean()

    call, found = compiled(function), []
    for rows in (3, 4):
        x, y = torch.randn(rows, 4), torch.randn(2, rows)
        found += [call(x, y), x, y]
    return found


@program
def masks_and_indices(compiled: Compile) -> Any:
    def function(x: Tensor, ids: Tensor, mask: Tensor) -> Any:
        y = x.masked_fill(mask, 0.0).index_select(0, ids)
        z = torch.where(y > 0, y, -y).scatter_add(1, ids[:, None] % 5, torch.ones(3, 1))
        gathered = torch.gather(x, 1, ids[:, None])
        return (
            z.cumsum(1),
            gathered,
            x[ids, ids],
            torch.take_along_dim(x, x.argsort(1), 1),
        )

    x = randn(4, 5)
    out = compiled(function)(x, torch.tensor([3, 0, 3]), torch.rand(4, 5) > 0.5)
    sum(leaf.sum() for leaf in out).backward()
    return out, x.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs(name: str) -> None:
    check(PROGRAMS[name])
