"""The URL of a large file goes in; the file comes out: resumed, retried, verified, complete.

A server that neither says how long a file is nor sends it in chunks cannot be told from one that
was cut off: only a checksum, or the reader of the file, can.
"""

import http.client
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID, TransferSpeedColumn

import oaxe
from oaxe.support.checksums import sha256
from oaxe.support.errors import UserError

TRIES = 5  # in a row without a new byte
SECONDS = 2.0  # before the second try; doubled before each further one
TIMEOUT = 60.0
BLOCK = 1 << 20
AGAIN = (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS)  # besides 5xx
NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def download(url: str, path: Path, expected: str | None, console: Console) -> None:
    """Download a file, starting from the bytes that an earlier call has left in ``path.part``.

    Args:
        expected: SHA-256; None: not known. A file with another one is kept as ``path.refused``.

    Raises:
        UserError: there is no such file, the network or the disk fails, or the checksum is wrong.
    """
    part = path.with_name(f"{path.name}.part")
    if not console.is_terminal:
        console.print(f"downloading {url}")
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        fetch_with_retries(url, part, progress)
    tag_of(part).unlink(missing_ok=True)
    if expected is not None and (found := sha256(part)) != expected:
        refused = part.replace(path.with_name(f"{path.name}.refused"))
        raise UserError(
            f"{url} has the SHA-256 {found}, expected was {expected}: it has changed or was "
            f"damaged on its way. It is kept as {refused}; look at it, or try again later"
        )
    part.replace(path)


def fetch_with_retries(url: str, part: Path, progress: Progress) -> None:
    task = progress.add_task(part.stem, total=None)
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
                    f"{url} cannot be downloaded: {error.code} {error.reason}; look for its new "
                    f"address and save the file as {part.with_suffix('')}"
                ) from None
            problem = f"{error.code} {error.reason}"
        except NETWORK as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            raise UserError(
                f"could not write {part}: {error.strerror}; make room and run the same command "
                "again, which continues from there"
            ) from error
        failures = 1 if size(part) > before else failures + 1
        if failures == TRIES:
            raise UserError(
                f"{url} could not be downloaded in {TRIES} tries: {problem}; the same command "
                f"continues from the {size(part):,} bytes that are here"
            )
        time.sleep(SECONDS * 2 ** (failures - 1))


def fetch(url: str, part: Path, progress: Progress, task: TaskID) -> bool:
    """Add the missing bytes to the part; False if the connection ended before the file."""
    start = size(part)
    request = urllib.request.Request(url, headers={"User-Agent": f"oaxe/{oaxe.__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        if tag_of(part).is_file():  # the server sends a file that has changed from its beginning
            request.add_header("If-Range", tag_of(part).read_text("latin-1"))
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return True  # it was complete already
        part.unlink()  # longer than the file: a part of another one
        return False
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0  # the server sends all of it
        end = total_length(response.headers, start)
        progress.update(task, total=end, completed=start)
        with part.open("ab" if start else "wb") as file:
            if not start:  # only now that the old part is gone: the tag is not of that one
                save_tag(response.headers, part)
            while block := response.read(BLOCK):
                file.write(block)
                progress.update(task, advance=len(block))
    return end is None or size(part) == end


def total_length(headers: Message, start: int) -> int | None:
    """Bytes of the whole file, if the server says so."""
    total: str = headers.get("Content-Range", "").rpartition("/")[2]
    if total.isdigit():
        return int(total)
    length = headers.get("Content-Length")
    return None if length is None else start + int(length)


def save_tag(headers: Message, part: Path) -> None:
    """Store the version of the file, by its ETag or date, as far as the server sends one."""
    weak = not headers.get("ETag", "").startswith('"')  # If-Range takes no W/"..."
    tag_of(part).unlink(missing_ok=True)
    if tag := headers.get("Last-Modified" if weak else "ETag"):
        tag_of(part).write_text(tag, "latin-1")


def tag_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
