"""All words at once: decoding with models that are not causal.

The encoder runs once. The decoder runs once too, for all length candidates of all sentences
together; mask-predict refinement adds passes if it is asked for.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from oaxe.losses.arguments import kept_first, leading
from oaxe.model.masking import ctc_inputs
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.search.replay import Replays, Tensors, padded_source, rounded
from oaxe.text.symbols import BLANK, MASK, PAD

LOGITS_AT_ONCE = 2**26  # 256 MiB in float32; the logits of a whole batch may need many times that


@torch.no_grad()
def translate_batch(
    model: Transformer,
    source: Tensor,
    *,
    length_candidates: int = 5,
    deduplicate: bool = True,
    refine_steps: int = 1,
    remove_blanks: bool = False,
    length_penalty: float = 1.0,
    lengths: Tensor | None = None,
    replays: Replays | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, one a length candidate, best score first.

    A hypothesis of n places has the score sum(log p) / n^length_penalty: the mean log-probability.

    A CTC model (``model.upsample``) has one hypothesis a sentence: its length is a multiple of
    the source's, repeats are collapsed, then blanks removed, and the other options do not apply.

    Args:
        model: in evaluation mode, not causal.
        source: ``(batch, source_len)``, EOS included, PAD on the right.
        length_candidates: how many of the most likely lengths to decode.
        deduplicate: collapse consecutive equal tokens.
        refine_steps: passes of the decoder. From the second on, the least likely of its own tokens
            are masked again and predicted anew (mask-predict).
        remove_blanks: let the model say BLANK and remove it, for models trained with AXE.
        length_penalty: above 1 favours long hypotheses, of which the mean prefers the short ones.
        lengths: ``(batch, candidates)`` lengths to decode instead of predicted ones.
        replays: of this model, for a sentence on a GPU; see :data:`REPLAYING`.
    """
    if model.causal:
        raise ValueError("a causal model cannot predict all words at once; use beam_search")
    if model.upsample and refine_steps != 1:
        raise ValueError(f"a CTC model decodes in one pass, got refine_steps {refine_steps}")
    if length_candidates < 1 or refine_steps < 1:
        raise ValueError(
            "length_candidates and refine_steps must be at least 1, "
            f"got {length_candidates} and {refine_steps}"
        )

    def compute(function: Callable[..., Tensors], *given: Tensor, **how: float) -> Tensors:
        return function(model, *given, **how)

    call = compute if replays is None else replays
    if replays is not None:
        source = padded_source(source, model)
    hidden, seen, likely = call(read, source, candidates=length_candidates)
    if model.upsample:
        inputs = ctc_inputs(source, model.upsample)
        mask = inputs != PAD
    else:
        lengths = likely if lengths is None else lengths
        longest = int(lengths.max())  # device sync
        if replays is not None:
            longest = rounded(longest, model.target_positions.num_embeddings)
        mask = leading(lengths.flatten(), longest)
        inputs = torch.where(mask, MASK, PAD)  # (batch * candidates, target_len)
    tokens, counts, scores, places = call(
        write,
        inputs,
        mask,
        hidden,
        seen,
        deduplicate=deduplicate,
        refine_steps=refine_steps,
        remove_blanks=remove_blanks,
        length_penalty=length_penalty,
        everywhere=replays is not None,
    )
    return _hypotheses(tokens, counts, scores, places, source.shape[0])


def read(model: Transformer, source: Tensor, *, candidates: int) -> Tensors:
    """Hidden states and mask of the source, and the likely lengths of the target (not of CTC)."""
    encoded = model.encode(source)
    lengths = encoded.mask[:, :0] if model.upsample else likely_lengths(encoded, candidates)
    return encoded.hidden, encoded.mask, lengths


