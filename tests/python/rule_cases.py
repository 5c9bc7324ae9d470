"""What meets each rule of rust_ort.export.rules: functions and inputs, or why there are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten
nan, inf = math.nan, math.inf
SPECIAL = [nan, inf, -inf, -0.0, 0.0, 1.0, -1.0, 0.5, 100.0, -100.0, 1e20, 6.0]
PAIRS = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL))
X, Y = PAIRS[:, 0], PAIRS[:, 1]
ROWS = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, -inf], [-inf, -inf, -inf], [nan, nan, nan]])
IMAGE = torch.arange(2 * 3 * 9 * 7, dtype=torch.float32).sin().reshape(2, 3, 9, 7)
CHANNELS_LAST = IMAGE.to(memory_format=torch.channels_last)
MATRIX = IMAGE[0, 0]
POINTS = torch.arange(2 * 4 * 5 * 2, dtype=torch.float32).cos().reshape(2, 4, 5, 2) * 1.3
POINTS_3D = torch.arange(2 * 4 * 5 * 3, dtype=torch.float32).cos().reshape(1, 2, 4, 5, 3) * 1.3
CHANNEL = torch.tensor([0.5, 1.0, 2.0])
LABELS = torch.tensor([0, 2, 1, 2])
SCORES = torch.arange(12.0).cos().reshape(4, 3)
HEADS = torch.arange(2 * 4 * 6 * 8, dtype=torch.float32).sin().reshape(2, 4, 6, 8)
SEQUENCES, WEIGHTS, BIASES = HEADS[0].clone(), HEADS.reshape(-1, 8)[:24].cos(), HEADS.flatten()[:24]
IDS = torch.tensor([1, 2, 2, 0, 3])
LARGE = torch.tensor([2**31 + 5, -(2**31) - 5, 2**53 + 1, 1, 0]).repeat(8)
TENTHS = torch.tensor([0.1, 0.3, 0.5]).half().repeat(8)
LONG = 1000 * torch.rand(2**22, generator=torch.Generator().manual_seed(0))
NEAR_ONE_TENTH = 0.1 + LONG / 1e5
FLOAT64 = torch.linspace(-1, 1, 7, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """A function and inputs that meet a rule; floating inputs get gradients. strides: they are what the rule is for."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    dynamic: bool = False
    strides: bool = False


def case(function: Callable[..., Any], *inputs: Tensor) -> Case:
    return Case(function, inputs)


def without_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """For operators that have none."""
    return lambda *inputs: function(*(tensor.detach() for tensor in inputs))


