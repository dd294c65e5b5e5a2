"""DAG: a graph of vertices, each of which says a word and leads to later ones; a path translates.

The DA-Transformer of Huang et al. (2022). The decoder has several vertices for each source token,
the first of which says BOS and the last EOS; links between them are probabilities, so that
translations that contradict each other can lie on different paths. The loss sums over all paths
that say the target, and there is no length to predict.

It learns with glancing. Every update decodes twice. The first pass, without gradient, has a
likeliest path for the target; a share of the number of its words that their vertices would not say
is revealed to the second pass, at random vertices of that path. A trained model can be fine-tuned
for the n-grams that it has in common with the target (FA-DAT, Ma et al., 2023), see
:mod:`oaxe.losses.ngrams`.

After the one pass of the network, decoding looks for a path: step by step to the likeliest vertex
(greedy), to that of the likeliest vertex and word (lookahead), or the best of all paths and their
words, by length (joint Viterbi of Shao et al., 2022). Or, by beam search, it looks for the text
that all paths together say with the highest probability; or, of paths that it draws at random, for
the one that is most like the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.criteria.lattices import DAG_OBJECTIVES
from oaxe.losses import linear_dag_best_path
from oaxe.losses.arguments import at_least_float32
from oaxe.losses.own_words import product
from oaxe.model.masking import IGNORED, causal_inputs, drawn
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.model.weak_decoder import WeakDecoder
from oaxe.search import graph_beam_cpu
from oaxe.search.consensus import TEMPERATURES, generator_of, ranked
from oaxe.search.graph import Graph, sampled_paths, step_by_step, viterbi
from oaxe.search.graph_beam import prefix_beam
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.ngram_table import ngram_table
from oaxe.search.ngrams import WEIGHTS, Fluency, LanguageModel
from oaxe.search.options import DAGDecoding
from oaxe.search.replay import Call, Tensors, compute
from oaxe.search.words import likeliest, likeliest_words, sampled_words
from oaxe.support.config import Choice, choice, option
from oaxe.systems import Example, Paper, Progress, System
from oaxe.systems.ctc import advice_on_length, advice_on_start, but_target_positions, in_one_pass
from oaxe.text.plans import Room
from oaxe.text.symbols import BOS, EOS, MASK, PAD

PAPER = Paper(
    "Directed Acyclic Transformer for Non-Autoregressive Machine Translation",
    "https://proceedings.mlr.press/v162/huang22m.html",
    {
        "distilled": {"wmt14-en-de": 27.5, "wmt14-de-en": 31.4},
        "raw": {"wmt14-en-de": 26.6, "wmt14-de-en": 30.7},
    },
)
LENGTH_PENALTIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)  # worth trying
MOST_RATIO = 2  # words of a translation, with EOS, for each token of its source


@dataclass(frozen=True)
class Options:
    vertices: int = option(
        4, "vertices of the graph for each source subword", at_least=2, at_most=100
    )
    start: float = option(0.5, "revealed words for each wrong one, at the start", at_most=1)
    end: float = option(0.1, "the same at the end of training; linear in between", at_most=1)
    objective: Choice = choice(DAG_OBJECTIVES, "likelihood", "what is learned")
    weak_decoder: float = option(
        0.0, "weight of the loss of an autoregressive layer that only training has; 0: none"
    )

    @property
    def needs_end(self) -> bool:
        return self.start != self.end


Decoding = DAGDecoding


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
        queries, keys = (
            part.view(batch, n, self.heads, -1).transpose(1, 2).flatten(0, 1)
            for part in self._of_features(hidden, self.query, self.key).chunk(2, 2)
        )
        gates = at_least_float32(self._of_features(hidden, self.gate)).log_softmax(2)
        vertex = torch.arange(n, device=hidden.device)
        linked = (vertex > vertex.unsqueeze(1)) & mask.unsqueeze(1)
        scores = product(queries / math.sqrt(dim // self.heads), keys.transpose(1, 2))
        scores = scores.view(batch, self.heads, n, n)
        # Finite, for the sake of vertices from which no link goes: the last one, and padding.
        scores = scores.masked_fill(~linked.unsqueeze(1), torch.finfo(scores.dtype).min)
        mixed = scores.log_softmax(3) + gates.transpose(1, 2).unsqueeze(3)
        return mixed.logsumexp(1).masked_fill(~linked, -torch.inf)

    def _of_features(self, hidden: Tensor, *layers: nn.Linear) -> Tensor:
        """What the layers make of states and positions, side by side.

        The positions are the same for all rows: their part of the product is computed once.
        """
        dim = hidden.shape[2]
        weight, bias = (
            torch.cat(of) for of in zip(*((x.weight, x.bias) for x in layers), strict=True)
        )
        at = self.vertex_positions.weight[: hidden.shape[1]].to(hidden.dtype)
        return F.linear(hidden, weight[:, :dim]) + F.linear(at, weight[:, dim:], bias)


class Model(System):
    in_bands = True  # links are a matrix for each row, as large as the longest source makes it
    no_ncm = "its output is the sum of many paths, of which decoding sees one"
    chooses_decoding = True
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

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(source, self.options.vertices * source, target + rows)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        inputs = example.inputs
        statistics: Statistics = {}
        if self.training:
            share = progress.between(self.options.start, self.options.end)
            inputs, statistics = self.glance(example, encoded, share)
        hidden = self.transformer.decode(inputs, example.mask, encoded)
        loss = self.options.objective.options(
            hidden,
            self.transformer.output_weight,
            self.links(hidden, example.mask),
            example.target,
            logit_mask=example.mask,
            reduction="sum",
            capacity=self.transformer.capacity,
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
        words = (example.target != BOS) & (example.target != EOS) & (path >= 0)
        at_path = path.clamp(min=0).unsqueeze(2).expand(-1, -1, hidden.shape[2])
        room = self.transformer.room
        said, _ = likeliest(
            self.transformer,
            hidden.gather(1, at_path),
            words,
            may_be_blank=False,
            everywhere=True,
            capacity=room and room.words,
            scored=False,
        )
        wrong = (words & (said != example.target)).sum(1, keepdim=True)
        revealed = drawn(words, (share * wrong).round())
        n_words = words.sum()
        seen = {"revealed": (revealed.sum(), n_words), "wrong": (wrong.sum(), n_words)}
        return shown(example.inputs, path, example.target, revealed), seen

    def advice(self, means: Mapping[str, float], *, from_scratch: bool) -> str:
        on_start = advice_on_start(means, from_scratch, self.options.objective, "dag")
        return on_start or advice_on_length(means, "dag.vertices")

    @torch.no_grad()
    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        if decoding.method == "beam" and source.device.type == "cpu" and call is compute:
            return beam_on_cpu(self, source, decoding)
        return in_one_pass(self, source, search, decoding, call, skips=True)

    def rows(self, decoding: Decoding) -> int:
        """A graph takes as much memory as this many hypotheses."""
        return self.options.vertices

    def choices(self, decoding: Decoding) -> Mapping[str, Sequence[float]]:
        if decoding.method == "samples":
            return {"temperature": TEMPERATURES}
        if decoding.method not in ("viterbi", "beam"):
            return {}
        asks = decoding.method == "beam" and decoding.lm is not None
        return {"length_penalty": LENGTH_PENALTIES} | ({"lm_weight": WEIGHTS} if asks else {})

    def weights_from(self, other: System) -> dict[str, Tensor]:
        """Without the positions of a decoder that counts words: here they count vertices."""
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


def graph_of(model: Model, source: Tensor, *, n_words: int, everywhere: bool) -> Graph:
    """``n_words`` are known of each vertex. Everywhere: see :func:`likeliest`."""
    hidden, inputs = decoded(model, source)
    says = inputs == MASK
    if n_words == 1:
        found = likeliest(
            model.transformer, hidden, says, may_be_blank=False, everywhere=everywhere
        )
        words, log_probs = (x.unsqueeze(2) for x in found)
    else:
        words, log_probs, _ = likeliest_words(
            model.transformer, hidden, says, n_words, may_be_blank=False
        )
    return with_links(model, source, hidden, inputs != PAD, words, log_probs)


def decoded(model: Model, source: Tensor) -> tuple[Tensor, Tensor]:
    """The last hidden states of all vertices, and their inputs."""
    inputs = graph_inputs(source, model.options.vertices)
    encoded = model.transformer.encode(source)
    return model.transformer.decode(inputs, inputs != PAD, encoded), inputs


def with_links(
    model: Model, source: Tensor, hidden: Tensor, mask: Tensor, words: Tensor, log_probs: Tensor
) -> Graph:
    limit = MOST_RATIO * (source != PAD).sum(1, keepdim=True)
    steps = min(MOST_RATIO * source.shape[1], mask.shape[1] - 1)
    last = mask.sum(1, keepdim=True) - 1
    return Graph(words, log_probs, model.links(hidden, mask), last, limit, steps)


def beam_on_cpu(model: Model, source: Tensor, decoding: Decoding) -> list[list[Hypothesis]]:
    """The search by beam, compiled rather than on tensors."""
    graph = graph_of(model, source, n_words=decoding.top_words, everywhere=False)
    words, log_probs, links, last, limit = (part.numpy() for part in graph[:5])
    arrays = graph_beam_cpu.Graph(words, log_probs, links, last[:, 0], limit[:, 0])
    table = ngram_table(decoding.lm, model.vocab_size)
    how = decoding.beam, decoding.length_penalty, table, decoding.lm_weight
    return graph_beam_cpu.prefix_beam(arrays, graph_beam_cpu.How(*how))


def search(
    model: Model, source: Tensor, *, decoding: Decoding, lm: LanguageModel | None, everywhere: bool
) -> Tensors:
    """See :func:`oaxe.search.one_pass.hypotheses`."""
    if decoding.method == "samples":
        return samples(model, source, decoding)
    n_words = decoding.top_words if decoding.method == "beam" else 1
    graph = graph_of(model, source, n_words=n_words, everywhere=everywhere)
    penalty = decoding.length_penalty
    if decoding.method == "beam":
        fluency = Fluency(lm, decoding.lm_weight)
        return prefix_beam(graph, beam=decoding.beam, length_penalty=penalty, fluency=fluency)
    if decoding.method == "viterbi":
        return viterbi(graph, penalty)
    return step_by_step(graph, float(decoding.method == "lookahead"), penalty)


def samples(model: Model, source: Tensor, decoding: Decoding) -> Tensors:
    """Paths that are drawn, each with words that are drawn; ranked by how alike they are."""
    (hidden, inputs), generator = decoded(model, source), generator_of(source.device)
    words, log_probs = sampled_words(
        model.transformer,
        hidden,
        decoding.samples,
        may_be_blank=False,
        temperature=decoding.temperature,
        generator=generator,
    )
    graph = with_links(model, source, hidden, inputs != PAD, words, log_probs)
    return ranked(sampled_paths(graph, decoding.temperature, generator), len(source))
