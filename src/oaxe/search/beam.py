"""Word by word: greedy and beam search with a causal Transformer.

Sentences are searched in slots, each at its own step. Where one is done, the next takes its slot,
so that a GPU has as much to do at the end of a long list as at its beginning.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from oaxe.losses.arguments import kept_first
from oaxe.model.transformer import Cache, Transformer
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.search.replay import Call, Replays, Tensors, compute, padded_source, rounded
from oaxe.search.topk import largest, logsumexp
from oaxe.text.symbols import BOS, EOS, PAD

# Of many sentences: asking the device which are done makes it wait, and going on without them takes
# copies. A sentence alone should not wait for a step that it does not need.
STEPS_BETWEEN_CHECKS = 8
RECORDED_STEPS = 4  # that a GPU takes without asking; sentences that are done wait for the last
FILLED_AT_ONCE = 1 / 8  # of the slots: fewer sentences would leave an encoder on a GPU half idle
NO_SENTENCE = -1  # the limit of a slot that stays empty


class Found(NamedTuple):
    """On the host."""

    sentences: list[int]
    finished: Tensor  # as in State
    scores: Tensor


class Busy(NamedTuple):
    """What a slot does."""

    sentence: int
    since: int  # steps of the whole search when it began


@torch.no_grad()
def beam_search(
    model: Transformer,
    source: Tensor,
    *,
    beam: int = 5,
    length_penalty: float = 1.0,
    max_ratio: float = 2.0,
    batch_tokens: int | None = None,
    call: Call = compute,
) -> list[list[Hypothesis]]:
    """Up to ``beam`` finished hypotheses of each sentence, best first; ``beam=1`` is greedy search.

    A hypothesis of n tokens, EOS included, has the score sum(log p) / n^length_penalty. Each step
    keeps the ``beam`` likeliest prefixes; a prefix that chooses EOS within the best ``beam`` moves
    to the finished ones. A sentence is done when ``beam`` of them are finished; batch mates that
    take longer change nothing for it.

    Args:
        model: in evaluation mode, causal.
        source: ``(batch, source_len)``, EOS included, PAD on the right.
        beam: prefixes that are followed at a time.
        length_penalty: above 1 favours long hypotheses, below 1 short ones; 0 is the plain sum.
        max_ratio: a target has at most this many tokens for each of the source, and 10 more (and
            never over ``model.max_length``). EOS is then the only choice.
        batch_tokens: the most source tokens at a time, with padding, times ``beam``; the other
            sentences wait for a slot. None: all at once.
        call: see :mod:`oaxe.search.replay`. Recorded, a step has the same shape for all sentences
            of nearly the same length.
    """
    if not model.causal:
        raise ValueError("beam search needs a causal model")
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    search = _Search(model, source, beam, length_penalty, max_ratio, call)
    for source_len, sentences in search.groups():
        most = None if batch_tokens is None else max(1, batch_tokens // (beam * source_len))
        search.run(sentences, source_len, most)
    return search.results


class State(NamedTuple):
    """A search, a sentence in each slot. All of it is on the device and written in place."""

    step: Tensor  # (slots,): tokens of each prefix
    limit: Tensor  # (slots,): the most tokens
    done: Tensor  # (slots,) bool
    last: Tensor  # (slots, beam): what the prefixes end with
    sums: Tensor  # (slots, beam): log-probabilities of the prefixes
    prefixes: Tensor  # (slots, beam, steps)
    finished: Tensor  # (slots, beam, steps): hypotheses, up to EOS
    scores: Tensor  # (slots, beam): theirs; -inf for none
    norms: Tensor  # (steps,): what the sum of so many tokens, and EOS, is divided by
    source: Tensor
    mask: Tensor
    own: Tensor
    paths: Tensor

    @property
    def cache(self) -> Cache:
        return Cache(self.source, self.mask, self.own, self.paths)

    @classmethod
    def new(cls, model: Transformer, slots: int, source_len: int, beam: int, steps: int) -> "State":
        cache = model.new_cache(slots, source_len, beam, steps)
        device = cache.own.device
        number = torch.zeros(slots, dtype=torch.int64, device=device)
        each, words = torch.zeros(slots, beam, device=device), number.new_zeros(slots, beam, steps)
        return cls(
            number,
            number.clone(),
            torch.ones_like(number, dtype=torch.bool),
            words[:, :, 0].clone(),
            each,
            words,
            words.clone(),
            each.clone(),
            torch.ones(steps, device=device),
            *cache,
        )

    def take(self, other: "State", slots: Tensor, room: int) -> None:
        """Go on with these slots of another search, of which no more than the room is used."""
        n = len(slots)
        for name in ("step", "limit", "done", "last", "sums", "prefixes", "finished", "scores"):
            getattr(self, name)[:n] = getattr(other, name)[slots]
        self.mask[:n], self.paths[:n] = other.mask[slots], other.paths[slots]
        self.norms.copy_(other.norms)
        self.source[:, :n] = other.source[:, slots]
        self.own[:, :n, :room] = other.own[:, slots, :room]
        self.done[n:] = True


def begin(
    model: Transformer, source: Tensor, slots: Tensor, limit: Tensor, *, state: State
) -> Tensors:
    """Put sentences into slots. A limit of ``NO_SENTENCE`` leaves one empty."""
    model.begin(source, state.cache, slots)
    state.step.index_fill_(0, slots, 0)
    state.limit.index_copy_(0, slots, limit)
    state.done.index_copy_(0, slots, limit == NO_SENTENCE)
    state.last.index_fill_(0, slots, BOS)
    state.scores.index_fill_(0, slots, float("-inf"))
    # All prefixes are the same at first: follow one.
    state.sums.index_fill_(0, slots, float("-inf"))
    state.sums[:, 0].index_fill_(0, slots, 0.0)
    return ()


def advance(model: Transformer, *, state: State, room: int, steps: int) -> Tensors:
    """So many more tokens for every prefix of the sentences that are not done.

    ``room`` is above the step of all sentences, and grows with it; the state has no more.
    """
    for _ in range(steps):
        _advance(model, state, room)
        room = min(room + 1, state.paths.shape[2])
    return ()


def _advance(model: Transformer, state: State, room: int) -> None:
    beam = state.sums.shape[1]
    step = state.step.masked_fill(state.done, 0)  # these compute something, but it is not used
    over = step >= state.limit
    sums, rows, tokens = _candidates(model, state, step, over, room)
    place = step.view(-1, 1, 1).expand(-1, tokens.shape[1], 1)
    prefixes = _of_rows(state.prefixes[:, :, :room], rows).scatter_(2, place, tokens.unsqueeze(2))
    ends = tokens == EOS

    # Merge the hypotheses that end now with those that ended before; the best beam stay.
    counts = ends[:, :beam] & ~state.done.unsqueeze(1)
    new = torch.where(counts, sums[:, :beam] / state.norms[step].unsqueeze(1), float("-inf"))
    scores, best = torch.cat([state.scores, new], dim=1).topk(beam, dim=1)
    finished = torch.cat([state.finished[:, :, :room], prefixes[:, :beam]], dim=1)
    state.finished[:, :, :room] = _of_rows(finished, best)
    state.scores.copy_(scores)
    state.done.logical_or_(over | (scores > float("-inf")).all(1))

    # At most one candidate of each row ends, so that at least beam of them go on.
    kept = kept_first(~ends)[:, :beam]
    state.prefixes[:, :, :room] = _of_rows(prefixes, kept)
    state.last.copy_(tokens.gather(1, kept))
    # Where all but EOS was forbidden, what is left here is dead: its sum is -inf.
    state.sums.copy_(sums.gather(1, kept))
    state.paths[:, :, :room] = _of_rows(state.paths[:, :, :room], rows.gather(1, kept))
    state.step.add_(1)


def _candidates(
    model: Transformer, state: State, step: Tensor, over: Tensor, room: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, rows and tokens of the best continuations, ``(slots, 2 * beam)`` each, best first."""
    beam = state.sums.shape[1]
    hidden = model.decode_next(state.last, step, state.cache, room)
    logits = model.logits(hidden)  # (slots, beam, vocab): none else is as large
    logits.index_fill_(2, forbidden(logits.device, EOS), float("-inf"))
    logits[:, :, EOS].masked_fill_((step == 0).unsqueeze(1), float("-inf"))  # none is empty
    top, tokens = largest(logits, min(2 * beam, logits.shape[2]))  # (slots, beam, n)
    total = logsumexp(logits).unsqueeze(2)
    log_probs = top.float() - total
    # Beyond its limit a sentence may only end: its first choice is EOS, and there is no other.
    over, n = over.view(-1, 1, 1), top.shape[2]
    first = torch.arange(n, device=top.device) == 0
    end = torch.where(first, logits[:, :, EOS : EOS + 1].float() - total, float("-inf"))
    log_probs = torch.where(over, end, log_probs)
    tokens = torch.where(over & first, EOS, tokens)
    sums = (state.sums.unsqueeze(2) + log_probs).flatten(1)
    best, index = sums.topk(min(2 * beam, sums.shape[1]), dim=1)
    return best, index // n, tokens.flatten(1).gather(1, index)


