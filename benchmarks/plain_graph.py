"""The DAG as one would write it first: everything is stored, and a loop goes over the words."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.loops import Plain
from oaxe.model.masking import drawn
from oaxe.model.transformer import Encoded
from oaxe.systems import Example
from oaxe.systems.dag import Links, Model, shown
from oaxe.text.symbols import BOS, EOS

NEVER = -1e9  # finite: what cannot be reached has a gradient of 0, not of NaN


class PlainDAG(Plain):
    """Glancing, links and loss in plain PyTorch, with padding; see :class:`Plain`."""

    def loss(self, example: Example) -> Tensor:
        model = self.system
        assert isinstance(model, Model)
        encoded = model.transformer.encode(example.source)
        inputs = glanced(model, example, encoded) if model.training else example.inputs
        emissions, links, _ = graph(model, inputs, example, encoded)
        totals = through(emissions, links, example, best=False)[0]
        possible = (totals > NEVER / 2) & (example.target >= 0).any(1)
        return -torch.where(possible, totals, 0.0).sum()


def graph(
    model: Model, inputs: Tensor, example: Example, encoded: Encoded
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities ``(batch, vertices, words)``, links, and the likeliest words."""
    hidden = model.transformer.decode(inputs, example.mask, encoded)
    log_probs = F.log_softmax(model.transformer.logits(hidden).float(), dim=-1)
    words = example.target.clamp(min=0).unsqueeze(1).expand(-1, hidden.shape[1], -1)
    links = plain_links(model.links, hidden, example.mask)
    return log_probs.gather(2, words), links, log_probs.argmax(2)


def plain_links(links: Links, hidden: Tensor, mask: Tensor) -> Tensor:
    batch, n, dim = hidden.shape
    at = links.vertex_positions.weight[:n].to(hidden.dtype).expand(batch, -1, -1)
    features = torch.cat([hidden, at], 2)
    queries, keys = (
        of(features).float().view(batch, n, links.heads, -1).transpose(1, 2)
        for of in (links.query, links.key)
    )
    gates = links.gate(features).float().log_softmax(2)
    scores = queries @ keys.transpose(2, 3) / math.sqrt(dim // links.heads)
    vertex = torch.arange(n, device=hidden.device)
    linked = (vertex > vertex.unsqueeze(1)) & mask.unsqueeze(1)
    scores = scores.float().masked_fill(~linked.unsqueeze(1), NEVER)
    mixed = scores.log_softmax(3) + gates.transpose(1, 2).unsqueeze(3)
    return mixed.logsumexp(1).masked_fill(~linked, NEVER)


def through(
    emissions: Tensor, links: Tensor, example: Example, *, best: bool
) -> tuple[Tensor, list[Tensor]]:
    """``(batch,)``: the sum or the best of all paths; for the best, where it comes from."""
    n_words, last = (example.target >= 0).sum(1), example.mask.sum(1) - 1
    vertex = torch.arange(links.shape[1], device=links.device)
    score = torch.where(vertex == 0, emissions[:, :, 0], NEVER)
    origins = []
    for word in range(1, emissions.shape[2]):
        ways = score.unsqueeze(2) + links
        if best:
            after, origin = ways.max(1)
            origins.append(origin)
        else:
            after = ways.logsumexp(1)
        going_on = (word < n_words).unsqueeze(1)
        score = torch.where(going_on, after + emissions[:, :, word], score)
    return score.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1), origins


@torch.no_grad()
def glanced(model: Model, example: Example, encoded: Encoded) -> Tensor:
    """Inputs that reveal words at the vertices of the best path, as at the start of training."""
    emissions, links, said = graph(model, example.inputs, example, encoded)
    total, origins = through(emissions, links, example, best=True)
    target, n_words = example.target, (example.target >= 0).sum(1)
    vertex, path = example.mask.sum(1).clamp(min=1) - 1, torch.zeros_like(target)
    for word in range(target.shape[1] - 1, -1, -1):
        path[:, word] = vertex
        if word:
            before = origins[word - 1].gather(1, vertex.unsqueeze(1)).squeeze(1)
            vertex = torch.where(word < n_words, before, vertex)
    words = (target >= 0) & (target != BOS) & (target != EOS) & (total > NEVER / 2).unsqueeze(1)
    wrong = (words & (said.gather(1, path) != target)).sum(1, keepdim=True)
    revealed = drawn(words, (model.options.start * wrong).round())
    return shown(example.inputs, path, target, revealed)
