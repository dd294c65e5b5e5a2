"""The one error that is the user's to mend: the command line shows its message, no traceback."""

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_INTERRUPTED = 130  # 128 + SIGINT: what shells and schedulers know an interruption by


class UserError(ValueError):
    """What was wrong, the value, what is allowed, what to do next."""

    exit_code = 1  # of the program


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to put behind an error about an unknown name; empty if no known one is close.

    Example:
        >>> did_you_mean("glatt", ["cmlm", "glat"])
        '; did you mean glat?'
    """
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
