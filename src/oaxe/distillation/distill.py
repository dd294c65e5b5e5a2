"""``oaxe distill``: sequence-level knowledge distillation (Kim and Rush, 2016).

The teacher translates the training source with beam search. Its translations vary less than the
references, which they replace.

A judge may choose among the hypotheses of the beam: the E-step of EM (Sun and Yang, 2020). The
M-step trains the judge on the chosen ones.
"""

import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from oaxe.decoding.likelihood import check_judge, likeliest
from oaxe.decoding.translator import Translator
from oaxe.distillation.display import progress_bar
from oaxe.distillation.folder import PLAN, VALID, finish, open_folder, read_json
from oaxe.distillation.shards import Shards
from oaxe.distillation.workers import check, workers
from oaxe.support.checksums import checksum
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError
from oaxe.support.files import write_json
from oaxe.support.locks import UNTIL_RELEASED, locked
from oaxe.text.bleu import corpus_bleu
from oaxe.text.guess import ENOUGH, warn_of_target
from oaxe.text.languages import check_direction, language_in_name
from oaxe.text.lines import Pair, read_in_chunks, read_pairs
from oaxe.text.manifest import read_manifest
from oaxe.text.prepare import input_checksum
from oaxe.training.interruption import AbandonedError, Interruption
from oaxe.training.ranks import join, leave
from oaxe.training.run import load_translator

POOR = 5.0  # BLEU
GPU_TOKENS, CPU_TOKENS = 131_072, 16_384  # of a batch
LONGEST_SHARD = timedelta(days=7)  # for which a rank waits at the end; on a CPU it can take hours
SECONDS_BETWEEN_LOOKS = 0.2  # at the shards that other processes have done


def distill(
    out: Path,
    *,
    teacher: str,
    source: Path,
    languages: tuple[str, str] | None = None,
    beam: int = 5,
    length_penalty: float = 1.0,
    batch_tokens: int | None = None,
    bf16: bool | None = None,
    device: str | None = None,
    processes: int = 1,
    valid: Pair | None = None,
    judge: str | None = None,
    systems: Collection[str] = (),
    console: Console,
) -> bool:
    """Translate the source with the teacher, on all ranks; False if it was interrupted.

    The same call continues where an earlier one was stopped. The translation of a line depends on
    the lines of its shard and on ``batch_tokens`` (by rounding), but not on how many ranks,
    processes or interruptions there are.

    Args:
        out: folder to make, see :mod:`oaxe.distillation.folder`.
        teacher: an autoregressive model, see :func:`oaxe.training.run.load_translator`.
        source: text (plain, ``.gz`` or ``.xz``), a sentence a line. Blank lines stay blank.
        languages: of source and target; default: those in the names of the files.
        beam, length_penalty, batch_tokens, bf16: see :meth:`Translator.translate`. Default:
            bfloat16 and large batches on a GPU; float32 and smaller ones on a CPU.
        device: default: a GPU for each rank, if there are any.
        processes: that share the device of each rank. One fills a GPU; a CPU can use one a core.
        valid: source and reference to measure the teacher's BLEU on, before it begins.
        judge: a one-pass model; of the hypotheses in the beam, the one that it finds likeliest is
            kept. Default: the best one by the teacher's own score.
        systems: modules with systems of the user's own that the models may need.
        console: where the first rank reports.

    Raises:
        UserError: a file or the teacher cannot be used, or the folder holds something else.
    """
    inputs = [asdict(input_checksum(path)) for path in (source, *(valid or ()))]
    valid_lines = [*read_pairs(*valid)] if valid else None  # before the folder is bound to them
    ranks = join(LONGEST_SHARD)
    interruption = Interruption(alone=True)  # no rank waits for another
    if not ranks.is_first:
        console = Console(quiet=True)
    try:
        if device is None or device == ranks.device.type:
            device = str(ranks.device)
        translator, chooser = load_models(teacher, judge, device, systems)
        on_gpu = translator.system.device.type == "cuda"
        bf16 = on_gpu if bf16 is None else bf16
        batch_tokens = batch_tokens or (GPU_TOKENS if on_gpu else CPU_TOKENS)
        check_languages(teacher, translator.languages, source, languages, valid)
        if ranks.is_first:
            warn_of_target(next(read_in_chunks(source, ENOUGH)), translator.languages, source)
        options = {"beam": beam, "length_penalty": float(length_penalty)}
        settings = {
            "teacher": fingerprint(translator),
            "decoding": to_mapping(translator.decoding_with(**options)),
            "bf16": bf16,
            "source": inputs[0],
            **({"judge": fingerprint(chooser)} if chooser else {}),
        }
        ranks.agree(settings)
        how: dict[str, Any] = {"batch_tokens": batch_tokens, "bf16": bf16, **options}
        with ExitStack() as stack, interruption.listening(), interruption.repeatable():

            def begin() -> Shards | None:
                patience = UNTIL_RELEASED if ranks.world_size > 1 else 0
                stack.enter_context(locked(out, "distilling", patience))
                return open_folder(out, settings, batch_tokens, source, translator, console)

            shards: Shards | None = ranks.first_does(begin)
            if shards is None:
                console.print(f"{out} is already done with these settings")
                return True
            ranks.must_find(shards.folder / PLAN)
            if valid_lines is not None and ranks.is_first:
                score_teacher(
                    shards.folder / VALID, translator, valid_lines, inputs[1:], how, console
                )
            others = stack.enter_context(
                workers(
                    processes - 1,
                    translate_beside,
                    shards,
                    source,
                    (teacher, judge, device, systems),
                    how,
                )
            )
            if not ranks.is_first:
                for _ in translate_shards(shards, source, translator, chooser, how):
                    check(others)
                for process in others:
                    process.join()
                check(others)
                wait_until(ranks.enter_barrier())
                return True
            with progress_bar(console, shards.lines, shards.lines_done()) as show:
                for _ in translate_shards(shards, source, translator, chooser, how):
                    show(shards.lines_done())
                    check(others)
                all_there = ranks.enter_barrier()
                while show(shards.lines_done()) < shards.lines:  # others are at work
                    check(others)
                    all_there()  # or gone
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finish(out, shards, source, translator, teacher, console)
            wait_until(all_there)
            return True
    except AbandonedError:
        console.print("interrupted; the same command continues from here")
        return False
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"too little memory for batches of {batch_tokens or GPU_TOKENS:,} tokens: {error}. "
            "Finished translations are kept; run the same command with a lower --batch-tokens"
        ) from error
    except OSError as error:
        raise UserError(
            f"a file could not be read or written: {error}. {out} must be writable, with room for "
            "the text twice. Finished translations are kept; then run the same command again"
        ) from error
    finally:
        leave(ranks)


