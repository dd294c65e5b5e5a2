"""The Imputer's loss against all label sequences that agree with what is shown."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses.imputer import linear_imputer_loss
from tests.losses.test_ctc import BLANK, VOCAB, all_paths, example, gradient, scores_of

NOT_SHOWN = -100
ONE = torch.eye(VOCAB, dtype=torch.float64)  # makes logits of hidden states


def imputer_loss(logits: Tensor, target: Tensor, shown: Tensor, **options: Any) -> Tensor:
    return linear_imputer_loss(logits, ONE, target, shown, **options)


def by_brute_force(logits: Tensor, target: list[int], shown: list[int]) -> Tensor:
    paths = [
        path
        for path in all_paths(len(logits), target)
        if all(seen in (NOT_SHOWN, label) for seen, label in zip(shown, path, strict=True))
    ]
    return -scores_of(logits, paths).logsumexp(0)


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ([0, 1], [NOT_SHOWN, NOT_SHOWN, 1, NOT_SHOWN, NOT_SHOWN]),
        ([0, 1, 0], [NOT_SHOWN, 0, NOT_SHOWN, NOT_SHOWN, NOT_SHOWN]),  # the first or the second
        ([3, 3], [NOT_SHOWN, NOT_SHOWN, BLANK, NOT_SHOWN, NOT_SHOWN]),  # between, before or after
        ([3, 3], [3, NOT_SHOWN, NOT_SHOWN, NOT_SHOWN, BLANK]),
        ([1], [NOT_SHOWN, 1, NOT_SHOWN, 1, NOT_SHOWN]),
        ([], [NOT_SHOWN, BLANK, NOT_SHOWN, NOT_SHOWN, NOT_SHOWN]),
        ([0, 1, 3], [NOT_SHOWN] * 5),
    ],
)
def test_all_label_sequences_that_agree(target: list[int], shown: list[int]) -> None:
    logits, _ = example(2, 5, 2)
    words, seen = torch.tensor([target] * 2, dtype=torch.long), torch.tensor([shown] * 2)
    ours = imputer_loss(logits, words, seen, blank=BLANK, reduction="none")
    expected = torch.stack([by_brute_force(sentence, target, shown) for sentence in logits])
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        gradient(ours.sum(), logits), gradient(expected.sum(), logits), atol=1e-10, rtol=0
    )


def test_nothing_shown_is_ctc() -> None:
    logits, target = example(3, 7, 3)
    mask = torch.rand(3, 7) < 0.9
    ours = imputer_loss(logits, target, torch.full((3, 7), NOT_SHOWN), blank=BLANK, logit_mask=mask)
    theirs = oaxe.linear_ctc_loss(logits, ONE, target, blank=BLANK, logit_mask=mask)
    assert ours.item() == theirs.item()
    assert gradient(ours, logits).equal(gradient(theirs, logits))


def test_all_shown_is_the_cross_entropy_of_the_alignment() -> None:
    logits, target = example(3, 7, 3)
    mask = torch.tensor([[True] * 7, [True] * 6 + [False], [False] + [True] * 6])
    path = oaxe.ctc_best_path(logits, target, blank=BLANK, logit_mask=mask)
    assert (path == NOT_SHOWN).equal(~mask)
    ours = imputer_loss(logits, target, path, blank=BLANK, logit_mask=mask, reduction="sum")
    theirs = F.cross_entropy(logits.flatten(0, 1), path.flatten(), reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient(ours, logits), gradient(theirs, logits))


def test_labels_that_no_alignment_has_make_a_sentence_impossible() -> None:
    logits, _ = example(2, 3, 2)
    target = torch.tensor([[0, 1], [0, 1]])
    shown = torch.tensor([[3, NOT_SHOWN, NOT_SHOWN], [NOT_SHOWN, NOT_SHOWN, 0]])
    loss = imputer_loss(logits, target, shown, blank=BLANK, reduction="sum")
    assert loss.item() == 0
    assert not gradient(loss, logits).any()


def test_from_hidden_states() -> None:
    hidden = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, 5, dtype=torch.float64)
    target = torch.tensor([[0, 1, 3], [3, 3, NOT_SHOWN]])
    shown = torch.tensor([[NOT_SHOWN, 0, NOT_SHOWN, NOT_SHOWN, BLANK, 3], [3, BLANK] + [-100] * 4])
    mask = torch.tensor([[True] * 6, [True] * 5 + [False]])
    options: dict[str, Any] = {"blank": BLANK, "logit_mask": mask}
    ours = linear_imputer_loss(hidden, weight, target, shown, **options)
    theirs = imputer_loss(F.linear(hidden, weight), target, shown, **options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient(ours, hidden), gradient(theirs, hidden))


def test_rejects_labels_of_another_shape() -> None:
    logits, target = example(2, 4, 2)
    with pytest.raises(ValueError, match=r"shown must hold a label for each prediction, \(2, 4\)"):
        imputer_loss(logits, target, target, blank=BLANK)
