"""Losses that train a one-pass model with one position for each target word.

A criterion is a frozen dataclass: its fields are options of the YAML, calling it computes the loss
from hidden states. A new one is a file here and its name in CRITERIA. What systems with more
positions than words are trained for is in :mod:`oaxe.criteria.lattices`.
"""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from oaxe.criteria.axe import AXE
from oaxe.criteria.bag_of_ngrams import BagOfNgrams
from oaxe.criteria.ngram_oaxe import NgramOaXE
from oaxe.criteria.oaxe import OaXE
from oaxe.criteria.xe import XE
from oaxe.model.masking import Masking
from oaxe.model.statistics import Statistics

CRITERIA: dict[str, type[Any]] = {
    "xe": XE,
    "axe": AXE,
    "oaxe": OaXE,
    "bag_of_ngrams": BagOfNgrams,
    "ngram_oaxe": NgramOaXE,
}


class Criterion(Protocol):
    """What a criterion has besides its options."""

    inputs: ClassVar[Masking]  # what the decoder reads unless the configuration says otherwise
    has_blanks: ClassVar[bool]  # the model learns to predict BLANK, which decoding removes
    needs_order: ClassVar[bool]  # it learns words without their order: begin with XE

    def __call__(
        self, hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, **how: Any
    ) -> tuple[Tensor, Statistics]:
        """The summed loss of ``target (batch, length)``, and what else is worth a log line.

        Tokens without a loss are IGNORED, at any position; ``hidden`` has a position for each.
        ``how`` may have the ``capacity`` of the linear losses: no more positions are real. The call
        may be recorded as a CUDA graph: it must not wait for the device.
        """
