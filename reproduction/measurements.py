"""What is measured of several experiments together: fluency, and the speed of decoding."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Translator
from oaxe.evaluation.fluency import perplexity
from oaxe.evaluation.models import load_model, weights_checksum
from oaxe.evaluation.references import read_references
from oaxe.evaluation.speed import measure_speed, speed_up
from oaxe.support.devices import usable_device
from oaxe.support.environment import environment
from oaxe.text.lines import read_lines
from oaxe.training.run import load_translator
from reproduction.experiments import EXPERIMENTS
from reproduction.folder import Folder, read_json, write_json
from reproduction.results import LATENCIES
from reproduction.steps import BEAM, Study
from reproduction.tables import GOLD, TABLES, TIMED

GRAPHS = ", CUDA graphs"


def missing_fluency(folder: Folder, seeds: int) -> list[tuple[str, int]]:
    """Experiments and seeds whose perplexity is not known."""
    known = read_json(folder.results / "fluency.json").get("systems", {})
    names = [name for name in TABLES["fluency"].experiments if name != "lm"]
    every = [(name, seed) for name in names for seed in range(1, seeds + 1)]
    return [(name, seed) for name, seed in every if f"{name}-seed-{seed}" not in known]


def measure_fluency(study: Study, seeds: int, console: Console) -> None:
    """Perplexity of the outputs on the data set's own test set, where that is not known yet."""
    folder, path = study.folder, study.folder.results / "fluency.json"
    if not missing_fluency(folder, seeds) or not folder.has_run("lm", 1):
        return
    lm = load_translator(str(folder.run("lm", 1)), None)
    model, known = {"crc32": weights_checksum(lm)}, read_json(path)
    if known.get("lm") != model:
        known = {"lm": model, "systems": {}}  # those of another model cannot be compared
        write_json(path, known)  # now all of them are missing
    gold = read_references(multiref=folder.gold / "test.jsonl", language=lm.languages[1])
    outputs = {
        f"{name}-seed-{seed}": read_lines(output)
        for name, seed in missing_fluency(folder, seeds)
        if (output := folder.output(name, seed, "test")).exists()
    }
    console.print(f"fluency of {len(outputs) + 1} texts")
    budget = study.recipe.batch_tokens
    for key, lines in {GOLD: gold.first, **outputs}.items():
        known["systems"][key] = perplexity(lm, lines, gold.language, batch_tokens=budget)
    write_json(path, known | {"environment": environment()})


def speed_path(folder: Folder) -> Path:
    """The file of times on the kind of device that this machine has."""
    return folder.results / f"speed-{usable_device(None)}.json"


def time_decoding(study: Study, seeds: int, console: Console) -> None:
    """Latency and throughput on this machine; the models take turns. Remove the file to repeat.

    The first seed of each experiment whose run is here is timed.
    """
    folder, path = study.folder, speed_path(study.folder)
    tried = {name: [s for s in range(1, seeds + 1) if folder.has_run(name, s)] for name in TIMED}
    if path.exists() or not all(tried.values()):
        return
    chosen = {name: found[0] for name, found in tried.items()}
    console.print("decoding speed: the models take turns")
    on_gpu = usable_device(None) == "cuda"
    ways = {name: {f"beam {BEAM}": {"beam": BEAM}} for name in TIMED}
    ways["oaxe"] = {
        f"{lengths}{graphs}": {"length_candidates": int(lengths[0])}
        for lengths in ("5 lengths", "1 length")
        for graphs in (("", GRAPHS) if on_gpu else ("",))
    }
    translators = {}
    for name, seed in chosen.items():
        for how, options in ways[name].items():
            model = load_model(str(folder.run(name, seed)), None, options)
            model.cuda_graphs = how.endswith(GRAPHS)
            translators[f"{EXPERIMENTS[name].label}, {how}"] = model
    found = speeds(study, translators)
    first = next(iter(found.values()))
    systems = {name: speed | {"speed_up": speed_up(speed, first)} for name, speed in found.items()}
    write_json(path, {"environment": environment(), "seeds": chosen, "systems": systems})


def missing_latency(folder: Folder, names: Sequence[str]) -> list[str]:
    """Systems of unknown latency; none if latencies of another device are stored: they stay."""
    known = read_json(folder.results / LATENCIES)
    if known.get("device", usable_device(None)) != usable_device(None):
        return []
    return [name for name in names if f"{name}-seed-1" not in known.get("systems", {})]


def measure_latency(study: Study, names: Sequence[str], console: Console) -> None:
    """Latency and throughput of systems whose runs are here, decoded as in their results, seed 1.

    Those that are measured together take turns; on a GPU as CUDA graphs.
    """
    folder, path, device = study.folder, study.folder.results / LATENCIES, usable_device(None)
    missing = [
        name
        for name in missing_latency(folder, names)
        if folder.has_run(*study.trained(name, 1)) and folder.result_of_run(name, 1).exists()
    ]
    if not missing:
        return
    console.print(f"decoding speed of {len(missing)} systems, in turns")
    translators = {}
    for name in missing:
        tests = read_json(folder.result_of_run(name, 1))["tests"]
        options = tests["test"]["model"]["decoding"]
        if options.get("lm"):
            options["lm"] = str(folder.ngrams)  # where it is now
        model = load_model(str(study.trained_run(name, 1)), None, options)
        model.cuda_graphs = device == "cuda"
        translators[f"{name}-seed-1"] = model
    systems = read_json(path).get("systems", {}) | speeds(study, translators)
    write_json(path, {"device": device, "environment": environment(), "systems": systems})


def speeds(study: Study, translators: Mapping[str, Translator]) -> dict[str, dict[str, Any]]:
    """Latency and throughput on the test set, with the precision and batches of the recipe."""
    sources = read_references(multiref=study.folder.gold / "test.jsonl").sources or []
    bf16 = study.recipe.bf16 and usable_device(None) == "cuda"
    return measure_speed(translators, sources, batch_tokens=study.recipe.batch_tokens, bf16=bf16)
