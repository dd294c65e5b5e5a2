"""Phrases that stay whole: blocks of a target are matched as units.

A picture shows a red square and a blue circle, and the model has to name all it shows, in any
order. ``oaxe.oaxe_loss`` matches words: "red circle, blue square" has the right words, and costs
nothing more. Here the cost of a phrase at a slot is the sum over its words, in order, and phrases
are matched as a whole. For phrases of unknown borders in a sentence see ``oaxe.ngram_oaxe_loss``.

Run me (seconds on a CPU): python examples/phrases.py
"""

import torch
from torch import nn

import oaxe

COLOURS, SHAPES, SLOTS = 5, 5, 3  # words 0 to 4 are colours, 5 to 9 are shapes


def pictures(size):
    """Which of the 25 things a picture shows, and their phrases (size, SLOTS, 2), in any order."""
    things = torch.rand(size, COLOURS * SHAPES).argsort(1)[:, :SLOTS]
    shown = torch.zeros(size, COLOURS * SHAPES).scatter_(1, things, 1.0)
    return shown, torch.stack([things // SHAPES, COLOURS + things % SHAPES], 2)


def costs(logits, phrases):
    """Cross entropy of each phrase at each slot, (batch, slots, phrases).

    Args:
        logits: (batch, slots, words of a phrase, vocab).
        phrases: (batch, slots, words of a phrase); -100 fills up phrases that are shorter.
    """
    wanted = phrases.transpose(1, 2).unsqueeze(1).expand(-1, logits.shape[1], -1, -1)
    words = -logits.log_softmax(-1).gather(3, wanted.clamp(min=0))  # (batch, slots, word, phrase)
    return words.where(wanted >= 0, 0.0).sum(2)


def phrase_loss(logits, phrases):
    """Cross entropy of the best order of the phrases, over their words."""
    cost = costs(logits, phrases)
    match = oaxe.linear_assignment(cost)  # (batch, slot): which phrase
    return cost.gather(2, match.unsqueeze(2)).sum() / phrases.ge(0).sum()


def word_loss(logits, phrases):
    """The same, but every word is matched for itself."""
    return oaxe.oaxe_loss(logits.flatten(1, 2), phrases.flatten(1))


def train(loss_of, steps=800, batch=128):
    """Of new pictures, how many phrases are right, and how many pictures have the right words."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(COLOURS * SHAPES, 128),
        nn.ReLU(),
        nn.Linear(128, SLOTS * 2 * (COLOURS + SHAPES)),
        nn.Unflatten(1, (SLOTS, 2, COLOURS + SHAPES)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        shown, phrases = pictures(batch)
        loss = loss_of(model(shown), phrases)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shown, phrases = pictures(1000)
    found = model(shown).argmax(-1)  # (batch, slots, 2)
    right = (found.unsqueeze(1) == phrases.unsqueeze(2)).all(-1).any(2)
    words = found.flatten(1).sort(1).values == phrases.flatten(1).sort(1).values
    return float(right.float().mean()), float(words.all(1).float().mean())


if __name__ == "__main__":
    for name, loss_of in (("words", word_loss), ("phrases", phrase_loss)):
        right, bags = train(loss_of)
        print(
            f"matching {name}: {right:.0%} of the phrases right, all words of {bags:.0%} pictures"
        )
