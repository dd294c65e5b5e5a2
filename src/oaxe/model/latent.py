"""Continuous latent variables: Gaussians, and how those of a source spread over a target."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.losses.arguments import at_least_float32


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Tensor
    log_scale: Tensor  # of the standard deviation

    def sample(self) -> Tensor:
        return self.mean + self.log_scale.exp() * torch.randn_like(self.mean)

    def log_density(self, z: Tensor) -> Tensor:
        """The log-density of each number, without the constant log(2 pi) / 2."""
        return -0.5 * ((z - self.mean) * (-self.log_scale).exp()).square() - self.log_scale


def divergence(q: Gaussian, p: Gaussian) -> Tensor:
    r"""KL(q || p) of each number.

    .. math:: \log \frac{\sigma_p}{\sigma_q} + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{2 \sigma_p^2}
        - \frac{1}{2}

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> divergence(Gaussian(one, zero), Gaussian(zero, zero))
        tensor([0.5000])
    """
    ratio = (2 * (q.log_scale - p.log_scale)).exp()
    distance = ((q.mean - p.mean) * (-p.log_scale).exp()).square()
    return p.log_scale - q.log_scale + 0.5 * (ratio + distance - 1)


class GaussianLayer(nn.Module):
    """A distribution of ``latent`` numbers from each hidden state, in float32 or better."""

    def __init__(self, dim: int, latent: int) -> None:
        super().__init__()
        self.output = nn.Linear(dim, 2 * latent)

    def forward(self, hidden: Tensor) -> Gaussian:
        return Gaussian(*at_least_float32(self.output(hidden)).chunk(2, dim=-1))


class LatentEmbedding(nn.Linear):
    """Latent numbers as a vector that is as large as an embedding, however many they are.

    They begin as noise: were it larger, no decoder would find its positions in the sum of both.
    """

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z * self.in_features**-0.5)


class LengthTransform(nn.Module):
    r"""Vectors of a source, spread over a target of another length by Gaussian weights.

    .. math:: w_{ij} \propto \exp \left(-\frac{(j - i |x| / |y|)^2}{2 \sigma^2} \right)

    at target position i, counted from 0; the width :math:`\sigma` is learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_width = nn.Parameter(torch.zeros(1))

    def forward(self, vectors: Tensor, source_mask: Tensor, mask: Tensor) -> Tensor:
        """``(batch, target_len, n)`` of ``vectors (batch, source_len, n)``; masks are bool."""
        i, j = (torch.arange(m.shape[1], device=m.device) for m in (mask, source_mask))
        ratio = source_mask.sum(1) / mask.sum(1).clamp(min=1)
        distance = j - (i * ratio.unsqueeze(1)).unsqueeze(2)  # (batch, target_len, source_len)
        scores = -0.5 * (distance * (-self.log_width).exp()).square()
        # Finite: a row may have no source.
        scores = scores.masked_fill(~source_mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        with torch.autocast(vectors.device.type, enabled=False):
            return F.softmax(scores, 2).to(vectors.dtype) @ vectors
