"""Model and loss as one module: what DDP wraps, and what a training step differentiates."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.losses import axe_loss, ctc_loss, xe_loss
from oaxe.losses.oaxe import best_places, order_losses
from oaxe.model.inputs import IGNORED, Masking, causal_inputs, ctc_inputs, decoder_inputs
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
        logits = self.model.logits(self.model.decode(inputs, mask, encoded))
        words, truncated, displacement = self.word_loss(logits, target, mask, xe_weight)
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
        self, logits: Tensor, target: Tensor, mask: Tensor, xe_weight: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The words' loss, and how many of them OaXE truncated, and how far it moved them."""
        zero = logits.new_zeros((), dtype=torch.float32)
        smoothing = self.label_smoothing
        if self.loss == "ctc":
            loss = ctc_loss(logits, target, blank=BLANK, logit_mask=mask, reduction="sum")
            return loss, zero, zero
        if self.loss == "xe" or xe_weight == 1:
            loss = xe_loss(logits, target, label_smoothing=smoothing, reduction="sum")
            return loss, zero, zero
        counts = target != IGNORED
        truncated = displacement = zero
        if self.loss == "axe":
            loss = axe_loss(
                logits, target, blank=BLANK, delta=self.delta, logit_mask=counts, reduction="sum"
            )
        else:
            places = best_places(logits, target, counts)
            losses = order_losses(logits, target, counts, places, self.truncation, smoothing)
            loss = losses.sum()
            truncated = (counts & (losses == 0)).sum()
            own = torch.arange(places.shape[1], device=places.device)
            displacement = (places - own).abs().sum()
        if xe_weight > 0:
            xe = xe_loss(logits, target, label_smoothing=smoothing, reduction="sum")
            loss = xe_weight * xe + (1 - xe_weight) * loss
        return loss, truncated, displacement
