"""Tables and a picture of what `python -m benchmarks cpu-quality` wrote."""

from pathlib import Path
from typing import Any

from benchmarks.cpu_quality import ALONE, MODELS, MODULES, RESULTS, rate, threading
from benchmarks.harness import markdown
from reproduction.charts import Line, line_chart


def tables(content: dict[str, Any]) -> str:
    return "\n\n".join([header(content), result_table(content), model_table(content)])


def header(content: dict[str, Any]) -> str:
    where, languages = content["environment"], "-".join(content["languages"])
    versions = ", ".join(f"{name} {content[name]}" for name in MODULES if name in content)
    return (
        f"{where['processor']}, {content['threads']} threads, waiting {content['waiting']}, "
        f"output layer in {content['output']}; {versions}, oaxe {where['oaxe']}, commit "
        f"{where['commit']}. Data: the {content['sentences']:,} test sentences of "
        f"{content['data']} ({languages}). Medians of {content['rounds']} rounds; one sentence: "
        f"also of {content['timed_alone']} that are spread over the test set. BLEU is that of one "
        f"sentence at a time; together it differs by at most {most_change(content):.2f}."
    )


def batch_sizes(content: dict[str, Any]) -> list[int]:
    return [int(title.split()[0]) for title in content if title.endswith(" at once")]


def most_change(content: dict[str, Any]) -> float:
    """How far batches of several sentences move the BLEU of a contender."""
    alone, *together = (content[f"{n} at once"]["contenders"] for n in batch_sizes(content))
    return max(
        (abs(some[name]["BLEU"] - alone[name]["BLEU"]) for some in together for name in alone),
        default=0.0,
    )


def result_table(content: dict[str, Any]) -> str:
    sizes = batch_sizes(content)
    rows = [
        [
            found["model"],
            found["search"] or "-",
            f"{found['BLEU']:.1f}",
            f"**{found[ALONE]:.3g}**",
            *(f"{found[rate(n)]:,.0f}" for n in sizes[1:]),
            ", ".join(found[threading(n)] for n in sizes),
        ]
        for found in content[RESULTS]["contenders"].values()
    ]
    head = [
        "model",
        "search",
        "BLEU",
        ALONE,
        *(f"{n} at once, sentences a second" for n in sizes[1:]),
    ]
    return markdown([*head, f"workers x threads, for {', '.join(map(str, sizes))}"], rows)


def model_table(content: dict[str, Any]) -> str:
    models = content[MODELS]["contenders"]
    rows = [[name, *map(shown, model.values())] for name, model in models.items()]
    return markdown(["model", *next(iter(models.values()))], rows)


def shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def draw(content: dict[str, Any], path: Path) -> None:
    """BLEU against the time of one sentence: a line for each model, through its searches."""
    found = list(content[RESULTS]["contenders"].values())
    lines = [
        Line(name, sorted((one[ALONE], [one["BLEU"]]) for one in found if one["model"] == name))
        for name in content[MODELS]["contenders"]
    ]
    figure, axes = line_chart(lines, "one sentence on a CPU, ms", spread=False)
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis("{x:g}")
    figure.savefig(path, dpi=150, bbox_inches="tight")
