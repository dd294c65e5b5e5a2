"""One table of the paper as files: NAME.md, NAME.csv, NAME.html, and a PNG of each picture."""

import csv
import io
import re
from collections.abc import Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from oaxe.support.files import appears_whole, write_whole
from oaxe.support.html import page, paragraph, scroll, svg, table
from oaxe.support.tables import NOTHING, markdown
from reproduction.translation.records import Records
from reproduction.translation.sheet import Sheet, blocks_of, origin
from reproduction.translation.tables import Table

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
    notes = [about.about, *sheet.notes, *how(name, about, all_records)]
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
    write_whole(out / f"{name}.html", page(title, "\n".join(body)))


def picture_name(name: str, label: str, sheet: Sheet) -> str:
    """Of the table and, where that has several pictures, of what this one shows."""
    more = re.sub(r"\W+", "-", f" {label.lower()}") if len(sheet.pictures) > 1 else ""
    return f"{name}{more}.png"


def how(name: str, about: Table, all_records: Sequence[Records]) -> list[str]:
    """The command, and what a reader must know of the figures."""
    places = [records.place for records in all_records]
    data = "".join(f" --data {place.dataset}" for place in places)
    preset, seeds = places[0].preset, len(all_records[0].seeds)
    command = f"oaxe reproduce {name}{data} --preset {preset} --seeds {seeds}"
    counts = {r.place.dataset: {len(r.of(s)) for s in about.systems} - {0} for r in all_records}
    found = ", ".join(f"{d} {span(c)}" for d, c in counts.items() if c) or "none"
    several = max(chain.from_iterable(counts.values()), default=0) > 1
    p = ", the largest p-value, 1 where seeds disagree on which system is better"
    p *= any(column.kind == "p" for column in about.columns)
    spread = f"; mean ± standard deviation{p}" if several else ""
    tiny = ["The preset tiny shows that everything works; its figures mean nothing."]
    return [command, f"Seeds: {found}{spread}.", *(tiny if preset == "tiny" else [])]


def span(counts: set[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(*counts)


def origins_of(about: Table, all_records: Sequence[Records]) -> list[tuple[str, dict[str, Any]]]:
    """Every result that the table is made of, with its name."""
    return [
        (f"{records.place.dataset}, {system}, seed {seed}", origin(records, system, seed, *tests))
        for records in all_records
        if (tests := [block.test for block in blocks_of(about, records)])
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
