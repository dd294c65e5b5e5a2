"""The processes that train together: the ranks of torchrun, or this one alone."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oaxe.support.errors import UserError

RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    device: torch.device
    control: Any = None  # a gloo group: messages about the run never wait for a GPU

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place, on the tensor's own device."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any_of(self, flag: bool) -> bool:
        """True on every rank if it is True on one."""
        if self.world_size == 1:
            return flag
        votes = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.control)
        return bool(votes.item())

    def first_says(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
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

    def collect(self, items: list[Any]) -> list[Any]:
        """Items that were dealt out as ``items[rank::world_size]``, together again in order."""
        if self.world_size == 1:
            return items
        parts: list[list[Any]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(parts, items, group=self.control)
        together: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            together[rank :: self.world_size] = part
        return together


def join() -> Ranks:
    """Join the ranks that torchrun started; alone without it. A GPU each, if there are any."""
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
    control = dist.new_group(backend="gloo")
    return Ranks(dist.get_rank(), dist.get_world_size(), device, control)


def leave(ranks: Ranks) -> None:
    if ranks.control is not None:
        dist.destroy_process_group()
