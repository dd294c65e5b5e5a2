"""The numbers that the paper reports, as it prints them. Nothing here is measured by us.

Du, Tu and Jiang, "Order-Agnostic Cross Entropy for Non-Autoregressive Machine Translation", ICML
2021. Its figures 4 to 7 have no numbers but those that its text names.
"""

from collections.abc import Mapping
from typing import NamedTuple

Values = tuple[float | None, ...]


class Reported(NamedTuple):
    """The numbers of one table: by our column, then by row, a value for each data set."""

    datasets: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Values]]
    note: str = ""


def minus(ours: Values, theirs: Values) -> Values:
    """Differences of numbers that the paper prints.

    Example:
        >>> minus((26.1, 30.2), (18.3, None))
        (7.8, None)
    """
    pairs = zip(ours, theirs, strict=True)
    return tuple(None if None in (a, b) else round(a - b, 2) for a, b in pairs)  # type: ignore[operator]


WMT14 = ("wmt14-en-de", "wmt14-de-en")

PAPER: dict[str, Reported] = {
    "main": Reported(
        (*WMT14, "wmt16-en-ro", "wmt16-ro-en", "wmt17-en-zh", "wmt17-zh-en"),
        {
            "BLEU": {
                "teacher": (27.6, 31.4, 34.3, 34.0, 34.3, 23.7),
                "at-distilled": (27.8, 31.3, None, None, 34.4, 24.0),
                "ngrams": (20.9, 24.6, 28.3, 29.3, None, None),
                "hint": (21.1, 25.2, None, None, None, None),
                "flowseq": (21.5, 26.2, 29.3, 30.4, None, None),
                "crf": (23.4, 27.2, None, None, None, None),
                "em": (24.5, 27.9, None, None, None, None),
                "glat": (25.2, 29.8, 31.2, 32.0, None, None),
                "imputer": (25.8, 28.4, 32.3, 31.7, None, None),
                "cmlm": (18.3, 22.0, 27.6, 28.6, 23.6, 13.5),
                "axe": (23.5, 27.9, 30.8, 31.5, 30.9, 19.8),
                "oaxe": (26.1, 30.2, 32.4, 33.3, 32.9, 22.1),
            },
            "repeats kept": {"oaxe": (25.8, 30.1, 32.2, 33.1, 32.9, 22.5)},
        },
        "The paper's gains over CMLM are significant, p < 0.01. Its AXE is that of Ghazvininejad "
        "et al.; BLEU is sacreBLEU's on En-Zh alone.",
    ),
    "raw": Reported(
        WMT14,
        {
            "BLEU": {
                "ctc-raw": (17.7, 19.8),
                "flowseq-raw": (18.6, 23.4),
                "imputer-raw": (15.6, None),
                "cmlm-raw": (10.6, 15.1),
                "axe-raw": (20.4, 24.9),
                "oaxe-raw": (22.4, 26.8),
            }
        },
    ),
    "init": Reported(
        WMT14,
        {
            "XE annealing": {
                "xe-whole": (18.6, 23.0),
                "axe-annealed": (23.1, 28.0),
                "oaxe-annealed": (23.8, 28.9),
            },
            "XE pre-training": {
                "xe-whole": (18.9, 23.9),
                "axe-annealed": (23.2, 28.1),
                "oaxe-annealed": (24.1, 29.4),
            },
            "neither": {"oaxe-annealed": (0.0, None)},
        },
        "The text says that OaXE alone has 0 BLEU; it names no data set.",
    ),
    "truncation": Reported(
        WMT14[:1],
        {"BLEU": {"oaxe": (24.1,)}},
        "The paper's text: 0.6 BLEU are gained from 0 to 0.15, and lost again above.",
    ),
    "pretraining": Reported(
        WMT14[:1],
        {
            "XE alone": {"cmlm-3-percent": (9.0,), "cmlm-33-percent": (15.8,)},
            "then OaXE": {
                "cmlm-3-percent": (18.5,), "cmlm-33-percent": (23.4,), "cmlm": (24.1,),
            },
        },
        "The paper's points are 10K, 100K and 300K updates.",
    ),
    "masking": Reported(
        WMT14,
        {
            "BLEU": {
                "oaxe": (24.1, 29.4),
                "oaxe-partial-all": (24.0, 29.1),
                "oaxe-partial-masks": (24.0, 29.0),
            }
        },
    ),
    "multiref": Reported(
        WMT14[:1],
        {
            "single": {
                "cmlm-raw": (11.0,), "oaxe-raw": (22.7,), "cmlm": (18.6,), "oaxe": (26.2,),
            },
            "Δ single": {"oaxe-raw": (11.7,), "oaxe": (7.6,)},
            "multiple": {
                "cmlm-raw": (28.1,), "oaxe-raw": (57.5,), "cmlm": (50.7,), "oaxe": (68.0,),
            },
            "Δ multiple": {"oaxe-raw": (29.4,), "oaxe": (17.3,)},
        },
        "The paper's are of 500 sentences of newstest2014 with ten references (Ott et al., 2018).",
    ),
    "divergent": Reported(
        ("wat17-ja-en",),
        {"BLEU": {"teacher": (28.5,), "cmlm": (20.9,), "oaxe": (28.4,)}},
    ),
    "repetition": Reported(
        WMT14,
        {
            "repeated, %": {
                "gold": (0.04, 0.02),
                "cmlm-raw": (22.80, 22.70),
                "oaxe-untruncated-raw": (1.70, 1.39),
                "oaxe-raw": (1.57, 1.67),
                "cmlm": (16.72, 12.31),
                "oaxe-untruncated": (0.90, 0.88),
                "oaxe": (0.81, 0.73),
                "axe": (1.41, 1.03),
            }
        },
    ),
    "ncm": Reported(
        WMT14,
        {
            "NCM": {
                "cmlm-raw": (1.30, 0.64),
                "oaxe-untruncated-raw": (1.00, 0.55),
                "oaxe-raw": (0.33, 0.29),
                "cmlm": (0.55, 0.47),
                "oaxe-untruncated": (0.30, 0.27),
                "oaxe": (0.19, 0.19),
            }
        },
    ),
    "fluency": Reported(
        WMT14,
        {
            "perplexity": {
                "gold": (37.0, 43.8),
                "cmlm-raw": (511.6, 351.8),
                "oaxe-untruncated-raw": (146.9, 120.1),
                "oaxe-raw": (123.1, 105.4),
                "cmlm": (205.6, 177.6),
                "oaxe-untruncated": (82.6, 83.7),
                "oaxe": (69.4, 77.2),
            }
        },
        "The paper's language models are trained on News Crawl, ours on the target side of the "
        "training data: only differences between rows can be compared.",
    ),
}  # fmt: skip

