"""Order-agnostic cross entropy: the best order of the words, found by an exact matching."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oaxe.losses import linear_oaxe_loss
from oaxe.model.masking import IGNORED, Masking
from oaxe.model.statistics import Statistics
from oaxe.support.config import option


@dataclass(frozen=True)
class OaXE:
    truncation: float = option(
        0.0, "drop words whose probability is not above this; 0: none", below=1
    )

    inputs: ClassVar[Masking] = "unobserved"
    has_blanks: ClassVar[bool] = False
    needs_order: ClassVar[bool] = True

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        loss, order = linear_oaxe_loss(
            hidden,
            weight,
            target,
            truncation=self.truncation,
            label_smoothing=label_smoothing,
            reduction="sum",
            return_order=True,
            **how,
        )
        words = (target != IGNORED).sum()
        own = torch.arange(target.shape[1], device=target.device)
        moved = (order.positions - own).abs().sum()
        return loss, {"truncated": (order.truncated.sum(), words), "displacement": (moved, words)}
