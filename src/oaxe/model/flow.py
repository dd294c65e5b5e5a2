"""Invertible functions of latent vectors, given a source, with known log-determinants.

Of normal noise they make a distribution of any shape (Glow, Kingma and Dhariwal, 2018). A step has
three parts: a scale and a shift for each number, a linear layer over the numbers of a vector, and a
coupling, in which half of the numbers, and those of the other positions, decide how the other half
is scaled and shifted. Forward is from latent vectors to noise.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oaxe.losses.arguments import at_least_float32
from oaxe.model.layers import DecoderLayer, Encoded


class SourceAttention(nn.Module):
    """Decoder layers from ``read`` numbers at each position to ``written`` ones; padded batches."""

    def __init__(
        self, read: int, written: int, layers: int, architecture: Mapping[str, Any]
    ) -> None:
        super().__init__()
        dim, dropout = architecture["dim"], architecture.get("dropout", 0.1)
        layer = dim, architecture["ffn"], architecture["heads"], dropout
        self.input, self.output = nn.Linear(read, dim), nn.Linear(dim, written)
        self.target_positions = nn.Embedding(architecture["max_length"] + 2, dim)
        self.layers = nn.ModuleList(DecoderLayer(*layer, norm="pre") for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        """``(rows, length, written)`` of ``x (rows, length, read)``, in float32 or better."""
        x = self.input(x) + self.target_positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, mask, encoded, False)
        return at_least_float32(self.output(self.norm(x)))


class FlowStep(nn.Module):
    """Scale and shift, linear layer, coupling.

    The linear layer is W = P L U: P turns the order of the numbers around, L is lower triangular
    with ones on its diagonal, U upper triangular with a positive one.
    """

    def __init__(self, latent: int, architecture: Mapping[str, Any]) -> None:
        super().__init__()
        self.shift, self.log_scale = (nn.Parameter(torch.zeros(latent)) for _ in range(2))
        self.lower, self.upper = (nn.Parameter(0.1 * torch.randn(latent, latent)) for _ in range(2))
        self.log_diagonal = nn.Parameter(torch.zeros(latent))
        self.coupling = SourceAttention(latent // 2, latent, 1, architecture)

    def forward(self, z: Tensor, mask: Tensor, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Of ``z (rows, length, latent)``; and the log-determinant, ``(rows, length)``."""
        z = (z + self.shift) * self.log_scale.exp()
        lower, upper = self._triangles()
        with torch.autocast(z.device.type, enabled=False):
            z = (z @ upper.T @ lower.T).flip(2)
        kept, changed = z.chunk(2, 2)
        shift, log_scale = self._coupled(kept, mask, encoded)
        z = torch.cat([kept, (changed + shift) * log_scale.exp()], 2)
        return z, (self.log_scale + self.log_diagonal).sum() + log_scale.sum(2)

    def inverse(self, z: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        kept, changed = z.chunk(2, 2)
        shift, log_scale = self._coupled(kept, mask, encoded)
        z = torch.cat([kept, changed * (-log_scale).exp() - shift], 2).flip(2)
        lower, upper = self._triangles()
        columns = z.flatten(0, 1).T
        columns = torch.linalg.solve_triangular(lower, columns, upper=False, unitriangular=True)
        z = torch.linalg.solve_triangular(upper, columns, upper=True).T.view_as(z)
        return z * (-self.log_scale).exp() - self.shift

    def _triangles(self) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(self.log_diagonal)
        diagonal = self.log_diagonal.exp()
        return self.lower.tril(-1) + one.diag(), self.upper.triu(1) + diagonal.diag()

    def _coupled(self, kept: Tensor, mask: Tensor, encoded: Encoded) -> tuple[Tensor, Tensor]:
        shift, log_scale = self.coupling(kept, mask, encoded).chunk(2, 2)
        return shift, log_scale.tanh()  # bounded, as an exponential of what a network says must be


class Flow(nn.Module):
    """Steps one after the other; padded batches, in float32 or better.

    Args:
        steps: how many.
        latent: numbers of a vector, an even number.
        architecture: of the :class:`~oaxe.model.transformer.Transformer` that encodes the source.
    """

    def __init__(self, steps: int, latent: int, architecture: Mapping[str, Any]) -> None:
        super().__init__()
        if latent % 2:
            raise ValueError(f"latent vectors are halved: their size must be even, got {latent}")
        self.steps = nn.ModuleList(FlowStep(latent, architecture) for _ in range(steps))

    def forward(self, z: Tensor, mask: Tensor, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Noise ``(rows, length, latent)``, and the log-determinant ``(rows, length)``."""
        total = z.new_zeros(z.shape[:2])
        for step in self.steps:
            z, log_determinant = step(z, mask, encoded)
            total = total + log_determinant
        return z, total

    def inverse(self, noise: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        for step in reversed(self.steps):
            assert isinstance(step, FlowStep)
            noise = step.inverse(noise, mask, encoded)
        return noise