MAIN, ON_RAW = (PAPER[name].columns["BLEU"] for name in ("main", "raw"))
REPEATED = PAPER["repetition"].columns["repeated, %"]
PAPER["claims"] = Reported(
    WMT14,
    {
        "BLEU": {
            "over-cmlm": minus(MAIN["oaxe"][:2], MAIN["cmlm"][:2]),
            "over-axe": minus(MAIN["oaxe"][:2], MAIN["axe"][:2]),
            "over-teacher": minus(MAIN["oaxe"][:2], MAIN["teacher"][:2]),
            "over-at": minus(MAIN["oaxe"][:2], MAIN["at-distilled"][:2]),
            "over-cmlm-raw": minus(ON_RAW["oaxe-raw"], ON_RAW["cmlm-raw"]),
            "over-axe-raw": minus(ON_RAW["oaxe-raw"], ON_RAW["axe-raw"]),
            "over-teacher-raw": minus(ON_RAW["oaxe-raw"], MAIN["teacher"][:2]),
        },
        "repeated words, %": {
            "over-cmlm": minus(REPEATED["oaxe"], REPEATED["cmlm"]),
            "over-axe": minus(REPEATED["oaxe"], REPEATED["axe"]),
            "over-cmlm-raw": minus(REPEATED["oaxe-raw"], REPEATED["cmlm-raw"]),
        },
    },
    "The paper's differences are of the numbers that it prints. Gains are means over those seeds "
    "that both have.",
)

TIMES_XE = 1.36  # section 2.2: an update with OaXE against one with XE
