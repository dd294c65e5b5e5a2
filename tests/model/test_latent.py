"""Latent variables: divergence in closed form and by sampling, and vectors spread over a target."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from oaxe.model.latent import Gaussian, GaussianLayer, LengthTransform, divergence


def gaussians() -> tuple[Gaussian, Gaussian]:
    q, p = (Gaussian(*torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)) for _ in "qp")
    return q, p


def normal(one: Gaussian) -> Normal:
    return Normal(one.mean, one.log_scale.exp())


def test_divergence_equals_that_of_torch() -> None:
    q, p = gaussians()
    ours, theirs = divergence(q, p), kl_divergence(normal(q), normal(p))
    torch.testing.assert_close(ours, theirs)
    weights = [*q, *p]
    for a, b in zip(
        torch.autograd.grad(ours.sum(), weights),
        torch.autograd.grad(theirs.sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    assert divergence(q, q).abs().max() < 1e-12


def test_divergence_by_sampling() -> None:
    q, p = (Gaussian(*torch.randn(2, 1, 4)) for _ in "qp")
    many = Gaussian(*(x.expand(100_000, 4) for x in q))
    z = many.sample()
    sampled = (many.log_density(z) - p.log_density(z)).mean(0)
    torch.testing.assert_close(sampled, divergence(q, p)[0], rtol=0.05, atol=0.05)


def test_log_density_equals_that_of_torch() -> None:
    q, _ = gaussians()
    z = torch.randn(3, 4, dtype=torch.float64)
    theirs: Tensor = normal(q).log_prob(z)  # type: ignore[no-untyped-call]
    expected = theirs + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(q.log_density(z), expected)


def test_a_layer_has_mean_and_scale_in_float32() -> None:
    layer = GaussianLayer(6, 3).to(torch.bfloat16)
    found = layer(torch.randn(2, 5, 6, dtype=torch.bfloat16))
    assert [x.shape for x in found] == [(2, 5, 3)] * 2
    assert {x.dtype for x in found} == {torch.float32}


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def test_a_narrow_transform_to_the_same_length_is_the_identity() -> None:
    transform = LengthTransform()
    with torch.no_grad():
        transform.log_width.fill_(-5)
    mask, vectors = mask_of(5, 3), torch.randn(2, 5, 4)
    found = transform(vectors, mask, mask)
    torch.testing.assert_close(found[mask], vectors[mask])


def test_the_transform_equals_a_plain_loop() -> None:
    transform = LengthTransform()
    with torch.no_grad():
        transform.log_width.fill_(0.3)
    source, target = [5, 2, 4], [3, 6, 4]
    vectors = torch.randn(3, 5, 4)
    found = transform(vectors, mask_of(*source), mask_of(*target))
    width = math.exp(0.3)
    for row, (n, m) in enumerate(zip(source, target, strict=True)):
        for i in range(m):
            weights = [math.exp(-((j - i * n / m) ** 2) / (2 * width**2)) for j in range(n)]
            expected = sum(w * v for w, v in zip(weights, vectors[row], strict=False))
            torch.testing.assert_close(found[row, i], torch.as_tensor(expected) / sum(weights))
    (gradient,) = torch.autograd.grad(found.sum(), [transform.log_width])
    assert gradient.item() != 0


@pytest.mark.parametrize("empty", ["source", "target"])
def test_a_row_without_tokens_is_harmless(empty: str) -> None:
    masks = {"source": mask_of(3, 2), "target": mask_of(2, 1)}
    masks[empty][1] = False
    found = LengthTransform()(torch.randn(2, 3, 4), masks["source"], masks["target"])
    assert found.isfinite().all()
