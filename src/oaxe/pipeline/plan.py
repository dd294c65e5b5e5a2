"""The plan of a build: sizes, vocabulary and updates, from the text, the machine and the minutes.

It is made once, before anything else, and kept in OUT/plan.yaml: a build that was stopped goes on
with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from oaxe.model.transformer import SIZES
from oaxe.pipeline import recipes
from oaxe.pipeline.probe import seconds_an_update
from oaxe.pipeline.recipes import GLANCING, Machine
from oaxe.pipeline.survey import Survey, held_out, survey
from oaxe.support.config import build, check_same, load, required, to_mapping
from oaxe.support.devices import usable_device
from oaxe.support.errors import UserError, did_you_mean
from oaxe.support.files import make_folder, write_whole
from oaxe.support.tables import TextTable
from oaxe.text.lines import Pair, read_parallel
from oaxe.text.manifest import SIDES, SPLITS
from oaxe.text.prepare import check_languages, input_checksum

PLAN = "plan.yaml"
# Shares of the minutes; the rest is for text, validation, n-grams and the report.
SHARES = {"teacher": 0.27, "one_pass": 0.48, "bigrams": 0.06}
SHARES_DISTILLED = {"teacher": 0.22, "distil": 0.2, "one_pass": 0.35, "bigrams": 0.05}
LEAST_UPDATES = 50  # with fewer, a model has learned nothing
LEAST_BIGRAMS = 30
FEW_UPDATES = 1_000  # on a CPU, with fewer, there are more and smaller ones; see doubts, too
LEAST_TOKENS = 1_024  # of an update
SHARE_OF_BIGRAMS = 0.1  # of the updates before
MOST_EPOCHS = {"teacher": 70, "one_pass": 180}  # more have not helped
# (fewer training pairs than this, subwords), in order
VOCABULARIES = ((20_000, 4_000), (200_000, 8_000), (600_000, 16_000), (10**12, 32_000))
SENTENCES_A_MINUTE = 20  # of the whole time: how many are translated for a score, on a CPU
LEAST_SENTENCES = 100
SMALL_TO = 200_000  # pairs; on a GPU, with more the size is base
Probe = Callable[[Mapping[str, Any], int, Sequence[tuple[int, int]], str], float]


@dataclass(frozen=True)
class Asked:
    """The options of the command line; a build is continued only with the same."""

    source_language: str = required("--from")
    target_language: str = required("--to")
    train: tuple[str, ...] = required("two files")
    valid: tuple[str, ...] = required("two files, or none")
    test: tuple[str, ...] = required("two files, or none")
    crc32: tuple[str, ...] = required("of these files, in this order")
    minutes: float = required("--minutes")
    system: Literal["ctc_glat", "dag"] = required("--system")
    distil: bool = required("--distil")
    size: str | None = required("--size")
    vocab_size: int | None = required("--vocab-size")
    device: str = required("cpu or cuda")

    def pair(self, split: str) -> Pair | None:
        files = getattr(self, split)
        return (Path(files[0]), Path(files[1])) if files else None

    @property
    def shares(self) -> dict[str, float]:
        return SHARES_DISTILLED if self.distil else SHARES

    @property
    def command(self) -> str:
        """The words behind ``oaxe build OUT``."""
        words = [f"--from {self.source_language} --to {self.target_language}"]
        words += [f"--{s} {' '.join(getattr(self, s))}" for s in SPLITS if getattr(self, s)]
        words += [f"--minutes {self.minutes:g}", f"--system {self.system}"]
        words += ["--distil"] * self.distil
        words += [f"--size {self.size}"] * bool(self.size)
        words += [f"--vocab-size {self.vocab_size}"] * bool(self.vocab_size)
        return " ".join(words)


@dataclass(frozen=True)
class Training:
    updates: int = required("0: left out")
    update_tokens: int = required("target tokens of an update")
    seconds: float = required("of an update, as measured when the plan was made")

    @property
    def minutes(self) -> float:
        return self.updates * self.seconds / 60


@dataclass(frozen=True)
class Plan:
    asked: Asked = required("what the command line says")
    pairs: int = required("of training text, before anything is held out")
    held_out: int = required("pairs for validation; 0: --valid is given")
    size: str = required("of the models")
    vocab_size: int = required("subwords")
    sentences: int = required("of validation and test text that are scored, at most; 0: all")
    teacher: Training = required("autoregressive")
    distil_minutes: float = required("expected for distillation; 0: none")
    one_pass: Training = required("started from the teacher")
    bigrams: Training = required("fine-tuning")

    @property
    def machine(self) -> Machine:
        return Machine(self.asked.device, self.size, self.pairs, self.sentences)

    @property
    def other_minutes(self) -> float:
        """The time for everything but training."""
        return (1 - sum(self.asked.shares.values())) * self.asked.minutes

    @property
    def minutes(self) -> float:
        trainings = self.teacher, self.one_pass, self.bigrams
        return sum(t.minutes for t in trainings) + self.distil_minutes + self.other_minutes


def ask(
    source_language: str,
    target_language: str,
    files: Mapping[str, Pair | None],
    *,
    minutes: float = 30.0,
    system: str = "ctc_glat",
    distil: bool = False,
    size: str | None = None,
    vocab_size: int | None = None,
    device: str | None = None,
) -> Asked:
    """Check what is asked for; ``files`` are those of train, valid and test."""
    given = {split: pair for split, pair in files.items() if pair}
    check_languages(source_language, target_language, given)
    for name, value, known in (("--system", system, GLANCING), ("--size", size, SIZES)):
        if value is not None and value not in known:
            hint = did_you_mean(value, known)
            raise UserError(f"{name} must be one of {', '.join(known)}, got {value}{hint}")
    content: dict[str, Any] = {
        split: [str(path.resolve()) for path in given.get(split, ())] for split in SPLITS
    }
    content |= {
        "source_language": source_language,
        "target_language": target_language,
        "crc32": [input_checksum(path).crc32 for pair in given.values() for path in pair],
        "minutes": minutes,
        "system": system,
        "distil": distil,
        "size": size,
        "vocab_size": vocab_size,
        "device": usable_device(device).partition(":")[0],
    }
    return build(Asked, content, "oaxe build")


def find_plan(out: Path, asked: Asked) -> Plan | None:
    """The plan of a build that is under way; UserError if it was asked for something else."""
    path = out / PLAN
    if not path.exists():
        left = {".lock", f"{PLAN}.part"}  # by a build that was killed at once
        if out.is_file() or (out.is_dir() and {p.name for p in out.iterdir()} - left):
            raise UserError(
                f"{out} exists and holds no build: it has no {PLAN}; give a folder that is new"
            )
        return None
    plan = load(Plan, path)
    check_same(
        _comparable(plan.asked),
        _comparable(asked),
        f"{out} holds another build",
        "Give the same command to continue it, or another folder to begin a new one",
    )
    return plan


def _comparable(asked: Asked) -> dict[str, Any]:
    """The options as a mapping, with checksums beside the names of files."""
    found: dict[str, Any] = to_mapping(asked)
    sums = iter(found.pop("crc32"))
    for split in SPLITS:
        files = zip(SIDES, found.pop(split), strict=False)
        found[split] = {side: f"{path} (crc32 {next(sums)})" for side, path in files}
    return found


def save_plan(out: Path, plan: Plan) -> None:
    make_folder(out)
    write_whole(out / PLAN, yaml.safe_dump(to_mapping(plan), sort_keys=False))


def make_plan(asked: Asked, probe: Probe = seconds_an_update) -> Plan:
    """Read the text, measure some updates of each training, and turn minutes into updates."""
    train = asked.pair("train")
    assert train
    found = survey(train)
    for split in ("valid", "test"):
        if pair := asked.pair(split):
            for _ in read_parallel(*pair):  # raises UserError for what is not parallel
                pass
    size, vocab_size = choose_sizes(asked, found)
    on_cpu = asked.device == "cpu"
    sentences = max(LEAST_SENTENCES, int(SENTENCES_A_MINUTE * asked.minutes)) * on_cpu
    machine = Machine(asked.device, size, found.pairs, sentences)
    shares = asked.shares
    epoch = found.pairs * sum(target for _, target in found.lengths) / len(found.lengths)

    def training(name: str, most: float, *more: str) -> Training:
        content = getattr(recipes, name)(machine, 1_000, *more)
        seconds = probe(content, vocab_size, found.lengths, asked.device)
        tokens = content["data"]["update_tokens"]
        if on_cpu and name != "bigrams":  # expected counts of bigrams need many sentences
            tokens, seconds = smaller(tokens, seconds, shares[name] * asked.minutes)
        most = min(most, MOST_EPOCHS[name] * epoch / tokens) if name in MOST_EPOCHS else most
        updates = updates_in(shares[name] * asked.minutes, seconds, most)
        return Training(updates, tokens, round(seconds, 4))

    teacher = training("teacher", float("inf"))
    one_pass = training("one_pass", float("inf"), asked.system)
    check_updates("teacher", teacher, asked)
    check_updates("one_pass", one_pass, asked)
    bigrams = training("bigrams", SHARE_OF_BIGRAMS * one_pass.updates, asked.system)
    if bigrams.updates < LEAST_BIGRAMS:
        bigrams = Training(0, bigrams.update_tokens, bigrams.seconds)
    return Plan(
        asked=asked,
        pairs=found.pairs,
        held_out=0 if asked.valid else len(held_out(found.pairs)),
        size=size,
        vocab_size=vocab_size,
        sentences=sentences,
        teacher=teacher,
        distil_minutes=asked.minutes * shares.get("distil", 0),
        one_pass=one_pass,
        bigrams=bigrams,
    )


def choose_sizes(asked: Asked, found: Survey) -> tuple[str, int]:
    """The size of the models, and of the vocabulary."""
    size = asked.size or "tiny"
    if asked.size is None and asked.device == "cuda":
        size = "small" if found.pairs <= SMALL_TO else "base"
    usual = next(vocab for pairs, vocab in VOCABULARIES if found.pairs < pairs)
    if asked.device == "cpu":  # where the output layer takes most of the time
        usual = max(usual // 2, VOCABULARIES[0][1])
    return size, asked.vocab_size or min(usual, found.most_subwords)


def updates_in(minutes: float, seconds: float, most: float) -> int:
    """How many updates of so many seconds are done in these minutes; not more than ``most``.

    Example:
        >>> updates_in(10, 0.25, 5_000), updates_in(10, 0.25, 180.5)
        (2400, 180)
    """
    return int(min(60 * minutes / seconds, most))


def smaller(tokens: int, seconds: float, minutes: float) -> tuple[int, float]:
    """Tokens and seconds of an update such that the minutes have time for more of them.

    Example:
        >>> smaller(3_072, 0.5, 30), smaller(3_072, 1.0, 10), smaller(3_072, 3.0, 3)
        ((3072, 0.5), (1843, 0.5999), (1024, 1.0))
    """
    wanted = int(tokens * min(1, 60 * minutes / seconds / FEW_UPDATES))
    found = min(tokens, max(wanted, LEAST_TOKENS))
    return found, round(seconds * found / tokens, 4)


def check_updates(name: str, training: Training, asked: Asked) -> None:
    """Raises UserError for a time or a text from which a model cannot learn anything."""
    if training.updates >= LEAST_UPDATES:
        return
    model = f"the {name.replace('_', '-')} model"
    in_time = updates_in(asked.shares[name] * asked.minutes, training.seconds, float("inf"))
    if in_time >= LEAST_UPDATES:
        raise UserError(
            f"there is too little training text: {MOST_EPOCHS[name]} epochs of it make "
            f"{training.updates} of the {LEAST_UPDATES} updates that {model} needs at the very "
            "least; give more text"
        )
    needed = asked.minutes * LEAST_UPDATES / max(in_time, 1)
    raise UserError(
        f"--minutes {asked.minutes:g} is too little time: {model} gets {in_time} of the "
        f"{LEAST_UPDATES} updates that it needs at the very least, {training.seconds:.2g} s each; "
        f"give --minutes {math.ceil(needed)} or more, or a smaller --size"
    )


def doubts(plan: Plan) -> str:
    """A warning if the teacher has few updates, or nothing."""
    updates, minutes = plan.teacher.updates, plan.asked.minutes
    if updates >= FEW_UPDATES:
        return ""
    enough = math.ceil(FEW_UPDATES * plan.teacher.seconds / 60 / plan.asked.shares["teacher"])
    more = f"--minutes {enough}" if enough > minutes else "more text"
    return (
        f"expect little: the teacher has {updates:,} updates, and with fewer than {FEW_UPDATES:,} "
        f"BLEU often stays near 0; give {more}"
    )


def plan_table(plan: Plan) -> TextTable:
    def row(what: str, training: Training) -> list[str]:
        numbers = f"{training.updates:,}", f"{training.update_tokens:,}", f"{training.seconds:.3f}"
        return [what, *numbers, f"{training.minutes:.1f}"]

    rows = [row("teacher (autoregressive)", plan.teacher)]
    if plan.distil_minutes:
        rows.append(["distillation (not limited)", "", "", "", f"{plan.distil_minutes:.1f}"])
    rows.append(row(f"one pass ({plan.asked.system})", plan.one_pass))
    if plan.bigrams.updates:
        rows.append(row("fine-tuning for bigrams", plan.bigrams))
    rows.append(["text, validation, n-grams, report", "", "", "", f"{plan.other_minutes:.1f}"])
    rows.append(["together, at most", "", "", "", f"{plan.minutes:.1f}"])
    held = f", {plan.held_out:,} of them held out for validation" * bool(plan.held_out)
    asked = plan.asked
    title = (
        f"{asked.source_language} to {asked.target_language}: {plan.pairs:,} pairs{held}; "
        f"size {plan.size}, {plan.vocab_size:,} subwords, on {asked.device}"
    )
    return TextTable(title, ["stage", "updates", "tokens", "seconds each", "minutes"], rows)
