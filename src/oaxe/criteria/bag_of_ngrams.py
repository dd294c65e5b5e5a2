"""Bag of n-grams, together with cross entropy: n-grams count wherever they are."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from oaxe.criteria.xe import XE
from oaxe.losses import linear_bag_of_ngrams_loss
from oaxe.model.masking import IGNORED, Masking
from oaxe.model.statistics import Statistics
from oaxe.support.config import option


@dataclass(frozen=True)
class BagOfNgrams:
    n: int = option(2, "words of an n-gram", at_least=1, at_most=100)
    xe: float = option(
        0.1, "weight of XE, the rest is that of the n-grams; 0: only after XE", at_most=1
    )

    inputs: ClassVar[Masking] = "unobserved"
    has_blanks: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        own: dict[str, Any] = {"n": self.n, "logit_mask": target != IGNORED, "reduction": "sum"}
        missed = linear_bag_of_ngrams_loss(hidden, weight, target, **own, **how)
        xe, _ = XE()(hidden, weight, target, label_smoothing, **how)
        words = (target != IGNORED).sum()
        statistics = {"xe": (xe, words), "missed_ngrams": (missed, words)}
        return self.xe * xe + (1 - self.xe) * missed, statistics
