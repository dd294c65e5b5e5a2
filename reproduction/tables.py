"""The paper's tables and figures as data: which experiments, which measure, which form.

Nothing that takes time is imported: `python -m reproduction --help` lists them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from reproduction.best import BEST
from reproduction.equal_terms import SYSTEMS, trials
from reproduction.experiment import AGAIN, RAW
from reproduction.experiments import (
    COMPARED,
    DECODED,
    EXPERIMENTS,
    LATTICES,
    MARGINS,
    SHARES,
    margin_name,
)
from reproduction.levers import BASE, LEVERS, NO_GLANCING

GOLD = "gold"  # in place of an experiment: the references themselves
BEYOND = "Beyond the paper"
BEST_ROW = "the best"  # in place of a row's name: the one with the highest BLEU


class Row(NamedTuple):
    """Without experiments it is a heading, or shows the paper's numbers alone."""

    label: str
    experiments: tuple[str, ...] = ()  # one for all columns, or one for each that asks for it
    baseline: str = ""  # the experiment that it is compared with
    x: float | None = None  # its position on the horizontal axis of the chart
    name: str = ""  # unless it is that of its first experiment
    chooses: bool = False  # its experiments are trials, of which validation chooses one

    @property
    def key(self) -> str:
        """Its name among the paper's numbers."""
        return self.name or (self.experiments[0] if self.experiments else self.label)

    def experiment(self, column: "Column") -> str | None:
        if len(self.experiments) == 1:
            return self.experiments[0]
        return self.experiments[column.number] if column.number < len(self.experiments) else None


class Column(NamedTuple):
    label: str
    measure: str  # of reproduction.results.MEASURES
    number: int = 0  # which of a row's experiments
    # The others are against the baseline: of the means, or over those seeds that both have.
    kind: Literal["value", "difference", "gain", "p"] = "value"
    is_minor: bool = False  # the paper's is shown only where its data set is ours
    against: str = ""  # the key of a row, or BEST_ROW, in place of the baseline


@dataclass(frozen=True)
class Table:
    about: str  # for --help
    paper: str  # where it is in the paper
    rows: tuple[Row, ...]
    columns: tuple[Column, ...] = (Column("BLEU", "bleu"),)
    # Of reproduction.layouts.
    form: Literal["scores", "lengths", "speed", "latency", "cases"] = "scores"
    # Which test sets: the data set's own, every one, those with one reference, those with several;
    # "valid" shows the validation set, as the paper does for its ablations.
    test_sets: Literal["test", "every", "single", "several", "valid"] = "test"
    axis: str = ""  # what x is, where there is a chart
    dataset: str = "multi30k-en-de"  # if none is named
    most_seeds: int = 1_000  # that are trained for it

    @property
    def experiments(self) -> list[str]:
        """What must be trained, the language model too where fluency is asked for."""
        found = [name for row in self.rows for name in row.experiments if name != GOLD]
        found += [row.baseline for row in self.rows if row.baseline]
        found = [name for name in found if not name.endswith(AGAIN)]
        lm = ["lm"] if any(column.measure == "perplexity" for column in self.columns) else []
        return list(dict.fromkeys([*found, *lm]))


def rows(*names: str, baseline: str = "") -> tuple[Row, ...]:
    return tuple(Row(EXPERIMENTS[name].label, (name,), baseline) for name in names)


def teachers(*names: str) -> tuple[Row, ...]:
    """Each as other tables have it, and as it was trained again for students to start from."""
    label = "{}, trained again"
    return tuple(
        row
        for name in names
        for row in (*rows(name), Row(label.format(EXPERIMENTS[name].label), (name + AGAIN,)))
    )


def ablation(
    about: str, paper: str, shown: tuple[Row, ...], *columns: Column, axis: str = ""
) -> Table:
    """On the validation set, as in the paper."""
    return Table(about, paper, shown, columns, test_sets="valid", axis=axis)


def raw_and_distilled(*names: str, baseline: str = "") -> tuple[Row, ...]:
    raw = rows(*(name + RAW for name in names), baseline=baseline and baseline + RAW)
    return (Row("Raw data"), *raw, Row("Distillation"), *rows(*names, baseline=baseline))


def compared_with(xe: str, axe: str) -> tuple[Column, ...]:
    """BLEU and what belongs to it; p against CMLM, as in the paper, and against these two."""
    return (
        Column("BLEU", "bleu"),
        Column("p", "bleu", kind="p", is_minor=True),
        Column("p against XE", "bleu", kind="p", is_minor=True, against=xe),
        Column("p against AXE", "bleu", kind="p", is_minor=True, against=axe),
        Column("brevity penalty", "brevity", is_minor=True),
        Column("BLEU without penalty", "unpenalised", is_minor=True),
        Column("repeats kept", "bleu_without", is_minor=True),
    )


