"""Options of decoding that several systems share; without torch, for models that do without it."""

from dataclasses import dataclass

from oaxe.search.hypothesis import length_penalty
from oaxe.support.config import option


@dataclass(frozen=True)
class LengthDecoding:
    """Of systems that predict the length first, and then all words in one pass."""

    length_candidates: int = option(5, "lengths tried for each sentence; 1 is fastest", at_least=1)
    deduplicate: bool = option(True, "collapse equal neighbours")
    length_penalty: float = length_penalty()
    length_share: float = option(
        0.0, "leave out lengths of less than this share of the likeliest's probability", at_most=1
    )

    def __str__(self) -> str:
        lengths = f"{self.length_candidates} length" + "s" * (self.length_candidates > 1)
        if self.length_share and self.length_candidates > 1:
            lengths = f"up to {lengths}, from {self.length_share:g} of the likeliest"
        repeats = "repeats removed" if self.deduplicate else "repeats kept"
        steps = getattr(self, "refine_steps", 1)
        passes = f", {steps} passes" * (steps > 1)
        penalty = f", length penalty {self.length_penalty:g}" * (self.length_penalty != 1)
        return f"{lengths}, {repeats}{passes}{penalty}"


@dataclass(frozen=True)
class MaskPredictDecoding(LengthDecoding):
    """Of those that can predict the least likely words anew."""

    refine_steps: int = option(1, "passes of the decoder; above 1 is mask-predict", at_least=1)
