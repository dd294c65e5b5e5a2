"""Cross entropy: every word at its own position."""

from dataclasses import dataclass
from typing import ClassVar

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
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        label_smoothing: float,
        capacity: int | None = None,
    ) -> tuple[Tensor, Statistics]:
        loss = linear_xe_loss(
            hidden,
            linear_weight,
            target,
            label_smoothing=label_smoothing,
            reduction="sum",
            capacity=capacity,
        )
        return loss, {}
