"""Model and loss as one module: what DDP wraps, and what a training step differentiates."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.losses import ctc_loss, linear_axe_loss, linear_oaxe_loss, linear_xe_loss
from oaxe.model.masking import IGNORED, Masking, causal_inputs, ctc_inputs, decoder_inputs
from oaxe.model.transformer import Transformer
from oaxe.text.symbols import BLANK, EOS, PAD

# What a step adds up besides the loss itself; all sums, divided when they are shown.
STATS = (
    "loss",  # of the words
    "words",  # that the loss counts
    "length_loss",
    "length_right",
    "sentences",
    "truncated",  # words that OaXE dropped
    "displacement",  # places between a word's own position and the one OaXE gave it
)


class Example(NamedTuple):
    """One batch, ready for the model; made before the step so that the words can be counted."""

    source: Tensor  # (batch, source_len)
    inputs: Tensor  # (batch, places): what the decoder sees
    mask: Tensor  # (batch, places) bool: True for real places
    target: Tensor  # (batch, targets): IGNORED where there is no loss
    length: Tensor  # (batch,): words of each target

    @property
    def n_words(self) -> Tensor:
        """How many words the loss counts; on the device."""
        return (self.target != IGNORED).sum()


def make_example(
    source: Tensor, target: Tensor, kind: str, objective: Masking, upsample: int
) -> Example:
    """Decoder input and loss target for a batch; random masks come from torch's own generator."""
    length = (target != PAD).sum(1)
    if kind == "lm":
        source = torch.full_like(source[:, :1], EOS)
    if kind in ("at", "lm"):
        inputs, wanted = causal_inputs(target)
    elif kind == "ctc":
        inputs, wanted = ctc_inputs(source, upsample), target.masked_fill(target == PAD, IGNORED)
    else:
        inputs, wanted = decoder_inputs(target, objective)
    return Example(source, inputs, inputs != PAD, wanted, length)


class Objective(nn.Module):
    """``forward`` returns the summed loss, and the sums of STATS without gradient."""

    def __init__(
        self,
        model: Transformer,
        *,
        loss: str,
        label_smoothing: float,
        truncation: float,
        delta: float,
        length_weight: float,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.label_smoothing = label_smoothing
        self.truncation = truncation
        self.delta = delta
        self.length_weight = length_weight

    def forward(self, example: Example, xe_weight: float) -> tuple[Tensor, Tensor]:
        source, inputs, mask, target, length = example
        encoded = self.model.encode(source)
        hidden = self.model.decode(inputs, mask, encoded)
        words, truncated, displacement = self.word_loss(hidden, target, mask, xe_weight)
        zero = words.new_zeros(())
        length_loss = length_right = zero
        if encoded.length_logits is not None:
            predicted = encoded.length_logits.float()
            length_loss = F.cross_entropy(predicted, length, reduction="sum")
            length_right = (predicted.argmax(-1) == length).sum()
        total = words + self.length_weight * length_loss
        sentences = zero + len(source)
        sums = (
            words,
            example.n_words,
            length_loss,
            length_right,
            sentences,
            truncated,
            displacement,
        )
        return total, torch.stack([value.detach().float() for value in sums])

    def word_loss(
        self, hidden: Tensor, target: Tensor, mask: Tensor, xe_weight: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The words' loss, and how many of them OaXE truncated, and how far it moved them."""
        truncated = displacement = hidden.new_zeros((), dtype=torch.float32)
        weight, smoothing = self.model.output_weight, self.label_smoothing
        if self.loss == "ctc":
            logits = self.model.logits(hidden)
            loss = ctc_loss(logits, target, blank=BLANK, logit_mask=mask, reduction="sum")
            return loss, truncated, displacement
        xe = loss = hidden.new_zeros((), dtype=torch.float32)
        if self.loss == "xe" or xe_weight > 0:
            xe = linear_xe_loss(hidden, weight, target, label_smoothing=smoothing, reduction="sum")
        if self.loss == "xe" or xe_weight == 1:
            return xe, truncated, displacement
        if self.loss == "axe":
            loss = linear_axe_loss(
                hidden, weight, target, blank=BLANK, delta=self.delta,
                logit_mask=target != IGNORED, reduction="sum",
            )  # fmt: skip
        else:
            loss, truncated, displacement = self.oaxe(hidden, target)
        return xe_weight * xe + (1 - xe_weight) * loss, truncated, displacement

    def oaxe(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, how many words were truncated, and how far they were moved."""
        loss, order = linear_oaxe_loss(
            hidden,
            self.model.output_weight,
            target,
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
            truncation=self.truncation,
            reduction="sum",
            return_order=True,
        )
        own = torch.arange(target.shape[1], device=target.device)
        return loss, order.truncated.sum(), (order.positions - own).abs().sum()
