"""The losses as modules: options when they are made, tensors when they are called.

Class weights are a buffer, so that they move with the module to a device.
"""

from typing import Any

import torch
from torch import Tensor

from oaxe.losses.arguments import Reduction
from oaxe.losses.axe import axe_loss
from oaxe.losses.bag_of_ngrams import bag_of_ngrams_loss
from oaxe.losses.ctc import ctc_loss
from oaxe.losses.dag import dag_loss
from oaxe.losses.oaxe import Order, oaxe_loss
from oaxe.losses.xe import xe_loss


def named(**options: Any) -> dict[str, Any]:
    return options


def shown(self: torch.nn.Module) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in vars(self)["options"].items())


class XELoss(torch.nn.Module):
    """Module form of :func:`oaxe.xe_loss`, with its options.

    Example:
        >>> loss = XELoss(label_smoothing=0.1)
        >>> loss(torch.zeros(1, 2, 10), torch.tensor([[3, 4]]))
        tensor(2.3026)
    """

    weight: Tensor | None
    extra_repr = shown

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.options = named(
            ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """``logits (batch, length, vocab)``, ``target (batch, length)``."""
        return xe_loss(logits, target, weight=self.weight, **self.options)


class OaXELoss(torch.nn.Module):
    """Module form of :func:`oaxe.oaxe_loss`, with its options.

    Example:
        >>> loss = OaXELoss(truncation=0.15)
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> loss(logits, torch.tensor([[1, 0]]))
        tensor(0.1269)
        >>> _, order = loss(logits, torch.tensor([[1, 0]]), return_order=True)
        >>> order.target
        tensor([[0, 1]])
    """

    weight: Tensor | None
    extra_repr = shown

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        truncation: float = 0.0,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.options = named(
            truncation=truncation,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def forward(
        self, logits: Tensor, target: Tensor, *, return_order: bool = False
    ) -> Tensor | tuple[Tensor, Order]:
        """``logits (batch, length, vocab)``, ``target (batch, length)``."""
        options = self.options | {"weight": self.weight, "return_order": return_order}
        return oaxe_loss(logits, target, **options)


class AXELoss(torch.nn.Module):
    """Module form of :func:`oaxe.axe_loss`, with its options.

    Example:
        >>> loss = AXELoss(blank=3)
        >>> logits = torch.eye(4)[[3, 0, 1]].unsqueeze(0) * 9  # blank, 0, 1
        >>> loss(logits, torch.tensor([[0, 1]]))
        tensor(0.0006)
    """

    extra_repr = shown

    def __init__(
        self,
        *,
        blank: int,
        delta: float = 1.0,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.options = named(
            blank=blank, delta=delta, ignore_index=ignore_index, reduction=reduction
        )

    def forward(
        self, logits: Tensor, target: Tensor, *, logit_mask: Tensor | None = None
    ) -> Tensor:
        """``logits (batch, predictions, vocab)``, ``target (batch, targets)``, and a bool
        ``logit_mask (batch, predictions)``, True for predictions that take part."""
        return axe_loss(logits, target, logit_mask=logit_mask, **self.options)


class BagOfNgramsLoss(torch.nn.Module):
    """Module form of :func:`oaxe.bag_of_ngrams_loss`, with its options.

    Example:
        >>> loss = BagOfNgramsLoss(n=2)
        >>> logits = 9 * torch.eye(5)[[3, 0, 1, 2]].unsqueeze(0)  # 3, 0, 1, 2
        >>> loss(logits, torch.tensor([[0, 1, 2, 3]]))
        tensor(0.3340)
    """

    extra_repr = shown

    def __init__(
        self, *, n: int = 2, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.options = named(n=n, ignore_index=ignore_index, reduction=reduction)

    def forward(
        self, logits: Tensor, target: Tensor, *, logit_mask: Tensor | None = None
    ) -> Tensor:
        """The arguments are those of :class:`AXELoss`."""
        return bag_of_ngrams_loss(logits, target, logit_mask=logit_mask, **self.options)


class CTCLoss(torch.nn.Module):
    """Module form of :func:`oaxe.ctc_loss`, with its options: logits in, batch first.

    Example:
        >>> loss = CTCLoss(blank=2)
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> loss(logits, torch.tensor([[0, 1]]))
        tensor(0.0002)
    """

    extra_repr = shown

    def __init__(
        self,
        *,
        blank: int,
        ignore_index: int = -100,
        zero_infinity: bool = True,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.options = named(
            blank=blank, ignore_index=ignore_index, zero_infinity=zero_infinity, reduction=reduction
        )

    def forward(
        self, logits: Tensor, target: Tensor, *, logit_mask: Tensor | None = None
    ) -> Tensor:
        """The arguments are those of :class:`AXELoss`."""
        return ctc_loss(logits, target, logit_mask=logit_mask, **self.options)


class DAGLoss(torch.nn.Module):
    """Module form of :func:`oaxe.dag_loss`, with its options.

    Example:
        >>> loss = DAGLoss(reduction="sum")
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> loss(logits, links, torch.tensor([[0, 1]]))
        tensor(0.6936)
    """

    extra_repr = shown

    def __init__(
        self,
        *,
        ignore_index: int = -100,
        zero_infinity: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.options = named(
            ignore_index=ignore_index, zero_infinity=zero_infinity, reduction=reduction
        )

    def forward(
        self, logits: Tensor, links: Tensor, target: Tensor, *, logit_mask: Tensor | None = None
    ) -> Tensor:
        """``logits (batch, vertices, vocab)``, ``links (batch, vertices, vertices)``, ``target
        (batch, length)``, and a bool ``logit_mask (batch, vertices)``, True for the vertices that
        take part."""
        return dag_loss(logits, links, target, logit_mask=logit_mask, **self.options)
