"""The loss library: torch, numpy and scipy are all it imports."""

from oaxe.losses.annealing import annealed_weight
from oaxe.losses.assignment import NotFiniteError, assignment_backend, linear_assignment
from oaxe.losses.axe import axe_loss
from oaxe.losses.ctc import ctc_loss
from oaxe.losses.oaxe import best_order, oaxe_loss
from oaxe.losses.xe import xe_loss

__all__ = [
    "NotFiniteError",
    "annealed_weight",
    "assignment_backend",
    "axe_loss",
    "best_order",
    "ctc_loss",
    "linear_assignment",
    "oaxe_loss",
    "xe_loss",
]
