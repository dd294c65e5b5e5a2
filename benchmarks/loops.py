"""Loops of training that are timed: the trainer, and what an ordinary user would write."""

import copy
import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from oaxe.model import attention
from oaxe.model.masking import IGNORED
from oaxe.support.timing import Timing
from oaxe.systems import Example, System
from oaxe.text.batches import UpdateLoader
from oaxe.text.corpus import Corpus
from oaxe.text.plans import Limits
from oaxe.training.ranks import Ranks
from oaxe.training.settings import Settings
from oaxe.training.trainer import Trainer
from oaxe.training.validation import Validation

AHEAD = 8  # updates that may wait for the GPU, so that it never waits for the clock
PLAIN_SYSTEMS = ("cmlm", "transformer", "language_model")  # of cross entropy, or near it


class Loop(Protocol):
    waited: float  # seconds, for data

    def one_update(self) -> int:
        """Do one update; returns its target tokens."""

    def close(self) -> None: ...


class Turn(NamedTuple):
    seconds: float
    updates: int
    tokens: int
    waited: float


def summed_up(turns: dict[str, list[Turn]]) -> tuple[dict[str, Timing], dict[str, float]]:
    """Of each loop: the seconds of an update in each turn, and the tokens a second of all turns."""
    timings = {name: Timing([t.seconds / t.updates for t in ts]) for name, ts in turns.items()}
    rate = {n: sum(t.tokens for t in ts) / sum(t.seconds for t in ts) for n, ts in turns.items()}
    return timings, rate


def run_for(
    loop: Loop,
    device: torch.device,
    seconds: float = math.inf,
    enough: Callable[[int], bool] = lambda updates: False,
) -> Turn:
    """Updates until the time is over, or their number is enough; at least one."""
    ahead: deque[torch.cuda.Event] = deque()
    updates, tokens, waited = 0, 0, loop.waited
    started = now(device)
    while not updates or not (time.perf_counter() - started >= seconds or enough(updates)):
        tokens += loop.one_update()
        updates += 1
        if device.type == "cuda":
            ahead.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
            ahead[-1].record()
            if len(ahead) > AHEAD:
                ahead.popleft().synchronize()
    return Turn(now(device) - started, updates, tokens, loop.waited - waited)


def now(device: torch.device) -> float:
    """The time when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Whole:
    """The trainer with all that it does, but for validation and checkpoints."""

    def __init__(
        self, settings: Settings, system: System, corpus: Corpus, ranks: Ranks, console: Console
    ) -> None:
        validation = Validation(corpus, settings, ranks)
        self.trainer = Trainer(settings, system, corpus, validation, ranks, console)
        self.loader = self.trainer.loader()
        self.waited = 0.0

    def one_update(self) -> int:
        asked = time.perf_counter()
        update = next(self.loader)
        self.waited += time.perf_counter() - asked
        self.trainer.one_update(update)
        return update.n_target_tokens

    @property
    def recorded(self) -> bool:
        """Whether its updates are CUDA graphs."""
        recordings = self.trainer.update.recordings
        return recordings is not None and not recordings.failed

    def close(self) -> None:
        self.loader.close()
        if self.trainer.update.recordings:
            self.trainer.update.recordings.forget()


class Plain:
    """The same model in PyTorch's own layers, with padding, stored logits and no graphs.

    Sentences of like length share a batch. Its loss is cross entropy, whatever the trainer's is.
    """

    def __init__(self, settings: Settings, system: System, corpus: Corpus, ranks: Ranks) -> None:
        self.settings, self.device = settings, ranks.device
        self.system = copy.deepcopy(system).train()
        self.system.transformer.room = None
        optim, data = settings.optim, settings.data
        self.optimizer = torch.optim.AdamW(
            self.system.parameters(),
            lr=optim.lr / optim.warmup,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=self.device.type == "cuda",
        )
        limits = Limits(data.batch_tokens, data.update_tokens, settings.train.seed, epoch=0)
        self.loader = UpdateLoader(corpus, limits, device=self.device)
        self.waited = 0.0

    def one_update(self) -> int:
        asked = time.perf_counter()
        update = next(self.loader)
        self.waited += time.perf_counter() - asked
        before, attention.KERNELS = attention.KERNELS, False
        try:
            examples = [self.system.example(b.source, b.target) for b in update.batches]
            words = torch.stack([example.n_words for example in examples]).sum()
            self.optimizer.zero_grad()
            half = self.settings.train.precision == "bf16"
            for example in examples:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                    loss = self.loss(example) / words
                loss.backward()  # type: ignore[no-untyped-call]
            if clip := self.settings.optim.clip:
                torch.nn.utils.clip_grad_norm_(self.system.parameters(), clip)
            self.optimizer.step()
        finally:
            attention.KERNELS = before
        return update.n_target_tokens

    def loss(self, example: Example) -> Tensor:
        transformer, lengths = self.system.transformer, torch.zeros((), device=self.device)
        if (predictor := getattr(self.system, "length", None)) is None:
            encoded = transformer.encode(example.source)
        else:
            encoded, length_logits = predictor.encode(transformer, example.source)
            lengths = F.cross_entropy(length_logits, example.length, reduction="sum")
        logits = transformer.logits(transformer.decode(example.inputs, example.mask, encoded))
        smoothing = self.system.options.label_smoothing
        words = F.cross_entropy(
            logits.flatten(0, 1),
            example.target.flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )
        return words + lengths

    def close(self) -> None:
        self.loader.close()
