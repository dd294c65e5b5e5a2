"""Connectionist temporal classification (CTC): all monotone alignments with blanks.

Graves et al., 2006. An alignment of n words gives each position a label, a word or a blank: it is
a path through 2n + 1 states, blank, word, blank, ..., blank, that stays in its state, goes on to
the next, or goes from a word past the blank to the next word unless that is the same.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_blank,
    kept_first,
    leading,
    not_negative,
    reduce,
)
from oaxe.losses.axe import alignment_tokens, rows_with_blank
from oaxe.losses.lattice import (
    allowed,
    best_states,
    expected_ngrams,
    kernels,
    make_differentiable,
    posteriors,
    rests_of_paths,
    sum_of_paths,
)
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import log_probs_of, own_words, sentence_costs, sentence_scores


def ctc_loss(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""CTC with the arguments of the other losses: logits, batch first, masks instead of lengths.

    .. math:: L_{CTC} = -\log \sum_{a \in \beta(y)} \prod_j P_j(a_j)

    where :math:`\beta(y)` holds all label sequences that give y once repeats are collapsed and
    blanks removed. There is no second derivative.

    Args:
        logits: ``(batch, predictions, vocab)``, *not* log-probabilities; half precision is computed
            in float32.
        target: ``(batch, targets)`` token ids, none of them the blank.
        blank: id of the blank symbol.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part.
        zero_infinity: a target is impossible if it needs more predictions than there are: one a
            word, and one more between equal neighbours. True: it contributes 0 and no gradient
            (but stays in the denominator of ``"mean"``). False: its loss is infinite.
        reduction: ``"mean"`` divides by the number of targets that are not ignored (torch's own
            CTC takes a mean of means), ``"sum"``, or ``"none"`` for one value a sentence.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> ctc_loss(logits, torch.tensor([[0, 1]]), blank=2)
        tensor(0.0002)
    """
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    emissions = log_probs_of(logits, tokens)
    return reduce(ctc_losses(emissions, tokens, targets, mask, zero_infinity), targets, reduction)


