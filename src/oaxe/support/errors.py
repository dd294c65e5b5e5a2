"""The error of a user's mistake: the command line shows its message, and no traceback."""

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_INTERRUPTED = 130  # 128 + SIGINT: what shells and schedulers know an interruption by


class UserError(ValueError):
    """What was wrong, the value, what is allowed, what to do next."""

    exit_code = 1  # of the program


def listed(problems: Iterable[str]) -> str:
    """The problems of an error, to put behind its colon: a line for each."""
    return "".join(f"\n  {problem}" for problem in problems)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is close."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint to put behind an error about an unknown name; empty if no known one is close.

    Example:
        >>> did_you_mean("glatt", ["cmlm", "glat"])
        '; did you mean glat?'
        >>> did_you_mean("lrr", ["lr", "warmup"], prefix="optim.")
        '; did you mean optim.lr?'
    """
    close = nearest(name, known)
    return f"; did you mean {prefix}{close}?" if close else ""
