"""Word by word: greedy and beam search with a causal Transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import kept_first
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.text.symbols import BOS, EOS, PAD

# Of many sentences: asking the device which are done makes it wait, and going on without them takes
# copies. A sentence alone should not wait for a step that it does not need.
STEPS_BETWEEN_CHECKS = 8


@torch.no_grad()
def beam_search(
    model: Transformer,
    source: Tensor,
    *,
    beam: int = 5,
    length_penalty: float = 1.0,
    max_ratio: float = 2.0,
    use_cache: bool = True,
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
        use_cache: keep keys and values of the prefix. False computes them anew, for tests.
    """
    if not model.causal:
        raise ValueError("beam search needs a causal model")
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    search = _Search(model, source, beam, length_penalty, max_ratio, use_cache)
    every = STEPS_BETWEEN_CHECKS if len(source) > 1 else 1
    step = 0
    while search.sentences.numel():
        search.step(step)
        if (step + 1) % every == 0 or step >= search.last_step:
            search.set_aside_what_is_done()
        step += 1
    return search.results


class _Search:
    """State of a search. Sentences leave it when they are done; the first axis is those left."""

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        beam: int,
        length_penalty: float,
        max_ratio: float,
        use_cache: bool,
    ) -> None:
        self.model, self.beam, self.length_penalty = model, beam, length_penalty
        self.encoded: Encoded = model.encode(source)
        self.cache = model.new_cache(self.encoded, beam) if use_cache else None
        batch, device = source.shape[0], source.device
        # Which keys and values of the cache belong to each prefix: these move, the cache stays.
        self.own = torch.zeros(batch, beam, 0, dtype=torch.bool, device=device)
        self.new = torch.eye(beam, dtype=torch.bool, device=device)
        self.never = forbidden(device, EOS)
        self.not_at_first = forbidden(device)  # no translation is empty
        self.sentences = torch.arange(batch, device=device)
        limit = (max_ratio * (source != PAD).sum(1)).long() + 10
        self.limit = limit.clamp(max=model.max_length)  # (batch,)
        self.last_step = min(int(max_ratio * source.shape[1]) + 10, model.max_length)  # at most
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.prefixes = torch.full((batch, beam, 1), BOS, device=device)
        self.sums = torch.full((batch, beam), float("-inf"), device=device)
        self.sums[:, 0] = 0.0  # all prefixes are the same at first: follow one
        self.finished = torch.full((batch, beam, 1), PAD, device=device)
        self.scores = torch.full((batch, beam), float("-inf"), device=device)
        self.results: list[list[Hypothesis]] = [[] for _ in range(batch)]

    def step(self, step: int) -> None:
        """One more token for every prefix."""
        sums, rows, tokens = self._candidates(step)  # (batch, 2 * beam) each, best first
        prefixes = _of_rows(self.prefixes, rows)
        prefixes = torch.cat([prefixes, tokens.unsqueeze(2)], dim=2)
        ends = tokens == EOS
        self._finish(prefixes[:, : self.beam], sums[:, : self.beam], ends[:, : self.beam], step)
        # At most one candidate of each row ends, so that at least beam of them go on.
        kept = kept_first(~ends)[:, : self.beam]
        self.prefixes = _of_rows(prefixes, kept)
        # Where all but EOS was forbidden, what is left here is dead: its sum is -inf.
        self.sums = sums.gather(1, kept)
        self.own = _of_rows(self.own, rows.gather(1, kept))

    def _candidates(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        inputs, own = self.prefixes.flatten(0, 1), None  # (batch * beam, step + 1)
        if self.cache is not None:
            inputs = inputs[:, -1:]
            new = self.new.expand(len(self.sums), -1, -1)
            self.own = torch.cat([self.own, new], dim=2)  # (batch, beam, (step + 1) * beam)
            own = self.own.flatten(0, 1) if self.beam > 1 else None
        hidden = self.model.decode(inputs, inputs != PAD, self.encoded, self.cache, own)[:, -1]
        logits = self.model.logits(hidden).float()  # (batch * beam, vocab)
        logits.index_fill_(1, self.not_at_first if step == 0 else self.never, float("-inf"))
        n = 2 * self.beam
        top, tokens = logits.topk(min(n, logits.shape[1]), dim=1)
        total = logits.logsumexp(1, keepdim=True)
        log_probs = top - total  # (batch * beam, n): no second tensor over the vocabulary
        # Beyond its limit a sentence may only end: its first choice is EOS, and there is no other.
        over = (step >= self.limit).repeat_interleave(self.beam).unsqueeze(1)
        end = logits[:, EOS : EOS + 1] - total
        first = torch.arange(top.shape[1], device=top.device) == 0
        log_probs = torch.where(over, torch.where(first, end, float("-inf")), log_probs)
        tokens = torch.where(over & first, EOS, tokens)
        sums = (self.sums.view(-1, 1) + log_probs).view(self.sums.shape[0], -1)
        best, index = sums.topk(min(n, sums.shape[1]), dim=1)
        return best, index // top.shape[1], tokens.view_as(sums).gather(1, index)

    def _finish(self, prefixes: Tensor, sums: Tensor, ends: Tensor, step: int) -> None:
        """Merge the hypotheses that end now with those that ended before; the best beam stay."""
        counts = ends & ~self.done.unsqueeze(1)
        new = torch.where(counts, sums / (step + 1) ** self.length_penalty, float("-inf"))
        scores = torch.cat([self.scores, new], dim=1)
        before = F.pad(self.finished, (0, 1), value=PAD)
        finished = torch.cat([before, prefixes], dim=1)  # (batch, 2 * beam, step + 2)
        self.scores, best = scores.topk(self.beam, dim=1)
        self.finished = _of_rows(finished, best)
        full = (self.scores > float("-inf")).all(1)
        self.done = self.done | full | (step >= self.limit)

    def set_aside_what_is_done(self) -> None:
        """Store the results of sentences that are done and go on without them."""
        done, left = self.done.nonzero().flatten(), (~self.done).nonzero().flatten()  # device sync
        if not done.numel():
            return
        for sentence, scores, finished in zip(
            self.sentences[done].tolist(),
            self.scores[done].tolist(),
            self.finished[done].tolist(),
            strict=True,
        ):
            self.results[sentence] = [
                Hypothesis(
                    tokens := row[1 : row.index(EOS)],
                    score,
                    len(tokens),
                    score * (len(tokens) + 1) ** self.length_penalty,
                )
                for score, row in zip(scores, finished, strict=True)
                if score > float("-inf")
            ]
        for layer in self.cache or []:
            layer.select(left)
        self.encoded = Encoded(self.encoded.hidden[left], self.encoded.mask[left])
        for name in ("sentences", "limit", "done", "prefixes", "own", "sums", "finished", "scores"):
            setattr(self, name, getattr(self, name)[left])


def _of_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x (batch, n, length)`` at ``rows (batch, m)``: ``(batch, m, length)``."""
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))
