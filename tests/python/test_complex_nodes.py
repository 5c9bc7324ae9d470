"""compare="nodes" where complex numbers run as pairs: every pair is judged, and accuses nobody."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort.export.partition import AS_PAIRS


def spectral(x: Tensor, weights: Tensor) -> Tensor:
    """A layer of a Fourier operator, and its numbers turned as rotary embeddings turn them."""
    spectrum = torch.fft.rfft(x * 2) * weights
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(x[:, :4].abs(), x[:, 4:])
    return torch.fft.irfft(spectrum, n=x.shape[-1]) + torch.view_as_real(turned).flatten(-2)


@pytest.mark.usefixtures("daemon")
def test_every_pair_is_judged_and_right() -> None:
    backend = rust_ort.backend(compare="nodes")
    x, weights = torch.randn(3, 8, requires_grad=True), torch.randn(5, dtype=torch.complex64, requires_grad=True)
    torch.compile(spectral, backend=backend)(x, weights).square().sum().backward()
    rows = [node for graph in backend.graphs for _, node in graph.nodes]
    others = [row for row in rows if row.local.kind != "match" or row.cumulative.kind != "match"]
    assert {row.op for row in rows} >= {"rust_ort.fft_r2c.default", "rust_ort.fft_c2r.default"}
    assert all(row.local.reason.endswith(AS_PAIRS) for row in others), others
    backend.report().check()
