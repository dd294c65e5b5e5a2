"""Tags of a text: a set predictor that is trained with order-agnostic cross entropy.

A text has some of many tags, in no order. The model has a number of slots, each of which predicts a
tag or none; ``oaxe.oaxe_loss`` takes the tags in any order. Unlike a threshold on every tag, slots
cannot find twice as many tags as there are, and they know about one another.

Run me (seconds on a CPU): python examples/tags.py
"""

import torch
from torch import nn

import oaxe

TAGS, WORDS, SLOTS, NOTHING = 20, 60, 4, 0  # tag 0 is none at all


def texts(size):
    """Counts of words (size, WORDS), and one to four tags in random order, filled up with NOTHING.

    Each tag has three words of its own, of which a text uses one or more.
    """
    tags = torch.rand(size, TAGS).argsort(1)[:, :SLOTS] + 1
    number = torch.randint(1, SLOTS + 1, (size, 1))
    tags = tags.where(torch.arange(SLOTS) < number, NOTHING)
    tags = tags.gather(1, torch.rand(size, SLOTS).argsort(1))
    used = (torch.rand(size, SLOTS, 3) < 0.5).float()
    used[..., 0] = torch.where(used.sum(-1) == 0, 1.0, used[..., 0])
    counts = torch.zeros(size, TAGS + 1, 3)
    counts.scatter_add_(1, tags.unsqueeze(2).expand(-1, -1, 3), used)
    return counts[:, 1:].flatten(1), tags


def train(loss_of, steps=500, batch=128):
    """The share of new texts whose tags are all found, and no others."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WORDS, 128),
        nn.ReLU(),
        nn.Linear(128, SLOTS * (TAGS + 1)),
        nn.Unflatten(1, (SLOTS, TAGS + 1)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        words, tags = texts(batch)
        loss = loss_of(model(words), tags)  # logits (batch, slots, tags), target (batch, slots)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    words, tags = texts(1000)
    found = model(words).argmax(2).sort(1).values
    return float((found == tags.sort(1).values).all(1).float().mean())


if __name__ == "__main__":
    print(f"cross entropy in the order given: {train(oaxe.xe_loss):.0%} of the texts right")
    print(f"order-agnostic cross entropy: {train(oaxe.oaxe_loss):.0%} of the texts right")
