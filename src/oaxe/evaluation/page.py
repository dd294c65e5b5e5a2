"""The report as a page in one file: tables, BLEU by length, and outputs side by side."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from oaxe.evaluation.examples import missing
from oaxe.evaluation.models import decodings
from oaxe.evaluation.repetition import repeats
from oaxe.evaluation.tables import Report, all_tables, signatures
from oaxe.support.html import picture, render, svg
from oaxe.text.languages import joined, words

COLOURS = ("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5c946e", "#888888")
MARKERS = "soD^vP"


def report_page(report: Report) -> str:
    return render(
        "evaluation.html",
        title=f"Evaluation of {', '.join(report['systems'])}",
        report=report,
        summary=summary(report),
        tables=all_tables(report),
        decodings=decodings(report),
        chart=Markup(_by_length(report)),
        signatures=signatures(report),
        **_examples(report),
    )


def examples_section(report: Report) -> str:
    """Outputs side by side, as HTML for the body of a page."""
    return render("examples.html", **_examples(report))


def summary(report: Report) -> str:
    """The result in a sentence."""
    entries = report["systems"]
    best = max(entries, key=lambda name: entries[name]["bleu"]["score"])
    text = f"{best}: BLEU {entries[best]['bleu']['score']:.1f}"
    if len(entries) == 1:
        return f"{text}, chrF {entries[best]['chrf']['score']:.1f}."
    if test := entries[best]["significance"]:
        return (
            f"{text}, the best of {len(entries)}; {test['bleu']['difference']:.1f} above the "
            f"baseline {report['baseline']} (p = {test['bleu']['p']:.4f})."
        )
    return f"{text}, the best of {len(entries)}: no other is above this baseline."


def _by_length(report: Report) -> str:
    figure, axes = picture()
    for number, (name, entry) in enumerate(report["systems"].items()):
        buckets = entry["bleu_by_length"]
        points = [(x, b["bleu"]) for x, b in enumerate(buckets) if b["bleu"] is not None]
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linewidth=2.4,
            label=_legend(name),
        )
    axes.set_xticks(range(len(buckets)), [bucket["label"] for bucket in buckets])
    axes.set_xlabel(f"{report['unit']} of the reference")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    columns = 2 if max(map(len, report["systems"])) <= 16 else 1
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.01), ncols=columns, frameon=False, fontsize=12
    )
    return svg(figure, "BLEU by length of the reference")


def _legend(name: str) -> str:
    """A short name for the chart; matplotlib hides "_name" and takes "$" for mathematics."""
    short = name if len(name) <= 32 else f"{name[:31]}…"
    return " " + short.replace("$", r"\$")


def _examples(report: Report) -> dict[str, Any]:
    """What the template of the examples shows."""
    language = report["language"]
    return {
        "several": len(report["systems"]) > 1,
        "examples": [(e["line"], _rows(e, language)) for e in report["examples"]],
        "space": joined(["", ""], language),
    }


def _rows(example: Mapping[str, Any], language: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Labels, each with its words and their marks; a text without marks is one word."""
    source = [] if example["source"] is None else [("source", example["source"])]
    texts = source + [("reference", text) for text in example["references"]]
    rows = [(label, [(text, "")]) for label, text in texts]
    references = [words(text, language) for text in example["references"]]
    for name, text in example["outputs"].items():
        output = words(text, language)
        marks = ["repeated" if again else "" for again in repeats(output)]
        label = f"{name}, chrF {example['chrf'][name]:.1f}"
        rows.append((label, list(zip(output, marks, strict=True))))
        if absent := min((missing(output, reference) for reference in references), key=len):
            rows.append(("missing", [(word, "missing") for word in absent]))
    return rows
