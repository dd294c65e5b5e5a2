"""Tables and a picture of what `training` or `cpu-quality` wrote."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import cpu_page
from benchmarks.cpu_quality import RESULTS
from benchmarks.harness import markdown
from benchmarks.training import FIRST, LATER, OF_FLOOR, OF_PLAIN, PLAIN, RATE
from oaxe.support import strict_json
from oaxe.support.errors import UserError
from oaxe.support.files import check_output, write_whole
from reproduction.charts import Line, line_chart

BEGIN, END = "<!-- tables of `python -m benchmarks page` -->", "<!-- end of the tables -->"
NONE = "-"


def page(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="JSON", help="Written by --json of `training` or `cpu-quality`.", dir_okay=False
        ),
    ],
    document: Annotated[
        Path | None,
        typer.Argument(
            help=f"Markdown file whose lines between {BEGIN} and {END} are replaced. "
            "Default: print the tables.",
            dir_okay=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Share of the floor by size of update, or BLEU by time; .png or .svg."),
    ] = None,
) -> None:
    """Turn the numbers of `training` or `cpu-quality` into Markdown tables and a picture."""
    check_output(picture, result)
    content = measured(result)
    is_cpu = RESULTS in content
    text = cpu_page.tables(content) if is_cpu else tables(content)
    if document is None:
        print(text)
    else:
        write_whole(document, filled_in(document.read_text(encoding="utf-8"), text, document))
    if picture is not None:
        (cpu_page.draw if is_cpu else draw)(content, picture)


def measured(result: Path) -> dict[str, Any]:
    wanted = "give what --json of `training` or `cpu-quality` wrote"
    try:
        content = strict_json.read(result)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {result}: {error}; {wanted}") from None
    if not isinstance(content, dict) or not {RESULTS, "loss"} & content.keys():
        raise UserError(f"{result} holds no such measurements; {wanted}")
    return content


def filled_in(text: str, new: str, where: Path) -> str:
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise UserError(f"{where} has no place for the tables: put in {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{new}\n{END}", text)


def tables(content: dict[str, Any]) -> str:
    parts = [header(content), training_table(content), padding_table(content)]
    parts += [processes_table(content), distillation_table(content), left_out(content)]
    return "\n\n".join(part for part in parts if part)


def header(content: dict[str, Any]) -> str:
    where, loss = content["environment"], content["loss"]
    rate = content.get("flop_per_second", 0.0)
    ceiling = f", {rate / 1e12:,.0f} TFLOP/s for a large bf16 product in the same run" * (rate > 0)
    changes = "".join(f", {change}" for change in content["changes"] or ())
    return (
        f"{content['device']}, torch {where['torch']}, commit {where['commit']}{ceiling}. "
        f"{content['system']}{f' with {loss}' if loss else ''}{changes}, vocabulary "
        f"{content['vocab']:,}, batches of at most {content['batch_tokens']:,} tokens, data: "
        f"{content['data']}; {content['seconds']:g} s for each loop, seed {content['seed']}."
    )


def training_table(content: dict[str, Any]) -> str:
    rows, on_gpu = [], content["device"] != "cpu"
    for found in of_kind(content, "training"):
        loops = found["contenders"]
        later, first, plain = (loops.get(name, {}) for name in (LATER, FIRST, PLAIN))
        without_graphs = " (no graphs)" * (on_gpu and not found["recorded"])
        whole = (
            "" if found["whole_first_epoch"] else f" ({found['updates_of_first_epoch']} updates)"
        )
        rows.append(
            [
                found["size"],
                thousands(found["update_tokens"]),
                thousands(found.get("floor_tokens_per_second")),
                thousands(plain.get(RATE)),
                percent(plain.get(OF_FLOOR)),
                f"**{thousands(later[RATE])}**{without_graphs}",
                f"**{percent(later.get(OF_FLOOR))}**",
                NONE if OF_PLAIN not in later else f"{later[OF_PLAIN]:.1f}",
                thousands(first[RATE]) + whole,
                f"{found['seconds_to_start']:.1f}",
                percent(found["share_waiting_for_data"]),
            ]
        )
    head = [
        "size", "tokens an update", "floor", "plain loop", "of the floor", "trainer",
        "of the floor", "x plain", "first epoch", "first 3 updates, s", "waiting for data",
    ]  # fmt: skip
    return markdown(head, rows)


def padding_table(content: dict[str, Any]) -> str:
    rows = [
        [name, percent(share["padded plan"]), percent(share["packed plan"])]
        for found in of_kind(content, "padding")
        for name, share in found["contenders"].items()
    ]
    return markdown(["share of padding", "sorted by length, padded", "packed"], rows)


def processes_table(content: dict[str, Any]) -> str:
    alone = {
        (found["size"], found["update_tokens"]): found["contenders"][LATER][RATE]
        for found in of_kind(content, "training")
    }
    rows = []
    for found in of_kind(content, "processes"):
        (rate,) = (contender[RATE] for contender in found["contenders"].values())
        one = alone.get((found["size"], found["update_tokens"]))
        rows.append(
            [
                found["size"],
                thousands(found["update_tokens"]),
                str(found["processes"]),
                thousands(one),
                thousands(rate),
                NONE if one is None else f"{rate / one:.2f}",
            ]
        )
    head = ["size", "tokens an update", "processes", "one alone", "all together", "x one"]
    return markdown(head, rows)


def distillation_table(content: dict[str, Any]) -> str:
    rows = [
        [
            found["size"],
            str(found["beam"]),
            thousands(found["sentences"]),
            f"{found['mean_source']:.1f}",
            f"{found['mean_target']:.1f}",
            thousands(found["contenders"]["first pass"]["sentences/s"]),
            f"**{thousands(found['contenders']['later passes']['sentences/s'])}**",
        ]
        for found in of_kind(content, "distillation")
    ]
    head = [
        "teacher", "beam", "sentences", "source tokens", "target tokens",
        "sentences a second, first pass", "later",
    ]  # fmt: skip
    return markdown(head, rows)


def left_out(content: dict[str, Any]) -> str:
    lines = [
        f"- Left out: {name}: {' '.join(str(reason).split())}"
        for found in of_kind(content, "failed")
        for name, reason in found.items()
        if name not in ("kind", "contenders")
    ]
    return "\n".join(lines)


def draw(content: dict[str, Any], path: Path) -> None:
    """One line for each size, and one for the plain loop, of base if that is there."""
    found = list(of_kind(content, "training"))
    sizes = list(dict.fromkeys(one["size"] for one in found))
    if not any(OF_FLOOR in one["contenders"][LATER] for one in found):
        raise UserError("there is no floor in these results, which a GPU has: nothing to draw")

    def line(label: str, size: str, loop: str) -> Line:
        return Line(
            label,
            [
                (one["update_tokens"], [100 * one["contenders"][loop][OF_FLOOR]])
                for one in found
                if one["size"] == size and loop in one["contenders"]
            ],
        )

    of_plain = "base" if "base" in sizes else sizes[0]
    lines = [line(size, size, LATER) for size in sizes]
    lines.append(line(f"plain PyTorch loop, {of_plain}", of_plain, PLAIN))
    figure, axes = line_chart(
        lines, "target tokens of an update", "% of the arithmetic floor", spread=False
    )
    ticks = sorted({one["update_tokens"] for one in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick / 1024:g}K" for tick in ticks])
    axes.set_ylim(0, 100)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def of_kind(content: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    for value in content.values():
        if isinstance(value, dict) and value.get("kind") == kind:
            yield value


def thousands(number: float | None) -> str:
    """Three digits, for a speed; all of them, for a number of tokens."""
    if number is None:
        return NONE
    if isinstance(number, float) and number >= 1000:
        number = float(f"{number:.3g}")
    return f"{number:,.0f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"
