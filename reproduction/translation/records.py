"""Results as they lie on the disk, and what is measured of several systems together.

results/SYSTEM-seed-N/result.json   of one system, see reproduction.translation.work
results/significance.json           p-values of pairs of systems
results/fluency.json                perplexities under the language model
results/speed-DEVICE.json           decoding on a GPU (cuda) or CPU, all systems in turn
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.lines import load_translator, usable_device
from oaxe.evaluation.evaluate import Options, evaluate
from oaxe.evaluation.fluency import perplexity
from oaxe.evaluation.models import load_model, weights_checksum
from oaxe.evaluation.references import References, read_references
from oaxe.evaluation.significance import paired_test
from oaxe.evaluation.speed import measure_speed, speed_up
from oaxe.support.checksums import checksum
from oaxe.support.environment import environment
from oaxe.support.files import write_whole
from oaxe.text.lines import read_lines
from reproduction.translation.place import Place, read_json
from reproduction.translation.systems import SYSTEMS
from reproduction.translation.tables import GOLD, TIMED
from reproduction.translation.work import BEAM

TRIALS = 10_000  # of approximate randomisation
GRAPHS = ", CUDA graphs"  # which those have not that write word by word
Record = dict[str, Any]

# Each is a function of a result and the name of a test set.
MEASURES: dict[str, Callable[[Record, str], float | None]] = {
    "bleu": lambda result, test: result["tests"][test]["bleu"]["score"],
    "bleu_without": lambda result, test: result["tests"][test]["deduplication"]["bleu_without"],
    "brevity": lambda result, test: result["tests"][test]["bleu"]["brevity_penalty"],
    "single_bleu": lambda result, test: result["tests"][test]["single_reference_bleu"]["scores"][0],
    "valid_bleu": lambda result, test: result["training"]["bleu"],
    "repetition": lambda result, test: result["tests"][test]["repetition"],
    "ncm": lambda result, test: result["tests"][test]["ncm"],
    "perplexity": lambda result, test: result["fluency"].get("perplexity"),
}


class Records:
    """The results of one data set, as far as they are there."""

    def __init__(self, place: Place, seeds: int) -> None:
        self.place, self.seeds = place, range(1, seeds + 1)
        fluency = read_json(place.results / "fluency.json").get("systems", {})
        self._results: dict[tuple[str, int], Record] = {}
        for name in SYSTEMS:
            for seed in self.seeds:
                if result := read_json(place.result(name, seed)):
                    result["fluency"] = fluency.get(f"{name}-seed-{seed}", {})
                    self._results[name, seed] = result
        self._gold_fluency = fluency.get(GOLD, {})

    def of(self, system: str) -> dict[int, Record]:
        """By seed."""
        return {seed: r for (name, seed), r in self._results.items() if name == system}

    def tests(self) -> dict[str, int]:
        """The test sets, the data set's own first, and the most references of a sentence."""
        found = {
            test: scores["gold"]["references"][1]
            for result in self._results.values()
            for test, scores in result["tests"].items()
        }
        return dict(sorted(found.items(), key=lambda item: (item[0] != "test", item[0])))

    def values(self, system: str, measure: str, test: str) -> dict[int, float]:
        """By seed; those of the references have none, and are found under 0."""
        results = self.of(system)
        if system == GOLD:
            results = {0: self._gold(test)}
        found = {}
        for seed, result in results.items():
            if measure == "valid_bleu" or test in result["tests"]:
                value = MEASURES[measure](result, test)
                if value is not None:
                    found[seed] = value
        return found

    def _gold(self, test: str) -> Record:
        first = next((r for r in self._results.values() if test in r["tests"]), None)
        tests = {} if first is None else {test: first["tests"][test]["gold"]}
        return {"tests": tests, "fluency": self._gold_fluency}

    def p_value(self, system: str, baseline: str, test: str) -> float | None:
        """Of the difference in BLEU, between outputs of the same seed; the largest of all seeds.

        It is 1 if one seed is better than the baseline and another one worse.
        """
        found = [self._comparison(system, baseline, seed, test) for seed in self.of(system)]
        compared = [comparison["bleu"] for comparison in found if comparison]
        if not compared:
            return None
        differences = [comparison["difference"] for comparison in compared]
        agree = min(differences) >= 0 or max(differences) <= 0
        return max(comparison["p"] for comparison in compared) if agree else 1.0

    def _comparison(self, system: str, baseline: str, seed: int, test: str) -> Record | None:
        """Of the outputs of one seed; computed once."""
        outputs = {name: self.place.output(name, seed, test) for name in (baseline, system)}
        if not all(path.exists() for path in outputs.values()):
            return None
        path = self.place.results / "significance.json"
        key = f"{test}: {system}, {baseline}, seed {seed}"
        known = read_json(path)
        files = [asdict(checksum(output)) for output in outputs.values()]
        if known.get(key, {}).get("files") != files:
            if not self.gold_path(test).exists():
                return None
            texts = {name: read_lines(output) for name, output in outputs.items()}
            found = paired_test(self.gold(test), texts, baseline, trials=TRIALS)[system]
            known[key] = {"files": files, **found}
            write_json(path, known)
        comparison: Record = known[key]
        return comparison

    def gold_path(self, test: str) -> Path:
        return self.place.gold / f"{test}.jsonl"

    def gold(self, test: str) -> References:
        results = [r["tests"] for r in self._results.values() if test in r["tests"]]
        return read_references(multiref=self.gold_path(test), language=results[0][test]["language"])

    def side_by_side(self, systems: Sequence[str], test: str, count: int) -> Record | None:
        """The report of `oaxe evaluate` on the outputs of seed 1, for its examples alone."""
        paths = [self.place.output(name, 1, test) for name in systems]
        if not all(path.exists() for path in (*paths, self.gold_path(test))):
            return None
        files = [f"{SYSTEMS[n].label}={p}" for n, p in zip(systems, paths, strict=True)]
        return evaluate(self.gold(test), files, [], Options(examples=count, trials=1))[0]


