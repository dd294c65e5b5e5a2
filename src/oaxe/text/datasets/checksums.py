"""SHA256SUMS files, as `sha256sum` writes and checks them."""

import hashlib
from pathlib import Path

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole
from oaxe.text.lines import Lines

SUMS = "SHA256SUMS"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """Digests by the name of the file within the folder; nothing if there is no list."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    with Lines(path) as lines:
        for line in iter(lines.read, None):
            match line.split(maxsplit=1):
                case [digest, name]:
                    sums[name.removeprefix("*").removeprefix("./")] = digest
                case [_]:
                    raise UserError(
                        f"{path}, line {lines.number} must be a SHA-256 and the name of a file; "
                        f"got {line[:80]!r}: correct it, or make the list again with sha256sum"
                    )
    return sums


def record(folder: Path, *names: str) -> None:
    """Add files of the folder to its list."""
    sums = read_sums(folder) | {name: sha256(folder / name) for name in names}
    with appears_whole(folder / SUMS) as file:
        file.write("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())


def check(path: Path, expected: str | None) -> None:
    """Raises UserError if the file is not what it was; None is not known and not checked."""
    if expected is not None and (found := sha256(path)) != expected:
        raise UserError(
            f"{path} has the SHA-256 {found}, its list says {expected}; it was changed or damaged: "
            "get it again"
        )
