"""OaXE of n-grams: the best order of phrases of n words, found by an exact matching."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from oaxe.losses.ngram_oaxe import linear_ngram_oaxe
from oaxe.model.masking import Masking
from oaxe.model.statistics import Statistics
from oaxe.support.config import option


@dataclass(frozen=True)
class NgramOaXE:
    n: int = option(2, "words that stay together; 1 is OaXE", at_least=1, at_most=100)
    truncation: float = option(
        0.0, "drop words whose probability is not above this; 0: none", below=1
    )

    inputs: ClassVar[Masking] = "unobserved"
    has_blanks: ClassVar[bool] = False
    needs_order: ClassVar[bool] = True

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        how |= {"n": self.n, "truncation": self.truncation, "label_smoothing": label_smoothing}
        found, targets = linear_ngram_oaxe(hidden, weight, target, **how)
        return found.losses.sum(), {"truncated": (found.truncated.sum(), targets.mask.sum())}
