"""Prefix beam search for CTC: the probability of a translation is that of all its alignments.

As Graves and Jaitly (2014), for many sentences at once. A prefix of words has two probabilities:
that a blank comes last, and that its last word does. A position leaves a prefix as it is or adds a
word; an extension that is another prefix of the beam is added to that one.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.search.graph_beam import NO_LM, taken
from oaxe.search.ngrams import Fluency
from oaxe.search.replay import Tensors
from oaxe.text.symbols import PAD

NO_PREFIX = -1  # the code of what is not followed
FACTOR = 6_364_136_223_846_793_005  # of codes: prefixes that differ have different ones, in effect


class Positions(NamedTuple):
    """What the one pass of the network says."""

    words: Tensor  # (batch, positions, n): the likeliest n of each, all different
    log_probs: Tensor  # (batch, positions, n): theirs
    blanks: Tensor  # (batch, positions): log-probability of a blank
    mask: Tensor  # (batch, positions)


class Beam(NamedTuple):
    """The prefixes that are followed, all different."""

    blank: Tensor  # (batch, beam): log-probability of the prefix and a blank behind it
    word: Tensor  # (batch, beam): the same without a blank
    code: Tensor  # (batch, beam): equal for equal prefixes
    length: Tensor  # (batch, beam)
    fluency: Tensor  # (batch, beam): what a language model adds to the score
    context: Tensor  # (batch, beam, n): the last words, for that
    last: Tensor  # (batch, beam): the last word; PAD, which is none, if there is none
    words: Tensor  # (batch, beam, positions)

    @property
    def total(self) -> Tensor:
        return torch.logaddexp(self.blank, self.word)


def ctc_prefix_beam(
    positions: Positions, *, beam: int, bonus: float, fluency: Fluency = NO_LM
) -> Tensors:
    """Up to ``beam`` translations of each sentence, of the highest score that was found.

    The score of a translation Y of n words is log P(Y) + bonus * n, where P adds up all alignments
    of Y, divided by the number of positions; a language model adds its weighted log-probability to
    log P(Y). With a beam that is large enough nothing is left out.
    """
    mask = positions.mask
    # Behind the end there are blanks, which change nothing.
    blanks = positions.blanks.masked_fill(~mask, 0.0)
    log_probs = positions.log_probs.masked_fill(~mask.unsqueeze(2), -torch.inf)
    nothing, certain = positions.words.new_zeros(len(mask), 1), torch.zeros_like(blanks[:, :1])
    no_words = positions.words.new_full((len(mask), 1, mask.shape[1]), PAD)
    prefixes = Beam(
        certain,
        certain - torch.inf,
        nothing,
        nothing,
        certain,
        fluency.begin(certain),
        no_words[:, :, 0],
        no_words,
    )
    for at in range(mask.shape[1]):
        given = positions.words[:, at], log_probs[:, at], blanks[:, at, None]
        prefixes = _advance(prefixes, *given, beam, bonus, fluency)
    total = prefixes.total
    n_positions = mask.sum(1, keepdim=True).expand_as(total)
    score = total + prefixes.fluency + fluency.of_end(prefixes.context)
    score = (score + bonus * prefixes.length) / n_positions
    found = prefixes.words, prefixes.length, score, total, n_positions
    return tuple(part.flatten(0, 1) for part in found)


def _advance(
    prefixes: Beam,
    words: Tensor,
    log_probs: Tensor,
    blank: Tensor,
    beam: int,
    bonus: float,
    fluency: Fluency,
) -> Beam:
    """One position, with ``words (batch, n)``: the best of the prefixes and their extensions."""
    n_prefixes, n_words, total = prefixes.code.shape[1], words.shape[1], prefixes.total
    same = words.unsqueeze(1) == prefixes.last.unsqueeze(2)  # (batch, beam, n)
    again = log_probs.unsqueeze(1).where(same, -torch.inf).amax(2)
    # A word that repeats the last one is a new one only behind a blank.
    extended = torch.where(same, prefixes.blank.unsqueeze(2), total.unsqueeze(2))
    extended = (extended + log_probs.unsqueeze(1)).flatten(1)  # (batch, beam * n)
    codes = (prefixes.code.unsqueeze(2) * FACTOR + words.unsqueeze(1) + 1).flatten(1)
    known = codes.unsqueeze(2) == prefixes.code.unsqueeze(1)  # (batch, beam * n, beam)
    joined = extended.unsqueeze(2).where(known, -torch.inf).amax(1)  # from one at most
    extended = extended.masked_fill(known.any(2), -torch.inf)

    ends = torch.cat([total + blank, torch.full_like(extended, -torch.inf)], 1)
    says = torch.cat([torch.logaddexp(prefixes.word + again, joined), extended], 1)
    new = torch.arange(ends.shape[1], device=ends.device) >= n_prefixes
    origin = torch.arange(ends.shape[1], device=ends.device) - n_prefixes * new
    origin = torch.where(new, origin // n_words, origin).expand_as(ends)
    length = prefixes.length.gather(1, origin) + new
    fluent = prefixes.fluency.gather(1, origin)
    if fluency.lm:
        context = prefixes.context.unsqueeze(2).expand(-1, -1, n_words, -1)
        added = fluency.of(context, words.unsqueeze(1).expand(-1, n_prefixes, -1))
        fluent = fluent + F.pad(torch.as_tensor(added).flatten(1), (n_prefixes, 0))
    score = torch.logaddexp(ends, says) + fluent + bonus * length
    score, best = score.topk(min(beam, score.shape[1]))

    is_new, origin = best >= n_prefixes, origin.gather(1, best)
    word = words.gather(1, (best - n_prefixes).clamp(min=0) % n_words)
    text, behind = taken(prefixes.words, origin), prefixes.length.gather(1, origin).unsqueeze(2)
    context = taken(prefixes.context, origin)
    after = torch.where(is_new.unsqueeze(2), fluency.after(context, word), context)
    written = torch.where(is_new.unsqueeze(2), word.unsqueeze(2), text.gather(2, behind))
    return Beam(
        ends.gather(1, best),
        says.gather(1, best),
        torch.cat([prefixes.code, codes], 1).gather(1, best).where(score > -torch.inf, NO_PREFIX),
        length.gather(1, best),
        fluent.gather(1, best),
        after,
        torch.where(is_new, word, prefixes.last.gather(1, origin)),
        text.scatter(2, behind, written),
    )