class _Search:
    """What the host knows: which sentence is in which slot, and what was found."""

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        beam: int,
        length_penalty: float,
        max_ratio: float,
        call: Call,
    ) -> None:
        self.call, self.beam, self.length_penalty = call, beam, length_penalty
        self.recorded = call if isinstance(call, Replays) else None
        self.model = self.recorded.in_low_precision(model) if self.recorded else model
        self.max_ratio = max_ratio
        # Every sentence that leaves makes the others faster; recorded, many have to leave.
        self.shrinks = 1 / 4 if self.recorded else 1.0
        self.source = source
        self.lengths = (source != PAD).sum(1).cpu()
        if self.recorded:
            self.source = padded_source(source, model.max_length)
        self.limits = self._limits(self.lengths)
        self.results: list[list[Hypothesis]] = [[] for _ in self.limits]

    def groups(self) -> Iterator[tuple[int, list[int]]]:
        """Sentences that are searched together, and the length they are padded to."""
        if not self.recorded:
            if self.limits:
                yield self.source.shape[1], list(range(len(self.limits)))
            return
        most, lengths = self.model.max_length + 1, self.lengths.tolist()  # and EOS
        longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        for source_len, same in groupby(longest_first, key=lambda i: rounded(lengths[i], most)):
            yield source_len, list(same)

    def run(self, sentences: list[int], source_len: int, most: int | None) -> None:
        """Search for the translations of these sentences; most: so many at a time, or all."""
        waiting, busy = deque(sentences), dict[int, Busy]()
        steps = 1 + (
            self._limits(torch.tensor([source_len]))[0]
            if self.recorded
            else max(self.limits[i] for i in sentences)
        )
        state = self._state(self._slots(len(sentences), most), source_len, steps)
        clock, found = 0, None
        while waiting or busy:
            self._fill(state, waiting, busy, clock)
            clock += self._advance(state, busy, clock)
            self._write(found)  # of before, while the device computes
            found = self._done(state, busy)
            slots = self._slots(len(busy), most)
            if busy and not waiting and slots <= self.shrinks * len(state.done) and found:
                smaller = self._state(slots, source_len, steps)
                smaller.take(state, self._tensor(list(busy)), self._room(busy, clock))
                state, busy = smaller, dict(enumerate(busy.values()))
        self._write(found)

    def _slots(self, sentences: int, most: int | None) -> int:
        """For so many sentences; recorded, there are few numbers of slots."""
        if not self.recorded:
            return min(sentences, most or sentences)
        power = 1
        while power < sentences:
            power *= 4
        return min(power, 1 << (most.bit_length() - 1)) if most else power

    def _state(self, slots: int, source_len: int, steps: int) -> State:
        shape = slots, source_len, self.beam, steps
        make = partial(State.new, self.model, *shape)
        state = self.recorded.keep((State, *shape), make) if self.recorded else make()
        norms = [(step + 1) ** self.length_penalty for step in range(steps)]
        state.norms.copy_(torch.tensor(norms))
        return state

    def _fill(self, state: State, waiting: deque[int], busy: dict[int, Busy], clock: int) -> None:
        """Put those who wait into slots that are free."""
        free = [slot for slot in range(len(state.done)) if slot not in busy]
        count = min(len(free), len(waiting))
        if self.recorded and free:
            count = len(free) if not busy else max(1, int(FILLED_AT_ONCE * len(state.done)))
        while waiting and free and len(free) >= count:
            slots, free = free[:count], free[count:]
            new = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            none = count - len(new)
            sentences, limits = new + new[:1] * none, [self.limits[i] for i in new]
            given = self._tensor([sentences, slots, limits + [NO_SENTENCE] * none])
            source = self.source[:, : state.mask.shape[1]][given[0]]
            self.call(begin, self.model, source, given[1], given[2], state=state)
            busy.update((slot, Busy(i, clock)) for slot, i in zip(slots, new, strict=False))

    def _advance(self, state: State, busy: dict[int, Busy], clock: int) -> int:
        """Returns the number of steps."""
        if self.recorded:
            room, steps = state.paths.shape[2], RECORDED_STEPS
        else:
            room = self._room(busy, clock) + 1
            left = max(self.limits[i] + 1 - (clock - since) for i, since in busy.values())
            steps = min(left, STEPS_BETWEEN_CHECKS if len(state.done) > 1 else 1)
        self.call(advance, self.model, state=state, room=room, steps=steps)
        return steps

    def _room(self, busy: dict[int, Busy], clock: int) -> int:
        """Steps of the sentence that has taken the most."""
        return clock - min(since for _, since in busy.values())

    def _done(self, state: State, busy: dict[int, Busy]) -> Found | None:
        """Take what is done out of its slots: waits for the device."""
        done = state.done.tolist()
        slots = [slot for slot in busy if done[slot]]
        if not slots:
            return None
        index, sentences = self._tensor(slots), [busy.pop(slot).sentence for slot in slots]
        return Found(sentences, state.finished[index].cpu(), state.scores[index].cpu())

    def _write(self, found: Found | None) -> None:
        if found is None:
            return
        rows_and_scores = zip(found.finished.tolist(), found.scores.tolist(), strict=True)
        for sentence, (rows, scores) in zip(found.sentences, rows_and_scores, strict=True):
            self.results[sentence] = [
                Hypothesis(
                    tokens := row[: row.index(EOS)],
                    score,
                    len(tokens),
                    score * (len(tokens) + 1) ** self.length_penalty,
                )
                for row, score in zip(rows, scores, strict=True)
                if score > float("-inf")
            ]

    def _limits(self, lengths: Tensor) -> list[int]:
        most = (self.max_ratio * lengths).long() + 10
        return most.clamp(max=self.model.max_length).tolist()

    def _tensor(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.source.device)


def _of_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x (batch, n, length)`` at ``rows (batch, m)``: ``(batch, m, length)``."""
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))
