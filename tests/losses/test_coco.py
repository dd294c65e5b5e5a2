"""CoCO against all matchings and all ways to fill up the positions that they leave over."""

from itertools import pairwise, permutations, product
from typing import Any

import pytest
import torch
from torch import Tensor

import oaxe
from oaxe.losses.coco import Rest

VOCAB, BLANK = 5, 4


def is_filled_up(labels: tuple[int, ...], match: dict[int, int]) -> bool:
    """Matched positions keep their word; between two of them there is one change at most."""
    places = sorted(match)
    if any(labels[t] != word for t, word in match.items()):
        return False
    if len({*labels[: places[0] + 1]}) > 1 or len({*labels[places[-1] :]}) > 1:
        return False
    gaps = [labels[a : b + 1] for a, b in pairwise(places)]
    return all(sum(x != y for x, y in pairwise(gap)) <= 1 for gap in gaps)


def brute_force(logits: Tensor, words: list[int], rest: Rest) -> Tensor:
    cost, length, numbers = -logits.log_softmax(-1), len(logits), range(len(words))
    places = permutations(range(length), len(words))
    matches = [dict(zip(chosen, numbers, strict=True)) for chosen in places]
    if rest == "blanks":
        filled = [[words[m[t]] if t in m else BLANK for t in range(length)] for m in matches]
    else:
        of_words = [sum(cost[t, words[n]].item() for t, n in m.items()) for m in matches]
        best = matches[of_words.index(min(of_words))]
        labellings = product(numbers, repeat=length)
        filled = [[words[n] for n in labels] for labels in labellings if is_filled_up(labels, best)]
    return torch.stack([cost[range(length), labels].sum() for labels in filled]).min()


@pytest.mark.parametrize("rest", ["repeats", "blanks"])
def test_all_matchings_and_splits(rest: Rest) -> None:
    target = torch.tensor([[0, 1, 2], [2, -100, 2], [-100, 3, -100], [1, 0, 3]])
    lengths = [5, 5, 4, 3]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    mask[1] = torch.tensor([1, 0, 1, 1, 1]) > 0
    for _ in range(6):
        logits = 2 * torch.randn(4, 5, VOCAB, dtype=torch.float64)
        logits.requires_grad_()
        ours = oaxe.coco_loss(
            logits, target, blank=BLANK, ctc_weight=0, rest=rest, logit_mask=mask, reduction="none"
        )
        theirs = torch.stack(
            [brute_force(x[m], [w for w in y.tolist() if w >= 0], rest)
             for x, y, m in zip(logits, target, mask, strict=True)]
        )  # fmt: skip
        torch.testing.assert_close(ours, theirs)
        for one, other in zip(
            torch.autograd.grad(ours.sum(), logits),
            torch.autograd.grad(theirs.sum(), logits),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


def test_long_gaps_are_split_where_it_is_cheapest() -> None:
    """One gap of nine positions between two words, against each of its ten splits."""
    logits = torch.randn(8, 11, VOCAB, dtype=torch.float64)
    logits[:, 0, 0] += 20
    logits[:, 10, 1] += 20
    ours = oaxe.coco_loss(
        logits, torch.tensor([[0, 1]]).expand(8, -1), blank=BLANK, ctc_weight=0, reduction="none"
    )
    cost = -logits.log_softmax(-1)
    splits = [cost[:, :s, 0].sum(1) + cost[:, s:, 1].sum(1) for s in range(1, 11)]
    torch.testing.assert_close(ours, torch.stack(splits).min(0).values)


def test_a_mixture_with_ctc() -> None:
    logits = torch.randn(3, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1, 1], [2, 3, -100], [0, -100, -100]])
    given: Any = {"blank": BLANK, "reduction": "none"}
    ctc, alone = oaxe.ctc_loss(logits, target, **given), oaxe.coco_loss(
        logits, target, ctc_weight=0, **given
    )  # fmt: skip
    torch.testing.assert_close(oaxe.coco_loss(logits, target, ctc_weight=1, **given), ctc)
    mixed = oaxe.coco_loss(logits, target, **given)
    torch.testing.assert_close(mixed, 0.1 * ctc + 0.9 * alone)
    torch.testing.assert_close(oaxe.coco_loss(logits, target, blank=BLANK), mixed.sum() / 6)


def test_the_order_of_the_target_does_not_matter() -> None:
    logits = torch.randn(1, 7, VOCAB, dtype=torch.float64)
    values = {
        oaxe.coco_loss(logits, torch.tensor([order]), blank=BLANK, ctc_weight=0).item()
        for order in permutations([0, 1, 2])
    }
    assert max(values) - min(values) < 1e-12


@pytest.mark.parametrize("rest", ["repeats", "blanks"])
@pytest.mark.parametrize(
    "shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 2, 3), (2, 1, 1)]
)
def test_empty_and_impossible_sentences(shape: tuple[int, int, int], rest: Rest) -> None:
    batch, length, words = shape
    hidden = torch.randn(batch, length, 6, requires_grad=True)
    target = torch.zeros(batch, words, dtype=torch.long)
    losses = oaxe.linear_coco_loss(
        hidden, torch.randn(VOCAB, 6), target, blank=BLANK, rest=rest, reduction="none"
    )
    assert losses.shape == (batch,)
    assert ((losses > 0) == (shape == (2, 1, 1))).all()
    assert torch.autograd.grad(losses.sum(), hidden)[0].isfinite().all()


def test_rejects_wrong_options() -> None:
    logits, target = torch.zeros(1, 4, VOCAB), torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="ctc_weight must be from 0 to 1, got 2"):
        oaxe.coco_loss(logits, target, blank=BLANK, ctc_weight=2)
    with pytest.raises(ValueError, match=r"rest must be one of .*, got 'words'"):
        oaxe.coco_loss(logits, target, blank=BLANK, rest="words")  # type: ignore[arg-type]
