r"""Expected n-grams: how many of the target a model says on average, over all of its outputs.

Shao and Feng, "Non-Monotonic Latent Alignments for CTC-Based Non-Autoregressive Machine
Translation" (2022), and Ma et al., "Fuzzy Alignments in Directed Acyclic Graph for
Non-Autoregressive Machine Translation" (2023). The likelihood of a target asks for its words in its
order; an expected share of matching n-grams also rewards outputs that have phrases of it elsewhere.
It is for fine-tuning: a model that says nothing of the target has next to no gradient.

A sentence of M words has the loss M (1 - score), its score being a share from 0 to 1: the mean over
words is the mean score of sentences, long ones weighing more, as they do in BLEU. In the target
an n-gram is worth no more than the number of times that it is there: of duplicates, each of R
places has :math:`\min(E / R, 1)` for an expected count E.
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    check_n,
    leading,
    not_negative,
    reduce,
    unrounded,
)
from oaxe.losses.ctc import (
    ctc_expected_bigrams,
    ctc_expected_length,
    ctc_expected_words,
    ctc_tokens,
)
from oaxe.losses.dag import dag_arrivals, dag_moves, dag_words
from oaxe.losses.lattice import expected_ngrams
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.overlap import layer_overlap
from oaxe.losses.own_words import log_probs_of, sentence_costs, sentence_scores


def dag_ngram_loss(
    logits: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""One minus the expected precision of n-grams in a graph, times the brevity penalty, per word.

    .. math::
        L = M \left(1 - \min(1, e^{1 - M / \mathrm{E}[length]})
        \frac{\sum_g \min(\mathrm{E}[count_g], count_g(y))}{\mathrm{E}[number\ of\ n\text{-}grams]}
        \right)

    Args:
        logits: ``(batch, vertices, vocab)``; half precision is computed in float32.
        links: log E, ``(batch, vertices, vertices)``, as for :func:`dag_loss`; from each vertex but
            the last they must add up to 1.
        target: y, ``(batch, length)`` token ids.
        n: how many words an n-gram has.
        ignore_index: targets of this value take no part.
        logit_mask: ``(batch, vertices)`` bool, True for the vertices that take part: the first ones
            of each sentence. Default: all of them.
        reduction: ``"mean"`` divides by the number M of targets that are not ignored, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    A target of fewer than n words contributes 0.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 99
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> dag_ngram_loss(logits, links, torch.tensor([[0, 1]]))  # 0.5 of 1.5 bigrams
        tensor(0.6667)
    """
    check_n(n)
    targets, words, links, mask = dag_words(logits, links, target, logit_mask, ignore_index)
    emissions = log_probs_of(logits, words)
    losses = _dag_losses(emissions.transpose(1, 2), links, words, targets, mask, n)
    return reduce(losses, targets, reduction)


