"""The figures of a report as tables, the same in the terminal and on the page."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oaxe.evaluation.decodings import decodings
from oaxe.support.tables import NOTHING, Figures

Report = Mapping[str, Any]  # scores.json
GOLD = "(gold)"


def all_tables(report: Report) -> list[Figures]:
    """Those that have something to say."""
    tables = [scores(report), behind(report), by_length(report)]
    return tables + ([speed(report)] if any(of(report, "speed")) else [])


def show(report: Report, console: Console) -> None:
    for figures in all_tables(report):
        console.print(Text(figures.title, style="bold"))
        table = Table()
        for column, name in enumerate(figures.head):
            table.add_column(name, justify="right" if column else "left")
        for row in figures.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    for line in (*decodings(report), *signatures(report), *report["notes"]):
        console.print(Text(line), soft_wrap=True)


def signatures(report: Report) -> list[str]:
    """What is needed to compare the figures with others."""
    first = next(iter(report["systems"].values()))
    lines = [
        f"{name}: {first[key]['signature']}" for key, name in (("bleu", "BLEU"), ("chrf", "chrF"))
    ]
    for system in report["systems"].values():
        if test := system["significance"]:
            lines.append(f"p: {test['test']}, {test['bleu']['signature']}")
            break
    return lines


def scores(report: Report) -> Figures:
    """BLEU and chrF, and whether the difference to the baseline is more than chance."""
    several = len(report["systems"]) > 1
    single = any(of(report, "single_reference_bleu"))
    head = ["system", "BLEU", *["p"] * several, "chrF", *["p"] * several]
    rows = []
    for name, system in report["systems"].items():
        test = system["significance"]
        row = [name]
        for key in ("bleu", "chrf"):
            row.append(f"{system[key]['score']:.2f}")
            if several:
                row.append(f"{test[key]['p']:.4f}" if test else "baseline")
        if single:
            row.append(f"{system['single_reference_bleu']['mean']:.2f}")
        rows.append(row)
    fewest, most = report["gold"]["references"]
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    title = f"{report['sentences']:,} sentences, {number} reference{'s' * (most > 1)} each"
    return Figures(title, [*head, *["BLEU, mean over single references"] * single], rows)


def behind(report: Report) -> Figures:
    """What may be behind the scores: repetition, confidence, fluency."""
    rows = []
    for name, system in [*report["systems"].items(), (GOLD, report["gold"])]:
        both, fluency = system.get("deduplication", {}), system["fluency"] or {}
        figures = [
            (system["repetition"], 2),
            (system.get("repetition_of_subwords"), 2),
            (both.get("bleu_without"), 2),
            (both.get("bleu_with"), 2),
            (system.get("ncm"), 3),
            (fluency.get("perplexity"), 1),
        ]
        rows.append([name, *(number(value, digits) for value, digits in figures)])
    head = ["system", f"repeated {report['unit']}, %", "repeated subwords, %"]
    head += ["BLEU, repeats kept", "BLEU, repeats removed", "NCM"]
    head += [f"perplexity a {report['unit'].removesuffix('s')}"]
    told = [i for i in range(len(head)) if any(row[i] != NOTHING for row in rows)]
    return Figures(
        "Behind the scores", [head[i] for i in told], [[row[i] for i in told] for row in rows]
    )


def by_length(report: Report) -> Figures:
    first, *_ = of(report, "bleu_by_length")
    rows = [["sentences", *(f"{bucket['sentences']:,}" for bucket in first)]]
    for name, system in report["systems"].items():
        rows.append([name, *(number(bucket["bleu"], 2) for bucket in system["bleu_by_length"])])
    title = f"BLEU by length of the reference, in {report['unit']}"
    return Figures(title, ["system", *(bucket["label"] for bucket in first)], rows)


def speed(report: Report) -> Figures:
    rows = []
    for name, system in report["systems"].items():
        if found := system["speed"]:
            latency, times = found["latency_ms"], found["speed_up"] or {}
            figures = [
                (latency["median"], 1),
                (latency["p95"], 1),
                (times.get("latency"), 2),
                (found["sentences_per_second"], 1),
                (times.get("throughput"), 2),
            ]
            rows.append([name, *(number(value, digits) for value, digits in figures)])
    first = next(filter(None, of(report, "speed")))
    title = f"Speed on {first['device']}, {first['precision']}"
    head = ["system", "one sentence, median ms", "95th percentile", "speed-up"]
    return Figures(title, [*head, "sentences a second", "speed-up"], rows)


def number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def of(report: Report, key: str) -> list[Any]:
    """One figure of all systems."""
    return [system[key] for system in report["systems"].values()]
