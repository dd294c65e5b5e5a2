"""A table or figure of the paper as files: NAME.md, NAME.csv, NAME.html, and a PNG of each chart.

The synthetic task and translation fill the same report, and it is written here alone.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oaxe.support.files import appears_whole, write_whole
from oaxe.support.html import page, paragraph, scroll, svg, table
from oaxe.support.tables import NOTHING, TextTable, grid, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORIGIN = ("updates", "seconds", "commit", "device", "signature")
SOURCES = "Where our numbers come from"


@dataclass
class Report:
    title: str = ""
    notes: list[str] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)
    charts: "list[tuple[str, Figure]]" = field(default_factory=list)  # with their titles
    csv_columns: Sequence[str] = ()
    csv_rows: list[dict[str, Any]] = field(default_factory=list)
    body: str = ""  # HTML in place of the tables
    sources: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # name, its origin


def write_report(name: str, report: Report, out: Path) -> None:
    charts = {label: chart_name(name, label, report) for label, _ in report.charts}
    for label, figure in report.charts:
        with appears_whole(out / charts[label]) as file:
            figure.savefig(file, format="png", dpi=150, bbox_inches="tight")
    text = [
        f"# {report.title}\n",
        *(f"{note}\n" for note in report.notes),
        *map(markdown, report.tables),
        *(
            f"**{label}**\n\n" * (len(charts) > 1) + f"![{label}]({path})\n"
            for label, path in charts.items()
        ),
        *([f"**{SOURCES}**\n", sources_markdown(report)] if report.sources else []),
    ]
    write_whole(out / f"{name}.md", "\n".join(text))
    write_whole(out / f"{name}.csv", as_csv(report))
    body = [
        *map(paragraph, report.notes),
        *(f"<h2>{escape(label)}</h2>{svg(figure, label)}" for label, figure in report.charts),
        report.body or "".join(table(*one) for one in report.tables),
        *([f"<h2>{SOURCES}</h2>", sources_html(report)] if report.sources else []),
    ]
    write_whole(out / f"{name}.html", page(report.title, "\n".join(body)))


def chart_name(name: str, label: str, report: Report) -> str:
    """The name of the table and, where it has several charts, what this one shows."""
    more = re.sub(r"\W+", "-", f" {label.lower()}") if len(report.charts) > 1 else ""
    return f"{name}{more}.png"


def sources_markdown(report: Report) -> str:
    rows = []
    for name, origin in report.sources:
        signature = origin["signature"] and f"`{origin['signature']}`".replace("|", "\\|")
        rows.append([name, *(str(origin[key]) for key in ORIGIN[:-1]), signature or NOTHING])
    return grid(["result", *ORIGIN], rows)


def sources_html(report: Report) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("result", *ORIGIN))
    rows = "".join(
        f'<tr><th scope="row"><a href="{escape(origin["result"])}">{escape(name)}</a></th>'
        + "".join(f"<td>{escape(str(origin[key] or NOTHING))}</td>" for key in ORIGIN)
        + "</tr>"
        for name, origin in report.sources
    )
    return scroll("results", f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>")


def as_csv(report: Report) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, report.csv_columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.csv_rows)
    return text.getvalue()
