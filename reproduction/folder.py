"""Where the work on one data set lies, whichever task it is of.

OUT/DATASET/PRESET/
  data/raw, distilled, em       prepared folders; data/text: the first lines of a larger text
  teacher-text/                 the teacher's translations of the training source; may be copied in
  ngrams/                       a language model of the raw training targets, for beam search
  teacher-text-2, -3/           those of teachers of other seeds
  judged-text/                  the teacher's beams, of which the CMLM has chosen
  runs/EXPERIMENT-seed-N/       run folders; once a result is there, only the model is kept
  results/EXPERIMENT-seed-N/    result.json, and the outputs. An experiment that has a result is
                                done, even where its run is gone
  results/EXPERIMENT-again-...  the same of a run that was trained again, for others to start from
  results/gold/                 the test sets, for p-values and examples
  results/*.json                what is measured of several experiments together
  logs/
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oaxe.support.config import changed, flatten
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.support.files import write_whole
from oaxe.text.manifest import MANIFEST
from oaxe.training.settings import Settings, build_settings, load_settings, settings_mapping
from reproduction.experiment import AGAIN
from reproduction.former_settings import under_present_names

RESULT = "result.json"
Result = dict[str, Any]
# Settings that say where or how, not what.
NOT_COMPARED = {
    "run", "data.folder", "data.packed", "train.cuda_graphs", "train.recompute",
    "train.log_every", "train.save_every",
}  # fmt: skip


@dataclass(frozen=True)
class Folder:
    out: Path
    dataset: str
    preset: str

    @property
    def root(self) -> Path:
        return self.out / self.dataset / self.preset

    def text(self, kind: str) -> Path:
        """The text that distilled data are made from."""
        return self.root / ("judged-text" if kind == "em" else f"teacher-text{teacher_of(kind)[1]}")

    @property
    def ngrams(self) -> Path:
        return self.root / "ngrams"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def gold(self) -> Path:
        return self.results / "gold"

    def data(self, kind: str) -> Path:
        return self.root / "data" / kind

    def run(self, name: str, seed: int) -> Path:
        return self.root / "runs" / f"{name}-seed-{seed}"

    def result(self, name: str, seed: int) -> Path:
        return self.results / f"{name}-seed-{seed}" / RESULT

    def result_of_run(self, name: str, seed: int) -> Path:
        """The result of the run that is there, which may have been trained again."""
        again = self.result(name + AGAIN, seed)
        return again if again.exists() else self.result(name, seed)

    def output(self, name: str, seed: int, test: str) -> Path:
        """Translations of a test set, as they were scored."""
        return self.result(name, seed).with_name(f"{test}.hyp.txt")

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.txt"

    def tests(self) -> list[str]:
        """Names of the test sets, the data set's own first."""
        names = sorted(path.stem for path in self.gold.glob("*.jsonl"))
        return sorted(names, key=lambda name: name != "test")

    def is_prepared(self, kind: str) -> bool:
        gold = kind != "raw" or (self.gold / "test.jsonl").exists()
        return gold and (self.data(kind) / MANIFEST).exists()

    def has_run(self, name: str, seed: int) -> bool:
        run = self.run(name, seed)
        return (run / RESULT).exists() and (run / "model").is_dir()

    def write_result(self, name: str, seed: int, settings: Settings, **content: Any) -> None:
        """The one format of a result; ``content`` has label, recipe, training and tests."""
        result = {
            "experiment": name,
            "dataset": self.dataset,
            "preset": self.preset,
            "seed": seed,
            "settings": settings_mapping(settings),
            "environment": environment(),
        }
        write_json(self.result(name, seed), {**result, **content})

    def differences(
        self, name: str, seed: int, settings: Callable[[], Settings], *ignored: str
    ) -> list[str]:
        """Between the settings of the result, or else the run, that is there and those of now."""
        if result := read_json(self.result(name, seed)):
            # An option that did not exist then had what is its default now.
            known = build_settings(
                under_present_names(result["settings"]), str(self.result(name, seed))
            )
        elif self.has_run(name, seed):
            known = load_settings(self.run(name, seed) / "config.yaml")
        else:
            return []
        before, now = (
            {key: value for key, value in comparable(which).items() if key not in ignored}
            for which in (known, settings())
        )
        return changed(before, now)


def teacher_of(kind: str) -> tuple[int, str]:
    """The seed of the teacher that has distilled these data, and how names of its text end.

    Example:
        >>> teacher_of("distilled"), teacher_of("em"), teacher_of("distilled-2")
        ((1, ''), (1, ''), (2, '-2'))
    """
    number = kind.rpartition("-")[2]
    return (int(number), f"-{number}") if number.isdigit() else (1, "")


def comparable(settings: Settings) -> dict[str, Any]:
    flat = flatten(settings_mapping(settings))
    for name in ("train.init_from", "hint.teacher"):
        if run := flat.get(name):
            flat[name] = Path(run).name  # which run, not where
    if others := flat.get("data.references"):
        flat["data.references"] = [Path(other).name for other in others]
    return {key: value for key, value in flat.items() if key not in NOT_COMPARED}


def validations(run: Path, *keys: str) -> list[dict[str, Any]]:
    """These values of each validation of a run, as far as they were measured."""
    found = [entry for entry in metrics(run) if entry["what"] == "valid"]
    return [{key: entry[key] for key in keys if key in entry} for entry in found]


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def read_json(path: Path) -> Result:
    """Empty if there is no such file."""
    try:
        content: Result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; copy it again, or remove it") from None
    return content


def write_json(path: Path, content: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
