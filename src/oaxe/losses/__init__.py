"""The loss library: torch, numpy and scipy are all it imports."""

from oaxe.losses.annealing import annealed_weight
from oaxe.losses.assignment import (
    NotFiniteError,
    assignment_backend,
    check_costs,
    linear_assignment,
)
from oaxe.losses.axe import axe_loss
from oaxe.losses.bag_of_ngrams import bag_of_ngrams_loss
from oaxe.losses.coco import coco_loss, linear_coco_loss
from oaxe.losses.ctc import ctc_best_path, ctc_loss
from oaxe.losses.dag import dag_best_path, dag_loss
from oaxe.losses.fused import (
    linear_axe_loss,
    linear_bag_of_ngrams_loss,
    linear_ctc_best_path,
    linear_ctc_loss,
    linear_dag_best_path,
    linear_dag_loss,
    linear_logsumexp,
    linear_oaxe_loss,
    linear_xe_loss,
)
from oaxe.losses.modules import AXELoss, BagOfNgramsLoss, CTCLoss, DAGLoss, OaXELoss, XELoss
from oaxe.losses.ngram_oaxe import linear_ngram_oaxe_loss, ngram_oaxe_loss
from oaxe.losses.ngrams import (
    ctc_ngram_loss,
    dag_ngram_loss,
    linear_ctc_ngram_loss,
    linear_dag_ngram_loss,
)
from oaxe.losses.oaxe import Order, best_order, oaxe_loss
from oaxe.losses.xe import xe_loss

__all__ = [
    "AXELoss",
    "BagOfNgramsLoss",
    "CTCLoss",
    "DAGLoss",
    "NotFiniteError",
    "OaXELoss",
    "Order",
    "XELoss",
    "annealed_weight",
    "assignment_backend",
    "axe_loss",
    "bag_of_ngrams_loss",
    "best_order",
    "check_costs",
    "coco_loss",
    "ctc_best_path",
    "ctc_loss",
    "ctc_ngram_loss",
    "dag_best_path",
    "dag_loss",
    "dag_ngram_loss",
    "linear_assignment",
    "linear_axe_loss",
    "linear_bag_of_ngrams_loss",
    "linear_coco_loss",
    "linear_ctc_best_path",
    "linear_ctc_loss",
    "linear_ctc_ngram_loss",
    "linear_dag_best_path",
    "linear_dag_loss",
    "linear_dag_ngram_loss",
    "linear_logsumexp",
    "linear_ngram_oaxe_loss",
    "linear_oaxe_loss",
    "linear_xe_loss",
    "ngram_oaxe_loss",
    "oaxe_loss",
    "xe_loss",
]
