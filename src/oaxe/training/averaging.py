"""Weights that average themselves: an exponential moving average, updated after every update.

    average <- weight + keep * (average - weight),   keep = min(decay, (1 + t) / (10 + t))

in update t. At first little is kept, so that the average does not stay near the random start; it
then covers about the last tenth of the training, and in the end the last 1 / (1 - decay) updates.
Training does not use the averages: they are for validation and for the models that are kept. Ranks
have the same weights, and so the same averages. Averages of finite weights are finite.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from oaxe.decoding.saved import check_weights
from oaxe.support.errors import UserError

GROUP = "averages"  # of tensors in a checkpoint


class Averages:
    """Averages of all parameters that are trained. Neither they nor the parameters ever move.

    Args:
        module: as it is now, which is where the averages begin.
        decay: what is kept of an average in an update, at most; below 1.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.decay = decay
        self.weights = [parameter.detach() for parameter in trained.values()]
        self.averages = [weight.clone() for weight in self.weights]
        self.names = list(trained)
        self._keep = torch.zeros((), device=self.weights[0].device)

    def prepare(self, t: int) -> None:
        """Set what is kept in update t, counted from 1: on the host, outside of any CUDA graph."""
        self._keep.fill_(min(self.decay, (1 + t) / (10 + t)))

    def update(self) -> None:
        """Take in the present weights: the same operations every time, for a CUDA graph as well.

        ``_foreach_lerp_`` would do for a number that is fixed; for a tensor it is not fused.
        """
        torch._foreach_sub_(self.averages, self.weights)
        torch._foreach_mul_(self.averages, self._keep)
        torch._foreach_add_(self.averages, self.weights)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The module has the averages for weights, at the same addresses; afterwards its own."""
        own = [weight.clone() for weight in self.weights]
        try:
            torch._foreach_copy_(self.weights, self.averages)
            yield
        finally:
            torch._foreach_copy_(self.weights, own)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""
        return dict(zip(self.names, self.averages, strict=True))

    def load(self, checkpoint: Mapping[str, Mapping[str, Tensor]], where: str) -> None:
        """Go on with the averages of a checkpoint; ``where`` names it in errors."""
        if GROUP not in checkpoint:
            raise UserError(
                f"{where} has no averages of the weights: its run began without train.ema; go on "
                "with train.ema=0, or choose another folder for `run`"
            )
        check_weights(self.tensors(), checkpoint[GROUP], f"{where} has averages of another model")
        for name, average in self.tensors().items():
            average.copy_(checkpoint[GROUP][name])


def averaged_weights(checkpoint: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of a checkpoint, averaged where it has averages."""
    return {**checkpoint["model"], **checkpoint.get(GROUP, {})}
