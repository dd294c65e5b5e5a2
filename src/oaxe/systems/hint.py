"""Hints of a teacher: a one-pass model learns which states to keep apart and where to look.

Li et al., 2019. Beside XE on distilled text there are two losses, for which an autoregressive
teacher reads the target. Where its states of neighbouring words differ, the student's should, too:

    -log(1 - cos(h_t, h_{t+1}))  for each pair of neighbours, if the student's cosine is at least
                                 ``student_above`` and the teacher's at most ``teacher_below``

and its attention to the source is a target for the student's:

    -sum_s a'_ts log a_ts        for each word t; a' is the teacher's, a the student's attention

Both are of the last layer, attention as the mean of its heads; the paper has all layers, and all
pairs of positions. The teacher is not part of the finished model.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import at_least_float32
from oaxe.model.layers import Attention, DecoderLayer, Residual
from oaxe.model.masking import causal_inputs
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Transformer
from oaxe.search.one_pass import log_likelihood
from oaxe.search.options import LengthDecoding
from oaxe.support.config import option
from oaxe.support.errors import UserError
from oaxe.systems import Example, LengthSystem, Paper, Progress, System
from oaxe.text.symbols import PAD

PAPER = Paper(
    "Hint-Based Training for Non-Autoregressive Machine Translation",
    "https://aclanthology.org/D19-1573",
    {"distilled": {"wmt14-en-de": 21.1, "wmt14-de-en": 25.2}},
)
LEAST = 1e-4  # of 1 - cos: states that are all but equal have no direction to part in


@dataclass(frozen=True)
class Options:
    teacher: str | None = option(
        None, "folder of the run or model of an autoregressive teacher; needed for training"
    )
    states: float = option(1.0, "weight of the loss on the states of neighbouring words")
    attention: float = option(1.0, "weight of the loss on the attention to the source")
    student_above: float = option(0.1, "cosine from which the student's states are too alike")
    teacher_below: float = option(0.9, "cosine up to which the teacher's states differ", at_most=1)
    label_smoothing: float = option(0.1, "weight of the uniform distribution", below=1)
    length_weight: float = option(1.0, "weight of the length loss")


Decoding = LengthDecoding


class Model(LengthSystem):
    # It has no room: packed layers do not say where they look.
    log_likelihood = log_likelihood

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        self._teachers: list[System] = []  # one or none; in a list it is no part of the model

    def learn_from(self, teacher: System) -> None:
        if not (teacher.translates and teacher.transformer.causal):
            raise UserError(
                f"hint.teacher is a model of the system {teacher.name}; it must be autoregressive, "
                "such as transformer"
            )
        self._teachers = [teacher.eval().requires_grad_(False)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The teacher goes to the same device."""
        for teacher in self._teachers:
            teacher._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        with watched(self.transformer) as attention:
            hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        xe = self.transformer.cross_entropy(hidden, example.target, self.options.label_smoothing)
        lengths, of_lengths = self.length.loss(length_logits, example.length)
        statistics = {"loss": (xe, example.n_words), **of_lengths}
        loss = xe + self.options.length_weight * lengths
        for teacher in self._teachers:
            states, looks = self.hints(teacher.transformer, example, hidden, attention[0])
            loss = loss + self.options.states * states + self.options.attention * looks
            statistics |= {"alike": (states, example.n_words), "looks": (looks, example.n_words)}
        return loss, statistics

    def hints(
        self, teacher: Transformer, example: Example, hidden: Tensor, attention: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The summed losses on states and on attention; the student's has LENGTH in front."""
        mask = example.mask
        with torch.no_grad(), watched(teacher) as seen:
            # What the teacher has read when it predicts each word; it needs no EOS.
            inputs, _ = causal_inputs(example.target.where(mask, PAD))
            states = teacher.decode(inputs[:, :-1], mask, teacher.encode(example.source))
        options = self.options
        apart = too_alike(hidden, states, options.student_above, options.teacher_below)
        looks = cross_entropy(F.pad(seen[0], (1, 0)), attention)
        return apart.where(mask[:, 1:], 0).sum(), looks.where(mask, 0).sum()


def too_alike(student: Tensor, teacher: Tensor, above: float, below: float) -> Tensor:
    """``(batch, length - 1)``: -log(1 - cos) of neighbours, where it is due.

    Args:
        student, teacher: hidden states, ``(batch, length, dim)``.
        above, below: cosines; see :class:`Options`.
    """
    ours, theirs = (
        F.cosine_similarity(states[:, :-1], states[:, 1:], dim=2)
        for states in map(at_least_float32, (student, teacher))
    )
    due = (ours >= above) & (theirs <= below)
    return -(1 - ours).clamp(min=LEAST).log().where(due, 0)


def cross_entropy(teacher: Tensor, student: Tensor) -> Tensor:
    """``(batch, length)``, of attention ``(batch, length, keys)``; the entropy if it is equal."""
    return -(teacher * student.clamp(min=torch.finfo(student.dtype).tiny).log()).sum(2)


@contextmanager
def watched(transformer: Transformer) -> Iterator[list[Tensor]]:
    """Where the last layer looks in each pass: ``(batch, length, keys)``, the mean of its heads."""
    seen: list[Tensor] = []
    layer = transformer.decoder[-1]
    assert isinstance(layer, DecoderLayer)

    def look(residual: Residual, given: tuple[Tensor, Tensor, Tensor]) -> None:
        seen.append(weights(residual, *given).mean(1))

    handle = layer.source_attention.register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def weights(residual: Residual, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``(batch, heads, length, keys)``, given what the layer is: fused attention keeps none."""
    attention = residual.sublayer
    assert isinstance(attention, Attention)
    batch, _, _, heads, dim = source.shape
    read = residual.norm(x) if residual.pre else x
    query = attention.query(read).view(batch, -1, heads, dim).transpose(1, 2)
    key = source[:, :, 0].permute(0, 2, 3, 1)
    with torch.autocast(x.device.type, enabled=False):  # it would round to half precision
        scores = at_least_float32(query) @ at_least_float32(key) / math.sqrt(dim)
    hidden = ~mask.view(batch, 1, 1, -1)
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
