"""A training run: its folder, its start, and the model that it leaves behind.

RUN/config.yaml        every setting, resolved
RUN/data.json          checksums of the prepared files that it reads
RUN/environment.json   command, commit, versions, hardware of each start
RUN/metrics.jsonl      one record a line; also as TensorBoard files in RUN/tensorboard
RUN/checkpoints/       the two newest states, to resume from
RUN/best/              weights of the best checkpoints by validation BLEU
RUN/model/             the finished translator: `oaxe translate --model RUN`
RUN/result.json        why it stopped, the BLEU of the best, of their average, and how they decode
RUN/.lock              locked while a process trains here
"""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from rich.console import Console
from safetensors import SafetensorError

from oaxe import __version__
from oaxe.decoding.saved import RUN, check_weights, is_exported
from oaxe.decoding.translator import Translator
from oaxe.support import strict_json
from oaxe.support.config import check_same, flatten, to_mapping
from oaxe.support.devices import usable_device
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.support.files import write_json, write_whole
from oaxe.support.locks import UNTIL_RELEASED, locked
from oaxe.systems import System, build, built_in
from oaxe.text.corpus import Corpus, load_subwords
from oaxe.text.manifest import SUBWORDS, Manifest, read_manifest, split_files
from oaxe.training.averaging import averaged_weights
from oaxe.training.checkpoint import DamagedError, average_tensors, checkpoints, load_checkpoint
from oaxe.training.log import in_one_line
from oaxe.training.ranks import Ranks, join, leave
from oaxe.training.settings import Settings, architecture, load_settings, settings_mapping
from oaxe.training.start import Start, start_from, teacher_of
from oaxe.training.trainer import BEST, CHECKPOINTS, INTERRUPTED, Trainer, is_packed
from oaxe.training.validation import Validation, choose_decoding, metric_of

# Settings that may change when a run is continued: they do not change what an update does.
MAY_CHANGE = {
    "run", "train.steps", "train.epochs", "train.minutes", "train.cuda_graphs", "train.recompute",
    "train.log_every", "train.save_every", "validation.keep", "validation.average",
    "validation.choose_decoding", "validation.patience",
}  # fmt: skip
ENVIRONMENT = "environment.json"  # another one at each start


class Parts(NamedTuple):
    """What a run is made of."""

    manifest: Manifest
    corpus: Corpus
    valid: Corpus
    system: System
    start: Start | None = None  # None: random weights, or a run that goes on


def train(settings: Settings, console: Console, systems: Collection[str] = ()) -> dict[str, Any]:
    """Run, or continue, the training that the settings describe; returns ``result.json``.

    ``systems`` are modules of the user's own that the model of ``train.init_from`` may need.
    """
    ranks, folder = join(), Path(settings.run)
    console = console if ranks.is_first else Console(quiet=True)
    try:
        parts = gather(settings, ranks, systems)  # what cannot begin leaves no folder behind
        settings = _settled(settings, parts.system, ranks)
        ranks.agree(_shared_by_ranks(settings, parts.manifest))
        patience = UNTIL_RELEASED if ranks.world_size > 1 else 0
        with ExitStack() as stack:
            ranks.first_does(lambda: stack.enter_context(locked(folder, "training", patience)))
            return _train(settings, parts, ranks, console)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"too little memory for batches of {settings.data.batch_tokens:,} tokens: {error}. Run "
            "the same command with --set train.cuda_graphs=false or --set train.recompute=true, "
            "which goes on from the last checkpoint; or begin another run with a lower "
            "data.batch_tokens"
        ) from error
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"a file could not be read or written: {error}. The run folder {folder} must be "
            "writable, with room for several checkpoints; then run the same command again"
        ) from error
    finally:
        leave(ranks)


def _train(settings: Settings, parts: Parts, ranks: Ranks, console: Console) -> dict[str, Any]:
    folder = Path(settings.run)
    trainer, translator = assemble(settings, parts, ranks, console)
    step_before = trainer.position.step
    reason = trainer.run()
    position = trainer.position
    result = {"stopped": reason, "step": position.step, "seconds": round(position.seconds, 1)}
    if reason == INTERRUPTED:
        console.print("interrupted; the same command continues from here")
        return result
    if position.step == step_before:
        console.print("there is nothing left to train")
    result |= _finish(settings, trainer)
    result |= _choose(settings, trainer, translator, console)
    if ranks.is_first:
        translator.save_pretrained(folder / "model")
        write_json(folder / "result.json", result)
    metric, name = trainer.validation.metric, settings.model.system
    own = "" if name in built_in() else f" --system {name}"
    use = "translate --model" if parts.system.translates else "evaluate --lm"
    console.print(
        f"{reason}: {in_one_line({metric: result[metric]})} on validation ({result['model']}); "
        f"use it with: oaxe {use} {folder}{own}"
    )
    return result


