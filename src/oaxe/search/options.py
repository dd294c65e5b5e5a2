"""Options of decoding that several systems share; without torch, for models that do without it."""

from dataclasses import dataclass
from typing import Any, Literal

from oaxe.search.hypothesis import length_penalty
from oaxe.support.config import option
from oaxe.support.errors import UserError

Repeats = Literal["merge", "forbid", "keep"]
DAGMethod = Literal["viterbi", "beam", "samples", "lookahead", "greedy"]


@dataclass(frozen=True)
class LengthDecoding:
    """Of systems that predict the length first, and then all words in one pass."""

    length_candidates: int = option(
        5, "lengths tried for each sentence; 1 is fastest", at_least=1, at_most=1_000
    )
    repeats: Repeats = option(
        "merge",
        "equal neighbours: merge them into one, forbid them (the likeliest words that have none, "
        "of the same length), or keep them",
    )
    length_penalty: float = length_penalty()
    length_share: float = option(
        0.0, "leave out lengths of less than this share of the likeliest's probability", at_most=1
    )

    def __str__(self) -> str:
        lengths = f"{self.length_candidates} length" + "s" * (self.length_candidates > 1)
        if self.length_share and self.length_candidates > 1:
            lengths = f"up to {lengths}, from {self.length_share:g} of the likeliest"
        factor = getattr(self, "length_multiplier", 1.0)
        lengths += f" times {factor:g}" * (factor != 1)
        repeats = {"merge": "removed", "forbid": "forbidden", "keep": "kept"}[self.repeats]
        steps = getattr(self, "refine_steps", 1)
        passes = f", {steps} passes" * (steps > 1)
        penalty = f", length penalty {self.length_penalty:g}" * (self.length_penalty != 1)
        merged = ", compared without them" * getattr(self, "score_merged", False)
        return f"{lengths}, repeats {repeats}{merged}{passes}{penalty}"


@dataclass(frozen=True)
class MaskPredictDecoding(LengthDecoding):
    """Of those that can predict the least likely words anew."""

    refine_steps: int = option(
        1, "passes of the decoder; above 1 is mask-predict", at_least=1, at_most=1_000
    )
    length_multiplier: float = option(
        1.0, "predicted lengths times this: room for blanks, with AXE", at_least=0.1, at_most=10
    )
    score_merged: bool = option(
        False, "compare lengths by their words without repeats, rather than by all positions"
    )

    def __post_init__(self) -> None:
        if self.repeats == "forbid" and self.refine_steps > 1:
            raise UserError(
                "repeats: forbid chooses all words together, mask-predict some of them; "
                f"refine_steps must be 1, got {self.refine_steps}"
            )


def lm() -> Any:
    """An option of decoders that search with a language model; and its weight."""
    return option(None, "folder of n-grams, by `oaxe ngrams`, that method beam asks")


def lm_weight() -> Any:
    return option(0.3, "weight of their log-probability in the score of a translation")


@dataclass(frozen=True)
class CTCDecoding:
    """Of systems whose positions may be blank."""

    method: Literal["greedy", "beam", "samples"] = option(
        "greedy", "the likeliest label of each position, or text (beam), or that of samples"
    )
    bonus: float = option(0.0, "log-probability added to words, over blanks: longer translations")
    beam: int = option(20, "prefixes that method beam follows", at_least=1, at_most=1_000)
    top_words: int = option(
        10, "words of a position that method beam looks at", at_least=1, at_most=1_000
    )
    lm: str | None = lm()
    lm_weight: float = lm_weight()
    samples: int = option(32, "translations that method samples draws", at_least=1, at_most=1_000)
    temperature: float = option(0.7, "how random they are", at_least=0.01, at_most=2)

    def __str__(self) -> str:
        words = f" of {self.top_words} words a position" * (self.top_words != 10)
        fluency = f", n-grams by {self.lm_weight:g}" * (self.lm is not None)
        beam = f"beam {self.beam} over all alignments{words}{fluency}"
        drawn = f"consensus of {self.samples} samples, temperature {self.temperature:g}"
        how = {"greedy": "repeats and blanks removed", "beam": beam, "samples": drawn}[self.method]
        return how + f", bonus {self.bonus:g}" * (self.bonus != 0 and self.method != "samples")


@dataclass(frozen=True)
class DAGDecoding:
    """Of systems whose words are on the paths of a graph."""

    method: DAGMethod = option(
        "viterbi", "the best path, or text (beam), or that of samples; or step by step"
    )
    length_penalty: float = length_penalty()
    beam: int = option(20, "prefixes that method beam follows", at_least=1, at_most=1_000)
    top_words: int = option(
        5, "words of a vertex that method beam looks at", at_least=1, at_most=1_000
    )
    lm: str | None = lm()
    lm_weight: float = lm_weight()
    samples: int = option(32, "translations that method samples draws", at_least=1, at_most=1_000)
    temperature: float = option(0.7, "how random they are", at_least=0.01, at_most=2)

    def __str__(self) -> str:
        penalty = f", length penalty {self.length_penalty:g}" * (self.length_penalty != 1)
        words = f" of {self.top_words} words a vertex" * (self.top_words != 5)
        fluency = f", n-grams by {self.lm_weight:g}" * (self.lm is not None)
        return {
            "beam": f"beam {self.beam} over all paths{words}{penalty}{fluency}",
            "viterbi": f"joint Viterbi{penalty}",
            "samples": f"consensus of {self.samples} samples, temperature {self.temperature:g}",
            "lookahead": "lookahead, repeats removed",
            "greedy": "greedy, repeats removed",
        }[self.method]
