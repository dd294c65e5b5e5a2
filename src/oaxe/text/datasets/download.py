"""Large files over HTTP: resumed, tried again, checked, and there only when they are whole.

A server that says neither how long a file is nor sends it in chunks cannot be told from one that
was cut off: only a checksum, or whoever reads the file, can.
"""

import http.client
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import oaxe
from oaxe.support.errors import UserError
from oaxe.text.datasets.checksums import sha256

TRIES = 5  # in a row that bring nothing
SECONDS = 2.0  # before the second try; twice as long before each that follows
TIMEOUT = 60.0
BLOCK = 1 << 20
AGAIN = (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS)  # besides 5xx
NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def download(url: str, path: Path, expected: str | None, console: Console) -> None:
    """Fetch a file; what an earlier call has left in ``path.part`` is not fetched again.

    Args:
        url: of the file.
        path: to write; its folder must exist.
        expected: SHA-256; None: not known. A file with another one is kept as ``path.refused``.
        console: where a bar is shown, or a line if it is no terminal.

    Raises:
        UserError: there is no such file, the network or the disk fails, or the checksum is wrong.
    """
    part = path.with_name(f"{path.name}.part")
    if not console.is_terminal:
        console.print(f"downloading {url}", highlight=False)
    columns = (
        TextColumn(path.name),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        fetch_patiently(url, part, progress)
    validator(part).unlink(missing_ok=True)
    if expected is not None and (found := sha256(part)) != expected:
        refused = part.replace(path.with_name(f"{path.name}.refused"))
        raise UserError(
            f"{url} has the SHA-256 {found}, expected was {expected}: it has changed or was "
            f"damaged on its way. It is kept as {refused}; look at it, or try again later"
        )
    part.replace(path)


def fetch_patiently(url: str, part: Path, progress: Progress) -> None:
    task = progress.add_task(url)
    failures = 0
    while True:
        before = size(part)
        try:
            if fetch(url, part, progress, task):
                return
            problem = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in AGAIN:
                raise UserError(
                    f"{url} cannot be had: {error.code} {error.reason}; look for its new place "
                    f"and put the file there as {part.with_suffix('')}"
                ) from None
            problem = f"{error.code} {error.reason}"
        except NETWORK as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            raise UserError(
                f"could not write {part}: {error.strerror}; make room and run the same command "
                "again, which goes on from there"
            ) from error
        failures = 1 if size(part) > before else failures + 1
        if failures == TRIES:
            raise UserError(
                f"{url} could not be fetched in {TRIES} tries: {problem}; the same command goes on "
                f"from the {size(part):,} bytes that are here"
            )
        time.sleep(SECONDS * 2 ** (failures - 1))


def fetch(url: str, part: Path, progress: Progress, task: TaskID) -> bool:
    """Add to the part what is missing of it; False if the connection ended before the file."""
    start = size(part)
    headers = {"User-Agent": f"oaxe/{oaxe.__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator(part).is_file():  # another file than the one begun is sent whole
            headers["If-Range"] = validator(part).read_text("latin-1")
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return True  # it was whole already
        part.unlink()  # longer than the file: of another one
        return False
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0  # the server sends all of it, whatever was asked for
        end = whole_length(response.headers, start)
        progress.update(task, total=end, completed=start)
        with part.open("ab" if start else "wb") as file:
            if not start:  # after the old part is gone: it must never have the new one's name
                remember(response.headers, part)
            while block := response.read(BLOCK):
                file.write(block)
                progress.update(task, advance=len(block))
    return end is None or size(part) == end


def whole_length(headers: Message, start: int) -> int | None:
    """Bytes of the whole file, if the server says so."""
    total: str = headers.get("Content-Range", "").rpartition("/")[2]
    if total.isdigit():
        return int(total)
    length = headers.get("Content-Length")
    return None if length is None else start + int(length)


def remember(headers: Message, part: Path) -> None:
    """Which file the part is of, by its ETag or else its date; servers may name neither."""
    tag = headers.get("ETag", "")
    name = tag if tag.startswith('"') else headers.get("Last-Modified")  # not W/"...": If-Range
    validator(part).unlink(missing_ok=True)
    if name:
        validator(part).write_text(name, "latin-1")


def validator(part: Path) -> Path:
    return part.with_name(f"{part.name}.validator")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
