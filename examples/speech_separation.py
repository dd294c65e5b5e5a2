"""Permutation-invariant training: a model separates voices, in whichever order it likes.

Nothing says which of the voices of a mixture comes first. Permutation-invariant training (Yu et
al., 2017) matches the model's outputs with the voices by the loss of every pair, and computes the
loss over the best matching. A loop over all orders takes n! of them; ``oaxe.linear_assignment``
finds the best for any number of voices. Voices are synthetic here: tones with overtones.

Run me (seconds on a CPU): python examples/speech_separation.py
"""

import math

import torch
from torch import nn

import oaxe

SAMPLES, RATE = 192, 4000.0


def mixtures(size, voices):
    """The mixture (size, SAMPLES), and its voices (size, voices, SAMPLES), in random order."""
    pitch = 100 + 100 * torch.rand(size, voices, 1) + 150 * torch.arange(voices).view(-1, 1)
    pitch = pitch.gather(1, torch.rand(size, voices, 1).argsort(1))
    time = torch.arange(SAMPLES) / RATE
    sources = torch.zeros(size, voices, SAMPLES)
    for overtone in (1, 2):
        phase = 2 * math.pi * torch.rand(size, voices, 1)
        sources += (2 * math.pi * overtone * pitch * time + phase).sin() / overtone
    return sources.sum(1), sources


class Separator(nn.Module):
    """Learned filters, a mask for each voice, and filters back to a signal."""

    def __init__(self, voices, filters=64, hidden=128):
        super().__init__()
        self.filters = nn.Conv1d(1, filters, kernel_size=64, stride=16, padding=32)
        self.masks = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(filters, hidden, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv1d(hidden, voices * filters, kernel_size=1),
            nn.Sigmoid(),
            nn.Unflatten(1, (voices, filters)),
        )
        self.back = nn.ConvTranspose1d(filters, 1, kernel_size=64, stride=16, padding=32)

    def forward(self, mixture):
        found = self.filters(mixture.unsqueeze(1))  # (batch, filters, frames)
        masked = self.masks(found) * found.unsqueeze(1)  # (batch, voices, filters, frames)
        signals = self.back(masked.flatten(0, 1)).squeeze(1)
        return signals.view(*masked.shape[:2], -1)[..., :SAMPLES]


def negative_si_snr(estimate, source):
    """Scale-invariant signal-to-noise ratio in dB, times -1, over the last dimension."""
    part = (estimate * source).sum(-1, keepdim=True) / source.pow(2).sum(-1, keepdim=True)
    wanted = part * source
    noise = (estimate - wanted).pow(2).sum(-1) + 1e-6
    return -10 * torch.log10(wanted.pow(2).sum(-1) / noise + 1e-6)


def permutation_invariant(pair_losses):
    """The mean of the best matching, of (batch, outputs, voices)."""
    match = oaxe.linear_assignment(pair_losses)  # (batch, outputs): which voice
    return pair_losses.gather(2, match.unsqueeze(2)).mean()


def in_order(pair_losses):
    return pair_losses.diagonal(dim1=1, dim2=2).mean()


def all_pairs(estimates, sources):
    return negative_si_snr(estimates.unsqueeze(2), sources.unsqueeze(1))


def train(loss_of, voices=2, steps=400, batch=16):
    """The improvement of the ratio over that of the mixture itself, in dB, on new mixtures."""
    torch.manual_seed(0)
    model = Separator(voices)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        mixture, sources = mixtures(batch, voices)
        loss = loss_of(all_pairs(model(mixture), sources))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mixture, sources = mixtures(200, voices)
    with torch.no_grad():
        separated = permutation_invariant(all_pairs(model(mixture), sources))
    before = negative_si_snr(mixture.unsqueeze(1), sources).mean()
    return float(before - separated)


if __name__ == "__main__":
    for voices in (2, 3):
        print(f"{voices} voices, in the order given: {train(in_order, voices):.1f} dB better")
        print(
            f"{voices} voices, permutation-invariant: {train(permutation_invariant, voices):.1f} dB"
        )