def chosen(*names: str, raw: bool = False) -> tuple[Row, ...]:
    """Rows of systems on equal terms, each the best of its trials."""
    return tuple(
        Row(SYSTEMS[name].one.label, trials(name, raw), name=f"equal-{name}", chooses=True)
        for name in names
    )


def on_equal_terms(about: str, raw: bool) -> Table:
    names = [name for name, system in SYSTEMS.items() if system.has_raw or not raw]
    at = () if raw else rows("at-distilled")
    before = (*teachers("teacher", "student"), *at)
    return Table(about, BEYOND, (*before, *chosen(*names, raw=raw)), EQUAL)


def gain(label: str, name: str, better: str, baseline: str) -> Row:
    return Row(label, (better,), baseline, name=name)


VALID = Column("BLEU", "valid_bleu")
OAXE = ("cmlm", "oaxe-untruncated", "oaxe")
IN_RAW = (
    "ngrams", "flowseq", "crf", "imputer", "glat", "ctc", "xe", "xe-unobserved", "odd", "axe",
    "oaxe",
)  # fmt: skip
MORE = ("lanmt", "lanmt-refined", "dslp")  # not in the paper's tables
EQUAL = (
    Column("BLEU", "bleu"),
    Column("p against OaXE", "bleu", kind="p", against="equal-oaxe"),
    Column("p against the best", "bleu", kind="p", against=BEST_ROW),
    Column("brevity penalty", "brevity"),
    Column("BLEU without penalty", "unpenalised"),
    Column("chrF", "chrf"),
    Column("repeated words, %", "repetition"),
    Column("repeated subwords, %", "repetition_of_subwords"),
    Column("NCM", "ncm"),
    Column("million target tokens", "tokens"),
    Column("seconds of training", "seconds"),
    Column("one sentence, ms", "latency"),
    Column("sentences a second", "throughput"),
    Column("own lines of code", "lines"),
)

