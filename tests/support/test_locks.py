import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest

from oaxe.support.errors import UserError
from oaxe.support.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from oaxe.support.locks import locked
with locked(Path(sys.argv[1]), "training"):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "new/run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        expected = f"another process is distilling in {folder}; wait for it, stop it, or choose"
        with pytest.raises(UserError, match=expected), locked(folder, "distilling"):
            pass
        process.kill()
    with locked(folder, "distilling"):
        pass


def test_waiting_for_a_process_that_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with (
            pytest.warns(UserWarning, match=r"locked by another process; waiting 0 s for it"),
            pytest.raises(UserError, match="another process is training in"),
            locked(tmp_path, "training", patience=0.1),
        ):
            pass
        threading.Timer(0.3, process.kill).start()
        with (
            pytest.warns(UserWarning, match=r"waiting 20 s"),
            locked(tmp_path, "training", patience=20),
        ):
            assert process.wait() < 0


def test_the_lock_is_released_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path, "training"):
        raise KeyError
    with locked(tmp_path, "training"), pytest.raises(UserError), locked(tmp_path, "training"):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_used(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", fail)
    assert filelock.has_fcntl
    with locked(tmp_path, "training"):
        (tmp_path / "file").touch()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    not_there = pytest.raises(
        UserError, match=r"cannot make the folder .*file/run: Not a directory"
    )
    with not_there, locked(tmp_path / "file/run", "training"):
        pass
    (tmp_path / ".lock").symlink_to("nowhere/lock")
    with pytest.raises(FileNotFoundError), locked(tmp_path, "training"):
        pass
