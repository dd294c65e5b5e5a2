"""CTC on so few positions that all alignments can be listed."""

import math
from collections import defaultdict
from itertools import groupby, product

import pytest
import torch

from oaxe.search.ctc_beam import Positions, ctc_prefix_beam
from oaxe.search.ngrams import Fluency
from oaxe.search.one_pass import hypotheses
from tests.search.fluency import fluency_of, small_lm

ALL = 10_000  # a beam that leaves nothing out


def random_positions(*lengths: int, n_words: int = 2, vocab: int = 3) -> Positions:
    batch, longest = len(lengths), max(lengths)
    labels = (2 * torch.randn(batch, longest, n_words + 1, dtype=torch.float64)).log_softmax(2)
    words = torch.rand(batch, longest, vocab).argsort(2)[:, :, :n_words] + 8
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    return Positions(words, labels[:, :, 1:], labels[:, :, 0], mask)


def all_texts(positions: Positions, row: int) -> dict[tuple[int, ...], float]:
    """The probability of each, the sum of those of its alignments."""
    words, log_probs, blanks, mask = (part[row] for part in positions)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for choice in product(range(words.shape[1] + 1), repeat=int(mask.sum())):
        labels = [int(words[t, k - 1]) if k else 0 for t, k in enumerate(choice)]
        total = sum((log_probs[t, k - 1] if k else blanks[t]).item() for t, k in enumerate(choice))
        found[tuple(label for label, _ in groupby(labels) if label)] += math.exp(total)
    return found


@pytest.mark.parametrize("bonus", [0.0, 0.4, 2.0])
def test_finds_all_texts_in_their_order(bonus: float) -> None:
    lengths = 5, 1, 4, 5
    positions = random_positions(*lengths)
    found = hypotheses(*ctc_prefix_beam(positions, beam=ALL, bonus=bonus), batch=4)
    for row, ours in enumerate(found):
        texts = all_texts(positions, row)
        scores = {y: (math.log(p) + bonus * len(y)) / lengths[row] for y, p in texts.items()}
        expected = sorted(scores, key=lambda text: -scores[text])
        assert [tuple(one.tokens) for one in ours] == expected
        assert [one.score for one in ours] == pytest.approx([scores[y] for y in expected])
        assert sum(math.exp(one.log_probability) for one in ours) == pytest.approx(1.0)
        assert {one.length for one in ours} == {lengths[row]}


@pytest.mark.parametrize("beam", [ALL, 6])
def test_a_language_model_has_its_say(beam: int) -> None:
    lengths, lm = (5, 1, 4), small_lm()
    positions = random_positions(*lengths)
    fluency = Fluency(lm, 0.7)
    found = hypotheses(*ctc_prefix_beam(positions, beam=beam, bonus=0.4, fluency=fluency), batch=3)
    for row, ours in enumerate(found):
        texts = all_texts(positions, row)
        scores = {y: (math.log(p) + 0.7 * fluency_of(lm, y) + 0.4 * len(y)) / lengths[row]
                  for y, p in texts.items()}  # fmt: skip
        expected = sorted(scores, key=lambda text: -scores[text])
        if beam == ALL:
            assert [one.score for one in ours] == pytest.approx([scores[y] for y in expected], 1e-5)
            assert tuple(ours[0].tokens) == expected[0]
        else:  # what was dropped is missing
            for one in ours:
                assert one.score <= scores[tuple(one.tokens)] + 1e-6
            assert ours[0].score == pytest.approx(scores[expected[0]], abs=0.1)


def test_a_bonus_makes_longer_texts() -> None:
    positions = random_positions(*[5] * 20, n_words=3, vocab=5)
    lengths = [
        sum(len(ours[0].tokens) for ours in hypotheses(
            *ctc_prefix_beam(positions, beam=4, bonus=bonus), batch=20
        ))
        for bonus in (0.0, 1.0, 9.0)
    ]  # fmt: skip
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize("bonus", [0.0, 0.8])
def test_a_narrow_beam_is_a_plain_search_over_dictionaries(bonus: float) -> None:
    positions, beam = random_positions(8, n_words=3, vocab=4), 3
    prefixes: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}  # blank, word
    for t in range(8):
        following: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        said = {int(w): p.exp().item() for w, p in
                zip(positions.words[0, t], positions.log_probs[0, t], strict=True)}  # fmt: skip
        for text, (blank, word) in prefixes.items():
            following[text][0] += (blank + word) * positions.blanks[0, t].exp().item()
            for w, p in said.items():
                if text and text[-1] == w:
                    following[text][1] += word * p
                    following[*text, w][1] += blank * p
                else:
                    following[*text, w][1] += (blank + word) * p
        values = {y: sum(p) * math.exp(bonus * len(y)) for y, p in following.items()}
        best = sorted(values, key=lambda text: -values[text])[:beam]
        prefixes = {text: (following[text][0], following[text][1]) for text in best}
    (ours,) = hypotheses(*ctc_prefix_beam(positions, beam=beam, bonus=bonus), batch=1)
    assert [tuple(one.tokens) for one in ours] == list(prefixes)
    expected = [math.log(sum(p)) for p in prefixes.values()]
    assert [one.log_probability for one in ours] == pytest.approx(expected)


def test_impossible_words_and_blanks() -> None:
    """A model that is certain: only one text is left, and there is nothing to fill the beam."""
    words = torch.tensor([[[8, 9], [8, 9], [8, 9]]])
    certain = torch.tensor([[[0.0, -math.inf], [0.0, -math.inf], [-math.inf, 0.0]]])
    blanks = torch.full((1, 3), -math.inf)
    positions = Positions(words, certain, blanks, torch.ones(1, 3, dtype=torch.bool))
    (ours,) = hypotheses(*ctc_prefix_beam(positions, beam=9, bonus=0.0), batch=1)
    assert [one.tokens for one in ours] == [[8, 9]]
    assert ours[0].log_probability == 0
