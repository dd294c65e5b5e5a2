"""The folder of a distillation: how it begins, resumes and ends.

OUT/train.SRC, train.TGT   the source, and the teacher's translation of each of its lines
OUT/subwords.model         of the teacher, for `oaxe prepare --subwords`
OUT/manifest.json          teacher, settings, counts, checksums, environment; written last
OUT/shards/                until it is finished, see oaxe.distillation.shards
  plan.json                settings, counts and the environment of each start
  valid.json               the teacher's BLEU
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Translator
from oaxe.distillation.shards import Shards, shard_size
from oaxe.support import strict_json
from oaxe.support.checksums import Checksum, checksum, problem
from oaxe.support.config import check_same
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole, write_json
from oaxe.text.lines import read_in_chunks
from oaxe.text.manifest import MANIFEST, SUBWORDS

FORMAT = "oaxe distillation 1"
SHARDS, PLAN, VALID = "shards", "plan.json", "valid.json"
CHUNK = 8_192  # lines that are read together


def open_folder(
    out: Path,
    settings: dict[str, Any],
    batch_tokens: int,
    source: Path,
    translator: Translator,
    console: Console,
) -> Shards | None:
    """Begin a folder or resume it; None if it is finished.

    ``batch_tokens`` may change between starts: a run that was out of memory can resume with less.
    """
    folder = out / SHARDS
    if manifest := read_json(out / MANIFEST):
        if manifest.get("format") != FORMAT:
            raise UserError(f"{out} holds another {MANIFEST}; choose another folder for --out")
        compare(out, manifest["settings"], settings)
        verify(out, manifest["files"])
        shutil.rmtree(folder, ignore_errors=True)  # a process was killed at its very end
        return None
    plan = read_json(folder / PLAN)
    if not plan:
        outputs = [*file_names(translator), SUBWORDS]
        if found := [name for name in outputs if (out / name).exists()]:
            raise UserError(
                f"{out} has {' and '.join(found)} already, which would be overwritten; "
                "choose another folder for --out"
            )
        console.print(f"reading {source}")
        counts = survey(source, translator)
        plan = {"settings": settings, "counts": counts, "shard_size": shard_size(counts["lines"])}
    compare(out, plan["settings"], settings)
    if cut := plan["counts"]["cut"]:
        limit = translator.system.max_length
        console.print(
            f"warning: {cut:,} lines have more than {limit} subwords, the most that this teacher "
            f"can read, and are cut there; `oaxe prepare --max-length {limit}` drops these pairs"
        )
    folder.mkdir(exist_ok=True)
    plan["starts"] = [*plan.get("starts", []), environment() | {"batch_tokens": batch_tokens}]
    write_json(folder / PLAN, plan)
    shards = Shards(folder, plan["counts"]["lines"], plan["shard_size"])
    shards.release_all()
    return shards


def finish(
    out: Path, shards: Shards, source: Path, translator: Translator, teacher: str, console: Console
) -> None:
    """Join the shards, write the manifest, and only then remove the shards."""
    left, right = file_names(translator)
    texts = ("".join(f"{line}\n" for line in lines) for lines in read_in_chunks(source, CHUNK))
    write_pieces(out / left, (text.encode() for text in texts))
    blank = write_pieces(out / right, shards.contents())
    (out / SUBWORDS).write_bytes(translator.subwords.model)
    plan = read_json(shards.folder / PLAN)
    plan["counts"]["blank translations"] = blank
    manifest = {
        "format": FORMAT,
        "teacher": {"path": teacher, "validation_bleu": validation_bleu(Path(teacher))},
        "valid": read_json(shards.folder / VALID) or None,
        **plan,
        "files": {name: asdict(checksum(out / name)) for name in (left, right, SUBWORDS)},
    }
    write_json(out / MANIFEST, manifest)
    shutil.rmtree(shards.folder)
    source_language, target_language = translator.languages
    console.print(
        f"{shards.lines:,} lines in {out}. To train on them, with the teacher's subwords and the "
        f"raw validation and test text:\n  oaxe prepare FOLDER --from {source_language} "
        f"--to {target_language} --subwords {out / SUBWORDS} --train {out / left} {out / right} "
        "--valid ... --test ...",
        soft_wrap=True,
    )


def file_names(translator: Translator) -> tuple[str, str]:
    """The names of the two texts: train.en and train.de, or train.source for odd codes."""
    source, target = translator.languages
    if source == target or not all(re.fullmatch(r"[\w-]+", name) for name in (source, target)):
        source, target = "source", "target"
    return f"train.{source}", f"train.{target}"


def survey(source: Path, translator: Translator) -> dict[str, int]:
    """Count the lines, reading all of them: errors in the text come before the work begins."""
    counts = {"lines": 0, "blank": 0, "cut": 0}
    for lines in read_in_chunks(source, CHUNK):
        lengths = [*map(len, translator.subwords.encode([line.strip() for line in lines]))]
        counts["lines"] += len(lines)
        counts["blank"] += lengths.count(0)
        counts["cut"] += sum(length > translator.system.max_length for length in lengths)
    return counts


def compare(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError if the settings that the translations depend on have changed."""
    advice = "Choose another folder for --out, or remove this one to start anew"
    check_same(before, now, f"{out} holds a distillation with other settings", advice)


def verify(out: Path, files: dict[str, dict[str, Any]]) -> None:
    for name, expected in files.items():
        if wrong := problem(out / name, Checksum(**expected)):
            raise UserError(
                f"{wrong}; choose another folder for --out, or remove this one to start anew"
            )


def write_pieces(path: Path, pieces: Iterable[bytes]) -> int:
    """Returns the number of blank lines."""
    blank = 0
    with appears_whole(path) as file:
        for piece in pieces:
            file.write(piece)
            blank += sum(not line.strip() for line in piece.split(b"\n")[:-1])
    return blank


def validation_bleu(teacher: Path) -> float | None:
    """The validation BLEU in the teacher's run, if it is one."""
    run = teacher.parent if teacher.name == "model" else teacher
    return read_json(run / "result.json").get("bleu")


def read_json(path: Path) -> dict[str, Any]:
    """Empty if there is no such file."""
    try:
        content: dict[str, Any] = strict_json.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; remove {path.parent}") from None
    return content
