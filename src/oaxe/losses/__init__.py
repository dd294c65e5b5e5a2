"""The loss library: torch, numpy and scipy are all it imports.

Each loss is there twice: of logits, and of the hidden states and the output embedding that would
make them, where the logits are never stored whole.

    xe_loss(F.linear(hidden, embedding), target)  # tokens x vocab numbers, several times over
    linear_xe_loss(hidden, embedding, target)     # a chunk of them at a time

Arguments are named as in ``F.linear_cross_entropy`` (torch 2.13): ``input (batch, length, dim)``,
``linear_weight (vocab, dim)`` and ``linear_bias (vocab,)`` in place of ``logits (batch, length,
vocab)``; ``weight (vocab,)`` holds class weights. The other arguments and the results are the same.
Under autocast the layer is cast as in F.linear. There is no second derivative.

``capacity`` is the most positions of the batch that take part, if that is known: no others are
multiplied with the vocabulary, and without it all are. It pays where much is padding. If more take
part after all, the loss is NaN.
"""

from oaxe.losses.annealing import annealed_weight
from oaxe.losses.assignment import (
    NotFiniteError,
    assignment_backend,
    check_costs,
    linear_assignment,
)
from oaxe.losses.axe import axe_loss, linear_axe_loss
from oaxe.losses.bag_of_ngrams import bag_of_ngrams_loss, linear_bag_of_ngrams_loss
from oaxe.losses.coco import coco_loss, linear_coco_loss
from oaxe.losses.ctc import ctc_best_path, ctc_loss, linear_ctc_best_path, linear_ctc_loss
from oaxe.losses.dag import dag_best_path, dag_loss, linear_dag_best_path, linear_dag_loss
from oaxe.losses.linear_softmax import linear_logsumexp
from oaxe.losses.modules import AXELoss, BagOfNgramsLoss, CTCLoss, DAGLoss, OaXELoss, XELoss
from oaxe.losses.ngram_oaxe import linear_ngram_oaxe_loss, ngram_oaxe_loss
from oaxe.losses.ngrams import (
    ctc_ngram_loss,
    dag_ngram_loss,
    linear_ctc_ngram_loss,
    linear_dag_ngram_loss,
)
from oaxe.losses.oaxe import Order, best_order, linear_oaxe_loss, oaxe_loss
from oaxe.losses.xe import linear_xe_loss, xe_loss

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
