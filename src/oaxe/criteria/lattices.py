"""What systems with more positions than words are trained for: CTC, and graphs.

An objective is a criterion, see :mod:`oaxe.criteria`, that also gets the mask of the positions, and
for a graph the links between them. Only likelihood learns from random weights.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

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


class CTCObjective(Protocol):
    fine_tunes: ClassVar[bool]  # a model that likelihood has trained

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        """The summed loss of ``target (batch, words)``, of states ``(batch, positions, dim)``."""


class DAGObjective(Protocol):
    fine_tunes: ClassVar[bool]

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        links: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        """The same, with the ``links (batch, vertices, vertices)``."""


@dataclass(frozen=True)
class CTCLikelihood:
    fine_tunes: ClassVar[bool] = False

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        options: Any = {"logit_mask": mask, "reduction": "sum", "capacity": capacity}
        return linear_ctc_loss(hidden, linear_weight, target, blank=BLANK, **options)


@dataclass(frozen=True)
class CTCNgrams:
    n: int = option(2, "words of an n-gram: 2, or 1 for the bag of words", at_least=1, at_most=2)

    fine_tunes: ClassVar[bool] = True

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        options: Any = {"logit_mask": mask, "reduction": "sum", "capacity": capacity}
        return linear_ctc_ngram_loss(
            hidden, linear_weight, target, blank=BLANK, n=self.n, **options
        )


@dataclass(frozen=True)
class CoCO:
    ctc_weight: float = option(0.1, "weight of CTC; that of OaXE is the rest of 1", at_most=1)
    rest: Rest = option("repeats", "what positions without a word of their own learn to say")

    fine_tunes: ClassVar[bool] = True

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        options: Any = {"logit_mask": mask, "reduction": "sum", "capacity": capacity}
        options |= {"ctc_weight": self.ctc_weight, "rest": self.rest}
        return linear_coco_loss(hidden, linear_weight, target, blank=BLANK, **options)


@dataclass(frozen=True)
class DAGLikelihood:
    fine_tunes: ClassVar[bool] = False

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        links: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        options: Any = {"logit_mask": mask, "reduction": "sum", "capacity": capacity}
        return linear_dag_loss(hidden, linear_weight, links, target, zero_infinity=True, **options)


@dataclass(frozen=True)
class DAGNgrams:
    n: int = option(2, "words of an n-gram", at_least=1)

    fine_tunes: ClassVar[bool] = True

    def __call__(
        self,
        hidden: Tensor,
        linear_weight: Tensor,
        links: Tensor,
        target: Tensor,
        mask: Tensor,
        capacity: int | None,
    ) -> Tensor:
        options: Any = {"logit_mask": mask, "reduction": "sum", "capacity": capacity}
        return linear_dag_ngram_loss(hidden, linear_weight, links, target, n=self.n, **options)


CTC_OBJECTIVES: dict[str, type[Any]] = {
    "likelihood": CTCLikelihood,
    "ngrams": CTCNgrams,
    "coco": CoCO,
}
DAG_OBJECTIVES: dict[str, type[Any]] = {"likelihood": DAGLikelihood, "ngrams": DAGNgrams}
