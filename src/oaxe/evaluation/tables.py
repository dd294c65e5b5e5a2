"""The numbers of a report as tables, the same in the terminal and on the page."""

from collections.abc import Mapping
from typing import Any

from oaxe.support.tables import NOTHING, TextTable, number

Report = Mapping[str, Any]  # scores.json


def all_tables(report: Report) -> list[TextTable]:
    has_speed = any(entry["speed"] for entry in report["systems"].values())
    tables = [scores(report), behind(report), by_length(report)]
    return [*tables, speed(report)] if has_speed else tables


def signatures(report: Report) -> list[str]:
    """sacreBLEU's signatures, for comparison with other scores."""
    entries = list(report["systems"].values())
    lines = [f"{name}: {entries[0][name.lower()]['signature']}" for name in ("BLEU", "chrF")]
    tests = [entry["significance"] for entry in entries if entry["significance"]]
    return lines + [f"p: {test['test']}, {test['bleu']['signature']}" for test in tests[:1]]


def scores(report: Report) -> TextTable:
    """BLEU and chrF, with the p-values of their differences to the baseline."""
    entries = report["systems"]
    several = len(entries) > 1
    fewest, most = report["gold"]["references"]
    rows = []
    for name, entry in entries.items():
        test, row = entry["significance"], [name]
        for key in ("bleu", "chrf"):
            row.append(number(entry[key]["score"], ".2f"))
            if several:
                row.append(number(test[key]["p"], ".4f") if test else "baseline")
        if most > 1:
            row.append(number(entry["single_reference_bleu"]["mean"], ".2f"))
        rows.append(row)
    head = ["system", "BLEU", *["p"] * several, "chrF", *["p"] * several]
    head += ["BLEU, mean over single references"] * (most > 1)
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    title = f"{report['sentences']:,} sentences, {count} reference{'s' * (most > 1)} each"
    return TextTable(title, head, rows)


def behind(report: Report) -> TextTable:
    """Repetition, confidence and fluency, which explain the scores; without empty columns."""
    head = ["system", f"repeated {report['unit']}, %", "repeated subwords, %"]
    head += ["BLEU, repeats kept", "BLEU, repeats removed", "NCM"]
    head += [f"perplexity a {report['unit'].removesuffix('s')}"]
    rows = []
    for name, entry in [*report["systems"].items(), ("(ref)", report["gold"])]:
        both, fluency = entry.get("deduplication", {}), entry["fluency"] or {}
        cells = [
            number(entry["repetition"], ".2f"),
            number(entry.get("repetition_of_subwords"), ".2f"),
            number(both.get("bleu_without"), ".2f"),
            number(both.get("bleu_with"), ".2f"),
            number(entry.get("ncm"), ".3f"),
            number(fluency.get("perplexity"), ".1f"),
        ]
        rows.append([name, *cells])
    kept = [i for i in range(len(head)) if any(row[i] != NOTHING for row in rows)]
    rows = [[row[i] for i in kept] for row in rows]
    return TextTable("Behind the scores", [head[i] for i in kept], rows)


def by_length(report: Report) -> TextTable:
    entries = {name: entry["bleu_by_length"] for name, entry in report["systems"].items()}
    first = next(iter(entries.values()))
    rows = [["sentences", *(f"{bucket['sentences']:,}" for bucket in first)]]
    for name, buckets in entries.items():
        rows.append([name, *(number(bucket["bleu"], ".2f") for bucket in buckets)])
    title = f"BLEU by length of the reference, in {report['unit']}"
    return TextTable(title, ["system", *(bucket["label"] for bucket in first)], rows)


def speed(report: Report) -> TextTable:
    speeds = {n: found for n, entry in report["systems"].items() if (found := entry["speed"])}
    rows = []
    for name, found in speeds.items():
        latency, times = found["latency_ms"], found["speed_up"] or {}
        cells = [
            number(latency["median"]),
            number(latency["p95"]),
            number(times.get("latency"), ".2f"),
            number(found["sentences_per_second"]),
            number(times.get("throughput"), ".2f"),
        ]
        rows.append([name, *cells])
    first = next(iter(speeds.values()))
    head = ["system", "one sentence, median ms", "95th percentile", "speed-up"]
    head += ["sentences a second", "speed-up"]
    return TextTable(f"Speed on {first['device']}, {first['precision']}", head, rows)