def gather(settings: Settings, ranks: Ranks, systems: Collection[str] = ()) -> Parts:
    """The data and the model, checked; nothing is written."""
    data, folder = Path(settings.data.folder), Path(settings.run)
    begins = not checkpoints(folder / CHECKPOINTS)
    if begins and (folder / "result.json").exists():
        raise UserError(
            f"{folder} holds a finished run whose checkpoints are gone; to train its model on, "
            f"begin another run with train.init_from={folder}; to start anew, remove it"
        )
    manifest = read_manifest(data)
    corpus, valid = (
        Corpus.open(data, split, verify=ranks.is_first_here) for split in ("train", "valid")
    )
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    if longest > settings.model.max_length:
        raise UserError(
            f"the longest training sentence has {longest} subwords, model.max_length is "
            f"{settings.model.max_length}; raise it, or prepare with a lower length limit"
        )
    for other in map(Path, settings.data.references):
        if read_manifest(other).files[SUBWORDS] != manifest.files[SUBWORDS]:
            raise UserError(
                f"{other} has other subwords than {data}; prepare it with --subwords "
                f"{data / SUBWORDS}"
            )
    corpus = corpus.with_references(
        [Corpus.open(Path(other), "train") for other in settings.data.references]
    )
    torch.manual_seed(settings.train.seed)
    system = new_system(settings, manifest.vocab_size)
    if hasattr(settings.options, "teacher"):
        system.learn_from(teacher_of(settings, manifest.languages, systems))
    start = None
    if settings.train.init_from is not None and begins:
        start = start_from(settings, system, manifest.languages, systems)
    return Parts(manifest, corpus, valid, system, start)


def assemble(
    settings: Settings, parts: Parts, ranks: Ranks, console: Console
) -> tuple[Trainer, Translator]:
    """The trainer and its model as a translator, resumed if the folder holds a checkpoint."""
    folder = Path(settings.run)
    manifest, corpus, valid, system, start = parts
    system.to(ranks.device)
    ranks.first_does(lambda: _open_folder(folder, settings, manifest))
    ranks.must_find(folder / ENVIRONMENT)
    ema = settings.train.ema
    averages = f"; averages of the weights, train.ema {ema:g}" if ema else ""
    console.print(
        f"{system.name}, {system.n_parameters:,} parameters, {len(corpus):,} pairs, "
        f"{ranks.world_size} x {ranks.device.type}, run {folder}{averages}"
    )
    if start:
        line = f"started from {settings.train.init_from}: {start}"
        if start.is_doubtful:
            console.print(f"warning: {line}", style="yellow")
        else:
            console.print(line)
    translator = translator_of(settings, system)
    translator.cuda_graphs = False  # training needs the memory that they would keep
    metric, score = metric_of(translator)
    validation = Validation(valid, settings, ranks, score, metric)
    return Trainer(settings, system, corpus, validation, ranks, console), translator


def translator_of(settings: Settings, system: System) -> Translator:
    data = Path(settings.data.folder)
    manifest = read_manifest(data)
    return Translator(
        system,
        load_subwords(data),
        languages=manifest.languages,
        decoding=to_mapping(settings.decoding),
    )


def load_translator(model: str, device: str | None, systems: Collection[str] = ()) -> Translator:
    """A run, one of its checkpoints, a model folder, its weights, or a name on the hub.

    On the GPU, if there is one, unless it was exported for a CPU. ``systems`` are modules of the
    user's own that it may need.
    """
    if is_exported(model):
        return Translator.from_pretrained(model, device=device or "cpu")
    device = usable_device(device)
    path = Path(model)
    is_weights = path.is_file() and path.suffix == ".safetensors"
    folder = (path.parent if is_weights else path).absolute()
    if (folder.parent.parent / RUN).is_file() and folder.name.startswith("step-"):
        return translator_at(folder, device, systems)
    where = folder if is_weights else model
    return Translator.from_pretrained(where, device=device, systems=systems)


def translator_at(checkpoint: Path, device: str, systems: Collection[str] = ()) -> Translator:
    """A checkpoint in the folder of a run, finished or not, as a translator."""
    if not checkpoint.is_dir():
        there = ", ".join(path.name for path in checkpoints(checkpoint.parent)) or "none"
        raise UserError(f"there is no checkpoint {checkpoint}; in its folder there are: {there}")
    settings = load_settings(checkpoint.parent.parent / "config.yaml", trusted=systems)
    system = new_system(settings, read_manifest(Path(settings.data.folder)).vocab_size)
    try:
        weights = averaged_weights(load_checkpoint(checkpoint)[0])
    except DamagedError as error:
        raise UserError(f"{checkpoint} is damaged: {error}; take another") from None
    check_weights(system.state_dict(), weights, f"{checkpoint} is of another model")
    system.load_state_dict(weights)
    return translator_of(settings, system.to(device).eval())


def new_system(settings: Settings, vocab_size: int) -> System:
    """The system of the settings, with random weights."""
    arguments = architecture(settings.model, vocab_size)
    return build(settings.model.system, arguments, settings.options)


