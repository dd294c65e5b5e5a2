"""What systems with more positions than words are trained for: CTC, and graphs.

An objective is a criterion, see :mod:`oaxe.criteria`: options, and a call that returns the loss. It
is called as the ``linear_`` losses are, with hidden states, output embedding, the links of a graph
and the target; ``how`` has the mask of the positions and what else they take. Only likelihood
learns from random weights: the others have ``fine_tunes``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from oaxe.losses import (
    linear_coco_loss,
    linear_ctc_loss,
    linear_ctc_ngram_loss,
    linear_dag_loss,
    linear_dag_ngram_loss,
)
from oaxe.losses.coco import Rest
from oaxe.support.config import option
from oaxe.text.symbols import BLANK


@dataclass(frozen=True)
class CTCLikelihood:
    fine_tunes: ClassVar[bool] = False

    def __call__(self, hidden: Tensor, weight: Tensor, target: Tensor, **how: Any) -> Tensor:
        return linear_ctc_loss(hidden, weight, target, blank=BLANK, **how)


@dataclass(frozen=True)
class CTCNgrams:
    n: int = option(2, "words of an n-gram: 2, or 1 for the bag of words", at_least=1, at_most=2)

    fine_tunes: ClassVar[bool] = True

    def __call__(self, hidden: Tensor, weight: Tensor, target: Tensor, **how: Any) -> Tensor:
        return linear_ctc_ngram_loss(hidden, weight, target, blank=BLANK, n=self.n, **how)


@dataclass(frozen=True)
class CoCO:
    ctc_weight: float = option(0.1, "weight of CTC; that of OaXE is the rest of 1", at_most=1)
    rest: Rest = option("repeats", "what positions without a word of their own learn to say")

    fine_tunes: ClassVar[bool] = True

    def __call__(self, hidden: Tensor, weight: Tensor, target: Tensor, **how: Any) -> Tensor:
        how |= {"ctc_weight": self.ctc_weight, "rest": self.rest}
        return linear_coco_loss(hidden, weight, target, blank=BLANK, **how)


@dataclass(frozen=True)
class DAGLikelihood:
    fine_tunes: ClassVar[bool] = False

    def __call__(
        self, hidden: Tensor, weight: Tensor, links: Tensor, target: Tensor, **how: Any
    ) -> Tensor:
        return linear_dag_loss(hidden, weight, links, target, zero_infinity=True, **how)


@dataclass(frozen=True)
class DAGNgrams:
    n: int = option(2, "words of an n-gram", at_least=1, at_most=100)

    fine_tunes: ClassVar[bool] = True

    def __call__(
        self, hidden: Tensor, weight: Tensor, links: Tensor, target: Tensor, **how: Any
    ) -> Tensor:
        return linear_dag_ngram_loss(hidden, weight, links, target, n=self.n, **how)


CTC_OBJECTIVES: dict[str, type[Any]] = {
    "likelihood": CTCLikelihood,
    "ngrams": CTCNgrams,
    "coco": CoCO,
}
DAG_OBJECTIVES: dict[str, type[Any]] = {"likelihood": DAGLikelihood, "ngrams": DAGNgrams}
