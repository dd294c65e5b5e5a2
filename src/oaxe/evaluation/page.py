"""The report as a page in one file: tables, BLEU by length, and outputs side by side."""

from html import escape
from typing import Any

from oaxe.evaluation.decodings import decodings
from oaxe.evaluation.side_by_side import missing, repeats
from oaxe.evaluation.tables import Report, all_tables, signatures
from oaxe.support.html import page, paragraph, picture, svg, table
from oaxe.text.languages import unit, words

STYLE = """
.repeated { color: var(--red); font-weight: 700; text-decoration: underline double }
.missing { color: var(--amber); text-decoration: underline dotted }
.example { border-top: 1px solid var(--line); padding-top: .6rem; margin: 1.2rem 0 }
.example dl { display: grid; grid-template-columns: 8rem 1fr; gap: .2rem .8rem }
.example dt { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere }
.example dd { margin: 0; min-width: 0 }
@media (max-width: 30rem) { .example dl { display: block } .example dd { margin: 0 0 .4rem } }
"""
COLOURS = ("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5c946e", "#888888")
MARKERS = "soD^vP"


def report_page(report: Report) -> str:
    names = list(report["systems"])
    body = [
        paragraph(summary(report), "lead"),
        *(paragraph(note, "note") for note in report["notes"]),
        "<h2>Figures</h2>",
        *(table(*figures) for figures in all_tables(report)),
        *(paragraph(line, "soft") for line in decodings(report)),
        "<h2>BLEU by length</h2>",
        _by_length(report),
        examples_section(report),
        "<h2>How it was measured</h2>",
        *(paragraph(line, "soft") for line in _method(report)),
    ]
    return page(f"Evaluation of {', '.join(names)}", "\n".join(filter(None, body)), STYLE)


def summary(report: Report) -> str:
    """The result in a sentence."""
    systems = report["systems"]
    best = max(systems, key=lambda name: systems[name]["bleu"]["score"])
    text = f"{best}: BLEU {systems[best]['bleu']['score']:.1f}"
    if len(systems) == 1:
        return f"{text}, chrF {systems[best]['chrf']['score']:.1f}."
    baseline = report["baseline"]
    if test := systems[best]["significance"]:
        return (
            f"{text}, the best of {len(systems)}; {test['bleu']['difference']:.1f} above the "
            f"baseline {baseline} (p = {test['bleu']['p']:.4f})."
        )
    return f"{text}, the best of {len(systems)}: no other is above this baseline."


def _by_length(report: Report) -> str:
    figure, axes = picture()
    for number, (name, system) in enumerate(report["systems"].items()):
        points = [
            (place, bucket["bleu"])
            for place, bucket in enumerate(system["bleu_by_length"])
            if bucket["bleu"] is not None
        ]
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linewidth=2.4,
            label=_legend(name),
        )
    labels = [bucket["label"] for bucket in system["bleu_by_length"]]
    axes.set_xticks(range(len(labels)), labels)
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
    """Short enough for the picture; matplotlib hides "_name" and takes "$" for mathematics."""
    short = name if len(name) <= 32 else f"{name[:31]}…"
    return " " + short.replace("$", r"\$")


def examples_section(report: Report) -> str:
    """Outputs side by side, as HTML; it needs STYLE."""
    if not report["examples"]:
        return ""
    several = len(report["systems"]) > 1
    which = "whose chrF differs most between the systems" if several else "with the lowest chrF"
    legend = (
        f'<p class="soft">The sentences {which}. <span class="repeated">repeated</span>: the same '
        'as the word before. <span class="missing">missing</span>: in the nearest reference, but '
        "not, or not as often, in the output.</p>"
    )
    shown = "".join(_example(example, report["language"]) for example in report["examples"])
    return f"<h2>Side by side</h2>{legend}{shown}"


def _example(example: dict[str, Any], language: str) -> str:
    rows = []
    if example["source"] is not None:
        rows.append(("source", escape(example["source"])))
    rows += [("reference", escape(text)) for text in example["references"]]
    references = [words(text, language) for text in example["references"]]
    for name, output in example["outputs"].items():
        of_output = words(output, language)
        marked = _marked(of_output, " " if unit(language) == "words" else "")
        absent = " ".join(
            f'<span class="missing">{escape(word)}</span>'
            for word in min((missing(of_output, of) for of in references), key=len)
        )
        label = f"{name}, chrF {example['chrf'][name]:.1f}"
        rows.append((label, marked or "(nothing)"))
        if absent:
            rows.append(("missing", absent))
    entries = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{text}</dd>' for name, text in rows)
    line = paragraph(f"line {example['line']}", "soft")
    return f'<article class="example">{line}<dl>{entries}</dl></article>'


def _marked(output: list[str], space: str) -> str:
    return space.join(
        f'<span class="repeated">{escape(word)}</span>' if again else escape(word)
        for word, again in zip(output, repeats(output), strict=True)
    )


def _method(report: Report) -> list[str]:
    environment = report["environment"]
    files = [f"{name} (crc32 {sums['crc32']})" for name, sums in report["inputs"].items()]
    models = [
        f"{name}: {system['given']} (crc32 {system['model']['crc32']})"
        for name, system in report["systems"].items()
        if system["model"]
    ]
    return [
        *signatures(report),
        f"Repetition: {report['unit']} that equal the one before, of the output before "
        "de-duplication. NCM: mean negative log-probability of a place, under the model itself. "
        "Perplexity: of the de-duplicated output, under a language model.",
        "Files: " + ", ".join(files),
        *(["Models: " + ", ".join(models)] if models else []),
        f"oaxe {environment['oaxe']}, torch {environment['torch']}, {environment['device']}, "
        f"{environment['threads']} threads, {environment['time']}",
    ]
