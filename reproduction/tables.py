"""The paper's tables and figures as data: which experiments, which measure, which form.

Nothing that takes time is imported: `python -m reproduction --help` lists them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from reproduction.experiments import (
    AGAIN,
    COMPARED,
    DECODED,
    EXPERIMENTS,
    LATTICES,
    MARGINS,
    RAW,
    SHARES,
    margin_name,
)

GOLD = "gold"  # in place of an experiment: the references themselves
BEYOND = "Beyond the paper"


class Row(NamedTuple):
    """Without experiments it is a heading, or shows the paper's numbers alone."""

    label: str
    experiments: tuple[str, ...] = ()  # one for all columns, or one for each that asks for it
    baseline: str = ""  # the experiment that it is compared with
    x: float | None = None  # its position on the horizontal axis of the chart

    @property
    def key(self) -> str:
        """Its name among the paper's numbers."""
        return self.experiments[0] if self.experiments else self.label

    def experiment(self, column: "Column") -> str | None:
        if len(self.experiments) == 1:
            return self.experiments[0]
        return self.experiments[column.number] if column.number < len(self.experiments) else None


class Column(NamedTuple):
    label: str
    measure: str  # of reproduction.results.MEASURES
    number: int = 0  # which of a row's experiments
    kind: Literal["value", "difference", "p"] = "value"  # the latter two: against the baseline
    is_minor: bool = False  # the paper's is shown only where its data set is ours


@dataclass(frozen=True)
class Table:
    about: str  # for --help
    paper: str  # where it is in the paper
    rows: tuple[Row, ...]
    columns: tuple[Column, ...] = (Column("BLEU", "bleu"),)
    form: Literal["scores", "lengths", "speed", "latency", "cases"] = (
        "scores"  # of reproduction.layouts
    )
    # Which test sets: the data set's own, every one, those with one reference, those with several;
    # "valid" shows the validation set, as the paper does for its ablations.
    test_sets: Literal["test", "every", "single", "several", "valid"] = "test"
    axis: str = ""  # what x is, where there is a chart
    dataset: str = "multi30k-en-de"  # if none is named

    @property
    def experiments(self) -> list[str]:
        """What must be trained, the language model too where fluency is asked for."""
        named = [name for row in self.rows for name in row.experiments if name != GOLD]
        found = [name for name in named if not name.endswith(AGAIN)]
        lm = ["lm"] if any(column.measure == "perplexity" for column in self.columns) else []
        return list(dict.fromkeys([*found, *lm]))


def rows(*names: str, baseline: str = "") -> tuple[Row, ...]:
    return tuple(Row(EXPERIMENTS[name].label, (name,), baseline) for name in names)


def ablation(
    about: str, paper: str, shown: tuple[Row, ...], *columns: Column, axis: str = ""
) -> Table:
    """On the validation set, as in the paper."""
    return Table(about, paper, shown, columns, test_sets="valid", axis=axis)


def raw_and_distilled(*names: str, baseline: str = "") -> tuple[Row, ...]:
    raw = rows(*(name + RAW for name in names), baseline=baseline and baseline + RAW)
    return (Row("Raw data"), *raw, Row("Distillation"), *rows(*names, baseline=baseline))


VALID = Column("BLEU", "valid_bleu")
BLEU = (
    Column("BLEU", "bleu"),
    Column("p", "bleu", kind="p", is_minor=True),
    Column("brevity penalty", "brevity", is_minor=True),
    Column("repeats kept", "bleu_without", is_minor=True),
)
OAXE = ("cmlm", "oaxe-untruncated", "oaxe")