TABLES: dict[str, Table] = {
    "main": Table(
        "Translation with the teacher and with one-pass systems, trained on distilled data.",
        "Table 3",
        (
            *rows("teacher", "at-distilled"),
            *rows("ngrams", "hint", "flowseq", "crf", "em", "imputer", baseline="cmlm"),
            *rows("cmlm"),
            *rows("glat", "ctc", "xe", "xe-unobserved", "odd", "axe", "oaxe", baseline="cmlm"),
            Row(BEYOND),
            *rows("mask-predict", *MORE, "ddrs", baseline="cmlm"),
        ),
        compared_with("xe", "axe"),
        test_sets="single",
    ),
    "raw": Table(
        "The same, trained on raw data: no distillation.",
        "Table 4",
        (
            *rows("cmlm-raw"),
            *rows(*(name + RAW for name in IN_RAW), baseline="cmlm-raw"),
            Row(BEYOND),
            *rows(*(name + RAW for name in ("mask-predict", *MORE)), baseline="cmlm-raw"),
        ),
        compared_with("xe-raw", "axe-raw"),
        test_sets="single",
    ),
    "init": ablation(
        "XE annealing against XE pre-training, for XE, AXE and OaXE; OaXE with neither.",
        "Table 2",
        (
            Row("XE", ("xe-whole", "xe")),
            Row("AXE", ("axe-annealed", "axe")),
            Row("OaXE", ("oaxe-annealed", "oaxe", "oaxe-scratch")),
            Row("AXE, annealed at a steady rate", ("axe-annealed-steady", "axe")),
            Row("OaXE, annealed at a steady rate", ("oaxe-annealed-steady", "oaxe")),
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
                Row(
                    f"{p} %",
                    (f"cmlm-{p}-percent", f"oaxe-{p}-percent", f"oaxe-untruncated-{p}-percent"),
                    x=100 * share,
                )
                for p, share in SHARES.items()
            ),
            Row("100 %", ("cmlm", "oaxe", "oaxe-untruncated"), x=100.0),
        ),
        Column("XE alone", "valid_bleu"),
        Column("then OaXE", "valid_bleu", 1),
        Column("then OaXE, not truncated", "valid_bleu", 2),
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
        "Repeated tokens: words between spaces, and subwords as the model predicts them.",
        "Table 7",
        (Row("Gold test set", (GOLD,)), *raw_and_distilled(*OAXE), *rows("axe")),
        (
            Column("repeated, %", "repetition"),
            Column("subwords, %", "repetition_of_subwords", is_minor=True),
        ),
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
        "Outputs of CMLM and OaXE side by side.", "Table 9", rows("cmlm", "oaxe"), form="cases"
    ),
    "divergent": Table(
        "Japanese-English, whose word orders differ: teacher, CMLM and OaXE.",
        "Table 6",
        (*rows("teacher", "cmlm"), *rows("oaxe", baseline="cmlm")),
        (
            Column("BLEU", "bleu"),
            Column("p", "bleu", kind="p", is_minor=True),
            Column("brevity penalty", "brevity", is_minor=True),
            Column("repeats kept", "bleu_without", is_minor=True),
        ),
        dataset="tatoeba-ja-en",
    ),
    "lattice": Table(
        "One pass beside its teacher: CTC with glancing, and the DAG by decoder.",
        BEYOND,
        (
            *teachers("teacher"),
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
    "levers": Table(
        "What costs nothing when translating: one change of CTC with glancing after the other.",
        BEYOND,
        (*rows("teacher", BASE), *rows(NO_GLANCING, *LEVERS, baseline=BASE)),
        (
            Column("valid BLEU", "valid_bleu"),
            Column("BLEU", "bleu"),
            Column("p", "bleu", kind="p"),
            Column("brevity penalty", "brevity"),
            Column("repeated, %", "repetition"),
            Column("seconds of training", "seconds"),
        ),
    ),
    "claims": Table(
        "What OaXE gains over others, and what it loses to its teacher.",
        "Tables 3, 4 and 7",
        (
            Row("Distillation"),
            gain("OaXE over CMLM", "over-cmlm", "oaxe", "cmlm"),
            gain("OaXE over XE trained as long", "over-xe", "oaxe", "xe"),
            gain("OaXE over AXE", "over-axe", "oaxe", "axe"),
            gain("OaXE over the teacher", "over-teacher", "oaxe", "teacher"),
            gain("OaXE over Transformer + distillation", "over-at", "oaxe", "at-distilled"),
            Row("Raw data"),
            gain("OaXE over CMLM", "over-cmlm-raw", "oaxe-raw", "cmlm-raw"),
            gain("OaXE over XE trained as long", "over-xe-raw", "oaxe-raw", "xe-raw"),
            gain("OaXE over AXE", "over-axe-raw", "oaxe-raw", "axe-raw"),
            gain("OaXE over the teacher", "over-teacher-raw", "oaxe-raw", "teacher"),
        ),
        (
            Column("BLEU", "bleu", kind="gain"),
            Column("p", "bleu", kind="p", is_minor=True),
            Column("without brevity penalty", "unpenalised", kind="gain", is_minor=True),
            Column("repeats kept", "bleu_without", kind="gain", is_minor=True),
            Column("repeated words, %", "repetition", kind="gain"),
        ),
    ),
    "equal": on_equal_terms(
        "All systems on equal terms, trained on distilled data: docs/protocol.md.", raw=False
    ),
    "equal-raw": on_equal_terms("The same on raw data.", raw=True),
    "trials": Table(
        "What was tried for each system on equal terms, and what validation says of it.",
        BEYOND,
        (
            Row("Raw data"),
            *rows(*(t for name, s in SYSTEMS.items() if s.has_raw for t in trials(name, True))),
            Row("Distillation"),
            *rows(*(trial for name in SYSTEMS for trial in trials(name))),
        ),
        (VALID,),
        test_sets="valid",
        most_seeds=1,
    ),
    "best": Table(
        "OaXE at its best: one change after the other, on distilled data.",
        BEYOND,
        (*rows("teacher", "oaxe"), *rows(*BEST, baseline="oaxe")),
        (
            Column("valid BLEU", "valid_bleu"),
            Column("BLEU", "bleu"),
            Column("p against OaXE", "bleu", kind="p"),
            Column("brevity penalty", "brevity"),
            Column("BLEU without penalty", "unpenalised"),
            Column("repeated, %", "repetition"),
            Column("million target tokens", "tokens"),
        ),
        dataset="europarl-en-de",
        most_seeds=1,
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
            *("teacher", "teacher-greedy", "student", "student-greedy"),
            *("at-12-1", "at-12-1-greedy", "oaxe"),
            *(name for name in (*LATTICES, *DECODED) if name.startswith("ctc")),
            *(name for name in (*LATTICES, *DECODED) if name.startswith("dag")),
        ),
        (
            Column("BLEU", "bleu"),
            Column("chrF", "chrf"),
            Column("one sentence, ms", "latency"),
            Column("sentences a second", "throughput"),
        ),
        form="latency",
        most_seeds=1,
    ),
}
# Decoding is timed with trained models, not with stored outputs: their run folders are needed.
TIMED = ("teacher", "at-12-1", "oaxe")
# Tables that show speed beside quality, of the systems that have run folders.
TIMED_TOO = ("equal", "equal-raw", "latency")
# Trained for their own sake, at a price of their own.
NOT_IN_ALL = {"latency", "equal", "equal-raw", "trials", "levers", "best"}
