"""CMLM: the conditional masked language model, decoded in one pass, with a loss of your choice.

The model of Mask-Predict. It predicts the length of the target, then all words; the loss is one of
:data:`oaxe.criteria.CRITERIA`. With OaXE it is the system of the paper that this project is about.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from oaxe.criteria import CRITERIA, Criterion
from oaxe.criteria.xe import XE
from oaxe.losses import annealed_weight
from oaxe.model.masking import Masking, decoder_inputs
from oaxe.model.statistics import Statistics
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import log_likelihood, translate_lengths
from oaxe.search.options import MaskPredictDecoding
from oaxe.search.replay import Call, compute
from oaxe.support.config import Choice, choice, option
from oaxe.support.errors import UserError
from oaxe.systems import Example, LengthSystem, Paper, Progress
from oaxe.text.plans import Room

PAPER = Paper(
    "Order-Agnostic Cross Entropy for Non-Autoregressive Machine Translation",
    "https://proceedings.mlr.press/v139/du21c.html",
    {
        "distilled": {"wmt14-en-de": 26.1, "wmt14-de-en": 30.2},
        "raw": {"wmt14-en-de": 22.4, "wmt14-de-en": 26.8},
    },
)
LENGTH_MULTIPLIERS = (1.0, 1.05, 1.1, 1.2, 1.3)  # worth trying where there are blanks
MOST_TRUNCATED = 0.8  # of the words: with more, little is left to learn from


@dataclass(frozen=True)
class Options:
    loss: Choice = choice(CRITERIA, "xe", "training loss")
    label_smoothing: float = option(
        0.1, "weight of the uniform distribution in the target; AXE has none", below=1
    )
    inputs: Masking | None = option(
        None, "decoder inputs and the tokens that have a loss; null: as suits the loss"
    )
    length_weight: float = option(1.0, "weight of the length loss")
    xe_weight: float = option(0.0, "weight of XE that is kept beside another loss", at_most=1)
    annealing: bool = option(False, "start with XE and change to the loss by T_m of the paper")
    annealing_c: float = option(16.0, "c of T_m; above 1")
    annealing_lambda: float = option(
        0.95, "lambda of T_m: share of the training that has XE", at_most=1
    )

    def __post_init__(self) -> None:
        if not self.annealing_c > 1:
            raise UserError(f"annealing_c must be above 1, got {self.annealing_c}")
        if self.annealing and self.loss.name == "xe":
            raise UserError("annealing begins with XE: choose another loss than xe to change to")

    @property
    def needs_end(self) -> bool:
        return self.annealing


Decoding = MaskPredictDecoding


class Model(LengthSystem):
    log_likelihood = log_likelihood

    @property
    def criterion(self) -> Criterion:
        return self.options.loss.options

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs, wanted = decoder_inputs(target, self.options.inputs or self.criterion.inputs)
        return Example.of(source, inputs, wanted, target)

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(source + rows, target)  # LENGTH

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        words, statistics = self.word_loss(hidden, example.target, progress)
        lengths, of_lengths = self.length.loss(length_logits, example.length)
        statistics |= {"loss": (words, example.n_words), **of_lengths}
        return words + self.options.length_weight * lengths, statistics

    def word_loss(
        self, hidden: Tensor, target: Tensor, progress: Progress
    ) -> tuple[Tensor, Statistics]:
        given = hidden, self.transformer.output_weight, target, self.options.label_smoothing
        xe = partial(XE(), *given, capacity=self.transformer.capacity)
        if progress.phase == "xe":
            return xe()
        loss, statistics = self.criterion(*given, capacity=self.transformer.capacity)
        if kept := self.options.xe_weight:
            loss = kept * xe()[0] + (1 - kept) * loss
        if progress.phase == "both":
            c, lam = self.options.annealing_c, self.options.annealing_lambda
            t = (1 - c ** (progress.epoch - lam * progress.epochs)).clamp(min=0).float()
            loss = t * xe()[0] + (1 - t) * loss
            statistics["xe_weight"] = (t, t.new_ones(()))
        return loss, statistics

    def phase(self, epoch: float, epochs: float) -> Hashable:
        """XE alone, the loss alone, or both while one changes to the other."""
        if not self.options.annealing:
            return "loss"
        c, lam = self.options.annealing_c, self.options.annealing_lambda
        t = annealed_weight(epoch, epochs, c, lam)
        return {1.0: "xe", 0.0: "loss"}.get(t, "both")

    def advice(self, means: Mapping[str, float], *, from_scratch: bool) -> str:
        if not means and from_scratch and self.criterion.needs_order and not self.options.annealing:
            name = type(self.criterion).__name__
            return (
                f"{name} from random weights learns words, but not their order; begin with those "
                "of an XE run (train.init_from), or anneal XE into it (cmlm.annealing)"
            )
        truncated = means.get("truncated", 0.0)
        if truncated > MOST_TRUNCATED and "xe_weight" not in means:
            return (
                f"more than {MOST_TRUNCATED:.0%} of the words are truncated, so that little is "
                "left to learn from: the model is too unsure; train it longer with XE, or lower "
                "cmlm.loss.truncation"
            )
        return ""

    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        blanks = self.criterion.has_blanks
        return translate_lengths(self, source, **vars(decoding), remove_blanks=blanks, call=call)

    def choices(self, decoding: Decoding) -> Mapping[str, Sequence[float]]:
        more = {"length_multiplier": LENGTH_MULTIPLIERS} if self.criterion.has_blanks else {}
        return more | dict(super().choices(decoding))