def linear_ctc_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`ctc_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> linear_ctc_loss(hidden, torch.eye(3), torch.tensor([[0, 1]]), blank=2)
        tensor(0.0002)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, tokens, mask, capacity)
    return reduce(ctc_losses(emissions, tokens, targets, mask, zero_infinity), targets, reduction)


@torch.no_grad()
def ctc_best_path(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The likeliest of the alignments that :func:`ctc_loss` sums over.

    Args:
        logits: ``(batch, predictions, vocab)``.
        target: ``(batch, targets)`` token ids, none of them the blank.
        blank: id of the blank symbol.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part.
        ignore_index: targets of this value take no part.

    Returns:
        ``(batch, predictions)`` int64: the label of each position, a word of the target or the
        blank; ``ignore_index`` where a position takes no part, and in the whole of a sentence whose
        target is impossible. Among equally likely ones the choice is the same every time.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 2, 1]].unsqueeze(0)  # 0, blank, blank, 1
        >>> ctc_best_path(logits, torch.tensor([[0, 1]]), blank=2)
        tensor([[0, 2, 2, 1]])
    """
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    return ctc_path(own_words(logits, tokens), tokens, targets, mask, ignore_index)


@torch.no_grad()
def linear_ctc_best_path(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """:func:`ctc_best_path` of ``F.linear(input, linear_weight, linear_bias)``, without its logits.

    Only those of a sentence's own words are computed.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 2, 1]].unsqueeze(0)  # 0, blank, blank, 1
        >>> linear_ctc_best_path(hidden, torch.eye(3), torch.tensor([[0, 1]]), blank=2)
        tensor([[0, 2, 2, 1]])
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
    return ctc_path(sentence_scores(layer, tokens), tokens, targets, mask, ignore_index)


def ctc_tokens(
    logits: Tensor, target: Tensor, blank: int, logit_mask: Tensor | None, ignore_index: int
) -> tuple[Targets, Tensor, Tensor | None]:
    """As AXE's: words, ignored ones last, and a blank; but no word may be the blank."""
    targets, tokens, mask = alignment_tokens(logits, target, blank, logit_mask, ignore_index)
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = rows_with_blank(targets, blank)
        if rows:
            raise ValueError(
                f"target holds the blank ({blank}) in batch rows {rows[:10]}; give the blank an id "
                "that no word has"
            )
    return targets, tokens, mask


def ctc_losses(
    emissions: Tensor,
    tokens: Tensor,
    targets: Targets,
    logit_mask: Tensor | None,
    zero_infinity: bool,
) -> Tensor:
    """``(batch,)``, of log-probabilities ``(batch, predictions, targets + 1)``, a blank's last."""
    emissions, n_predictions, _ = _first(emissions, logit_mask)
    n_targets = targets.mask.sum(1)
    total, _ = _sum(emissions, tokens[:, :-1].contiguous(), n_predictions, n_targets)
    losses = not_negative(-total)  # all alignments may add up to 1.0000001
    losses = losses.masked_fill((n_targets == 0) & (n_predictions == 0), 0)
    return losses.masked_fill(losses == torch.inf, 0) if zero_infinity else losses


def ctc_path(
    scores: Tensor, tokens: Tensor, targets: Targets, logit_mask: Tensor | None, ignore_index: int
) -> Tensor:
    """``(batch, predictions)`` labels of the best path, of logits ``(batch, predictions, tokens)``.

    Each path has one label a position, so that what log-softmax would subtract is the same.
    """
    emissions, n_predictions, order = _first(at_least_float32(scores), logit_mask)
    states = _best_path(emissions, tokens[:, :-1].contiguous(), n_predictions, targets.mask.sum(1))
    states = states[:, : scores.shape[1]]
    labels = tokens.gather(1, _columns(states, tokens.shape[1] - 1))
    labels = labels.masked_fill(states < 0, ignore_index)
    return labels if order is None else labels.scatter(1, order, labels)


def _first(emissions: Tensor, logit_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Predictions that take part are moved first; how many there are; how they were moved."""
    batch, length, _ = emissions.shape
    order = None
    n_predictions = torch.full((batch,), length, device=emissions.device)
    if logit_mask is not None:
        order, n_predictions = kept_first(logit_mask), logit_mask.sum(1)
        emissions = emissions.gather(1, order.unsqueeze(2).expand_as(emissions))
    if length == 0:
        emissions = F.pad(emissions, (0, 0, 0, 1))  # one that takes no part
    return emissions.contiguous(), n_predictions, order


def ctc_expected_words(emissions: Tensor, logit_mask: Tensor | None = None) -> Tensor:
    """``(batch, words)``: how often each word is expected once repeats and blanks are removed.

    The arguments are those of :func:`ctc_expected_bigrams`. Differentiable.

    Example:
        >>> emissions = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]).log()
        >>> ctc_expected_words(emissions)  # said alone, or twice and merged
        tensor([[0.7500]])
    """
    emissions, n_predictions, _ = _first(emissions, logit_mask)
    real = leading(n_predictions, emissions.shape[1]).unsqueeze(2)
    said = torch.where(real, emissions[:, :, :-1].exp(), 0)
    return said.sum(1) - (said[:, 1:] * said[:, :-1]).sum(1)


def ctc_expected_bigrams(
    emissions: Tensor, words: Tensor, logit_mask: Tensor | None = None
) -> Tensor:
    """How often each bigram of a target is expected once repeats and blanks are removed.

    The last label of one word and the first of the next have only blanks between them. A position
    is always visited, so that arrivals are 1. Differentiable.

    Args:
        emissions: ``(batch, predictions, words + 1)``: log-probability of each word of the target,
            and of the blank, at each position.
        words: ``(batch, words)`` token ids, none of them the blank.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part.

    Returns:
        ``(batch, words - 1)``: of words k and k + 1. A bigram that the target has twice is counted
        at both.

    Example:
        >>> emissions = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.5, 0.5]]]).log()
        >>> ctc_expected_bigrams(emissions, torch.tensor([[7, 8]]))
        tensor([[0.5000]])
    """
    emissions, n_predictions, _ = _first(emissions, logit_mask)
    position = torch.arange(emissions.shape[1], device=emissions.device)
    later = position > position.unsqueeze(1)
    blanks = torch.where(later, emissions[:, :, -1].unsqueeze(1), 0).cumsum(2)  # after i, up to j
    between = F.pad(blanks[:, :, :-1], (1, 0))  # before j
    moves = torch.where(later, between.exp(), 0)
    real = leading(n_predictions, emissions.shape[1])
    said = torch.where(real.unsqueeze(2), emissions[:, :, :-1].exp(), 0).transpose(1, 2)
    counts = expected_ngrams(torch.ones_like(real, dtype=said.dtype), moves, said, 2)
    repeated = (said[:, 1:, 1:] * said[:, :-1, :-1]).sum(2)  # without a blank, one word
    return torch.where(words[:, 1:] == words[:, :-1], counts - repeated, counts)


def ctc_expected_length(logits: Tensor, *, blank: int, logit_mask: Tensor | None = None) -> Tensor:
    """``(batch,)``: how many words are expected once repeats and blanks are removed.

    Args:
        logits: ``(batch, predictions, vocab)``.
        blank: id of the blank symbol.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part.

    Example:
        >>> ctc_expected_length(torch.zeros(1, 2, 3), blank=0)  # 2/3, and 2/3 less repeats
        tensor([1.1111])
    """
    check_blank(logits, blank)
    log_probs, n_predictions, _ = _first(
        F.log_softmax(at_least_float32(logits), dim=-1), logit_mask
    )
    real = leading(n_predictions, log_probs.shape[1]).unsqueeze(2)
    word = torch.arange(log_probs.shape[2], device=logits.device) != blank
    said = torch.where(real & word, log_probs.exp(), 0)
    return said.sum((1, 2)) - (said[:, 1:] * said[:, :-1]).sum((1, 2))


class CTCLattice:
    """Steps are positions; states are a blank, the first word, a blank, ..., a blank."""

    def __init__(
        self, emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
    ) -> None:
        state = torch.arange(2 * words.shape[1] + 1, device=words.device)
        self.emissions = emissions[:, :, _columns(state, words.shape[1])]
        self.n_steps = n_predictions
        last = 2 * n_targets.unsqueeze(1)
        self.start = allowed(state < 2, emissions).expand(len(words), -1)
        self.end = allowed((state == last) | (state == last - 1), emissions)
        differs = F.pad(words[:, 1:] != words[:, :-1], (1, 0))[:, : words.shape[1]]
        past_a_blank = torch.zeros_like(self.end, dtype=torch.bool)
        past_a_blank[:, 1::2] = differs
        self.past_a_blank = allowed(past_a_blank, emissions)
        self.origins = (state - torch.arange(3, device=words.device).unsqueeze(1)).clamp(min=0)

    def ways_in(self, before: Tensor) -> Tensor:
        one, two = (F.pad(before, (n, 0), value=-torch.inf)[:, :-n] for n in (1, 2))
        return torch.stack([before, one[:, : before.shape[1]], two + self.past_a_blank], 1)

    def ways_out(self, after: Tensor) -> Tensor:
        one = F.pad(after, (0, 1), value=-torch.inf)[:, 1:]
        two = F.pad(after + self.past_a_blank, (0, 2), value=-torch.inf)[:, 2:]
        return torch.stack([after, one, two], 1)


def _columns(states: Tensor, n: int) -> Tensor:
    """Where among n words and a blank the label of a state is; state -1 is none."""
    return torch.where(states % 2 == 1, states // 2, n).clamp(min=0)


@torch.library.custom_op("oaxe::ctc", mutates_args=())
def _sum(
    emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
) -> tuple[Tensor, Tensor]:
    given = emissions, words, n_predictions, n_targets
    if triton := kernels(emissions, 2 * words.shape[1] + 1):
        return triton.ctc_sum(*given)
    return sum_of_paths(CTCLattice(*given))


@_sum.register_fake
def _(
    emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
) -> tuple[Tensor, Tensor]:
    batch, length, _ = emissions.shape
    return emissions.new_empty(batch), emissions.new_empty(batch, length, 2 * words.shape[1] + 1)


@torch.library.custom_op("oaxe::ctc_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    total: Tensor,
    alpha: Tensor,
    emissions: Tensor,
    words: Tensor,
    n_predictions: Tensor,
    n_targets: Tensor,
) -> Tensor:
    given = emissions, words, n_predictions, n_targets
    if triton := kernels(emissions, 2 * words.shape[1] + 1):
        return triton.ctc_backward(gradient, total, alpha, *given)
    lattice = CTCLattice(*given)
    of_states = posteriors(lattice, alpha, rests_of_paths(lattice), total)
    of_states *= gradient.view(-1, 1, 1)
    return torch.cat([of_states[:, :, 1::2], of_states[:, :, ::2].sum(2, keepdim=True)], 2)


@_backward.register_fake
def _(gradient: Tensor, total: Tensor, alpha: Tensor, emissions: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(emissions)


make_differentiable(_sum, _backward)


@torch.library.custom_op("oaxe::ctc_best_path", mutates_args=())
def _best_path(
    emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
) -> Tensor:
    """``(batch, predictions)`` int64 states."""
    given = emissions, words, n_predictions, n_targets
    if triton := kernels(emissions, 2 * words.shape[1] + 1):
        return triton.ctc_best_path(*given)
    return best_states(CTCLattice(*given))


@_best_path.register_fake
def _(emissions: Tensor, *_: Tensor) -> Tensor:
    return emissions.new_empty(emissions.shape[:2], dtype=torch.int64)
