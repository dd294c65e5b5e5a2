"""One update of the weights: gradients, their sum over ranks, clipping, optimiser, averages.

On a GPU an update is two CUDA graphs: that of each of its batches, and that of the weights. (Over
several GPUs the sum of the gradients stands between them.)
"""

from collections.abc import Callable, Hashable

import numpy as np
import torch
from torch import Tensor

from oaxe.support.errors import UserError
from oaxe.systems import Example, Progress, System
from oaxe.text.batches import Batch, Update
from oaxe.text.plans import Room
from oaxe.text.symbols import EOS, UNK
from oaxe.training.averaging import Averages
from oaxe.training.gradients import Gradients
from oaxe.training.ranks import Ranks
from oaxe.training.recordings import Recordings, Tensors, may_record
from oaxe.training.running_statistics import RunningStatistics
from oaxe.training.schedule import learning_rate
from oaxe.training.settings import Settings


class Step:
    def __init__(
        self, settings: Settings, system: System, ranks: Ranks, warn: Callable[[str], None]
    ) -> None:
        self.settings, self.system, self.ranks = settings, system, ranks
        optim, train = settings.optim, settings.train
        on_gpu = ranks.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            system.parameters(),
            lr=torch.tensor(optim.lr, device=ranks.device) if on_gpu else optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.statistics = RunningStatistics(ranks)
        self.averages = Averages(system, train.ema) if train.ema else None
        transformer = system.transformer
        transformer.recompute = train.recompute
        if train.compile:
            # Layer by layer: all layers of a kind share one graph, compiled in seconds.
            for layer in (*transformer.encoder, *transformer.decoder):
                layer.compile(dynamic=True)
        half = train.precision == "bf16"
        self.gradients = Gradients(system, half=half, copies=not train.compile)
        self.recordings = Recordings(warn) if may_record(system, train, ranks) else None

    def gradient(self, update: Update, number: int) -> Tensor:
        """Compute the gradient of an update, counted from 1, into ``grad``; returns its loss."""
        settings, ranks = self.settings, self.ranks
        # Every update seeds itself: a resumed run needs no generator state to repeat it.
        entropy = [settings.train.seed, number, ranks.rank]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]))
        self.system.train()
        # A rank without a batch takes part with one sentence of weight zero.
        nothing = Batch(torch.tensor([[EOS]]), torch.tensor([[UNK]]), torch.tensor([0]), 1)
        batches = update.batches or [nothing.to(ranks.device)]
        weight = float(bool(update.batches))
        examples = [self.example(batch) for batch in batches]
        words = torch.zeros((), device=ranks.device)
        for example in examples:
            words += weight * example.n_words
        ranks.add_up(words)
        progress = self._progress(update)
        total = torch.zeros((), device=ranks.device)
        sums: Tensor | None = None
        for batch, example in zip(batches, examples, strict=True):
            loss, stats = self.differentiate(
                example, progress, weight / words, room=self.room(batch), first=sums is None
            )
            # Zeros as well, so that all ranks have the same statistics to add up.
            sums = weight * stats.double() + (0.0 if sums is None else sums)
            total += weight * loss
        assert sums is not None
        self.statistics.add(progress.phase, sums)
        return total

    def differentiate(
        self,
        example: Example,
        progress: Progress,
        scale: Tensor,
        *,
        room: Room | None = None,
        first: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Loss, and sums and numbers of its statistics; valid until the next call.

        Args:
            scale: of the gradient.
            room: of the batch, if it is to be computed without its padding.
            first: the first batch of the update; gradients of the others are added to its own.
        """
        epoch, epochs, phase = progress

        def work(*given: Tensor) -> Tensors:
            *tensors, epoch, epochs, scale = given
            now = Example(*tensors), Progress(epoch, epochs, phase), scale
            with self.system.transformer.packed(room):
                loss, statistics = self.gradients.compute(*now, first=first)
            if "loss" not in statistics:
                raise UserError(f'the system {self.system.name} reports no statistic "loss"')
            return loss, self.statistics.stack(phase, statistics)

        name = phase, first, room
        loss, stats = self._recorded(name, work, *example, epoch, epochs, scale)
        return loss, stats

    def change_weights(self, update: Update, number: int) -> float:
        """Take the optimiser's step by that gradient; returns the learning rate."""
        optim = self.settings.optim
        self.gradients.add_up(self.ranks)
        linear = optim.decay == "linear"
        last = int(self.settings.updates(update.n_updates)) if linear else None
        lr = learning_rate(number, peak=optim.lr, warmup=optim.warmup, last=last)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self.averages:
            self.averages.prepare(number)
        with_gradient = tuple(p.grad is not None for p in self.gradients.parameters)
        self._recorded(with_gradient, self._change_weights)
        return lr

    def example(self, batch: Batch) -> Example:
        return self.system.example(batch.source, batch.target)

    def room(self, batch: Batch) -> Room | None:
        """What the system needs for the tokens of a packed batch."""
        room = batch.room
        return room and self.system.room(len(batch.source), room.source, room.target)

    def _change_weights(self) -> Tensors:
        if self.settings.optim.clip:
            torch.nn.utils.clip_grad_norm_(self.system.parameters(), self.settings.optim.clip)
        self.optimizer.step()
        if self.averages:
            self.averages.update()
        return ()

    def _recorded(self, name: Hashable, work: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        return self.recordings(name, work, *inputs) if self.recordings else work(*inputs)

    def _progress(self, update: Update) -> Progress:
        epoch = update.epoch + update.number / update.n_updates
        epochs = self.settings.updates(update.n_updates) / update.n_updates
        now, end = (
            torch.full((), number, dtype=torch.float64, device=self.ranks.device)
            for number in (epoch, epochs)
        )
        return Progress(now, end, self.system.phase(epoch, epochs))