def _finish(settings: Settings, trainer: Trainer) -> dict[str, Any]:
    """Leave in the model the average of the best checkpoints, or the best if that is better."""
    groups, found = [], []
    trainer.ranks.first_says(None)  # which has written them by then
    for entry in trainer.position.best[: max(settings.validation.average, 1)]:
        path = Path(settings.run) / BEST / f"step-{int(entry['step']):08d}"
        try:
            groups.append(load_checkpoint(path)[0]["model"])
            found.append(entry)
        except DamagedError as error:
            trainer.warn(f"{path} is damaged ({error}); going on without it")
    if not found:
        raise UserError(
            f"none of the best checkpoints in {Path(settings.run) / BEST} can be read; train for "
            "longer, with a higher train.steps or train.minutes, to get new ones"
        )
    best, metric = found[0], trainer.validation.metric
    result = {metric: best["score"], "model": f"best checkpoint, step {int(best['step'])}"}
    if len(groups) > 1:
        trainer.system.load_state_dict(average_tensors(groups))
        averaged = trainer.validation.score()
        result[f"{metric}_of_average"] = averaged
        if averaged > best["score"]:
            return result | {metric: averaged, "model": f"average of the {len(groups)} best"}
    trainer.system.load_state_dict(groups[0])
    return result


def _choose(
    settings: Settings, trainer: Trainer, translator: Translator, console: Console
) -> dict[str, Any]:
    """Choose how the finished model decodes, if that is wanted; all ranks find the same."""
    wanted = settings.validation.choose_decoding
    if not (trainer.system.chooses_decoding if wanted is None else wanted):
        return {}
    tried = choose_decoding(translator, trainer.validation)
    if not tried:
        return {}
    best = tried[0]["bleu"]
    console.print(
        f"decoding, the best of {len(tried)} on validation: {translator.decoding_with()}; "
        f"{in_one_line({'bleu': best})}, length ratio {tried[0]['length_ratio']:.3f}"
    )
    return {"bleu": best, "decoding": translator.decoding, "decodings": tried}


def _shared_by_ranks(settings: Settings, manifest: Manifest) -> dict[str, Any]:
    """What must be the same for all. A machine may have the data in a place of its own."""
    mapping = flatten(settings_mapping(settings))
    same = {name: mapping[name] for name in mapping.keys() - {"run", "data.folder"}}
    sums = {name: asdict(sum_) for name, sum_ in manifest.files.items()}
    return {"oaxe": __version__, "torch": str(torch.__version__), **same, "data": sums}


def _settled(settings: Settings, system: System, ranks: Ranks) -> Settings:
    """The settings with ``data.packed`` decided: once, when the run begins."""
    packed, path = settings.data.packed, Path(settings.run) / "config.yaml"
    if packed is None and path.exists():
        packed = _settings_there(path, settings)["data"]["packed"]
    settings = replace(settings, data=replace(settings.data, packed=packed))
    packed = is_packed(settings, system, ranks)
    return replace(settings, data=replace(settings.data, packed=packed))


def _open_folder(folder: Path, settings: Settings, manifest: Manifest) -> None:
    """Begin the folder, or make sure that it belongs to this configuration and this data."""
    path = folder / "config.yaml"
    now = settings_mapping(settings)
    if path.exists():
        has_end = getattr(settings.options, "needs_end", False) or settings.optim.decay == "linear"
        may_change = MAY_CHANGE - ({"train.steps", "train.epochs"} if has_end else set())
        before, after = (
            {n: v for n, v in flatten(found).items() if n not in may_change}
            for found in (_settings_there(path, settings), now)
        )
        check_same(
            before,
            after,
            f"{folder} holds a run with other settings",
            "Choose another folder for `run`, or remove this one to start anew",
        )
    sums = {n: asdict(sum_) for n, sum_ in manifest.files.items() if not n.startswith("test.")}
    for other in settings.data.references:
        files = read_manifest(Path(other)).files
        sums |= {f"{other}/{n}": asdict(files[n]) for n in split_files("train")}
    data = folder / "data.json"
    try:
        is_other = data.exists() and strict_json.read(data) != sums
    except ValueError:
        raise UserError(
            f"{data}, which holds the checksums of the prepared text, is damaged; if the text is "
            "the same as when the run began, remove this file, and run the command again"
        ) from None
    if is_other:
        raise UserError(
            f"{' or '.join([settings.data.folder, *settings.data.references])} was prepared anew "
            f"since the run in {folder} began; choose another folder for `run`, or remove this one "
            "to start anew"
        )
    write_json(data, sums)
    write_whole(path, yaml.safe_dump(now, sort_keys=False))
    path = folder / ENVIRONMENT
    try:
        starts = strict_json.read(path) if path.exists() else []
    except ValueError:  # it is only a log, which a run does not need
        starts = [{"damaged": path.read_text("utf-8", errors="replace")}]
    starts = starts if isinstance(starts, list) else [starts]
    write_json(path, [*starts, environment()])


def _settings_there(path: Path, settings: Settings) -> dict[str, Any]:
    """The settings of the run that is in the folder."""
    try:
        return settings_mapping(load_settings(path, trusted=[settings.model.system]))
    except UserError as error:
        raise UserError(
            f"{path.parent} holds a run that this version of oaxe cannot continue; choose another "
            f"folder for `run`, or remove this one to start anew.\n{error}"
        ) from None
