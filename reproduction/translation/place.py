"""Where the work on one data set lies.

OUT/DATASET/PRESET/
  data/raw, data/distilled   prepared folders; data/text: the first lines of a larger text
  teacher-text/              what the teacher made of the training source; may be copied in
  runs/SYSTEM-seed-N/        run folders; of those that are done only the model is kept
  results/SYSTEM-seed-N/     result.json and outputs: small; a system that has them is done, even
                             where its run is gone
  results/gold/              the test sets, for p-values and examples
  results/*.json             what is measured of several systems together
  logs/
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oaxe.support.config import build, flatten, load, to_mapping
from oaxe.support.errors import UserError
from oaxe.text.manifest import MANIFEST
from oaxe.training.settings import Settings
from reproduction.translation.recipe import Recipe
from reproduction.translation.systems import SYSTEMS, DataKind

RESULT = "result.json"
# Settings that say where or how, not what.
ELSEWHERE = {
    "run", "data.folder", "train.cuda_graphs", "train.recompute", "train.log_every",
    "train.save_every",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    dataset: str
    preset: str
    recipe: Recipe
    out: Path
    sets: Path  # that holds data sets

    @property
    def root(self) -> Path:
        return self.out / self.dataset / self.preset

    @property
    def teacher_text(self) -> Path:
        return self.root / "teacher-text"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def gold(self) -> Path:
        return self.results / "gold"

    def data(self, kind: DataKind) -> Path:
        return self.root / "data" / kind

    def run(self, system: str, seed: int) -> Path:
        return self.root / "runs" / f"{system}-seed-{seed}"

    def result(self, system: str, seed: int) -> Path:
        return self.results / f"{system}-seed-{seed}" / RESULT

    def output(self, system: str, seed: int, test: str) -> Path:
        """Translations of a test set, as they were scored."""
        return self.result(system, seed).with_name(f"{test}.hyp.txt")

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.txt"

    def tests(self) -> list[str]:
        """Names of the test sets, the data set's own first."""
        names = sorted(path.stem for path in self.gold.glob("*.jsonl"))
        return sorted(names, key=lambda name: name != "test")

    def is_prepared(self, kind: DataKind) -> bool:
        gold = kind == "distilled" or (self.gold / "test.jsonl").exists()
        return gold and (self.data(kind) / MANIFEST).exists()

    def has_teacher_text(self) -> bool:
        return (self.teacher_text / MANIFEST).exists()

    def has_run(self, system: str, seed: int) -> bool:
        run = self.run(system, seed)
        return (run / RESULT).exists() and (run / "model").is_dir()

    def settings(self, name: str, seed: int) -> Settings:
        system = SYSTEMS[name]
        return self.recipe.settings(
            system,
            run=str(self.run(name, seed)),
            data=str(self.data(system.data)),
            seed=seed,
            init_from=None if system.start is None else str(self.run(system.start, seed)),
        )

    def differences(self, name: str, seed: int) -> list[str]:
        """Between the settings of the result, or else the run, that is there and those of now."""
        # What could not be set then had what is the default now.
        if result := read_json(self.result(name, seed)):
            known = build(Settings, result["settings"], str(self.result(name, seed)))
        elif self.has_run(name, seed):
            known = load(Settings, self.run(name, seed) / "config.yaml")
        else:
            return []
        before = comparable(to_mapping(known))
        now = comparable(to_mapping(self.settings(name, seed)))
        return [
            f"{key} was {before.get(key)}, is {now.get(key)}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
        ]


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in flatten(settings).items() if key not in ELSEWHERE}
    start = found["train.init_from"]
    return found | {"train.init_from": start and Path(start).name}  # which run, not where


def read_json(path: Path) -> dict[str, Any]:
    """Empty if there is no such file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; copy it again, or remove it") from None
    return content
