"""Work in pieces: each is done once, by whoever is free, however often the work is cut short.

FOLDER/00000012         translations of lines 12 * size to 13 * size; whole, or not there
FOLDER/00000012.taken   a process of this start is at work on it
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole

FEWEST, MOST = 1_024, 8_192  # sentences of a shard
WANTED = 32  # shards, if they are not too small then: enough to share between the GPUs of a machine


def shard_size(lines: int) -> int:
    """By the input alone: the number of processes must not change what shares a batch.

    Large enough to fill batches of like length, small enough to be lost.
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

    def forget_who_took_what(self) -> None:
        """At a start, when nobody is at work any more."""
        for path in self.folder.glob("*.taken"):
            path.unlink()

    def take(self, number: int) -> bool:
        """False if it is done, or if another process has it."""
        if self.path(number).exists():
            return False
        try:
            self.path(number).with_suffix(".taken").touch(exist_ok=False)
        except FileExistsError:
            return False
        except FileNotFoundError:
            return False  # all is done, and the first rank has removed the folder
        return True

    def write(self, number: int, lines: Sequence[str]) -> None:
        # A name of our own: a process that outlived an earlier start may be at this shard too.
        own = self.path(number).with_suffix(f".{os.getpid()}")
        with appears_whole(own) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        own.replace(self.path(number))

    def lines_done(self) -> int:
        return sum(self.lines_of(int(name)) for name in os.listdir(self.folder) if name.isdigit())

    def contents(self) -> Iterator[bytes]:
        """Of all shards in order; one that has not as many lines as it should is removed."""
        for number in range(len(self)):
            content = self.path(number).read_bytes()
            found, expected = content.count(b"\n"), self.lines_of(number)
            if found != expected or not content.endswith(b"\n"):
                self.path(number).unlink()
                raise UserError(
                    f"{self.path(number)} was damaged: it had {found:,} lines instead of "
                    f"{expected:,}. It is removed; the same command does it again"
                )
            yield content
