"""Published results: one compressed archive a data set, read by ``--no-train``.

results/DATASET.tar.xz holds what OUT/DATASET has, without data, runs and logs, and without the test
sets, whose licences differ. The same files always give the same bytes: names are sorted, by file
name first so that outputs on the same test set lie next to each other, and times, owners and modes
are fixed.
"""

import lzma
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole

PUBLISHED = Path(__file__).parent / "results"
LEFT_OUT = {"data", "teacher-text", "teacher-text-2", "teacher-text-3", "judged-text", "ngrams"}
LEFT_OUT |= {"runs", "logs", "gold"}


def archive_path(dataset: str) -> Path:
    return PUBLISHED / f"{dataset}.tar.xz"


def pack(out: Path, dataset: str) -> Path:
    """Write the archive of OUT/DATASET; an archive with files that OUT lacks is not replaced."""
    paths = [
        path.relative_to(out)
        for path in (out / dataset).rglob("*")
        if path.is_file() and not LEFT_OUT & {*path.relative_to(out).parts}
    ]
    if not paths:
        raise UserError(f"{out / dataset} holds no results; name the folder with --out")
    archive = archive_path(dataset)
    if archive.exists():
        with tarfile.open(archive) as tar:
            lost = sorted({*tar.getnames()} - {path.as_posix() for path in paths})
        if lost:
            raise UserError(
                f"{archive} has {len(lost)} files that are not in {out}, such as {lost[0]}; unpack "
                "it there first, or remove the archive"
            )
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        appears_whole(archive) as file,
        lzma.open(file, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(paths, key=lambda path: (path.name, path.as_posix())):
            entry = tarfile.TarInfo(path.as_posix())  # no owner, time 0, mode 644
            entry.size = (out / path).stat().st_size
            with (out / path).open("rb") as content:
                tar.addfile(entry, content)
    return archive


def unpack(out: Path, dataset: str, preset: str, console: Console) -> None:
    """Published results into OUT, where there are none of this data set and preset yet."""
    archive = archive_path(dataset)
    if (out / dataset / preset / "results").exists() or not archive.exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as folder:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise UserError(f"{archive} is damaged: {error}; check it out again") from None
        (out / dataset).mkdir(exist_ok=True)
        for part in sorted((Path(folder) / dataset).iterdir()):
            if not (out / dataset / part.name).exists():
                part.rename(out / dataset / part.name)
    if (out / dataset / preset).exists():
        found = f"published results of {dataset} unpacked into {out}"
    else:
        found = f"no published results of {dataset} have the preset {preset}"
    console.print(found)
