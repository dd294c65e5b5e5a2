"""DDRS: CTC that learns from several references of each source, and to choose among them.

Diverse distillation with reference selection, of Shao et al. (2022). Several teachers translate the
training text (``data.references``). At first the loss is the mean of the CTC losses of all
references; it changes, over the run, to that of any of them, and then of the easiest one.

References of a source follow each other in its target, with EOS between them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oaxe.losses.references import linear_reference_losses, selected_losses
from oaxe.model.masking import IGNORED
from oaxe.model.statistics import Statistics
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, ctc
from oaxe.systems.ctc import Decoding as Decoding
from oaxe.text.symbols import BLANK, EOS

PAPER = Paper(
    "One Reference Is Not Enough: Diverse Distillation with Reference Selection for "
    "Non-Autoregressive Translation",
    "https://aclanthology.org/2022.naacl-main.277",
)


@dataclass(frozen=True)
class Options(ctc.Upsampling):
    references: int = option(
        3, "most references of a source, that of data.folder included", at_least=1, at_most=100
    )

    @property
    def needs_end(self) -> bool:
        return self.references > 1


class Model(ctc.Model):
    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        losses = linear_reference_losses(
            hidden,
            self.transformer.output_weight,
            split(example.target, self.options.references),
            blank=BLANK,
            logit_mask=example.mask,
            capacity=self.transformer.capacity,
        )
        number = 1 + (example.target == EOS).sum(1)
        # The trainer divides by the words of all references, of which a sentence learns once.
        loss = (number * selected_losses(losses, progress.share)).sum()
        impossible = (losses == torch.inf).all(1) & (example.length != IGNORED)
        statistics = {
            "loss": (loss, example.n_words),
            "impossible": (impossible.sum(), example.n_sentences),
        }
        return loss, statistics


def split(target: Tensor, n: int) -> Tensor:
    """``(batch, n, targets)``: the references of ``target (batch, targets)``, IGNORED elsewhere.

    Example:
        >>> split(torch.tensor([[8, 9, EOS, 7, IGNORED]]), 2)
        tensor([[[   8,    9, -100, -100, -100],
                 [-100, -100, -100,    7, -100]]])
    """
    ends = target == EOS
    number = ends.cumsum(1)  # of the reference that a token belongs to
    each = torch.arange(n, device=target.device).view(1, n, 1)
    return target.unsqueeze(1).masked_fill(
        (number.unsqueeze(1) != each) | ends.unsqueeze(1), IGNORED
    )
