"""Cross entropy: every word at its own position."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from oaxe.losses import linear_xe_loss
from oaxe.model.masking import Masking
from oaxe.model.statistics import Statistics


@dataclass(frozen=True)
class XE:
    inputs: ClassVar[Masking] = "partial-masks"
    has_blanks: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        how |= {"label_smoothing": label_smoothing, "reduction": "sum"}
        return linear_xe_loss(hidden, weight, target, **how), {}
