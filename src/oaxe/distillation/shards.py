"""The source in shards: each is translated once, by any process, across any number of restarts.

FOLDER/00000012         translations of lines 12 * size to 13 * size; complete or absent
FOLDER/00000012.taken   a process of this start is translating it
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from oaxe.support.errors import UserError
from oaxe.text.lines import write_lines

FEWEST, MOST = 1_024, 8_192  # sentences of a shard
WANTED = 32  # shards, if they are not too small then: enough to share between the GPUs of a machine


def shard_size(lines: int) -> int:
    """Sentences of a shard: enough for batches of similar lengths, few enough to do again.

    It depends on the input alone: the number of processes must not change which share a batch.
    """
    return min(max(math.ceil(lines / WANTED), FEWEST), MOST)


@dataclass(frozen=True)
class Shards:
    folder: Path
    lines: int
    size: int

    def __len__(self) -> int:
        return math.ceil(self.lines / self.size)

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08d}"

    def lines_of(self, number: int) -> int:
        return min(self.size, self.lines - number * self.size)

    def release_all(self) -> None:
        """Release all shards that a killed start has taken; no process of it is left."""
        for path in self.folder.glob("*.taken"):
            path.unlink()

    def take(self, number: int) -> bool:
        """False if it is done, or if another process has it."""
        if self.path(number).exists():
            return False
        try:
            self.path(number).with_suffix(".taken").touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):  # the folder goes when all shards are done
            return False
        return True

    def write(self, number: int, lines: Sequence[str]) -> None:
        # Under a name of its own: a process that outlived an earlier start may write it too.
        own = self.path(number).with_suffix(f".{uuid4().hex}")
        write_lines(own, lines)
        own.replace(self.path(number))

    def lines_done(self) -> int:
        return sum(self.lines_of(int(name)) for name in os.listdir(self.folder) if name.isdigit())

    def contents(self) -> Iterator[bytes]:
        """All shards in order; one with a wrong number of lines is removed, with a UserError."""
        for number in range(len(self)):
            content = self.path(number).read_bytes()
            found, expected = content.count(b"\n"), self.lines_of(number)
            if found != expected or not content.endswith(b"\n"):
                self.path(number).unlink()
                raise UserError(
                    f"{self.path(number)} was damaged: it had {found:,} lines instead of "
                    f"{expected:,}. It is removed; the same command translates it again"
                )
            yield content
