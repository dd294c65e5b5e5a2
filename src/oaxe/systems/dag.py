"""DAG: a graph of vertices, each of which says a word and leads to later ones; a path translates.

The DA-Transformer of Huang et al. (2022). The decoder has several vertices for each source token,
the first of which says BOS and the last EOS; links between them are probabilities, so that
translations that contradict each other can lie on different paths. The loss sums over all paths
that say the target, and there is no length to predict.

It learns with glancing. Every update decodes twice. The first pass, without gradient, has a
likeliest path for the target; a share of the number of its words that their vertices would not say
is revealed to the second pass, at random vertices of that path. A trained model can be fine-tuned
for the n-grams that it has in common with the target (FA-DAT, Shao et al., 2023), see
:mod:`oaxe.losses.ngrams`.

After the one pass of the network, decoding looks for a path: step by step to the likeliest vertex
(greedy), to that of the likeliest vertex and word (lookahead), or the best of all paths and their
words, by length (joint Viterbi of Shao et al., 2022).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.criteria.lattices import DAG_OBJECTIVES
from oaxe.losses import linear_dag_best_path
from oaxe.losses.arguments import at_least_float32
from oaxe.model.masking import IGNORED, causal_inputs, drawn
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.model.weak_decoder import WeakDecoder
from oaxe.search.hypothesis import Hypothesis, length_penalty
from oaxe.search.one_pass import compact, differs_from_previous, hypotheses, likeliest
from oaxe.search.replay import Call, Tensors, compute, padded_source
from oaxe.support.config import Choice, choice, option
from oaxe.systems import Example, Paper, Progress, System
from oaxe.systems.ctc import advice_on_length, advice_on_start, but_target_positions
from oaxe.text.symbols import BOS, EOS, MASK, PAD

PAPER = Paper(
    "Directed Acyclic Transformer for Non-Autoregressive Machine Translation",
    "https://proceedings.mlr.press/v162/huang22m.html",
    {
        "distilled": {"wmt14-en-de": 27.5, "wmt14-de-en": 31.4},
        "raw": {"wmt14-en-de": 26.6, "wmt14-de-en": 30.7},
    },
)
MOST_RATIO = 2  # words of a translation, with EOS, for each token of its source

Method = Literal["viterbi", "lookahead", "greedy"]


@dataclass(frozen=True)
class Options:
    vertices: int = option(4, "vertices of the graph for each source subword", at_least=2)
    start: float = option(0.5, "revealed words for each wrong one, at the start", at_most=1)
    end: float = option(0.1, "the same at the end of training; linear in between", at_most=1)
    objective: Choice = choice(DAG_OBJECTIVES, "likelihood", "what is learned")
    weak_decoder: float = option(
        0.0, "weight of the loss of an autoregressive layer that only training has; 0: none"
    )

    @property
    def needs_end(self) -> bool:
        return self.start != self.end


@dataclass(frozen=True)
class Decoding:
    method: Method = option(
        "viterbi", "the best path, or step by step to the likeliest vertex (and word: lookahead)"
    )
    length_penalty: float = length_penalty()

    def __str__(self) -> str:
        penalty = f", length penalty {self.length_penalty:g}" * (self.length_penalty != 1)
        return {
            "viterbi": f"joint Viterbi{penalty}",
            "lookahead": "lookahead, repeats removed",
            "greedy": "greedy, repeats removed",
        }[self.method]


class Links(nn.Module):
    """Where a path goes from each vertex: a mixture of heads, each a softmax over later ones.

    Vertices have positions of their own here, beside the states of the decoder.
    """

    def __init__(self, dim: int, heads: int, vertices: int) -> None:
        super().__init__()
        self.heads = heads
        self.vertex_positions = nn.Embedding(vertices, dim)
        self.query, self.key = nn.Linear(2 * dim, dim), nn.Linear(2 * dim, dim)
        self.gate = nn.Linear(2 * dim, heads)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """``(batch, vertices, vertices)`` log-probabilities from i to j, in float32 or better.

        -inf where there is no link: j must be later than i, and real in ``mask``.
        """
        batch, n, dim = hidden.shape
        at = self.vertex_positions.weight[:n].to(hidden.dtype).expand(batch, -1, -1)
        features = torch.cat([hidden, at], 2)
        queries, keys = (
            at_least_float32(of(features)).view(batch, n, self.heads, -1).transpose(1, 2)
            for of in (self.query, self.key)
        )
        gates = at_least_float32(self.gate(features)).log_softmax(2)
        vertex = torch.arange(n, device=hidden.device)
        linked = (vertex > vertex.unsqueeze(1)) & mask.unsqueeze(1)
        with torch.autocast(hidden.device.type, enabled=False):  # it would round the scores
            scores = (queries / math.sqrt(dim // self.heads)) @ keys.transpose(2, 3)
        # Finite, for the sake of vertices from which no link goes: the last one, and padding.
        scores = scores.masked_fill(~linked.unsqueeze(1), torch.finfo(scores.dtype).min)
        mixed = scores.log_softmax(3) + gates.transpose(1, 2).unsqueeze(3)
        return mixed.logsumexp(1).masked_fill(~linked, -torch.inf)


class Model(System):
    # It has no room: links are a matrix for each row, as large as the longest source makes it.
    no_ncm = "its output is the sum of many paths, of which decoding sees one"
    training_parts = ("weak",)

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        vertices = options.vertices * (architecture["max_length"] + 1)
        self.transformer = Transformer(**architecture, causal=False, target_positions=vertices)
        self.links = Links(architecture["dim"], architecture["heads"], vertices)
        self.weak = WeakDecoder(**architecture) if options.weak_decoder else None

    def example(self, source: Tensor, target: Tensor) -> Example:
        _, wanted = causal_inputs(target)
        inputs = graph_inputs(source, self.options.vertices)
        return Example.of(source, inputs, F.pad(wanted, (1, 0), value=BOS), target)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        inputs = example.inputs
        statistics: Statistics = {}
        if self.training:
            share = self.options.start + (self.options.end - self.options.start) * progress.share
            inputs, statistics = self.glance(example, encoded, share)
        hidden = self.transformer.decode(inputs, example.mask, encoded)
        loss = self.options.objective.options(
            hidden,
            self.transformer.output_weight,
            self.links(hidden, example.mask),
            example.target,
            example.mask,
            self.transformer.capacity,
        )
        impossible = ((example.target != IGNORED).sum(1) > example.mask.sum(1)).sum()
        statistics |= {
            "loss": (loss, example.n_words),
            "impossible": (impossible, example.n_sentences),
        }
        if self.weak is not None and self.training:
            weak, seen = self.weak.loss(self.transformer, example.target, hidden, example.mask)
            loss, statistics = loss + self.options.weak_decoder * weak, statistics | seen
        return loss, statistics

    @torch.no_grad()
    def glance(
        self, example: Example, encoded: Encoded, share: Tensor
    ) -> tuple[Tensor, Statistics]:
        """Inputs that reveal some words; how many, and how many were wrong, of all words."""
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        path = linear_dag_best_path(
            hidden,
            self.transformer.output_weight,
            self.links(hidden, example.mask),
            example.target,
            logit_mask=example.mask,
            capacity=self.transformer.capacity,
        )
        said, _ = likeliest(
            self.transformer, hidden, example.mask, may_be_blank=False, everywhere=True
        )
        words = (example.target != BOS) & (example.target != EOS) & (path >= 0)
        wrong = (words & (said.gather(1, path.clamp(min=0)) != example.target)).sum(1, keepdim=True)
        revealed = drawn(words, (share * wrong).round())
        n_words = words.sum()
        seen = {"revealed": (revealed.sum(), n_words), "wrong": (wrong.sum(), n_words)}
        return shown(example.inputs, path, example.target, revealed), seen

    def advice(self, means: Mapping[str, float], *, from_scratch: bool) -> str:
        if advice := advice_on_start(means, from_scratch, self.options.objective, "dag"):
            return advice
        return advice_on_length(means, "dag.vertices")

    @torch.no_grad()
    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        recorded = call is not compute
        if recorded:
            source = padded_source(source, self.max_length)
        found = call(
            PATHS[decoding.method],
            self,
            source,
            length_penalty=decoding.length_penalty,
            everywhere=recorded,
        )
        return hypotheses(*found, batch=len(source))

    def rows(self, decoding: Decoding) -> int:
        """Of memory, a graph takes as much as this many hypotheses."""
        vertices: int = self.options.vertices
        return vertices

    def weights_from(self, other: System) -> dict[str, Tensor]:
        """Not the positions of a decoder that counts words: here they count vertices."""
        return other.state_dict() if isinstance(other, Model) else but_target_positions(other)


def graph_inputs(source: Tensor, factor: int) -> Tensor:
    """What the decoder reads at each vertex: BOS at the first, EOS at the last, else MASK.

    Example:
        >>> graph_inputs(torch.tensor([[8, EOS], [EOS, PAD]]), 2)
        tensor([[1, 4, 4, 2],
                [1, 2, 0, 0]])
    """
    last = factor * (source != PAD).sum(1, keepdim=True) - 1
    vertex = torch.arange(factor * source.shape[1], device=source.device)
    inputs = torch.where(vertex < last, MASK, torch.where(vertex == last, EOS, PAD))
    return torch.where((vertex == 0) & (last > 0), BOS, inputs)


def shown(inputs: Tensor, path: Tensor, target: Tensor, revealed: Tensor) -> Tensor:
    """The inputs with the words of ``target`` that are revealed, each at its vertex of ``path``.

    Example:
        >>> inputs, path = torch.tensor([[1, 4, 4, 4, 2]]), torch.tensor([[0, 2, 3, 4]])
        >>> revealed = torch.tensor([[False, True, False, False]])
        >>> shown(inputs, path, torch.tensor([[1, 8, 9, 2]]), revealed)
        tensor([[1, 4, 8, 4, 2]])
    """
    nowhere = inputs.shape[1]  # one place more, which is cut off
    where = path.masked_fill(~revealed, nowhere)
    return F.pad(inputs, (0, 1)).scatter(1, where, target)[:, :nowhere]


class Graph(NamedTuple):
    """What decoding looks for a path in."""

    words: Tensor  # (batch, vertices): the likeliest of each vertex
    log_probs: Tensor  # (batch, vertices): theirs; 0 for the first and the last, and for padding
    links: Tensor  # (batch, vertices, vertices)
    last: Tensor  # (batch, 1): the last vertex
    limit: Tensor  # (batch, 1): the most words, with EOS


def graph_of(model: Model, source: Tensor, everywhere: bool) -> Graph:
    inputs = graph_inputs(source, model.options.vertices)
    mask = inputs != PAD
    hidden = model.transformer.decode(inputs, mask, model.transformer.encode(source))
    words, log_probs = likeliest(
        model.transformer, hidden, inputs == MASK, may_be_blank=False, everywhere=everywhere
    )
    limit = MOST_RATIO * (source != PAD).sum(1, keepdim=True)
    return Graph(words, log_probs, model.links(hidden, mask), mask.sum(1, keepdim=True) - 1, limit)


def viterbi(model: Model, source: Tensor, *, length_penalty: float, everywhere: bool) -> Tensors:
    """The path of the highest score: log-probability of links and words over a power of length.

    Its best beginnings of n words end at each vertex; for each n, one more link ends the path.
    """
    graph = graph_of(model, source, everywhere)
    n_steps = min(MOST_RATIO * source.shape[1], graph.words.shape[1] - 1)
    vertex = torch.arange(graph.words.shape[1], device=source.device)
    best = torch.where(vertex == 0, 0.0, -torch.inf).expand_as(graph.log_probs)
    origins, ends = [], []
    for _ in range(n_steps):
        arrived, origin = (best.unsqueeze(2) + graph.links).max(1)
        origins.append(origin)
        ends.append(arrived.gather(1, graph.last))
        best = arrived + graph.log_probs
    totals = torch.cat(ends, 1)  # (batch, steps)
    steps = torch.arange(1, n_steps + 1, device=source.device)
    scores = (totals / steps**length_penalty).masked_fill(steps > graph.limit, -torch.inf)
    score, chosen = scores.max(1, keepdim=True)
    vertices, state = [], graph.last
    for step in range(n_steps - 1, -1, -1):
        state = torch.where(step <= chosen, origins[step].gather(1, state), state)
        vertices.append(state)
    tokens = graph.words.gather(1, torch.cat(vertices[::-1], 1))[:, 1:]  # the first is vertex 0
    total = totals.gather(1, chosen).squeeze(1)
    n_words = chosen.squeeze(1)
    return tokens, n_words, score.squeeze(1), total, n_words + 1


def lookahead(model: Model, source: Tensor, *, length_penalty: float, everywhere: bool) -> Tensors:
    return step_by_step(graph_of(model, source, everywhere), 1.0, length_penalty)


def greedy(model: Model, source: Tensor, *, length_penalty: float, everywhere: bool) -> Tensors:
    return step_by_step(graph_of(model, source, everywhere), 0.0, length_penalty)


def step_by_step(graph: Graph, weight: float, length_penalty: float) -> Tensors:
    """The path to the vertex of the likeliest link and, by its weight, word; repeats removed."""
    words, log_probs, links, last, _ = graph
    following = (links + weight * log_probs.unsqueeze(1)).argmax(2)
    vertex = torch.zeros_like(last)
    total = log_probs.new_zeros(last.shape)
    path = []
    for _ in range(words.shape[1] - 1):
        arrived, after = vertex == last, following.gather(1, vertex)
        after = torch.where(arrived, vertex, after)
        link = links.flatten(1).gather(1, vertex * words.shape[1] + after)
        total = total + torch.where(arrived, 0.0, link + log_probs.gather(1, after))
        path.append(after)
        vertex = after
    vertices = torch.cat(path, 1)
    said = vertices != last
    tokens = words.gather(1, vertices)
    length, total = said.sum(1) + 1, total.squeeze(1)
    tokens, keep = compact(tokens, said & differs_from_previous(tokens))
    return tokens, keep.sum(1), total / length**length_penalty, total, length


PATHS: dict[Method, Callable[..., Tensors]] = {
    "viterbi": viterbi,
    "lookahead": lookahead,
    "greedy": greedy,
}
