"""Flows: their inverse, and their log-determinant against the Jacobian."""

import pytest
import torch
from torch import Tensor

from oaxe.model.flow import Flow
from oaxe.model.transformer import Encoded
from tests.models import MICRO, with_noise

ARCHITECTURE = {**MICRO, "max_length": 8, "dropout": 0.0}
LATENT = 4


def flow(steps: int = 2) -> Flow:
    return with_noise(Flow(steps, LATENT, ARCHITECTURE)).double().eval()


def encoded(*lengths: int) -> Encoded:
    mask = mask_of(*lengths)
    return Encoded(torch.randn(*mask.shape, MICRO["dim"], dtype=torch.float64), mask)


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


@torch.no_grad()
def test_the_inverse_undoes_it() -> None:
    model, source, mask = flow(3), encoded(4, 2), mask_of(3, 5)
    z = torch.randn(2, 5, LATENT, dtype=torch.float64)
    noise, _ = model(z, mask, source)
    assert (noise - z).abs().max() > 0.5
    torch.testing.assert_close(model.inverse(noise, mask, source), z)
    torch.testing.assert_close(model(model.inverse(z, mask, source), mask, source)[0], z)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_log_determinant_is_that_of_the_jacobian(steps: int) -> None:
    model, source, mask = flow(steps), encoded(4), mask_of(3)
    z = torch.randn(1, 3, LATENT, dtype=torch.float64)
    z.requires_grad_()
    noise = model(z, mask, source)[0].flatten()
    rows = [torch.autograd.grad(x, z, retain_graph=True)[0].flatten() for x in noise]
    expected = torch.stack(rows).slogdet().logabsdet
    found = model(z, mask, source)[1].sum()
    torch.testing.assert_close(found, expected)
    assert abs(found.item()) > 0.1


def test_the_gradient_of_the_log_determinant() -> None:
    """By the scales of a step, which it adds up, for each position."""
    model, source, mask = flow(1), encoded(4), mask_of(3)
    step = model.steps[0]
    z = torch.randn(1, 3, LATENT, dtype=torch.float64)
    total = model(z, mask, source)[1].sum()
    (diagonal,) = torch.autograd.grad(total, [step.get_parameter("log_diagonal")])
    numeric = []
    for i in range(LATENT):
        values = []
        for change in (1e-5, -1e-5):
            with torch.no_grad():
                step.get_parameter("log_diagonal")[i] += change
                values.append(model(z, mask, source)[1].sum().item())
                step.get_parameter("log_diagonal")[i] -= change
        numeric.append((values[0] - values[1]) / 2e-5)
    assert diagonal.tolist() == pytest.approx(numeric, rel=1e-5)


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing() -> None:
    model, source, mask = flow(), encoded(4, 2), mask_of(3, 5)
    z = torch.randn(2, 5, LATENT, dtype=torch.float64)
    noise, log_determinant = model(z, mask, source)
    for row, (n, m) in enumerate(((3, 4), (5, 2))):
        alone = Encoded(source.hidden[row : row + 1, :m], source.mask[row : row + 1, :m])
        found = model(z[row : row + 1, :n], mask[row : row + 1, :n], alone)
        torch.testing.assert_close(found[0][0], noise[row, :n])
        torch.testing.assert_close(found[1][0], log_determinant[row, :n])


@torch.no_grad()
def test_positions_and_the_source_matter() -> None:
    model, mask = flow(), mask_of(3)
    source = encoded(4)
    z = torch.randn(1, 3, LATENT, dtype=torch.float64)
    noise, _ = model(z, mask, source)
    other = z.clone()
    other[0, 2] += 1
    assert not torch.allclose(model(other, mask, source)[0][0, 0], noise[0, 0])
    assert not torch.allclose(model(z, mask, encoded(4))[0], noise)


def test_rejects_vectors_that_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="must be even, got 3"):
        Flow(1, 3, ARCHITECTURE)
