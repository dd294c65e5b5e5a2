"""One table of the paper as files: NAME.md, NAME.csv, NAME.html, and a PNG of each picture."""

import csv
import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from oaxe.evaluation.page import STYLE
from oaxe.files import appears_whole, write_whole
from oaxe.html import page, paragraph, scroll, svg, table
from oaxe.tables import NOTHING, markdown
from oaxe.translation.records import Records
from oaxe.translation.sheet import Sheet, origin
from oaxe.translation.tables import Table

COLUMNS = (
    "by", "dataset", "text", "row", "column", "value", "system", "seed", "preset", "updates",
    "seconds", "commit", "device", "signature", "result",
)  # fmt: skip
ORIGIN = ("updates", "seconds", "commit", "device", "signature")


def write_sheet(
    name: str, about: Table, sheet: Sheet, all_records: Sequence[Records], out: Path
) -> None:
    title = f"{about.paper} of the paper: {name}"
    origins = origins_of(about, all_records)
    pictures = {label: picture_name(name, label, sheet) for label, _ in sheet.pictures}
    for label, figure in sheet.pictures:
        with appears_whole(out / pictures[label]) as file:
            figure.savefig(file, format="png", dpi=150, bbox_inches="tight")
    notes = [about.about, *sheet.notes, *presets(about, all_records)]
    text = [
        f"# {title}\n",
        *(f"{note}\n" for note in notes),
        *map(markdown, sheet.tables),
        *(
            f"**{label}**\n\n" * (len(pictures) > 1) + f"![{label}]({path})\n"
            for label, path in pictures.items()
        ),
        "**Where our figures come from**\n",
        links_markdown(origins),
    ]
    write_whole(out / f"{name}.md", "\n".join(text))
    write_whole(out / f"{name}.csv", as_csv(sheet.figures))
    body = [
        *map(paragraph, notes),
        *(f"<h2>{escape(label)}</h2>{svg(figure, label)}" for label, figure in sheet.pictures),
        sheet.body or "".join(table(*figures) for figures in sheet.tables),
        "<h2>Where our figures come from</h2>",
        links_html(origins),
    ]
    write_whole(out / f"{name}.html", page(title, "\n".join(body), STYLE))


def picture_name(name: str, label: str, sheet: Sheet) -> str:
    """Of the table and, where that has several pictures, of what this one shows."""
    more = re.sub(r"\W+", "-", f" {label.lower()}") if len(sheet.pictures) > 1 else ""
    return f"{name}{more}.png"


def presets(about: Table, all_records: Sequence[Records]) -> list[str]:
    """What a reader must know of the figures."""
    found = {records.place.preset for records in all_records}
    counts = {len(records.of(name)) for records in all_records for name in about.systems} - {0}
    fewest, most = min(counts, default=0), max(counts, default=0)
    seeds = f"{fewest} to {most}" if fewest < most else f"{most}"
    text = f"Preset {', '.join(sorted(found))}; {seeds} seed{'s' * (most != 1)}"
    p_values = ", the largest p-value" * any(column.kind == "p" for column in about.columns)
    spread = f", mean ± standard deviation{p_values}." if most > 1 else "."
    tiny = ["The preset tiny shows that everything works; its figures mean nothing."]
    return [text + spread, *(tiny if "tiny" in found else [])]


def origins_of(about: Table, all_records: Sequence[Records]) -> list[tuple[str, dict[str, Any]]]:
    """Every result that the table is made of, with its name."""
    return [
        (f"{records.place.dataset}, {system}, seed {seed}", origin(records, system, seed, "test"))
        for records in all_records
        for system in about.systems
        for seed in records.of(system)
    ]


def links_markdown(origins: Sequence[tuple[str, dict[str, Any]]]) -> str:
    lines = [["result", *ORIGIN], ["---"] * (1 + len(ORIGIN))]
    for name, of in origins:
        signature = of["signature"] and f"`{of['signature']}`".replace("|", "\\|")
        cells = [*(str(of[key]) for key in ORIGIN[:-1]), signature or NOTHING]
        lines.append([f"[{name}]({of['result']})", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def links_html(origins: Sequence[tuple[str, dict[str, Any]]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("result", *ORIGIN))
    rows = "".join(
        f'<tr><th scope="row"><a href="{escape(of["result"])}">{escape(name)}</a></th>'
        + "".join(f"<td>{escape(str(of[key] or NOTHING))}</td>" for key in ORIGIN)
        + "</tr>"
        for name, of in origins
    )
    return scroll("results", f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>")


def as_csv(figures: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(figures)
    return text.getvalue()
