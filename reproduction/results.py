"""The results of one data set as they lie on the disk, and what the tables ask of them.

results/EXPERIMENT-seed-N/result.json   one experiment, see reproduction.steps
results/significance.json               p-values of pairs of experiments
results/fluency.json                    perplexities under the language model
results/speed-DEVICE.json               decoding on a GPU (cuda) or CPU, a few systems in many ways
results/latency.json                    the same of every system, decoded as in its result
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oaxe.evaluation.evaluate import Options, evaluate
from oaxe.evaluation.references import References, read_references
from oaxe.evaluation.significance import paired_test
from oaxe.support.checksums import checksum
from oaxe.text.lines import read_lines
from reproduction.experiment import AGAIN, TEACHERS
from reproduction.experiments import EXPERIMENTS
from reproduction.folder import Folder, Result, read_json, write_json
from reproduction.tables import GOLD, Column, Row, Table

TRIALS = 10_000  # of approximate randomisation
LATENCIES = "latency.json"
OUT_OF_DOMAIN = {"ott2018", "newstest2014"}

# Each is a function of a result and the name of a test set.
MEASURES: dict[str, Callable[[Result, str], float | None]] = {
    "bleu": lambda result, test: result["tests"][test]["bleu"]["score"],
    "bleu_without": lambda result, test: result["tests"][test]["deduplication"]["bleu_without"],
    "brevity": lambda result, test: result["tests"][test]["bleu"]["brevity_penalty"],
    "unpenalised": lambda result, test: without_penalty(result["tests"][test]["bleu"]),
    "chrf": lambda result, test: result["tests"][test]["chrf"]["score"],
    "single_bleu": lambda result, test: result["tests"][test]["single_reference_bleu"]["scores"][0],
    "valid_bleu": lambda result, test: result["training"]["bleu"],
    "repetition": lambda result, test: result["tests"][test]["repetition"],
    "repetition_of_subwords": lambda result, test: result["tests"][test].get(
        "repetition_of_subwords"  # which references have none of
    ),
    "ncm": lambda result, test: result["tests"][test]["ncm"],
    "perplexity": lambda result, test: result["fluency"].get("perplexity"),
    "tokens": lambda result, test: result["cost"]["tokens"],
    "seconds": lambda result, test: result["cost"]["seconds"],
    "latency": lambda result, test: result["speed"].get("latency_ms", {}).get("median"),
    "throughput": lambda result, test: result["speed"].get("sentences_per_second"),
    "lines": lambda result, test: result.get("lines"),
}


def without_penalty(bleu: Mapping[str, Any]) -> float:
    """BLEU as it would be if short outputs had no penalty."""
    return float(bleu["score"] / bleu["brevity_penalty"]) if bleu["brevity_penalty"] else 0.0


class Results:
    """The results of one data set, as far as they are there."""

    def __init__(self, folder: Folder, seeds: int) -> None:
        self.folder, self.seeds = folder, range(1, seeds + 1)
        fluency = read_json(folder.results / "fluency.json").get("systems", {})
        speeds = read_json(folder.results / LATENCIES).get("systems", {})
        self._results: dict[tuple[str, int], Result] = {}
        for name in (*EXPERIMENTS, *(name + AGAIN for name in TEACHERS)):
            for seed in self.seeds:
                if result := read_json(folder.result(name, seed)):
                    result["fluency"] = fluency.get(f"{name}-seed-{seed}", {})
                    result["speed"] = speeds.get(f"{name}-seed-{seed}", {})
                    self._results[name, seed] = result
        for (name, seed), result in self._results.items():
            result["cost"] = {key: self._cost(name, seed, key) for key in ("tokens", "seconds")}
        self._gold_fluency = fluency.get(GOLD, {})

    def of(self, name: str) -> dict[int, Result]:
        """The results of an experiment, by seed."""
        return {seed: r for (known, seed), r in self._results.items() if known == name}

    def chosen(self, row: Row, *, of_all: bool = False) -> str | None:
        """The trial that is best on validation, with seed 1, of those that are done.

        None if there are none, or if it is to be one ``of_all`` and some are missing.
        """
        found = {name: self.values(name, "valid_bleu", "test").get(1) for name in row.experiments}
        done = {name: bleu for name, bleu in found.items() if bleu is not None}
        if of_all and len(done) < len(found):
            return None
        return max(done, key=lambda name: done[name], default=None)

    def experiment(self, row: Row, column: Column) -> str | None:
        """The experiment that a cell shows."""
        return self.chosen(row) if row.chooses else row.experiment(column)

    def _cost(self, name: str, seed: int, key: str) -> float | None:
        """Millions of target tokens, or seconds, of a training and of those that it starts from.

        The Transformer that it may start from is not counted.
        """
        result, one = self._results.get((name, seed)), EXPERIMENTS[name.removesuffix(AGAIN)]
        if result is None:
            return None
        own = result["training"]["seconds"]
        if key == "tokens":
            own = result["training"]["step"] * result["settings"]["data"]["update_tokens"] / 1e6
        if one.start is None or one.start in TEACHERS:
            return float(own)
        before = self._cost(one.start, seed, key)
        return before if before is None or one.stage == "decoding" else before + own

    def tests(self) -> dict[str, int]:
        """The test sets, the data set's own first, and the most references of a sentence."""
        found = {
            test: scores["gold"]["references"][1]
            for result in self._results.values()
            for test, scores in result["tests"].items()
        }
        return dict(sorted(found.items(), key=lambda item: (item[0] != "test", item[0])))

    def values(self, name: str, measure: str, test: str) -> dict[int, float]:
        """By seed; the value of the references is under 0."""
        results = self.of(name)
        if name == GOLD:
            results = {0: self._gold(test)}
        found = {}
        for seed, result in results.items():
            if measure == "valid_bleu" or test in result["tests"]:
                value = MEASURES[measure](result, test)
                if value is not None:
                    found[seed] = value
        return found

    def _gold(self, test: str) -> Result:
        first = next((r for r in self._results.values() if test in r["tests"]), None)
        tests = {} if first is None else {test: first["tests"][test]["gold"]}
        return {"tests": tests, "fluency": self._gold_fluency}

    def p_value(self, name: str, baseline: str, test: str) -> float | None:
        """Of the difference in BLEU, between outputs of the same seed; the largest of all seeds.

        It is 1 if one seed is better than the baseline and another one worse.
        """
        found = [self._comparison(name, baseline, seed, test) for seed in self.of(name)]
        compared = [comparison["bleu"] for comparison in found if comparison]
        if not compared:
            return None
        differences = [comparison["difference"] for comparison in compared]
        agree = min(differences) >= 0 or max(differences) <= 0
        return max(comparison["p"] for comparison in compared) if agree else 1.0

    def _comparison(self, name: str, baseline: str, seed: int, test: str) -> Result | None:
        """The outputs of one seed compared with those of the baseline; computed once."""
        outputs = {one: self.folder.output(one, seed, test) for one in (baseline, name)}
        if not all(path.exists() for path in outputs.values()):
            return None
        path = self.folder.results / "significance.json"
        key = f"{test}: {name}, {baseline}, seed {seed}"
        known = read_json(path)
        files = [asdict(checksum(output)) for output in outputs.values()]
        if known.get(key, {}).get("files") != files:
            if not self.gold_path(test).exists():
                return None
            texts = {one: read_lines(output) for one, output in outputs.items()}
            found = paired_test(self.gold(test), texts, baseline, trials=TRIALS)[name]
            known[key] = {"files": files, **found}
            write_json(path, known)
        return known[key]

    def gold_path(self, test: str) -> Path:
        return self.folder.gold / f"{test}.jsonl"

    def gold(self, test: str) -> References:
        results = [r["tests"] for r in self._results.values() if test in r["tests"]]
        return read_references(multiref=self.gold_path(test), language=results[0][test]["language"])

    def side_by_side(self, names: Sequence[str], test: str, count: int) -> Result | None:
        """The report of `oaxe evaluate` on the outputs of seed 1, for its examples alone."""
        paths = [self.folder.output(name, 1, test) for name in names]
        if not all(path.exists() for path in (*paths, self.gold_path(test))):
            return None
        files = [f"{EXPERIMENTS[n].label}={p}" for n, p in zip(names, paths, strict=True)]
        return evaluate(self.gold(test), files, [], Options(examples=count, trials=1))[0]

    def origin(self, name: str, seed: int, *tests: str, measure: str = "") -> dict[str, Any]:
        """Where a number comes from, with the signatures of BLEU on the test sets."""
        result = self.of(name).get(seed)
        if result is None:
            return {}
        scores = [result["tests"][test] for test in tests if test in result["tests"]]
        signatures = dict.fromkeys(score["bleu"]["signature"] for score in scores)
        if measure == "single_bleu":
            signatures = dict.fromkeys(re.sub("nrefs:[^|]+", "nrefs:1", s) for s in signatures)
        return {
            "preset": self.folder.preset,
            "updates": result["training"]["step"],
            "seconds": result["training"]["seconds"],
            "commit": result["environment"]["commit"],
            "device": result["environment"]["device"],
            "signature": ", ".join(signatures) or None,
            "result": self.folder.result(name, seed).relative_to(self.folder.out).as_posix(),
        }


@dataclass(frozen=True)
class EvalSet:
    """One test set of one data set: a group of columns."""

    results: Results
    name: str
    is_valid: bool = False

    @property
    def label(self) -> str:
        dataset = self.results.folder.dataset
        if self.is_valid:
            return f"{dataset} valid"
        if self.name == "test":
            return dataset
        away = self.name in OUT_OF_DOMAIN and not dataset.startswith("wmt14")
        return f"{dataset} on {self.name}{', out of domain' * away}"


def shown_sets(table: Table, results: Results) -> list[EvalSet]:
    """The test sets that a table shows."""
    if table.test_sets in ("test", "valid"):
        return [EvalSet(results, "test", table.test_sets == "valid")]
    shown = {"every": (True, False), "several": (True,), "single": (False,)}[table.test_sets]
    return [EvalSet(results, name) for name, most in results.tests().items() if (most > 1) in shown]