TABLES: dict[str, Table] = {
    "main": Table(
        "Translation with the teacher and with one-pass systems, trained on distilled data.",
        "Table 3",
        (
            *rows("teacher"),
            Row("Transformer + distillation"),
            *rows("ngrams", "hint", "flowseq", "crf", "em", "imputer", baseline="cmlm"),
            *rows("cmlm"),
            *rows("glat", "ctc", "xe", "odd", "axe", "oaxe", baseline="cmlm"),
        ),
        BLEU,
        test_sets="single",
    ),
    "raw": Table(
        "The same, trained on raw data: no distillation.",
        "Table 4",
        (
            *rows("cmlm-raw"),
            *rows(
                *(
                    name + RAW
                    for name in (
                        *("ngrams", "flowseq", "crf", "imputer", "glat", "ctc", "xe", "odd"),
                        *("axe", "oaxe"),
                    )
                ),
                baseline="cmlm-raw",
            ),
        ),
        BLEU,
        test_sets="single",
    ),
    "init": ablation(
        "XE annealing against XE pre-training, for XE, AXE and OaXE; OaXE with neither.",
        "Table 2",
        (
            Row("XE", ("xe-whole", "xe")),
            Row("AXE", ("axe-annealed", "axe")),
            Row("OaXE", ("oaxe-annealed", "oaxe", "oaxe-scratch")),
        ),
        Column("XE annealing", "valid_bleu"),
        Column("XE pre-training", "valid_bleu", 1),
        Column("neither", "valid_bleu", 2),
    ),
    "truncation": ablation(
        "The truncation margin, from 0 to 0.30.",
        "Figure 4",
        tuple(Row(f"{margin:.2f}", (margin_name(margin),), x=margin) for margin in MARGINS),
        VALID,
        axis="truncation margin",
    ),
    "pretraining": ablation(
        "OaXE after fewer updates of XE.",
        "Figure 6",
        (
            *(
                Row(f"{p} %", (f"cmlm-{p}-percent", f"oaxe-{p}-percent"), x=100 * share)
                for p, share in SHARES.items()
            ),
            Row("100 %", ("cmlm", "oaxe"), x=100.0),
        ),
        Column("XE alone", "valid_bleu"),
        Column("then OaXE", "valid_bleu", 1),
        axis="updates of XE, % of those of CMLM",
    ),
    "masking": ablation(
        "Three kinds of decoder input for OaXE: unobserved, partial-all, partial-masks.",
        "Table 11",
        (
            Row("unobserved, all tokens", ("oaxe",)),
            Row("partially observed, all tokens", ("oaxe-partial-all",)),
            Row("partially observed, only masks", ("oaxe-partial-masks",)),
        ),
        VALID,
    ),
    "multiref": Table(
        "BLEU with one reference and with several.",
        "Table 5",
        raw_and_distilled("cmlm", "oaxe", baseline="cmlm"),
        (
            Column("single", "single_bleu"),
            Column("Δ single", "single_bleu", kind="difference"),
            Column("multiple", "bleu"),
            Column("Δ multiple", "bleu", kind="difference"),
        ),
        test_sets="several",
    ),
    "lengths": Table(
        "BLEU by length of the reference, for CMLM, AXE and OaXE.",
        "Figures 5 and 7",
        raw_and_distilled("cmlm", "axe", "oaxe"),
        form="lengths",
        test_sets="every",
    ),
    "repetition": Table(
        "Repeated tokens.",
        "Table 7",
        (Row("Gold test set", (GOLD,)), *raw_and_distilled(*OAXE), *rows("axe")),
        (Column("repeated, %", "repetition"),),
    ),
    "ncm": Table(
        "Normalised corpus-level multimodality: the uncertainty of the models.",
        "Table 8",
        raw_and_distilled(*OAXE),
        (Column("NCM", "ncm"),),
    ),
    "fluency": Table(
        "Perplexity of the outputs under a language model of the target side.",
        "Table 10",
        (Row("Gold test set", (GOLD,)), *raw_and_distilled(*OAXE)),
        (Column("perplexity", "perplexity"),),
    ),
    "cases": Table(
        "Outputs of CMLM and OaXE side by side.",
        "Table 9",
        rows("cmlm", "oaxe"),
        form="cases",
    ),
    "divergent": Table(
        "Japanese-English, whose word orders differ: teacher, CMLM and OaXE.",
        "Table 6",
        (*rows("teacher", "cmlm"), *rows("oaxe", baseline="cmlm")),
        BLEU,
        dataset="tatoeba-ja-en",
    ),
    "lattice": Table(
        "One pass at the quality of its teacher: CTC with glancing, and the DAG by decoder.",
        BEYOND,
        (
            *rows("teacher"),
            Row("Transformer, trained again for these students", ("teacher" + AGAIN,)),
            Row("Raw data"),
            *rows("oaxe-raw"),
            *rows(*(name + RAW for name in (*LATTICES, *DECODED)), baseline="oaxe-raw"),
            Row("Distillation"),
            *rows("oaxe"),
            *rows(*LATTICES, *DECODED, baseline="oaxe"),
        ),
        (
            Column("BLEU", "bleu"),
            Column("p against OaXE", "bleu", kind="p"),
            Column("chrF", "chrf"),
            Column("brevity penalty", "brevity"),
            Column("repeated, %", "repetition"),
        ),
    ),
    "speed": Table(
        "Training against XE; decoding against the teacher with a beam and a 12-1 Transformer.",
        "Section 2.2",
        (*rows("teacher", "at-12-1"), *rows(*COMPARED)),
        form="speed",
    ),
    "latency": Table(
        "Quality against latency: autoregressive and one-pass systems, by decoder.",
        BEYOND,
        rows(
            *("teacher", "teacher-greedy", "at-12-1", "at-12-1-greedy", "oaxe"),
            *(name for name in (*LATTICES, *DECODED) if name.startswith("ctc")),
            *(name for name in (*LATTICES, *DECODED) if name.startswith("dag")),
        ),
        form="latency",
    ),
}
# Decoding is timed with trained models, not with stored outputs: their run folders are needed.
TIMED = ("teacher", "at-12-1", "oaxe")
