"""SHA256SUMS files, as `sha256sum` writes and checks them."""

import hashlib
from pathlib import Path

from oaxe.errors import UserError
from oaxe.files import appears_whole

SUMS = "SHA256SUMS"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """Digests by the name of the file within the folder; nothing if there is no list."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    pairs = (line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line)
    return {name.removeprefix("*").removeprefix("./"): digest for digest, name in pairs}


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
