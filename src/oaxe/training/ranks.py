"""The processes that train together: the ranks of torchrun, or this one alone."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from socket import gethostname
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oaxe.support.config import changed
from oaxe.support.errors import UserError, listed

RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them
SECONDS_UNTIL_SEEN = 60.0  # NFS may show a new file to other machines that late


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    device: torch.device
    control: Any = None  # a gloo group: messages about the run never wait for a GPU
    local_rank: int = 0  # on its machine

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """The first of its machine, which may have disks of its own."""
        return self.local_rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on {gethostname()}"

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place, on the tensor's own device."""
        if self.world_size > 1:
            with self._or_lost():
                dist.all_reduce(tensor)
        return tensor

    def any_of(self, flag: bool) -> bool:
        """True on every rank if it is True on one."""
        if self.world_size == 1:
            return flag
        votes = torch.tensor([flag], dtype=torch.int32)
        with self._or_lost():
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.control)
        return bool(votes.item())

    def first_says(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        with self._or_lost():
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def first_does(self, work: Callable[[], Any]) -> Any:
        """What the first rank's work returns, on every rank; and so is its UserError."""
        answer: tuple[Any, str] = (None, "")
        if self.is_first:
            try:
                answer = work(), ""
            except UserError as error:
                answer = None, str(error)
        result, problem = self.first_says(answer)
        if problem:
            raise UserError(problem)
        return result

    def stop_at(self, problem: str) -> None:
        """Raise the problem of one rank, if it is not empty, on every rank."""
        if self.any_of(bool(problem)):
            raise UserError(next(filter(None, self.collect([problem]))))

    def agree(self, values: dict[str, Any]) -> None:
        """Raises UserError on every rank if one has other values than the first."""
        differences = listed(changed(self.first_says(values), values))
        wrong = f"{self} differs from the first rank ('there'); all machines need the same:"
        self.stop_at(differences and wrong + differences)

    def must_find(self, path: Path) -> None:
        """Raises UserError on every rank if one does not find this file of the first rank's."""
        content = self.first_says(path.read_bytes() if self.is_first else None)
        deadline = time.monotonic() + SECONDS_UNTIL_SEEN
        while not (found := _holds(path, content)) and time.monotonic() < deadline:
            time.sleep(0.5)
        problem = "" if found else f"{self} does not find {path} as the first rank has written it"
        self.stop_at(problem and f"{problem}; {path.parent} must be the same on all machines")

    def enter_barrier(self) -> Callable[[], bool]:
        """Returns at once, with a function that says whether all ranks have entered.

        Both raise UserError if one of them is gone.
        """
        if self.world_size == 1:
            return lambda: True
        with self._or_lost():
            work = dist.barrier(group=self.control, async_op=True)

        def all_there() -> bool:
            with self._or_lost():
                return bool(work.is_completed() and work.wait())

        return all_there

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"{self} has lost another rank, whose own message says why: {error}. Start the "
                "same command again on all machines; what has been saved is kept"
            ) from error

    def collect(self, items: list[Any]) -> list[Any]:
        """Items that were dealt out as ``items[rank::world_size]``, together again in order."""
        if self.world_size == 1:
            return items
        parts: list[list[Any]] = [[] for _ in range(self.world_size)]
        with self._or_lost():
            dist.all_gather_object(parts, items, group=self.control)
        together: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            together[rank :: self.world_size] = part
        return together


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def join(patience: timedelta | None = None) -> Ranks:
    """Join the ranks that torchrun started; alone without it. A GPU each, if there are any.

    Args:
        patience: how long a rank waits for messages of the others; default: torch's, 30 minutes.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        # cuDNN's attention plans anew, for half a second, at every new batch shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if not all(name in os.environ for name in RENDEZVOUS):
        return Ranks(0, 1, device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    control = dist.new_group(backend="gloo", timeout=patience)
    return Ranks(dist.get_rank(), dist.get_world_size(), device, control, local)


def leave(ranks: Ranks) -> None:
    if ranks.control is not None:
        dist.destroy_process_group()