def write(
    model: Transformer,
    inputs: Tensor,
    mask: Tensor,
    hidden: Tensor,
    seen: Tensor,
    *,
    deduplicate: bool,
    refine_steps: int,
    remove_blanks: bool,
    length_penalty: float,
    everywhere: bool,
) -> Tensors:
    """For each row of ``inputs``: tokens, how many of them count, score, and places."""
    encoded = Encoded(hidden, seen, None)
    places = mask.sum(1)  # (batch * candidates,)
    say = partial(
        predict,
        model,
        encoded,
        may_be_blank=remove_blanks or model.upsample > 0,
        everywhere=everywhere,
    )
    tokens, log_probs = say(inputs, mask, mask)
    for step in range(1, refine_steps):
        n_masked = places * (refine_steps - step) // refine_steps
        masked = least_likely(log_probs, mask, n_masked)
        again, again_log_probs = say(tokens.masked_fill(masked, MASK), mask, masked)
        tokens = torch.where(masked, again, tokens)
        log_probs = torch.where(masked, again_log_probs, log_probs)
    scores = log_probs.sum(1) / places**length_penalty
    if model.upsample:
        keep = mask & differs_from_previous(tokens) & (tokens != BLANK)
    else:
        # A blank of AXE is a place left over, not a fence between two equal words as in CTC:
        # it goes first.
        tokens, keep = compact(tokens, mask & (tokens != BLANK))
        if deduplicate:
            keep = keep & differs_from_previous(tokens)
    tokens, keep = compact(tokens, keep)
    return tokens, keep.sum(1), scores, places


def likely_lengths(encoded: Encoded, candidates: int) -> Tensor:
    """``(batch, candidates)``: the most likely lengths, most likely first; 0 is not among them.

    Nor is a length of more than twice the source and 10, as in beam search: one such candidate
    would make the whole batch as wide.
    """
    assert encoded.length_logits is not None
    logits = encoded.length_logits[:, 1:]  # class 0 would be a sentence without words
    longest = 2 * (encoded.mask.sum(1, keepdim=True) - 2) + 10  # LENGTH and EOS do not count
    length = torch.arange(1, logits.shape[1] + 1, device=logits.device)
    logits = logits.masked_fill(length > longest, float("-inf"))
    found = logits.topk(min(candidates, logits.shape[1]), dim=1).indices + 1
    return torch.minimum(found, longest)


def predict(
    model: Transformer,
    encoded: Encoded,
    inputs: Tensor,
    mask: Tensor,
    where: Tensor,
    *,
    may_be_blank: bool,
    everywhere: bool = False,
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens at the places ``where`` and their log-probabilities; 0 elsewhere.

    Probabilities are over the words that may be said, see :func:`forbidden`. Only a slice of the
    logits exists at any time, and the log-softmax never: log p = logit - logsumexp.

    Args:
        everywhere: compute all places rather than ask the device which there are.
    """
    hidden = model.decode(inputs, mask, encoded)
    hidden = hidden.flatten(0, 1) if everywhere else hidden[where]  # (places, dim); device sync
    never = forbidden(inputs.device, *([BLANK] if may_be_blank else []))
    at_once = max(1, LOGITS_AT_ONCE // model.output_weight.shape[0])
    best, log_probs = [], []
    for part in torch.split(hidden, at_once):
        logits = model.logits(part).float().index_fill_(1, never, float("-inf"))
        top, token = logits.max(1)
        best.append(token)
        log_probs.append(top - logits.logsumexp(1))
    found = torch.cat(best), torch.cat(log_probs)
    if everywhere:
        return found[0].view_as(inputs) * where, found[1].view_as(inputs).where(where, 0.0)
    zeros = torch.zeros_like(inputs)
    return zeros.masked_scatter(where, found[0]), zeros.float().masked_scatter(where, found[1])


def least_likely(log_probs: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
    """``(rows, length)`` bool: the ``counts (rows,)`` real places of lowest log-probability."""
    order = log_probs.masked_fill(~mask, 1.0).argsort(dim=1, stable=True)  # padding last
    return order.argsort(1) < counts.unsqueeze(1)


def differs_from_previous(tokens: Tensor) -> Tensor:
    """``(rows, length)`` bool: False for a token that repeats the one before it."""
    first = torch.ones_like(tokens[:, :1], dtype=torch.bool)
    return torch.cat([first, tokens[:, 1:] != tokens[:, :-1]], dim=1)


def compact(tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens to keep moved to the left in their order, and the mask of where they are now."""
    return tokens.gather(1, kept_first(keep)), leading(keep.sum(1), keep.shape[1])


def _hypotheses(
    tokens: Tensor, counts: Tensor, scores: Tensor, places: Tensor, batch: int
) -> list[list[Hypothesis]]:
    """Rows of one sentence follow each other; sorted by score here, on the host."""
    rows = [
        Hypothesis(row[:count], score, length)
        for row, count, score, length in zip(
            tokens.tolist(), counts.tolist(), scores.tolist(), places.tolist(), strict=True
        )
    ]
    k = len(rows) // batch
    return [
        sorted(rows[b * k : (b + 1) * k], key=lambda h: h.score, reverse=True) for b in range(batch)
    ]