def lacks_fluency(place: Place, systems: Iterable[str], seeds: int) -> bool:
    known = read_json(place.results / "fluency.json").get("systems", {})
    names = [name for name in systems if name != "lm"]
    return any(f"{name}-seed-{seed + 1}" not in known for name in names for seed in range(seeds))


def measure_fluency(place: Place, systems: Iterable[str], seeds: int, console: Console) -> None:
    """Perplexity of the outputs on the data set's own test set, where that is not known yet."""
    systems, path = list(systems), place.results / "fluency.json"
    if not lacks_fluency(place, systems, seeds) or not place.has_run("lm", 1):
        return
    lm = load_translator(str(place.run("lm", 1)), None)
    model, known = {"crc32": weights_checksum(lm)}, read_json(path)
    if known.get("lm") != model:
        known = {"lm": model, "systems": {}}  # those of another model cannot be compared
    gold = read_references(multiref=place.gold / "test.jsonl", language=lm.languages[1])
    texts = {GOLD: gold.first}
    for name in systems:
        for seed in range(1, seeds + 1):
            output = place.output(name, seed, "test")
            if output.exists() and f"{name}-seed-{seed}" not in known["systems"]:
                texts[f"{name}-seed-{seed}"] = read_lines(output)
    console.print(f"fluency of {len(texts)} texts", highlight=False)
    budget = place.recipe.batch_tokens
    for key, lines in texts.items():
        known["systems"][key] = perplexity(lm, lines, gold.language, batch_tokens=budget)
    write_json(path, known | {"environment": environment()})


def speed_path(place: Place) -> Path:
    """Of the kind of device that this machine has."""
    return place.results / f"speed-{usable_device(None)}.json"


def time_decoding(place: Place, n_seeds: int, console: Console) -> None:
    """Latency and throughput on this machine, taking turns; remove the file to repeat.

    Of each system the first seed whose run is here.
    """
    path = speed_path(place)
    all_seeds = range(1, n_seeds + 1)
    seeds = {name: [s for s in all_seeds if place.has_run(name, s)] for name in TIMED}
    if path.exists() or not all(seeds.values()):
        return
    console.print("decoding speed: the systems take turns", highlight=False)
    on_gpu = usable_device(None) == "cuda"
    ways = {name: {f"beam {BEAM}": {"beam": BEAM}} for name in TIMED}
    ways["oaxe"] = {
        f"{lengths}{graphs}": {"length_candidates": int(lengths[0])}
        for lengths in ("5 lengths", "1 length")
        for graphs in (("", GRAPHS) if on_gpu else ("",))
    }
    translators = {}
    for name in TIMED:
        for how, options in ways[name].items():
            model = load_model(str(place.run(name, seeds[name][0])), None, options)
            model.cuda_graphs = how.endswith(GRAPHS)
            translators[f"{SYSTEMS[name].label}, {how}"] = model
    sources = read_references(multiref=place.gold / "test.jsonl").sources or []
    recipe = place.recipe
    bf16 = recipe.bf16 and on_gpu
    found = measure_speed(translators, sources, batch_tokens=recipe.batch_tokens, bf16=bf16)
    first = next(iter(found.values()))
    systems = {name: speed | {"speed_up": speed_up(speed, first)} for name, speed in found.items()}
    of_seeds = {name: of_system[0] for name, of_system in seeds.items()}
    write_json(path, {"environment": environment(), "seeds": of_seeds, "systems": systems})


def write_json(path: Path, content: Record) -> None:
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
