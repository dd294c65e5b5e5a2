"""Locks on folders."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from oaxe.support.errors import UserError
from oaxe.support.files import make_folder

# Seconds. NFS releases the lock of a machine that vanished after 90, usually.
UNTIL_RELEASED = 120.0


@contextmanager
def locked(folder: Path, doing: str, patience: float = 0.0) -> Iterator[None]:
    """Let one process at a time work in a folder, which is created if need be.

    The lock ends with its process, even one that is killed. On a file system without locks there
    is none.

    Args:
        doing: what the process does there, for the message of the next one: ``"training"``.
        patience: seconds to wait for the lock. A machine that is restarted may need it before a
            file server has released the lock of its crashed process.

    Raises:
        UserError: another process holds the lock.
    """
    make_folder(folder)
    path = folder / ".lock"
    path.touch()  # a folder that cannot be written is an error, a missing lock is not
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except Timeout:
            if not patience:
                raise
            warnings.warn(
                f"{folder} is locked by another process; waiting {patience:.0f} s for it to end",
                stacklevel=3,
            )
            lock.acquire(timeout=patience)
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
