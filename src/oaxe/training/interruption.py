"""SIGTERM and Ctrl-C: stop what can be done again, save, and leave."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from oaxe.support.processes import handled


class AbandonedError(Exception):
    """Work was cut short on request, before it changed anything."""


class Interruption:
    """Remembers the signals in ``asked``; they end work that is marked as repeatable at once.

    Args:
        alone: there are no other ranks. Ranks must do the same things in the same order: they
            finish the present update or validation, and agree to stop after it.
    """

    def __init__(self, alone: bool) -> None:
        self.asked = False
        self._alone = alone
        self._in_repeatable = False

    def listening(self) -> AbstractContextManager[None]:
        return handled(self._ask, signal.SIGTERM, signal.SIGINT)

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """Work that leaves no trace until it is done; AbandonedError ends it."""
        self._in_repeatable = self._alone
        try:
            if self.asked and self._alone:
                raise AbandonedError
            yield
        except Exception as error:  # torch.compile wraps what is raised while it traces
            if self.asked and self._alone:
                raise AbandonedError from error
            raise
        finally:
            self._in_repeatable = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._in_repeatable:
            self._in_repeatable = False
            raise AbandonedError
