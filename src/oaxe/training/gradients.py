"""Gradients of all parameters, added up over the batches of an update and over ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oaxe.model.statistics import Statistics
from oaxe.support.devices import half_precision
from oaxe.systems import Example, Progress, System
from oaxe.training.ranks import Ranks

# Autocast would convert the parameters of these one by one, and again for every batch.
CONVERTED = (nn.Linear, nn.Embedding)


class Gradients:
    """Computes gradients and leaves them in ``grad`` of each parameter, in float32.

    On a GPU they never move, so that CUDA graphs can write to them. In half precision the system
    there reads copies of its weights, which are made once an update.

    Args:
        system: its parameters must not move, either.
        half: compute in bfloat16.
        copies: False: autocast converts weights as they are needed, which compiled layers rely on.
    """

    def __init__(self, system: System, *, half: bool, copies: bool) -> None:
        trained = {name: p for name, p in system.named_parameters() if p.requires_grad}
        self.parameters = [*trained.values()]
        self.device = self.parameters[0].device
        self._fixed = self.device.type == "cuda"
        self._copies: dict[str, Tensor] = {}  # of parameters, by their names
        self._copied: list[Tensor] = []
        if half and copies and self._fixed:
            self._copies = {
                name: parameter.detach().to(torch.bfloat16).requires_grad_(parameter.requires_grad)
                for name, parameter in system.named_parameters()  # each once, also if it is tied
                if any(parameter is other for other in converted(system))
            }
            self._copied = [system.get_parameter(name).detach() for name in self._copies]
        self._leaves = [self._copies.get(name, p) for name, p in trained.items()]
        self._whole = _Differentiated(system, self._leaves, half)
        self._sums: list[Tensor] = []  # of the update
        self._ones: list[Tensor] = []  # of one batch, if there are several

    def compute(
        self, example: Example, progress: Progress, scale: Tensor, *, first: bool
    ) -> tuple[Tensor, Statistics]:
        """Add the gradients of the example's loss, times a scale; set them if it is the first."""
        if first:
            self._read_weights()
        copies = {f"system.{name}": copy for name, copy in self._copies.items()}
        given = example, progress, scale
        loss, statistics, found = (
            functional_call(self._whole, copies, given) if copies else self._whole(*given)
        )
        (self._add_in_place if self._fixed else self._add)(found, first)
        return loss.detach(), statistics

    def add_up(self, ranks: Ranks) -> None:
        """Sum the gradients over all ranks, once all batches of the update are computed."""
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
        """Add all gradients in a few kernels; parameters that no loss depends on have none."""
        used = [i for i, gradient in enumerate(found) if gradient is not None]
        self._sums = self._sums or [torch.zeros_like(p) for p in self.parameters]
        if not first:
            self._ones = self._ones or [torch.zeros_like(p) for p in self.parameters]
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


class _Differentiated(nn.Module):
    """Loss and gradients in one call: recomputed layers must see the same weights."""

    def __init__(self, system: System, leaves: Sequence[Tensor], half: bool) -> None:
        super().__init__()
        self.system, self.bf16 = system, half
        self.leaves = tuple(leaves)

    def forward(
        self, example: Example, progress: Progress, scale: Tensor
    ) -> tuple[Tensor, Statistics, tuple[Tensor | None, ...]]:
        device = scale.device.type
        with half_precision(device, self.bf16):
            loss, statistics = self.system(example, progress)
        with half_precision(device, self.bf16 and device == "cpu"):  # autocast: forward alone
            found = torch.autograd.grad(loss * scale, self.leaves, allow_unused=True)
        return loss, statistics, found


def converted(system: System) -> list[nn.Parameter]:
    """The parameters that half precision converts."""
    modules = (module for module in system.modules() if isinstance(module, CONVERTED))
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]