def in_a_list(name: str, *more: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Of both inputs, called once for each of `more`; there LIST stands for tensors, SCALARS for numbers."""
    operator = getattr(torch, name)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = []
        for each in more or [()]:
            places = {LIST: [y + 0.5, x.abs() + 1], SCALARS: [0.5, 3]}
            given = [places.get(one, one) if isinstance(one, str) else one for one in each]
            made += operator([x.abs() + 0.1, y], *given)
        return tuple(made)

    return function


LIST, SCALARS = "a list of tensors", "a list of numbers"
NUMBERS_TOO = ("add", "clamp_max", "clamp_min", "div", "maximum", "minimum", "mul", "pow", "sub")
LISTS: dict[str, list[tuple[Any, ...]]] = {
    **{name: [] for name in ("abs", "exp", "neg", "reciprocal", "rsqrt", "sign", "sqrt")},
    **{name: [(LIST,), (0.3,), (SCALARS,)] for name in NUMBERS_TOO},
    "lerp": [(LIST, LIST), (LIST, 0.3)],
    "addcdiv": [(LIST, LIST, 0.3), (LIST, LIST, SCALARS)],
    "addcmul": [(LIST, LIST, 0.3), (LIST, LIST, SCALARS)],
    "norm": [(), (1,), (math.inf,)],
}
"""{name after _foreach_: what it is called with, beside its list}."""


CASES: dict[str, Case] = {
    # fourier
    "rust_ort.fft_r2c.default": case(lambda x: torch.view_as_real(torch.fft.rfft2(x + 1, norm="ortho")), IMAGE),
    "rust_ort.fft_c2c.default": case(lambda x: torch.fft.ifft(torch.complex(x, x * x)).real + 1, MATRIX),
    "rust_ort.fft_c2r.default": case(lambda x: torch.fft.irfft2(torch.complex(x, x * x), norm="forward"), MATRIX),
    # gamma
    "aten.lgamma.default": case(lambda x: torch.lgamma(x.detach()), FLOAT64.float() * 4),
    "aten.lgamma": case(lambda x: 1e12 * torch.lgamma(x.detach()), 1 + FLOAT64 / 1e9),
    "aten.digamma.default": case(torch.lgamma, FLOAT64.float() * 4),
    "aten.digamma": case(lambda x: 1e12 * torch.digamma(x.detach()), 1.4616321449683622 + FLOAT64 / 1e9),
    "aten.polygamma.default": case(lambda x: torch.polygamma(1, x.detach()), FLOAT64.float() * 4),
    "aten.polygamma": case(lambda x: torch.polygamma(2, x.detach()), torch.linspace(0.5, 4, 7)),
    # segments
    "aten.segment_reduce.default": case(
        lambda x: torch.segment_reduce(x.detach(), "max", lengths=torch.tensor([2, 7])), MATRIX
    ),
    "aten._segment_reduce_backward.default": case(
        lambda x: torch.segment_reduce(x, "prod", lengths=torch.tensor([2, 7])), MATRIX
    ),
    "aten._convert_indices_from_coo_to_csr.default": case(
        lambda rows: aten._convert_indices_from_coo_to_csr(rows, 5), IDS.sort().values
    ),
    "aten._convert_indices_from_csr_to_coo.default": case(
        lambda rows, columns: aten._convert_indices_from_csr_to_coo(rows, columns), torch.tensor([0, 2, 2, 5]), IDS
    ),
    # attention
    "aten._scaled_dot_product_flash_attention_for_cpu.default": case(
        lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True), HEADS
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": case(
        lambda q: functional.scaled_dot_product_attention(q, q, q), HEADS
    ),
    # layers
    "aten._transform_bias_rescale_qkv.default": case(
        without_gradient(lambda x, b: torch._transform_bias_rescale_qkv(x, b, 2)), SEQUENCES.repeat(1, 1, 3), BIASES
    ),
    "aten._masked_softmax.default": case(
        without_gradient(lambda x: torch._masked_softmax(x, x > 0, 3, 2)), HEADS.half()
    ),
    "aten._native_multi_head_attention.default": case(
        without_gradient(lambda x, w, b: torch._native_multi_head_attention(*[x] * 3, 8, 2, w, b, w[:8], b[:8])),
        *(SEQUENCES, WEIGHTS, BIASES),
    ),
    "aten._transformer_encoder_layer_fwd.default": case(
        without_gradient(
            lambda x, w, b: torch._transformer_encoder_layer_fwd(
                x, 8, 2, w, b, w[:8], b[:8], True, False, 1e-5, *[b[:8]] * 4, w, b, w.mT.contiguous(), b[:8]
            )
        ),
        *(SEQUENCES, WEIGHTS, BIASES),
    ),
    "aten.mkldnn_rnn_layer.default": case(
        without_gradient(
            lambda x, w, b: aten.mkldnn_rnn_layer(
                *(x, *[w.repeat(2, 1)[:32]] * 2, *[b.repeat(2)[:32]] * 2, x[:1], x[1:2]),
                *(True, [], 2, 8, 1, True, False, False, False),
            )[:3]
        ),
        *(SEQUENCES, WEIGHTS, BIASES),
    ),
    # activation
    "aten.cumsum.default": case(lambda x: x.detach().cumsum(0), torch.full((2**17,), 0.1)),
    **{
        f"aten.{name}_window": case(lambda x, name=name: x - getattr(torch, f"{name}_window")(1), torch.ones(1))
        for name in ("hann", "hamming", "blackman")
    },
    "aten.tanh.default": case(lambda x: torch.atanh(torch.tanh(x)).isnan(), torch.linspace(8, 9, 1025)),
    "aten.cos.default": case(lambda x: torch.cos(x.detach()).sign(), math.pi * (FLOAT64.sign() + 0.5)),
    "aten.sin.default": case(torch.sinc, torch.logspace(-300, -9, 64, dtype=torch.float64)),
    "aten.gelu.default": case(
        lambda x: tuple(functional.gelu(x.detach(), approximate=form).float().mean() for form in ("none", "tanh")),
        torch.linspace(1, 2, 1025).half(),
    ),
    "aten.sigmoid.default": case(lambda x: torch.log(torch.sigmoid(x)), torch.linspace(-30, 5, 64)),
    # convolution
    "aten.convolution_backward.default": case(lambda x, w: functional.conv2d(x, w), IMAGE, IMAGE[:, :, :3, :3]),
    "aten.convolution.default": case(
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, dilation=3, output_padding=2),
        IMAGE,
        IMAGE[0, :, None, :3, :3],
    ),
    # creation
    "aten.full.default": case(lambda x: x + torch.full((2,), 16777217.0, dtype=torch.int64), torch.arange(2)),
    "aten.new_full.default": case(lambda x: x.new_full((2,), 16777217.0), torch.arange(2)),
    "aten.full_like.default": case(lambda x: torch.full_like(x.detach(), 2.0), MATRIX),
    "aten.zeros_like.default": case(lambda x: torch.zeros_like(x.detach()), MATRIX),
    "aten.ones_like.default": case(lambda x: torch.ones_like(x.detach()), MATRIX),
    "aten._efficientzerotensor.default": case(torch.sgn, MATRIX),
    "aten.copy.default": case(lambda x: (x * 2).copy_(x[0]).view(-1).cumsum(0)[-1] + 1, MATRIX),
    "aten.linspace.Tensor_Tensor": case(
        lambda a, b: torch.linspace(a, b, 50, dtype=torch.int32), torch.tensor(4.3), torch.tensor(-3.0)
    ),
    "aten.linspace.Tensor_Scalar": case(lambda a: torch.linspace(a, -3, 50, dtype=torch.int64), torch.tensor(4.3)),
    "aten.linspace.Scalar_Tensor": case(lambda b: torch.linspace(4.3, b, 50, dtype=torch.int64), torch.tensor(-3.0)),
    "aten.arange.start": case(lambda x: x + torch.arange(2**53, 2**53 + 3), torch.arange(3)),
    "aten.arange.start_step": case(lambda x: x + torch.arange(0, 0.7, 0.1, dtype=torch.float64), FLOAT64),
    "aten.expand": case(lambda x: (x[:1] + 1).expand(0, 7).sin(), MATRIX),
    # indexing
    "aten.lift_fresh.default": case(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)),
    "aten.diagonal_scatter.default": case(torch.diagonal_scatter, torch.ones(3, 3), torch.zeros(3)),
    "aten.diagonal.default": case(lambda x: x.diagonal() * 1, ROWS),
    "aten.diagonal_copy.default": case(lambda x: torch.diagonal_copy(x.detach()), ROWS),
    "aten.take.default": case(torch.take, MATRIX, torch.tensor(-1)),
    "aten.masked_scatter.default": case(
        lambda x, mask, y: x.masked_scatter(mask, y), torch.tensor(1.0), torch.tensor(True), MATRIX
    ),
    "aten.masked_scatter_backward.default": case(
        lambda x, y: x.masked_scatter(x > 0, y), MATRIX, MATRIX[:, :6].flip(0).contiguous()
    ),
    "aten._cdist_forward.default": case(lambda x: torch.cdist(x.detach(), x.detach().flip(1)), MATRIX),
    "aten._cdist_backward.default": case(lambda x, y: torch.cdist(x, y), MATRIX, MATRIX[2:5]),
    "aten._pdist_forward.default": case(lambda x: torch.pdist(x.detach()), MATRIX),
    "aten._pdist_backward.default": case(lambda x: torch.pdist(x, p=1), MATRIX),
    "aten._embedding_bag": case(lambda w: aten._embedding_bag(w.detach(), IDS, torch.tensor([0, 3]), False, 2), SCORES),
    "aten._embedding_bag_forward_only": case(
        lambda w: aten._embedding_bag_forward_only(w.detach(), IDS, torch.tensor([0, 3]), False, 2), SCORES
    ),
    "aten._embedding_bag_backward.default": case(
        lambda w: functional.embedding_bag(IDS, w, torch.tensor([0, 3, 3]), padding_idx=2), SCORES
    ),
    "aten._embedding_bag_per_sample_weights_backward.default": case(
        lambda w, x: functional.embedding_bag(
            IDS, w, torch.tensor([0, 3, 5]), mode="sum", per_sample_weights=x, include_last_offset=True
        ),
        SCORES,
        IDS / 7,
    ),
    "aten.scatter": case(lambda x: torch.zeros(()).scatter(0, torch.tensor(0), x), torch.tensor(2.0)),
    "aten.scatter_add": case(lambda x: torch.zeros(()).scatter_add(0, torch.tensor(0), x), torch.tensor(2.0)),
    "aten.scatter_reduce": case(
        lambda x: torch.zeros(4, dtype=torch.bool).scatter_reduce(0, IDS, x, "amax"), torch.ones(5, dtype=torch.bool)
    ),
    **{
        f"aten.{name}": case(function, MATRIX.half())
        for name, function in {
            "index.Tensor": lambda x: x.detach()[IDS.int()],
            "_unsafe_index.Tensor": lambda x: aten._unsafe_index(x.detach(), [IDS.int()]),
            "index_put.default": lambda x: x[IDS],
            "_unsafe_index_put.default": lambda x: aten._unsafe_index_put(x.detach(), [IDS.int()], x[:5].detach()),
            "put.default": lambda x: torch.put(x.detach(), IDS, x[:5, 0].detach(), accumulate=True),
            "scatter.src": lambda x: x.detach().scatter(0, IDS[:4].reshape(2, 2), x.detach()),
            "scatter.reduce": lambda x: x.detach().scatter(0, IDS[:4].reshape(2, 2), x.detach(), reduce="add"),
            "scatter.value_reduce": lambda x: x.detach().scatter(0, IDS[:, None], 2.0, reduce="multiply"),
            "scatter_add.default": lambda x: torch.gather(x, 0, IDS[:, None]),
            "index_reduce.default": lambda x: x.detach().index_reduce(0, IDS, x.detach()[:5], "amax"),
            "scatter_reduce.two": lambda x: x.detach().scatter_reduce(0, IDS[:, None], x.detach(), "prod"),
        }.items()
    },
    "aten.bucketize.Tensor": case(lambda x, y: torch.bucketize(x.detach(), y.detach()), MATRIX[0], CHANNEL[:0]),
    "aten.squeeze.dim": case(lambda x: x.squeeze(1) * 2, IMAGE),
    # joining
    "aten.cat.default": case(lambda x: torch.cat([torch.tensor([]), x, x[:2]]), MATRIX),
    # linear
    "aten.baddbmm.default": case(
        lambda c, x: torch.baddbmm(c, x, x, beta=0), torch.full((2, 3, 3), nan), torch.ones(2, 3, 3)
    ),
    "aten.addmv.default": case(lambda x, y: torch.addmv(y, x, y, alpha=0), MATRIX[:7] / 0, MATRIX[0]),
    "aten.addbmm.default": case(lambda x, y: torch.addbmm(y, x[None], y[None], alpha=0), MATRIX[:7] / 0, MATRIX[:7]),
    "aten.addmm.default": case(lambda x: torch.addmm(x, x, x[:7], alpha=0.3), MATRIX.double()),
    # lists
    **{
        f"aten._foreach_{name}": case(in_a_list(f"_foreach_{name}", *more), MATRIX, IMAGE[1, 0] + 2)
        for name, more in LISTS.items()
    },
    "aten._foreach_copy": case(
        lambda x, y: tuple(aten._foreach_copy([x.detach(), y.detach()], [y.detach() * 2, x.detach()])),
        MATRIX,
        MATRIX.double(),
    ),
    "aten._foreach_zero": case(lambda x, y: tuple(aten._foreach_zero([x.detach() + 1, y.detach()])), MATRIX, MATRIX),
    "aten._foreach_clone": case(lambda x, y: tuple(aten._foreach_clone([x, y])), MATRIX, MATRIX),
    # loss
    "aten.mse_loss.default": case(lambda x: functional.mse_loss(x.detach(), -x.detach()), LONG),
    "aten.nll_loss_forward.default": case(lambda x, w: functional.nll_loss(x, LABELS, w.detach()), SCORES, CHANNEL),
    # normalization
    "aten.native_group_norm.default": case(
        lambda x: functional.group_norm(x.detach(), 1), NEAR_ONE_TENTH.reshape(1, 4, -1)
    ),
    "aten.native_layer_norm.default": case(lambda x: aten.native_layer_norm(x, [7], None, None, 1e-5), MATRIX.half()),
    "aten.native_batch_norm_backward.default": Case(
        lambda x: functional.batch_norm(x, CHANNEL.clone(), CHANNEL.clone(), CHANNEL, CHANNEL, True),
        (IMAGE,),
        dynamic=True,
    ),
    "aten._native_batch_norm_legit_functional.default": case(
        lambda x: functional.batch_norm(x, CHANNEL.clone(), CHANNEL.clone(), CHANNEL, CHANNEL, True), IMAGE
    ),
    "aten._native_batch_norm_legit.no_stats": case(
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), IMAGE.half()
    ),
    "aten._native_batch_norm_legit_no_training.default": case(
        lambda x: aten._native_batch_norm_legit_no_training(x, CHANNEL, CHANNEL, CHANNEL, CHANNEL, 0.1, 1e-5), IMAGE
    ),
    "aten._weight_norm_interface_backward.default": case(
        lambda v, g: torch._weight_norm(v, g, 2), IMAGE[0] + 2, torch.ones(1, 1, 7)
    ),
    # pointwise
    "aten.hardtanh_backward.default": case(functional.hardtanh, torch.tensor(SPECIAL).repeat(16)),
    "aten.hardswish_backward.default": case(functional.hardswish, torch.full((64,), nan)),
    "aten.elu_backward.default": case(functional.elu, torch.full((64,), nan)),
    "aten.threshold.default": case(lambda x: functional.threshold(x, 0.2, 16777217.0), IDS),
    "aten.masked_fill.Scalar": case(lambda x: x.masked_fill(x > 1, 16777217.0), IDS),
    "aten.fill.Scalar": case(lambda x: torch.fill(x, 16777217.0), IDS),
    "aten.logaddexp.default": case(torch.logaddexp, torch.tensor([100.0, -200.0]), torch.tensor([100.0, -200.0])),
    "aten.logaddexp2.default": case(torch.logaddexp2, torch.tensor([200.0, -200.0]), torch.tensor([200.0, -200.0])),
    "aten.isinf.default": case(torch.isinf, torch.tensor([1e300, inf], dtype=torch.float64)),
    "aten.isnan.default": case(torch.isnan, torch.arange(3)),
    "aten.isneginf.default": case(torch.isneginf, torch.tensor([-1e300, -inf], dtype=torch.float64)),
    "aten.isposinf.default": case(torch.isposinf, torch.tensor([1e300, inf], dtype=torch.float64)),
    "aten.xlogy.Tensor": case(torch.xlogy, X, Y),
    "aten.ldexp.Tensor": case(lambda x, e: torch.ldexp(x, e.detach()), torch.arange(4), torch.tensor(0.3).half()),
    "aten.copysign.Tensor": case(torch.copysign, X, Y),
    "aten.copysign.Scalar": case(lambda x: torch.copysign(x, -0.0), X),
    "aten.angle.default": case(torch.angle, torch.tensor(SPECIAL)),
    "aten.atan.default": case(torch.atan, torch.tensor(SPECIAL, dtype=torch.float64)),
    "aten.atan2.default": case(torch.atan2, X, Y),
    "aten.div.Tensor_mode": case(
        lambda x, y, i: (torch.div(x, y, rounding_mode="floor"), torch.div(i, i[:1], rounding_mode="trunc")),
        torch.ones(1),
        torch.tensor([0.1]),
        torch.tensor([-3, 2**40 + 1]),
    ),
    "operator.floordiv": Case(lambda x: x + (-x.shape[0] // 2), (torch.arange(9.0),), dynamic=True),
    "aten.floor_divide.default": case(lambda x, y: x.detach() // y.detach(), torch.ones(1), torch.tensor([0.1])),
    "aten.fmod.Scalar": case(lambda x: torch.fmod(x, 3), LARGE),
    "aten.fmod.Tensor": case(torch.fmod, LARGE, torch.full_like(LARGE, 3)),
    **{
        f"aten.bitwise_{name}.{overload}": Case(function, (IDS,), dynamic=True)
        for name in ("and", "or", "xor", "left_shift", "right_shift")
        for overload, function in (
            (
                "Tensor_Scalar" if "shift" in name else "Scalar",
                lambda x, name=name: getattr(torch, f"bitwise_{name}")(x, x.shape[0]),
            ),
            ("Scalar_Tensor", lambda x, name=name: getattr(torch, f"bitwise_{name}")(x.shape[0], x)),
        )
    },
    "aten.heaviside.default": case(lambda x, y: torch.heaviside(x.detach(), y.detach()), X, Y),
    "aten.pow": case(lambda x: torch.pow(3, x), torch.arange(40)),
    "aten.pow.Tensor_Tensor": case(lambda x, y: x**y, torch.arange(1, 6), torch.tensor([0.5, 1.0, 2.0, 3.0, 0.25])),
    "aten.pow.Tensor_Scalar": case(lambda x: x**0.5, torch.tensor(SPECIAL)),
    "aten.remainder.Scalar": case(lambda x: x % -2.5, X),
    "aten.remainder.Scalar_Tensor": case(lambda x: torch.remainder(2.5, x.detach()), Y),
    "aten.remainder.Tensor": case(torch.remainder, X, Y),
    "aten.lerp.Tensor": case(torch.lerp, X, Y, Y.flip(0)),
    "aten.log1p.default": case(lambda x: x / torch.log1p(x), torch.tensor([1e-10, 0.1, 7.0])),
    "aten.expm1.default": case(lambda x: x / torch.expm1(x), torch.tensor([1e-10, 0.1, 7.0])),
    "prims.fma.default": case(
        lambda x: (x.detach() * 1).addcmul_(x.detach(), x.detach(), value=0.5), torch.tensor([1.0, 0.1])
    ),
    "aten.addcdiv.default": case(
        lambda x, y: aten.addcdiv(x.detach(), x.detach(), y.detach(), value=0.5), torch.ones(2), torch.full((2,), 2e-39)
    ),
    "aten.glu.default": case(lambda x: functional.glu(x).log(), torch.tensor([1.0, 2.0, -10.0, -40.0])),
    "aten._softmax_backward_data.default": case(
        lambda g, y: 1 / aten._softmax_backward_data(g.detach(), y.detach(), 0, torch.float32),
        torch.tensor([1.0, 0.0]),
        torch.tensor([1.0, 0.0]),
    ),
    "aten.erfc.default": case(lambda x: torch.log(torch.erfc(x)), torch.linspace(-3, 9, 32)),
    "aten.logit_backward.default": case(torch.logit, torch.tensor([-0.0, 0.5, 0.0, 1.0])),
    "aten.logit.default": case(lambda x: torch.logit(x.detach(), 0.01), torch.tensor(SPECIAL)),
    "aten.relu.default": case(torch.relu, LARGE),
    "aten.maximum.default": case(torch.maximum, LARGE, torch.zeros_like(LARGE)),
    "aten.minimum.default": case(torch.minimum, LARGE, torch.zeros_like(LARGE)),
    "aten.clamp.default": case(lambda x: aten.clamp(x, None, 0.5), torch.tensor(SPECIAL)),
    "aten.clamp.Tensor": case(torch.clamp, LARGE, torch.zeros_like(LARGE), torch.ones_like(LARGE)),
    "aten.clamp_min.Tensor": case(
        lambda x: torch.clamp_min(x.detach(), torch.full((), 1e-8)), torch.tensor([1.0, inf, -inf, 0.0])
    ),
    "aten.clamp_max.Tensor": case(
        lambda x: torch.clamp_max(x.detach(), torch.full((), 1e8)), torch.tensor([1.0, inf, -inf, 0.0])
    ),
    "aten.clamp_min.default": case(lambda x: torch.clamp_min(x, 0.5), torch.tensor(SPECIAL)),
    "aten.clamp_max.default": case(lambda x: torch.clamp_max(x, 0.5), torch.tensor(SPECIAL)),
    "aten.fmax.default": case(lambda x, y: torch.fmax(x.detach(), y.detach()), X, Y),
    "aten.fmin.default": case(lambda x, y: torch.fmin(x.detach(), y.detach()), X, Y),
    "aten.eq.Scalar": case(lambda x: x == 0.1, TENTHS),
    "aten.ne.Scalar": case(lambda x: x != 0.1, TENTHS),
    "aten.lt.Scalar": case(lambda x: x < 0.1, TENTHS),
    "aten.le.Scalar": case(lambda x: x <= 0.3, TENTHS),
    "aten.gt.Scalar": case(lambda x: x > 0.3, TENTHS),
    "aten.ge.Scalar": case(lambda x: x >= 0.1, TENTHS),
    "aten.threshold_backward.default": case(lambda x: functional.threshold(x, 0.3, 0.1), TENTHS),
    "aten.addcmul.default": case(lambda x: torch.addcmul(x, x, x, value=0.1), MATRIX.double()),
    "aten.celu.default": case(lambda x: functional.celu(x, 1e5), 0.01 * MATRIX),
    "aten.elu.default": case(lambda x: functional.elu(x, 1e5), 0.01 * MATRIX),
    "aten.mish.default": case(lambda x: torch.log(-functional.mish(x)), 60 * (FLOAT64 - 1.1)),
    "aten.silu.default": case(lambda x: torch.log(-functional.silu(x)), torch.linspace(-30, -1, 64)),
    "aten.hardsigmoid.default": case(lambda x: functional.hardsigmoid(x.detach()), MATRIX.double()),
    "aten.hardswish.default": case(functional.hardswish, MATRIX.double()),
    "aten.hardtanh.default": case(lambda x: functional.hardtanh(x, -0.1, 0.3), MATRIX.double()),
    "aten.leaky_relu.default": case(lambda x: functional.leaky_relu(x.detach(), math.inf), torch.tensor(SPECIAL)),
    "aten._prelu_kernel.default": case(
        lambda x: functional.prelu(x.detach(), torch.tensor([math.inf])), torch.tensor(SPECIAL)
    ),
    "aten.nll_loss_backward.default": case(lambda x: functional.nll_loss(x, LABELS) * math.inf, SCORES),
    "aten.nll_loss2d_backward.default": case(
        lambda x: functional.nll_loss(x, LABELS.reshape(1, 2, 2)) * math.inf,
        SCORES.t().reshape(1, 3, 2, 2).contiguous(),
    ),
    "aten.smooth_l1_loss_backward.default": case(
        lambda x: functional.smooth_l1_loss(x, torch.ones(3), reduction="sum"), torch.tensor([1.0, nan, 3.0])
    ),
    "aten.sinc.default": case(torch.sinc, MATRIX.double()),
    "aten.softplus.default": case(lambda x: functional.softplus(x, 1.1), MATRIX.double()),
    "aten.sign.default": case(torch.sign, torch.tensor(SPECIAL)),
    "aten.signbit": case(torch.signbit, torch.tensor(SPECIAL)),
    "aten.signbit.default": case(torch.signbit, torch.tensor(-3)),
    "aten.special_erfcx": case(torch.special.erfcx, torch.tensor([-3.0, 0.0, 30.0])),
    # pooling
    "aten.avg_pool2d.default": case(lambda x: functional.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    "aten.avg_pool3d.default": case(lambda x: functional.avg_pool3d(x, 2, ceil_mode=True, padding=1), IMAGE),
    "aten.avg_pool2d_backward.default": case(lambda x: functional.avg_pool2d(x, 3, 2, 1), IMAGE),
    "aten.avg_pool3d_backward.default": case(lambda x: functional.avg_pool3d(x, 2, 1), IMAGE),
    "aten._adaptive_avg_pool2d.default": case(lambda x: functional.adaptive_avg_pool2d(x.detach(), (0, 3)), IMAGE),
    "aten._adaptive_avg_pool3d.default": case(lambda x: functional.adaptive_avg_pool3d(x, 2), IMAGE),
    "aten._adaptive_avg_pool2d_backward.default": case(lambda x: functional.adaptive_avg_pool2d(x, (4, 3)), IMAGE),
    "aten._adaptive_avg_pool3d_backward.default": case(lambda x: functional.adaptive_avg_pool3d(x, (2, 4, 3)), IMAGE),
    "aten.adaptive_max_pool2d.default": case(lambda x: functional.adaptive_max_pool2d(x, (4, 3), True), IMAGE),
    "aten.adaptive_max_pool3d.default": case(lambda x: functional.adaptive_max_pool3d(x, (2, 4, 3), True), IMAGE),
    "aten.adaptive_max_pool2d_backward.default": case(lambda x: functional.adaptive_max_pool2d(x, (4, 3)), IMAGE),
    "aten.adaptive_max_pool3d_backward.default": case(lambda x: functional.adaptive_max_pool3d(x, (2, 4, 3)), IMAGE),
    "aten.max_pool3d_with_indices_backward.default": case(lambda x: functional.max_pool3d(x, 2, 1), IMAGE),
    "aten.max_pool2d_with_indices.default": case(
        lambda x: functional.max_pool2d(x, 2, 1, return_indices=True), ROWS[None]
    ),
    "aten.max_pool3d_with_indices.default": case(
        lambda x: functional.max_pool3d(x, (1, 2, 2), 1, return_indices=True), ROWS[None, None]
    ),
    # random
    "aten.cauchy.default": case(lambda x: torch.empty_like(x).cauchy_() * x, MATRIX),
    "aten.exponential.default": case(lambda x: torch.empty_like(x).exponential_() * x, MATRIX),
    "aten.geometric.default": case(lambda x: torch.empty_like(x).geometric_(0.3) * x, MATRIX),
    "aten.log_normal.default": case(lambda x: torch.empty_like(x).log_normal_() * x, MATRIX),
    # reduction
    "aten.amax.default": case(lambda x: torch.amax(x, 1), ROWS),
    "aten.amin.default": case(lambda x: torch.amin(x, (0, 1)), ROWS),
    "aten.argmax.default": case(lambda x: torch.argmax(x, 1), ROWS),
    "aten.argmin.default": case(lambda x: torch.argmin(x, 1), ROWS),
    "aten.linalg_vector_norm.default": case(lambda x: torch.linalg.vector_norm(x.detach(), inf, 1), ROWS),
    "aten.logsumexp.default": case(lambda x: torch.logsumexp(x, 0), torch.tensor([1e4, 1.0]).half()),
    "aten._log_softmax.default": case(lambda x: torch.log_softmax(x, 0), torch.tensor([1.0, nan]).double()),
    "aten.sort": case(lambda x: torch.sort(x)[0], torch.tensor([inf, 1e305, nan, 1.0], dtype=torch.float64)),
    "aten.sort.default": case(lambda x: tuple(torch.sort(x)), ROWS),
    "aten.sort.stable": case(lambda x: tuple(torch.sort(x, stable=True)), ROWS),
    "aten.topk": case(lambda x: torch.topk(x, 2)[0], torch.tensor([inf, 1e305, nan, 1.0], dtype=torch.float64)),
    "aten.topk.default": case(lambda x: torch.topk(x, 2)[0], ROWS[:2]),
    "aten.var.correction": case(lambda x: torch.var(x.detach(), 1, correction=9), MATRIX),
    "aten.var_mean.correction": case(lambda x: torch.var_mean(x.detach(), 0), NEAR_ONE_TENTH.reshape(-1, 4)),
    "aten.logcumsumexp": case(lambda x: torch.logcumsumexp(x, 0), torch.tensor([-200.0, -201.0, 0.0])),
    "aten.max.default": case(lambda x: torch.max(x.detach()), ROWS),
    "aten.max.dim": case(lambda x: tuple(torch.max(x, 1)), ROWS),
    "aten.min.default": case(lambda x: torch.min(x.detach()), ROWS),
    "aten.min.dim": case(lambda x: tuple(torch.min(x, 1)), ROWS),
    "aten.cumprod.default": case(lambda x: torch.cumprod(x.detach(), 1), MATRIX),
    "aten.mean.default": case(torch.mean, LONG[: 2**20]),
    "aten.mean.dim": case(lambda x: torch.mean(x, 0, dtype=torch.float32), IDS),
    "aten.nonzero.default": case(lambda x: torch.nonzero(torch.tensor(1.75) + 1).sum() + x, X),
    "aten.prod": case(lambda x: torch.prod(torch.cat([x, x.new_ones(62)]), 0), LARGE[:3]),
    "aten.prod.default": case(torch.prod, LARGE[:3]),
    "aten.sum.default": case(torch.sum, LARGE**2 + LARGE),
    "aten.sum.dim_IntList": case(lambda x: torch.sum(x, 0), LARGE**2 + LARGE),
    # resize
    **{
        f"aten._upsample_{mode}2d_aa": case(
            lambda x, mode=mode: functional.interpolate(x, (4, 3), mode=mode, antialias=True, align_corners=True),
            (IMAGE * 100 + 120).byte(),
        )
        for mode in ("bilinear", "bicubic")
    },
    **{
        f"aten._upsample_{mode}2d_aa{suffix}.default": case(
            lambda x, mode=mode: functional.interpolate(x, (4, 23), mode=mode, antialias=True), IMAGE
        )
        for mode in ("bilinear", "bicubic", "lanczos")
        for suffix in ("", "_backward")
    },
    **{
        f"aten.{name}_pad{len(cut) // 2}d.default": case(
            lambda x, cut=cut, mode=mode: functional.pad(x, cut, mode=mode), IMAGE[0] if len(cut) == 2 else IMAGE
        )
        for name, mode, left in (("replication", "replicate", -7), ("reflection", "reflect", -6))
        for cut in ((left, 1), (left, 1, 1, -8), (left, 1, 1, -8, 0, 1))
    },
    **{
        f"aten.replication_pad{len(margins) // 2}d_backward.default": case(
            lambda x, margins=margins: functional.pad(x, margins, mode="replicate"),
            IMAGE[0] if len(margins) == 2 else IMAGE,
        )
        for margins in ((2, 1), (2, 1, 0, 3), (2, 1, 0, 3, 1, 1))
    },
    "aten.pixel_shuffle.default": case(lambda x: functional.pixel_shuffle(x, 2), torch.arange(64).reshape(8, 2, 4)),
    "aten.im2col.default": case(lambda x: functional.unfold(x.detach(), 3, 2, 1, 2), IMAGE[0]),
    "aten.col2im.default": case(lambda x: functional.unfold(x, 3, 1, 1, 2), IMAGE.double()),
    # sampling
    "aten.grid_sampler_2d.default": case(
        lambda x, grid: functional.grid_sample(x.detach(), grid * 1e30, align_corners=False), IMAGE, POINTS.detach()
    ),
    "aten.grid_sampler_2d_backward.default": case(
        lambda x, grid: functional.grid_sample(x, grid, align_corners=False), IMAGE, POINTS
    ),
    "aten.grid_sampler_3d.default": case(
        lambda x, grid: functional.grid_sample(x, grid, align_corners=False), IMAGE[None], POINTS_3D
    ),
    "aten.grid_sampler_3d_backward.default": case(
        lambda x, grid: functional.grid_sample(x, grid, align_corners=False), IMAGE[None], POINTS_3D
    ),
    # strided
    "aten.roll.default": Case(lambda x: x.detach().roll(2, 3), (CHANNELS_LAST,), strides=True),
    "aten.all.dim": case(lambda x: torch.all(x.detach(), 0), torch.tensor(2.0)),
    "aten.any.dim": case(lambda x: torch.any(x.detach(), 0), torch.tensor(2.0)),
    "aten.prod.dim_int": case(lambda x: torch.prod(x, 0), LARGE[:3]),
    "aten.flip.default": case(lambda x: torch.flip(x, (0,)), torch.tensor(2.0)),
    "aten.all.dims": case(lambda x: torch.all(x, ()), ROWS[:2]),
    "aten.any.dims": case(lambda x: torch.any(x, (), keepdim=True), MATRIX[:, :1] - MATRIX[0, 0]),
    "aten.as_strided": case(lambda x: (x + 1)[:, :3].as_strided((3, 4), (6, 1)) * x[:3, :4], MATRIX),
    "aten.as_strided_scatter.default": case(
        lambda x, y: torch.as_strided_scatter((x.detach() + 1).t(), y, (3, 4), (1, 3), 2), MATRIX, MATRIX[:3, :4]
    ),
}

WITHOUT_CASE: dict[str, str] = {
    "aten._grouped_mm.default": "of bfloat16, of which ONNX Runtime alone has no MatMul: test_experts.py",
    **{
        f"transformers.grouped_mm_fallback{direction}.default": "of transformers: test_experts.py"
        for direction in ("", "_backward")
    },
    **{
        f"aten._scaled_dot_product_{kernel}_attention{direction}.default": "of CUDA alone: test_cuda_graphs.py"
        for kernel in ("flash", "efficient", "cudnn")
        for direction in ("", "_backward")
    },
    "aten.native_batch_norm.default": "functionalization makes it _native_batch_norm_legit_functional first",
    "aten._native_batch_norm_legit.default": "functionalization makes it _native_batch_norm_legit_functional first",
    "aten.max_unpool2d.default": "where indices repeat the result is chance: there is nothing to compare with",
    "aten.max_unpool3d.default": "where indices repeat the result is chance: there is nothing to compare with",
    "aten._embedding_bag_forward_only.default": "without it onnxruntime, and this process, dies of it",
    **dict.fromkeys(
        ["aten.select_scatter.default", "aten.slice_scatter.default"], "inputs that are views: corpus.json"
    ),
    **dict.fromkeys(
        ["aten.constant_pad_nd.default", "aten.index_put", "aten._unsafe_index_put"], "symbolic sizes: corpus.json"
    ),
    **dict.fromkeys(
        ["aten.soft_margin_loss.default", "aten.soft_margin_loss_backward.default"],
        "where eager overflows: test_extremes.py",
    ),
    **dict.fromkeys(
        ["aten.slice_backward.default", "aten.select_backward.default", "aten.unfold_backward.default"],
        "right without it, and slow: test_slices.py",
    ),
    "aten.mv.default": "right without it, and slow: test_vectors.py",
    **dict.fromkeys(
        [f"aten.{name}.default" for name in ("native_dropout", "empty_like", "new_empty")],
        "right without it, in more parts: test_dropout.py",
    ),
    "aten.embedding_dense_backward.default": "right without it, in more nodes: test_embedding_gradients.py",
    "aten.trunc.default": "the sign of zero: test_extremes.py",
    **dict.fromkeys(
        ["aten.binary_cross_entropy.default", "aten.repeat_interleave.Tensor"], "what eager refuses: test_refusals.py"
    ),
    "aten.frac.default": "the sign of zero: test_extremes.py",
    **dict.fromkeys(
        [
            "aten.lerp.Scalar",
            "aten.pow.Scalar",
            "aten.mul.Tensor",
            "aten.div.Tensor",
            "aten.add.Tensor",
            "aten.sub.Tensor",
            "aten.xlogy.Scalar_Self",
            "aten.xlogy.Scalar_Other",
            "aten.special_xlog1py.default",
            "aten.special_xlog1py.self_scalar",
            "aten.special_xlog1py.other_scalar",
        ],
        "how half precision is rounded: test_extremes.py",
    ),
    **dict.fromkeys(
        [f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")],
        "beside tensors of rank 0: test_extremes.py",
    ),
    **dict.fromkeys(
        [
            "aten.gather.default",
            "aten.index_select.default",
            "aten.embedding.default",
            "aten.scatter.value",
            "aten.index_add.default",
            "aten.index_copy.default",
            "aten.index_fill.int_Scalar",
            "aten.index_fill.int_Tensor",
            "aten.index_fill",
            "aten.index_copy",
        ],
        "what is refused: test_indices.py",
    ),
    "aten._embedding_bag.default": "without it torchlib's offsets have another length, and this process dies of it",
    "aten.avg_pool2d": "with sizes that are known it is decomposed",
    "aten.avg_pool3d": "with sizes that are known it is decomposed",
    "aten.max_pool2d_with_indices": "only where sizes are symbolic",
    "aten.max_pool3d_with_indices": "only where sizes are symbolic",
}
"""{operator: why no graph meets its rule}."""
BY_CHANCE = {"aten.index_put.default", "aten._unsafe_index_put.default"}
"""Without the rule wrong now and then: test_scattering.py."""