def training_source(data: Path) -> Path:
    """The file that the training source of a prepared folder was made from.

    Its name may be relative to the directory of that time: it is looked for here, then in the
    folder and the folders around it. The checksum tells whether it is the right one.
    """
    manifest = read_manifest(data)
    given, folder = Path(manifest.splits["train"].files[0]), data.resolve()
    paths = dict.fromkeys([given, *(around / given for around in (folder, *folder.parents))])
    found = [path for path in paths if path.is_file()]
    for path in found:
        if checksum(path) == manifest.inputs["train.source"]:
            return path
    problem = (
        f"which has changed since ({found[0]})"
        if found
        else f"which is neither here nor in {folder} or a folder around it"
    )
    raise UserError(
        f"{data} keeps no training text and was made from {given}, {problem}; name the file with "
        "--source FILE"
    )


def load_teacher(name: str, device: str | None, systems: Collection[str]) -> Translator:
    translator = load_translator(name, device, systems)
    if not translator.system.refills:
        raise UserError(
            f"the teacher {name} is a {translator.system.name}, which does not go word by word; "
            "distillation needs an autoregressive teacher: train one with model.system: transformer"
        )
    return translator


def load_models(
    teacher: str, judge: str | None, device: str | None, systems: Collection[str]
) -> tuple[Translator, Translator | None]:
    """The teacher, and the judge if there is one."""
    translator = load_teacher(teacher, device, systems)
    if judge is None:
        return translator, None
    found = load_translator(judge, device, systems)
    check_judge(found, judge)
    if found.subwords.model != translator.subwords.model:
        raise UserError(
            f"the judge {judge} has other subwords than the teacher {teacher}; prepare its data "
            "with --subwords, those of the teacher, and train it on them"
        )
    if found.languages != translator.languages:
        ours, theirs = (" to ".join(model.languages) for model in (found, translator))
        raise UserError(f"the judge {judge} translates {ours}, the teacher {teacher} {theirs}")
    return translator, found


def check_languages(
    teacher: str,
    its: tuple[str, str],
    source: Path,
    languages: tuple[str, str] | None,
    valid: Pair | None,
) -> None:
    """Raises UserError for a teacher of other languages, where those of the text are known."""
    check_direction(
        f"the teacher {teacher}", its, source, languages or (language_in_name(source, its), "")
    )
    if valid:
        names = [language_in_name(path, its) for path in valid]
        check_direction(f"the teacher {teacher}", its, valid[0], names)


def fingerprint(translator: Translator) -> str:
    """SHA-256 of subwords, weights and their names; the same in any folder."""
    digest = sha256(translator.subwords.model)
    for name, tensor in sorted(translator.system.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def score_teacher(
    path: Path,
    translator: Translator,
    valid: list[tuple[str, str]],  # sources and references
    files: list[dict[str, Any]],
    how: dict[str, Any],
    console: Console,
) -> None:
    """Measure the BLEU of the teacher with these settings, once for the same files."""
    if read_json(path).get("files") == files:
        return
    sources, references = map(list, zip(*valid, strict=True))
    hypotheses = translate_quietly(translator, sources, how)
    found = corpus_bleu(hypotheses, [references], translator.languages[1])
    score, signature = found["score"], found["signature"]
    write_json(path, {"bleu": score, "signature": signature, "files": files})
    console.print(f"teacher: BLEU {score:.2f} on {len(sources):,} sentences, {signature}")
    if score < POOR:
        console.print(
            "warning: students of this teacher will be no better; are the files of --valid in the "
            "right order, and is the teacher fully trained?",
            style="yellow",
        )


def translate_shards(
    shards: Shards,
    source: Path,
    translator: Translator,
    judge: Translator | None,
    how: dict[str, Any],
) -> Iterator[int]:
    """Translate, one by one, the shards that no process has done or taken."""
    for number, lines in enumerate(read_in_chunks(source, shards.size)):
        if shards.take(number):
            shards.write(number, translate_quietly(translator, lines, how, judge))
            yield number


def translate_beside(
    shards: Shards,
    source: Path,
    models: tuple[str, str | None, str | None, Collection[str]],  # arguments of load_models
    how: dict[str, Any],
) -> None:
    """Translate shards in another process."""
    for _ in translate_shards(shards, source, *load_models(*models), how):
        pass


def wait_until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(SECONDS_BETWEEN_LOOKS)


def translate_quietly(
    translator: Translator, lines: list[str], how: dict[str, Any], judge: Translator | None = None
) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # long lines, which were counted before
        if judge is None:
            return translator.translate(lines, **how)
        found = translator.translate_scored(lines, **how)
    size = {"batch_tokens": how["batch_tokens"], "bf16": how["bf16"]}
    return likeliest(judge, lines, found, **size)
