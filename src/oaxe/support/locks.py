"""Locks on folders."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from oaxe.support.errors import UserError
from oaxe.support.files import make_folder


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Let one process at a time work in a folder, which is created if need be.

    The lock disappears with its process, however that ends. File systems without locks are used
    without one.

    Args:
        doing: what the process does there, for the message of the next one: ``"training"``.

    Raises:
        UserError: another process holds the lock.
    """
    make_folder(folder)
    path = folder / ".lock"
    path.touch()  # a folder that cannot be written is an error, a missing lock is not
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"another process is {doing} in {folder}; wait for it, stop it, or choose another "
            "folder"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        lock.release()