def linear_dag_ngram_loss(
    input: Tensor,
    linear_weight: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`dag_ngram_loss` of ``F.linear(input, linear_weight, linear_bias)``, without logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 99
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> linear_dag_ngram_loss(hidden, torch.eye(3), links, torch.tensor([[0, 1]]))
        tensor(0.6667)
    """
    check_n(n)
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, words, links, mask = dag_words(layer.stand_in, links, target, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, words, mask, capacity).transpose(1, 2)
    return reduce(_dag_losses(emissions, links, words, targets, mask, n), targets, reduction)


def _dag_losses(
    emissions: Tensor, links: Tensor, words: Tensor, targets: Targets, mask: Tensor, n: int
) -> Tensor:
    """``(batch,)``, of the words' log-probabilities ``(batch, words, vertices)``."""
    n = min(n, words.shape[1] + 1)  # one that no target has
    dtype = torch.promote_types(emissions.dtype, links.dtype)
    emissions, links = emissions.to(dtype), links.to(dtype)
    visits, moves = dag_arrivals(links, mask), dag_moves(links, mask)
    counts = expected_ngrams(visits, moves, emissions.exp(), n)
    reached = visits.unsqueeze(1)
    with unrounded(moves.device):
        for _ in range(1, n):
            reached = reached @ moves
    number = reached.sum((1, 2))
    n_words = targets.mask.sum(1)
    brevity = (1 - n_words / visits.sum(1).clamp(min=1)).clamp(max=0).exp()
    # Where no path has n words there are none to divide by, and no gradient.
    number = number.where(number > torch.finfo(number.dtype).tiny ** 0.5, 1)
    score = brevity * clipped(counts, words, n_words, n) / number
    return _of_score(score, n_words, n)


def ctc_ngram_loss(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    n: int = 2,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""One minus the expected F score of n-grams, repeats and blanks removed, per word.

    .. math::
        L = M \left(1 - \frac{2 \sum_g \min(\mathrm{E}[count_g], count_g(y))}
        {\mathrm{E}[number\ of\ n\text{-}grams] + M - n + 1}\right)

    Args:
        logits: ``(batch, predictions, vocab)``, *not* log-probabilities; half precision is computed
            in float32.
        target: y, ``(batch, targets)`` token ids, none of them the blank.
        blank: id of the blank symbol.
        n: 2 for bigrams, or 1: the bag of words.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part.
        reduction: ``"mean"`` divides by the number M of targets that are not ignored, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    A target of fewer than n words contributes 0.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 99  # 0, blank, 1
        >>> ctc_ngram_loss(logits, torch.tensor([[0, 1, 0]]), blank=2)  # 1 bigram, where 2 are due
        tensor(0.3333)
    """
    _check_ctc_n(n)
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    emissions = log_probs_of(logits, tokens)
    length = ctc_expected_length(logits, blank=blank, logit_mask=mask)
    return reduce(_ctc_losses(emissions, length, tokens, targets, mask, n), targets, reduction)


def linear_ctc_ngram_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    n: int = 2,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`ctc_ngram_loss` of ``F.linear(input, linear_weight, linear_bias)``, without logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 99  # 0, blank, 1
        >>> linear_ctc_ngram_loss(hidden, torch.eye(3), torch.tensor([[0, 1, 0]]), blank=2)
        tensor(0.3333)
    """
    _check_ctc_n(n)
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
    normalizer, overlap = layer_overlap(layer, blank, mask, capacity)
    emissions = -not_negative(normalizer.unsqueeze(2) - sentence_scores(layer, tokens))
    said = 1 - emissions[:, :, -1].exp()
    length = (said if mask is None else torch.where(mask, said, 0)).sum(1) - overlap.sum(1)
    return reduce(_ctc_losses(emissions, length, tokens, targets, mask, n), targets, reduction)


def _ctc_losses(
    emissions: Tensor, length: Tensor, tokens: Tensor, targets: Targets, mask: Tensor | None, n: int
) -> Tensor:
    """``(batch,)``, of log-probabilities ``(batch, predictions, targets + 1)``, a blank's last, and
    expected lengths ``(batch,)``."""
    words, blanks = tokens[:, :-1], emissions[:, :, -1]
    if n == 1:
        counts, number = ctc_expected_words(emissions, mask), length
    else:
        counts = ctc_expected_bigrams(emissions, words, mask)
        blanks = blanks if mask is None else torch.where(mask, blanks, 0)
        number = length - 1 + blanks.sum(1).exp()  # an empty output has no bigram, rather than -1
    n_words = targets.mask.sum(1)
    all_ngrams = (number + n_words - n + 1).clamp(min=torch.finfo(number.dtype).tiny)
    return _of_score(2 * clipped(counts, words, n_words, n) / all_ngrams, n_words, n)


def clipped(counts: Tensor, words: Tensor, n_words: Tensor, n: int) -> Tensor:
    """``(batch,)``: expected n-grams, each kind no more often than the target has it.

    Args:
        counts: ``(batch, words - n + 1)``, of the words k, ..., k + n - 1.
        words: ``(batch, words)`` token ids, of which the first ``n_words (batch,)`` are real.
        n: how many words an n-gram has.
    """
    size = counts.shape[1]
    equal = words.unsqueeze(2) == words.unsqueeze(1)
    same = equal[:, :size, :size]
    for later in range(1, n):
        same = same & equal[:, later : later + size, later : later + size]
    real = leading(n_words - n + 1, size)
    number = (same & real.unsqueeze(1)).sum(2).clamp(min=1)
    return torch.where(real, (counts / number).clamp(max=1), 0).sum(1)


def _of_score(score: Tensor, n_words: Tensor, n: int) -> Tensor:
    losses = n_words * not_negative(1 - score)
    return losses.masked_fill(n_words < n, 0)


def _check_ctc_n(n: int) -> None:
    check_n(n)
    if n > 2:
        raise ValueError(f"n must be 1 or 2 for CTC, got {n}; dag_ngram_loss takes any")
