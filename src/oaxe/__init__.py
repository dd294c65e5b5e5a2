"""Order-agnostic cross entropy for non-autoregressive models, which predict all words in one pass.

Names are loaded when they are first used, so that ``oaxe --help`` need not wait for torch, and the
losses need nothing but torch, numpy and scipy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oaxe.decoding.translator import Translator
    from oaxe.losses import *  # the names in its __all__
    from oaxe.losses.plots import plot_alignment

__version__ = "0.2.0"
__all__ = [
    "AXELoss",
    "BagOfNgramsLoss",
    "CTCLoss",
    "DAGLoss",
    "NotFiniteError",
    "OaXELoss",
    "Order",
    "Translator",
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
    "plot_alignment",
    "xe_loss",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'oaxe' has no attribute {name!r}")
    elsewhere = {"plot_alignment": "oaxe.losses.plots", "Translator": "oaxe.decoding.translator"}
    try:
        home = import_module(elsewhere.get(name, "oaxe.losses"))
    except ModuleNotFoundError as error:
        from oaxe.support.extras import missing_extra

        if install := missing_extra(error):
            raise ImportError(f"oaxe.{name} needs {error.name}: {install}") from error
        raise
    return globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
