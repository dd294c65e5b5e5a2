"""Gradients of all parameters, added up over the batches of an update and over ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oaxe.model.statistics import Statistics
from oaxe.systems import Example, Progress, System
from oaxe.training.ranks import Ranks

# Their parameters are what autocast would convert, one by one and again for every batch.
CONVERTED = (nn.Linear, nn.Embedding)


class Gradients:
    """Leaves them in ``grad`` of each parameter, in float32.

    On a GPU they never move, so that CUDA graphs can write to them. In half precision the system
    there reads copies of its weights, which are made once an update.

    Args:
        system: its parameters must not move, either.
        half: compute in bfloat16.
        copies: False: autocast converts weights as they are needed, which layers that are compiled
            or computed again rely on.
    """

    def __init__(self, system: System, *, half: bool, copies: bool) -> None:
        self.system, self.half = system, half
        self.parameters = [*system.parameters()]
        self.device = self.parameters[0].device
        self._fixed = self.device.type == "cuda"
        self._copies: dict[str, Tensor] = {}  # of parameters, by their names
        self._copied: list[Tensor] = []
        if half and copies and self._fixed:
            self._copied = [system.get_parameter(name).detach() for name in converted(system)]
            halves = (weight.to(torch.bfloat16).requires_grad_() for weight in self._copied)
            self._copies = dict(zip(converted(system), halves, strict=True))
        self._leaves = [self._copies.get(name, p) for name, p in system.named_parameters()]
        self._sums, self._ones = (  # of the update, of one batch
            [torch.zeros_like(p) for p in self.parameters] if self._fixed else [] for _ in range(2)
        )

    def compute(
        self, example: Example, progress: Progress, scale: Tensor, *, first: bool
    ) -> tuple[Tensor, Statistics]:
        """Add those of the example's loss, times a scale, to what there is, or begin with them."""
        if first:
            self._read_weights()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            if self._copies:
                loss, statistics = functional_call(self.system, self._copies, (example, progress))
            else:
                loss, statistics = self.system(example, progress)
        found = torch.autograd.grad(loss * scale, self._leaves, allow_unused=True)
        (self._add_in_place if self._fixed else self._add)(found, first)
        return loss.detach(), statistics

    def add_up(self, ranks: Ranks) -> None:
        """Over all ranks, once all batches of the update are computed."""
        if ranks.world_size > 1:
            found = [p.grad for p in self.parameters if p.grad is not None]
            together = ranks.add_up(torch.cat([gradient.flatten() for gradient in found]))
            parts = torch.split(together, [gradient.numel() for gradient in found])
            torch._foreach_copy_(
                found, [part.view_as(own) for part, own in zip(parts, found, strict=True)]
            )

    def _read_weights(self) -> None:
        if self._copies:
            halves = [half.detach() for half in self._copies.values()]
            torch._foreach_copy_(halves, self._copied)

    def _add(self, found: Sequence[Tensor | None], first: bool) -> None:
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if first or parameter.grad is None:
                parameter.grad = gradient
            elif gradient is not None:
                parameter.grad += gradient

    def _add_in_place(self, found: Sequence[Tensor | None], first: bool) -> None:
        """In a few kernels for all; what no loss depends on has no gradient."""
        used = [i for i, gradient in enumerate(found) if gradient is not None]
        into = self._sums if first else self._ones
        for dtype in {gradient.dtype for gradient in found if gradient is not None}:
            # One dtype at a time, as these are fused.
            pairs = [
                (into[i], g) for i, g in enumerate(found) if g is not None and g.dtype == dtype
            ]
            torch._foreach_copy_([piece for piece, _ in pairs], [gradient for _, gradient in pairs])
        if not first:
            torch._foreach_add_([self._sums[i] for i in used], [self._ones[i] for i in used])
        for i, parameter in enumerate(self.parameters):
            if i in used:
                parameter.grad = self._sums[i]
            elif first and parameter.grad is not None:
                parameter.grad.zero_()  # it had one in another phase


def converted(system: System) -> list[str]:
    """Names of the parameters that half precision converts."""
    return [
        f"{prefix}.{name}"
        for prefix, module in system.named_modules()
        if isinstance(module, CONVERTED)
        for name, _ in module.named_parameters(recurse=False)
    ]
