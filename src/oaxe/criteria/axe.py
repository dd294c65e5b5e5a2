"""Aligned cross entropy: the best monotone alignment of words and positions, with blanks."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from oaxe.losses import linear_axe_loss
from oaxe.model.masking import IGNORED, Masking
from oaxe.model.statistics import Statistics
from oaxe.support.config import option
from oaxe.text.symbols import BLANK


@dataclass(frozen=True)
class AXE:
    delta: float = option(1.0, "penalty factor of a target word that is skipped")

    inputs: ClassVar[Masking] = "unobserved"
    has_blanks: ClassVar[bool] = True
    needs_order: ClassVar[bool] = False

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        how |= {"delta": self.delta, "logit_mask": target != IGNORED, "reduction": "sum"}
        return linear_axe_loss(hidden, weight, target, blank=BLANK, **how), {}
