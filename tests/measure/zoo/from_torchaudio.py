"""Models of torchaudio: recognition, separation and synthesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from measure.zoo.model import Call, Model, Subject, adam
from measure.zoo.sources import made_by

BATCH, FRAMES, SAMPLES, BANDS = 2, 100, 16_000, 80

Inputs = Callable[[], tuple[Tensor, ...]]
Loss = Callable[[Any], Tensor]


def _torchaudio(name: str, inputs: Inputs, *, smaller: str = "", loss: Loss | None = None, **options: Any) -> Model:
    """inputs: positional arguments of a call, the same in both modes. options: of the class or factory."""
    source = f"torchaudio.models.{name}"

    def build() -> Subject:
        call = Call(args=inputs())
        module = made_by(source)(**options)
        return Subject(module=module, evaluated=call, trained=call, loss=loss, optimizer=adam)

    return Model(name=name, package="torchaudio", source=source, smaller=smaller, build=build)


def far_from_waves(output: Any) -> Tensor:
    """Mean square of a model's first output less a cosine of its places. What the model normalizes itself, and
    log-probabilities that are about equal, have a mean square with next to no gradient."""
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return (first - torch.arange(first.numel()).cos().view_as(first)).square().mean()


def _lengths(whole: int) -> Tensor:
    """The second sequence is shorter."""
    return torch.tensor([whole, whole - whole // 4])


def _frames() -> tuple[Tensor, ...]:
    """(batch, frames, bands), and how many frames count."""
    return torch.randn(BATCH, FRAMES, BANDS), _lengths(FRAMES)


def _spectrogram() -> tuple[Tensor, ...]:
    """(batch, channel, frames, bands)."""
    return (torch.randn(BATCH, 1, FRAMES, BANDS),)


def _waves() -> tuple[Tensor, ...]:
    return (torch.randn(BATCH, SAMPLES),)


def _channel() -> tuple[Tensor, ...]:
    """(batch, channel, samples)."""
    return (torch.randn(BATCH, 1, SAMPLES),)


def _stereo() -> tuple[Tensor, ...]:
    return (torch.randn(1, 2, SAMPLES),)


def _sentences() -> tuple[Tensor, ...]:
    """Symbols, how many count, and the log-mel frames that are synthesized from them, one after another."""
    length, frames = 24, 16
    return (
        torch.randint(1, 148, (BATCH, length)),
        _lengths(length),
        torch.randn(BATCH, BANDS, frames),
        _lengths(frames),
    )


MODELS = [
    _torchaudio(
        "Conformer", _frames, loss=far_from_waves, input_dim=BANDS, num_heads=4, ffn_dim=256, num_layers=2,
        depthwise_conv_kernel_size=31,
    ),
    _torchaudio(
        "ConvTasNet", _channel, smaller="features, layers and stacks", enc_num_feats=128, msk_num_feats=64,
        msk_num_hidden_feats=128, msk_num_layers=4, msk_num_stacks=2,
    ),
    _torchaudio("DeepSpeech", _spectrogram, smaller="width", loss=far_from_waves, n_feature=BANDS, n_hidden=256),
    _torchaudio(
        "Emformer", _frames, loss=far_from_waves, input_dim=BANDS, num_heads=4, ffn_dim=256, num_layers=2,
        segment_length=10,
    ),
    _torchaudio("HDemucs", _stereo, smaller="channels", sources=["drums", "bass", "other", "vocals"], channels=8),
    _torchaudio(
        "Tacotron2", _sentences, smaller="width and frames", symbol_embedding_dim=128, encoder_embedding_dim=128,
        decoder_rnn_dim=256, attention_rnn_dim=256, postnet_embedding_dim=128,
    ),
    _torchaudio("Wav2Letter", _channel, loss=far_from_waves),
    _torchaudio(
        "wav2vec2_model", _waves, extractor_mode="group_norm", extractor_conv_bias=False,
        extractor_conv_layer_config=[(64, 10, 5), *[(64, 3, 2)] * 4, *[(64, 2, 2)] * 2], encoder_embed_dim=256,
        encoder_projection_dropout=0.1, encoder_pos_conv_kernel=128, encoder_pos_conv_groups=16,
        encoder_num_layers=2, encoder_num_heads=4, encoder_attention_dropout=0.1, encoder_ff_interm_features=512,
        encoder_ff_interm_dropout=0.1, encoder_dropout=0.1, encoder_layer_norm_first=False, encoder_layer_drop=0.1,
        aux_num_out=32,
    ),
]  # fmt: skip
