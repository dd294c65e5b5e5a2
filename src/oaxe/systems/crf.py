"""Bigram CRF: words are predicted in one pass, and each has a say in which one follows.

Sun et al., 2019 (NART-DCRF). The score of a sentence adds up those of its words, which are the
logits of a CMLM, and of its bigrams, which are products of two embeddings of low rank:

    s(y) = sum_t h_t . W[y_t] + sum_t A[y_t] . B[y_{t+1}],    P(y) = exp s(y) / Z

Z sums over all sentences that are made of the likeliest words of each position, the target's own
among them; decoding finds the best of these sentences by Viterbi. The paper lets the transitions
depend on the states of both positions as well; here they are the same everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oaxe.losses.arguments import at_least_float32
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import finished, translate_lengths
from oaxe.search.options import LengthDecoding, Repeats
from oaxe.search.replay import Call, Tensors, compute
from oaxe.search.viterbi import viterbi
from oaxe.search.words import likely_words, positions_at_once
from oaxe.support.config import option
from oaxe.systems import Example, LengthSystem, Paper, Progress
from oaxe.text.symbols import PAD, SYMBOLS

PAPER = Paper(
    "Fast Structured Decoding for Sequence Models",
    "https://arxiv.org/abs/1910.11555",
    {"distilled": {"wmt14-en-de": 23.4, "wmt14-de-en": 27.2}},
)


@dataclass(frozen=True)
class Options:
    rank: int = option(32, "size of the embeddings of transitions", at_least=1, at_most=65_536)
    beam: int = option(
        64, "words of each position that the CRF is about", at_least=1, at_most=1_000
    )
    xe: float = option(0.5, "weight of XE beside the likelihood of the CRF")
    label_smoothing: float = option(0.1, "weight of the uniform distribution in XE", below=1)
    length_weight: float = option(1.0, "weight of the length loss")


@dataclass(frozen=True)
class Decoding(LengthDecoding):
    def __str__(self) -> str:
        return f"best path, {super().__str__()}"


class Model(LengthSystem):
    # It has no room: what follows what is a matrix for each position, of all rows at a time.
    no_ncm = "its probabilities are among the likeliest words of each position"

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        vocab = architecture["vocab_size"]
        self.before, self.after = (nn.Embedding(vocab, options.rank) for _ in range(2))

    @property
    def beam(self) -> int:
        """Words of each position: as the option says, or all if there are fewer."""
        return min(self.options.beam, len(self.transformer.output_weight) - len(SYMBOLS))

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        nll, outside = self.likelihood_loss(hidden, example)
        xe = self.transformer.cross_entropy(hidden, example.target, self.options.label_smoothing)
        lengths, of_lengths = self.length.loss(length_logits, example.length)
        words, n_words = nll + self.options.xe * xe, example.n_words
        statistics = {"loss": (words, n_words), "nll": (nll, n_words), "xe": (xe, n_words)}
        statistics |= {"outside": (outside, n_words), **of_lengths}
        return words + self.options.length_weight * lengths, statistics

    def likelihood_loss(self, hidden: Tensor, example: Example) -> tuple[Tensor, Tensor]:
        """The summed -log P(target), and how many words were not among the likeliest."""
        target = example.target.where(example.mask, PAD).unsqueeze(2)
        with torch.no_grad():
            words, _ = likely_words(self.transformer, hidden, self.beam, may_be_blank=False)
            outside = ~(words == target).any(2) & example.mask
            words[:, :, -1] = torch.where(outside, target.squeeze(2), words[:, :, -1])
            own = (words == target).to(torch.uint8).argmax(2)  # where the target's word is
        scores, between = self.scores(hidden, words), self.transitions(words)
        score = path_score(scores, between, own, example.mask)
        losses = log_normaliser(scores, between, example.mask) - score
        return losses.where(example.mask[:, 0], 0).sum(), outside.sum()

    def scores(self, hidden: Tensor, words: Tensor) -> Tensor:
        """``(rows, length, n)``: logits of ``words (rows, length, n)``; of no others are kept."""
        at_once = positions_at_once(self.transformer)
        parts = zip(*(torch.split(x.flatten(0, 1), at_once) for x in (hidden, words)), strict=True)
        found = [self.transformer.logits(states).gather(1, some) for states, some in parts]
        return at_least_float32(torch.cat(found).view(words.shape))

    def transitions(self, words: Tensor) -> Tensor:
        """``(rows, length - 1, n, n)``: scores of a word and one of the next position."""
        before, after = self.before(words[:, :-1]), self.after(words[:, 1:])
        with torch.autocast(words.device.type, enabled=False):  # it would round to half precision
            return at_least_float32(before) @ at_least_float32(after).transpose(2, 3)

    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        return translate_lengths(self, source, **vars(decoding), call=call, decode=decode)


def log_normaliser(scores: Tensor, between: Tensor, mask: Tensor) -> Tensor:
    """``(rows,)``: log Z, the logsumexp of the scores of all sentences.

    Args:
        scores: ``(rows, length, n)``.
        between: ``(rows, length - 1, n, n)``.
        mask: ``(rows, length)`` bool, True for real positions, which come first.
    """
    total = scores[:, 0]
    for position in range(1, scores.shape[1]):
        ways = (total.unsqueeze(2) + between[:, position - 1]).logsumexp(1)
        total = torch.where(mask[:, position, None], ways + scores[:, position], total)
    return total.logsumexp(1)


def path_score(scores: Tensor, between: Tensor, path: Tensor, mask: Tensor) -> Tensor:
    """``(rows,)``: the score of the sentence that ``path (rows, length)`` chooses of n words."""
    of_words = scores.gather(2, path.unsqueeze(2)).squeeze(2)
    n = scores.shape[2]
    bigram = path[:, :-1] * n + path[:, 1:]
    of_bigrams = between.flatten(2).gather(2, bigram.unsqueeze(2)).squeeze(2)
    return of_words.where(mask, 0).sum(1) + of_bigrams.where(mask[:, 1:], 0).sum(1)


def decode(
    model: Model,
    inputs: Tensor,
    mask: Tensor,
    hidden: Tensor,
    seen: Tensor,
    *,
    repeats: Repeats,
    length_penalty: float,
    everywhere: bool,
) -> Tensors:
    """For each row of ``inputs``: see :func:`oaxe.search.one_pass.hypotheses`."""
    states = model.transformer.decode(inputs, mask, Encoded(hidden, seen))
    words, scores = likely_words(model.transformer, states, model.beam, may_be_blank=False)
    between = model.transitions(words)
    allowed = between
    if repeats == "forbid":
        equal = words[:, :-1].unsqueeze(3) == words[:, 1:].unsqueeze(2)
        allowed = between.masked_fill(equal, -torch.inf)
    path = viterbi(scores, allowed, mask)
    total = path_score(scores, between, path, mask) - log_normaliser(scores, between, mask)
    tokens = words.gather(2, path.unsqueeze(2)).squeeze(2) * mask
    log_probs = scores.gather(2, path.unsqueeze(2)).squeeze(2)  # each by itself
    return finished(tokens, log_probs, total, mask, repeats, length_penalty)
